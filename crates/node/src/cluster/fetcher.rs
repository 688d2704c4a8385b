//! Brings a model, or the part of it that is needed, to a member.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use motley_model::ModelDirectory;
use motley_ring::{ClusterId, ModelManifestRef, NodeId, Peer};

use super::dial::dial;
use super::shelf::{Holding, RemoteShelf, Shelf};
use super::wire::MessageConnection;
use crate::blocks::{
    BlockSource, DISK_RESERVE_BYTES_DEFAULT, Disk, Manifest, PartialModel, Progress, WantedParts,
    blocks_for, fetch, find_local, metadata_blocks, model_roots,
};
use crate::terminal;
use crate::transport::Endpoint;

/// Between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Brings parts of one model here.
pub(super) struct Fetcher {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) shelf: Arc<Shelf>,
    /// Folder where a copy may lie.
    pub(super) models: Option<PathBuf>,
    /// Where fetched blocks are kept.
    pub(super) store: PathBuf,
    pub(super) model: ModelManifestRef,
    /// Nodes that have it.
    pub(super) sources: Vec<Peer>,
}

impl Fetcher {
    /// Where the model lies, with at least its metadata.
    pub(super) fn metadata(&self) -> anyhow::Result<PathBuf> {
        let holding = self.holding()?;
        let mut holding = holding.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *holding {
            Holding::Local(local) => Ok(local.path().to_owned()),
            Holding::Partial(partial) => {
                self.fill(partial, &metadata_blocks(&Arc::clone(partial.manifest())), None)?;
                Ok(partial.path().to_owned())
            }
        }
    }

    /// Where the model lies, with at least the blocks of `parts`. What does not pass `admit` is not
    /// fetched.
    pub(super) fn parts(
        &self,
        parts: &WantedParts,
        admit: impl Fn(&ModelDirectory) -> anyhow::Result<()>,
        report: &dyn Fn(Progress),
    ) -> anyhow::Result<PathBuf> {
        let holding = self.holding()?;
        let mut holding = holding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Holding::Local(local) = &mut *holding {
            let directory = local.directory()?;
            admit(&directory)?;
            let wanted = blocks_for(&Arc::clone(local.manifest()), &directory, parts);
            if local.verify(&wanted, |_| {})?.is_empty() {
                return Ok(local.path().to_owned());
            }
            terminal::note(&format!(
                "{} is damaged; its layers are fetched\n",
                local.path().display()
            ));
            let manifest = Arc::clone(local.manifest());
            *holding = self.begin_partial(&manifest)?;
        }
        let Holding::Partial(partial) = &mut *holding else { unreachable!("replaced above") };
        self.fill(partial, &metadata_blocks(&Arc::clone(partial.manifest())), None)?;
        let directory = partial.directory()?;
        admit(&directory)?;
        let wanted = blocks_for(&Arc::clone(partial.manifest()), &directory, parts);
        self.fill(partial, &wanted, Some(report))?;
        Ok(partial.path().to_owned())
    }

    /// A copy on this device, or one of blocks that is begun.
    fn holding(&self) -> anyhow::Result<Arc<Mutex<Holding>>> {
        if let Some(holding) = self.shelf.get(&self.model.digest) {
            return Ok(holding);
        }
        let manifest = self.manifest()?;
        if let Some(local) = find_local(&manifest, &model_roots(self.models.as_deref())) {
            return Ok(self.shelf.put(Holding::Local(local)));
        }
        Ok(self.shelf.put(self.begin_partial(&manifest)?))
    }

    fn begin_partial(&self, manifest: &Arc<Manifest>) -> anyhow::Result<Holding> {
        let disk = Disk::with_reserve(DISK_RESERVE_BYTES_DEFAULT);
        Ok(Holding::Partial(PartialModel::open(&self.store, Arc::clone(manifest), disk)?))
    }

    /// The model's manifest, from the first source that has it.
    fn manifest(&self) -> anyhow::Result<Arc<Manifest>> {
        let mut last = anyhow::anyhow!("no device that has the model was named");
        for mut source in self.open_sources() {
            let name = source.name();
            let found = source.manifest().map_err(anyhow::Error::from).and_then(|encoded| {
                let manifest = Manifest::decode(&encoded.context("it does not have the model")?)?;
                let digest = *manifest.digest().as_bytes();
                anyhow::ensure!(digest == self.model.digest.0, "it sent another manifest");
                Ok(manifest)
            });
            match found {
                Ok(manifest) => return Ok(Arc::new(manifest)),
                Err(error) => last = error.context(name),
            }
        }
        Err(last.context("cannot get the model's manifest"))
    }

    /// Connections to the devices that have the model.
    fn open_sources(&self) -> Vec<RemoteShelf> {
        let cluster = ClusterId(self.endpoint.identity().cluster().prefix());
        let own = NodeId(*self.endpoint.identity().node().as_bytes());
        let peers = self.sources.iter().filter(|peer| peer.node != own);
        peers
            .filter_map(|peer| {
                let connection = dial(&self.endpoint, peer).ok()?;
                let connection = MessageConnection::new(connection, cluster);
                let name = peer.addresses.first().map(ToString::to_string).unwrap_or_default();
                Some(RemoteShelf::new(name, self.model.digest, connection))
            })
            .collect()
    }

    /// Fetches what is missing of `blocks`, and tells how far that is.
    fn fill(
        &self,
        partial: &mut PartialModel,
        blocks: &BTreeSet<usize>,
        report: Option<&dyn Fn(Progress)>,
    ) -> anyhow::Result<()> {
        if blocks.iter().all(|block| partial.has(*block)) {
            return Ok(());
        }
        let sources: Vec<Box<dyn BlockSource>> = self
            .open_sources()
            .into_iter()
            .map(|source| Box::new(source) as Box<dyn BlockSource>)
            .collect();
        let mut told = Instant::now();
        let done = fetch(partial, blocks, sources, |progress: Progress| {
            let last = progress.done_bytes == progress.total_bytes;
            if let Some(report) = report
                && (last || told.elapsed() >= PROGRESS_INTERVAL)
            {
                told = Instant::now();
                report(progress);
            }
        })?;
        if report.is_some() {
            terminal::note(&format!("fetched {} of the model\n", terminal::bytes(done.bytes)));
        }
        Ok(())
    }
}
