//! Both sides of a cluster's life, one message at a time. A line that begins with a node is
//! something sent to it.

use std::time::Duration;

use expect_test::{Expect, expect};
use motley_cluster::KvType;
use motley_ring::{
    Activity, Addresses, AssignmentSpec, ClusterId, ControlMessage, Coordinator, CoordinatorFault,
    CoordinatorOptions, CoordinatorOutput, DeployRefused, Deployment, DeploymentMember, Epoch,
    Follower, FollowerFault, FollowerOutput, FollowerState, Hello, Leave, LinkMeasured,
    LinkQuality, List, MeasureLinks, MemberIndex, MicroBatchId, ModelDigest, ModelManifestRef,
    Name, NodeId, OfEpoch, PeerLost, Ping, Pong, Prepare, PrepareFailed, Prepared, Probe,
    ProfileJson, Progress, Route, StepFailed, Survey, SurveyFailed, Surveyed, Text, WireElement,
};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn node(number: u8) -> NodeId {
    NodeId([number; 32])
}

fn hello(number: u8, epoch_seen: u64) -> Hello {
    Hello {
        protocol_min: 1,
        protocol_max: 1,
        build: Name::cut("0.2.0"),
        engine_build: Name::cut("b6000"),
        node: node(number),
        name: Name::cut("a node"),
        addresses: Addresses::default(),
        memory_budget_bytes: 1,
        epoch_seen: Epoch(epoch_seen),
        profile: ProfileJson::default(),
    }
}

/// A head (node 0) and node 1, both in the cluster since time 0.
fn head() -> Coordinator {
    let mut head = alone();
    head.joined(hello(0, 0), ms(0)).expect("the head itself");
    head.joined(hello(1, 6), ms(0)).expect("a node");
    head
}

fn alone() -> Coordinator {
    let options = CoordinatorOptions {
        node: node(0),
        name: Name::cut("desk"),
        build: Name::cut("0.2.0"),
        engine_build: Name::cut("b6000"),
        epoch_seen: Epoch(2),
    };
    Coordinator::new(options, ms(0))
}

fn two_members() -> Route {
    let [first, second] = [MemberIndex(0), MemberIndex(1)];
    Route::of_windows(2, first, &[(first, 0..2), (second, 2..4)]).expect("a route")
}

fn deployment(members: &[u8]) -> Deployment {
    let route = two_members();
    let assignment = AssignmentSpec {
        cluster: ClusterId(1),
        epoch: Epoch(0),
        groups: 2,
        route,
        slots: 1,
        context_tokens: 16,
        batch_rows_max: 4,
        width: 32,
        wire_element: WireElement::Q8_0,
        kv_type: KvType::F16,
    };
    let members = members
        .iter()
        .map(|number| DeploymentMember { node: node(*number), residency: Vec::new() })
        .collect();
    let model = ModelManifestRef {
        name: Name::cut("small"),
        digest: ModelDigest([9; 32]),
        file_bytes: 10,
        block_bytes: 5,
    };
    Deployment { assignment, members, model, sources: vec![node(0)] }
}

fn said(head: &mut Coordinator) -> String {
    let mut lines = Vec::new();
    while let Some(output) = head.poll_output() {
        lines.push(match output {
            CoordinatorOutput::Send { to, message } => format!("{} {}", to.0[0], brief(&message)),
            CoordinatorOutput::Deployed { assignment, members } => {
                format!("deployed {} at {} members", assignment.epoch().0, members.len())
            }
            CoordinatorOutput::DeployFailed { epoch, node, cause } => {
                format!("deployment {} failed at {:?}: {cause}", epoch.0, node.map(|id| id.0[0]))
            }
            CoordinatorOutput::Lost { node, why, ended } => {
                format!("lost {}: {why:?}, ended {:?}", node.0[0], ended.map(|epoch| epoch.0))
            }
            other => format!("{other:?}").replace(&node(1).to_string(), "1"),
        });
    }
    lines.join("\n")
}

