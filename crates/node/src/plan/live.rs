//! `motley plan --live`: what the plan in force promised, beside what is measured.

use serde_json::Value as Json;

use crate::failure::{Failure, Kind};
use crate::status::{self, HeadPlace};
use crate::terminal::{self, Table};

/// Asks a head for its plan and prints it.
///
/// # Errors
/// When no head answers, or it serves without a plan.
pub(super) fn execute(head: &HeadPlace, as_json: bool) -> Result<(), Failure> {
    let cluster = status::ask_cluster(head)?;
    if cluster["plan"].is_null() {
        let error = anyhow::anyhow!("the head serves without a plan");
        return Err(Failure::new(Kind::NotFound, error)
            .hint("motley serve MODEL --lan plans, unless --split says otherwise"));
    }
    if as_json {
        return Ok(terminal::print_json(&document(&cluster))?);
    }
    Ok(terminal::print(&text(&cluster))?)
}

/// Predicted and measured times of one kind, in milliseconds.
struct Times {
    predicted_ms: Option<f64>,
    measured_ms: Option<f64>,
}

impl Times {
    fn of(value: &Json) -> Self {
        Self {
            predicted_ms: milliseconds(&value["token_predicted_us"]),
            measured_ms: milliseconds(&value["token_measured_us"]),
        }
    }

    fn cells(&self) -> [String; 3] {
        let ms = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"));
        let ratio = match (self.predicted_ms, self.measured_ms) {
            (Some(predicted), Some(measured)) if predicted > 0.0 => {
                format!("{:.2}", measured / predicted)
            }
            _ => "-".to_owned(),
        };
        [ms(self.predicted_ms), ms(self.measured_ms), ratio]
    }
}

fn milliseconds(value: &Json) -> Option<f64> {
    value.as_f64().map(|us| us / 1e3)
}

/// The devices that take part, in ring order.
fn members(cluster: &Json) -> Vec<&Json> {
    let nodes = cluster["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    nodes.iter().filter(|node| !node["hop_predicted_us"].is_null()).collect()
}

/// Time on the wires: predicted from the links, measured as what is left of a token.
fn hops(cluster: &Json) -> Times {
    let members = members(cluster);
    let predicted = members.iter().map(|node| milliseconds(&node["hop_predicted_us"]));
    let computed = members.iter().map(|node| milliseconds(&node["token_measured_us"]));
    let computed_ms: Option<f64> = computed.sum();
    let token = Times::of(&cluster["plan"]);
    let measured = token.measured_ms.zip(computed_ms);
    Times {
        predicted_ms: predicted.sum(),
        measured_ms: measured.map(|(token, computed)| (token - computed).max(0.0)),
    }
}

fn text(cluster: &Json) -> String {
    let mut table =
        Table::new(["stage", "layers", "predicted ms", "measured ms", "ratio", "correction"]);
    for node in members(cluster) {
        let [predicted, measured, ratio] = Times::of(node).cells();
        let correction = node["correction"].as_f64();
        table.row([
            node["name"].as_str().unwrap_or("?").to_owned(),
            status::layers(&node["layers"]),
            predicted,
            measured,
            ratio,
            correction.map_or_else(|| "-".to_owned(), |factor| format!("{factor:.2}")),
        ]);
    }
    let hops = ("hops", hops(cluster));
    let token = ("token", Times::of(&cluster["plan"]));
    // One device sends to nobody.
    let alone = members(cluster).len() == 1;
    for (name, times) in [hops, token].into_iter().skip(usize::from(alone)) {
        let [predicted, measured, ratio] = times.cells();
        let none = || "-".to_owned();
        table.row([name.to_owned(), none(), predicted, measured, ratio, none()]);
    }
    format!("plan {}, one sequence\n{}", cluster["epoch"], table.render())
}

fn document(cluster: &Json) -> Json {
    let times = |times: &Times| {
        serde_json::json!({
            "predicted_ms": times.predicted_ms, "measured_ms": times.measured_ms,
        })
    };
    let stage = |node: &&Json| {
        let mut stage = times(&Times::of(node));
        stage["device"] = node["name"].clone();
        stage["layers"] = node["layers"].clone();
        stage["correction"] = node["correction"].clone();
        stage
    };
    serde_json::json!({
        "epoch": cluster["epoch"],
        "stages": members(cluster).iter().map(stage).collect::<Vec<Json>>(),
        "hops": times(&hops(cluster)),
        "token": times(&Times::of(&cluster["plan"])),
        "reasons": cluster["plan"]["reasons"],
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plan_stands_beside_what_was_measured() {
        let node = |name: &str, layers: Json, measured: Option<u64>| {
            json!({
                "name": name, "layers": layers, "token_predicted_us": 10_000,
                "token_measured_us": measured, "hop_predicted_us": 500, "correction": null,
            })
        };
        let mut cluster = json!({
            "epoch": 3,
            "plan": {
                "token_predicted_us": 21_000, "token_measured_us": 24_000, "reasons": [],
            },
            "nodes": [
                node("desk", json!([[0, 4]]), Some(11_000)),
                node("laptop", json!([[4, 8]]), Some(12_000)),
                { "name": "phone", "layers": [], "hop_predicted_us": null },
            ],
        });
        expect_test::expect![[r#"
            plan 3, one sequence
            stage   layers  predicted ms  measured ms  ratio  correction
            desk    0-3            10.00        11.00   1.10  -
            laptop  4-7            10.00        12.00   1.20  -
            hops    -               1.00         1.00   1.00  -
            token   -              21.00        24.00   1.14  -
        "#]]
        .assert_eq(&text(&cluster));
        cluster["nodes"][1]["token_measured_us"] = Json::Null;
        let document = document(&cluster);
        assert_eq!(document["hops"], json!({ "predicted_ms": 1.0, "measured_ms": null }));
        assert_eq!(document["stages"][0]["measured_ms"], 11.0);
    }
}
