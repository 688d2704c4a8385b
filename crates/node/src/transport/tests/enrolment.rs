//! From a token to a member, over a real connection (T-22).

use super::*;
use crate::identity::{EnrolError, IdentityError, JoinToken, Refusal, Secret};
use crate::transport::enrolment::ServeApplicantError;

/// A cluster whose door answers applicants.
struct Cluster {
    first: Device,
    listener: Listener,
    served: Receiver<Result<NodeId, String>>,
}

impl Cluster {
    fn new() -> Self {
        let first = Device::first();
        let endpoint = first.endpoint(Standing::Member, NOW);
        let (folder, serving) = (first.folder.clone(), Arc::clone(&endpoint));
        let (done, served) = mpsc::sync_channel(16);
        let listener = Listener::start(loopback(), endpoint, move |arrival| {
            let Arrival::Applicant(connection) = arrival else { return };
            let outcome = serve_applicant(connection, &serving, &folder);
            let chain = |error: ServeApplicantError| {
                let error = anyhow::Error::from(error);
                format!("{error:#}")
            };
            let _ = done.try_send(outcome.map_err(chain));
        });
        Self { first, listener: listener.unwrap(), served }
    }

    fn token(&self, now: u64, uses: u32) -> JoinToken {
        let mut book = TokenBook::load(&self.first.folder).unwrap();
        let secret = book.create(now, 60, uses).unwrap().0;
        book.save(&self.first.folder).unwrap();
        let cluster = self.first.identity.cluster();
        JoinToken { cluster, secret, addresses: vec![address(&self.listener)] }
    }

    fn check_refused(&self, token: &JoinToken, refusal: Refusal) {
        let (_outer, folder) = state();
        match join(token, "second", &folder, NOW) {
            Err(JoinError::Enrol(EnrolError::Refused(told))) => assert_eq!(told, refusal),
            other => panic!("expected {refusal:?}, found {other:?}"),
        }
        let logged = self.served.recv_timeout(PATIENCE).unwrap().unwrap_err();
        assert_eq!(logged, format!("an applicant was refused: {refusal}"));
        assert!(Identity::load(&folder).unwrap().is_none(), "nothing is kept");
    }
}

#[test]
fn a_token_makes_a_member_that_is_let_in() {
    let cluster = Cluster::new();
    let (_outer, folder) = state();
    let token: JoinToken = cluster.token(NOW, 1).to_text().parse().unwrap();
    let identity = join(&token, "second", &folder, NOW).unwrap();
    assert_eq!(cluster.served.recv_timeout(PATIENCE).unwrap(), Ok(identity.node()));
    assert_eq!(identity.cluster(), cluster.first.identity.cluster());
    let members = MemberList::load(&folder).unwrap();
    assert_eq!(members, MemberList::load(&cluster.first.folder).unwrap());
    assert_eq!(members.find("second").unwrap().id, identity.node());
    let kept = Identity::load(&folder).unwrap().unwrap();
    let endpoint = Endpoint::with(&kept, Arc::new(|_| Standing::Member), Arc::new(|| NOW)).unwrap();
    let first = cluster.first.node();
    connect(&address(&cluster.listener), Some(first), &endpoint, PATIENCE).unwrap();
    let again = join(&token, "second", &folder, NOW).unwrap_err();
    assert!(matches!(again, JoinError::Identity(IdentityError::AlreadyMember { .. })), "{again}");
}

#[test]
fn wrong_used_and_expired_tokens_are_told_apart_on_both_sides() {
    let cluster = Cluster::new();
    let mut wrong = cluster.token(NOW, 1);
    wrong.secret = Secret::from_bytes([0; 32]);
    cluster.check_refused(&wrong, Refusal::WrongToken);
    cluster.check_refused(&cluster.token(NOW - 60, 1), Refusal::Expired);
    let once = cluster.token(NOW, 1);
    let (_outer, folder) = state();
    join(&once, "second", &folder, NOW).unwrap();
    cluster.served.recv_timeout(PATIENCE).unwrap().unwrap();
    cluster.check_refused(&once, Refusal::Used);
}

#[test]
fn a_token_of_another_cluster_gives_nothing_away() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let mut token = other.token(NOW, 1);
    token.addresses = vec![address(&cluster.listener)];
    let (_outer, folder) = state();
    let error = join(&token, "second", &folder, NOW).unwrap_err();
    assert!(matches!(error, JoinError::Connect(ConnectError::WrongCluster { .. })), "{error}");
    // The applicant went away before it sent its secret.
    assert!(cluster.served.try_recv().is_err());
    assert_eq!(cluster.listener.counters().applicants(), 0);
    // At the right door the token is still good.
    token.addresses.push(address(&other.listener));
    join(&token, "second", &folder, NOW).unwrap();
}

#[test]
fn a_member_without_authority_says_so() {
    let first = Device::first();
    let second = Device::joined(&first, "second", NOW);
    let endpoint = second.endpoint(Standing::Member, NOW);
    let (folder, serving) = (second.folder.clone(), Arc::clone(&endpoint));
    let listener = Listener::start(loopback(), endpoint, move |arrival| {
        let Arrival::Applicant(connection) = arrival else { return };
        let _ = serve_applicant(connection, &serving, &folder);
    });
    let listener = listener.unwrap();
    let token = JoinToken {
        cluster: first.identity.cluster(),
        secret: Secret::from_bytes([1; 32]),
        addresses: vec![address(&listener)],
    };
    let (_outer, folder) = state();
    let error = join(&token, "third", &folder, NOW).unwrap_err();
    assert!(
        matches!(error, JoinError::Enrol(EnrolError::Refused(Refusal::NoAuthority))),
        "{error}"
    );
}

#[test]
fn clocks_of_1970_and_2100_can_join() {
    let cluster = Cluster::new();
    for unix_s in [0, 4_102_444_800] {
        let clock = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s);
        let (_outer, folder) = state();
        let now = crate::identity::trusted_unix_s(clock);
        join(&cluster.token(NOW, 1), "second", &folder, now).unwrap();
    }
}
