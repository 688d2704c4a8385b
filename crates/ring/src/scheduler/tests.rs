//! Schedules of small cases, written out. `3[0..5)*` is rows 0 to 4 of slot 3, of which the head
//! wants the last (`*`), all (`**`) or none; `!` clears the slot first.

use expect_test::{Expect, expect};

use super::*;

const OPTIONS: SchedulerOptions = SchedulerOptions {
    slots: 4,
    context_tokens: 64,
    batch_rows_max: 16,
    groups: 1,
    prefill_rows_while_decoding: 4,
    waiting_max: 8,
    waiting_per_caller_max: 4,
    reuse: ReuseRule::Anywhere,
};

/// A scheduler whose micro-batches come back when the test says so; every chosen token is 7.
struct Bench {
    scheduler: Scheduler,
    micro_batch: MicroBatch,
    on_their_way: Vec<MicroBatchId>,
}

impl Bench {
    fn new(options: SchedulerOptions) -> Self {
        let (micro_batch, on_their_way) = (MicroBatch::default(), Vec::new());
        Self { scheduler: Scheduler::new(options), micro_batch, on_their_way }
    }

    fn ask(&mut self, request: u64, prompt: &[u32]) {
        self.submit(ask(request, 0, prompt)).expect("there is room");
    }

    fn submit(&mut self, ask: Ask) -> Result<(), SubmitRefused> {
        self.scheduler.submit(ask)
    }

    /// All micro-batches that can be sent now, one a line.
    fn send(&mut self) -> String {
        let mut lines = String::new();
        while self.scheduler.next_batch(&mut self.micro_batch) {
            self.on_their_way.push(self.micro_batch.id);
            lines.push_str(&line(&self.micro_batch));
            lines.push('\n');
        }
        lines
    }

    /// The oldest micro-batch comes back, and tokens are chosen; finished ones end.
    fn come_back(&mut self) -> Vec<Ready> {
        let mut ready = Vec::new();
        let id = self.on_their_way.remove(0);
        assert!(self.scheduler.completed(id, &mut ready));
        for ready in ready.iter().filter(|ready| ready.chooses) {
            if self.scheduler.push_token(ready.request, 7) != Next::GoOn {
                assert!(self.scheduler.finish(ready.request));
            }
        }
        ready
    }

    /// Sends and takes back until nothing is left, and gives all micro-batches.
    fn run(&mut self) -> String {
        let mut lines = self.send();
        while !self.on_their_way.is_empty() {
            self.come_back();
            lines.push_str(&self.send());
        }
        lines
    }

    fn check(&mut self, expect: Expect) {
        expect.assert_eq(&self.run());
    }
}

fn ask(request: u64, caller: u64, prompt: &[u32]) -> Ask {
    Ask {
        request: RequestId(request),
        caller: CallerId(caller),
        cache_salt: None,
        prompt: prompt.to_vec(),
        tokens_max: 3,
        priority: 0,
        prompt_rows: false,
    }
}

fn line(micro_batch: &MicroBatch) -> String {
    assert_eq!(micro_batch.tokens.len(), micro_batch.batch.rows() as usize);
    assert_eq!(micro_batch.requests.len(), micro_batch.batch.runs().len());
    let run = |run: &Run| {
        let wanted = ["", "*", "**"][run.wanted as usize];
        let fresh = if run.fresh { "!" } else { "" };
        format!("{}{fresh}[{}..{}){wanted}", run.slot.0, run.first_position, run.end_position())
    };
    micro_batch.batch.runs().iter().map(run).collect::<Vec<_>>().join(" ")
}

fn numbers(count: u32) -> Vec<u32> {
    (100..100 + count).collect()
}

