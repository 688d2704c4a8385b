//! How a device becomes a member: pure functions of both sides, and the bytes between them.
//!
//! The connection has already shown the applicant that the other side belongs to the cluster of its
//! token, so the secret can be sent. The applicant signs its request with the key that it wants a
//! certificate for, so that nobody enrols another's key.

use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};
use rustls::SignatureScheme;
use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};

use super::authority::{
    Authority, AuthorityError, NODE_NAME_CHARACTERS_MAX, NodePublicKey, check_name, public_key,
};
use super::ids::ClusterId;
use super::members::{MemberList, MembersError};
use super::token::{JoinToken, Secret};
use super::token_book::{Rejection, TokenBook};

const REQUEST_MAGIC: [u8; 4] = *b"MTEQ";
const ANSWER_MAGIC: [u8; 4] = *b"MTEA";
const VERSION: u16 = 1;
const SIGNED_CONTEXT: &[u8] = b"motley enrolment 1";

/// Bytes of a request at most: magic, version, secret, key, signature, length and name.
pub(crate) const ENROL_REQUEST_BYTES_MAX: usize =
    4 + 2 + 32 + 32 + 64 + 1 + NODE_NAME_CHARACTERS_MAX;

/// Bytes of an answer at most: two certificates and a full member list.
pub(crate) const GRANT_BYTES_MAX: usize = 1 << 20;

/// Bytes of a certificate at most; ours have some 400.
const CERTIFICATE_BYTES_MAX: usize = 4096;

/// Why bytes are no message of an enrolment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    /// Another protocol.
    #[error("the other side speaks another protocol; check the address")]
    Magic,
    /// Another version of this one.
    #[error(
        "the other side speaks version {version} of joining, this program {VERSION}; update the older of the two"
    )]
    Version {
        /// What it speaks.
        version: u16,
    },
    /// It ends too early, goes on too long, or says what cannot be.
    #[error("the other side sent a damaged message; try again")]
    Damaged,
}

/// Why a device was not let in, as both sides are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// No invitation has this secret.
    #[error("the join token is unknown here or was revoked; make one with `motley token new`")]
    WrongToken,
    /// It was used as often as it may.
    #[error("the join token was used up; make another with `motley token new`")]
    Used,
    /// Its time is over.
    #[error(
        "the join token has expired, or the clock of the device that made it was set back; \
         make another with `motley token new`"
    )]
    Expired,
    /// The device asked is a member, but has no authority.
    #[error("this device cannot let others in; use the address of the one that began the cluster")]
    NoAuthority,
    /// A name that none can have.
    #[error("the device's name is not allowed: use letters, digits, '.', '_' and '-'")]
    Name,
    /// Signed with another key than the one in it.
    #[error("the request's signature is wrong; try again, and update motley if it stays so")]
    Signature,
    /// The list is full.
    #[error("the cluster has as many members as it can; remove some with `motley nodes rm`")]
    Full,
    /// Trouble on the other side, which its log tells.
    #[error("the other device could not complete it; see its messages")]
    Internal,
}

/// Why a device did not become a member.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnrolError {
    /// The cluster refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The bytes make no sense.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// What was granted belongs to another cluster or key.
    #[error("the answer belongs to another cluster than the token; make a token on the right one")]
    WrongCluster,
    /// No certificate or key could be made.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The member list could not be changed.
    #[error(transparent)]
    Members(#[from] MembersError),
}

impl EnrolError {
    /// What the applicant is told; inner troubles stay here.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Refused(refusal) => *refusal,
            Self::Members(MembersError::Full) => Refusal::Full,
            _ => Refusal::Internal,
        }
    }
}

/// What a device asks for.
#[derive(Clone, Debug)]
pub(crate) struct EnrolRequest {
    secret: Secret,
    public_key: NodePublicKey,
    signature: [u8; 64],
    name: String,
}

/// What a new member gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) leaf: CertificateDer<'static>,
    pub(crate) authority: CertificateDer<'static>,
    pub(crate) members: MemberList,
}

