//! From names and files to a problem.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use motley_cluster::{
    Arrivals, Cluster, Document, FormatVersion, KvType, ModelProfile, ReadError, Seconds,
    TokenLength, TokensPerSecond, Workload, WorkloadSpec, builtin_cluster, builtin_cluster_names,
    builtin_model, builtin_model_names, from_json, from_toml,
};
use motley_engine::EngineOptions;
use motley_planner::{ExportTarget, Method, Objective, PlanOptions, Problem};

use super::{Arguments, profile};
use crate::cluster::Goal;
use crate::failure::{Failure, Kind};
use crate::stage;
use crate::store;

/// Documents longer than this are no descriptions of clusters or workloads.
const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

/// Lengths and context where no workload is given: a chat.
const PROMPT_TOKENS: f64 = 512.0;
const GENERATED_TOKENS: f64 = 256.0;
const CONTEXT_TOKENS: u32 = 4096;

/// Requests of the load objectives' default workload, their mean interval and slowest speed.
const REQUESTS: u32 = 100;
const INTERVAL_S: f64 = 2.0;
const FLOOR_TOK_PER_S: f64 = 5.0;

pub(super) fn problem(arguments: &Arguments) -> Result<Problem, Failure> {
    let (Some(model), Some(cluster)) = (&arguments.model, &arguments.cluster) else {
        let missing = if arguments.model.is_none() { "-m MODEL" } else { "--cluster CLUSTER" };
        return Err(Failure::usage(format!("{missing} is missing"))
            .hint("motley plan --list-models --list-clusters shows what is built in"));
    };
    let objective = arguments.objective.objective();
    Ok(Problem {
        cluster: find_cluster(cluster)?,
        model: find_model(model, arguments)?,
        workload: find_workload(arguments.workload.as_deref(), objective)?,
        objective,
        options: PlanOptions::full(),
    })
}

pub(super) fn method(name: &str) -> Result<Method, Failure> {
    Method::from_name(name).ok_or_else(|| {
        unknown("method", name, &Method::ALL.map(Method::name), "motley plan --list-methods")
    })
}

pub(super) fn target(name: &str) -> Result<ExportTarget, Failure> {
    ExportTarget::from_name(name).ok_or_else(|| {
        let names = ExportTarget::ALL.map(ExportTarget::name);
        let hint = format!("plans can be exported for {}", names.join(" and "));
        Failure::new(Kind::NotFound, anyhow::anyhow!("no engine is called '{name}'")).hint(hint)
    })
}

/// What the plan assumes about requests, on one line.
pub(super) fn workload_line(problem: &Problem) -> String {
    let workload = &problem.workload;
    let (prompt, generated) = (workload.prompt_tokens.mean, workload.generated_tokens.mean);
    let requests = match workload.requests {
        1 => "one request".to_owned(),
        count => {
            let interval = workload.arrivals.mean_interval().value();
            format!("{count} requests, one every {interval} s")
        }
    };
    let floor = workload
        .speed_floor_tok_per_s
        .map_or_else(String::new, |floor| format!(", at least {} tok/s each", floor.value()));
    let cache = match workload.kv_type {
        KvType::F16 => "f16",
        KvType::Q8_0 => "q8_0",
        KvType::Q4_0 => "q4_0",
    };
    format!(
        "planned for {requests}: {prompt:.0} prompt and {generated:.0} generated tokens, context \
         {}, {cache} keys and values{floor}\n",
        workload.context_tokens
    )
}

fn find_cluster(name: &str) -> Result<Cluster, Failure> {
    if is_document(name) {
        return read(Path::new(name));
    }
    builtin_cluster(name).map_err(|_| {
        unknown("cluster", name, builtin_cluster_names(), "motley plan --list-clusters")
    })
}

fn find_model(name: &str, arguments: &Arguments) -> Result<ModelProfile, Failure> {
    if let Some(model) = builtin_model(name) {
        return Ok(model);
    }
    if is_document(name) {
        return read(Path::new(name));
    }
    let folder = store::folder(arguments.models.clone());
    match store::resolve(name, folder.as_deref()) {
        Ok(path) => profile::of_file(&path),
        // A path is what it seems to be; any other word may be a mistyped profile.
        Err(failure) if Path::new(name).components().count() > 1 || name.ends_with(".gguf") => {
            Err(failure)
        }
        Err(failure) => {
            let known = builtin_model_names();
            if store::near_names(name, known.iter().map(String::as_str)).is_empty() {
                return Err(failure);
            }
            Err(unknown("model", name, &known, "motley plan --list-models"))
        }
    }
}

