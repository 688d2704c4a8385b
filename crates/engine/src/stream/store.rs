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
use crate::stream::experts::{ExpertLayer, ExpertSizes, ExpertStore};
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

/// What a store is made of.
#[derive(Debug)]
pub(crate) struct Declared<'d> {
    /// What is read in pieces, in the order of its use.
    pub(crate) groups: Vec<Group<'d>>,
    /// Layers of whose experts only chosen ones are read.
    pub(crate) experts: Vec<ExpertLayer<'d>>,
    /// Their sizes, where the model has experts.
    pub(crate) sizes: Option<ExpertSizes>,
}

/// What a segment of a graph needs in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Only what always is.
    Nothing,
    /// A piece that comes and goes.
    Piece(usize),
    /// The experts that were chosen in this layer.
    Experts(usize),
}

/// All pieces of an engine, in the order of their use, and its experts.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) experts: Option<ExpertStore>,
    order: Vec<i32>,
    expert_slots: Vec<i32>,
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
        declared: Declared<'_>,
        options: &StreamOptions,
    ) -> Result<Self, StoreError> {
        let Declared { groups, experts, sizes } = declared;
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
        let source = open(files, options)?;
        let experts = match sizes.filter(|_| !experts.is_empty()) {
            Some(sizes) => Some(ExpertStore::new(open(files, options)?, &experts, sizes, options)?),
            None => None,
        };
        let reader = Reader::start(source, &pieces.iter().collect::<Vec<_>>(), buffer, options)?;
        let held = pieces
            .into_iter()
            .zip(groups)
            .map(|(piece, group)| {
                let set = TensorSet::movable(&arena, &group.specs())?;
                Ok(Held { piece, set, layer: group.layer, stays: false, coming: false })
            })
            .collect::<Result<_, TensorError>>()?;
        Ok(Self {
            experts,
            order: Vec::new(),
            expert_slots: Vec::new(),
            reader,
            held,
            room: Pool::new(rest),
            buffer_bytes,
            changes: 0,
        })
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
        let stays = self.held.iter().filter(|held| held.stays);
        let pieces: u64 = stays.map(|held| held.piece.bytes as u64).sum();
        pieces + self.experts.as_ref().map_or(0, ExpertStore::bytes)
    }

    /// Bytes that are read each time all layers are used, by one token where there are experts.
    pub(crate) fn streamed_bytes(&self) -> u64 {
        let experts = self.experts.as_ref().map_or(0, ExpertStore::expected_bytes_per_token);
        self.dense_streamed_bytes() + experts
    }

    /// Bytes of pieces that are read each time all layers are used.
    pub(crate) fn dense_streamed_bytes(&self) -> u64 {
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
        let experts = self.experts.as_ref().map_or((0, 0), |experts| experts.layer_bytes(layer));
        of_layer.fold(experts, |(resident, streamed), held| {
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
        self.reader.bytes_read() + self.experts.as_ref().map_or(0, ExpertStore::bytes_read)
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
        self.experts.as_mut().map_or(Ok(()), ExpertStore::fill)
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

    /// Cuts a graph so that each segment needs one thing that comes and goes, and tells which.
    pub(crate) fn cut(&self, window: &mut WindowGraph) {
        let pieces = self.streamed().map(|piece| (Needs::Piece(piece), &self.held[piece].set));
        let experts = self.experts.iter().flat_map(ExpertStore::sets);
        let experts = experts.map(|(layer, set)| (Needs::Experts(layer), set));
        let (needs, sets): (Vec<Needs>, Vec<Rc<TensorSet>>) =
            pieces.chain(experts).map(|(needs, set)| (needs, Rc::clone(set))).unzip();
        window.graph.cut(&sets);
        let needs_of = |set: &Rc<TensorSet>| {
            let place = sets.iter().position(|known| Rc::ptr_eq(known, set));
            needs[place.expect("the graph was cut by it")]
        };
        window.needs = (0..window.graph.segments())
            .map(|segment| window.graph.segment_set(segment).map_or(Needs::Nothing, needs_of))
            .collect();
    }

    /// Runs a graph that was cut, each segment as soon as what it needs is there.
    pub(crate) fn run(
        &mut self,
        backend: &mut Backend,
        window: &mut WindowGraph,
        reading: Reading,
    ) -> Result<(), StepError> {
        for segment in 0..window.needs.len() {
            match window.needs[segment] {
                Needs::Nothing => backend.compute_segment(&window.graph, segment)?,
                Needs::Piece(piece) => {
                    let region = match reading {
                        Reading::Disk => self.reader.take(piece, || backend.rest())?,
                        Reading::Nothing => self.reader.take_unread(piece)?,
                    };
                    let held = &self.held[piece];
                    held.set.lend(region, &held.piece.offsets);
                    let done = backend.compute_segment(&window.graph, segment);
                    self.reader.give_back(held.set.take_back().expect("lent above"));
                    done?;
                }
                Needs::Experts(layer) => {
                    self.bring_experts(layer, window, reading)?;
                    let experts = self.experts.as_mut().expect("the graph was cut by them");
                    experts.lend(layer);
                    let done = backend.compute_segment(&window.graph, segment);
                    experts.take_back(layer);
                    done?;
                }
            }
        }
        Ok(())
    }

    /// Reads which experts the layer's router chose, brings them, and tells the graph where they are.
    fn bring_experts(
        &mut self,
        layer: usize,
        window: &mut WindowGraph,
        reading: Reading,
    ) -> Result<(), ReadError> {
        let experts = self.experts.as_mut().expect("the graph was cut by them");
        let inputs = window.experts.iter().find(|inputs| inputs.layer == layer);
        let inputs = *inputs.expect("the graph has the layer");
        self.order.resize(window.graph.output_elements(inputs.order), 0);
        window.graph.read(inputs.order, &mut self.order);
        match reading {
            Reading::Disk => experts.bring(layer, &self.order, &mut self.expert_slots)?,
            Reading::Nothing => {
                experts.bring_nothing(layer, &self.order, &mut self.expert_slots);
            }
        }
        window.graph.write(inputs.slots, &self.expert_slots);
        Ok(())
    }

    /// Reads ahead again after a run without reading.
    pub(crate) fn resume(&self) {
        self.reader.resume();
    }

    /// How fast the pieces that do not stay can be read for so long, or experts where all stay;
    /// nothing where nothing comes and goes.
    pub(crate) fn read_rate(&mut self, duration: Duration) -> Result<Option<ReadRate>, ReadError> {
        let order: Vec<usize> = self.streamed().collect();
        if order.is_empty() {
            let experts = self.experts.as_mut();
            return experts.map_or(Ok(None), |experts| experts.read_rate(duration));
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

fn open(files: &[Arc<MappedFile>], options: &StreamOptions) -> Result<Source, ReadError> {
    let refused = |source: io::Error| ReadError::Refused {
        file: 0,
        offset: 0,
        bytes: 0,
        source: Arc::new(source),
    };
    Source::open(files, options.direct).map_err(refused)
}

fn cut_front(rest: &mut Region, bytes: usize) -> Region {
    let behind = rest.split_off(bytes);
    std::mem::replace(rest, behind)
}
