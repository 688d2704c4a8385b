//! What a set of devices can do as one replica: roles, slots, groups, master (PLANNER 4.2, 4.3, 4.7).

use motley_cluster::Role;

use super::bounds::{NEAR, slack};
use super::ring;
use super::setting::{Batch, Load, Setting, TypeId};
use super::split::{Aim, BOTTLENECK, Split, best_split, polish, quick_split, within_reach};
use crate::problem::Objective;
use crate::waiting::Sums;

/// One way to run a set of devices as a replica.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    pub(super) role: Role,
    pub(super) slots: u32,
    pub(super) groups: u32,
    /// Types in ring order, the master first.
    pub(super) order: Vec<TypeId>,
    pub(super) body: Body,
    /// What it adds to the plan; the hand-over's share of both network cards is inside.
    pub(super) sums: Sums,
    /// Prefill of one request and sending its keys and values; 0 if it decodes only.
    pub(super) ttft: f64,
    /// Time per token of one request with all slots busy; 0 if it prefills only.
    pub(super) tpot: f64,
    /// Tokens per second before network cards limit them.
    pub(super) computed: Sums,
}

/// How the layers lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Body {
    /// Everything in memory, one round.
    Resident { split: Split, load: Load },
    /// A ring of rounds that streams layers.
    Ring(ring::RingBody),
}

/// All choices worth having of one group, none of which another covers.
pub(super) type Choices = Vec<Choice>;

/// What a search needs of a group's choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) separate: bool,
    pub(super) mixed: bool,
}

/// Every choice for a group of devices, given as types with repetition.
pub(super) fn choices(setting: &Setting<'_>, group: &[TypeId], wanted: Wanted) -> Choices {
    let beyond = Beyond { offered: &[], worth: &|_| true, needed: &|_, _| 0.0 };
    choices_beyond(setting, group, wanted, beyond)
}

/// What a choice must pass to be worth computing.
#[derive(Clone, Copy)]
pub(super) struct Beyond<'o> {
    /// Sums that are offered already.
    pub(super) offered: &'o [Sums],
    /// Whether a choice of at most these sums may be part of a plan better than the best known.
    pub(super) worth: &'o dyn Fn(&Sums) -> bool,
    /// Generated tokens per second that a choice of a role with so many slots needs for that.
    pub(super) needed: &'o dyn Fn(Role, f64) -> f64,
}

/// Those of them that may offer more than what is offered already, and be part of the best plan.
pub(super) fn choices_beyond(
    setting: &Setting<'_>,
    group: &[TypeId],
    wanted: Wanted,
    beyond: Beyond<'_>,
) -> Choices {
    setting.count_evaluation();
    let mut found = Choices::new();
    let room: f64 = group.iter().map(|kind| setting.types[*kind].room()).sum();
    if room < setting.file_bytes() {
        return found;
    }
    let orders = orders(setting, group);
    if wanted.separate {
        let prefill = prefill_bound(setting, group) * slack(setting);
        let best = Sums { prefill, ..Sums::default() };
        if (beyond.worth)(&best) && !beyond.offered.iter().any(|sums| sums.covers(&best)) {
            found.extend(prefill_choice(setting, &orders));
        }
        decode_choices(setting, &orders, (Role::Decode, beyond), &mut found);
    }
    if wanted.mixed {
        decode_choices(setting, &orders, (Role::Mixed, beyond), &mut found);
    }
    found
}

/// What no choice of a group passes: each candidate with all its layers at their fastest.
pub(super) fn hopes(setting: &Setting<'_>, group: &[TypeId], wanted: Wanted) -> Vec<Sums> {
    let mut found = Vec::new();
    let room: f64 = group.iter().map(|kind| setting.types[*kind].room()).sum();
    if room < setting.file_bytes() {
        return found;
    }
    let prefill = prefill_bound(setting, group);
    let orders =
        if setting.uniform_wires() { vec![group.to_vec()] } else { orders(setting, group) };
    if wanted.separate {
        found.push(Sums { prefill, ..Sums::NONE });
    }
    for order in &orders {
        let decode = decode_candidates(setting, order, 0, Role::Decode);
        for candidate in decode {
            if wanted.separate {
                found.push(candidate.best);
            }
            if wanted.mixed {
                found.push(mixed(setting, prefill, candidate.best).0);
            }
        }
    }
    let near = slack(setting);
    found.iter_mut().for_each(|sums| *sums = sums.times(near));
    found
}