/// A device that asks to be let in, with its new key.
pub(crate) struct Applicant {
    key: KeyPair,
    name: String,
}

impl Applicant {
    /// Makes a key.
    ///
    /// # Errors
    /// When `name` is not allowed or no key can be made.
    pub(crate) fn new(name: &str) -> Result<Self, EnrolError> {
        if !check_name(name) {
            return Err(Refusal::Name.into());
        }
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(AuthorityError::from)?;
        Ok(Self { key, name: name.to_owned() })
    }

    pub(crate) fn key_der(&self) -> &[u8] {
        self.key.serialized_der()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The request to send to a device of the token's cluster.
    pub(crate) fn request(&self, token: &JoinToken) -> Result<EnrolRequest, EnrolError> {
        let public_key = public_key(&self.key);
        let signed = signed_bytes(&token.cluster, &token.secret, &public_key, &self.name);
        let signature = self.key.sign(&signed).map_err(AuthorityError::from)?;
        let signature = signature.try_into().map_err(|_| MessageError::Damaged)?;
        Ok(EnrolRequest {
            secret: token.secret.clone(),
            public_key,
            signature,
            name: self.name.clone(),
        })
    }
}

impl std::fmt::Debug for Applicant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Applicant").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Lets a device in if its secret is that of an open invitation. Both lists are changed only if
/// everything succeeds; the caller keeps them.
pub(crate) fn enrol(
    request: &EnrolRequest,
    authority: &Authority,
    tokens: &mut TokenBook,
    members: &mut MemberList,
    now_unix_s: u64,
) -> Result<Grant, EnrolError> {
    if !check_name(&request.name) {
        return Err(Refusal::Name.into());
    }
    let cluster = authority.cluster_id();
    let signed = signed_bytes(&cluster, &request.secret, &request.public_key, &request.name);
    verify_signature(&request.public_key, &signed, &request.signature)?;
    let mut new_tokens = tokens.clone();
    let mut new_members = members.clone();
    new_tokens.redeem(&request.secret, now_unix_s).map_err(|rejection| match rejection {
        Rejection::Wrong => Refusal::WrongToken,
        Rejection::Used => Refusal::Used,
        Rejection::Expired => Refusal::Expired,
    })?;
    let leaf = authority.issue(&request.public_key, now_unix_s)?;
    new_members.add(request.public_key.node_id(), &request.name, now_unix_s)?;
    *tokens = new_tokens;
    *members = new_members;
    Ok(Grant { leaf, authority: authority.certificate().clone(), members: members.clone() })
}

fn signed_bytes(
    cluster: &ClusterId,
    secret: &Secret,
    public_key: &NodePublicKey,
    name: &str,
) -> Vec<u8> {
    let mut bytes = SIGNED_CONTEXT.to_vec();
    bytes.extend(cluster.as_bytes());
    bytes.extend(Sha256::digest(secret.hash()));
    bytes.extend(public_key.0);
    bytes.extend(name.as_bytes());
    bytes
}

fn verify_signature(key: &NodePublicKey, signed: &[u8], signature: &[u8]) -> Result<(), Refusal> {
    let known = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    let ed25519 = known.mapping.iter().find(|(scheme, _)| *scheme == SignatureScheme::ED25519);
    let algorithm =
        ed25519.and_then(|(_, algorithms)| algorithms.first()).ok_or(Refusal::Internal)?;
    algorithm.verify_signature(&key.0, signed, signature).map_err(|_| Refusal::Signature)
}

impl EnrolRequest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = header(REQUEST_MAGIC);
        bytes.extend(self.secret.as_bytes());
        bytes.extend(self.public_key.0);
        bytes.extend(self.signature);
        // `Applicant::new` and `decode` let no longer names through.
        bytes.push(u8::try_from(self.name.len()).unwrap_or(u8::MAX));
        bytes.extend(self.name.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        if bytes.len() > ENROL_REQUEST_BYTES_MAX {
            return Err(MessageError::Damaged);
        }
        let mut rest = checked_header(bytes, REQUEST_MAGIC)?;
        let secret = Secret::from_bytes(take(&mut rest)?);
        let public_key = NodePublicKey(take(&mut rest)?);
        let signature = take(&mut rest)?;
        let [length] = take(&mut rest)?;
        if rest.len() != usize::from(length) {
            return Err(MessageError::Damaged);
        }
        let name = std::str::from_utf8(rest).map_err(|_| MessageError::Damaged)?;
        Ok(Self { secret, public_key, signature, name: name.to_owned() })
    }
}

