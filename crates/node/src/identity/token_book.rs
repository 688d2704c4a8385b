//! The invitations that are open: made, listed, revoked, used. Of each secret only the hash is kept.
//!
//! An invitation's time is measured by the clock of the device that made it, as [`trusted_unix_s`]
//! reads it, and by no other. If that clock is set back behind the moment at which the invitation was
//! made, its age is unknown and it counts as expired: making another takes one command.
//!
//! [`trusted_unix_s`]: super::trusted_unix_s

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use super::folder::{StateError, StateFolder};
use super::node::random_bytes;
use super::token::Secret;

const TOKENS_FILE: &str = "tokens.json";

/// Invitations kept at most, spent ones included.
pub(crate) const TOKENS_MAX: usize = 256;

/// How far the clock may be set back without ending an invitation, as time services do.
const CLOCK_STEP_S: u64 = 300;

/// How long a spent or expired invitation is still told from an unknown one: 30 days.
const REMEMBERED_S: u64 = 30 * 86_400;

/// Why the list of invitations cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenBookError {
    /// The folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The file is no list of invitations.
    #[error("the list of tokens cannot be understood")]
    Format(#[source] serde_json::Error),
    /// It is full.
    #[error("there are {TOKENS_MAX} tokens; remove some with `motley token rm`")]
    Full,
    /// No such invitation.
    #[error("there is no token '{}'; `motley token ls` lists them", id.escape_debug())]
    Unknown {
        /// The id asked for.
        id: String,
    },
    /// The system has no randomness.
    #[error("the system gives no random numbers")]
    Random,
}

/// Why a secret opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    Wrong,
    Used,
    Expired,
}

/// Whether an invitation can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvitationState {
    Open,
    Used,
    Expired,
}

/// One invitation, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Invitation {
    /// Names it in lists; it tells nothing about the secret.
    pub(crate) id: String,
    secret_sha256: String,
    pub(crate) created_unix_s: u64,
    pub(crate) expires_unix_s: u64,
    pub(crate) uses_max: u32,
    pub(crate) uses: u32,
}

impl Invitation {
    pub(crate) fn state(&self, now_unix_s: u64) -> InvitationState {
        let set_back = now_unix_s + CLOCK_STEP_S < self.created_unix_s;
        if self.uses >= self.uses_max {
            InvitationState::Used
        } else if set_back || now_unix_s >= self.expires_unix_s {
            InvitationState::Expired
        } else {
            InvitationState::Open
        }
    }
}

/// All invitations of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenBook {
    invitations: Vec<Invitation>,
}

impl TokenBook {
    pub(crate) fn load(folder: &StateFolder) -> Result<Self, TokenBookError> {
        match folder.read_private(TOKENS_FILE)? {
            Some(json) => serde_json::from_slice(&json).map_err(TokenBookError::Format),
            None => Ok(Self::default()),
        }
    }

    /// Keeps the list. To change it, hold the folder's lock from loading to saving.
    pub(crate) fn save(&self, folder: &StateFolder) -> Result<(), TokenBookError> {
        let json = serde_json::to_vec_pretty(self).expect("texts and numbers become JSON");
        Ok(folder.write(TOKENS_FILE, &json)?)
    }

    pub(crate) fn invitations(&self) -> &[Invitation] {
        &self.invitations
    }

    /// Makes an invitation for `uses_max` devices and `ttl_s` seconds, and gives its secret, which
    /// is not kept.
    pub(crate) fn create(
        &mut self,
        now_unix_s: u64,
        ttl_s: u64,
        uses_max: u32,
    ) -> Result<(Secret, &Invitation), TokenBookError> {
        let old = |it: &Invitation| {
            it.state(now_unix_s) != InvitationState::Open
                && it.expires_unix_s.saturating_add(REMEMBERED_S) < now_unix_s
        };
        self.invitations.retain(|invitation| !old(invitation));
        if self.invitations.len() >= TOKENS_MAX {
            return Err(TokenBookError::Full);
        }
        let secret = Secret::from_bytes(random_bytes().ok_or(TokenBookError::Random)?);
        let id: [u8; 3] = random_bytes().ok_or(TokenBookError::Random)?;
        self.invitations.push(Invitation {
            id: format!("t{}", HEXLOWER.encode(&id)),
            secret_sha256: HEXLOWER.encode(&secret.hash()),
            created_unix_s: now_unix_s,
            expires_unix_s: now_unix_s.saturating_add(ttl_s),
            uses_max,
            uses: 0,
        });
        Ok((secret, self.invitations.last().expect("one was just added")))
    }