/// Members up to which every master and every number of micro-batch groups is tried.
const LARGE_GROUP: usize = 8;
/// Masters tried in larger groups.
const LARGE_MASTERS: usize = 2;

/// Ring orders to try: every master, then the way around with the least delay.
fn orders(setting: &Setting<'_>, group: &[TypeId]) -> Vec<Vec<TypeId>> {
    let mut masters = group.to_vec();
    masters.dedup();
    masters.retain(|kind| setting.may_be_master(*kind, group));
    if group.len() > LARGE_GROUP {
        // The head costs as much as several layers, so a fast device runs it.
        let time = |kind: &TypeId| setting.least_layer_time(*kind, Batch::Tokens(1));
        masters.sort_by(|a, b| time(a).total_cmp(&time(b)));
        masters.truncate(LARGE_MASTERS);
    }
    let around = |master: TypeId| {
        let mut rest = group.to_vec();
        let position = rest.iter().position(|kind| *kind == master)?;
        rest.remove(position);
        if setting.uniform_wires() {
            return Some([vec![master], rest].concat());
        }
        way_around(setting, master, rest)
    };
    masters.into_iter().filter_map(around).collect()
}

/// The shortest way around, over all orders of up to four other members, else always to the nearest.
fn way_around(setting: &Setting<'_>, master: TypeId, rest: Vec<TypeId>) -> Option<Vec<TypeId>> {
    let bytes = setting.hop_bytes(Batch::Tokens(1));
    let hop = |from: TypeId, to: TypeId| {
        setting.wire(from, to).map_or(f64::INFINITY, |wire| wire.time(bytes))
    };
    let length = |order: &[TypeId]| {
        let next = order.iter().skip(1).chain(order.first());
        order.iter().zip(next).map(|(from, to)| hop(*from, *to)).sum::<f64>()
    };
    if rest.is_empty() {
        return Some(vec![master]);
    }
    let mut best = vec![master];
    if rest.len() <= 4 {
        let mut shortest = f64::INFINITY;
        let mut stack = vec![(vec![master], rest)];
        while let Some((order, left)) = stack.pop() {
            if left.is_empty() && length(&order) < shortest {
                shortest = length(&order);
                best.clone_from(&order);
            }
            for index in (0..left.len()).rev() {
                let mut shorter = left.clone();
                let next = shorter.remove(index);
                stack.push(([order.clone(), vec![next]].concat(), shorter));
            }
        }
        return shortest.is_finite().then_some(best);
    }
    let mut rest = rest;
    while let Some(last) = best.last().copied().filter(|_| !rest.is_empty()) {
        let nearest = (0..rest.len()).min_by(|a, b| {
            hop(last, rest[*a]).total_cmp(&hop(last, rest[*b])).then(rest[*a].cmp(&rest[*b]))
        })?;
        best.push(rest.remove(nearest));
    }
    length(&best).is_finite().then_some(best)
}

/// Times on the wire from each member to the next, the last one's leading to the master.
pub(super) fn hops(setting: &Setting<'_>, order: &[TypeId], batch: Batch) -> Vec<f64> {
    if order.len() == 1 {
        return vec![0.0];
    }
    let bytes = setting.hop_bytes(batch);
    let next = order.iter().skip(1).chain(order.first());
    let time = |(from, to): (&TypeId, &TypeId)| {
        setting.wire(*from, *to).map_or(f64::INFINITY, |wire| wire.time(bytes))
    };
    order.iter().zip(next).map(time).collect()
}

fn aim(hops: &[f64], pressure: f64) -> Aim {
    let hops_max = hops.iter().copied().fold(0.0, f64::max);
    Aim { pressure, hops_total: hops.iter().sum(), hops_max, worth: f64::INFINITY }
}

