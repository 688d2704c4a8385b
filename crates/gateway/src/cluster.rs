//! Our own route: the devices that answer, for `motley status` and for whoever watches a cluster.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::backend::{LinkState, NodeState, PlanState};
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
        "plan": state.plan.as_ref().map(plan_json),
        "links": state.links.iter().map(link_json).collect::<Vec<Value>>(),
    }))
}

fn plan_json(plan: &PlanState) -> Value {
    json!({
        "token_predicted_us": microseconds(plan.token_predicted),
        "token_measured_us": plan.token_measured.map(microseconds),
        "reasons": plan.reasons,
    })
}

fn link_json(link: &LinkState) -> Value {
    json!({
        "from": link.from,
        "to": link.to,
        "round_trip_us": microseconds(link.round_trip),
        "bytes_per_s": link.bytes_per_s,
        "assumed": link.assumed,
    })
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
        "token_predicted_us": node.token_predicted.map(microseconds),
        "token_measured_us": node.token_measured.map(microseconds),
        "hop_predicted_us": node.hop_predicted.map(microseconds),
        "correction": node.correction,
        "why": node.why,
    })
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