const REFUSALS: [Refusal; 8] = [
    Refusal::WrongToken,
    Refusal::Used,
    Refusal::Expired,
    Refusal::NoAuthority,
    Refusal::Name,
    Refusal::Signature,
    Refusal::Full,
    Refusal::Internal,
];

/// The answer as bytes: a status, 0 for a grant, else the number of the refusal.
pub(crate) fn encode_answer(answer: &Result<Grant, Refusal>) -> Vec<u8> {
    let mut bytes = header(ANSWER_MAGIC);
    match answer {
        Ok(grant) => {
            bytes.push(0);
            let members = grant.members.to_json();
            for part in [grant.leaf.as_ref(), grant.authority.as_ref(), &members] {
                let length = u32::try_from(part.len()).expect("far shorter than 4 GiB");
                bytes.extend(length.to_le_bytes());
                bytes.extend(part);
            }
        }
        Err(refusal) => {
            let position = REFUSALS.iter().position(|known| known == refusal);
            let number = position.and_then(|position| u8::try_from(position + 1).ok());
            bytes.push(number.expect("every refusal is listed"));
        }
    }
    bytes
}

/// The answer that bytes hold.
pub(crate) fn decode_answer(bytes: &[u8]) -> Result<Result<Grant, Refusal>, MessageError> {
    if bytes.len() > GRANT_BYTES_MAX {
        return Err(MessageError::Damaged);
    }
    let mut rest = checked_header(bytes, ANSWER_MAGIC)?;
    let [status] = take(&mut rest)?;
    if let Some(position) = usize::from(status).checked_sub(1) {
        // A newer program may have more reasons.
        return Ok(Err(REFUSALS.get(position).copied().unwrap_or(Refusal::Internal)));
    }
    let leaf = take_part(&mut rest, CERTIFICATE_BYTES_MAX)?.to_vec().into();
    let authority = take_part(&mut rest, CERTIFICATE_BYTES_MAX)?.to_vec().into();
    let members = take_part(&mut rest, GRANT_BYTES_MAX)?;
    let members = MemberList::from_json(members).map_err(|_| MessageError::Damaged)?;
    if !rest.is_empty() {
        return Err(MessageError::Damaged);
    }
    Ok(Ok(Grant { leaf, authority, members }))
}

fn header(magic: [u8; 4]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes
}

fn checked_header(bytes: &[u8], magic: [u8; 4]) -> Result<&[u8], MessageError> {
    let mut rest = bytes;
    if take::<4>(&mut rest)? != magic {
        return Err(MessageError::Magic);
    }
    match u16::from_le_bytes(take(&mut rest)?) {
        VERSION => Ok(rest),
        version => Err(MessageError::Version { version }),
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], MessageError> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(MessageError::Damaged)?;
    *rest = left;
    Ok(*taken)
}