/// Rate and time of prefill over a split.
struct Prefill {
    rate: f64,
    request: f64,
}

/// Prefill with `slots` prompts in flight: chunks follow each other through the stages.
fn prefill_of(setting: &Setting<'_>, total: f64, slowest: f64, aim: &Aim, slots: u32) -> Prefill {
    let chunks = setting.chunks;
    let step = slowest.max(aim.hops_max);
    let request = total + aim.hops_total + (chunks - 1.0) * step;
    let rate = (f64::from(slots) * setting.demand.prompt / request)
        .min(setting.demand.prompt / (chunks * step));
    Prefill { rate, request }
}

/// Requests per second that network cards can hand over, and the time one hand-over takes.
pub(super) fn hand_over(setting: &Setting<'_>, order: &[TypeId], split: &Split) -> (f64, f64) {
    let mut slowest: f64 = 0.0;
    for (member, kind) in order.iter().enumerate() {
        let (start, end) = split.window(member);
        let bytes = setting.hand_over[end as usize] - setting.hand_over[start as usize];
        let card = setting.types[*kind].card;
        if card > 0.0 {
            slowest = slowest.max(bytes / card);
        }
    }
    (1.0 / slowest, slowest)
}

/// The prefill choice with the highest rate, then the shortest prefill.
fn prefill_choice(setting: &Setting<'_>, orders: &[Vec<TypeId>]) -> Option<Choice> {
    let hops = orders.iter().map(|order| hops(setting, order, Batch::Chunk));
    let mut best: Option<Choice> = None;
    for (order, hops) in orders.iter().zip(hops) {
        for pressure in [BOTTLENECK, 1.0] {
            let aim = aim(&hops, pressure);
            if aim.hops_total.is_infinite() {
                continue;
            }
            for choice in prefill_slots(setting, order, aim) {
                let better = best.as_ref().is_none_or(|best| {
                    (-choice.sums.prefill, choice.ttft, choice.slots)
                        < (-best.sums.prefill, best.ttft, best.slots)
                });
                if better {
                    best = Some(choice);
                }
            }
            if order.len() == 1 {
                break;
            }
        }
    }
    best
}

/// One slot, and as many as keep every stage busy.
fn prefill_slots(setting: &Setting<'_>, order: &[TypeId], aim: Aim) -> Vec<Choice> {
    let with = |slots: u32| {
        let load = Load { batch: Batch::Chunk, slots, whole_context: false };
        let split = best_split(setting, order, load, aim)?;
        let prefill = prefill_of(setting, split.total, split.slowest, &aim, slots);
        Some((load, split, prefill))
    };
    let Some(single) = with(1) else { return Vec::new() };
    let step = single.1.slowest.max(aim.hops_max);
    let full = (single.2.request / (setting.chunks * step)).ceil() as u32;
    let full = full.min(setting.problem.options.slots_max);
    let several = (2..=full).rev().find_map(with);
    let limit = setting.demand.ttft_limit.filter(|_| setting.goal.objective == Objective::Goodput);
    let choice = |(load, split, prefill): (Load, Split, Prefill)| {
        let (requests, transfer) = hand_over(setting, order, &split);
        let ttft = prefill.request + transfer;
        let rate = prefill.rate.min(requests * setting.demand.prompt);
        limit.is_none_or(|limit| ttft <= limit).then(|| Choice {
            role: Role::Prefill,
            slots: load.slots,
            groups: load.slots,
            order: order.to_vec(),
            body: Body::Resident { split, load },
            sums: Sums { prefill: rate, ..Sums::default() },
            ttft,
            tpot: 0.0,
            computed: Sums { prefill: prefill.rate, ..Sums::default() },
        })
    };
    [Some(single), several].into_iter().flatten().filter_map(choice).collect()
}

/// Most prompt tokens per second a group could reach, with all its layers at their fastest.
fn prefill_bound(setting: &Setting<'_>, group: &[TypeId]) -> f64 {
    let rate = |kind: &TypeId| 1.0 / setting.least_layer_time(*kind, Batch::Chunk);
    let step = f64::from(setting.layers) / group.iter().map(rate).sum::<f64>();
    setting.demand.prompt / (setting.chunks * step)
}

