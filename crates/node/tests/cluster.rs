//! Beginning a cluster, inviting to it and putting devices out, from the command line.

#![expect(clippy::disallowed_methods, reason = "a test adds devices to a member list on disk")]

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

/// Arguments that keep a test from asking a head that happens to run here.
const NO_HEAD: [&str; 2] = ["--url", "http://127.0.0.1:1"];

#[test]
fn devices_are_listed_without_a_head() {
    let outer = tempfile::tempdir().unwrap();
    let state = outer.path().join("state");
    with_state(&["init", "--name", "nas"], &state);
    let output = run(&["nodes", "--state", state.to_str().unwrap(), NO_HEAD[0], NO_HEAD[1]]);
    // Whether a column of ids stands right depends on their digits.
    let table = without_ids(&stdout(&output));
    let cells = |line: &str| {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.collect::<Vec<_>>().join(" | ")
    };
    let rows: Vec<String> = table.lines().map(cells).collect();
    expect![[r#"
        device | id | added | state | layers | round trip | address
        nas (this) | ######## | just now | - | - | - | -"#]]
    .assert_eq(&rows.join("\n"));
    assert!(stderr(&output).contains("no answer from http://127.0.0.1:1/cluster"));
    let listed = with_state(&["nodes", "ls", "--json", NO_HEAD[0], NO_HEAD[1]], &state);
    let json: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&json["revision"], &json["head_answers"]), (&1.into(), &false.into()));
    assert_eq!(json["nodes"][0]["name"], "nas");
    assert_eq!(json["nodes"][0]["state"], serde_json::Value::Null);
}

/// Adds a device to the list as joining would, for a join needs a head with a model.
fn add_member(state: &Path, name: &str, digit: char) {
    let path = state.join("members.json");
    let list = std::fs::read(&path).unwrap();
    let mut list: serde_json::Value = serde_json::from_slice(&list).unwrap();
    let id = digit.to_string().repeat(64);
    let entry = serde_json::json!({
        "id": id, "name": name, "added_unix_s": 1_795_996_800, "removed": false,
    });
    list["members"].as_array_mut().unwrap().push(entry);
    std::fs::write(&path, list.to_string()).unwrap();
}

#[test]
fn devices_are_drained_and_put_out() {
    let outer = tempfile::tempdir().unwrap();
    let state = outer.path().join("state");
    with_state(&["init", "--name", "nas"], &state);
    add_member(&state, "laptop", 'a');
    add_member(&state, "phone", 'b');
    let of = |action: &[&str]| with_state(&[&["nodes"], action, &NO_HEAD].concat(), &state);
    assert_eq!(of(&["drain", "laptop"]), "drained laptop (aaaaaaaa)\n");
    let fields = |name: &str| {
        let json: serde_json::Value = serde_json::from_str(&of(&["ls", "--json"])).unwrap();
        let nodes = json["nodes"].as_array().unwrap().clone();
        let node = nodes.into_iter().find(|node| node["name"] == name).unwrap();
        (node["drained"].as_bool().unwrap(), node["removed"].as_bool().unwrap())
    };
    assert_eq!((fields("laptop"), fields("phone")), ((true, false), (false, false)));
    assert_eq!(of(&["undrain", "aaaa"]), "undrained laptop (aaaaaaaa)\n");
    assert_eq!(fields("laptop"), (false, false));
    let json: serde_json::Value =
        serde_json::from_str(&of(&["rm", "laptop", "phone", "--json"])).unwrap();
    assert_eq!(json["removed"][1]["name"], "phone");
    assert_eq!((fields("laptop"), fields("phone")), ((false, true), (false, true)));
}

#[test]
fn devices_that_cannot_be_put_out_are_named() {
    let outer = tempfile::tempdir().unwrap();
    let state = outer.path().join("state");
    let text = state.to_str().unwrap().to_owned();
    check_failure(
        &["nodes", "--state", &text],
        &[],
        &expect![[r#"
            exit 3
            motley: this device has no cluster yet
            hint: begin one with motley init, or enter one with motley join
        "#]],
    );
    with_state(&["init", "--name", "nas"], &state);
    add_member(&state, "laptop", 'a');
    // One wrong name changes nothing.
    check_failure(
        &["nodes", "rm", "laptop", "mac", "--state", &text],
        &[],
        &expect![[r#"
            exit 3
            motley: no member is called 'mac'; `motley nodes` lists them
        "#]],
    );
    let listed = with_state(&["nodes", "--json", NO_HEAD[0], NO_HEAD[1]], &state);
    let json: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        (&json["nodes"][1]["name"], &json["nodes"][1]["removed"]),
        (&"laptop".into(), &false.into())
    );
    check_failure(
        &["nodes", "rm", "nas", "--state", &text],
        &[],
        &expect![[r#"
            exit 4
            motley: nas is this device, which the cluster cannot spare
        "#]],
    );
}

#[test]
fn the_doctor_looks_at_everything_once() {
    let outer = tempfile::tempdir().unwrap();
    let state = outer.path().join("state");
    with_state(&["init", "--name", "nas"], &state);
    // Whether all is well depends on the machine.
    let output = run(&["doctor", "--json", "--state", state.to_str().unwrap()]);
    let findings: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let findings = findings.as_array().unwrap();
    let about: Vec<&str> = findings.iter().map(|it| it["about"].as_str().unwrap()).collect();
    let expected = [
        "clock",
        "memory",
        "disk",
        "addresses",
        "port of the API",
        "port of the cluster",
        "cluster",
    ];
    assert_eq!(about, expected);
    let all_good = findings.iter().all(|it| it["good"] == true);
    assert_eq!(output.status.code(), Some(if all_good { 0 } else { 1 }));
}
