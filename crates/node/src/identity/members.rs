//! The member list: who may speak. A removed member stays listed, so that it is told why.

use std::fs;
use std::path::PathBuf;
use std::sync::RwLock;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::folder::{StateError, StateFolder};
use super::ids::{IdError, NodeId};

const MEMBERS_FILE: &str = "members.json";

/// Devices of a cluster at most, removed ones included.
pub(crate) const MEMBERS_MAX: usize = 1024;

/// Why a member list cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MembersError {
    /// The folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The file is no member list.
    #[error("the member list cannot be understood")]
    Format(#[source] serde_json::Error),
    /// An id in it is none.
    #[error("the member list names '{}'", text.escape_debug())]
    Id {
        /// What stands where an id should.
        text: String,
        /// Why it is none.
        #[source]
        source: IdError,
    },
    /// It is full.
    #[error("a cluster has at most {MEMBERS_MAX} members, removed ones included")]
    Full,
    /// No such member.
    #[error("no member is called '{}'; `motley nodes` lists them", name.escape_debug())]
    Unknown {
        /// The name or id asked for.
        name: String,
    },
    /// Several members answer to it.
    #[error("several members are called '{}'; give the id", name.escape_debug())]
    Ambiguous {
        /// The name asked for.
        name: String,
    },
}

/// One device that was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    /// When it was let in, by the clock of the device with the authority.
    pub(crate) added_unix_s: u64,
    /// Whether it was put out again.
    pub(crate) removed: bool,
    /// Whether it is to get no layers, though it stays a member.
    pub(crate) drained: bool,
}

/// What the list says about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Member,
    Removed,
    Unknown,
}

