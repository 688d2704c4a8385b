//! What a device gains while others compute: its stream reads on, and its quota is not used.

use super::super::instance::{Instance, Member, Quota};
use super::super::ring::{Ring, measured};
use super::worth::{as_ms, clock, device, ms, ring};
use crate::cost::DiskModel;

/// Time of a token where the first device, the head, has two layers and the second ten.
fn token_ms(instance: &Instance) -> f64 {
    let both = Ring { head: 0, order: vec![0, 1] };
    as_ms(measured(instance, &both, 1, &[(2, 0), (10, 0)]).expect("feasible").token)
}

#[test]
fn a_stream_reads_on_while_the_head_embeds_and_projects() {
    // Of ten layers six fit, two of them the buffer's: six are read, 10 ms each, four within the
    // device's own window.
    let streaming = Member { read_per_byte: clock().per_byte(1e-4), ..device((1.0, 6), (1.0, 0)) };
    let instance = |head_ms: f64| {
        let mut instance = ring(12, vec![device((1.0, 2), (1.0, 0)), streaming], (0.5, 0.5));
        instance.disk = DiskModel::Streaming;
        instance.allow_streaming = true;
        instance.as_head[0] = Some((instance.plain[0], ms(head_ms)));
        instance
    };
    // All windows and hops take 2 + 40 + 1 ms, reading 60 ms.
    assert_eq!(token_ms(&instance(0.0)), 60.0);
    assert_eq!(token_ms(&instance(17.0)), 60.0);
    assert_eq!(token_ms(&instance(20.0)), 63.0);
}

#[test]
fn a_device_that_rests_runs_its_quota_first() {
    let quota = Some(Quota { share: 0.5, gap: ms(5.0) });
    let limited = Member { quota, ..device((1.0, 20), (1.0, 0)) };
    let mut instance = ring(12, vec![device((1.0, 20), (1.0, 0)), limited], (0.5, 0.5));
    instance.disk = DiskModel::Streaming;
    assert_eq!(token_ms(&instance), 2.0 + 5.0 + 1.0 + 2.0, "no more than a token's work is saved");
    instance.plain[1].cpu_layer = ms(2.0);
    assert_eq!(token_ms(&instance), 20.0, "15 ms after a rest, but only 3 of the 5 are rest");
    instance.plain[0].cpu_layer = ms(5.0);
    instance.as_head[0] = Some((instance.plain[0], 0));
    assert_eq!(token_ms(&instance), 10.0 + 15.0 + 1.0);
    // In more rounds every window begins after a rest.
    let both = Ring { head: 0, order: vec![0, 1] };
    let two = measured(&instance, &both, 2, &[(2, 0), (10, 0)]).expect("feasible");
    assert_eq!(as_ms(two.token), 10.0 + 10.0 + 2.0);
    // Who is alone does not rest.
    instance.as_head[1] = Some((instance.plain[1], 0));
    let alone = Ring { head: 1, order: vec![1] };
    let found = measured(&instance, &alone, 1, &[(12, 0)]).expect("feasible");
    assert_eq!(as_ms(found.token), 24.0);
}
