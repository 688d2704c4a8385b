//! `motley nodes`: the devices of the cluster, and which of them may stay.

use std::time::{Duration, SystemTime};

use clap::Subcommand;
use serde_json::{Value as Json, json};

use crate::arguments::ListOptions;
use crate::failure::{Failure, Kind};
use crate::identity::{
    Identity, Member, MemberList, MembersError, Refusal, StateFolder, trusted_unix_s,
};
use crate::status::{self, HeadPlace};
use crate::terminal::{self, Table};

/// Arguments of `motley nodes`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    head: HeadPlace,
    #[command(flatten)]
    options: ListOptions,
}

/// What is to be done with devices; without a word they are listed.
#[derive(Debug, Subcommand)]
enum Action {
    /// List devices, and what they do if the head answers
    Ls,
    /// Put devices out of the cluster; a running head cuts them off within a second
    Rm(Names),
    /// Give devices no layers, once what is being answered is done; they stay members
    Drain(Names),
    /// Give drained devices layers again
    Undrain(Names),
}

#[derive(Debug, clap::Args)]
struct Names {
    /// Names of devices, or the first digits of their ids, as `motley nodes` shows them
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

/// What happens to a device that is named.
#[derive(Clone, Copy)]
enum Change {
    Remove,
    Drain,
    Undrain,
}

impl Change {
    fn participle(self) -> &'static str {
        match self {
            Self::Remove => "removed",
            Self::Drain => "drained",
            Self::Undrain => "undrained",
        }
    }
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let folder = StateFolder::open(&StateFolder::locate(arguments.options.state.clone())?)?;
    let Some(identity) = Identity::load(&folder)? else {
        let error = anyhow::anyhow!("this device has no cluster yet");
        return Err(Failure::new(Kind::NotFound, error)
            .hint("begin one with motley init, or enter one with motley join"));
    };
    let (names, change) = match &arguments.action {
        None | Some(Action::Ls) => return list(&folder, &identity, arguments),
        Some(Action::Rm(names)) => (names, Change::Remove),
        Some(Action::Drain(names)) => (names, Change::Drain),
        Some(Action::Undrain(names)) => (names, Change::Undrain),
    };
    if identity.authority().is_none() {
        return Err(Failure::new(Kind::Refused, Refusal::NoAuthority)
            .hint("run motley nodes on the device that began the cluster"));
    }
    let changed = apply(&folder, &identity, &names.names, change)?;
    if arguments.options.json {
        let changed: Vec<Json> = changed
            .iter()
            .map(|member| json!({ "name": member.name, "id": member.id.to_string() }))
            .collect();
        return Ok(terminal::print_json(&json!({ change.participle(): changed }))?);
    }
    let lines: String = changed
        .iter()
        .map(|member| format!("{} {} ({})\n", change.participle(), member.name, member.id.short()))
        .collect();
    Ok(terminal::print(&lines)?)
}

/// Changes the list, or leaves it as it is if one of the names cannot be changed so.
fn apply(
    folder: &StateFolder,
    identity: &Identity,
    names: &[String],
    change: Change,
) -> Result<Vec<Member>, Failure> {
    let _lock = folder.lock()?;
    let mut members = MemberList::load(folder)?;
    let mut changed = Vec::new();
    for name in names {
        let found = members.find(name).cloned();
        let member = found.map_err(|error| Failure::new(kind_of(&error), error))?;
        if member.id == identity.node() && !matches!(change, Change::Undrain) {
            let error =
                anyhow::anyhow!("{} is this device, which the cluster cannot spare", member.name);
            return Err(Failure::new(Kind::Refused, error));
        }
        match change {
            Change::Remove => members.remove(&member.id)?,
            Change::Drain => members.drain(&member.id, true)?,
            Change::Undrain => members.drain(&member.id, false)?,
        }
        changed.push(member);
    }
    members.save(folder)?;
    Ok(changed)
}

fn kind_of(error: &MembersError) -> Kind {
    match error {
        MembersError::Unknown { .. } => Kind::NotFound,
        MembersError::Ambiguous { .. } => Kind::Usage,
        _ => Kind::Failed,
    }
}

fn list(folder: &StateFolder, identity: &Identity, arguments: &Arguments) -> Result<(), Failure> {
    let members = MemberList::load(folder)?;
    // Without a head the list is still true.
    let told = status::ask_cluster(&arguments.head);
    let head = told.as_ref().ok();
    let entries: Vec<Json> =
        members.members().iter().map(|member| entry(member, identity, head)).collect();
    if arguments.options.json {
        return Ok(terminal::print_json(&json!({
            "cluster": identity.cluster().to_string(),
            "revision": members.revision(),
            "head_answers": head.is_some(),
            "nodes": entries,
        }))?);
    }
    terminal::print(&table(&entries, trusted_unix_s(SystemTime::now())))?;
    if let Err(failure) = told {
        terminal::note(&format!("what they do now is not known:\n{}", failure.report()));
    }
    Ok(())
}