/// The role a choice is tried in, and the generated tokens per second it must pass.
#[derive(Clone, Copy)]
struct Hope {
    role: Role,
    needed: f64,
}

/// A number of sequences per group and of groups, and what they could reach at best.
struct Candidate {
    order: usize,
    batch: u32,
    groups: u32,
    best: Sums,
}

/// Choices that decode: every batch and number of groups under floor and memory that no other
/// covers. Most slots first, so that whoever cannot be faster with fewer is never computed.
fn decode_choices(
    setting: &Setting<'_>,
    orders: &[Vec<TypeId>],
    (role, beyond): (Role, Beyond<'_>),
    found: &mut Choices,
) {
    // Where links are alike, every master has the same hops and so the same candidates.
    let alike = setting.uniform_wires();
    let mut candidates: Vec<Candidate> = Vec::new();
    for (index, order) in orders.iter().take(if alike { 1 } else { orders.len() }).enumerate() {
        candidates.extend(decode_candidates(setting, order, index, role));
    }
    // Moving boundaries gains little, so only a choice that is near to being kept is worth it.
    let near = slack(setting);
    candidates.retain(|candidate| (beyond.worth)(&candidate.best.times(near)));
    candidates.sort_by(|a, b| {
        b.best.slots.total_cmp(&a.best.slots).then(b.best.decode.total_cmp(&a.best.decode))
    });
    let rate = |sums: &Sums| match role {
        Role::Mixed => setting.demand.capacity(sums) * setting.demand.generated,
        _ => sums.decode,
    };
    let mut offered = beyond.offered.to_vec();
    offered.sort_by(|a, b| b.slots.total_cmp(&a.slots));
    let mut offered = offered.iter().peekable();
    // What as many slots give already; a choice below it adds nothing.
    let mut needed: f64 = 0.0;
    let mut mine: Choices = Vec::new();
    for candidate in candidates {
        while let Some(sums) = offered.next_if(|sums| sums.slots >= candidate.best.slots) {
            needed = needed.max(rate(sums));
        }
        let own = if alike { orders } else { &orders[candidate.order..=candidate.order] };
        if needed >= candidate.best.decode {
            continue;
        }
        let least = (beyond.needed)(role, candidate.best.slots);
        let hope = Hope { role, needed: needed.max(least) / near };
        if own.len() > 1 && !promising(setting, &own[0], &candidate, hope) {
            continue;
        }
        for order in own {
            if needed >= candidate.best.decode {
                break;
            }
            let hope = Hope { role, needed: needed.max(least) / near };
            let Some(choice) = decode_choice(setting, order, &candidate, hope) else { continue };
            needed = needed.max(rate(&choice.sums));
            if !mine.iter().any(|other| other.sums.covers(&choice.sums)) {
                mine.retain(|other| !choice.sums.covers(&other.sums));
                mine.push(choice);
            }
        }
    }
    found.append(&mut mine);
}

fn decode_candidates(
    setting: &Setting<'_>,
    order: &[TypeId],
    index: usize,
    role: Role,
) -> Vec<Candidate> {
    let single = setting.goal.objective == Objective::Latency;
    let slots_max = if single { 1 } else { setting.problem.options.slots_max };
    let room: f64 = order.iter().map(|kind| setting.types[*kind].room()).sum();
    let layers = f64::from(setting.layers);
    let tpot_max = setting.demand.tpot_max(setting.goal.objective);
    let rates = |batch| order.iter().map(move |kind| 1.0 / setting.least_layer_time(*kind, batch));
    let prefill_best = prefill_bound(setting, order);
    let mut candidates = Vec::new();
    for batch in 1..=slots_max {
        if setting.file_bytes() + f64::from(batch) * setting.slot_bytes(true) > room {
            break;
        }
        let tokens = Batch::Tokens(batch);
        let fastest = rates(tokens).fold(0.0, f64::max);
        let step = layers / rates(tokens).sum::<f64>();
        let hops = hops(setting, order, tokens);
        let aim = aim(&hops, 1.0);
        if layers / fastest + aim.hops_total > tpot_max {
            // Measured tables need not rise with the batch, so larger ones are still tried.
            continue;
        }
        for groups in 1..=(order.len() as u32).min(slots_max / batch) {
            if order.len() > LARGE_GROUP && !groups.is_power_of_two() {
                continue;
            }
            let slots = f64::from(batch * groups);
            if setting.file_bytes() + slots * setting.slot_bytes(true) > room {
                break;
            }
            let aim = Aim { pressure: f64::from(groups), ..aim };
            let tpot = aim.value(layers / fastest, step);
            if tpot > tpot_max {
                break;
            }
            let mut best = Sums { prefill: 0.0, decode: slots / tpot, slots };
            if role == Role::Mixed {
                best = mixed(setting, prefill_best, best).0;
            }
            candidates.push(Candidate { order: index, batch, groups, best });
        }
    }
    candidates
}

/// What a replica offers that divides its time so that both phases keep up with each other
/// (PLANNER 4.7), and the fraction it prefills.
fn mixed(setting: &Setting<'_>, prefill: f64, decode: Sums) -> (Sums, f64) {
    let (prompt, generated) = (setting.demand.prompt, setting.demand.generated);
    // A single user's generation never shares its time with a prompt.
    let alone = setting.goal.objective == Objective::Latency;
    let prefilling = if alone { 0.0 } else { prompt / prefill };
    let requests = 1.0 / (prefilling + generated / decode.decode);
    let sums =
        Sums { prefill: requests * prompt, decode: requests * generated, slots: decode.slots };
    (sums, requests * prompt / prefill)
}

/// What a candidate is loaded with and what its split must reach; `None` if nothing could.
fn candidate_aim(
    setting: &Setting<'_>,
    order: &[TypeId],
    candidate: &Candidate,
    Hope { role, needed }: Hope,
) -> Option<(Load, Aim)> {
    let batch = Batch::Tokens(candidate.batch);
    let slots = candidate.batch * candidate.groups;
    let load = Load { batch, slots, whole_context: true };
    let mut aim = aim(&hops(setting, order, batch), f64::from(candidate.groups));
    aim.worth = setting.demand.tpot_max(setting.goal.objective) * NEAR;
    if needed > 0.0 {
        let (prompt, generated) = (setting.demand.prompt, setting.demand.generated);
        let decode = match role {
            // Of the time a request may take, what its prompt leaves at best.
            Role::Mixed => {
                1.0 / (1.0 / needed - prompt / prefill_bound(setting, order) / generated)
            }
            _ => needed,
        };
        if decode <= 0.0 {
            return None;
        }
        aim.worth = aim.worth.min(f64::from(slots) / decode);
    }
    Some((load, aim))
}

/// Whether any master may make a candidate worth while.
fn promising(setting: &Setting<'_>, group: &[TypeId], candidate: &Candidate, hope: Hope) -> bool {
    candidate_aim(setting, group, candidate, hope)
        .is_some_and(|(load, aim)| within_reach(setting, group, load, aim))
}

fn decode_choice(
    setting: &Setting<'_>,
    order: &[TypeId],
    candidate: &Candidate,
    hope: Hope,
) -> Option<Choice> {
    let (load, aim) = candidate_aim(setting, order, candidate, hope)?;
    let split = quick_split(setting, order, load, aim)?;
    let split = polish(setting, order, (load, aim), split)?;
    let shape = Shape { role: hope.role, slots: load.slots, groups: candidate.groups };
    finish_decode(setting, order, split, (load, aim), shape)
}

/// What a decoding replica is to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) role: Role,
    pub(super) slots: u32,
    pub(super) groups: u32,
}

