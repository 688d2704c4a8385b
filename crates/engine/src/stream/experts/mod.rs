//! Experts that are read when a router chooses them, and the hottest of them kept in memory.
//!
//! All experts of layers of one shape share slots of one size: a tensor with a matrix per slot, for
//! each of gate, up and down. Each layer has such tensors of its own over the same memory, which is
//! lent to the layer that runs; its rows name slots instead of experts.

mod loader;
mod slots;

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use motley_ggml::{Arena, Region, TensorError, TensorSet, TensorSpec};
use motley_model::{Experts, LayerTensors, TensorInfo, TensorType};

use crate::stream::StreamOptions;
use crate::stream::experts::loader::{Job, Loader};
use crate::stream::experts::slots::{Load, Slots};
use crate::stream::rate::ReadRate;
use crate::stream::source::{ReadError, Source};
use crate::stream::store::StoreError;
use crate::weights::spec;

/// What has become of the experts that were chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertFigures {
    /// Experts of all layers held.
    pub experts: usize,
    /// Of these, how many memory holds at a time.
    pub slots: usize,
    /// Experts that were chosen since the engine was loaded, each once per pass of its layer.
    pub chosen: u64,
    /// Of these, how many were in memory.
    pub hits: u64,
    /// Bytes of the experts chosen.
    pub chosen_bytes: u64,
    /// Of these, bytes that were in memory.
    pub hit_bytes: u64,
    /// Bytes read from disk for chosen experts, whole blocks.
    pub bytes_read: u64,
}

/// A layer's experts before they are placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertLayer<'d> {
    pub(crate) layer: usize,
    pub(crate) tensors: &'d LayerTensors,
}

/// Sizes that memory for experts depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertSizes {
    pub(crate) experts: Experts,
    /// Rows in one batch at most.
    pub(crate) batch_rows: usize,
}

impl ExpertSizes {
    /// Bytes of a slot for an expert, and of what kernels take for each slot.
    fn slot_bytes(&self, expert_bytes: u64) -> u64 {
        let per_row = self.experts.used * WORK_BYTES_PER_ROW;
        expert_bytes + (WORK_BYTES_PER_SLOT + per_row * self.batch_rows) as u64
    }
}

/// Bytes of slots for the experts of one layer of each shape.
pub(crate) fn least_bytes<'d>(
    layers: impl Iterator<Item = &'d LayerTensors>,
    sizes: ExpertSizes,
) -> u64 {
    let mut shapes: Vec<[(TensorShape, u64); 3]> = Vec::new();
    for layer in layers {
        let Some(tensors) = layer.experts() else { continue };
        let of_layer = tensors.map(|tensor| (shape_of(tensor), tensor.bytes / tensor.shape[2]));
        if !shapes.contains(&of_layer) {
            shapes.push(of_layer);
        }
    }
    let expert_bytes = |of: &[(TensorShape, u64); 3]| of.iter().map(|(_, bytes)| bytes).sum();
    let count = sizes.experts.count as u64;
    let slots: u64 = shapes.iter().map(|of| count * sizes.slot_bytes(expert_bytes(of))).sum();
    let largest = shapes.iter().flatten().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let options = StreamOptions::default();
    let largest = usize::try_from(largest).unwrap_or(usize::MAX);
    slots + reading_bytes(reads_of(&options, true), job_bytes(&options, largest))
}

/// Reads on their way at a time.
fn reads_of(options: &StreamOptions, direct: bool) -> usize {
    // Two readers of one cached file would break the system's reading ahead.
    if direct { options.reads.max(READS_MIN) } else { 1 }
}

/// Bytes of one read, of matrices up to `largest_bytes`.
fn job_bytes(options: &StreamOptions, largest_bytes: usize) -> usize {
    options.read_bytes.max(Arena::ALIGNMENT).min(largest_bytes)
}

/// Memory of threads that read so many bytes at a time.
fn reading_bytes(threads: usize, job_bytes: usize) -> u64 {
    (threads * Loader::thread_bytes(job_bytes)) as u64
}

/// What decides whether experts can share slots.
type TensorShape = ([u64; 4], TensorType);

fn shape_of(tensor: &TensorInfo) -> TensorShape {
    (tensor.shape, tensor.tensor_type)
}

/// The experts of an engine that come and go.
#[derive(Debug)]
pub(crate) struct ExpertStore {
    loader: Loader,
    read_bytes: usize,
    /// Memory of the threads that read.
    reading_bytes: u64,
    sizes: ExpertSizes,
    classes: Vec<Class>,
    /// The layers, each with its class and its place there.
    layers: Vec<(usize, usize, usize)>,
    figures: ExpertFigures,
    loads: Vec<Load>,
    chosen: Vec<usize>,
}

