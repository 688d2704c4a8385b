//! Devices that may not join are told why and what to do; the others do not notice.

use std::fs;
use std::path::Path;

use expect_test::{Expect, expect};

use crate::common::printed;
use crate::device::{Device, PATIENCE, watch};
use crate::http::answer;
use crate::rig::{Rig, model};

const PROMPT: &str = "The capital of France is";

/// Tries to join from the folder `state`, and compares what is said of it.
#[track_caller]
fn check(rig: &Rig, state: &Path, words: &[&str], expected: &Expect) {
    let folder = tempfile::tempdir().unwrap();
    let state = state.to_str().unwrap();
    let words = [&["join", "--name", "stranger", "--state", state], words].concat();
    let mut stranger = Device::start(&words, &folder.path().join("log"));
    let code = stranger.ended().code().unwrap();
    expected.assert_eq(&format!("exit {code}\n{}", rig.without_addresses(&stranger.said())));
}

#[test]
fn strangers_are_told_why_they_cannot_join() {
    let Some(model) = model() else { return };
    let rig = Rig::start(&model, 1, &["--nodes", "1", "--split", "memory"]);
    let (epoch, first) = (rig.serving(2), answer(&rig.url(), PROMPT, 4));
    let outer = tempfile::tempdir().unwrap();
    let [fresh, foreign] = ["fresh", "foreign"].map(|name| outer.path().join(name));

    let token = rig.new_token(&[]);
    let (rest, last) = token.split_at(token.len() - 1);
    let typing_error = format!("{rest}{}", if last == "a" { "b" } else { "a" });
    check(
        &rig,
        &fresh,
        &[&typing_error],
        &expect![[r#"
        exit 2
        motley: the join token was not copied whole or has a typing error; copy it again
    "#]],
    );

    let foreign_text = foreign.to_str().unwrap();
    printed(&["init", "--name", "other", "--state", foreign_text]);
    let address = rig.cluster_address();
    let words = ["token", "new", "--address", &address, "--state", foreign_text];
    let other_token = printed(&words);
    check(
        &rig,
        &fresh,
        &[other_token.trim()],
        &expect![[r#"
            exit 4
            motley: HEAD belongs to another cluster; check the address, or make a token there
            hint: tried HEAD; motley token new --address HOST, on the device that serves, makes a token with another address; motley serve --lan lets itself be found
        "#]],
    );
    check(
        &rig,
        &foreign,
        &[&token],
        &expect![[r#"
        exit 4
        motley: this device belongs to cluster ########, the token is of cluster ########
        hint: give another folder with --state, or remove the old one
    "#]],
    );
    assert!(!fresh.join("members.json").exists(), "nothing of a cluster is kept");
    assert_eq!(answer(&rig.url(), PROMPT, 4), first);
    assert_eq!(rig.serving(2), epoch, "the plan has not changed");
}

#[test]
fn tokens_are_good_so_often_and_so_long() {
    let Some(model) = model() else { return };
    let mut rig = Rig::head(&model, &["--split", "memory"]);
    let outer = tempfile::tempdir().unwrap();
    let fresh = outer.path().join("fresh");
    let spent = rig.new_token(&["--uses", "1"]);
    rig.join_by(&spent, &[]);
    rig.ready();
    check(
        &rig,
        &fresh,
        &[&spent],
        &expect![[r#"
        exit 4
        motley: the join token was used up; make another with `motley token new`
    "#]],
    );

    let short = rig.new_token(&["--ttl", "1s"]);
    let state_of_head = rig.state_of_head();
    let words = ["token", "ls", "--state", state_of_head.to_str().unwrap()];
    let expired = watch(PATIENCE, || printed(&words).contains("expired").then_some(()));
    assert!(expired.is_some());
    check(
        &rig,
        &fresh,
        &[&short],
        &expect![[r#"
        exit 4
        motley: the join token has expired, or the clock of the device that made it was set back; make another with `motley token new`
    "#]],
    );

    answer(&rig.url(), PROMPT, 4);
}

#[test]
fn a_member_that_is_removed_is_out_at_once() {
    let Some(model) = model() else { return };
    let mut rig = Rig::start(&model, 1, &["--nodes", "1", "--split", "memory"]);
    let first = answer(&rig.url(), PROMPT, 4);
    let list = rig.state_of_head().join("members.json");
    let mut members: serde_json::Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
    for member in members["members"].as_array_mut().unwrap() {
        member["removed"] = (member["name"] == "member-0").into();
    }
    members["revision"] = (members["revision"].as_u64().unwrap() + 1).into();
    let next = list.with_extension("next");
    fs::write(&next, members.to_string()).unwrap();
    fs::rename(&next, &list).unwrap();
    rig.head.wait_for("member-0 is gone");
    rig.serving(1);
    assert_eq!(answer(&rig.url(), PROMPT, 4), first);
    let code = rig.members[0].ended().code().unwrap();
    let said = rig.members[0].said();
    let told = &said[said.find("motley: ").unwrap()..];
    expect![[r#"
        exit 4
        motley: this device was removed from the cluster; it needs a new token
        hint: motley join TOKEN enters it again
    "#]]
    .assert_eq(&format!("exit {code}\n{told}"));
}
