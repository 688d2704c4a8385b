//! `motley status`: who serves which layers, and how fast, as the head tells it.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value as Json;

use crate::cluster::layer_ranges;
use crate::failure::{Failure, Kind};
use crate::terminal::{self, Table};

/// How long the head may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Arguments of `motley status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    head: HeadPlace,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Where the head's API is.
#[derive(Debug, clap::Args)]
pub(crate) struct HeadPlace {
    /// Where the head answers
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:11555", global = true)]
    pub(crate) url: String,
    /// Key of the head's API, if it has keys
    #[arg(long, value_name = "KEY", global = true)]
    api_key: Option<String>,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let cluster = ask_cluster(&arguments.head)?;
    if arguments.json {
        return Ok(terminal::print_json(&cluster)?);
    }
    Ok(terminal::print(&report(&cluster))?)
}

/// What a head tells of its cluster.
///
/// # Errors
/// When it does not answer, or refuses to.
pub(crate) fn ask_cluster(head: &HeadPlace) -> Result<Json, Failure> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .build()
        .into();
    let url = format!("{}/cluster", head.url.trim_end_matches('/'));
    let mut request = agent.get(&url);
    if let Some(key) = &head.api_key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut response = request.call().map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("no answer from {url}"));
        Failure::new(Kind::Failed, error)
            .hint("motley serve MODEL serves one; --url names another place")
    })?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string()?;
    if !status.is_success() {
        let told: Json = serde_json::from_str(&body).unwrap_or_default();
        let message = told["error"]["message"].as_str().unwrap_or("it gives no reason");
        let error = anyhow::anyhow!("{url} answers {status}: {message}");
        return Err(Failure::new(Kind::Refused, error).hint("--api-key KEY gives the head's key"));
    }
    Ok(serde_json::from_str(&body)?)
}

fn report(cluster: &Json) -> String {
    let number = |value: &Json| value.as_u64().unwrap_or(0);
    let mut text = String::new();
    let nodes = cluster["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let _ = writeln!(
        text,
        "plan {}: {}, {}, up to {} micro-batches at once",
        number(&cluster["epoch"]),
        count(
            nodes
                .iter()
                .filter(|node| !node["layers"].as_array().is_none_or(Vec::is_empty))
                .count(),
            "device"
        ),
        count(number(&cluster["rounds"]) as usize, "round"),
        number(&cluster["groups"]),
    );
    if let Some(change) = cluster["change"].as_str() {
        let _ = writeln!(text, "now: {change}");
    }
    let mut table = Table::new([
        "device",
        "layers",
        "state",
        "memory",
        "of",
        "round trip",
        "busy",
        "step",
        "address",
    ]);
    for node in nodes {
        let name = node["name"].as_str().unwrap_or("?");
        let head = if node["head"].as_bool() == Some(true) { " (head)" } else { "" };
        let time = |field: &str| {
            node[field]
                .as_u64()
                .map_or_else(|| "-".to_owned(), |us| terminal::duration(Duration::from_micros(us)))
        };
        let busy = node["busy_ratio"].as_f64();
        table.row([
            format!("{name}{head}"),
            layers(&node["layers"]),
            node["state"].as_str().unwrap_or_default().to_owned(),
            terminal::bytes(number(&node["memory_used_bytes"])),
            terminal::bytes(number(&node["memory_budget_bytes"])),
            time("round_trip_us"),
            busy.map_or_else(|| "-".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0)),
            time("step_us"),
            node["address"].as_str().unwrap_or_default().to_owned(),
        ]);
    }
    text.push_str(&table.render());
    text.push_str(&plan_words(cluster, nodes));
    text
}

