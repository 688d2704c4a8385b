//! The pieces of an engine: in memory for good, or only while they are used.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use motley_ggml::{Arena, Backend, MappedFile, Region, TensorError, TensorSet, TensorSpec};
use motley_model::TensorInfo;

use crate::engine::StepError;
use crate::graphs::WindowGraph;
use crate::stream::StreamOptions;
use crate::stream::pieces::Piece;
use crate::stream::pool::Pool;
use crate::stream::rate::{ReadRate, drain};
use crate::stream::reader::{Fetched, Reader};
use crate::stream::source::{ReadError, Source};
use crate::weights::spec;

/// Tensors that are to be one piece.
#[derive(Debug)]
pub(crate) struct Group<'d> {
    pub(crate) tensors: Vec<&'d TensorInfo>,
    /// The layer whose they are; none for what always stays in memory.
    layer: Option<usize>,
}

impl<'d> Group<'d> {
    pub(crate) fn new(tensors: Vec<&'d TensorInfo>, layer: Option<usize>) -> Self {
        Self { tensors, layer }
    }

    fn specs(&self) -> Vec<TensorSpec> {
        self.tensors.iter().map(|tensor| spec(tensor)).collect()
    }
}

/// All pieces of an engine, in the order of their use.
#[derive(Debug)]
pub(crate) struct Store {
    // Dropped first: its threads hold regions of the arena.
    reader: Reader,
    held: Vec<Held>,
    /// Memory for pieces that stay.
    room: Pool,
    buffer_bytes: usize,
    /// Grows with every piece that comes to stay or leaves, which graphs are cut by.
    changes: u64,
}

#[derive(Debug)]
struct Held {
    piece: Piece,
    set: Rc<TensorSet>,
    layer: Option<usize>,
    /// Whether the piece stays in memory, or is to as soon as it has arrived.
    stays: bool,
    /// Whether it is on its way to memory, wanted or not.
    coming: bool,
}

