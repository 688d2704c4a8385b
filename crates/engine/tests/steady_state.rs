//! What a token costs once everything is warm. Alone in its program, because it counts the
//! allocations of the whole process.

mod common;

use std::alloc::System;

use cap::Cap;
use common::{Fixture, THREADS};
use motley_engine::{CacheElement, Engine, Entering, LayoutChoice, Row, Step, Wanted};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

#[test]
fn a_token_in_steady_state_allocates_nothing() {
    let Some(fixture) = Fixture::open("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    assert_eq!(THREADS.threads, 1, "helpers would allocate beside us");
    let mut engine = fixture.engine(4, LayoutChoice::Plain, CacheElement::F16);
    let (mut logits, mut rows) = (Vec::new(), [Row { slot: 0, position: 0 }; 4]);
    let mut step = |engine: &mut Engine, position: usize| {
        for (slot, row) in rows.iter_mut().enumerate() {
            *row = Row { slot, position };
        }
        let step = Step {
            layers: 0..fixture.layers(),
            rows: &rows,
            entering: Entering::Tokens(&[1, 2, 3, 4]),
            wanted: Wanted::Logits(&[0, 1, 2, 3]),
        };
        engine.run(&step, &mut logits).unwrap();
    };
    step(&mut engine, 0);
    let before = ALLOCATOR.total_allocated();
    (1..20).for_each(|position| step(&mut engine, position));
    assert_eq!(ALLOCATOR.total_allocated() - before, 0);
}
