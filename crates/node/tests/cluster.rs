//! Beginning a cluster and inviting to it, from the command line.

mod common;

use std::path::Path;

use common::{check_failure, printed, run, stderr, stdout};
use expect_test::expect;

/// Prints with `--state` at the end; what differs from run to run is replaced.
fn with_state(arguments: &[&str], state: &Path) -> String {
    let state = state.to_str().expect("a path that is text");
    printed(&[arguments, &["--state", state]].concat()).replace(state, "STATE")
}

/// Hides ids: eight digits, or of a token `t` and six.
fn without_ids(text: &str) -> String {
    let digits = |word: &str| word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let token = |word: &str| word.len() == 7 && word.strip_prefix('t').is_some_and(digits);
    let is_id = |word: &str| (word.len() == 8 && digits(word)) || token(word);
    let mut hidden = text.to_owned();
    for word in text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| is_id(word)) {
        hidden = hidden.replace(word, &"#".repeat(word.len()));
    }
    hidden
}

#[test]
fn a_cluster_is_begun_once() {
    let outer = tempfile::tempdir().unwrap();
    let state = outer.path().join("state");
    expect![[r#"
        began cluster ########; this device is nas (########)
        keys lie in STATE; whoever has them can speak for this device
        next: motley serve MODEL   answers, alone until others come
              motley token new     invites another device
    "#]]
    .assert_eq(&without_ids(&with_state(&["init", "--name", "nas"], &state)));
    let again = without_ids(&with_state(&["init", "--name", "other"], &state));
    let first = again.lines().next().unwrap();
    assert_eq!(first, "nothing to do: this device, nas (########), began cluster ######## before");
    let json: serde_json::Value =
        serde_json::from_str(&with_state(&["init", "--json"], &state)).unwrap();
    assert_eq!((&json["created"], &json["name"]), (&false.into(), &"nas".into()));
    assert_eq!(json["cluster"].as_str().unwrap().len(), 64);
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let outer = tempfile::tempdir().unwrap();
    let state = outer.path().join("state");
    with_state(&["init", "--name", "nas"], &state);
    let none = with_state(&["token", "ls"], &state);
    assert_eq!(none, "there are no tokens; motley token new makes one\n");
    let made = with_state(&["token", "new", "--address", "nas.local", "--uses", "3"], &state);
    assert!(made.starts_with("motley1_") && made.lines().count() == 1, "{made}");
    expect![[r#"
        token    state    used  time left
        #######  open   0 of 3   24 hours
    "#]]
    .assert_eq(&without_ids(&with_state(&["token"], &state)));
    let made = with_state(&["token", "new", "--ttl", "7d", "--json"], &state);
    let json: serde_json::Value = serde_json::from_str(&made).unwrap();
    let listed = with_state(&["token", "ls", "--json"], &state);
    assert!(!listed.contains(json["token"].as_str().unwrap()), "the secret is shown once");
    assert_eq!(with_state(&["token", "rm", json["id"].as_str().unwrap()], &state), "");
    assert_eq!(with_state(&["token", "ls"], &state).lines().count(), 2);
}

#[test]
fn what_cannot_be_done_says_how_it_could() {
    let outer = tempfile::tempdir().unwrap();
    let state = outer.path().join("state");
    let state = state.to_str().unwrap();
    check_failure(
        &["token", "new", "--state", state],
        &[],
        &expect![[r#"
            exit 3
            motley: this device has no cluster yet
            hint: begin one with motley init
        "#]],
    );
    check_failure(
        &["init", "--name", "../etc", "--state", state],
        &[],
        &expect![[r#"
            exit 1
            motley: the device's name is not allowed: use letters, digits, '.', '_' and '-'
        "#]],
    );
    printed(&["init", "--name", "nas", "--state", state]);
    check_failure(
        &["token", "rm", "abc", "--state", state],
        &[],
        &expect![[r#"
            exit 3
            motley: there is no token 'abc'; `motley token ls` lists them
        "#]],
    );
    let wrong = run(&["token", "new", "--ttl", "1y", "--state", state]);
    assert_eq!((wrong.status.code(), stdout(&wrong)), (Some(2), String::new()));
    assert!(stderr(&wrong).contains("'1y' is no time; write it like 30m, 24h or 7d"));
}
