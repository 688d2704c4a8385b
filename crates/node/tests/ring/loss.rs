//! Devices that go away, and come back.

use std::thread;

use crate::http::{Next, Stream, answer, ask};
use crate::rig::{Rig, model};

const PROMPT: &str = "Once upon a time there was a fox who";

/// More tokens than are computed before something happens.
const MANY: u32 = 480;

#[test]
fn a_member_that_dies_ends_only_its_requests() {
    let Some(model) = model() else { return };
    let mut rig = Rig::start(&model, 2, &["--nodes", "2", "--split", "memory"]);
    let (url, epoch) = (rig.url(), rig.serving(3));
    let expected = answer(&url, PROMPT, 8);
    let mut streams = [(); 2].map(|()| Stream::open(&url, PROMPT, MANY));
    let whole = thread::spawn({
        let url = url.clone();
        move || ask(&url, PROMPT, MANY)
    });
    rig.busy(3);
    streams.iter_mut().for_each(|stream| assert_eq!(stream.next(), Next::Piece));
    rig.members[1].kill();
    for stream in &mut streams {
        assert_eq!(stream.finish(), Next::Failed("node_lost".to_owned()), "{}", rig.said());
    }
    let (status, body) = whole.join().unwrap();
    assert_eq!((status, &body["error"]["code"]), (503, &"node_lost".into()), "{body}");
    // The others have room for all layers.
    let without = rig.serving(2);
    assert!(without > epoch);
    assert_eq!(answer(&url, PROMPT, 8), expected);
    rig.rejoin(1, &[]);
    assert!(rig.serving(3) > without);
    assert!(rig.layers().iter().all(|layers| *layers > 0), "{:?}", rig.layers());
    assert_eq!(answer(&url, PROMPT, 8), expected);
}

#[test]
fn members_find_a_head_that_was_killed() {
    let Some(model) = model() else { return };
    let mut rig = Rig::start(&model, 2, &["--nodes", "2", "--split", "memory"]);
    let (url, epoch) = (rig.url(), rig.serving(3));
    let expected = answer(&url, PROMPT, 8);
    rig.restart_head();
    assert!(rig.serving(3) > epoch, "an old plan cannot come back");
    assert_eq!(answer(&url, PROMPT, 8), expected);
    // Told once, however often it was looked for.
    for member in &rig.members {
        assert_eq!(member.said().matches("the head is gone").count(), 1, "{}", member.said());
    }
}

#[test]
fn a_member_that_starts_before_its_head_waits_for_it() {
    let Some(model) = model() else { return };
    let mut rig = Rig::start(&model, 1, &["--nodes", "1", "--split", "memory"]);
    rig.head.kill();
    rig.rejoin(0, &[]);
    rig.members[0].wait_for("looking for the head");
    rig.restart_head();
    rig.serving(2);
    assert_eq!(rig.head.said().matches("has joined").count(), 1, "{}", rig.head.said());
}

#[test]
fn a_member_that_is_told_to_stop_says_goodbye() {
    let Some(model) = model() else { return };
    let mut rig = Rig::start(&model, 1, &["--nodes", "1", "--split", "memory"]);
    let expected = answer(&rig.url(), PROMPT, 8);
    rig.members[0].terminate();
    assert!(rig.members[0].ended().success(), "{}", rig.members[0].said());
    rig.head.wait_for("is gone: it left");
    rig.serving(1);
    assert_eq!(answer(&rig.url(), PROMPT, 8), expected);
}
