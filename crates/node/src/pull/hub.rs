//! What a hub says of a repository: its files, their lengths and checksums.

use serde::Deserialize;

use super::address::{Address, AddressError, encode_segment};
use super::check::is_sha256;
use super::client::{Ask, Client};
use super::pick::{PickError, pick};
use super::source::{FileNameError, HubModel};
use super::transfer::{FetchError, Wanted, refusal};

/// Where models are, unless `HF_ENDPOINT` says otherwise.
pub(super) const ENDPOINT: &str = "https://huggingface.co";

/// Bytes of a hub's answer at most; ten thousand files take some three million.
const LISTING_BYTES_MAX: usize = 16 << 20;

/// Why the hub's list is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum HubError {
    /// It gave none.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// It is no list.
    #[error("the hub's answer about {repository} is no list of files")]
    Listing {
        repository: String,
        #[source]
        source: serde_json::Error,
    },
    /// It goes on and on.
    #[error("the hub's answer about {repository} has more than {LISTING_BYTES_MAX} bytes")]
    TooLong { repository: String },
    /// A revision is a commit, and nothing that leads elsewhere.
    #[error("the hub names no commit of {repository}")]
    Revision { repository: String },
    /// None of the files is the one.
    #[error(transparent)]
    Pick(#[from] PickError),
    /// It has a name that no folder is to hold.
    #[error("cannot keep a file of {repository}")]
    FileName {
        repository: String,
        #[source]
        source: FileNameError,
    },
    /// It cannot be asked for.
    #[error("cannot ask the hub for {repository}")]
    Address {
        repository: String,
        #[source]
        source: AddressError,
    },
}

/// The files of a model, at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<Wanted>,
}

#[derive(Deserialize)]
struct Repository {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
    size: Option<u64>,
}

/// Asks the hub which files a model has.
pub(super) async fn list(
    client: &Client,
    endpoint: &Address,
    model: &HubModel,
    revision: &str,
) -> Result<Listing, HubError> {
    let repository = || model.repository.clone();
    let at = |path: &str| {
        let base = endpoint.path().trim_end_matches('/');
        endpoint
            .join(&format!("{base}/{path}"))
            .map_err(|source| HubError::Address { repository: repository(), source })
    };
    let revision = encode_segment(revision);
    let question = at(&format!("api/models/{}/revision/{revision}?blobs=true", model.repository))?;
    let mut answer = client.get(&question, &Ask::default()).await.map_err(FetchError::from)?;
    if !answer.status.is_success() {
        return Err(refusal(&answer, client).into());
    }
    let text = answer.text(LISTING_BYTES_MAX).await.map_err(FetchError::from)?;
    let text = text.ok_or_else(|| HubError::TooLong { repository: repository() })?;
    let found: Repository = serde_json::from_slice(&text)
        .map_err(|source| HubError::Listing { repository: repository(), source })?;
    if found.sha.len() != 40 || !found.sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(HubError::Revision { repository: repository() });
    }
    let paths = found.siblings.iter().map(|sibling| sibling.rfilename.as_str());
    let mut files = Vec::new();
    for path in pick(paths, model.variant.as_deref())? {
        let sibling = found.siblings.iter().find(|sibling| sibling.rfilename == path);
        let lfs = sibling.and_then(|sibling| sibling.lfs.as_ref());
        let name = path.rsplit('/').next().unwrap_or(path);
        let encoded: Vec<String> = path.split('/').map(encode_segment).collect();
        let place = format!("{}/resolve/{}/{}", model.repository, found.sha, encoded.join("/"));
        files.push(Wanted {
            address: at(&place)?,
            name: name
                .parse()
                .map_err(|source| HubError::FileName { repository: repository(), source })?,
            bytes: lfs.and_then(|lfs| lfs.size).or(sibling.and_then(|sibling| sibling.size)),
            sha256: lfs.map(|lfs| lfs.sha256.to_lowercase()).filter(|text| is_sha256(text)),
        });
    }
    Ok(Listing { commit: found.sha, files })
}
