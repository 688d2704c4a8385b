//! Explanations and drawings of plans made by hand, and of real ones.

use expect_test::{Expect, expect};
use motley_cluster::{Bytes, DeviceId, Seconds};

use super::changes::apply;
use super::facts::{Replanner, explain_by};
use super::sample::{FOUR_QWEN3, HOME_70B, Sample, outcome, problem, same_shares};
use super::*;
use crate::plan;
use crate::problem::{
    Budget, Method, Objective, PlanError, PlanOutcome, Problem, Remedy, Shortage,
};

fn home() -> (Problem, PlanOutcome) {
    let problem = problem("prima-home", "llama-3-70b-q4_k_m", Objective::Latency);
    let outcome = outcome(&problem, HOME_70B).expect("a plan");
    (problem, outcome)
}

fn four() -> (Problem, PlanOutcome) {
    let problem = problem("e2llm-4", "qwen3-30b-a3b-q4_k_m", Objective::Waiting);
    let outcome = outcome(&problem, FOUR_QWEN3).expect("a plan");
    (problem, outcome)
}

fn explained(problem: &Problem, outcome: &PlanOutcome, samples: &[Sample]) -> Explanation {
    let run = same_shares(samples);
    explain_by(problem, outcome, &Replanner::new(Budget::DEFAULT, &run))
}

fn check(actual: &str, expected: Expect) {
    expected.assert_eq(actual);
}