/// Rates of a decoding or mixed replica over a given split; `None` if it misses the floor.
fn finish_decode(
    setting: &Setting<'_>,
    order: &[TypeId],
    split: Split,
    (load, aim): (Load, Aim),
    shape: Shape,
) -> Option<Choice> {
    let tpot_max = setting.demand.tpot_max(setting.goal.objective);
    let pass = aim.value(split.total, split.slowest);
    let slots = f64::from(shape.slots);
    let computed = Sums { prefill: 0.0, decode: slots / pass, slots };
    if pass > tpot_max {
        return None;
    }
    let choice = |computed: Sums, sums: Sums, ttft: f64, tpot: f64| Choice {
        role: shape.role,
        slots: shape.slots,
        groups: shape.groups,
        order: order.to_vec(),
        sums,
        ttft,
        tpot,
        computed,
        body: Body::Resident { split: split.clone(), load },
    };
    if shape.role == Role::Decode {
        let (requests, _) = hand_over(setting, order, &split);
        let decode = computed.decode.min(requests * setting.demand.generated);
        return Some(choice(computed, Sums { decode, ..computed }, 0.0, pass));
    }
    let prefill = prefill_over(setting, order, &split, shape.slots)?;
    let (sums, fraction) = mixed(setting, prefill.rate, computed);
    // Alone, a request never waits for another one's prompt.
    let tpot = if shape.slots > 1 { pass / (1.0 - fraction) } else { pass };
    let limit = setting.demand.ttft_limit.filter(|_| setting.goal.objective == Objective::Goodput);
    if tpot > tpot_max || limit.is_some_and(|limit| prefill.request > limit) {
        return None;
    }
    let computed = Sums { prefill: prefill.rate, ..computed };
    Some(choice(computed, sums, prefill.request, tpot))
}

