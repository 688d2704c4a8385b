//! `motley token`: invitations to the cluster that this device began.

use std::time::{Duration, SystemTime};

use clap::Subcommand;
use serde_json::json;

use crate::arguments::ListOptions;
use crate::failure::{Failure, Kind};
use crate::identity::{
    Identity, Invitation, InvitationState, JoinToken, Refusal, StateFolder, TokenAddress,
    TokenBook, trusted_unix_s,
};
use crate::terminal::{self, Table};
use crate::transport::{CLUSTER_PORT, own_addresses};

/// Longest time that an invitation may be open: a year.
const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Arguments of `motley token`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    options: ListOptions,
}

/// What is to be done with invitations; without a word they are listed.
#[derive(Debug, Subcommand)]
enum Action {
    /// Make a token that lets other devices join
    New(New),
    /// List tokens
    Ls,
    /// Revoke tokens; who joined with them stays
    Rm(Remove),
}

#[derive(Debug, clap::Args)]
struct New {
    /// How long it can be used, such as 30m, 24h or 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_ttl)]
    ttl: Duration,
    /// How many devices may use it
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    uses: u32,
    /// Where others reach this device; may be repeated [default: all its addresses]
    #[arg(long, value_name = "HOST[:PORT]", value_parser = parse_address)]
    address: Vec<TokenAddress>,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// Ids of tokens, as `motley token ls` shows them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let folder = StateFolder::open(&StateFolder::locate(arguments.options.state.clone())?)?;
    let Some(identity) = Identity::load(&folder)? else {
        let error = anyhow::anyhow!("this device has no cluster yet");
        return Err(Failure::new(Kind::NotFound, error).hint("begin one with motley init"));
    };
    if identity.authority().is_none() {
        return Err(Failure::new(Kind::Refused, Refusal::NoAuthority)
            .hint("run motley token on the device that began the cluster"));
    }
    let now = trusted_unix_s(SystemTime::now());
    match &arguments.action {
        None | Some(Action::Ls) => list(&folder, arguments.options.json, now),
        Some(Action::New(new)) => create(&folder, &identity, new, arguments.options.json, now),
        Some(Action::Rm(remove)) => revoke(&folder, remove),
    }
}

fn create(
    folder: &StateFolder,
    identity: &Identity,
    new: &New,
    json: bool,
    now: u64,
) -> Result<(), Failure> {
    let addresses = match new.address.as_slice() {
        [] => own_addresses()
            .into_iter()
            .map(|ip| TokenAddress::Socket((ip, CLUSTER_PORT).into()))
            .collect(),
        given => given.to_vec(),
    };
    if addresses.is_empty() {
        let error = anyhow::anyhow!("this device has no address that others could reach");
        return Err(Failure::from(error).hint("name one with --address"));
    }
    let (secret, invitation) = {
        let _lock = folder.lock()?;
        let mut book = TokenBook::load(folder)?;
        let (secret, invitation) = book.create(now, new.ttl.as_secs(), new.uses)?;
        let invitation = invitation.clone();
        book.save(folder)?;
        (secret, invitation)
    };
    let token = JoinToken { cluster: identity.cluster(), secret, addresses };
    let text = token.to_text();
    if json {
        let addresses: Vec<String> = token.addresses.iter().map(ToString::to_string).collect();
        return Ok(terminal::print_json(&json!({
            "token": text.as_str(),
            "id": invitation.id,
            "uses_max": invitation.uses_max,
            "expires_unix_s": invitation.expires_unix_s,
            "addresses": addresses,
        }))?);
    }
    // The token alone is the result, so that a script can take it.
    terminal::print(&format!("{}\n", text.as_str()))?;
    let devices =
        if new.uses == 1 { "1 device".to_owned() } else { format!("{} devices", new.uses) };
    let time = left(&invitation, now);
    terminal::note(&format!(
        "good for {devices} and {time}; on each run: motley join TOKEN (revoke: motley token rm {})\n",
        invitation.id
    ));
    Ok(())
}