#[test]
fn explanation_of_a_latency_plan() {
    let (problem, outcome) = home();
    check(
        &explained(&problem, &outcome, HOME_70B).text(&problem),
        expect![[r#"
        llama-3-70b-q4_k_m by pareto: 4.59 s per token; a heuristic's answer, not known to be the best.
        No single device can serve alone.

        device  replica  layers  gpu  ram  stream     stage         gpu memory           ram used    next layer
        D1 *          0       0    1    0       0   11.2 ms  2.01 GB / 2.40 GB                  -  +713 ms disk
        D2            0    1-18   13    5       0   97.5 ms  6.92 GB / 7.30 GB  3.00 GB / 4.40 GB  +14.3 ms ram
        D3            0   19-78   20   14      26  4.44 s <  10.4 GB / 10.8 GB  8.95 GB / 10.4 GB  +12.3 ms ram
        D4            0      79    0    1       0   30.4 ms                  -   754 MB / 2.04 GB  +29.6 ms ram
        * head, < slowest of its replica

        Why each device has what it has
          D1: 1 layer, all on the GPU at 10.6 ms each; its memory is full, one more from disk would take 713 ms, on D3 12.3 ms.
          D2: 18 layers, 13 on the GPU at 1.65 ms each, 5 in RAM at 14.3 ms each; its GPU is full, one more in RAM would add 14.3 ms, on D3 12.3 ms.
          D3: 60 layers, 20 on the GPU at 1.28 ms each, 14 in RAM at 12.3 ms each, 26 read from disk for every token; its GPU is full, one more in RAM would add 12.3 ms, nowhere less.
          D4: 1 layer, all in RAM at 29.6 ms each; one more in RAM would add 29.6 ms, on D3 12.3 ms.

        Slots
          1 slot; more would find no more requests.

        What one change would bring
          weights one quantisation step smaller (33.2 GB): 3.59 s per token (-22 %)
          no gain from: wires to all devices instead of Wi-Fi; a wire to D1 instead of Wi-Fi; a wire to D2 instead of Wi-Fi; a wire to D3 instead of Wi-Fi; a wire to D4 instead of Wi-Fi; 8-bit keys and values; half the context (2048 tokens); 8 GiB more memory in D1; 8 GiB more RAM in D2; 8 GiB more RAM in D3; 8 GiB more memory in D4
    "#]],
    );
}

#[test]
fn explanation_of_a_load_plan() {
    let (problem, outcome) = four();
    check(
        &explained(&problem, &outcome, FOUR_QWEN3).text(&problem),
        expect![[r#"
            qwen3-30b-a3b-q4_k_m by pareto: 54.9 ms waiting; a heuristic's answer, not known to be the best.
            No single device can serve alone.

            device   replica  layers  gpu  ram  stream      stage         gpu memory           ram used    next layer
            Dev.2 *        0    0-31    6   26       0   3.51 s <  2.86 GB / 4.40 GB  9.62 GB / 55.0 GB  +2.80 ms gpu
            Dev.5          0   32-47   16    0       0     608 ms  6.16 GB / 10.7 GB                  -  +38.0 ms gpu
            Dev.1 *        1    0-47   16   32       0  54.9 ms <  7.06 GB / 10.8 GB  13.2 GB / 55.0 GB  +0.21 ms gpu
            * head, < slowest of its replica

            Why each device has what it has
              Dev.2: 32 layers, 6 on the GPU at 2.80 ms each, 26 in RAM at 134 ms each; one more on its GPU would add 2.80 ms, nowhere less.
              Dev.5: 16 layers, all on the GPU at 38.0 ms each; one more on its GPU would add 38.0 ms, on Dev.2 2.80 ms.
              Dev.1: 48 layers, 16 on the GPU at 0.21 ms each, 32 in RAM at 1.62 ms each; it holds the whole model.

            Devices without work
              Dev.6: not used; taking 26 layers over would save 2.50 s per pass, its hop would cost 36.6 ms.

            Slots
              Replica 0 (prefill): 1 slot; more would find no more requests. In its best other role the plan would reach 110 ms waiting.
              Replica 1 (decode): 4 slots; one more would fall below the speed floor.

            What one change would bring
              weights one quantisation step smaller (14.6 GB): 43.6 ms waiting (-21 %)
              8-bit keys and values: 53.6 ms waiting (-2.5 %)
              no gain from: half the context (2048 tokens); 8 GiB more RAM in Dev.1; 8 GiB more RAM in Dev.2; 8 GiB more memory in Dev.5; 8 GiB more memory in Dev.6
        "#]],
    );
}

#[test]
fn drawing_of_a_latency_plan() {
    let (problem, outcome) = home();
    check(
        &Drawing::of(&problem, &outcome).terminal(78, Ink::Plain),
        expect![[r#"
        llama-3-70b-q4_k_m on prima-home
        pareto: 4.59 s per token, first token after 2.00 s

        prefill and decode, 1 slot
        D1 * █·····················································  11.2 ms
        D2   ·▒▒▒█████████·········································  97.5 ms
        D3   ·············▒▒▒▒▒▒▒▒▒██████████████~~~~~~~~~~~~~~~~~·   4.44 s < slowest
        D4   ·····················································▒  30.4 ms
             0                                                   79

        ██ gpu  ▒▒ ram  ~~ stream  * head
    "#]],
    );
}

#[test]
fn drawing_of_a_load_plan() {
    let (problem, outcome) = four();
    check(
        &Drawing::of(&problem, &outcome).terminal(78, Ink::Plain),
        expect![[r#"
        qwen3-30b-a3b-q4_k_m on e2llm-4
        pareto: 54.9 ms per token, first token after 2.00 s, waiting at most 0 ms

        Replica 0: prefill, 1 slot
        Dev.2 * ██████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒·················   3.51 s < slowest
        Dev.5   ··································█████████████████   608 ms
                0                                                47

        Replica 1: decode, 4 slots
        Dev.1 * █████████████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒  54.9 ms
                0                                                47
        Dev.6   not used

        ██ gpu  ▒▒ ram  ~~ stream  * head
    "#]],
    );
}

#[test]
fn colours_change_no_character() {
    let (problem, outcome) = home();
    let drawing = Drawing::of(&problem, &outcome);
    let mut plain = String::new();
    let coloured = drawing.terminal(78, Ink::Colour);
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once("\x1b[") {
        plain.push_str(before);
        rest = after.split_once('m').expect("codes end").1;
    }
    plain.push_str(rest);
    assert_ne!(coloured, plain);
    assert_eq!(drawing.terminal(78, Ink::Plain), plain);
}

/// Elements open and close in order, attributes are quoted, text has no bare markup.
fn assert_well_formed(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg;
    while let Some((text, after)) = rest.split_once('<') {
        assert!(!text.contains('>'), "bare markup in {text:?}");
        for entity in text.split('&').skip(1) {
            let name = entity.split_once(';').expect("entities end").0;
            assert!(["amp", "lt", "gt", "quot"].contains(&name), "entity {name}");
        }
        let (tag, after) = after.split_once('>').expect("tags end");
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes in {tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().expect("a name"));
        }
        rest = after;
    }
    assert!(open.is_empty(), "{open:?} stay open");
}

#[test]
fn svg_is_well_formed_and_shows_every_run_once() {
    for (problem, outcome) in [home(), four()] {
        let drawing = Drawing::of(&problem, &outcome);
        let svg = drawing.svg();
        assert_well_formed(&svg);
        let runs = drawing.replicas.iter().flat_map(|replica| &replica.lanes);
        let runs = runs.flat_map(|lane| &lane.runs).count();
        let colours = ["#1f5fa8", "#5aa786", "url(#hatch)"];
        // Three of them are the legend's.
        let painted: usize = colours.map(|c| svg.matches(&format!("\"{c}\"")).count()).iter().sum();
        assert_eq!(painted, runs + 3);
    }
}

#[test]
fn names_cannot_break_the_svg() {
    let (problem, outcome) = home();
    let mut drawing = Drawing::of(&problem, &outcome);
    drawing.title = "a<b> & \"c\"\n\u{1}".repeat(20);
    drawing.replicas[0].lanes[0].name = "</text><script>".to_owned();
    drawing.idle = vec![("&".to_owned(), "not used")];
    assert_well_formed(&drawing.svg());
}

#[test]
fn every_change_touches_what_it_names() {
    let (problem, _) = home();
    let device = DeviceId::new(2);
    let changed = |change: Change| apply(&problem, &change).expect("it applies");
    let bytes = Bytes::new(8 << 30);
    let more = changed(Change::AddRam { device, bytes });
    let ram = |problem: &Problem| problem.cluster.device(device).memory.ram_available_bytes;
    assert_eq!(ram(&more), ram(&problem) + bytes);
    let unified = DeviceId::new(0);
    let more = changed(Change::AddRam { device: unified, bytes });
    let gpu = |problem: &Problem| problem.cluster.device(unified).gpu().expect("one").usable_bytes;
    assert_eq!(gpu(&more), gpu(&problem) + bytes);

    let hop = |problem: &Problem, to: u16| {
        let link = problem.cluster.links().direct(device, DeviceId::new(to)).expect("a link");
        link.transfer(Bytes::new(32_768))
    };
    let one = changed(Change::Wire { device });
    let all = changed(Change::WireAll);
    assert!(hop(&all, 0) < hop(&one, 0) && hop(&one, 0) < hop(&problem, 0));
    let others =
        |problem: &Problem| problem.cluster.links().direct(DeviceId::new(0), DeviceId::new(1));
    assert_eq!(others(&one), others(&problem));

    let smaller = changed(Change::SmallerWeights { file_bytes: Bytes::ZERO });
    let ratio = smaller.model.file_bytes().as_f64() / problem.model.file_bytes().as_f64();
    assert!((0.7..0.85).contains(&ratio), "q4_k to q3_k is {ratio}");
    assert!(apply(&problem, &Change::HalveContext { context_tokens: 700 }).is_none());
}

#[test]
fn a_used_up_budget_skips_changes_and_says_so() {
    let (problem, outcome) = home();
    let run = same_shares(HOME_70B);
    let budget = Budget { evaluations: 3, ..Budget::DEFAULT };
    let explanation = explain_by(&problem, &outcome, &Replanner::new(budget, &run));
    assert_eq!(explanation.changes.len(), 2, "one question was for the single device");
    assert!(explanation.changes_skipped > 0);
    let text = explanation.text(&problem);
    assert!(text.contains("not tried: the budget was used up"), "{text}");
}

#[test]
fn refusals_say_what_is_short_by_how_much_and_what_would_help() {
    let (problem, _) = home();
    let gb = |value| Bytes::from_gb(value).expect("a size");
    let error = PlanError::Infeasible {
        shortage: Shortage::ClusterMemory { needed: gb(44.0), available: gb(30.5) },
        remedies: vec![
            Remedy::QuantiseKv,
            Remedy::AddRam { device: DeviceId::new(1), bytes: gb(13.5) },
            Remedy::SmallerModel { file_bytes: gb(28.0) },
            Remedy::SmallerModel { file_bytes: Bytes::ZERO },
        ],
    };
    let refusal = explain_refusal(&problem, Method::Pareto, &error, Budget::DEFAULT);
    let text = format!("{}\n{}\n", refusal.cause, refusal.remedies.join("\n"));
    check(
        &text,
        expect![[r#"
        memory is short by 13.5 GB: llama-3-70b-q4_k_m needs 44.0 GB, all devices together have 30.5 GB
        store keys and values in 8 bits (kv_type = "q8_0")
        add 13.5 GB of RAM to D2
        use a file of at most 28.0 GB
    "#]],
    );
}

/// Whatever a search returns can be explained and drawn.
#[test]
fn real_plans_are_explained_and_drawn() {
    for cluster in ["prima-home", "e2llm-4"] {
        for objective in [Objective::Latency, Objective::Throughput] {
            let problem = problem(cluster, "llama-3-8b-q4_k_m", objective);
            let budget = Budget { evaluations: 2_000, ..Budget::DEFAULT };
            let Ok(outcome) = plan(&problem, Method::Auto, budget) else {
                panic!("8B has a plan on {cluster}")
            };
            let explanation = explain(&problem, &outcome, budget);
            let used = outcome.plan.devices_used().len();
            assert_eq!(explanation.used.len(), used);
            assert_eq!(
                explanation.used.len() + explanation.unused.len(),
                problem.cluster.devices().len()
            );
            let single = explanation.single.as_ref().expect("8B fits one device");
            assert!(single.tpot > Seconds::ZERO);
            let text = explanation.text(&problem);
            for device in problem.cluster.devices() {
                assert!(text.contains(&device.name), "{} is not explained", device.name);
            }
            let drawing = Drawing::of(&problem, &outcome);
            assert_well_formed(&drawing.svg());
            let columns = drawing.terminal(80, Ink::Plain);
            assert!(columns.lines().skip(2).all(|line| line.chars().count() <= 80), "{columns}");
        }
    }
}
