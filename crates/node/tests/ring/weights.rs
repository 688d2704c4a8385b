//! Devices fetch the layers they compute, and nothing else.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::http::answer;
use crate::rig::{Rig, model};

/// Bytes that the files below a folder take on the disk, holes left out.
fn stored_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = entries.map(|entry| {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() { stored_bytes(&path) } else { metadata.blocks() * 512 }
    });
    bytes.sum()
}

/// Blocks of this size move; a layer's first and last bring some of its neighbours.
const SLACK_BYTES: u64 = 3 * (4 << 20);

#[test]
fn members_fetch_their_layers_once() {
    let Some(model) = model() else { return };
    let whole = fs::metadata(&model).unwrap().len();
    let mut rig = Rig::head(&model, &["--nodes", "2", "--split", "20,7,3"]);
    rig.join(&[]);
    rig.join(&[]);
    rig.ready();
    let first = answer(&rig.url(), "The capital of France is", 4);
    let layer = whole / 30;
    for (index, layers) in [7, 3].into_iter().enumerate() {
        rig.members[index].wait_for("fetched ");
        let stored = stored_bytes(&rig.state_of(index).join("models"));
        let most = layers * layer + SLACK_BYTES;
        assert!(stored > 0 && stored <= most, "{stored} bytes of {whole}, {most} expected");
    }
    // The third layer of the ring is on the disk when the device comes back.
    rig.rejoin(0, &[]);
    rig.ready();
    assert_eq!(answer(&rig.url(), "The capital of France is", 4), first);
    let said = rig.members[0].said();
    assert!(said.contains("serving ") && !said.contains("fetched "), "{said}");
}

#[test]
fn a_copy_of_the_model_spares_fetching() {
    let Some(model) = model() else { return };
    let rig = Rig::start(&model, 1, &["--nodes", "1", "--split", "10,20"]);
    answer(&rig.url(), "The capital of France is", 4);
    let said = rig.members[0].said();
    assert!(said.contains("serving ") && !said.contains("fetched "), "{said}");
    assert_eq!(stored_bytes(&rig.state_of(0).join("models")), 0);
}

#[test]
fn blocks_come_from_everyone_who_has_them() {
    let Some(model) = model() else { return };
    let mut rig = Rig::head(&model, &["--nodes", "1", "--split", "memory"]);
    rig.join(&[]);
    rig.ready();
    let first = answer(&rig.url(), "The capital of France is", 4);
    rig.members[0].wait_for("from 127.0.0.1:");
    // The newcomer gets the last layers, which the first member has had.
    rig.join(&[]);
    rig.ready();
    let from = rig.members[1].wait_for("of the model: ");
    assert_eq!(from.matches(" from ").count(), 2, "{from}");
    assert_eq!(answer(&rig.url(), "The capital of France is", 4), first);
}
