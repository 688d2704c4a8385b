//! Our own route: the devices that answer, for `motley status` and for whoever watches a cluster.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::backend::NodeState;
use crate::gateway::Gateway;
use crate::respond::json_response;

pub(crate) async fn cluster(State(gateway): State<Arc<Gateway>>) -> Response {
    let state = gateway.backend.cluster();
    let nodes: Vec<Value> = state.nodes.iter().map(node_json).collect();
    json_response(&json!({
        "epoch": state.epoch,
        "change": state.change,
        "groups": state.groups,
        "rounds": state.rounds,
        "nodes": nodes,
    }))
}

fn node_json(node: &NodeState) -> Value {
    json!({
        "name": node.name,
        "id": node.id,
        "address": node.address,
        "head": node.head,
        "state": node.state,
        "layers": node.layers.iter().map(|(first, end)| json!([first, end])).collect::<Vec<_>>(),
        "memory_budget_bytes": node.memory_budget_bytes,
        "memory_used_bytes": node.memory_used_bytes,
        "round_trip_us": node.round_trip.map(microseconds),
        "busy_ratio": node.busy_ratio,
        "step_us": node.step.map(microseconds),
    })
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
