//! The command.

use std::path::PathBuf;

use motley_cluster::{Cluster, ClusterSpec, FormatVersion, LinkSpec, to_json};
use motley_engine::{MeasureError, Model};

use super::{
    Effort, Measured, Options, ProfileError, Progress, device, layouts, model_tables, report,
};
use crate::failure::{Failure, Kind};
use crate::{loading, plan, store, terminal};

/// Arguments of `motley profile`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Results are kept; --json prints a cluster that motley plan --cluster reads."
)]
pub(crate) struct Arguments {
    /// Also measure the layers of this model: a GGUF file or a name in the folder of models
    #[arg(short, long, value_name = "FILE")]
    model: Option<String>,
    /// Folder of models, whose disk is measured
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Measure for 5 seconds instead of 30
    #[arg(long)]
    quick: bool,
    /// Measure anew, whatever is kept
    #[arg(long)]
    refresh: bool,
    /// Compute threads [default: one per core]
    #[arg(short, long)]
    threads: Option<usize>,
    /// Folder that results are kept in
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let effort = if arguments.quick { Effort::Quick } else { Effort::Full };
    let mut options = Options::new(arguments.models.clone(), arguments.threads, effort)?;
    options.refresh = arguments.refresh;
    if let Some(cache) = &arguments.cache {
        options.cache.clone_from(cache);
    }
    let model = match &arguments.model {
        Some(name) => {
            let path = store::resolve(name, Some(&options.store))?;
            let model = Model::open(&path).map_err(loading::open_failure)?;
            Some((plan::model_name(&path), model))
        }
        None => None,
    };
    let line = terminal::Progress::start("measuring ...");
    let mut shown = String::new();
    let mut show = |progress: Progress<'_>| {
        let text = format!("measuring {} ... {:.0} %", progress.what, progress.part * 100.0);
        if text != shown {
            line.update(&text);
            shown = text;
        }
    };
    if let (true, Some((_, model))) = (options.refresh, &model) {
        // The next start measures it with the model's real weights.
        layouts::forget(&options, model);
    }
    let mut measured = device(&options, &mut show).map_err(failed)?;
    if let Some((name, model)) = &model {
        let tables = model_tables(&options, name, model.directory(), &mut show).map_err(failed)?;
        measured.notes.extend(tables.note.clone());
        measured.device = tables.merged_into(&measured.device)?;
    }
    drop(line);
    print(arguments.json, &measured)
}

fn print(as_json: bool, measured: &Measured) -> Result<(), Failure> {
    if !as_json {
        return Ok(terminal::print(&report::text(measured))?);
    }
    for note in &measured.notes {
        terminal::note(&format!("note: {note}\n"));
    }
    Ok(terminal::print(&format!("{}\n", to_json(&alone(measured)?)?))?)
}

/// A cluster of this device alone.
fn alone(measured: &Measured) -> Result<Cluster, Failure> {
    Ok(Cluster::new(ClusterSpec {
        version: FormatVersion::default(),
        name: measured.device.name.clone(),
        head: None,
        links: LinkSpec::default(),
        devices: vec![measured.device.clone()],
    })?)
}

fn failed(error: ProfileError) -> Failure {
    let unwritable = matches!(error, ProfileError::Measure(MeasureError::File(_)));
    let failure = Failure::new(Kind::Failed, error);
    match unwritable {
        true => failure.hint("--cache DIR names a folder that can be written"),
        false => failure,
    }
}