/// All devices that were ever let in. Each change raises the revision; of two lists of one cluster
/// the one with the higher revision holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberList {
    revision: u64,
    members: Vec<Member>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListFile {
    revision: u64,
    members: Vec<MemberEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberEntry {
    id: String,
    name: String,
    added_unix_s: u64,
    removed: bool,
    #[serde(default)]
    drained: bool,
}

impl MemberList {
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    pub(crate) fn standing(&self, id: &NodeId) -> Standing {
        match self.members.iter().find(|member| member.id == *id) {
            None => Standing::Unknown,
            Some(member) if member.removed => Standing::Removed,
            Some(_) => Standing::Member,
        }
    }

    /// Lets a device in, again if it was removed. A name that another member has gets a number.
    pub(crate) fn add(
        &mut self,
        id: NodeId,
        name: &str,
        now_unix_s: u64,
    ) -> Result<(), MembersError> {
        let known = self.members.iter().position(|member| member.id == id);
        if known.is_none() && self.members.len() >= MEMBERS_MAX {
            return Err(MembersError::Full);
        }
        if let Some(position) = known {
            self.members.remove(position);
        }
        let name = self.free_name(name);
        self.members.push(Member {
            id,
            name,
            added_unix_s: now_unix_s,
            removed: false,
            drained: false,
        });
        self.revision += 1;
        Ok(())
    }

    /// Puts a device out. From the next look at the list on it may not speak.
    pub(crate) fn remove(&mut self, id: &NodeId) -> Result<(), MembersError> {
        let found = self.members.iter_mut().find(|member| member.id == *id && !member.removed);
        let Some(member) = found else {
            return Err(MembersError::Unknown { name: id.short() });
        };
        member.removed = true;
        self.revision += 1;
        Ok(())
    }

    /// Says whether a present member is to get no layers.
    pub(crate) fn drain(&mut self, id: &NodeId, drained: bool) -> Result<(), MembersError> {
        let found = self.members.iter_mut().find(|member| member.id == *id && !member.removed);
        let Some(member) = found else {
            return Err(MembersError::Unknown { name: id.short() });
        };
        if member.drained != drained {
            member.drained = drained;
            self.revision += 1;
        }
        Ok(())
    }

    /// The present member with this name, or whose id begins with this text.
    pub(crate) fn find(&self, text: &str) -> Result<&Member, MembersError> {
        let present = || self.members.iter().filter(|member| !member.removed);
        let by_id = |member: &&Member| text.len() >= 4 && member.id.to_string().starts_with(text);
        let mut named = present().filter(|member| member.name == text);
        let mut starting = present().filter(by_id);
        let found = named.next().map(|m| (m, named.next()));
        match found.or_else(|| starting.next().map(|m| (m, starting.next()))) {
            Some((member, None)) => Ok(member),
            Some((_, Some(_))) => Err(MembersError::Ambiguous { name: text.to_owned() }),
            None => Err(MembersError::Unknown { name: text.to_owned() }),
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let entry = |member: &Member| MemberEntry {
            id: member.id.to_string(),
            name: member.name.clone(),
            added_unix_s: member.added_unix_s,
            removed: member.removed,
            drained: member.drained,
        };
        let members = self.members.iter().map(entry).collect();
        let file = ListFile { revision: self.revision, members };
        serde_json::to_vec_pretty(&file).expect("texts and numbers become JSON")
    }

    pub(crate) fn from_json(json: &[u8]) -> Result<Self, MembersError> {
        let file: ListFile = serde_json::from_slice(json).map_err(MembersError::Format)?;
        if file.members.len() > MEMBERS_MAX {
            return Err(MembersError::Full);
        }
        let member = |entry: MemberEntry| match entry.id.parse() {
            Ok(id) => Ok(Member {
                id,
                name: entry.name,
                added_unix_s: entry.added_unix_s,
                removed: entry.removed,
                drained: entry.drained,
            }),
            Err(source) => Err(MembersError::Id { text: entry.id, source }),
        };
        let members = file.members.into_iter().map(member).collect::<Result<_, _>>()?;
        Ok(Self { revision: file.revision, members })
    }

    pub(crate) fn load(folder: &StateFolder) -> Result<Self, MembersError> {
        folder.read(MEMBERS_FILE)?.map_or(Ok(Self::default()), |json| Self::from_json(&json))
    }

    /// Keeps the list. To change it, hold the folder's lock from loading to saving.
    pub(crate) fn save(&self, folder: &StateFolder) -> Result<(), MembersError> {
        Ok(folder.write(MEMBERS_FILE, &self.to_json())?)
    }

    fn free_name(&self, wanted: &str) -> String {
        let taken = |name: &str| self.members.iter().any(|m| !m.removed && m.name == name);
        if !taken(wanted) {
            return wanted.to_owned();
        }
        // Among more names than members one is free.
        (2..=MEMBERS_MAX + 2)
            .map(|number| format!("{wanted}-{number}"))
            .find(|name| !taken(name))
            .unwrap_or_else(|| wanted.to_owned())
    }
}

/// The member list as it is on disk now: what another process changes holds at the next question.
#[derive(Debug)]
pub(crate) struct Roster {
    folder: StateFolder,
    path: PathBuf,
    seen: RwLock<(Option<Stamp>, MemberList)>,
}

/// What tells one version of a file from the next; a replaced file is another inode with its own
/// time.
type Stamp = (Option<SystemTime>, u64, u64);

impl Roster {
    pub(crate) fn new(folder: &StateFolder) -> Self {
        let path = folder.file(MEMBERS_FILE);
        Self { folder: folder.clone(), path, seen: RwLock::new((None, MemberList::default())) }
    }

    /// What the list says about a device. Nobody is a member while the list cannot be read.
    pub(crate) fn standing(&self, id: &NodeId) -> Standing {
        self.list().map_or(Standing::Unknown, |list| list.standing(id))
    }

    /// The list.
    pub(crate) fn list(&self) -> Result<MemberList, MembersError> {
        let stamp = stamp(&self.path);
        {
            let seen = self.seen.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            if stamp.is_some() && seen.0 == stamp {
                return Ok(seen.1.clone());
            }
        }
        // The stamp is older than what is read now: a change in between is seen next time.
        let list = MemberList::load(&self.folder)?;
        let mut seen = self.seen.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        *seen = (stamp, list.clone());
        Ok(list)
    }
}

fn stamp(path: &std::path::Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let inode = 0;
    Some((metadata.modified().ok(), metadata.len(), inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seed: u8) -> NodeId {
        NodeId::from_bytes([seed; 32])
    }

    #[test]
    fn a_list_survives_json_and_each_change_is_a_revision() {
        let mut list = MemberList::default();
        list.add(id(1), "nas", 5).unwrap();
        list.add(id(2), "nas", 6).unwrap();
        list.remove(&id(1)).unwrap();
        assert_eq!(list.revision(), 3);
        assert_eq!(list.standing(&id(1)), Standing::Removed);
        assert_eq!(list.standing(&id(2)), Standing::Member);
        assert_eq!(list.standing(&id(3)), Standing::Unknown);
        assert_eq!(list.members()[1].name, "nas-2");
        assert_eq!(MemberList::from_json(&list.to_json()).unwrap(), list);
        assert!(list.remove(&id(1)).is_err(), "it is already out");
        list.add(id(1), "nas", 7).unwrap();
        assert_eq!(list.standing(&id(1)), Standing::Member);
    }

    #[test]
    fn a_drained_member_stays_one_until_it_is_removed() {
        let mut list = MemberList::default();
        list.add(id(1), "nas", 5).unwrap();
        list.drain(&id(1), true).unwrap();
        assert_eq!(list.revision(), 2);
        list.drain(&id(1), true).unwrap();
        assert_eq!(list.revision(), 2, "nothing has changed");
        assert_eq!(list.standing(&id(1)), Standing::Member);
        assert_eq!(MemberList::from_json(&list.to_json()).unwrap(), list);
        list.remove(&id(1)).unwrap();
        assert!(list.drain(&id(1), false).is_err(), "it is out");
        list.add(id(1), "nas", 7).unwrap();
        assert!(!list.members()[0].drained, "who joins again gets layers again");
        let older = br#"{"revision":1,"members":[]}"#;
        assert!(MemberList::from_json(older).is_ok());
    }

    #[test]
    fn members_are_found_by_name_or_by_the_start_of_their_id() {
        let mut list = MemberList::default();
        list.add(id(0xa1), "nas", 5).unwrap();
        list.add(id(0xa2), "pi", 5).unwrap();
        assert_eq!(list.find("pi").unwrap().id, id(0xa2));
        assert_eq!(list.find("a1a1").unwrap().id, id(0xa1));
        assert!(matches!(list.find("a"), Err(MembersError::Unknown { .. })));
        assert!(matches!(list.find("mac"), Err(MembersError::Unknown { .. })));
    }

    #[test]
    fn what_another_process_changes_holds_at_once() {
        let outer = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(outer.path()).unwrap();
        let roster = Roster::new(&folder);
        assert_eq!(roster.standing(&id(1)), Standing::Unknown);
        let mut list = MemberList::default();
        list.add(id(1), "nas", 5).unwrap();
        list.save(&folder).unwrap();
        assert_eq!(roster.standing(&id(1)), Standing::Member);
        list.remove(&id(1)).unwrap();
        list.save(&folder).unwrap();
        assert_eq!(roster.standing(&id(1)), Standing::Removed);
        folder.write(MEMBERS_FILE, b"{").unwrap();
        assert_eq!(roster.standing(&id(1)), Standing::Unknown);
    }
}