fn take_part<'b>(rest: &mut &'b [u8], bytes_max: usize) -> Result<&'b [u8], MessageError> {
    let length = u32::from_le_bytes(take(rest)?) as usize;
    if length > bytes_max {
        return Err(MessageError::Damaged);
    }
    let (part, left) = rest.split_at_checked(length).ok_or(MessageError::Damaged)?;
    *rest = left;
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::super::RELEASED_UNIX_S as NOW;
    use super::super::Standing;
    use super::*;

    struct Cluster {
        authority: Authority,
        tokens: TokenBook,
        members: MemberList,
    }

    impl Cluster {
        fn new() -> Self {
            let authority = Authority::create().unwrap();
            Self { authority, tokens: TokenBook::default(), members: MemberList::default() }
        }

        fn token(&mut self, uses: u32) -> JoinToken {
            let secret = self.tokens.create(NOW, 60, uses).unwrap().0;
            JoinToken { cluster: self.authority.cluster_id(), secret, addresses: Vec::new() }
        }

        fn answer(&mut self, request: &[u8], now: u64) -> Result<Grant, Refusal> {
            let request = EnrolRequest::decode(request).unwrap();
            let Self { authority, tokens, members } = self;
            let answer = enrol(&request, authority, tokens, members, now);
            let answer = answer.map_err(|error| error.refusal());
            decode_answer(&encode_answer(&answer)).unwrap()
        }
    }

    #[test]
    fn an_invited_device_becomes_a_member_once() {
        let mut cluster = Cluster::new();
        let token = cluster.token(1);
        let applicant = Applicant::new("nas").unwrap();
        let request = applicant.request(&token).unwrap().encode();
        let grant = cluster.answer(&request, NOW).unwrap();
        assert_eq!(grant.members.standing(&public_key(&applicant.key).node_id()), Standing::Member);
        assert_eq!(&grant.authority, cluster.authority.certificate());
        assert_eq!(cluster.answer(&request, NOW), Err(Refusal::Used));
    }

    #[test]
    fn wrong_secrets_keys_and_names_are_refused_and_spend_nothing() {
        let mut cluster = Cluster::new();
        let token = cluster.token(1);
        let applicant = Applicant::new("nas").unwrap();
        let good = applicant.request(&token).unwrap();
        let mut wrong = token.clone();
        wrong.secret = Secret::from_bytes([0; 32]);
        let request = applicant.request(&wrong).unwrap().encode();
        assert_eq!(cluster.answer(&request, NOW), Err(Refusal::WrongToken));
        let other_key = public_key(&Applicant::new("pi").unwrap().key);
        let stolen = EnrolRequest { public_key: other_key, ..good.clone() };
        assert_eq!(cluster.answer(&stolen.encode(), NOW), Err(Refusal::Signature));
        let renamed = EnrolRequest { name: "../etc".into(), ..good.clone() };
        assert_eq!(cluster.answer(&renamed.encode(), NOW), Err(Refusal::Name));
        assert_eq!(cluster.answer(&good.encode(), NOW + 60), Err(Refusal::Expired));
        assert!(cluster.members.members().is_empty());
        assert!(cluster.answer(&good.encode(), NOW).is_ok());
    }

    #[test]
    fn damaged_messages_are_refused() {
        let mut cluster = Cluster::new();
        let token = cluster.token(1);
        let request = Applicant::new("nas").unwrap().request(&token).unwrap().encode();
        for length in 0..request.len() {
            assert!(EnrolRequest::decode(&request[..length]).is_err(), "{length} bytes");
        }
        let error = |bytes: &[u8]| EnrolRequest::decode(bytes).unwrap_err();
        assert_eq!(error(b"GET / HTTP/1.1"), MessageError::Magic);
        assert_eq!(error(&[request.as_slice(), b"x"].concat()), MessageError::Damaged);
        assert_eq!(error(b"MTEQ\x02\x00"), MessageError::Version { version: 2 });
        let answer = encode_answer(&cluster.answer(&request, NOW));
        for length in 0..answer.len() {
            assert!(decode_answer(&answer[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn every_refusal_survives_the_wire() {
        for refusal in REFUSALS {
            assert_eq!(decode_answer(&encode_answer(&Err(refusal))), Ok(Err(refusal)));
        }
        let newer = [b"MTEA\x01\x00".as_slice(), &[200]].concat();
        assert_eq!(decode_answer(&newer), Ok(Err(Refusal::Internal)));
    }
}