/// A member with what the head tells of it.
fn entry(member: &Member, identity: &Identity, head: Option<&Json>) -> Json {
    let id = member.id.to_string();
    let own = member.id == identity.node();
    let nodes = head.and_then(|head| head["nodes"].as_array()).map_or(&[][..], Vec::as_slice);
    // A head that serves alone does not name itself by its id.
    let is_it = |node: &&Json| match node["id"].as_str() {
        Some("") | None => own && node["head"] == true,
        Some(told) => told == id,
    };
    let node = nodes.iter().find(is_it);
    let state = match (member.removed, node, head) {
        (true, ..) => Some("removed"),
        (false, Some(node), _) => node["state"].as_str(),
        (false, None, _) if member.drained => Some("drained"),
        (false, None, Some(_)) => Some("away"),
        (false, None, None) => None,
    };
    let of = |field: &str| node.map_or(Json::Null, |node| node[field].clone());
    json!({
        "name": member.name,
        "id": id,
        "this_device": own,
        "added_unix_s": member.added_unix_s,
        "removed": member.removed,
        "drained": member.drained,
        "state": state,
        "layers": of("layers"),
        "address": of("address"),
        "round_trip_us": of("round_trip_us"),
    })
}

fn table(entries: &[Json], now_unix_s: u64) -> String {
    let mut table =
        Table::new(["device", "id", "added", "state", "layers", "round trip", "address"]);
    for entry in entries {
        let text = |field: &str| entry[field].as_str().filter(|text| !text.is_empty());
        let id: String = text("id").unwrap_or_default().chars().take(8).collect();
        let own = if entry["this_device"] == true { " (this)" } else { "" };
        let round_trip = entry["round_trip_us"].as_u64();
        table.row([
            format!("{}{own}", text("name").unwrap_or("?")),
            id,
            ago(now_unix_s.saturating_sub(entry["added_unix_s"].as_u64().unwrap_or(0))),
            text("state").unwrap_or("-").to_owned(),
            status::layers(&entry["layers"]),
            round_trip
                .map_or_else(|| "-".to_owned(), |us| terminal::duration(Duration::from_micros(us))),
            text("address").unwrap_or("-").to_owned(),
        ]);
    }
    table.render()
}

/// How long ago, in the largest unit of which there are at least two.
fn ago(seconds: u64) -> String {
    match seconds {
        172_800.. => format!("{} days ago", seconds / 86_400),
        7200.. => format!("{} hours ago", seconds / 3600),
        120.. => format!("{} minutes ago", seconds / 60),
        _ => "just now".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_joined_with_what_the_head_tells() {
        let outer = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(outer.path()).unwrap();
        let now = crate::identity::RELEASED_UNIX_S;
        let (identity, _) = Identity::load_or_create_cluster(&folder, "desk", now).unwrap();
        let mut members = MemberList::load(&folder).unwrap();
        let id = |seed: u8| crate::identity::NodeId::from_bytes([seed; 32]);
        for (seed, name) in [(0xa1, "laptop"), (0xb2, "nas"), (0xc3, "old"), (0xd4, "phone")] {
            members.add(id(seed), name, now).unwrap();
        }
        members.remove(&id(0xc3)).unwrap();
        members.drain(&id(0xd4), true).unwrap();
        let head = json!({ "nodes": [
            { "id": identity.node().to_string(), "name": "desk", "state": "serving",
              "layers": [[0, 4]], "address": "10.0.0.1:11556" },
            { "id": id(0xa1).to_string(), "name": "laptop", "state": "serving",
              "layers": [[4, 9]], "address": "10.0.0.2:40000", "round_trip_us": 420 },
        ]});
        let shown = |head: Option<&Json>| {
            let entries: Vec<Json> =
                members.members().iter().map(|member| entry(member, &identity, head)).collect();
            table(&entries, now + 7300).replace(&identity.node().short(), "########")
        };
        expect_test::expect![[r#"
            device       id              added  state    layers  round trip  address
            desk (this)  ########  2 hours ago  serving  0-3     -           10.0.0.1:11556
            laptop       a1a1a1a1  2 hours ago  serving  4-8     0.4 ms      10.0.0.2:40000
            nas          b2b2b2b2  2 hours ago  away     -       -           -
            old          c3c3c3c3  2 hours ago  removed  -       -           -
            phone        d4d4d4d4  2 hours ago  drained  -       -           -
        "#]]
        .assert_eq(&shown(Some(&head)));
        expect_test::expect![[r#"
            device       id              added  state    layers  round trip  address
            desk (this)  ########  2 hours ago  -        -       -           -
            laptop       a1a1a1a1  2 hours ago  -        -       -           -
            nas          b2b2b2b2  2 hours ago  -        -       -           -
            old          c3c3c3c3  2 hours ago  removed  -       -           -
            phone        d4d4d4d4  2 hours ago  drained  -       -           -
        "#]]
        .assert_eq(&shown(None));
    }

    #[test]
    fn times_past_are_said_in_whole_units() {
        let said = [0, 119, 120, 7199, 7200, 172_799, 172_800].map(ago);
        let expected = [
            "just now",
            "just now",
            "2 minutes ago",
            "119 minutes ago",
            "2 hours ago",
            "47 hours ago",
            "2 days ago",
        ];
        assert_eq!(said, expected);
    }
}
