//! One member and the frames it takes, forwards, drops and refuses.

use std::sync::Arc;

use expect_test::expect;
use motley_cluster::KvType;
use motley_ring::{
    Accepted, Assignment, AssignmentSpec, Batch, ClusterId, Computed, Epoch, FrameHeader,
    FrameRefused, Member, MemberIndex, MicroBatchId, Route, Run, SlotIndex, Wanted, WireElement,
};

/// Head 0 and members 1 and 2: `0e[0..1] 1[1..2] 2~ 0[2..3] 1[3..4] 2~ 0p`.
fn assignment() -> Arc<Assignment> {
    let stop = |member, first, end| {
        format!(r#"{{"member":{member},"first_layer":{first},"end_layer":{end}}}"#)
    };
    let stops = [
        stop(0, 0, 1),
        stop(1, 1, 2),
        stop(2, 2, 2),
        stop(0, 2, 3),
        stop(1, 3, 4),
        stop(2, 4, 4),
        stop(0, 4, 4),
    ];
    let json = format!(r#"{{"members":3,"stops":[{}]}}"#, stops.join(","));
    let route: Route = serde_json::from_str(&json).expect("a route");
    let spec = AssignmentSpec {
        cluster: ClusterId(1),
        epoch: Epoch(5),
        route,
        slots: 4,
        context_tokens: 100,
        batch_rows_max: 8,
        groups: 2,
        width: 2,
        wire_element: WireElement::F32,
        kv_type: KvType::F16,
    };
    Arc::new(Assignment::new(spec).expect("an assignment"))
}

fn run(slot: u32, first_position: u32, rows: u32) -> Run {
    let (slot, wanted) = (SlotIndex(slot), Wanted::Last);
    Run { slot, first_position, rows, wanted, fresh: first_position == 0 }
}

fn member(index: u16) -> Member<Vec<u8>> {
    Member::new(MemberIndex(index), assignment())
}

/// Gives a member a frame as the plan wants it, after `change`.
fn give(
    member: &mut Member<Vec<u8>>,
    (from, stop): (u16, u32),
    runs: Vec<Run>,
    change: impl Fn(&mut FrameHeader),
) -> Result<Accepted<Vec<u8>>, FrameRefused> {
    let batch = Batch::new(runs);
    let assignment = assignment();
    let stops = assignment.route().stops().len();
    let all = (stop as usize) < stops && !assignment.route().after_all_layers(stop as usize);
    let rows = if all { batch.rows() } else { batch.wanted_rows() };
    let payload = vec![0; 8 * rows as usize];
    let shape = assignment.frame_shape();
    let mut header = FrameHeader::new(&shape, MicroBatchId(1), stop, &batch, &payload);
    change(&mut header);
    member.handle_frame(MemberIndex(from), &header, batch, payload)
}

#[test]
fn a_frame_that_does_not_belong_here_is_refused() {
    let give = |edge, run, change: fn(&mut FrameHeader)| {
        give(&mut member(1), edge, vec![run], change).expect_err("it is refused").to_string()
    };
    let told = [
        give((0, 1), run(0, 0, 2), |header| header.epoch = Epoch(6)),
        give((0, 2), run(0, 0, 2), |_| {}),
        give((0, 9), run(0, 0, 2), |_| {}),
        give((2, 1), run(0, 0, 2), |_| {}),
        give((0, 1), run(0, 0, 9), |_| {}),
        give((0, 1), run(4, 0, 2), |_| {}),
        give((0, 1), run(0, 95, 6), |_| {}),
        give((0, 1), run(0, 0, 2), |header| header.payload_bytes = 8),
        give((0, 1), run(0, 3, 2), |_| {}),
    ];
    expect![[r#"
        frame of epoch 6, this member serves epoch 5
        stop 2 is not reached by a frame to this member
        stop 9 is not reached by a frame to this member
        frames to stop 1 come from member 0, not from member 2
        number of rows is 9, at most 8 is allowed
        slot is 4, at most 3 is allowed
        end of a run is 101, at most 100 is allowed
        8 bytes of activations, 16 expected
        slot 0 continues at position 3, only 0 are computed"#]]
    .assert_eq(&told.join("\n"));
    let begins = give_head((2, 0));
    assert_eq!(begins, Err(FrameRefused::NotMine { stop: 0 }), "tokens come from no other member");
}

fn give_head(edge: (u16, u32)) -> Result<Accepted<Vec<u8>>, FrameRefused> {
    give(&mut member(0), edge, vec![run(0, 0, 2)], |_| {})
}

#[test]
fn frames_of_an_old_epoch_are_dropped() {
    let mut member = member(1);
    let old = give(&mut member, (2, 9), vec![run(9, 7, 2)], |header| header.epoch = Epoch(4));
    assert_eq!((old, member.waiting()), (Ok(Accepted::Dropped), 0));
}

#[test]
fn a_relay_forwards_at_once_and_only_what_travels() {
    let mut relay = member(2);
    for (stop, bytes) in [(2, 16), (5, 8)] {
        let given = give(&mut relay, (1, stop), vec![run(0, 0, 2)], |_| {});
        let Ok(Accepted::Forward(outgoing)) = given else { panic!("{given:?}") };
        let sent = (outgoing.to, outgoing.stop, outgoing.payload.len());
        assert_eq!(sent, (MemberIndex(0), stop + 1, bytes));
    }
    assert!(relay.next_work().is_none());
}

#[test]
fn what_is_nearly_through_goes_first_and_slots_are_cleared_once() {
    let mut member = member(1);
    let accepted = Ok(Accepted::Queued);
    assert_eq!(give(&mut member, (0, 1), vec![run(0, 0, 2)], |_| {}), accepted);
    assert_eq!(give(&mut member, (0, 1), vec![run(1, 0, 1)], |_| {}), accepted);
    assert_eq!(give(&mut member, (0, 4), vec![run(2, 0, 3)], |_| {}), accepted);
    assert_eq!(member.waiting(), 3);
    let mut told = Vec::new();
    while let Some(work) = member.next_work() {
        let cleared: Vec<u32> = work.slots_to_clear().map(|slot| slot.0).collect();
        let (layers, leaves) = (work.layers.clone(), work.leaves_wanted);
        told.push(format!("{layers:?} clears {cleared:?}, only wanted rows leave: {leaves}"));
        let Computed::Send(outgoing) = member.computed(work, Vec::new()) else {
            panic!("only the head is at the end")
        };
        assert_eq!(outgoing.to, MemberIndex(2));
    }
    expect![[r#"
        3..4 clears [], only wanted rows leave: true
        1..2 clears [0], only wanted rows leave: false
        1..2 clears [1], only wanted rows leave: false"#]]
    .assert_eq(&told.join("\n"));
    assert_eq!(member.waiting(), 0);
}

#[test]
fn what_builds_on_a_failed_chunk_fails_too() {
    let mut head = member(0);
    let begin = |head: &mut Member<Vec<u8>>, id, runs| {
        head.begin(MicroBatchId(id), Batch::new(runs), Vec::new())
    };
    begin(&mut head, 1, vec![run(0, 0, 4)]).expect("a first chunk");
    begin(&mut head, 2, vec![run(0, 4, 4), run(1, 0, 1)]).expect("the next, and another slot");
    begin(&mut head, 3, vec![run(1, 1, 1)]).expect("the other slot goes on");
    begin(&mut head, 4, vec![run(2, 0, 1)]).expect("a third slot");
    let mut failed = Vec::new();
    let work = head.next_work().expect("it waits");
    head.failed(work, &mut failed);
    assert_eq!(failed, [1, 2, 3].map(MicroBatchId), "all that build on the first");
    let gap = FrameRefused::Gap { slot: SlotIndex(0), position: 8, filled: 0 };
    assert_eq!(begin(&mut head, 5, vec![run(3, 0, 4), run(0, 8, 1)]), Err(gap));
    let gap = FrameRefused::Gap { slot: SlotIndex(3), position: 4, filled: 0 };
    assert_eq!(begin(&mut head, 6, vec![run(3, 4, 1)]), Err(gap), "its first chunk was refused");
    begin(&mut head, 7, vec![run(0, 0, 2)]).expect("it begins afresh");
    let rest: Vec<u64> =
        std::iter::from_fn(|| head.next_work()).map(|work| work.micro_batch.0).collect();
    assert_eq!((rest, head.waiting()), (vec![4, 7], 0));
}

#[test]
fn a_member_alone_is_a_ring() {
    let spec = assignment().spec().clone();
    let spec = AssignmentSpec { route: Route::solo(4), ..spec };
    let assignment = Arc::new(Assignment::new(spec).expect("an assignment"));
    let mut alone = Member::new(MemberIndex(0), assignment);
    alone.begin(MicroBatchId(1), Batch::new(vec![run(0, 0, 2)]), "tokens").expect("it begins");
    let work = alone.next_work().expect("it waits");
    assert!(work.embeds && work.projects && work.leaves_wanted && !work.enters_wanted);
    assert_eq!((work.layers.clone(), work.payload), (0..4, "tokens"));
    let done = alone.computed(work, "logits");
    assert!(matches!(done, Computed::Done { micro_batch: MicroBatchId(1), product: "logits", .. }));
}

#[test]
fn the_queue_is_bounded() {
    let mut head = member(0);
    let begin = |head: &mut Member<Vec<u8>>, id| {
        head.begin(MicroBatchId(id), Batch::new(vec![run(0, 0, 1)]), Vec::new())
    };
    for id in 0..motley_ring::limits::MICRO_BATCHES_MAX as u64 {
        begin(&mut head, id).expect("there is room");
    }
    assert_eq!(begin(&mut head, 999), Err(FrameRefused::QueueFull));
}
