//! Brings a model, or the part of it that is needed, to a member.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use motley_model::ModelDirectory;
use motley_ring::{ModelManifestRef, Peer};

use super::dial::Dialler;
use super::shelf::{Holding, RemoteShelf, Shelf, Shelved};
use super::wire::MessageConnection;
use crate::blocks::{
    BlockSource, DISK_RESERVE_BYTES_DEFAULT, Disk, Filled, Manifest, PartialModel, Progress,
    WantedParts, blocks_for, fetch, find_local, metadata_blocks, model_roots,
};
use crate::terminal;

/// Between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Brings parts of one model here.
pub(super) struct Fetcher {
    pub(super) dialler: Arc<Dialler>,
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
        let shelved = self.shelved()?;
        let _alone = shelved.fill_alone();
        self.fill_metadata(&shelved)?;
        Ok(path(&shelved))
    }

    /// Where the model lies, with at least the blocks of `parts`. What does not pass `admit` is not
    /// fetched.
    pub(super) fn parts(
        &self,
        parts: &WantedParts,
        admit: impl Fn(&ModelDirectory) -> anyhow::Result<()>,
        report: &dyn Fn(Progress),
    ) -> anyhow::Result<PathBuf> {
        let shelved = self.shelved()?;
        let _alone = shelved.fill_alone();
        self.fill_metadata(&shelved)?;
        let directory = shelved.with(|holding| holding.directory())?;
        admit(&directory)?;
        let manifest = shelved.with(|holding| Arc::clone(holding.manifest()));
        let wanted = blocks_for(&manifest, &directory, parts);
        if is_local(&shelved) {
            if is_whole(&shelved, &wanted)? {
                return Ok(path(&shelved));
            }
            let damaged = path(&shelved);
            terminal::note(&format!("{} is damaged; its layers are fetched\n", damaged.display()));
            let begun = self.begin_partial(&manifest)?;
            shelved.with(|holding| *holding = begun);
            self.fill_metadata(&shelved)?;
        }
        self.fill(&shelved, &wanted, Some(report))?;
        Ok(path(&shelved))
    }

    /// A copy on this device, or one of blocks that is begun.
    fn shelved(&self) -> anyhow::Result<Arc<Shelved>> {
        if let Some(shelved) = self.shelf.get(&self.model.digest) {
            return Ok(shelved);
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
        let (cluster, own) = (self.dialler.cluster(), self.dialler.node());
        let peers = self.sources.iter().filter(|peer| peer.node != own);
        peers
            .filter_map(|peer| {
                let connection = self.dialler.dial(peer).ok()?;
                let name = connection.peer_address().ok()?.to_string();
                let connection = MessageConnection::new(connection, cluster);
                Some(RemoteShelf::new(name, self.model.digest, connection))
            })
            .collect()
    }

    /// Fetches the metadata if it is not here.
    fn fill_metadata(&self, shelved: &Shelved) -> anyhow::Result<()> {
        if is_local(shelved) {
            return Ok(());
        }
        let blocks = shelved.with(|holding| metadata_blocks(holding.manifest()));
        self.fill(shelved, &blocks, None)
    }

    /// Fetches what is missing of `blocks`, and tells how far that is.
    fn fill(
        &self,
        shelved: &Shelved,
        blocks: &BTreeSet<usize>,
        report: Option<&dyn Fn(Progress)>,
    ) -> anyhow::Result<()> {
        let mut filled = Filling(shelved);
        if filled.with(|partial| blocks.iter().all(|block| partial.has(*block))) {
            return Ok(());
        }
        let sources: Vec<Box<dyn BlockSource>> = self
            .open_sources()
            .into_iter()
            .map(|source| Box::new(source) as Box<dyn BlockSource>)
            .collect();
        let mut told = Instant::now();
        let done = fetch(&mut filled, blocks, sources, |progress: Progress| {
            let last = progress.done_bytes == progress.total_bytes;
            if let Some(report) = report
                && (last || told.elapsed() >= PROGRESS_INTERVAL)
            {
                told = Instant::now();
                report(progress);
            }
        })?;
        if report.is_some() {
            let (bytes, from) = (terminal::bytes(done.bytes), words(&done.bytes_by_source));
            terminal::note(&format!("fetched {bytes} of the model: {from}\n"));
        }
        Ok(())
    }
}

/// A model of blocks on the shelf, which is only locked for single blocks.
struct Filling<'s>(&'s Shelved);

impl Filled for Filling<'_> {
    fn with<T>(&mut self, action: impl FnOnce(&mut PartialModel) -> T) -> T {
        self.0.with(|holding| match holding {
            Holding::Partial(partial) => action(partial),
            Holding::Local(_) => unreachable!("a whole copy is not filled"),
        })
    }
}

fn is_local(shelved: &Shelved) -> bool {
    shelved.with(|holding| matches!(holding, Holding::Local(_)))
}

fn path(shelved: &Shelved) -> PathBuf {
    shelved.with(|holding| holding.path().to_owned())
}

/// Whether a copy has the right content in these blocks. They are compared one by one, so that
/// others need not wait.
fn is_whole(shelved: &Shelved, blocks: &BTreeSet<usize>) -> anyhow::Result<bool> {
    for block in blocks {
        let one = BTreeSet::from([*block]);
        let wrong = shelved.with(|holding| match holding {
            Holding::Local(local) => local.verify(&one, |_| {}),
            Holding::Partial(_) => unreachable!("asked of whole copies only"),
        })?;
        if !wrong.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How much came from whom.
fn words(bytes_by_source: &BTreeMap<String, u64>) -> String {
    let part = |(name, bytes): (&String, &u64)| format!("{} from {name}", terminal::bytes(*bytes));
    bytes_by_source.iter().map(part).collect::<Vec<_>>().join(", ")
}