/// What the plan promises, why it is as it is, and what the ways are like.
fn plan_words(cluster: &Json, nodes: &[Json]) -> String {
    let mut text = String::new();
    let plan = &cluster["plan"];
    let time = |value: &Json| value.as_u64().map(Duration::from_micros).map(terminal::duration);
    if let Some(predicted) = time(&plan["token_predicted_us"]) {
        let measured = time(&plan["token_measured_us"]);
        let measured = measured.map_or_else(String::new, |time| format!(", measured {time}"));
        let _ = writeln!(text, "\na token takes {predicted} by the plan{measured}");
        for reason in plan["reasons"].as_array().into_iter().flatten() {
            let _ = writeln!(text, "  {}", reason.as_str().unwrap_or_default());
        }
    }
    let reasons = plan["reasons"].as_array();
    for node in nodes {
        let (name, why) = (node["name"].as_str().unwrap_or("?"), node["why"].as_str());
        let told =
            |reason: &Json| reason.as_str().is_some_and(|it| it.starts_with(&format!("{name}: ")));
        let told = reasons.is_some_and(|reasons| reasons.iter().any(told));
        if let Some(why) = why.filter(|_| !told) {
            let _ = writeln!(text, "  {name}: {why}.");
        }
    }
    let links = cluster["links"].as_array().map_or(&[][..], Vec::as_slice);
    if links.is_empty() {
        return text;
    }
    let mut table = Table::new(["from", "to", "round trip", "rate", "known by"]);
    for link in links {
        table.row([
            link["from"].as_str().unwrap_or("?").to_owned(),
            link["to"].as_str().unwrap_or("?").to_owned(),
            time(&link["round_trip_us"]).unwrap_or_else(|| "-".to_owned()),
            format!("{}/s", terminal::bytes(link["bytes_per_s"].as_u64().unwrap_or(0))),
            if link["assumed"] == true { "the ways over the head" } else { "measuring" }.to_owned(),
        ]);
    }
    let _ = write!(text, "\n{}", table.render());
    text
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Layers in few characters: `0-3 8`.
pub(crate) fn layers(value: &Json) -> String {
    let windows = value.as_array().map_or(&[][..], Vec::as_slice);
    let texts = layer_ranges(
        windows.iter().filter_map(|window| Some((window[0].as_u64()?, window[1].as_u64()?))),
    );
    if texts.is_empty() { "-".to_owned() } else { texts.join(" ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plan_is_told_with_its_reasons_and_ways() {
        let node = |name: &str, why: Option<&str>| json!({ "name": name, "why": why });
        let link = |from: &str, to: &str, assumed: bool| {
            json!({
                "from": from, "to": to, "round_trip_us": 420, "bytes_per_s": 117_500_000,
                "assumed": assumed,
            })
        };
        let nodes = [
            node("desk", None),
            node("phone", Some("not used; a hop costs 9 ms")),
            node("box", Some("it is being measured")),
        ];
        let cluster = json!({
            "plan": {
                "token_predicted_us": 41_000, "token_measured_us": 43_500,
                "reasons": ["It is so.", "phone: not used; a hop costs 9 ms."],
            },
            "links": [link("desk", "phone", false), link("phone", "box", true)],
        });
        expect_test::expect![[r#"

            a token takes 41.0 ms by the plan, measured 43.5 ms
              It is so.
              phone: not used; a hop costs 9 ms.
              box: it is being measured.

            from   to     round trip      rate  known by
            desk   phone      0.4 ms  118 MB/s  measuring
            phone  box        0.4 ms  118 MB/s  the ways over the head
        "#]]
        .assert_eq(&plan_words(&cluster, &nodes));
        assert_eq!(plan_words(&json!({}), &[]), "");
    }

    #[test]
    fn a_ring_of_two_reads_as_a_table() {
        let node = |name: &str, head: bool, layers: Json, trip: Option<u64>| {
            json!({
                "name": name, "id": "", "address": "10.0.0.1:11556", "head": head,
                "state": "serving", "layers": layers, "memory_budget_bytes": 4_000_000_000_u64,
                "memory_used_bytes": 1_000_000_000, "round_trip_us": trip, "busy_ratio": 0.5,
                "step_us": 1500,
            })
        };
        let cluster = json!({
            "epoch": 3, "change": null, "groups": 2, "rounds": 2,
            "nodes": [
                node("desk", true, json!([[0, 4], [8, 9]]), None),
                node("laptop", false, json!([[4, 8]]), Some(420)),
                node("phone", false, json!([]), Some(9000)),
            ],
        });
        expect_test::expect![[r#"
            plan 3: 2 devices, 2 rounds, up to 2 micro-batches at once
            device       layers  state     memory       of  round trip  busy    step         address
            desk (head)  0-3 8   serving  1.00 GB  4.00 GB  -           50 %  1.5 ms  10.0.0.1:11556
        "#]]
        .assert_eq(
            &report(&cluster).lines().take(3).map(|line| format!("{line}\n")).collect::<String>(),
        );
    }
}