/// Layers whose experts have the same shapes and types.
#[derive(Debug)]
struct Class {
    arena: Arena,
    /// Experts of one layer.
    per_layer: usize,
    /// All of its memory, unless a layer has it or it is being filled.
    region: Option<Region>,
    specs: [TensorSpec; 3],
    /// Bytes of one expert's matrices.
    matrix_bytes: [usize; 3],
    /// Where each matrix of the first slot begins.
    bases: [usize; 3],
    slots: Slots,
    sets: Vec<Rc<TensorSet>>,
    /// For each layer where its three tensors begin in their files.
    places: Vec<[(usize, u64); 3]>,
}

/// Bytes that a kernel takes for each slot and for each row of each slot.
const WORK_BYTES_PER_SLOT: usize = 72;
const WORK_BYTES_PER_ROW: usize = 8;

/// Experts that are read together to measure a disk.
const EXPERTS_AT_A_TIME: usize = 16;

/// Reads on their way at a time: those of experts are short.
const READS_MIN: usize = 4;

impl ExpertStore {
    /// Prepares slots for the experts of one layer of each shape; nothing is read yet.
    pub(crate) fn new(
        source: Source,
        layers: &[ExpertLayer<'_>],
        sizes: ExpertSizes,
        options: &StreamOptions,
    ) -> Result<Self, StoreError> {
        let mut groups: Vec<Vec<ExpertLayer<'_>>> = Vec::new();
        let alike = |a: &ExpertLayer<'_>, b: &ExpertLayer<'_>| shapes(a) == shapes(b);
        for layer in layers {
            match groups.iter_mut().find(|group| alike(&group[0], layer)) {
                Some(group) => group.push(*layer),
                None => groups.push(vec![*layer]),
            }
        }
        let classes = groups.iter().map(|group| Class::new(group, sizes.experts.count));
        let classes = classes.collect::<Result<Vec<_>, _>>()?;
        let class_of = |layer: usize| {
            let found = groups.iter().enumerate().find_map(|(class, group)| {
                Some((class, group.iter().position(|of| of.layer == layer)?))
            });
            found.expect("every layer is in a group")
        };
        let places = layers.iter().map(|of| {
            let (class, place) = class_of(of.layer);
            (of.layer, class, place)
        });
        let reads = reads_of(options, source.direct);
        let largest = classes.iter().flat_map(|class| class.matrix_bytes).max().unwrap_or(0);
        let read_bytes = job_bytes(options, largest);
        let figures =
            ExpertFigures { experts: layers.len() * sizes.experts.count, ..Default::default() };
        Ok(Self {
            loader: Loader::start(source, reads, read_bytes)?,
            reading_bytes: reading_bytes(reads, read_bytes),
            read_bytes,
            sizes,
            layers: places.collect(),
            classes,
            figures,
            loads: Vec::new(),
            chosen: Vec::new(),
        })
    }

    /// Tensors of a layer, gate, up and down, with the number of its slots; nothing where its
    /// experts do not come and go. They change with the number of slots.
    pub(crate) fn tensors(&self, layer: usize) -> Option<(&Rc<TensorSet>, usize)> {
        let (class, place) = self.find(layer)?;
        let class = &self.classes[class];
        Some((&class.sets[place], class.slots.capacity()))
    }

    /// The layers, with the tensors of each.
    pub(crate) fn sets(&self) -> impl Iterator<Item = (usize, &Rc<TensorSet>)> {
        self.layers.iter().map(|(layer, class, place)| (*layer, &self.classes[*class].sets[*place]))
    }

    pub(crate) fn figures(&self) -> ExpertFigures {
        let slots = self.classes.iter().map(|class| class.slots.capacity()).sum();
        ExpertFigures { slots, ..self.figures }
    }

    /// Bytes read since the start, also to fill slots that were empty.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.loader.bytes_read()
    }

    /// Bytes of memory for slots, and of what kernels take for them.
    pub(crate) fn bytes(&self) -> u64 {
        let slots = |class: &Class| self.class_bytes(class, class.slots.capacity());
        self.reading_bytes + self.classes.iter().map(slots).sum::<u64>()
    }

    /// Bytes with the experts of one layer of each shape.
    pub(crate) fn least_bytes(&self) -> u64 {
        let least = |class: &Class| self.class_bytes(class, self.sizes.experts.count);
        self.reading_bytes + self.classes.iter().map(least).sum::<u64>()
    }

