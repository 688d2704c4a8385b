//! `motley plan`: who should compute what, why, and how good that is. Nothing is run, and only
//! `--live` asks a head.

mod compare;
mod document;
mod lists;
mod live;
mod profile;
mod question;

use std::fs;
use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::ValueEnum;
use motley_planner::{
    Budget, Drawing, Export, ExportTarget, Ink, Method, Objective, PlanError, PlanOutcome, Problem,
    explain, explain_refusal, export, plan,
};

pub(crate) use profile::{model_name, of_directory as model_profile, profile_name};
pub(crate) use question::{of_ring as goal, read as read_document};

use crate::failure::{Failure, Kind};
use crate::status::HeadPlace;
use crate::terminal;

/// Columns of a drawing.
const COLUMNS: usize = 80;

/// Arguments of `motley plan`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "motley plan [compare] -m MODEL --cluster CLUSTER [OPTIONS]")]
pub(crate) struct Arguments {
    /// Plan with every method and compare
    #[arg(value_enum, value_name = "compare", hide_possible_values = true)]
    action: Option<Action>,
    /// A GGUF file, a name in the folder of models, or a built-in profile
    #[arg(short, long)]
    model: Option<String>,
    /// Folder of models
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// A TOML or JSON file of devices and links, or a built-in cluster
    #[arg(long)]
    cluster: Option<String>,
    /// A TOML or JSON file of lengths, arrivals and limits [default: one user, or 100 requests]
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// How to search; see --list-methods
    #[arg(long, value_name = "NAME", default_value = "auto")]
    method: String,
    /// What to make best
    #[arg(long, value_enum, default_value = "latency")]
    objective: Goal,
    /// Tell why, and which change would help most
    #[arg(long)]
    explain: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw into an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print command lines for another engine: llama.cpp or prima.cpp
    #[arg(long, value_name = "ENGINE")]
    export: Option<String>,
    /// Show the plan of a running head: predicted and measured times
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    head: HeadPlace,
    /// List the built-in model profiles
    #[arg(long)]
    list_models: bool,
    /// List the built-in clusters
    #[arg(long)]
    list_clusters: bool,
    /// List the methods
    #[arg(long)]
    list_methods: bool,
}

/// What else to do than plan once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    Compare,
}

/// Objectives on the command line. Their meanings are the planner's; without a remark on each, help
/// stays short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Goal {
    Latency,
    Waiting,
    Goodput,
    Throughput,
}

impl Goal {
    /// The planner's word for it.
    pub(crate) fn objective(self) -> Objective {
        match self {
            Self::Latency => Objective::Latency,
            Self::Waiting => Objective::Waiting,
            Self::Goodput => Objective::Goodput,
            Self::Throughput => Objective::Throughput,
        }
    }
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(list) = lists::asked(arguments) {
        return Ok(terminal::print(&list)?);
    }
    if arguments.live {
        return live::execute(&arguments.head, arguments.json);
    }
    let method = question::method(&arguments.method)?;
    let target = arguments.export.as_deref().map(question::target).transpose()?;
    let problem = question::problem(arguments)?;
    if arguments.action == Some(Action::Compare) {
        return compare::execute(&problem, arguments.json);
    }
    let outcome = plan(&problem, method, Budget::DEFAULT)
        .map_err(|error| refused(&problem, method, &error))?;
    if let Some(path) = &arguments.svg {
        let svg = Drawing::of(&problem, &outcome).svg();
        fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let file = arguments.model.as_deref().unwrap_or_default();
    let exported = target.map(|target| commands(&problem, &outcome, target, file));
    if arguments.json {
        let explanation = arguments.explain.then(|| explain(&problem, &outcome, Budget::DEFAULT));
        let document = document::of(&problem, &outcome, explanation.as_ref(), exported.as_ref())?;
        return Ok(terminal::print_json(&document)?);
    }
    if let Some(exported) = exported {
        return Ok(terminal::print(&exported.text())?);
    }
    Ok(terminal::print(&text(&problem, &outcome, arguments.explain))?)
}

/// A profile's name stands for a file that is still to be found.
fn commands(problem: &Problem, outcome: &PlanOutcome, target: ExportTarget, model: &str) -> Export {
    let is_file = std::path::Path::new(model).exists();
    let file = if is_file { model.to_owned() } else { format!("{model}.gguf") };
    export(problem, outcome, target, &file)
}

fn text(problem: &Problem, outcome: &PlanOutcome, explained: bool) -> String {
    let colour = std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let ink = if colour { Ink::Colour } else { Ink::Plain };
    let mut text = Drawing::of(problem, outcome).terminal(COLUMNS, ink);
    text.push_str(&question::workload_line(problem));
    if explained {
        text.push('\n');
        text.push_str(&explain(problem, outcome, Budget::DEFAULT).text(problem));
    }
    text
}

/// No plan: what is short, by how much, and what would make it fit.
fn refused(problem: &Problem, method: Method, error: &PlanError) -> Failure {
    let refusal = explain_refusal(problem, method, error, Budget::DEFAULT);
    let (kind, cause) = match error {
        PlanError::NotApplicable { .. } => (Kind::Usage, refusal.cause),
        PlanError::Infeasible { .. } => (Kind::Refused, format!("no plan: {}", refusal.cause)),
        PlanError::BudgetExhausted { .. } => (Kind::Refused, refusal.cause),
    };
    let failure = Failure::new(kind, anyhow::Error::msg(cause));
    if refusal.remedies.is_empty() {
        return failure;
    }
    failure.hint(format!("what would help: {}", refusal.remedies.join("; or ")))
}
