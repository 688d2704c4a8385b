//! Devices that come while others work, clients that leave, and activations in other formats.

use crate::device::{PATIENCE, watch};
use crate::http::{Next, Stream, answer};
use crate::rig::{Rig, model};

const PROMPT: &str = "Once upon a time there was a fox who";

#[test]
fn a_device_that_joins_does_not_disturb_a_running_answer() {
    /// Long enough for a device to join meanwhile.
    const TOKENS: u32 = 200;
    let Some(model) = model() else { return };
    let mut rig = Rig::start(&model, 1, &["--split", "memory"]);
    let (url, epoch) = (rig.url(), rig.serving(2));
    let expected = answer(&url, PROMPT, TOKENS);
    let mut stream = Stream::open(&url, PROMPT, TOKENS);
    assert_eq!(stream.next(), Next::Piece);
    rig.join(&[]);
    rig.head.wait_for("member-1 has joined");
    assert_eq!(rig.busy_slots(), 1, "the answer still runs");
    assert_eq!(stream.finish(), Next::Done, "{}", rig.said());
    assert_eq!(stream.text, expected);
    assert!(rig.serving(3) > epoch);
    assert!(rig.layers().iter().all(|layers| *layers > 0), "{:?}", rig.layers());
    assert_eq!(answer(&url, PROMPT, TOKENS), expected);
}

#[test]
fn a_plan_that_does_not_fit_beside_the_one_in_force_waits_for_its_end() {
    const TOKENS: u32 = 100;
    let Some(model) = model() else { return };
    // Enough for all layers, and not for some of them beside all.
    let mut rig = Rig::head(&model, &["--split", "even", "--memory", "300M"]);
    let (url, epoch) = (rig.url(), rig.serving(1));
    let expected = answer(&url, PROMPT, TOKENS);
    let mut stream = Stream::open(&url, PROMPT, TOKENS);
    assert_eq!(stream.next(), Next::Piece);
    rig.join(&[]);
    rig.head.wait_for("does not fit into memory beside this one");
    assert_eq!(stream.finish(), Next::Done, "{}", rig.said());
    assert_eq!(stream.text, expected);
    // Whoever asks before the next plan is there waits, and is answered.
    let changed = watch(PATIENCE, || {
        answer(&url, PROMPT, 2);
        (rig.cluster()?["epoch"].as_u64() > Some(epoch)).then_some(())
    });
    assert!(changed.is_some(), "{}", rig.said());
    assert_eq!(answer(&url, PROMPT, TOKENS), expected);
    assert!(rig.serving(2) > epoch);
    assert!(rig.layers().iter().all(|layers| *layers > 0), "{:?}", rig.layers());
}

#[test]
fn a_client_that_leaves_frees_its_slot_and_the_members() {
    let Some(model) = model() else { return };
    let rig = Rig::start(&model, 1, &["--nodes", "1", "--split", "10,20", "-np", "1"]);
    let mut stream = Stream::open(&rig.url(), PROMPT, 480);
    assert_eq!(stream.next(), Next::Piece);
    assert_eq!(rig.busy_slots(), 1);
    drop(stream);
    // The only slot is free for somebody else, long before the answer would have been complete.
    rig.busy(0);
    answer(&rig.url(), PROMPT, 4);
    let idle = watch(PATIENCE, || {
        let cluster = rig.cluster()?;
        let nodes = cluster["nodes"].as_array()?;
        nodes.iter().all(|node| node["busy_ratio"].as_f64() < Some(0.05)).then_some(())
    });
    assert!(idle.is_some(), "{:?}", rig.cluster());
}

#[test]
fn activations_travel_in_other_formats() {
    let Some(model) = model() else { return };
    for wire in ["f16", "q8_0"] {
        let words = ["--nodes", "1", "--split", "15,15", "--rounds", "3", "--wire", wire];
        let rig = Rig::start(&model, 1, &words);
        let text = answer(&rig.url(), "1, 2, 3, 4, 5, 6,", 12);
        assert!(text.starts_with(" 7, 8,"), "{wire}: {text:?}");
    }
}