    /// Bytes with all experts in memory.
    pub(crate) fn whole_bytes(&self) -> u64 {
        let all = |class: &Class| self.class_bytes(class, class.experts());
        self.reading_bytes + self.classes.iter().map(all).sum::<u64>()
    }

    /// Bytes that one token is expected to read, if all experts are equally likely.
    pub(crate) fn expected_bytes_per_token(&self) -> u64 {
        let of_class = |class: &Class| {
            let used = self.sizes.experts.used * class.sets.len() * class.expert_bytes();
            let absent = class.experts() - class.slots.capacity();
            used as u128 * absent as u128 / class.experts() as u128
        };
        let bytes: u128 = self.classes.iter().map(of_class).sum();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Bytes of a layer's experts that are in memory, and of those that are not.
    pub(crate) fn layer_bytes(&self, layer: usize) -> (u64, u64) {
        let Some((class, place)) = self.find(layer) else { return (0, 0) };
        let class = &self.classes[class];
        let resident = class.slots.resident(place);
        let bytes = |experts: usize| (experts * class.expert_bytes()) as u64;
        (bytes(resident), bytes(self.sizes.experts.count - resident))
    }

    /// Takes as many slots as fit into `bytes`, at least those of [`least_bytes`](Self::least_bytes);
    /// tells whether the tensors changed.
    pub(crate) fn set_bytes(&mut self, bytes: u64) -> Result<bool, TensorError> {
        let (least, whole) = (self.least_bytes(), self.whole_bytes());
        let room = u128::from(bytes.clamp(least, whole) - least);
        let span = u128::from(whole - least).max(1);
        let count = self.sizes.experts.count;
        let slots = |class: &Class| {
            let more = (class.experts() - count) as u128 * room / span;
            count + usize::try_from(more).expect("no more than there are")
        };
        let slots: Vec<usize> = self.classes.iter().map(slots).collect();
        self.set_slots(&slots)
    }

    /// Takes as many slots as the experts of the layers for which `stays` is true would fill.
    pub(crate) fn set_staying(
        &mut self,
        mut stays: impl FnMut(usize) -> bool,
    ) -> Result<bool, TensorError> {
        let count = self.sizes.experts.count;
        let mut slots = vec![0; self.classes.len()];
        for (layer, class, _) in &self.layers {
            slots[*class] += if stays(*layer) { count } else { 0 };
        }
        slots.iter_mut().for_each(|slots| *slots = (*slots).max(count));
        self.set_slots(&slots)
    }

    fn set_slots(&mut self, slots: &[usize]) -> Result<bool, TensorError> {
        let mut changed = false;
        for (class, slots) in self.classes.iter_mut().zip(slots) {
            if class.slots.capacity() != *slots {
                class.resize(*slots)?;
                changed = true;
            }
        }
        Ok(changed)
    }

    /// Reads experts into all empty slots.
    pub(crate) fn fill(&mut self) -> Result<(), ReadError> {
        for class in 0..self.classes.len() {
            let mut loads = Vec::new();
            self.classes[class].slots.fill(&mut loads);
            self.read(class, &loads)?;
        }
        Ok(())
    }

    /// Brings the experts that `rows` rows chose in a layer, `order` naming all experts of each row
    /// from the first choice on, and writes the slots of the chosen ones to `slots`.
    pub(crate) fn bring(
        &mut self,
        layer: usize,
        order: &[i32],
        slots: &mut Vec<i32>,
    ) -> Result<(), ReadError> {
        let (class, place) = self.take_choice(layer, order);
        let (chosen, rows) =
            (std::mem::take(&mut self.chosen), order.len() / self.sizes.experts.count);
        let mut loads = std::mem::take(&mut self.loads);
        loads.clear();
        let of_class = &mut self.classes[class];
        let expert_bytes = of_class.expert_bytes() as u64;
        let distinct = of_class.slots.choose(place, &chosen, rows, &mut loads) as u64;
        let misses = loads.len() as u64;
        let before = self.loader.bytes_read();
        let done = self.read(class, &loads);
        self.figures.chosen += distinct;
        self.figures.hits += distinct - misses;
        self.figures.chosen_bytes += distinct * expert_bytes;
        self.figures.hit_bytes += (distinct - misses) * expert_bytes;
        self.figures.bytes_read += self.loader.bytes_read() - before;
        if done.is_ok() {
            let slot_of = |expert: &usize| {
                let slot = self.classes[class].slots.slot(place, *expert);
                as_i32(slot.expect("brought just before"))
            };
            slots.clear();
            slots.extend(chosen.iter().map(slot_of));
        }
        (self.loads, self.chosen) = (loads, chosen);
        done
    }

    /// As [`bring`](Self::bring), with whatever lies in memory: for measuring computation alone.
    pub(crate) fn bring_nothing(&mut self, layer: usize, order: &[i32], slots: &mut Vec<i32>) {
        let (class, place) = self.take_choice(layer, order);
        let of_class = &self.classes[class].slots;
        let slot_of = |expert: &usize| {
            let any = (place * self.sizes.experts.count + expert) % of_class.capacity();
            as_i32(of_class.slot(place, *expert).unwrap_or(any))
        };
        slots.clear();
        slots.extend(self.chosen.iter().map(slot_of));
    }

    /// How fast experts can be read for so long: those in memory are read to their places again, some
    /// at a time; nothing where none is.
    pub(crate) fn read_rate(&mut self, duration: Duration) -> Result<Option<ReadRate>, ReadError> {
        let mut batches: Vec<(usize, Vec<Load>)> = Vec::new();
        for (class, of) in self.classes.iter().enumerate() {
            let loads: Vec<Load> = of.slots.loads().collect();
            batches.extend(loads.chunks(EXPERTS_AT_A_TIME).map(|some| (class, some.to_vec())));
        }
        if batches.is_empty() {
            return Ok(None);
        }
        let (start, before) = (Instant::now(), self.loader.bytes_read());
        for (class, loads) in batches.iter().cycle() {
            self.read(*class, loads)?;
            if start.elapsed() >= duration {
                break;
            }
        }
        let bytes = self.loader.bytes_read() - before;
        Ok(Some(ReadRate { bytes, elapsed: start.elapsed(), direct: self.loader.is_direct() }))
    }

    /// Leaves the experts that each row uses in `chosen`; the layer's class and place.
    fn take_choice(&mut self, layer: usize, order: &[i32]) -> (usize, usize) {
        let Experts { count, used } = self.sizes.experts;
        let rows = order.chunks(count).flat_map(|row| &row[..used]);
        self.chosen.clear();
        self.chosen.extend(
            rows.map(|expert| usize::try_from(*expert).expect("sorting gives numbers of experts")),
        );
        self.find(layer).expect("the layer's experts come and go")
    }

    /// Lends the memory of slots to a layer while it runs.
    pub(crate) fn lend(&mut self, layer: usize) {
        let (class, place) = self.find(layer).expect("the layer's experts come and go");
        let class = &mut self.classes[class];
        let region = class.region.take().expect("nobody else has it");
        class.sets[place].lend(region, &class.bases);
    }

    pub(crate) fn take_back(&mut self, layer: usize) {
        let (class, place) = self.find(layer).expect("the layer's experts come and go");
        let class = &mut self.classes[class];
        class.region = class.sets[place].take_back();
    }

    fn find(&self, layer: usize) -> Option<(usize, usize)> {
        let found = self.layers.iter().find(|(known, ..)| *known == layer);
        found.map(|(_, class, place)| (*class, *place))
    }

    fn class_bytes(&self, class: &Class, slots: usize) -> u64 {
        slots as u64 * self.sizes.slot_bytes(class.expert_bytes() as u64)
    }

    fn read(&mut self, class: usize, loads: &[Load]) -> Result<(), ReadError> {
        if loads.is_empty() {
            return Ok(());
        }
        let class = &mut self.classes[class];
        let mut parts = class.parts(loads, self.read_bytes);
        parts.sort_unstable_by_key(|part| part.target.start);
        // Gone only after the disk has stalled.
        let whole = class.region.take().ok_or(ReadError::NotRunning)?;
        let (mut kept, cut) = carve(whole, parts.iter().map(|part| part.target.clone()));
        let jobs = parts.iter().zip(cut).map(|(part, target)| Job {
            file: part.file,
            offset: part.offset,
            target,
        });
        let (filled, failed) = self.loader.load(jobs)?;
        kept.extend(filled);
        class.region = Some(join(kept));
        let Some(error) = failed else { return Ok(()) };
        loads.iter().for_each(|load| class.slots.forget(load.slot));
        Err(error)
    }
}

/// A read, and where in a class's memory it goes.
#[derive(Debug)]
struct Part {
    file: usize,
    offset: u64,
    target: Range<usize>,
}

impl Class {
    fn new(layers: &[ExpertLayer<'_>], experts: usize) -> Result<Self, StoreError> {
        let tensors = tensors_of(&layers[0]);
        let matrix_bytes = tensors.map(|tensor| length(tensor.bytes / tensor.shape[2]));
        let mut end: usize = 0;
        let bases = matrix_bytes.map(|bytes| {
            let base = end;
            // Addresses for all; memory only for the slots in use.
            end = (end + bytes * experts * layers.len()).next_multiple_of(Arena::ALIGNMENT);
            base
        });
        let refused =
            |source: io::Error| ReadError::OutOfMemory { bytes: end, source: Arc::new(source) };
        let (arena, region) = Arena::reserve(end).map_err(refused)?;
        let mut class = Self {
            arena,
            per_layer: experts,
            region: Some(region),
            specs: tensors.map(spec),
            matrix_bytes,
            bases,
            slots: Slots::new(layers.len(), experts, experts),
            sets: Vec::new(),
            places: layers
                .iter()
                .map(|layer| tensors_of(layer).map(|tensor| (tensor.file_index, tensor.offset)))
                .collect(),
        };
        class.declare()?;
        Ok(class)
    }

    /// Experts of all its layers.
    fn experts(&self) -> usize {
        self.places.len() * self.per_layer
    }

    fn expert_bytes(&self) -> usize {
        self.matrix_bytes.iter().sum()
    }

    /// Makes the tensors of every layer anew, with a matrix per slot.
    fn declare(&mut self) -> Result<(), TensorError> {
        let slots = self.slots.capacity() as u64;
        let mut specs = self.specs.clone();
        specs.iter_mut().for_each(|spec| spec.shape[2] = slots);
        let sets = self.places.iter().map(|_| TensorSet::movable(&self.arena, &specs));
        self.sets = sets.collect::<Result<_, _>>()?;
        Ok(())
    }

    fn resize(&mut self, slots: usize) -> Result<(), TensorError> {
        let before = self.slots.capacity();
        self.slots.resize(slots);
        if slots < before
            && let Some(region) = self.region.take()
        {
            // Whole pages only; what is left of others is less than three pages.
            let page = |bytes: usize| bytes.next_multiple_of(Arena::ALIGNMENT);
            let tails = self.bases.iter().zip(self.matrix_bytes).map(|(base, bytes)| {
                let end = page(base + before * bytes);
                page(base + slots * bytes).min(end)..end
            });
            let (mut kept, mut tails) = carve(region, tails);
            tails.iter_mut().for_each(Region::discard);
            kept.extend(tails);
            self.region = Some(join(kept));
        }
        self.declare()
    }

    /// The reads of experts, of at most `read_bytes` each.
    fn parts(&self, loads: &[Load], read_bytes: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        for load in loads {
            for (index, bytes) in self.matrix_bytes.into_iter().enumerate() {
                let (file, tensor) = self.places[load.layer][index];
                let offset = tensor + (load.expert * bytes) as u64;
                let target = self.bases[index] + load.slot * bytes;
                for start in (0..bytes).step_by(read_bytes) {
                    let end = bytes.min(start + read_bytes);
                    let target = target + start..target + end;
                    parts.push(Part { file, offset: offset + start as u64, target });
                }
            }
        }
        parts
    }
}

fn tensors_of<'d>(layer: &ExpertLayer<'d>) -> [&'d TensorInfo; 3] {
    layer.tensors.experts().expect("a layer with experts")
}

fn shapes(layer: &ExpertLayer<'_>) -> [TensorShape; 3] {
    tensors_of(layer).map(shape_of)
}

/// Cuts ranges, in order and apart from each other, out of a region; the rest first.
fn carve(
    mut rest: Region,
    ranges: impl IntoIterator<Item = Range<usize>>,
) -> (Vec<Region>, Vec<Region>) {
    let begin = rest.offset();
    let (mut kept, mut cut) = (Vec::new(), Vec::new());
    for range in ranges {
        let mut part = rest.split_off(begin + range.start - rest.offset());
        kept.push(std::mem::replace(&mut rest, part.split_off(range.len())));
        cut.push(part);
    }
    kept.push(rest);
    (kept, cut)
}

/// Joins the parts of one region.
fn join(mut parts: Vec<Region>) -> Region {
    parts.sort_unstable_by_key(|part| (part.offset(), part.bytes()));
    let mut parts = parts.into_iter();
    let mut whole = parts.next().expect("at least one part");
    parts.for_each(|part| whole.join(part).expect("parts of one region follow each other"));
    whole
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("tensors fit the memory that files are mapped to")
}

fn as_i32(slot: usize) -> i32 {
    i32::try_from(slot).expect("slots are few")
}
