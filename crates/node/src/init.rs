//! `motley init`: begins a cluster on this device.

use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::json;

use crate::failure::Failure;
use crate::identity::{Identity, StateFolder, host_name, trusted_unix_s};
use crate::terminal;

/// Arguments of `motley init`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// What this device is called in the cluster [default: its host name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Folder of keys and lists [default: motley in the user's state folder]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let path = StateFolder::locate(arguments.state.clone())?;
    let folder = StateFolder::open(&path)?;
    let name = arguments.name.clone().unwrap_or_else(host_name);
    let now = trusted_unix_s(SystemTime::now());
    let (identity, created) = Identity::load_or_create_cluster(&folder, &name, now)?;
    if arguments.json {
        return Ok(terminal::print_json(&json!({
            "cluster": identity.cluster().to_string(),
            "node": identity.node().to_string(),
            "name": identity.name(),
            "state": path,
            "created": created,
        }))?);
    }
    Ok(terminal::print(&report(&identity, created, &path))?)
}

fn report(identity: &Identity, created: bool, path: &std::path::Path) -> String {
    let (cluster, node) = (identity.cluster().short(), identity.node().short());
    let (name, path) = (identity.name(), path.display());
    let begun = match (created, identity.authority().is_some()) {
        (true, _) => format!("began cluster {cluster}; this device is {name} ({node})"),
        (false, true) => {
            format!("nothing to do: this device, {name} ({node}), began cluster {cluster} before")
        }
        (false, false) => {
            format!("nothing to do: this device, {name} ({node}), joined cluster {cluster} before")
        }
    };
    format!(
        "{begun}\n\
         keys lie in {path}; whoever has them can speak for this device\n\
         next: motley serve MODEL   answers, alone until others come\n\
         \x20     motley token new     invites another device\n"
    )
}
