//! What this device can do with a model: measured, or as a file says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use motley_cluster::DeviceProfile;
use motley_engine::Model;
use motley_model::ModelDirectory;
use motley_ring::{
    ControlMessage, LinkMeasured, Peer, ProfileJson, Survey, SurveyFailed,
    Surveyed as SurveyedMessage, Text,
};

use super::dial::Dialler;
use super::fetcher::Fetcher;
use super::place::Surveyed;
use crate::failure::Failure;
use crate::plan;
use crate::profile::{self, Effort};
use crate::terminal;

/// Where this device's profile comes from.
#[derive(Clone, Debug)]
pub(crate) enum ProfileSource {
    /// Somebody wrote it down.
    Written(Box<DeviceProfile>),
    /// It is measured so.
    Measured(Box<profile::Options>),
}

impl ProfileSource {
    /// From a file, if there is one; else from measuring, as long as whoever starts a device will
    /// wait for it, with so many threads and so much memory of each GPU.
    ///
    /// # Errors
    /// When the file cannot be read or says what cannot be; the message names the field.
    pub(crate) fn new(
        file: Option<&Path>,
        models: Option<PathBuf>,
        threads: Option<usize>,
        gpu_memory_bytes: Option<u64>,
    ) -> Result<Self, Failure> {
        Ok(match file {
            Some(path) => Self::Written(Box::new(plan::read_document(path)?)),
            None => {
                let options = profile::Options::new(models, threads, Effort::Joining)?;
                Self::Measured(Box::new(profile::Options { gpu_memory_bytes, ..options }))
            }
        })
    }

    /// How far predictions for a model were wrong when it was served last, by device; nothing for
    /// a profile that somebody wrote down.
    pub(super) fn kept_corrections(&self, model_name: &str) -> BTreeMap<String, f64> {
        match self {
            Self::Written(_) => BTreeMap::new(),
            Self::Measured(options) => profile::kept_corrections(options, model_name),
        }
    }

    /// Keeps that for the next time.
    pub(super) fn keep_corrections(&self, model_name: &str, factors: &BTreeMap<String, f64>) {
        if let Self::Measured(options) = self {
            profile::keep_corrections(options, model_name, factors);
        }
    }

    /// The profile with tables of a model as far as it is known without measuring; nothing where the
    /// device was not measured with the model yet.
    pub(super) fn known(&self, model_name: &str, directory: &ModelDirectory) -> Option<Surveyed> {
        let options = match self {
            Self::Written(device) => {
                return Some(Surveyed { measured: false, device: DeviceProfile::clone(device) });
            }
            Self::Measured(options) => {
                profile::Options { effort: Effort::Quick, ..profile::Options::clone(options) }
            }
        };
        let tables = profile::kept_tables(&options, model_name, directory);
        if tables.is_empty() {
            return None;
        }
        let mut device = profile::kept_device(&options)?;
        for tables in tables {
            device = tables.merged_into(&device).ok()?;
        }
        Some(Surveyed { measured: true, device })
    }

    /// The profile with tables of a model, of which only the metadata need be at the place that
    /// `metadata` gives; it is not asked for where nothing is measured.
    ///
    /// # Errors
    /// When the device cannot be measured, or the model is not to be had.
    pub(super) fn survey(
        &self,
        model_name: &str,
        metadata: impl FnOnce() -> anyhow::Result<PathBuf>,
    ) -> anyhow::Result<Surveyed> {
        let options = match self {
            Self::Written(device) => {
                return Ok(Surveyed { measured: false, device: DeviceProfile::clone(device) });
            }
            Self::Measured(options) => options,
        };
        let model = Model::open(&metadata()?)?;
        terminal::note("measuring this device ...\n");
        let device = profile::device(options, &mut |_| {})?.device;
        let tables = profile::all_tables(options, model_name, model.directory())?;
        if let Some(note) = tables.iter().find_map(|tables| tables.note.as_ref()) {
            terminal::note(&format!("{note}\n"));
        }
        let device = tables.into_iter().try_fold(device, |device, it| it.merged_into(&device))?;
        Ok(Surveyed { measured: true, device })
    }
}

/// A member's answer to a survey.
pub(super) fn answer(source: &ProfileSource, survey: &Survey, fetcher: &Fetcher) -> ControlMessage {
    let model = survey.model.digest;
    let measured = || -> anyhow::Result<ProfileJson> {
        let name = plan::profile_name(survey.model.name.as_str());
        Ok(source.survey(&name, || fetcher.metadata())?.to_json()?)
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
pub(super) fn link_to(dialler: &Dialler, peer: &Peer) -> ControlMessage {
    let measured = dialler.measure(peer).map_err(anyhow::Error::from);
    if let Err(error) = &measured {
        let node = crate::identity::NodeId::from_bytes(peer.node.0).short();
        terminal::note(&format!("the way to {node} cannot be measured: {error:#}\n"));
    }
    ControlMessage::LinkMeasured(LinkMeasured { to: peer.node, quality: measured.ok() })
}