#[test]
fn a_prompt_goes_in_chunks_and_each_token_alone() {
    let mut bench = Bench::new(OPTIONS);
    bench.ask(1, &numbers(20));
    bench.check(expect![[r#"
        0![0..16)
        0[16..20)*
        0[20..21)*
        0[21..22)*
    "#]]);
    assert_eq!(bench.scheduler.counts().slots_free, 4);
}

#[test]
fn tokens_of_answers_come_before_long_prompts_and_are_held_up_little() {
    let mut bench = Bench::new(OPTIONS);
    bench.ask(1, &[1, 2]);
    bench.send();
    bench.ask(2, &numbers(14));
    bench.come_back();
    bench.check(expect![[r#"
        0[2..3)* 1![0..4)
        0[3..4)* 1[4..8)
        1[8..14)*
        1[14..15)*
        1[15..16)*
    "#]]);
}

#[test]
fn a_short_prompt_passes_a_long_one() {
    let mut bench = Bench::new(OPTIONS);
    bench.ask(1, &numbers(40));
    bench.ask(2, &[1, 2, 3]);
    expect![[r#"
        1![0..3)*
    "#]]
    .assert_eq(&bench.send());
}

#[test]
fn short_prompts_do_not_hold_up_a_long_one_for_ever() {
    let mut bench = Bench::new(OPTIONS);
    bench.ask(1, &numbers(40));
    let mut sent = String::new();
    for request in 2..8 {
        bench.ask(request, &[1, 2, 3]);
        sent.push_str(&bench.send());
        bench.come_back();
    }
    expect![[r#"
        1![0..3)*
        1[3..4)* 0![0..12)
        1[4..5)* 2![0..3)* 3![0..3)*
        2[3..4)* 3[3..4)* 0[12..24)
        2[4..5)* 3[4..5)* 1[2..3)*
        0[24..40)*
    "#]]
    .assert_eq(&sent);
}

#[test]
fn prompts_that_wait_together_are_computed_one_after_the_other() {
    let options = SchedulerOptions { batch_rows_max: 256, context_tokens: 512, ..OPTIONS };
    let mut bench = Bench::new(SchedulerOptions { prefill_rows_while_decoding: 64, ..options });
    bench.ask(1, &[1]);
    bench.send();
    for request in 2..=4 {
        bench.ask(request, &numbers(130));
    }
    bench.come_back();
    bench.check(expect![[r#"
        0[1..2)* 1![0..130)*
        0[2..3)* 1[130..131)* 2![0..130)*
        1[131..132)* 2[130..131)* 3![0..130)*
        2[131..132)* 3[130..131)*
        3[131..132)*
    "#]]);
}

/// Of prompts that come together the last waited for some twenty steps of all others' answers. Now
/// they take turns with next tokens while so many wait that one may fill a micro-batch.
#[test]
fn the_last_of_many_prompts_gets_as_much_room_as_the_first() {
    let options =
        SchedulerOptions { slots: 5, batch_rows_max: 512, context_tokens: 1024, ..OPTIONS };
    let mut bench = Bench::new(SchedulerOptions { prefill_rows_while_decoding: 64, ..options });
    for request in 1..=5 {
        let mut long = ask(request, 0, &numbers(512));
        long.tokens_max = 100;
        bench.submit(long).expect("there is room");
    }
    let mut sent = String::new();
    while !sent.contains(" 4[512..513)*") {
        sent.push_str(&bench.send());
        bench.come_back();
    }
    expect![[r#"
        0![0..512)*
        1![0..512)*
        0[512..513)* 1[512..513)*
        2![0..512)*
        0[513..514)* 1[513..514)* 2[512..513)*
        3![0..512)*
        0[514..515)* 1[514..515)* 2[513..514)* 3[512..513)* 4![0..256)
        0[515..516)* 1[515..516)* 2[514..515)* 3[513..514)* 4[256..512)*
        0[516..517)* 1[516..517)* 2[515..516)* 3[514..515)* 4[512..513)*
    "#]]
    .assert_eq(&sent);
}

/// Rows in which a prompt comes beside three answers, where a micro-batch takes so many
/// milliseconds and five more for each row.
fn pieces(once_ms: u64, prompt: u32) -> Vec<u32> {
    let options = SchedulerOptions { batch_rows_max: 256, context_tokens: 512, ..OPTIONS };
    let mut bench = Bench::new(SchedulerOptions { prefill_rows_while_decoding: 64, ..options });
    for request in 1..=3 {
        let mut answered = ask(request, 0, &numbers(40));
        answered.tokens_max = 100;
        bench.submit(answered).expect("there is room");
    }
    let mut pieces = Vec::new();
    for step in 0..10 {
        if step == 5 {
            bench.ask(4, &numbers(prompt));
        }
        assert!(bench.scheduler.next_batch(&mut bench.micro_batch));
        let MicroBatch { id, batch, requests, .. } = &bench.micro_batch;
        let runs = batch.runs().iter().zip(requests);
        pieces.extend(runs.filter(|it| *it.1 == RequestId(4)).map(|it| it.0.rows));
        let time = Duration::from_millis(once_ms + 5 * u64::from(batch.rows()));
        bench.scheduler.took(*id, time);
        bench.on_their_way.push(*id);
        bench.come_back();
    }
    pieces
}

/// A chat of thirty tokens beside ten answers tripled the time of one step for all of them.
#[test]
fn a_short_prompt_is_cut_by_what_its_rows_cost_the_others() {
    assert_eq!(pieces(0, 30)[..4], [8, 8, 8, 6], "each row costs its time");
    assert_eq!(pieces(100, 30)[..2], [16, 14]);
    assert_eq!(pieces(500, 30)[..1], [30], "rows are nearly free");
}

#[test]
fn a_longer_prompt_comes_in_as_many_rows_as_the_others_can_bear() {
    assert_eq!(pieces(0, 140)[..3], [64, 64, 12], "64 at least");
    assert_eq!(pieces(500, 140)[..2], [70, 70]);
}

#[test]
fn a_long_prompt_that_has_begun_gains_no_more_room() {
    let options = SchedulerOptions { batch_rows_max: 512, context_tokens: 1024, ..OPTIONS };
    let mut bench = Bench::new(SchedulerOptions { prefill_rows_while_decoding: 64, ..options });
    bench.ask(1, &[1]);
    bench.send();
    bench.ask(2, &numbers(1000));
    bench.come_back();
    let mut sent = String::new();
    for request in 3..8 {
        sent.push_str(&bench.send());
        bench.ask(request, &numbers(64));
        bench.come_back();
    }
    expect![[r#"
        0[1..2)* 1![0..64)
        0[2..3)* 2![0..64)*
        2[64..65)* 1[64..181)
        2[65..66)* 3![0..64)* 0![0..64)*
        0[64..65)* 3[64..65)* 1[181..298)
    "#]]
    .assert_eq(&sent);
}

#[test]
fn sequences_are_spread_evenly_over_the_groups() {
    let mut bench = Bench::new(SchedulerOptions { groups: 2, ..OPTIONS });
    for request in 1..=4 {
        bench.ask(request, &[1, 2]);
    }
    expect![[r#"
        0![0..2)* 1![0..2)* 2![0..2)* 3![0..2)*
    "#]]
    .assert_eq(&bench.send());
    bench.come_back();
    expect![[r#"
        0[2..3)* 1[2..3)*
        2[2..3)* 3[2..3)*
    "#]]
    .assert_eq(&bench.send());
    bench.come_back();
    expect![[r#"
        0[3..4)* 1[3..4)*
    "#]]
    .assert_eq(&bench.send());
}

#[test]
fn chunks_of_one_prompt_fill_a_pipeline_in_order() {
    let options = SchedulerOptions { groups: 3, batch_rows_max: 128, ..OPTIONS };
    let mut bench = Bench::new(SchedulerOptions { context_tokens: 512, ..options });
    bench.ask(1, &numbers(300));
    expect![[r#"
        0![0..64)
        0[64..128)
        0[128..192)
    "#]]
    .assert_eq(&bench.send());
    assert_eq!(bench.come_back(), [], "nothing to choose from yet");
    expect![[r#"
        0[192..256)
    "#]]
    .assert_eq(&bench.send());
}

#[test]
fn a_common_beginning_is_computed_once_but_only_for_its_owner() {
    let mut bench = Bench::new(OPTIONS);
    bench.ask(1, &numbers(10));
    bench.run();
    let mut other_caller = ask(2, 1, &numbers(10));
    other_caller.tokens_max = 1;
    bench.submit(other_caller).expect("there is room");
    bench.check(expect![[r#"
        1![0..10)*
    "#]]);
    let mut salted = ask(3, 0, &numbers(10));
    (salted.cache_salt, salted.tokens_max) = (Some(1), 1);
    bench.submit(salted).expect("there is room");
    bench.check(expect![[r#"
        2![0..10)*
    "#]]);
    // Slot 0 holds the prompt and two tokens of its answer.
    bench.ask(4, &[&numbers(10), &[7, 7, 7, 9][..]].concat());
    assert_eq!(bench.scheduler.cached_tokens(RequestId(4)), Some(12));
    bench.check(expect![[r#"
        0[12..14)*
        0[14..15)*
        0[15..16)*
    "#]]);
}

#[test]
fn the_last_token_of_a_prompt_is_computed_again() {
    let mut bench = Bench::new(OPTIONS);
    bench.ask(1, &numbers(10));
    bench.run();
    bench.ask(2, &numbers(10));
    assert_eq!(bench.scheduler.cached_tokens(RequestId(2)), Some(9));
    expect![[r#"
        0[9..10)*
    "#]]
    .assert_eq(&bench.send());
}

#[test]
fn a_long_history_is_not_given_up_for_a_few_common_tokens() {
    let mut bench = Bench::new(OPTIONS);
    bench.ask(1, &numbers(30));
    bench.run();
    bench.ask(2, &[100, 101, 5, 6, 7, 8, 9, 10]);
    assert_eq!(bench.scheduler.cached_tokens(RequestId(2)), Some(0));
    assert_eq!(bench.scheduler.slot_states()[1].request, Some(RequestId(2)));
}

#[test]
fn a_window_that_slid_away_is_not_gone_back_to() {
    let window = ReuseRule::SlidingWindow { window_tokens: 4, kept_tokens: 10 };
    assert!(window.allows(9, 10, 10), "everything is still kept");
    assert!(window.allows(13, 20, 20), "positions 10 to 19 are kept");
    assert!(!window.allows(12, 20, 20), "position 9 is needed");
    assert!(window.allows(20, 20, 30), "going on is no step back");
    assert!(!ReuseRule::OnlyForward.allows(9, 10, 10));
    assert!(!ReuseRule::Anywhere.allows(11, 10, 10));
    for (reuse, cached) in [(window, 0), (ReuseRule::OnlyForward, 0), (ReuseRule::Anywhere, 15)] {
        let mut bench = Bench::new(SchedulerOptions { reuse, ..OPTIONS });
        bench.ask(1, &numbers(40));
        bench.run();
        bench.ask(2, &numbers(16));
        assert_eq!(bench.scheduler.cached_tokens(RequestId(2)), Some(cached), "{reuse:?}");
    }
}

#[test]
fn callers_share_the_slots_evenly() {
    let mut bench = Bench::new(SchedulerOptions { slots: 2, ..OPTIONS });
    for request in 1..=4 {
        bench.submit(ask(request, 1, &[1, 2])).expect("there is room");
    }
    bench.submit(ask(5, 2, &[3, 4])).expect("there is room");
    let mut urgent = ask(6, 1, &[5, 6]);
    urgent.priority = 1;
    bench.submit(urgent).expect("there is room");
    let mut order = Vec::new();
    for _ in 0..20 {
        bench.send();
        for request in &bench.micro_batch.requests {
            if !order.contains(&request.0) {
                order.push(request.0);
            }
        }
        if !bench.on_their_way.is_empty() {
            bench.come_back();
        }
    }
    // Both slots fall free at once: the urgent one, then the caller that has none.
    assert_eq!(order, [1, 2, 6, 5, 3, 4]);
}

#[test]
fn what_cannot_run_or_wait_is_refused() {
    let mut bench = Bench::new(SchedulerOptions { slots: 1, waiting_max: 3, ..OPTIONS });
    assert_eq!(bench.submit(ask(1, 0, &[])), Err(SubmitRefused::EmptyPrompt));
    let too_long = SubmitRefused::PromptTooLong { tokens: 64, context_tokens: 64 };
    assert_eq!(bench.submit(ask(1, 0, &[1; 64])), Err(too_long));
    for request in 1..=4 {
        bench.ask(request, &[1]);
    }
    assert_eq!(bench.submit(ask(4, 0, &[1])), Err(SubmitRefused::RequestExists));
    assert_eq!(bench.submit(ask(1, 0, &[1])), Err(SubmitRefused::RequestExists));
    let full = Err(SubmitRefused::QueueFull { waiting: 3 });
    assert_eq!(bench.submit(ask(5, 0, &[1])), full);
    let options = SchedulerOptions { slots: 1, waiting_per_caller_max: 1, ..OPTIONS };
    let mut bench = Bench::new(options);
    bench.ask(1, &[1]);
    bench.ask(2, &[1]);
    let full = Err(SubmitRefused::CallerQueueFull { waiting: 1 });
    assert_eq!(bench.submit(ask(3, 0, &[1])), full);
    assert_eq!(bench.submit(ask(3, 1, &[1])), Ok(()), "another caller has its own share");
}

#[test]
fn a_cancelled_request_keeps_its_slot_until_its_rows_are_back() {
    let mut bench = Bench::new(SchedulerOptions { slots: 1, ..OPTIONS });
    bench.ask(1, &numbers(10));
    bench.ask(2, &[1]);
    bench.ask(3, &[2]);
    bench.send();
    assert!(bench.scheduler.finish(RequestId(1)), "it ran");
    assert!(bench.scheduler.finish(RequestId(2)), "it waited");
    assert!(!bench.scheduler.finish(RequestId(2)), "it has ended");
    let counts = bench.scheduler.counts();
    assert_eq!((counts.ending, counts.running, counts.waiting), (1, 0, 1));
    assert_eq!(bench.come_back(), [], "nobody wants a token");
    bench.check(expect![[r#"
        0![0..1)*
        0[1..2)*
        0[2..3)*
    "#]]);
}

#[test]
fn what_a_failed_micro_batch_left_is_not_used_again() {
    let mut bench = Bench::new(OPTIONS);
    bench.ask(1, &numbers(20));
    bench.send();
    let mut ended = Vec::new();
    let id = bench.on_their_way.remove(0);
    assert!(bench.scheduler.failed(id, &mut ended));
    assert_eq!(ended, [RequestId(1)]);
    assert!(!bench.scheduler.failed(id, &mut ended), "it is known already");
    bench.ask(2, &numbers(20));
    expect![[r#"
        0![0..16)
    "#]]
    .assert_eq(&bench.send());
}

#[test]
fn a_lost_ring_ends_what_ran_and_another_takes_the_rest() {
    let mut bench = Bench::new(SchedulerOptions { slots: 1, ..OPTIONS });
    bench.ask(1, &[1, 2]);
    bench.ask(2, &numbers(30));
    bench.ask(3, &[5]);
    bench.send();
    let mut ended = Vec::new();
    bench.scheduler.lost_all(&mut ended);
    assert_eq!(ended, [RequestId(1)]);
    assert!(!bench.scheduler.completed(bench.on_their_way.remove(0), &mut Vec::new()));
    let smaller = SchedulerOptions { context_tokens: 30, slots: 2, ..OPTIONS };
    bench.scheduler.resize(smaller, &mut ended);
    assert_eq!(ended, [RequestId(1), RequestId(2)], "the second does not fit any more");
    bench.check(expect![[r#"
        0![0..1)*
        0[1..2)*
        0[2..3)*
    "#]]);
}

#[test]
fn held_requests_wait_for_another_deployment() {
    let mut bench = Bench::new(OPTIONS);
    bench.scheduler.hold(true);
    bench.ask(1, &[1]);
    assert_eq!(bench.send(), "");
    assert_eq!(bench.scheduler.counts().waiting, 1);
    bench.scheduler.hold(false);
    assert_ne!(bench.send(), "");
}

#[test]
fn a_reader_that_is_behind_gets_nothing_computed() {
    let mut bench = Bench::new(OPTIONS);
    bench.ask(1, &[1]);
    bench.ask(2, &[2]);
    bench.send();
    bench.come_back();
    assert!(bench.scheduler.rest(RequestId(1), true));
    expect![[r#"
        1[1..2)*
    "#]]
    .assert_eq(&bench.send());
    bench.come_back();
    assert!(bench.scheduler.rest(RequestId(1), false));
    expect![[r#"
        0[1..2)* 1[2..3)*
    "#]]
    .assert_eq(&bench.send());
    assert!(!bench.scheduler.rest(RequestId(9), true));
}

#[test]
fn all_logits_of_a_prompt_come_back_in_order() {
    let mut bench = Bench::new(OPTIONS);
    bench.ask(1, &numbers(18));
    bench.run();
    let mut all = ask(2, 0, &numbers(18));
    (all.prompt_rows, all.tokens_max) = (true, 2);
    bench.submit(all).expect("there is room");
    bench.ask(3, &[1]);
    bench.send();
    bench.come_back();
    expect![[r#"
        2[1..2)* 1![0..8)**
    "#]]
    .assert_eq(&bench.send());
    let ready = bench.come_back();
    let told: Vec<_> =
        ready.iter().map(|ready| (ready.first_row, ready.rows, ready.chooses)).collect();
    assert_eq!(told, [(0, 1, true), (1, 8, false)]);
    bench.check(expect![[r#"
        2[2..3)* 1[8..16)**
        1[16..18)**
        1[18..19)*
    "#]]);
}

#[test]
fn an_answer_ends_at_its_length_or_at_the_end_of_the_context() {
    let mut bench = Bench::new(SchedulerOptions { context_tokens: 4, ..OPTIONS });
    let mut long = ask(1, 0, &[1, 2]);
    long.tokens_max = 9;
    bench.submit(long).expect("there is room");
    let mut short = ask(2, 0, &[1, 2]);
    short.tokens_max = 1;
    bench.submit(short).expect("there is room");
    bench.send();
    let mut ready = Vec::new();
    bench.scheduler.completed(MicroBatchId(0), &mut ready);
    assert_eq!(bench.scheduler.push_token(RequestId(1), 7), Next::GoOn);
    assert_eq!(bench.scheduler.push_token(RequestId(2), 7), Next::LengthReached);
    expect![[r#"
        0[2..3)*
    "#]]
    .assert_eq(&bench.send());
    bench.scheduler.completed(MicroBatchId(1), &mut ready);
    assert_eq!(bench.scheduler.push_token(RequestId(1), 7), Next::ContextFull);
    assert_eq!(bench.scheduler.tokens(RequestId(1)), Some(&[1, 2, 7, 7][..]));
    assert_eq!(bench.send(), "", "nothing is computed until they are finished");
    let phases: Vec<SlotPhase> =
        bench.scheduler.slot_states().iter().map(|state| state.phase).collect();
    use SlotPhase::{Answer, Free};
    assert_eq!(phases, [Answer, Answer, Free, Free]);
}

/// A device that runs short of memory lets what runs go on, and takes no more than it has room for.
#[test]
fn fewer_slots_hold_for_new_requests_alone() {
    let mut bench = Bench::new(OPTIONS);
    (0..3).for_each(|request| bench.ask(request, &[1, 2]));
    bench.scheduler.limit_slots(2);
    bench.ask(3, &[1, 2]);
    let counts = bench.scheduler.counts();
    assert_eq!((counts.running, counts.waiting, counts.slots_free), (3, 1, 1));
    assert!(bench.scheduler.finish(RequestId(0)));
    bench.send();
    assert_eq!(bench.scheduler.counts().waiting, 1, "two still run");
    assert!(bench.scheduler.finish(RequestId(1)));
    bench.run();
    assert_eq!(bench.scheduler.counts().waiting, 0);
    bench.scheduler.limit_slots(4);
    (4..8).for_each(|request| bench.ask(request, &[1, 2]));
    assert_eq!(bench.scheduler.counts().running, 4);
}
