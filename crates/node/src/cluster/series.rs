//! What a head measures, for the gateway's metrics.

use std::time::Duration;

use motley_gateway::{ClusterState, NodeState, Series, SeriesKind};

use crate::transport::{Counters, RefusedBecause};

/// Series of the nodes that are there, and of who has knocked. Labels are names of members and
/// outcomes, of which there are few.
pub(super) fn of(cluster: &ClusterState, counters: &Counters) -> Vec<Series> {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let layers = |node: &NodeState| {
        f64::from(node.layers.iter().map(|(first, end)| end.saturating_sub(*first)).sum::<u32>())
    };
    vec![
        connections(counters),
        of_nodes(cluster, "cluster_node_layers", "Layers that a node computes", |node| {
            Some(layers(node))
        }),
        of_nodes(
            cluster,
            "cluster_node_busy_ratio",
            "Share of the last seconds in which a node computed",
            |node| node.busy_ratio,
        ),
        of_nodes(
            cluster,
            "cluster_node_round_trip_seconds",
            "Round trip from the head to a node",
            |node| seconds(node.round_trip),
        ),
        of_nodes(
            cluster,
            "cluster_node_step_seconds",
            "Mean time of a node for one micro-batch",
            |node| seconds(node.step),
        ),
    ]
}

/// Every outcome is listed from the start, so that the first of its kind is seen as growth.
fn connections(counters: &Counters) -> Series {
    let accepted = [("member", counters.members()), ("applicant", counters.applicants())];
    let refused = RefusedBecause::ALL.map(|because| (because.name(), counters.refused(because)));
    let sample =
        |(outcome, count): (&str, u64)| (vec![("outcome", outcome.to_owned())], count as f64);
    Series {
        name: "cluster_connections_total",
        help: "Connections to the cluster's port: members and applicants that were let in, and why \
               others were not",
        kind: SeriesKind::Counter,
        samples: accepted.into_iter().chain(refused).map(sample).collect(),
    }
}

fn of_nodes(
    cluster: &ClusterState,
    name: &'static str,
    help: &'static str,
    value: impl Fn(&NodeState) -> Option<f64>,
) -> Series {
    let sample = |node: &NodeState| Some((vec![("node", node.name.clone())], value(node)?));
    let samples = cluster.nodes.iter().filter_map(sample).collect();
    Series { name, help, kind: SeriesKind::Gauge, samples }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_outcomes_become_series() {
        let desk = NodeState {
            name: "desk".to_owned(),
            layers: vec![(0, 4), (8, 9)],
            busy_ratio: Some(0.5),
            step: Some(Duration::from_micros(1500)),
            ..NodeState::default()
        };
        let phone = NodeState {
            name: "phone".to_owned(),
            round_trip: Some(Duration::from_millis(9)),
            ..NodeState::default()
        };
        let cluster = ClusterState { nodes: vec![desk, phone], ..ClusterState::default() };
        let counters = Counters::default();
        counters.count_member();
        counters.count_refused(RefusedBecause::Removed);
        let mut text = String::new();
        for series in of(&cluster, &counters) {
            for (labels, value) in series.samples.iter().filter(|(_, value)| *value != 0.0) {
                text += &format!("{} {} {value}\n", series.name, labels[0].1);
            }
        }
        expect_test::expect![[r"
            cluster_connections_total member 1
            cluster_connections_total removed 1
            cluster_node_layers desk 5
            cluster_node_busy_ratio desk 0.5
            cluster_node_round_trip_seconds phone 0.009
            cluster_node_step_seconds desk 0.0015
        "]]
        .assert_eq(&text);
        assert_eq!(connections(&counters).samples.len(), 2 + RefusedBecause::ALL.len());
    }
}