fn find_workload(path: Option<&Path>, objective: Objective) -> Result<Workload, Failure> {
    if let Some(path) = path {
        return read(path);
    }
    if objective == Objective::Latency {
        let workload = Workload::single_user(PROMPT_TOKENS, GENERATED_TOKENS, CONTEXT_TOKENS);
        return Ok(workload?);
    }
    Ok(Workload::new(WorkloadSpec {
        version: FormatVersion::default(),
        context_tokens: CONTEXT_TOKENS,
        requests: REQUESTS,
        micro_batch_tokens: 512,
        kv_type: KvType::F16,
        flash_attention: true,
        speed_floor_tok_per_s: Some(TokensPerSecond::new(FLOOR_TOK_PER_S)?),
        ttft_limit_s: Some(Seconds::new(10.0)?),
        tpot_limit_s: Some(Seconds::new(1.0 / FLOOR_TOK_PER_S)?),
        prompt_tokens: TokenLength::fixed(PROMPT_TOKENS),
        generated_tokens: TokenLength::fixed(GENERATED_TOKENS),
        arrivals: Arrivals::Fixed { interval_s: Seconds::new(INTERVAL_S)? },
    })?)
}

/// What a ring of this engine is planned for: lengths and arrivals of `workload`, or the objective's
/// usual ones, cut to the engine's context.
///
/// # Errors
/// When the workload's lengths do not fit the context.
pub(crate) fn of_ring(
    objective: Objective,
    workload: Option<&Workload>,
    engine: &EngineOptions,
) -> Result<Goal, Failure> {
    let context_tokens = u32::try_from(engine.context_tokens)?;
    let mut spec = match workload {
        Some(workload) => workload.to_spec(),
        None => find_workload(None, objective)?.to_spec(),
    };
    if workload.is_none() {
        let longest = spec.prompt_tokens.mean + spec.generated_tokens.mean;
        let part = (f64::from(context_tokens) / longest).min(1.0);
        spec.prompt_tokens.mean = (spec.prompt_tokens.mean * part).floor().max(1.0);
        spec.generated_tokens.mean = (spec.generated_tokens.mean * part).floor().max(1.0);
    }
    spec.context_tokens = context_tokens;
    spec.micro_batch_tokens = u32::try_from(engine.batch_rows_max)?;
    spec.kv_type = stage::kv_type(engine.cache);
    let workload = Workload::new(spec).context("the workload does not fit the engine")?;
    Ok(Goal { objective, workload, rounds: None })
}

fn is_document(name: &str) -> bool {
    let path = Path::new(name);
    let known = |kind: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(kind));
    known("toml") || known("json")
}

/// Reads a document by its extension.
///
/// # Errors
/// When it cannot be read, or says what cannot be; the message names the field.
pub(crate) fn read<T: Document>(path: &Path) -> Result<T, Failure> {
    let metadata = fs::metadata(path).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Failed,
        };
        let context = format!("cannot open {}", path.display());
        Failure::new(kind, anyhow::Error::from(error).context(context))
    })?;
    if metadata.len() > DOCUMENT_BYTES_MAX {
        let error = anyhow::anyhow!("{} is too long for a {}", path.display(), T::KIND);
        return Err(Failure::new(Kind::Refused, error));
    }
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text =
        String::from_utf8(bytes).with_context(|| format!("{} is no UTF-8 text", path.display()))?;
    let is_json = path.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("json"));
    let value = if is_json { from_json(&text) } else { from_toml(&text) };
    let value =
        value.map_err(|error| ReadError { problem: without_excerpt(&error.problem), ..error });
    Ok(value.with_context(|| path.display().to_string())?)
}

/// The first and last line of a parser's message; the lines between show the text, which does not
/// go on one line.
fn without_excerpt(problem: &str) -> String {
    match problem.split_once('\n').zip(problem.rsplit_once('\n')) {
        Some(((first, _), (_, last))) => format!("{first}: {last}"),
        None => problem.to_owned(),
    }
}

fn unknown<S: AsRef<str>>(what: &str, name: &str, known: &[S], list: &str) -> Failure {
    let names: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    let near = store::near_names(&name.to_lowercase(), names.iter().copied());
    let hint = match near.as_slice() {
        [] => format!("{list} shows all"),
        near => format!("did you mean {}? {list} shows all", near.join(" or ")),
    };
    Failure::new(Kind::NotFound, anyhow::anyhow!("no {what} is called '{name}'")).hint(hint)
}
