//! A device joins: the messages of `identity` over a connection that shows the right cluster.
//!
//! Each message is preceded by its length as 32 bits, little-endian.

use super::connect::{ConnectError, open};
use super::connection::{Connection, ReceiveError, SendError};
use super::endpoint::{Endpoint, applicant_client};
use super::handshake::HandshakeError;
use super::limits;
use super::socket::Deadline;
use crate::identity::{
    Applicant, ENROL_REQUEST_BYTES_MAX, EnrolError, EnrolRequest, GRANT_BYTES_MAX, Grant, Identity,
    IdentityError, JoinToken, MemberList, MembersError, MessageError, NodeId, Refusal, StateError,
    StateFolder, TokenAddress, TokenBook, TokenBookError, decode_answer, encode_answer, enrol,
};

/// Why a device could not join.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// The token has no address.
    #[error("the join token names no address; make another with `motley token new --address HOST`")]
    NoAddress,
    /// Nobody of the cluster could be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection ended too early.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The connection ended too early.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// The cluster refused, or made no sense.
    #[error(transparent)]
    Enrol(#[from] EnrolError),
    /// What was granted cannot be kept.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Why an applicant got no answer, or was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeApplicantError {
    /// It sent nothing that makes sense.
    #[error("an applicant sent no request")]
    Receive(#[from] ReceiveError),
    /// It went away.
    #[error("an applicant did not wait for the answer")]
    Send(#[from] SendError),
    /// It was refused.
    #[error("an applicant was refused")]
    Enrol(#[from] EnrolError),
    /// The lists cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The list of tokens cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokenBookError),
    /// The member list cannot be used.
    #[error(transparent)]
    Members(#[from] MembersError),
}

/// Joins the token's cluster as `name` and keeps the new identity in `folder`. The addresses of
/// the token are tried in their order.
pub(crate) fn join(
    token: &JoinToken,
    name: &str,
    folder: &StateFolder,
    now_unix_s: u64,
) -> Result<Identity, JoinError> {
    if let Some(identity) = Identity::load(folder)? {
        let cluster = identity.cluster();
        return Err(IdentityError::AlreadyMember { cluster }.into());
    }
    let applicant = Applicant::new(name)?;
    let request = applicant.request(token)?.encode();
    let mut last = JoinError::NoAddress;
    for address in &token.addresses {
        match ask(address, token, &request, now_unix_s) {
            Ok(grant) => {
                return Ok(Identity::from_grant(folder, &applicant, &grant, &token.cluster)?);
            }
            // A cluster's refusal is the same at all its addresses.
            Err(JoinError::Enrol(error)) => return Err(error.into()),
            // That somebody answered for another cluster says more than that nobody did.
            Err(_) if matches!(last, JoinError::Connect(ConnectError::WrongCluster { .. })) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn ask(
    address: &TokenAddress,
    token: &JoinToken,
    request: &[u8],
    now_unix_s: u64,
) -> Result<Grant, JoinError> {
    let deadline = Deadline::after(limits::HANDSHAKE_TIMEOUT);
    let config = applicant_client(token.cluster, now_unix_s)
        .map_err(|error| super::connect::of_handshake(HandshakeError::Tls(error), address))?;
    let (stream, tls) = open(address, config, deadline)?;
    let mut connection = Connection::new(stream, tls);
    send_message(&mut connection, request)?;
    let answer = receive_message(&mut connection, GRANT_BYTES_MAX)?.map_err(EnrolError::from)?;
    Ok(decode_answer(&answer).map_err(EnrolError::from)?.map_err(EnrolError::from)?)
}

/// Answers an applicant at the door of `endpoint`, whose lists lie in `folder`. Whoever is let in
/// is on the member list before it hears so.
pub(crate) fn serve_applicant(
    mut connection: Connection,
    endpoint: &Endpoint,
    folder: &StateFolder,
) -> Result<NodeId, ServeApplicantError> {
    let request = receive_message(&mut connection, ENROL_REQUEST_BYTES_MAX)?;
    let outcome = request
        .and_then(|bytes| EnrolRequest::decode(&bytes))
        .map_err(|error| EnrolError::from(error).into())
        .and_then(|request| consider(&request, endpoint, folder));
    let answer = match &outcome {
        Ok(grant) => Ok(grant.clone()),
        Err(ServeApplicantError::Enrol(error)) => Err(error.refusal()),
        Err(_) => Err(Refusal::Internal),
    };
    send_message(&mut connection, &encode_answer(&answer))?;
    let grant = outcome?;
    // It has what it asked for; which side closes first does not matter.
    let _ = connection.split().1.finish(limits::ENROLMENT_TIMEOUT);
    // The newest member is the last of the list.
    grant
        .members
        .members()
        .last()
        .map(|member| member.id)
        .ok_or_else(|| ServeApplicantError::Enrol(EnrolError::Refused(Refusal::Internal)))
}

fn consider(
    request: &EnrolRequest,
    endpoint: &Endpoint,
    folder: &StateFolder,
) -> Result<Grant, ServeApplicantError> {
    let authority = endpoint.identity().authority();
    let authority = authority.ok_or(EnrolError::Refused(Refusal::NoAuthority))?;
    let _lock = folder.lock()?;
    let mut tokens = TokenBook::load(folder)?;
    let mut members = MemberList::load(folder)?;
    let grant = enrol(request, authority, &mut tokens, &mut members, endpoint.now_unix_s())?;
    // In this order a crash in between spends a use and lets nobody in.
    tokens.save(folder)?;
    members.save(folder)?;
    Ok(grant)
}

fn send_message(connection: &mut Connection, message: &[u8]) -> Result<(), SendError> {
    let length = u32::try_from(message.len()).expect("messages are far shorter than 4 GiB");
    let (_, sender) = connection.halves();
    sender.send(&[&length.to_le_bytes(), message], limits::ENROLMENT_TIMEOUT)
}

fn receive_message(
    connection: &mut Connection,
    bytes_max: usize,
) -> Result<Result<Vec<u8>, MessageError>, ReceiveError> {
    let (receiver, _) = connection.halves();
    let mut length = [0; 4];
    receiver.receive(&mut length, limits::ENROLMENT_TIMEOUT)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > bytes_max {
        return Ok(Err(MessageError::Damaged));
    }
    let mut message = vec![0; length];
    receiver.receive(&mut message, limits::ENROLMENT_TIMEOUT)?;
    Ok(Ok(message))
}
