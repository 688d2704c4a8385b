//! The division of layers as a mixed-integer program for HiGHS (PLANNER 3.6 with the ring of 3.7).
//!
//! One program per ring and number of rounds. Its answer is measured by the same direct cost as
//! every other, so tolerances of the solver can cost quality but never truth.

use highs::{Col, HighsModelStatus, RowProblem, Sense};

use super::instance::{Instance, Member, RoundShape, TIE, Ticks};
use super::ring::{Assignment, Ring, measured};
use crate::cost::DiskModel;

/// Added to a room, in layers, so that what fits to the byte is not lost to rounding. What then does
/// not fit is refused by the direct cost.
const SLACK_LAYERS: f64 = 1e-8;

/// Columns of one member.
struct Columns {
    cpu: Col,
    gpu: Col,
    /// CPU layers that stay in RAM.
    pinned: Col,
    /// Layers' room of the stream.
    buffer: Col,
    /// There is a CPU layer.
    any_cpu: Col,
    /// There are both kinds.
    mixed: Col,
    /// Memory does not suffice.
    over: Col,
    /// The window is larger than the room: loads twice, overlaps nothing.
    released: Col,
    /// Disk time that adds to the token.
    added: Col,
}

struct Program<'a> {
    instance: &'a Instance,
    ring: &'a Ring,
    rounds: u32,
    problem: RowProblem,
    /// Ticks per unit of the objective.
    unit: f64,
    token: Col,
    members: Vec<Columns>,
}

/// The best division over a ring, every device taking part in every round; `None` if HiGHS finds
/// none within the nodes.
pub(super) fn divide(
    instance: &Instance,
    ring: &Ring,
    rounds: u32,
    nodes_max: u32,
) -> Option<Assignment> {
    let mut problem = RowProblem::default();
    let token = problem.add_column(1.0, 0.0..);
    let layers = f64::from(instance.layers);
    // The objective is around a thousand when one device does all of it.
    let slowest = |device: &usize| instance.member(*device, ring.head).cpu_layer;
    let unit = ring.order.iter().map(slowest).max()? as f64 * layers / 1e3;
    let unit = unit.max(TIE as f64);
    let mut program = Program { instance, ring, rounds, problem, unit, token, members: Vec::new() };
    for at in 0..ring.order.len() {
        program.add_member(at);
    }
    program.add_token();
    let mut model = program.problem.optimise(Sense::Minimise);
    model.make_quiet();
    model.set_option("threads", 1);
    model.set_option("random_seed", 1);
    model.set_option("mip_rel_gap", 0.0);
    model.set_option("mip_abs_gap", 0.0);
    model.set_option("mip_feasibility_tolerance", 1e-8);
    model.set_option("mip_max_nodes", i32::try_from(nodes_max).unwrap_or(i32::MAX));
    let solved = model.try_solve().ok()?;
    if !matches!(solved.status(), HighsModelStatus::Optimal) {
        return None;
    }
    let solution = solved.get_solution();
    let count = |column: Col| solution.columns()[column.index()].round().max(0.0) as u32;
    let layers: Vec<(u32, u32)> =
        program.members.iter().map(|columns| (count(columns.cpu), count(columns.gpu))).collect();
    measured(instance, ring, rounds, &layers)
}