    /// Revokes an invitation. Who joined with it stays a member.
    pub(crate) fn remove(&mut self, id: &str) -> Result<(), TokenBookError> {
        let count = self.invitations.len();
        self.invitations.retain(|invitation| invitation.id != id);
        match self.invitations.len() == count {
            true => Err(TokenBookError::Unknown { id: id.to_owned() }),
            false => Ok(()),
        }
    }

    /// Uses an invitation once, if the secret is that of an open one.
    pub(crate) fn redeem(&mut self, secret: &Secret, now_unix_s: u64) -> Result<(), Rejection> {
        let hash = HEXLOWER.encode(&secret.hash());
        let mut found = None;
        // Every entry is compared, each in constant time, so that time tells nothing about a secret.
        for invitation in &mut self.invitations {
            if bool::from(invitation.secret_sha256.as_bytes().ct_eq(hash.as_bytes())) {
                found = Some(invitation);
            }
        }
        let invitation = found.ok_or(Rejection::Wrong)?;
        match invitation.state(now_unix_s) {
            InvitationState::Open => {
                invitation.uses += 1;
                Ok(())
            }
            InvitationState::Used => Err(Rejection::Used),
            InvitationState::Expired => Err(Rejection::Expired),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = super::super::RELEASED_UNIX_S + 1_000_000;
    const DAY_S: u64 = 86_400;

    #[test]
    fn an_invitation_opens_as_often_as_it_says() {
        let mut book = TokenBook::default();
        let secret = book.create(NOW, DAY_S, 2).unwrap().0;
        assert_eq!(book.redeem(&Secret::from_bytes([1; 32]), NOW), Err(Rejection::Wrong));
        assert_eq!(book.redeem(&secret, NOW), Ok(()));
        assert_eq!(book.redeem(&secret, NOW + 5), Ok(()));
        assert_eq!(book.redeem(&secret, NOW + 5), Err(Rejection::Used));
    }

    #[test]
    fn an_invitation_ends_with_its_time_or_a_clock_set_back() {
        let mut book = TokenBook::default();
        let secret = book.create(NOW, DAY_S, 9).unwrap().0;
        assert_eq!(book.redeem(&secret, NOW - CLOCK_STEP_S), Ok(()));
        assert_eq!(book.redeem(&secret, NOW + DAY_S - 1), Ok(()));
        assert_eq!(book.redeem(&secret, NOW + DAY_S), Err(Rejection::Expired));
        assert_eq!(book.redeem(&secret, NOW - CLOCK_STEP_S - 1), Err(Rejection::Expired));
    }

    #[test]
    fn a_revoked_invitation_is_unknown_and_old_ones_are_forgotten() {
        let mut book = TokenBook::default();
        let (secret, invitation) = book.create(NOW, DAY_S, 9).unwrap();
        let id = invitation.id.clone();
        book.remove(&id).unwrap();
        assert_eq!(book.redeem(&secret, NOW), Err(Rejection::Wrong));
        assert!(matches!(book.remove(&id), Err(TokenBookError::Unknown { .. })));
        book.create(NOW, DAY_S, 1).unwrap();
        book.create(NOW + DAY_S + REMEMBERED_S + 1, DAY_S, 1).unwrap();
        assert_eq!(book.invitations().len(), 1);
    }

    #[test]
    fn the_file_holds_no_secret() {
        let outer = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(outer.path()).unwrap();
        let mut book = TokenBook::default();
        let secret = book.create(NOW, DAY_S, 1).unwrap().0;
        book.save(&folder).unwrap();
        assert_eq!(TokenBook::load(&folder).unwrap(), book);
        let kept = String::from_utf8(folder.read(TOKENS_FILE).unwrap().unwrap()).unwrap();
        assert!(!kept.contains(&HEXLOWER.encode(secret.as_bytes())));
    }
}
