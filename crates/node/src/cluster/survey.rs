//! What this device can do with a model: measured, or as a file says.

use std::path::{Path, PathBuf};

use motley_cluster::DeviceProfile;
use motley_ring::{
    ClusterId, ControlMessage, LinkMeasured, Peer, ProfileJson, Survey, SurveyFailed,
    Surveyed as SurveyedMessage, Text,
};

use super::dial::dial;
use super::fetcher::Fetcher;
use super::place::Surveyed;
use super::probing;
use super::wire::MessageConnection;
use crate::failure::Failure;
use crate::plan;
use crate::terminal;
use crate::transport::Endpoint;

/// Where this device's profile comes from.
#[derive(Clone, Debug)]
pub(crate) enum ProfileSource {
    /// Somebody wrote it down.
    Written(Box<DeviceProfile>),
    /// It is measured.
    Measured,
}

/// What a device is asked about itself.
#[derive(Clone, Debug)]
pub(crate) struct SurveyQuestion {
    /// What the model is called in tables.
    pub(crate) model_name: String,
    /// Tokens of context that a sequence may have.
    pub(crate) context_tokens: u32,
    /// Rows of a micro-batch.
    pub(crate) batch_rows_max: u32,
    /// Threads that compute.
    pub(crate) threads: usize,
}

impl ProfileSource {
    /// From a file, if there is one.
    ///
    /// # Errors
    /// When it cannot be read or says what cannot be; the message names the field.
    pub(crate) fn new(file: Option<&Path>) -> Result<Self, Failure> {
        Ok(match file {
            Some(path) => Self::Written(Box::new(plan::read_document(path)?)),
            None => Self::Measured,
        })
    }

    /// Whether nothing of the model is needed for it.
    pub(super) fn is_written(&self) -> bool {
        matches!(self, Self::Written(_))
    }

    /// The profile with tables of the model whose metadata lie at `path`.
    ///
    /// # Errors
    /// When the device cannot be measured.
    pub(super) fn survey(
        &self,
        _path: &Path,
        _question: &SurveyQuestion,
    ) -> anyhow::Result<Surveyed> {
        match self {
            Self::Written(device) => {
                Ok(Surveyed { measured: false, device: DeviceProfile::clone(device) })
            }
            Self::Measured => anyhow::bail!("this build cannot measure devices"),
        }
    }
}

/// A member's answer to a survey.
pub(super) fn answer(
    source: &ProfileSource,
    survey: &Survey,
    fetcher: &Fetcher,
    threads: usize,
) -> ControlMessage {
    let model = survey.model.digest;
    let measured = || -> anyhow::Result<ProfileJson> {
        let path = if source.is_written() { PathBuf::new() } else { fetcher.metadata()? };
        let question = SurveyQuestion {
            model_name: plan::profile_name(&survey.model.name.to_string()),
            context_tokens: survey.context_tokens,
            batch_rows_max: survey.batch_rows_max,
            threads,
        };
        Ok(source.survey(&path, &question)?.to_json()?)
    };
    match measured() {
        Ok(profile) => ControlMessage::Surveyed(Box::new(SurveyedMessage { model, profile })),
        Err(error) => {
            terminal::note(&format!("this device cannot be measured: {error:#}\n"));
            let cause = Text::cut(&format!("{error:#}"));
            ControlMessage::SurveyFailed(SurveyFailed { model, cause })
        }
    }
}

/// Measures the way to another node, for the head.
pub(super) fn link_to(endpoint: &Endpoint, peer: &Peer) -> ControlMessage {
    let cluster = ClusterId(endpoint.identity().cluster().prefix());
    let measured = dial(endpoint, peer)
        .map_err(anyhow::Error::from)
        .and_then(|connection| Ok(probing::measure(MessageConnection::new(connection, cluster))?));
    if let Err(error) = &measured {
        let node = crate::identity::NodeId::from_bytes(peer.node.0).short();
        terminal::note(&format!("the way to {node} cannot be measured: {error:#}\n"));
    }
    ControlMessage::LinkMeasured(LinkMeasured { to: peer.node, quality: measured.ok() })
}
