//! What a token costs the head's decisions once everything is warm. Alone in its program, because
//! it counts the allocations of the whole process.

use std::alloc::System;
use std::sync::Arc;

use cap::Cap;
use motley_cluster::KvType;
use motley_ring::{
    Ask, Assignment, AssignmentSpec, CallerId, ClusterId, Computed, Epoch, FrameHeader, Member,
    MemberIndex, MicroBatch, Next, RequestId, ReuseRule, Route, Scheduler, SchedulerOptions,
    WireElement,
};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// A head alone, and what its driver keeps.
struct Head {
    scheduler: Scheduler,
    member: Member<u32>,
    micro_batch: MicroBatch,
    ready: Vec<motley_ring::Ready>,
    prefix: Vec<u8>,
}

impl Head {
    fn new() -> Self {
        let spec = AssignmentSpec {
            cluster: ClusterId(1),
            epoch: Epoch(1),
            route: Route::solo(4),
            slots: 4,
            context_tokens: 512,
            batch_rows_max: 64,
            groups: 1,
            width: 8,
            wire_element: WireElement::F32,
            kv_type: KvType::F16,
        };
        let assignment = Arc::new(Assignment::new(spec).expect("an assignment"));
        let options = SchedulerOptions::of_assignment(&assignment, ReuseRule::Anywhere);
        Self {
            scheduler: Scheduler::new(options),
            member: Member::new(MemberIndex(0), assignment),
            micro_batch: MicroBatch::default(),
            ready: Vec::new(),
            prefix: Vec::new(),
        }
    }

    /// One token of every sequence, by way of a frame's header.
    fn token(&mut self) {
        assert!(self.scheduler.next_batch(&mut self.micro_batch));
        let batch = std::mem::take(&mut self.micro_batch.batch);
        let shape = self.member.assignment().frame_shape();
        let header = FrameHeader::new(&shape, self.micro_batch.id, 0, &batch, &[]);
        self.prefix.clear();
        header.encode_prefix(&batch, &mut self.prefix);
        self.member.begin(self.micro_batch.id, batch, 0).expect("it begins");
        let work = self.member.next_work().expect("it waits");
        let Computed::Done { micro_batch, batch, .. } = self.member.computed(work, 0) else {
            panic!("a head alone is done")
        };
        self.micro_batch.batch = batch;
        assert!(self.scheduler.completed(micro_batch, &mut self.ready));
        for ready in &self.ready {
            assert_eq!(self.scheduler.push_token(ready.request, 5), Next::GoOn);
        }
        assert_eq!(self.ready.len(), 4);
    }
}

#[test]
fn a_token_in_steady_state_allocates_nothing() {
    let mut head = Head::new();
    for request in 0..4 {
        let ask = Ask {
            request: RequestId(request),
            caller: CallerId(request),
            cache_salt: None,
            prompt: vec![1; 8],
            tokens_max: 400,
            priority: 0,
            prompt_rows: false,
        };
        head.scheduler.submit(ask).expect("there is room");
    }
    // Lists of tokens double, so that 138 tokens have room for 118 more.
    (0..130).for_each(|_| head.token());
    let before = ALLOCATOR.total_allocated();
    (0..100).for_each(|_| head.token());
    assert_eq!(ALLOCATOR.total_allocated() - before, 0);
}
