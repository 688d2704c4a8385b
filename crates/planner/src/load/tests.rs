//! The exact search against plain enumeration of every grouping, role and choice (PLANNER 5, 9).

use motley_cluster::{Workload, builtin_cluster, builtin_model};

use super::grouping::Library;
use super::setting::{Setting, TypeId};
use super::{exact, pareto, usable, wanted};
use crate::problem::{Budget, Objective, PlanOptions, Problem, WaitingModel};
use crate::waiting::{Key, Sums, WORST, compare};

/// Every way to group devices, with or without idle ones.
fn groupings(devices: usize, idle: bool) -> Vec<Vec<Vec<usize>>> {
    let mut found: Vec<Vec<Vec<usize>>> = vec![Vec::new()];
    for device in 0..devices {
        let mut next = Vec::new();
        for groups in found {
            for place in 0..groups.len() {
                let mut joined = groups.clone();
                joined[place].push(device);
                next.push(joined);
            }
            if idle {
                next.push(groups.clone());
            }
            next.push([groups, vec![vec![device]]].concat());
        }
        found = next;
    }
    found
}

#[test]
fn groupings_and_role_vectors_are_as_many_as_published() {
    let vectors = |groups: &Vec<Vec<usize>>| (1_u64 << groups.len()).saturating_sub(2);
    for (devices, partitions, with_roles, with_idle) in
        [(4, 15, 64, 124), (6, 203, 2024, 5354), (8, 4140, 81_638, 262_798)]
    {
        let all = groupings(devices, false);
        assert_eq!(all.len(), partitions);
        assert_eq!(all.iter().map(vectors).sum::<u64>(), with_roles);
        let all = groupings(devices, true);
        let roles: u64 = all.iter().filter(|groups| !groups.is_empty()).map(vectors).sum();
        assert_eq!(roles, with_idle);
    }
    // Identical devices merge: five types of 1, 1, 2, 2 and 2 have 108 sub-multisets.
    let problem = problem("e2llm-8", true, 1.0);
    let setting = Setting::new(&problem, Budget::DEFAULT, &usable(&problem));
    let subsets: usize = setting.counts().iter().map(|count| count + 1).product();
    assert_eq!(subsets, 108);
}

fn problem(cluster: &str, mixed: bool, interval_s: f64) -> Problem {
    let mut spec = Workload::single_user(576.0, 588.0, 4096).expect("valid").to_spec();
    spec.requests = 100;
    let interval_s = motley_cluster::Seconds::new(interval_s).expect("a time");
    spec.arrivals = motley_cluster::Arrivals::Poisson { interval_s };
    Problem {
        cluster: builtin_cluster(cluster).expect("built in"),
        model: builtin_model("gpt-oss-20b-mxfp4").expect("built in"),
        workload: Workload::new(spec).expect("valid"),
        objective: Objective::Waiting,
        options: PlanOptions { allow_mixed: mixed, slots_max: 12, ..PlanOptions::full() },
    }
}

/// The best key over all groupings and all choices of each group, without fronts or bounds.
fn enumerated(setting: &Setting<'_>) -> Key {
    let types = setting.devices();
    let mut library = Library::new(setting, wanted(setting));
    let mut best = WORST;
    for groups in groupings(types.len(), true) {
        let kinds = |group: &Vec<usize>| group.iter().map(|d| types[*d]).collect::<Vec<TypeId>>();
        let mut sums: Vec<(Sums, [f64; 3])> = vec![(Sums::default(), [0.0; 3])];
        for group in &groups {
            let choices = library.choices(&kinds(group));
            let mut next = Vec::new();
            for (sum, [ttft, tpot, devices]) in &sums {
                for choice in choices.iter() {
                    let devices = devices + choice.order.len() as f64;
                    let rest = [ttft.max(choice.ttft), tpot.max(choice.tpot), devices];
                    next.push((sum.plus(choice.sums), rest));
                }
            }
            sums = next;
        }
        for (sum, rest) in sums {
            let key = setting.demand.key(setting.goal, &sum, rest);
            if compare(&key, &best).is_lt() {
                best = key;
            }
        }
    }
    best
}

#[test]
fn the_front_search_finds_what_enumeration_finds() {
    for cluster in ["e2llm-4", "e2llm-6"] {
        for (mixed, interval) in [(false, 0.1), (false, 2.0), (true, 0.1), (true, 2.0)] {
            let problem = problem(cluster, mixed, interval);
            let setting = Setting::new(&problem, Budget::DEFAULT, &usable(&problem));
            let searched = pareto::search(&setting, &setting.counts(), wanted(&setting));
            let (found, _) = searched.best.expect("serves");
            let best = enumerated(&setting);
            assert!(
                (found[0] - best[0]).abs() <= 1e-9 * best[0].abs(),
                "{cluster} mixed {mixed} every {interval} s: {found:?} {best:?}"
            );
            let searched = exact::search(&setting, &setting.counts(), wanted(&setting));
            let (priced, _) = searched.best.expect("serves");
            assert!(
                (priced[0] - best[0]).abs() <= 1e-9 * best[0].abs(),
                "{cluster} mixed {mixed} every {interval} s: {priced:?} {best:?}"
            );
        }
    }
}

/// Prices rule out nothing that a front keeps: all objectives, calm and crowded, with and without
/// mixed roles, idle devices and limits.
#[test]
fn the_search_by_prices_finds_what_whole_fronts_find() {
    use Objective::{Goodput, Throughput, Waiting};
    let tried = [Waiting, Goodput, Throughput]
        .into_iter()
        .flat_map(|objective| [0.05, 1.0, 8.0].map(|interval| (objective, interval)))
        .flat_map(|(objective, interval)| [false, true].map(|full| (objective, interval, full)));
    for (objective, interval, full) in tried {
        for waiting in [WaitingModel::Congestion, WaitingModel::Concurrency] {
            let mut problem = problem("e2llm-8", full, interval);
            problem.objective = objective;
            problem.options.waiting = waiting;
            problem.options.allow_idle = full;
            let mut spec = problem.workload.to_spec();
            spec.ttft_limit_s = (!full).then(|| motley_cluster::Seconds::new(4.0).expect("a time"));
            spec.speed_floor_tok_per_s = motley_cluster::TokensPerSecond::new(5.0).ok();
            problem.workload = Workload::new(spec).expect("valid");
            let setting = Setting::new(&problem, Budget::DEFAULT, &usable(&problem));
            let counts = setting.counts();
            let fronts = pareto::search(&setting, &counts, wanted(&setting)).best;
            let prices = exact::search(&setting, &counts, wanted(&setting)).best;
            let first = |found: Option<(Key, _)>| found.map_or(f64::INFINITY, |(key, _)| key[0]);
            let (fronts, prices) = (first(fronts), first(prices));
            assert!(
                fronts == prices || (fronts - prices).abs() <= 1e-9 * fronts.abs(),
                "{objective:?} {waiting:?} every {interval} s, all allowed {full}: {fronts} {prices}"
            );
        }
    }
}