fn brief(message: &ControlMessage) -> String {
    match message {
        ControlMessage::Prepare(prepare) => {
            format!("prepare {} as member {}", prepare.epoch().0, prepare.member.0)
        }
        ControlMessage::PrepareFailed(failed) => {
            format!("prepare_failed {}: {}", failed.epoch.0, failed.cause)
        }
        ControlMessage::Commit(of) | ControlMessage::Release(of) => {
            format!("{} {}", message.name(), of.epoch.0)
        }
        other => other.name().to_owned(),
    }
}

fn check(head: &mut Coordinator, expect: Expect) {
    expect.assert_eq(&said(head));
}

fn of(epoch: u64) -> OfEpoch {
    OfEpoch { epoch: Epoch(epoch) }
}

fn prepared(epoch: u64) -> ControlMessage {
    ControlMessage::Prepared(Prepared { epoch: Epoch(epoch), memory_bytes: 1 })
}

/// Lets both nodes prepare and commit.
fn serve(head: &mut Coordinator, epoch: u64) {
    head.deploy(deployment(&[0, 1]), ms(1)).expect("a deployment");
    for number in [0, 1] {
        head.handle(node(number), prepared(epoch), ms(2)).expect("expected");
    }
    for number in [0, 1] {
        head.handle(node(number), ControlMessage::Committed(of(epoch)), ms(3)).expect("expected");
    }
    said(head);
    assert_eq!(head.serving().map(|(assignment, _)| assignment.epoch()), Some(Epoch(epoch)));
}

