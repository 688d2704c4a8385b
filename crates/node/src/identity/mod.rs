//! Who this device is and who may speak to it: the cluster's authority, keys, certificates, the
//! member list and invitations. It reads and writes one folder and knows no socket and no frame.
//!
//! Start at [`Identity::load_or_create_cluster`] for the first device of a cluster, and at
//! [`Applicant`] for every other.

mod authority;
mod clock;
mod enrol;
mod folder;
mod ids;
mod members;
mod node;
mod token;
mod token_book;

pub(crate) use authority::check_name;
#[cfg(test)]
pub(crate) use clock::RELEASED_UNIX_S;
pub(crate) use clock::trusted_unix_s;
pub(crate) use enrol::{
    Applicant, ENROL_REQUEST_BYTES_MAX, EnrolError, EnrolRequest, GRANT_BYTES_MAX, Grant,
    MessageError, Refusal, decode_answer, encode_answer, enrol,
};
pub(crate) use folder::{StateError, StateFolder};
pub(crate) use ids::{ClusterId, NodeId};
pub(crate) use members::{Member, MemberList, MembersError, Roster, Standing};
pub(crate) use node::{
    Identity, IdentityError, authority_id, host_name, node_of, random_bytes, verify_leaf,
};
#[cfg(test)]
pub(crate) use token::Secret;
pub(crate) use token::{JoinToken, TokenAddress};
pub(crate) use token_book::{Invitation, InvitationState, TokenBook, TokenBookError};