impl Program<'_> {
    fn member(&self, at: usize) -> &Member {
        self.instance.member(self.ring.order[at], self.ring.head)
    }

    fn time(&self, ticks: Ticks) -> f64 {
        ticks as f64 / self.unit
    }

    fn add_member(&mut self, at: usize) {
        let member = *self.member(at);
        let all = f64::from(self.instance.layers);
        let streaming = if self.instance.allow_streaming { 1.0 } else { 0.0 };
        // Without room for its buffer a device has no CPU layers; GPU layers stay possible.
        let fixed = if member.reload_all.is_some() { 0 } else { member.cpu_fixed_bytes };
        let no_cpu = !member.shared && member.room_bytes < fixed;
        let cpu_most = if no_cpu { 0.0 } else { all };
        let problem = &mut self.problem;
        let columns = Columns {
            cpu: problem.add_integer_column(0.0, 0.0..=cpu_most),
            gpu: problem.add_integer_column(0.0, 0.0..=f64::from(member.gpu_layers_max)),
            pinned: problem.add_integer_column(0.0, 0.0..=all),
            buffer: problem.add_integer_column(0.0, 0.0..=all),
            any_cpu: problem.add_integer_column(0.0, 0.0..=1.0),
            mixed: problem.add_column(0.0, 0.0..=1.0),
            over: problem.add_integer_column(0.0, 0.0..=streaming),
            released: problem.add_integer_column(0.0, 0.0..=streaming),
            added: problem.add_column(1.0, 0.0..),
        };
        problem.add_row(1.0.., [(columns.cpu, 1.0), (columns.gpu, 1.0)]);
        problem.add_row(..=0.0, [(columns.cpu, 1.0), (columns.any_cpu, -all)]);
        if member.copy > 0 && member.gpu_layers_max > 0 {
            let any_gpu = problem.add_integer_column(0.0, 0.0..=1.0);
            problem.add_row(..=0.0, [(columns.gpu, 1.0), (any_gpu, -all)]);
            problem
                .add_row(..=1.0, [(columns.any_cpu, 1.0), (any_gpu, 1.0), (columns.mixed, -1.0)]);
        }
        if self.instance.shape == RoundShape::Equal {
            for layers in [columns.cpu, columns.gpu] {
                let per_round = problem.add_integer_column(0.0, 0.0..=all);
                problem.add_row(0.0..=0.0, [(layers, 1.0), (per_round, -f64::from(self.rounds))]);
            }
        }
        if !no_cpu {
            match self.instance.disk {
                _ if member.reload_all.is_some() => self.reload_all(&member, &columns),
                DiskModel::RingOverlap => self.overlap(&member, &columns),
                DiskModel::Streaming => unreachable!("its buffer is no linear program"),
                DiskModel::Excess | DiskModel::CyclicLru => self.add_disk(&member, &columns),
            }
        }
        self.members.push(columns);
    }

    /// Pinned layers, buffer and keys fit; what is not pinned streams.
    fn overlap(&mut self, member: &Member, columns: &Columns) {
        let all = f64::from(self.instance.layers);
        let least = f64::from(self.instance.buffer_min);
        let rounds = f64::from(self.rounds);
        let problem = &mut self.problem;
        let parts = Parts::of(member);
        problem.add_row(
            ..=parts.room,
            [
                (columns.pinned, 1.0),
                (columns.buffer, 1.0),
                (columns.cpu, parts.kv),
                (columns.any_cpu, parts.fixed),
                (columns.gpu, parts.shared_gpu),
            ],
        );
        problem.add_row(..=0.0, [(columns.pinned, 1.0), (columns.cpu, -1.0)]);
        problem.add_row(
            ..=0.0,
            [
                (columns.cpu, 1.0),
                (columns.pinned, -1.0),
                (columns.over, -all),
                (columns.released, -all),
            ],
        );
        problem.add_row(..=1.0, [(columns.over, 1.0), (columns.released, 1.0)]);
        problem.add_row(
            0.0..,
            [(columns.buffer, 1.0), (columns.over, -least), (columns.released, -least)],
        );
        // The buffer holds one window of a device that streams.
        problem.add_row(
            -rounds * all..,
            [(columns.buffer, rounds), (columns.cpu, -1.0), (columns.over, -rounds * all)],
        );
        let twice = 2.0 * member.read(member.layer_bytes) as f64 / self.unit;
        problem.add_row(
            -twice * all..,
            [(columns.added, 1.0), (columns.cpu, -twice), (columns.released, -twice * all)],
        );
    }

    /// The excess, or all CPU layers, are read and overlap nothing.
    fn add_disk(&mut self, member: &Member, columns: &Columns) {
        let all = f64::from(self.instance.layers);
        let least = f64::from(self.instance.buffer_min);
        let parts = Parts::of(member);
        let read = member.read(member.layer_bytes) as f64 / self.unit;
        let most = all * (2.0 + parts.kv) + parts.fixed - parts.room.min(0.0);
        let problem = &mut self.problem;
        problem.add_row(
            ..=parts.room,
            [
                (columns.cpu, 1.0 + parts.kv),
                (columns.any_cpu, parts.fixed),
                (columns.gpu, parts.shared_gpu),
                (columns.over, -most),
            ],
        );
        problem.add_row(
            ..=parts.room,
            [
                (columns.cpu, parts.kv),
                (columns.any_cpu, parts.fixed),
                (columns.gpu, parts.shared_gpu),
                (columns.over, least),
            ],
        );
        if self.instance.disk == DiskModel::CyclicLru {
            problem.add_row(
                -read * all..,
                [(columns.added, 1.0), (columns.cpu, -read), (columns.over, -read * all)],
            );
        } else {
            problem.add_row(
                -read * parts.room..,
                [
                    (columns.added, 1.0),
                    (columns.cpu, -read * (1.0 + parts.kv)),
                    (columns.any_cpu, -read * parts.fixed),
                    (columns.gpu, -read * parts.shared_gpu),
                ],
            );
        }
    }

    /// Metal: everything or nothing.
    fn reload_all(&mut self, member: &Member, columns: &Columns) {
        let all = f64::from(self.instance.layers);
        let least = f64::from(self.instance.buffer_min);
        let parts = Parts::of(member);
        let read = member.read(member.layer_bytes) as f64 / self.unit;
        let beyond = member.read(member.reload_all.unwrap_or(0)) as f64 / self.unit;
        let most = all * (2.0 + parts.kv) + parts.fixed - parts.room.min(0.0);
        let problem = &mut self.problem;
        problem.add_row(
            ..=parts.room,
            [
                (columns.cpu, 1.0 + parts.kv),
                (columns.gpu, parts.shared_gpu),
                (columns.any_cpu, parts.fixed),
                (columns.over, -most),
            ],
        );
        // Once reading, keys of all layers, GPU layers and the buffer must find room.
        problem.add_row(
            ..=parts.room + most,
            [(columns.cpu, parts.kv), (columns.gpu, 1.0 + parts.kv), (columns.over, least + most)],
        );
        problem.add_row(
            -(read * all)..,
            [
                (columns.added, 1.0),
                (columns.cpu, -read),
                (columns.gpu, -read),
                (columns.over, -(read * all) - beyond),
            ],
        );
    }

    /// T ≥ ΣB and T ≥ B + S of every device; all layers are somewhere.
    fn add_token(&mut self) {
        let (mut sum, mut hops) = (vec![(self.token, 1.0)], 0.0);
        let mut every = Vec::new();
        for at in 0..self.members.len() {
            let member = *self.member(at);
            let columns = &self.members[at];
            let fixed = member.step * i64::from(self.rounds)
                + self.ring.hops(self.instance, at, self.rounds);
            let own = [
                (columns.cpu, -self.time(member.cpu_layer)),
                (columns.gpu, -self.time(member.gpu_layer)),
                (columns.mixed, -self.time(member.copy * i64::from(self.rounds))),
            ];
            let fixed = self.time(fixed);
            let read = self.time(member.read(member.layer_bytes));
            let all = f64::from(self.instance.layers);
            let mut with_stream = vec![(self.token, 1.0)];
            with_stream.extend(own);
            if self.instance.disk == DiskModel::RingOverlap {
                with_stream.push((columns.cpu, -self.time(member.cpu_layer) - read));
                with_stream.remove(1);
                with_stream.push((columns.pinned, read));
                with_stream.push((columns.released, read * all));
                self.problem.add_row(fixed.., with_stream);
            }
            sum.extend(own);
            hops += fixed;
            every.extend([(columns.cpu, 1.0), (columns.gpu, 1.0)]);
        }
        self.problem.add_row(hops.., sum);
        let layers = f64::from(self.instance.layers);
        self.problem.add_row(layers..=layers, every);
    }
}

/// A member's memory in layers.
struct Parts {
    room: f64,
    kv: f64,
    fixed: f64,
    /// What a GPU layer takes of the same room.
    shared_gpu: f64,
}

impl Parts {
    fn of(member: &Member) -> Self {
        let layer = member.layer_bytes as f64;
        let kv = member.kv_bytes as f64 / layer;
        Self {
            room: member.room_bytes as f64 / layer + SLACK_LAYERS,
            kv,
            fixed: member.cpu_fixed_bytes as f64 / layer,
            shared_gpu: if member.shared { 1.0 + kv } else { 0.0 },
        }
    }
}