fn list(folder: &StateFolder, json: bool, now: u64) -> Result<(), Failure> {
    let book = TokenBook::load(folder)?;
    if json {
        let entries: Vec<_> = book.invitations().iter().map(|it| entry(it, now)).collect();
        return Ok(terminal::print_json(&json!(entries))?);
    }
    if book.invitations().is_empty() {
        return Ok(terminal::print("there are no tokens; motley token new makes one\n")?);
    }
    let mut table = Table::new(["token", "state", "used", "time left"]);
    for invitation in book.invitations() {
        table.row([
            invitation.id.clone(),
            state_name(invitation.state(now)).to_owned(),
            format!("{} of {}", invitation.uses, invitation.uses_max),
            left(invitation, now),
        ]);
    }
    Ok(terminal::print(&table.render())?)
}

fn entry(invitation: &Invitation, now: u64) -> serde_json::Value {
    json!({
        "id": invitation.id,
        "state": state_name(invitation.state(now)),
        "uses": invitation.uses,
        "uses_max": invitation.uses_max,
        "created_unix_s": invitation.created_unix_s,
        "expires_unix_s": invitation.expires_unix_s,
    })
}

fn revoke(folder: &StateFolder, remove: &Remove) -> Result<(), Failure> {
    let _lock = folder.lock()?;
    let mut book = TokenBook::load(folder)?;
    for id in &remove.ids {
        book.remove(id).map_err(|error| Failure::new(Kind::NotFound, error))?;
    }
    Ok(book.save(folder)?)
}

fn state_name(state: InvitationState) -> &'static str {
    match state {
        InvitationState::Open => "open",
        InvitationState::Used => "used",
        InvitationState::Expired => "expired",
    }
}

/// What is left of an invitation's time, rounded, in the largest unit that leaves at least two.
fn left(invitation: &Invitation, now: u64) -> String {
    if invitation.state(now) == InvitationState::Expired {
        return "-".to_owned();
    }
    let seconds = invitation.expires_unix_s.saturating_sub(now);
    match seconds {
        172_800.. => format!("{} days", (seconds + 43_200) / 86_400),
        7200.. => format!("{} hours", (seconds + 1800) / 3600),
        120.. => format!("{} minutes", (seconds + 30) / 60),
        _ => format!("{seconds} seconds"),
    }
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no time; write it like 30m, 24h or 7d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    let time = Duration::from_secs(number.checked_mul(factor).ok_or_else(wrong)?);
    match time {
        Duration::ZERO => Err("a token must have some time".to_owned()),
        time if time > TTL_MAX => Err("a token can be open for a year at most".to_owned()),
        time => Ok(time),
    }
}

fn parse_address(text: &str) -> Result<TokenAddress, String> {
    if let Ok(ip) = text.parse::<std::net::IpAddr>() {
        return Ok(TokenAddress::Socket((ip, CLUSTER_PORT).into()));
    }
    let with_port = text.parse().or_else(|_| format!("{text}:{CLUSTER_PORT}").parse());
    with_port.map_err(|_| format!("'{text}' is no address; write it like 192.168.1.5 or nas.local"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(parse_ttl("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_ttl("24h"), Ok(Duration::from_secs(86_400)));
        assert_eq!(parse_ttl("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in ["", "0h", "h", "24", "1y", "-1h", "367d", "99999999999999999999d", "5\u{e9}"]
        {
            assert!(parse_ttl(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_get_the_port_of_clusters() {
        for (text, address) in [
            ("192.168.1.5", "192.168.1.5:11556"),
            ("192.168.1.5:99", "192.168.1.5:99"),
            ("nas.local", "nas.local:11556"),
            ("nas.local:99", "nas.local:99"),
            ("2001:db8::1", "[2001:db8::1]:11556"),
            ("[2001:db8::1]:99", "[2001:db8::1]:99"),
        ] {
            assert_eq!(parse_address(text).unwrap().to_string(), address);
        }
        for wrong in ["", "a b", "nas:99999", "http://nas"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
