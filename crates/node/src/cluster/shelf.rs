//! Models that this device can give to others, block by block.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use motley_model::ModelDirectory;
use motley_ring::{Block, ControlMessage, FetchBlock, Manifest as ManifestMessage, ModelDigest};

use super::wire::{MessageConnection, WireError};
use crate::blocks::{BlockSource, LocalModel, Manifest, PartialError, PartialModel, SourceError};

/// How long a connection for blocks may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A model of which blocks can be read.
pub(crate) enum Holding {
    /// A whole copy.
    Local(LocalModel),
    /// Some blocks.
    Partial(PartialModel),
}

impl Holding {
    /// What the model's files hold.
    pub(crate) fn manifest(&self) -> &Arc<Manifest> {
        match self {
            Self::Local(model) => model.manifest(),
            Self::Partial(model) => model.manifest(),
        }
    }

    /// The file to open the model with; of several the first.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Local(model) => model.path(),
            Self::Partial(model) => model.path(),
        }
    }

    /// What the model is; its metadata must be here.
    ///
    /// # Errors
    /// When the metadata cannot be read or is of no model that can be run.
    pub(crate) fn directory(&self) -> Result<ModelDirectory, PartialError> {
        match self {
            Self::Local(model) => model.directory(),
            Self::Partial(model) => model.directory(),
        }
    }

    fn read(&mut self, index: usize) -> Option<Vec<u8>> {
        let read = match self {
            Self::Local(model) => model.read_block(index),
            Self::Partial(model) => model.read_block(index),
        };
        // What cannot be read is not here; whoever asked will find it elsewhere.
        read.ok().flatten()
    }
}

/// A model on a shelf. It gives blocks to others also while it is filled.
pub(crate) struct Shelved {
    holding: Mutex<Holding>,
    filling: Mutex<()>,
}

impl Shelved {
    /// Does something with the model. Others wait meanwhile, so that it should not take long.
    pub(crate) fn with<T>(&self, action: impl FnOnce(&mut Holding) -> T) -> T {
        action(&mut self.holding.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until nobody else fills the model.
    pub(crate) fn fill_alone(&self) -> MutexGuard<'_, ()> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All models of this device, by their digests.
#[derive(Default)]
pub(crate) struct Shelf(Mutex<BTreeMap<ModelDigest, Arc<Shelved>>>);

impl Shelf {
    /// Puts a model on the shelf.
    pub(crate) fn put(&self, holding: Holding) -> Arc<Shelved> {
        let digest = ModelDigest(*holding.manifest().digest().as_bytes());
        let shelved = Arc::new(Shelved { holding: Mutex::new(holding), filling: Mutex::default() });
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        models.insert(digest, Arc::clone(&shelved));
        shelved
    }

    /// A model.
    pub(crate) fn get(&self, digest: &ModelDigest) -> Option<Arc<Shelved>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(digest).map(Arc::clone)
    }

    /// Answers requests for blocks until the connection ends. The first has been received.
    ///
    /// # Errors
    /// When the connection breaks, or something else than a request comes.
    pub(crate) fn serve(
        &self,
        mut connection: MessageConnection,
        mut request: ControlMessage,
    ) -> Result<(), WireError> {
        loop {
            match request {
                ControlMessage::FetchManifest(fetch) => {
                    self.send_manifest(fetch.model, &mut connection)?
                }
                ControlMessage::FetchBlock(fetch) => self.send_block(fetch, &mut connection)?,
                other => {
                    let (expected, found) = ("fetch_block", other.name());
                    return Err(WireError::Unexpected { expected, found });
                }
            }
            match connection.receiver.receive(SILENCE_MAX, true) {
                Ok(Some((next, _))) => request = next,
                // Silent for so long, or gone: it has what it wanted.
                Ok(None) | Err(WireError::Receive(_)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn send_manifest(
        &self,
        model: ModelDigest,
        connection: &mut MessageConnection,
    ) -> Result<(), WireError> {
        let manifest = self.get(&model).map(|it| it.with(|it| Arc::clone(it.manifest())));
        let encoded = manifest.map(|manifest| manifest.encode());
        let raw = encoded.unwrap_or_default();
        let bytes = u32::try_from(raw.len()).unwrap_or(u32::MAX);
        let message = ControlMessage::Manifest(ManifestMessage { model, bytes });
        connection.sender.send(&message, &raw)
    }

    fn send_block(
        &self,
        fetch: FetchBlock,
        connection: &mut MessageConnection,
    ) -> Result<(), WireError> {
        let shelved = self.get(&fetch.model);
        let block = shelved.and_then(|it| it.with(|holding| holding.read(fetch.index as usize)));
        match block {
            Some(raw) => {
                let FetchBlock { model, index } = fetch;
                let bytes = u32::try_from(raw.len()).unwrap_or(u32::MAX);
                let message = ControlMessage::Block(Block { model, index, bytes });
                connection.sender.send(&message, &raw)
            }
            None => connection.sender.send(&ControlMessage::NoBlock(fetch), &[]),
        }
    }
}

/// Another device that gives blocks of one model.
pub(crate) struct RemoteShelf {
    name: String,
    model: ModelDigest,
    connection: MessageConnection,
    /// The block that was asked for ahead.
    asked: Option<usize>,
}

/// How long a device may take to read and send one block.
const BLOCK_PATIENCE: Duration = Duration::from_secs(30);

impl RemoteShelf {
    /// Blocks of `model` over a connection to a device called `name`.
    pub(crate) fn new(name: String, model: ModelDigest, connection: MessageConnection) -> Self {
        Self { name, model, connection, asked: None }
    }

    /// The model's manifest; nothing if the device does not have it.
    ///
    /// # Errors
    /// When the connection breaks or something else comes.
    pub(crate) fn manifest(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        let ask = ControlMessage::FetchManifest(motley_ring::FetchManifest { model: self.model });
        self.connection.sender.send(&ask, &[])?;
        match self.connection.receiver.expect(BLOCK_PATIENCE, true)? {
            (ControlMessage::Manifest(_), raw) => Ok((!raw.is_empty()).then_some(raw)),
            (other, _) => Err(WireError::Unexpected { expected: "manifest", found: other.name() }),
        }
    }

    fn ask(&mut self, index: usize) -> Result<(), WireError> {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let ask = ControlMessage::FetchBlock(FetchBlock { model: self.model, index });
        self.connection.sender.send(&ask, &[])
    }

    fn answer(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        match self.connection.receiver.expect(BLOCK_PATIENCE, true)? {
            (ControlMessage::Block(_), raw) => Ok(Some(raw)),
            (ControlMessage::NoBlock(_), _) => Ok(None),
            (other, _) => Err(WireError::Unexpected { expected: "block", found: other.name() }),
        }
    }
}

impl BlockSource for RemoteShelf {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn fetch(&mut self, index: usize, next: Option<usize>) -> Result<Vec<u8>, SourceError> {
        let failed = |error: WireError| SourceError::Failed(error.into());
        // An answer to what is not wanted any more is read and forgotten.
        if self.asked.take_if(|asked| *asked != index).is_some() {
            self.answer().map_err(failed)?;
        }
        if self.asked.take().is_none() {
            self.ask(index).map_err(failed)?;
        }
        if let Some(next) = next {
            self.ask(next).map_err(failed)?;
            self.asked = Some(next);
        }
        self.answer().map_err(failed)?.ok_or(SourceError::Missing)
    }
}
