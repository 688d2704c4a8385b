//! `motley ps`: the servers that run on this machine.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use crate::failure::Failure;
use crate::identity::StateFolder;
use crate::running::{self, ServerFacts};
use crate::terminal::{self, Table};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Arguments of `motley ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Key of the servers' API, for those that tell their load to nobody else
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Folder of keys and lists [default: motley in the user's state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a server answers now.
#[derive(Clone, Debug, PartialEq)]
struct Condition {
    state: String,
    requests: Option<Requests>,
}

/// A server's requests, by its metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Requests {
    running: f64,
    waiting: f64,
    ended: f64,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let state = StateFolder::locate(arguments.state.clone())?;
    let servers: Vec<(ServerFacts, Condition)> = running::servers(&state)
        .into_iter()
        .map(|server| {
            let condition = ask(&server.facts, arguments.api_key.as_deref());
            (server.facts, condition)
        })
        .collect();
    if arguments.json {
        let list: Vec<Json> = servers.iter().map(|(facts, now)| document(facts, now)).collect();
        return Ok(terminal::print_json(&Json::Array(list))?);
    }
    if servers.is_empty() {
        terminal::note("nothing is served on this machine; motley serve MODEL begins\n");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(terminal::print(&table(&servers, now))?)
}

fn document(facts: &ServerFacts, condition: &Condition) -> Json {
    json!({
        "model": facts.model,
        "path": facts.path,
        "url": facts.url(),
        "pid": facts.pid,
        "started_unix_s": facts.started_unix_s,
        "version": facts.version,
        "state": condition.state,
        "requests_running": condition.requests.map(|requests| requests.running),
        "requests_waiting": condition.requests.map(|requests| requests.waiting),
        "requests_ended": condition.requests.map(|requests| requests.ended),
    })
}

fn table(servers: &[(ServerFacts, Condition)], now_unix_s: u64) -> String {
    let mut table = Table::new(["model", "url", "pid", "since", "state", "requests"]);
    for (facts, condition) in servers {
        let since = now_unix_s.saturating_sub(facts.started_unix_s);
        let requests = condition.requests.map_or_else(
            || "-".to_owned(),
            |Requests { running, waiting, ended }| {
                format!("{running} running, {waiting} waiting, {ended} ended")
            },
        );
        table.row([
            facts.model.clone(),
            facts.url(),
            facts.pid.to_string(),
            age(since),
            condition.state.clone(),
            requests,
        ]);
    }
    table.render()
}

/// A time in the largest unit of which there are two.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn ask(facts: &ServerFacts, key: Option<&str>) -> Condition {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .build()
        .into();
    let Ok(health) = agent.get(format!("{}/health", facts.url())).call() else {
        return Condition { state: "does not answer".to_owned(), requests: None };
    };
    let state = match health.status().as_u16() {
        200 => "ready",
        503 => "not ready",
        _ => "answers strangely",
    };
    let mut request = agent.get(format!("{}/metrics", facts.url()));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let metrics = request.call().ok().filter(|answer| answer.status().is_success());
    let text = metrics.and_then(|mut answer| {
        answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().ok()
    });
    Condition { state: state.to_owned(), requests: text.map(|text| requests(&text)) }
}

/// Sums of the series that count requests.
fn requests(metrics: &str) -> Requests {
    let sum = |name: &str| {
        let lines = metrics.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>()
    };
    Requests {
        running: sum("motley_num_requests_running"),
        waiting: sum("motley_num_requests_waiting"),
        ended: sum("motley_request_success_total"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::tests::facts;

    #[test]
    fn servers_read_as_a_table() {
        let metrics = "\
# HELP motley_num_requests_running Requests being computed.
motley_num_requests_running{model_name=\"m\"} 2
motley_num_requests_waiting{model_name=\"m\"} 1
motley_request_success_total{model_name=\"m\",finished_reason=\"stop\"} 40
motley_request_success_total{model_name=\"m\",finished_reason=\"length\"} 2
motley_request_success_total_other 9
";
        let ready = Condition { state: "ready".to_owned(), requests: Some(requests(metrics)) };
        let silent = Condition { state: "does not answer".to_owned(), requests: None };
        let servers = [(facts("smollm2", 11_555), ready), (facts("qwen3-8b", 8_080), silent)];
        expect_test::expect![[r#"
            model     url                     pid   since  state            requests
            smollm2   http://127.0.0.1:11555  100   100 s  ready            2 running, 1 waiting, 42 ended
            qwen3-8b  http://127.0.0.1:8080   100  59 min  does not answer  -
        "#]]
        .assert_eq(&table(&servers, 12_655));
    }

    #[test]
    fn ages_have_the_unit_that_fits() {
        assert_eq!(
            [0, 119, 120, 7_199, 7_200, 200_000].map(age),
            ["0 s", "119 s", "2 min", "119 min", "2 h", "2 days"]
        );
    }
}