#[test]
fn a_deployment_is_prepared_committed_and_replaced_when_it_has_run_dry() {
    let mut head = head();
    assert_eq!(head.deploy(deployment(&[0, 1]), ms(1)), Ok(Epoch(7)), "above all seen before");
    check(
        &mut head,
        expect![[r#"
        0 prepare 7 as member 0
        1 prepare 7 as member 1"#]],
    );
    head.handle(node(1), prepared(7), ms(2)).expect("expected");
    check(&mut head, expect![""]);
    head.handle(node(0), prepared(7), ms(2)).expect("expected");
    check(
        &mut head,
        expect![[r#"
        0 commit 7
        1 commit 7"#]],
    );
    head.handle(node(0), ControlMessage::Committed(of(7)), ms(3)).expect("expected");
    check(&mut head, expect![""]);
    head.handle(node(1), ControlMessage::Committed(of(7)), ms(3)).expect("expected");
    check(&mut head, expect!["deployed 7 at 2 members"]);

    head.deploy(deployment(&[1, 0]), ms(4)).expect("a deployment");
    said(&mut head);
    assert!(!head.commit(ms(5)), "nothing is ready");
    for number in [0, 1] {
        head.handle(node(number), prepared(8), ms(5)).expect("expected");
    }
    check(&mut head, expect!["Ready { epoch: Epoch(8) }"]);
    assert!(head.commit(ms(6)));
    check(
        &mut head,
        expect![[r#"
        1 commit 8
        0 commit 8"#]],
    );
    for number in [0, 1] {
        head.handle(node(number), ControlMessage::Committed(of(8)), ms(7)).expect("expected");
    }
    check(
        &mut head,
        expect![[r#"
        0 release 7
        1 release 7
        deployed 8 at 2 members"#]],
    );
}

#[test]
fn a_deployment_fails_at_one_member_and_the_others_let_go() {
    let mut head = head();
    head.deploy(deployment(&[0, 1]), ms(1)).expect("a deployment");
    said(&mut head);
    let cause = Text::cut("disk full");
    let failed = ControlMessage::PrepareFailed(PrepareFailed { epoch: Epoch(7), cause });
    head.handle(node(1), failed, ms(2)).expect("expected");
    check(
        &mut head,
        expect![[r#"
        0 release 7
        1 release 7
        deployment 7 failed at Some(1): disk full"#]],
    );
    head.handle(node(0), prepared(7), ms(3)).expect("too late is no fault");
    check(&mut head, expect![""]);
}

/// A ring that is loaded while another serves waits for that one to run dry. When a connection broke
/// meanwhile nobody listened, and the ring was put in force without it.
#[test]
fn a_connection_that_breaks_before_the_commit_fails_the_deployment_at_the_other_end() {
    let mut told = String::new();
    for (from, member) in [(0, 1), (1, 0)] {
        let mut head = head();
        head.deploy(deployment(&[0, 1]), ms(1)).expect("a deployment");
        head.handle(node(1), prepared(7), ms(2)).expect("expected");
        said(&mut head);
        let cause = Text::cut("reset");
        let lost = PeerLost { epoch: Epoch(7), member: MemberIndex(member), cause };
        head.handle(node(from), ControlMessage::PeerLost(lost), ms(3)).expect("expected");
        told += &format!("- said by {from}\n{}\n", said(&mut head));
    }
    expect![[r#"
        - said by 0
        0 release 7
        1 release 7
        deployment 7 failed at Some(1): no connection between it and another: reset
        - said by 1
        0 release 7
        1 release 7
        deployment 7 failed at Some(1): no connection between it and another: reset
    "#]]
    .assert_eq(&told);
}

#[test]
fn a_member_that_makes_no_progress_fails_the_deployment() {
    let mut head = head();
    head.deploy(deployment(&[0, 1]), ms(0)).expect("a deployment");
    head.handle(node(0), prepared(7), ms(2)).expect("expected");
    let mut told = Vec::new();
    for second in 0..70u64 {
        for tenth in 0..10 {
            let now = ms(second * 1000 + tenth * 100);
            let done_bytes = second.min(5);
            let progress = Progress { epoch: Epoch(7), done_bytes, total_bytes: 9 };
            head.handle(node(1), ControlMessage::Progress(progress), now).expect("expected");
            head.poll(now);
            let said = said(&mut head);
            told.extend(said.lines().filter(|line| line.contains("fail")).map(str::to_owned));
        }
    }
    assert_eq!(told, ["deployment 7 failed at Some(1): no progress for 60 s"]);
}

#[test]
fn a_commit_without_answer_fails_the_deployment() {
    let mut head = head();
    head.deploy(deployment(&[0, 1]), ms(0)).expect("a deployment");
    for number in [0, 1] {
        head.handle(node(number), prepared(7), ms(2)).expect("expected");
    }
    let mut told = Vec::new();
    for tenth in 1..120u64 {
        let pong = Pong { nonce: 0, activity: Activity::default() };
        head.handle(node(1), ControlMessage::Pong(pong), ms(tenth * 100)).expect("expected");
        head.poll(ms(tenth * 100));
        told.push(said(&mut head));
    }
    assert!(told.iter().any(|said| said.contains("no answer to the commit for 10 s")));
}

#[test]
fn silence_becomes_suspicion_and_then_loss_within_two_seconds() {
    let mut head = head();
    serve(&mut head, 7);
    let mut told = Vec::new();
    for tenth in 1..=22u64 {
        head.poll(ms(tenth * 100));
        let lines = said(&mut head).replace("1 ping", "");
        told.extend(
            lines
                .lines()
                .filter(|line| !line.is_empty())
                .map(|line| format!("{} ms: {line}", tenth * 100)),
        );
    }
    expect![[r#"
        600 ms: Suspect { node: NodeId(1), silent_for: 597ms }
        2100 ms: 0 release 7
        2100 ms: lost 1: Silent(2.097s), ended Some(7)"#]]
    .assert_eq(&told.join("\n"));
    let stranger = head.handle(node(1), prepared(7), ms(2200));
    assert_eq!(stranger, Err(CoordinatorFault::Stranger(node(1))));
}

#[test]
fn a_head_that_slept_does_not_blame_the_others() {
    let mut head = head();
    serve(&mut head, 7);
    head.poll(ms(100));
    head.poll(ms(60_000));
    assert!(!said(&mut head).contains("lost"), "the head slept, not the node");
    head.handle(
        node(1),
        ControlMessage::Pong(Pong { nonce: 60_000_000_000, activity: Activity::default() }),
        ms(60_003),
    )
    .expect("expected");
    assert_eq!(head.members()[&node(1)].round_trip, Some(ms(3)));
}

/// How a member goes.
type End = fn(&mut Coordinator);

#[test]
fn whoever_goes_ends_the_deployment_he_served_in() {
    let ends: [(&str, End); 4] = [
        ("closed", |head| head.closed(node(1), 2)),
        ("an older connection closed", |head| head.closed(node(1), 1)),
        ("left", |head| {
            let leave = ControlMessage::Leave(Leave { reason: Text::cut("the lid closes") });
            head.handle(node(1), leave, ms(4)).expect("expected");
        }),
        ("an edge broke", |head| {
            let cause = Text::cut("reset");
            let lost = PeerLost { epoch: Epoch(7), member: MemberIndex(0), cause };
            head.handle(node(1), ControlMessage::PeerLost(lost.clone()), ms(4)).expect("expected");
            head.handle(node(1), ControlMessage::PeerLost(lost), ms(4)).expect("twice is no fault");
        }),
    ];
    let mut told = String::new();
    for (what, end) in ends {
        let mut head = head();
        serve(&mut head, 7);
        end(&mut head);
        told += &format!("- {what}\n{}\n", said(&mut head));
    }
    expect![[r#"
        - closed
        0 release 7
        lost 1: Closed, ended Some(7)
        - an older connection closed

        - left
        0 release 7
        lost 1: Left(Text("the lid closes")), ended Some(7)
        - an edge broke
        0 release 7
        1 release 7
        EdgeLost { node: NodeId(1), peer: MemberIndex(0), cause: Text("reset"), ended: Epoch(7) }
    "#]]
    .assert_eq(&told);
}

#[test]
fn a_member_that_breaks_the_protocol_is_lost() {
    let mut head = head();
    let fault = head.handle(node(1), ControlMessage::Commit(of(7)), ms(4));
    assert_eq!(fault, Err(CoordinatorFault::NotFromMember { name: "commit" }));
    check(&mut head, expect![[r#"lost 1: Protocol("commit"), ended None"#]]);
}

#[test]
fn a_node_that_comes_back_replaces_itself() {
    let mut head = head();
    serve(&mut head, 7);
    let again = head.joined(hello(1, 9), ms(5)).expect("welcome");
    assert_eq!((again.session, again.welcome.epoch), (3, Epoch(9)));
    check(
        &mut head,
        expect![[r#"
            0 release 7
            lost 1: Reconnected, ended Some(7)"#]],
    );
}

#[test]
fn failed_steps_of_the_deployment_in_force_are_told() {
    let mut head = head();
    serve(&mut head, 7);
    for epoch in [6, 7] {
        let cause = Text::cut("memory");
        let failed = StepFailed { epoch: Epoch(epoch), micro_batch: MicroBatchId(3), cause };
        head.handle(node(1), ControlMessage::StepFailed(failed), ms(4)).expect("expected");
    }
    check(
        &mut head,
        expect![[
            r#"StepFailed { node: NodeId(1), micro_batch: MicroBatchId(3), cause: Text("memory") }"#
        ]],
    );
}

#[test]
fn who_does_not_fit_is_refused_with_a_reason_and_advice() {
    let mut cases = vec![hello(1, 0), hello(1, 0), hello(1, 0)];
    (cases[0].protocol_min, cases[0].protocol_max) = (2, 3);
    (cases[1].protocol_min, cases[1].protocol_max) = (0, 0);
    cases[2].engine_build = Name::cut("b5999");
    let told: Vec<String> = cases
        .into_iter()
        .map(|hello| {
            let refused = alone().joined(hello, ms(0)).expect_err("it does not fit");
            format!("{:?}: {}; {}", refused.code, refused.message, refused.advice)
        })
        .collect();
    expect![[r#"
        ProtocolVersion: this cluster speaks protocol versions 1 to 1, the node 2 to 3; install the newer version on the cluster
        ProtocolVersion: this cluster speaks protocol versions 1 to 1, the node 0 to 0; install the newer version on the node
        EngineBuild: this cluster computes with b6000, the node with b5999, whose results may differ; install version 0.2.0 on the node"#]].assert_eq(&told.join("\n"));
    let mut full = alone();
    for number in 0..64 {
        full.joined(hello(number, 0), ms(0)).expect("there is room");
    }
    let refused = full.joined(hello(64, 0), ms(0)).expect_err("there is no room");
    assert_eq!(refused.message.as_str(), "the cluster has 64 nodes, which is the most");
}

#[test]
fn a_deployment_of_nodes_that_are_not_there_is_not_begun() {
    let mut head = head();
    assert_eq!(head.deploy(deployment(&[0, 5]), ms(1)), Err(DeployRefused::Node(node(5))));
    assert_eq!(head.deploy(deployment(&[0, 0]), ms(1)), Err(DeployRefused::Node(node(0))));
    let members = Err(DeployRefused::Members { found: 1, expected: 2 });
    assert_eq!(head.deploy(deployment(&[0]), ms(1)), members);
    let mut odd = deployment(&[0, 1]);
    odd.assignment.width = 33;
    assert!(matches!(head.deploy(odd, ms(1)), Err(DeployRefused::Assignment(_))));
    check(&mut head, expect![""]);
}

/// What the head of [`head`] tells member 1 to prepare.
fn prepare(epoch: u64) -> Box<Prepare> {
    let mut head = head();
    head.joined(hello(2, epoch - 1), ms(0)).expect("a node");
    head.deploy(deployment(&[0, 1]), ms(1)).expect("a deployment");
    while let Some(output) = head.poll_output() {
        if let CoordinatorOutput::Send { message: ControlMessage::Prepare(prepare), .. } = output
            && prepare.member == MemberIndex(1)
        {
            assert_eq!(prepare.epoch(), Epoch(epoch));
            return prepare;
        }
    }
    panic!("member 1 is told to prepare")
}

/// One input of a follower, by name.
fn step(follower: &mut Follower, input: &str, epoch: u64) -> Result<(), FollowerFault> {
    match input {
        "prepare" => follower.handle(ControlMessage::Prepare(prepare(epoch)), ms(1)),
        "ready" => {
            follower.prepared(Epoch(epoch), 1);
            Ok(())
        }
        "fail" => {
            follower.prepare_failed(Epoch(epoch), "disk full");
            Ok(())
        }
        "commit" => follower.handle(ControlMessage::Commit(of(epoch)), ms(1)),
        "release" => follower.handle(ControlMessage::Release(of(epoch)), ms(1)),
        "close" => {
            follower.closed();
            Ok(())
        }
        other => panic!("no input {other}"),
    }
}

fn follower_said(follower: &mut Follower) -> String {
    let mut told = Vec::new();
    while let Some(output) = follower.poll_output() {
        told.push(match output {
            FollowerOutput::Send(message) => format!("send {}", brief(&message)),
            FollowerOutput::Prepare(prepare) => format!("load {}", prepare.epoch().0),
            FollowerOutput::Abandon(epoch) => format!("abandon {}", epoch.0),
            FollowerOutput::Serve(epoch) => format!("serve {}", epoch.0),
            FollowerOutput::Retire(epoch) => format!("retire {}", epoch.0),
            FollowerOutput::Survey(_) => "survey".to_owned(),
            FollowerOutput::MeasureLinks(links) => format!("measure {} links", links.peers.len()),
            FollowerOutput::HeadLost { .. } => "head lost".to_owned(),
            FollowerOutput::HeadLeft { .. } => "head left".to_owned(),
        });
    }
    told.join(", ")
}

/// The ways to a member's states.
const WAYS: [(&str, &[(&str, u64)]); 6] = [
    ("idle", &[]),
    ("preparing 8", &[("prepare", 8)]),
    ("prepared 8", &[("prepare", 8), ("ready", 8)]),
    ("serving 8", &[("prepare", 8), ("ready", 8), ("commit", 8)]),
    ("serving 8, preparing 9", &[("prepare", 8), ("ready", 8), ("commit", 8), ("prepare", 9)]),
    (
        "serving 8, prepared 9",
        &[("prepare", 8), ("ready", 8), ("commit", 8), ("prepare", 9), ("ready", 9)],
    ),
];

/// What can come to a member.
const INPUTS: [(&str, u64); 9] = [
    ("prepare", 8),
    ("prepare", 10),
    ("ready", 9),
    ("fail", 8),
    ("commit", 8),
    ("commit", 9),
    ("release", 8),
    ("release", 9),
    ("close", 0),
];

/// What every input does in every state.
fn transitions() -> String {
    let mut table = String::new();
    for (name, way) in WAYS {
        table += &format!("{name}\n");
        for (input, epoch) in INPUTS {
            let mut follower = Follower::new(Epoch(7), ms(0));
            for (input, epoch) in way {
                step(&mut follower, input, *epoch).expect("the way to the state");
            }
            follower_said(&mut follower);
            let fault = step(&mut follower, input, epoch).err();
            let fault = fault.map(|fault| format!("refused: {fault}"));
            let told = fault.unwrap_or_else(|| follower_said(&mut follower));
            table += &format!("  {input} {epoch}: {told} -> {:?}\n", follower.state());
        }
    }
    table
}

#[test]
fn the_states_of_a_member() {
    expect![[r#"
        idle
          prepare 8: load 8 -> Preparing(Epoch(8))
          prepare 10: load 10 -> Preparing(Epoch(10))
          ready 9:  -> Idle
          fail 8:  -> Idle
          commit 8: refused: commit of epoch 8, which is not prepared -> Idle
          commit 9: refused: commit of epoch 9, which is not prepared -> Idle
          release 8: send released -> Idle
          release 9: send released -> Idle
          close 0: head lost -> Idle
        preparing 8
          prepare 8: send prepare_failed 8: epoch 8 is over -> Preparing(Epoch(8))
          prepare 10: abandon 8, load 10 -> Preparing(Epoch(10))
          ready 9:  -> Preparing(Epoch(8))
          fail 8: abandon 8, send prepare_failed 8: disk full -> Idle
          commit 8: refused: commit of epoch 8, which is not prepared -> Preparing(Epoch(8))
          commit 9: refused: commit of epoch 9, which is not prepared -> Preparing(Epoch(8))
          release 8: abandon 8, send released -> Idle
          release 9: send released -> Preparing(Epoch(8))
          close 0: abandon 8, head lost -> Idle
        prepared 8
          prepare 8: send prepare_failed 8: epoch 8 is over -> Prepared(Epoch(8))
          prepare 10: abandon 8, load 10 -> Preparing(Epoch(10))
          ready 9:  -> Prepared(Epoch(8))
          fail 8:  -> Prepared(Epoch(8))
          commit 8: serve 8, send committed -> Serving(Epoch(8))
          commit 9: refused: commit of epoch 9, which is not prepared -> Prepared(Epoch(8))
          release 8: abandon 8, send released -> Idle
          release 9: send released -> Prepared(Epoch(8))
          close 0: abandon 8, head lost -> Idle
        serving 8
          prepare 8: send prepare_failed 8: epoch 8 is over -> Serving(Epoch(8))
          prepare 10: load 10 -> ServingAndPreparing(Epoch(8), Epoch(10))
          ready 9:  -> Serving(Epoch(8))
          fail 8:  -> Serving(Epoch(8))
          commit 8: send committed -> Serving(Epoch(8))
          commit 9: refused: commit of epoch 9, which is not prepared -> Serving(Epoch(8))
          release 8: retire 8, send released -> Idle
          release 9: send released -> Serving(Epoch(8))
          close 0: retire 8, head lost -> Idle
        serving 8, preparing 9
          prepare 8: send prepare_failed 8: epoch 9 is over -> ServingAndPreparing(Epoch(8), Epoch(9))
          prepare 10: abandon 9, load 10 -> ServingAndPreparing(Epoch(8), Epoch(10))
          ready 9: send prepared -> ServingAndPrepared(Epoch(8), Epoch(9))
          fail 8:  -> ServingAndPreparing(Epoch(8), Epoch(9))
          commit 8: send committed -> ServingAndPreparing(Epoch(8), Epoch(9))
          commit 9: refused: commit of epoch 9, which is not prepared -> ServingAndPreparing(Epoch(8), Epoch(9))
          release 8: retire 8, send released -> Preparing(Epoch(9))
          release 9: abandon 9, send released -> Serving(Epoch(8))
          close 0: abandon 9, retire 8, head lost -> Idle
        serving 8, prepared 9
          prepare 8: send prepare_failed 8: epoch 9 is over -> ServingAndPrepared(Epoch(8), Epoch(9))
          prepare 10: abandon 9, load 10 -> ServingAndPreparing(Epoch(8), Epoch(10))
          ready 9:  -> ServingAndPrepared(Epoch(8), Epoch(9))
          fail 8:  -> ServingAndPrepared(Epoch(8), Epoch(9))
          commit 8: send committed -> ServingAndPrepared(Epoch(8), Epoch(9))
          commit 9: serve 9, send committed -> Serving(Epoch(9))
          release 8: retire 8, send released -> Prepared(Epoch(9))
          release 9: abandon 9, send released -> Serving(Epoch(8))
          close 0: abandon 9, retire 8, head lost -> Idle
    "#]].assert_eq(&transitions());
}

#[test]
fn a_member_answers_signs_of_life_and_notices_their_absence() {
    let mut follower = Follower::new(Epoch(7), ms(0));
    let activity = Activity { busy_ns: 5, idle_ns: 6, frames: 7, ..Activity::NONE };
    follower.set_activity(activity);
    follower.handle(ControlMessage::Ping(Ping { nonce: 3 }), ms(100)).expect("expected");
    let pong = FollowerOutput::Send(ControlMessage::Pong(Pong { nonce: 3, activity }));
    assert_eq!(follower.poll_output(), Some(pong));
    for input in ["prepare", "ready", "commit"] {
        step(&mut follower, input, 8).expect("expected");
    }
    follower_said(&mut follower);
    let mut now = ms(0);
    let lost = loop {
        let next = follower.next_deadline().expect("it still listens");
        assert!(next > now, "time goes on");
        now = next;
        follower.poll(now);
        if let Some(output) = follower.poll_output() {
            break output;
        }
    };
    assert_eq!((lost, now), (FollowerOutput::Retire(Epoch(8)), ms(2100)));
    let silent_for = ms(2000);
    assert_eq!(follower.poll_output(), Some(FollowerOutput::HeadLost { silent_for }));
    assert_eq!((follower.state(), follower.next_deadline()), (FollowerState::Idle, None));
    let fault = follower.handle(ControlMessage::Committed(of(8)), now);
    assert_eq!(fault, Err(FollowerFault::NotFromHead { name: "committed" }));
}

#[test]
fn a_member_tells_only_of_the_deployment_it_serves_or_prepares() {
    let mut follower = Follower::new(Epoch(7), ms(0));
    step(&mut follower, "prepare", 8).expect("expected");
    follower_said(&mut follower);
    follower.peer_lost(Epoch(8), MemberIndex(0), "out of reach");
    expect!["send peer_lost"].assert_eq(&follower_said(&mut follower));
    let mut follower = Follower::new(Epoch(7), ms(0));
    for input in ["prepare", "ready", "commit"] {
        step(&mut follower, input, 8).expect("expected");
    }
    follower_said(&mut follower);
    for epoch in [7, 8] {
        follower.step_failed(Epoch(epoch), MicroBatchId(1), "memory");
        follower.peer_lost(Epoch(epoch), MemberIndex(0), "reset");
        follower.progress(Progress { epoch: Epoch(epoch), done_bytes: 1, total_bytes: 2 });
    }
    expect!["send step_failed, send peer_lost"].assert_eq(&follower_said(&mut follower));
    let leave = ControlMessage::Leave(Leave { reason: Text::cut("stopping") });
    follower.handle(leave, ms(1)).expect("expected");
    expect!["retire 8, head left"].assert_eq(&follower_said(&mut follower));
}

#[test]
fn what_a_node_measures_comes_to_the_head_as_it_was_told() {
    let mut follower = Follower::new(Epoch(0), ms(0));
    let model = ModelManifestRef {
        name: Name::cut("small"),
        digest: ModelDigest([9; 32]),
        file_bytes: 10,
        block_bytes: 5,
    };
    let survey = Survey {
        model,
        sources: List::default(),
        context_tokens: 512,
        batch_rows_max: 64,
        kv_type: KvType::F16,
        others: List::default(),
    };
    follower.handle(ControlMessage::Survey(Box::new(survey)), ms(1)).expect("expected");
    let links = MeasureLinks { peers: List::default() };
    follower.handle(ControlMessage::MeasureLinks(links), ms(1)).expect("expected");
    expect!["survey, measure 0 links"].assert_eq(&follower_said(&mut follower));
    let profile = ProfileJson::new(serde_json::json!({ "cores": 4 })).expect("it is short");
    let quality = LinkQuality { round_trip_ns: 300_000, out_bytes_per_s: 9, in_bytes_per_s: 8 };
    let told = [
        ControlMessage::LinkMeasured(LinkMeasured { to: node(0), quality: Some(quality) }),
        ControlMessage::LinkMeasured(LinkMeasured { to: node(2), quality: None }),
        ControlMessage::Surveyed(Box::new(Surveyed { model: ModelDigest([9; 32]), profile })),
        ControlMessage::SurveyFailed(SurveyFailed {
            model: ModelDigest([9; 32]),
            cause: Text::cut("the disk is full"),
        }),
    ];
    let mut head = head();
    said(&mut head);
    for message in told {
        follower.measured(message);
        let Some(FollowerOutput::Send(message)) = follower.poll_output() else {
            panic!("it is told");
        };
        head.handle(node(1), message, ms(2)).expect("expected");
    }
    let told = said(&mut head).replace(&node(0).to_string(), "0");
    let told = told.replace(&node(2).to_string(), "2").replace(&"09".repeat(32), "DIGEST");
    expect![[r#"
        LinkMeasured { node: NodeId(1), to: NodeId(0), quality: Some(LinkQuality { round_trip_ns: 300000, out_bytes_per_s: 9, in_bytes_per_s: 8 }) }
        LinkMeasured { node: NodeId(1), to: NodeId(2), quality: None }
        Surveyed { node: NodeId(1), model: ModelDigest(DIGEST), profile: ProfileJson(Object {"cores": Number(4)}) }
        SurveyFailed { node: NodeId(1), cause: Text("the disk is full") }"#]].assert_eq(&told);
    follower.closed();
    follower_said(&mut follower);
    follower.measured(ControlMessage::LinkMeasured(LinkMeasured { to: node(0), quality: None }));
    assert_eq!(follower.poll_output(), None, "nobody listens any more");
    // A member does not ask.
    let probe = ControlMessage::Probe(Probe { bytes: 0, answer_bytes: 0 });
    assert!(head.handle(node(1), probe, ms(3)).is_err());
}