/// Prefill on a replica whose layers were placed for decoding.
fn prefill_over(
    setting: &Setting<'_>,
    order: &[TypeId],
    split: &Split,
    slots: u32,
) -> Option<Prefill> {
    let load = Load { batch: Batch::Chunk, slots, whole_context: true };
    let (mut total, mut slowest) = (0.0, 0.0_f64);
    for (member, kind) in order.iter().enumerate() {
        let stage = setting.stage(*kind, split.window(member), member == 0, load)?;
        total += stage.time;
        slowest = slowest.max(stage.time);
    }
    let aim = aim(&hops(setting, order, Batch::Chunk), 1.0);
    Some(prefill_of(setting, total, slowest, &aim, slots))
}

/// The mixed choice with the best key for prescribed layers, or why there is none.
pub(super) fn prescribed(setting: &Setting<'_>, order: &[TypeId], ends: &[u32]) -> Option<Choice> {
    let single = setting.goal.objective == Objective::Latency;
    let slots_max = if single { 1 } else { setting.problem.options.slots_max };
    let mut best: Option<(crate::waiting::Key, Choice)> = None;
    for batch in 1..=slots_max {
        for groups in 1..=(order.len() as u32).min(slots_max / batch) {
            setting.count_evaluation();
            let load =
                Load { batch: Batch::Tokens(batch), slots: batch * groups, whole_context: true };
            let aim = aim(&hops(setting, order, load.batch), f64::from(groups));
            let Some(split) = given(setting, order, ends, load) else { break };
            let shape = Shape { role: Role::Mixed, slots: batch * groups, groups };
            let found = finish_decode(setting, order, split, (load, aim), shape);
            let Some(choice) = found else { continue };
            let rest = [choice.ttft, choice.tpot, order.len() as f64];
            let key = setting.demand.key(setting.goal, &choice.sums, rest);
            if best.as_ref().is_none_or(|(known, _)| crate::waiting::compare(&key, known).is_lt()) {
                best = Some((key, choice));
            }
        }
    }
    best.map(|(_, choice)| choice)
}

fn given(setting: &Setting<'_>, order: &[TypeId], ends: &[u32], load: Load) -> Option<Split> {
    let mut split = Split { ends: ends.to_vec(), stages: Vec::new(), total: 0.0, slowest: 0.0 };
    for (member, kind) in order.iter().enumerate() {
        let stage = setting.stage(*kind, split.window(member), member == 0, load)?;
        split.total += stage.time;
        split.slowest = split.slowest.max(stage.time);
        split.stages.push(stage);
    }
    Some(split)
}