/// A store could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Tensors(#[from] TensorError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Store {
    /// Declares the pieces and starts the threads; nothing is read yet.
    pub(crate) fn new(
        files: &[Arc<MappedFile>],
        groups: Vec<Group<'_>>,
        options: &StreamOptions,
    ) -> Result<Self, StoreError> {
        let pieces: Vec<Piece> = groups.iter().map(|group| Piece::new(&group.tensors)).collect();
        let of_layers = pieces.iter().zip(&groups).filter(|(_, group)| group.layer.is_some());
        let largest = of_layers.map(|(piece, _)| piece.bytes).max().unwrap_or(0);
        let buffer_bytes = options.buffer_bytes(largest).next_multiple_of(Arena::ALIGNMENT);
        // Addresses only; twice as many, so that holes between pieces never matter.
        let bytes = 2 * pieces.iter().map(|piece| piece.bytes).sum::<usize>() + buffer_bytes;
        let refused =
            |source: io::Error| ReadError::OutOfMemory { bytes, source: Arc::new(source) };
        let (arena, mut rest) = Arena::reserve(bytes).map_err(refused)?;
        let buffer = cut_front(&mut rest, buffer_bytes);
        let source = Source::open(files, options.direct).map_err(|source| ReadError::Refused {
            file: 0,
            offset: 0,
            bytes: 0,
            source: Arc::new(source),
        })?;
        let reader = Reader::start(source, &pieces.iter().collect::<Vec<_>>(), buffer, options)?;
        let held = pieces
            .into_iter()
            .zip(groups)
            .map(|(piece, group)| {
                let set = TensorSet::movable(&arena, &group.specs())?;
                Ok(Held { piece, set, layer: group.layer, stays: false, coming: false })
            })
            .collect::<Result<_, TensorError>>()?;
        Ok(Self { reader, held, room: Pool::new(rest), buffer_bytes, changes: 0 })
    }

    /// The tensors of each piece.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &Rc<TensorSet>> {
        self.held.iter().map(|held| &held.set)
    }

    /// Bytes of the pieces that need not stay, with the layer of each.
    pub(crate) fn movable(&self) -> impl Iterator<Item = (usize, usize)> {
        self.held.iter().filter_map(|held| Some((held.layer?, held.piece.bytes)))
    }

    /// Bytes of the pieces that always stay.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        let fixed = self.held.iter().filter(|held| held.layer.is_none());
        fixed.map(|held| held.piece.bytes as u64).sum()
    }

    /// Bytes in memory for good, or on their way there.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.held.iter().filter(|held| held.stays).map(|held| held.piece.bytes as u64).sum()
    }

    /// Bytes that are read each time all layers are used.
    pub(crate) fn streamed_bytes(&self) -> u64 {
        self.streamed().map(|piece| self.held[piece].piece.bytes as u64).sum()
    }

    /// Memory for pieces on their way; none where all stay.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        if self.streamed().next().is_some() { self.buffer_bytes as u64 } else { 0 }
    }

    /// Memory for pieces on their way, where there is one.
    pub(crate) fn buffer_bytes_if_streamed(&self) -> u64 {
        self.buffer_bytes as u64
    }

    /// Bytes of a layer that stay and that are streamed.
    pub(crate) fn layer_bytes(&self, layer: usize) -> (u64, u64) {
        let of_layer = self.held.iter().filter(|held| held.layer == Some(layer));
        of_layer.fold((0, 0), |(resident, streamed), held| {
            let bytes = held.piece.bytes as u64;
            if held.stays { (resident + bytes, streamed) } else { (resident, streamed + bytes) }
        })
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether files are read past the system's cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.reader.is_direct()
    }

    /// Bytes read since the start.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.reader.bytes_read()
    }

    /// Says which of the movable pieces stay in memory. Those that leave do so at once; those that
    /// come are read in the background, and streamed until they have arrived.
    pub(crate) fn set_staying(&mut self, stays: &[bool]) {
        let mut stays = stays.iter().copied();
        let mut coming = Vec::new();
        for (index, held) in self.held.iter_mut().enumerate() {
            let wanted = held.layer.is_none() || stays.next().expect("one per movable piece");
            if wanted == held.stays {
                continue;
            }
            held.stays = wanted;
            if !wanted && let Some(mut region) = held.set.take_back() {
                region.discard();
                self.room.give_back(region);
            }
            // One may be on its way still from an earlier wish.
            if wanted && !held.coming {
                coming.push(index);
            }
        }
        self.follow_changes();
        for index in coming {
            let held = &mut self.held[index];
            match self.room.take_first(held.piece.bytes) {
                Some(region) => {
                    held.coming = true;
                    self.reader.fetch(index, region);
                }
                // No addresses for it: it is streamed as before.
                None => held.stays = false,
            }
        }
    }

    /// Waits until every piece that is to stay has arrived.
    pub(crate) fn settle(&mut self) -> Result<(), ReadError> {
        while self.held.iter().any(|held| held.stays && !held.set.is_placed()) {
            let fetched = self.reader.wait_fetched()?;
            self.place(fetched)?;
        }
        self.follow_changes();
        Ok(())
    }

    /// Takes in what has arrived in the background.
    pub(crate) fn refresh(&mut self) -> Result<(), ReadError> {
        let before = self.changes;
        while let Some(fetched) = self.reader.fetched() {
            self.place(fetched)?;
        }
        if self.changes != before {
            self.follow_changes();
        }
        Ok(())
    }

    fn place(&mut self, fetched: Fetched) -> Result<(), ReadError> {
        let Fetched { piece, mut region, failed } = fetched;
        let held = &mut self.held[piece];
        held.coming = false;
        if held.stays && failed.is_none() {
            held.set.lend(region, &held.piece.offsets);
            self.changes += 1;
            return Ok(());
        }
        region.discard();
        self.room.give_back(region);
        held.stays = false;
        failed.map_or(Ok(()), Err)
    }

    /// Reads ahead what does not stay, and makes graphs be cut anew.
    fn follow_changes(&mut self) {
        self.changes += 1;
        self.reader.set_order(&self.streamed().collect::<Vec<_>>());
    }

    /// The pieces that are in memory only while they are used.
    fn streamed(&self) -> impl Iterator<Item = usize> {
        let streamed = |(_, held): &(usize, &Held)| held.layer.is_some() && !held.set.is_placed();
        self.held.iter().enumerate().filter(streamed).map(|(index, _)| index)
    }

    /// Cuts a graph so that each segment needs one of the pieces that do not stay, and tells which.
    pub(crate) fn cut(&self, window: &mut WindowGraph) {
        let sets: Vec<Rc<TensorSet>> =
            self.streamed().map(|piece| Rc::clone(&self.held[piece].set)).collect();
        window.graph.cut(&sets);
        let piece_of =
            |set: &Rc<TensorSet>| self.held.iter().position(|held| Rc::ptr_eq(&held.set, set));
        window.pieces = (0..window.graph.segments())
            .map(|segment| window.graph.segment_set(segment).and_then(piece_of))
            .collect();
    }

    /// Runs a graph that was cut, each segment as soon as its piece is there.
    pub(crate) fn run(
        &self,
        backend: &mut Backend,
        window: &WindowGraph,
        reading: Reading,
    ) -> Result<(), StepError> {
        for (segment, piece) in window.pieces.iter().enumerate() {
            let Some(piece) = *piece else {
                backend.compute_segment(&window.graph, segment)?;
                continue;
            };
            let region = match reading {
                Reading::Disk => self.reader.take(piece)?,
                Reading::Nothing => self.reader.take_unread(piece)?,
            };
            let held = &self.held[piece];
            held.set.lend(region, &held.piece.offsets);
            let done = backend.compute_segment(&window.graph, segment);
            self.reader.give_back(held.set.take_back().expect("lent above"));
            done?;
        }
        Ok(())
    }

    /// Reads ahead again after a run without reading.
    pub(crate) fn resume(&self) {
        self.reader.resume();
    }

    /// How fast the pieces that do not stay can be read for so long; nothing where all stay.
    pub(crate) fn read_rate(&self, duration: Duration) -> Result<Option<ReadRate>, ReadError> {
        let order: Vec<usize> = self.streamed().collect();
        if order.is_empty() {
            return Ok(None);
        }
        drain(&self.reader, &order, duration).map(Some)
    }
}

/// Whether a run reads the weights it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Disk,
    /// It computes with whatever lies in the buffer, to measure computation alone.
    Nothing,
}

fn cut_front(rest: &mut Region, bytes: usize) -> Region {
    let behind = rest.split_off(bytes);
    std::mem::replace(rest, behind)
}
