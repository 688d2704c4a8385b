//! Scoring one way to group devices: choices from a cache, roles by a rule.

use std::collections::BTreeMap;
use std::rc::Rc;

use motley_cluster::Role;

use super::front::{Point, best, roles};
use super::replica::{Choice, Choices, Wanted, choices};
use super::setting::{Setting, TypeId};
use crate::waiting::{Key, WORST, compare};

/// How replicas get their roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoleRule {
    /// All role vectors and slot counts, by the problem's objective.
    Exact,
    /// The strongest prefill; their number brings both phases' times together (adapted Splitwise).
    StrongestFirst,
    /// All role vectors, by the mean time from arrival to last token (HexGen).
    FinishingTime,
}

/// Replicas up to which fronts of roles are kept whole.
const GROUPS_MAX: usize = 8;
/// Most points a front of roles keeps then; the exact search's largest is far smaller.
const FRONT_MAX: usize = 400;
/// The same where there are more replicas.
const FRONT_MAX_LARGE: usize = 32;
/// Most replicas whose role vectors are all tried one by one.
const VECTORS_MAX: usize = 12;

/// Choices by group of types, each computed once.
pub(super) struct Library<'s, 'a> {
    pub(super) setting: &'s Setting<'a>,
    wanted: Wanted,
    known: BTreeMap<Vec<TypeId>, Rc<Choices>>,
}

impl<'s, 'a> Library<'s, 'a> {
    pub(super) fn new(setting: &'s Setting<'a>, wanted: Wanted) -> Self {
        Self { setting, wanted, known: BTreeMap::new() }
    }

    /// The choices of a group, given in any order.
    pub(super) fn choices(&mut self, group: &[TypeId]) -> Rc<Choices> {
        let mut group = group.to_vec();
        group.sort_unstable();
        if let Some(known) = self.known.get(&group) {
            return Rc::clone(known);
        }
        let found = Rc::new(choices(self.setting, &group, self.wanted));
        self.known.insert(group, Rc::clone(&found));
        found
    }

    /// The best plan with these groups under a rule; `None` if it serves nobody. Where devices may
    /// be idle a group that cannot work is idle.
    pub(super) fn score(&mut self, groups: &[Vec<TypeId>], rule: RoleRule) -> Option<(Key, Point)> {
        let idle = self.setting.problem.options.allow_idle;
        let mut working: Vec<Rc<Choices>> = Vec::with_capacity(groups.len());
        for group in groups {
            let choices = self.choices(group);
            if !choices.is_empty() {
                working.push(choices);
            } else if !idle {
                return None;
            }
        }
        match rule {
            RoleRule::Exact => {
                let most = if working.len() > GROUPS_MAX { FRONT_MAX_LARGE } else { FRONT_MAX };
                best(self.setting, &roles(&working, most))
            }
            RoleRule::StrongestFirst => strongest_first(self.setting, working),
            RoleRule::FinishingTime => finishing_time(self.setting, &working),
        }
    }
}

/// A role's choice with the most slots, as E2LLM fixes them before roles are chosen.
fn widest(choices: &Choices, role: Role) -> Option<usize> {
    let of_role = (0..choices.len()).filter(|index| choices[*index].role == role);
    of_role.max_by(|a, b| {
        let rank = |index: &usize| (choices[*index].slots, choices[*index].sums.decode);
        let (x, y) = (rank(a), rank(b));
        x.0.cmp(&y.0).then(x.1.total_cmp(&y.1)).then(b.cmp(a))
    })
}

fn strongest_first(setting: &Setting<'_>, mut working: Vec<Rc<Choices>>) -> Option<(Key, Point)> {
    let rate = |choices: &Choices| {
        widest(choices, Role::Prefill).map_or(0.0, |index| choices[index].sums.prefill)
    };
    working.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let mut nearest: Option<(f64, Point)> = None;
    for prefills in 1..working.len() {
        let mut point = Some(Point::NOTHING);
        for (place, choices) in working.iter().enumerate() {
            let role = if place < prefills { Role::Prefill } else { Role::Decode };
            let index = widest(choices, role);
            point = point.zip(index).map(|(point, index)| point.with(choices, index));
        }
        let Some(point) = point else { continue };
        let demand = &setting.demand;
        let ratio = (demand.prompt / point.sums.prefill) / (demand.generated / point.sums.decode);
        let distance = ratio.ln().abs();
        if nearest.as_ref().is_none_or(|(known, _)| distance < *known) {
            nearest = Some((distance, point));
        }
    }
    let (_, point) = nearest?;
    best(setting, &[point])
}

/// Mean prefill and hand-over plus mean generation, over replicas by their rates: a function of the
/// plan alone, so arrivals cannot change it.
fn finishing_time(setting: &Setting<'_>, working: &[Rc<Choices>]) -> Option<(Key, Point)> {
    let count = working.len();
    if !(2..=VECTORS_MAX).contains(&count) {
        return None;
    }
    let picks: Vec<[Option<usize>; 2]> = working
        .iter()
        .map(|choices| [widest(choices, Role::Prefill), widest(choices, Role::Decode)])
        .collect();
    let mut fastest: Option<(Key, u32)> = None;
    for vector in 1_u32..(1 << count) - 1 {
        let key = finishing_key(setting, working, &picks, vector);
        if fastest.is_none_or(|(known, _)| compare(&key, &known).is_lt()) {
            fastest = Some((key, vector));
        }
    }
    let (key, vector) = fastest.filter(|(key, _)| compare(key, &WORST).is_lt())?;
    let mut point = Point::NOTHING;
    for (place, choices) in working.iter().enumerate() {
        let index = picks[place][usize::from(vector >> place & 1 == 0)]?;
        point = point.with(choices, index);
    }
    Some((key, point))
}

/// Key of one role vector: bit set is prefill.
fn finishing_key(
    setting: &Setting<'_>,
    working: &[Rc<Choices>],
    picks: &[[Option<usize>; 2]],
    vector: u32,
) -> Key {
    let (mut prefill, mut decode) = ((0.0, 0.0), (0.0, 0.0));
    for (place, choices) in working.iter().enumerate() {
        let prefills = vector >> place & 1 == 1;
        let Some(index) = picks[place][usize::from(!prefills)] else { return WORST };
        let choice: &Choice = &choices[index];
        let (sum, rate, time) = if prefills {
            (&mut prefill, choice.sums.prefill, choice.ttft)
        } else {
            (&mut decode, choice.sums.decode, choice.tpot)
        };
        sum.0 += rate;
        sum.1 += rate * time;
    }
    let mean = prefill.1 / prefill.0 + setting.demand.generated * decode.1 / decode.0;
    [mean, -decode.0, -prefill.0, 0.0, 0.0]
}
