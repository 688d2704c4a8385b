//! Weights of the held layers, by role, each where the residency wants it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use motley_ggml::{
    ElementType, MappedFile, PlacedTensor, TensorError, TensorId, TensorSet, TensorSpec,
};
use motley_model::{LayerTensors, ModelDirectory, TensorInfo};

use crate::layer_set::LayerSet;
use crate::layout::{Layout, Layouts};
use crate::placement::{Placement, Residency};
use crate::sites::{Site, Sites};
use crate::stream::{Declared, ExpertLayer, ExpertSizes, Group, Store, StoreError, cut_layer};

/// A tensor in one set.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) set: Rc<TensorSet>,
    pub(crate) id: TensorId,
}

/// A weight, with an interleaved copy of its matrix where that is faster.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    /// As in the file; absent where every product takes the interleaved copy.
    plain: Option<Stored>,
    packed: Option<Stored>,
    layout: Layout,
}

impl Weight {
    /// The copy to multiply `rows` rows with.
    pub(crate) fn for_rows(&self, rows: usize) -> &Stored {
        match &self.packed {
            Some(packed) if self.layout.packs(rows) => packed,
            _ => self.plain(),
        }
    }

    /// The copy that rows can be looked up in.
    pub(crate) fn plain(&self) -> &Stored {
        self.plain.as_ref().expect("kept unless only interleaved products need the weight")
    }
}

/// Weights of one layer, named as in [`LayerTensors`].
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Weight,
    pub(crate) query: Weight,
    pub(crate) query_bias: Option<Weight>,
    pub(crate) key: Weight,
    pub(crate) key_bias: Option<Weight>,
    pub(crate) value: Weight,
    pub(crate) value_bias: Option<Weight>,
    pub(crate) query_norm: Option<Weight>,
    pub(crate) key_norm: Option<Weight>,
    pub(crate) attention_output: Weight,
    pub(crate) attention_output_bias: Option<Weight>,
    pub(crate) attention_post_norm: Option<Weight>,
    pub(crate) feed_forward_norm: Weight,
    pub(crate) router: Option<Weight>,
    /// Slots that rows name in place of experts, where these come and go.
    pub(crate) expert_slots: Option<usize>,
    pub(crate) gate: Weight,
    pub(crate) gate_bias: Option<Weight>,
    pub(crate) up: Weight,
    pub(crate) up_bias: Option<Weight>,
    pub(crate) down: Weight,
    pub(crate) down_bias: Option<Weight>,
    pub(crate) feed_forward_post_norm: Option<Weight>,
}

/// The head: final norm and output matrix.
#[derive(Debug)]
pub(crate) struct HeadWeights {
    pub(crate) norm: Weight,
    pub(crate) output: Weight,
    pub(crate) output_bias: Option<Weight>,
}

/// All weights that this engine holds.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) embedding: Option<Weight>,
    held: LayerSet,
    layers: Vec<LayerWeights>,
    pub(crate) head: Option<HeadWeights>,
    // Of each held layer, where the model has them; one copy per device.
    rope_frequencies: Vec<Option<Weight>>,
    pub(crate) mapped_bytes: u64,
    pub(crate) allocated_bytes: u64,
    /// Bytes in each GPU.
    pub(crate) gpu_bytes: BTreeMap<usize, u64>,
}

/// Which parts of a model to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'p> {
    pub(crate) layers: &'p LayerSet,
    pub(crate) embedding: bool,
    pub(crate) head: bool,
    pub(crate) placement: &'p Placement,
    pub(crate) sites: &'p Sites,
    /// Rows in one batch at most.
    pub(crate) batch_rows: usize,
}

impl Weights {
    /// Follows the tensors of experts that come and go.
    pub(crate) fn follow_experts(&mut self, store: &Store) {
        let Some(experts) = &store.experts else { return };
        for (layer, weights) in self.held.iter().zip(&mut self.layers) {
            let Some((set, slots)) = experts.tensors(layer) else { continue };
            weights.expert_slots = Some(slots);
            let networks = [&mut weights.gate, &mut weights.up, &mut weights.down];
            for (id, weight) in set.ids().zip(networks) {
                weight.plain = Some(Stored { set: Rc::clone(set), id });
            }
        }
    }

    /// None at all.
    pub(crate) fn none() -> Self {
        Self {
            embedding: None,
            held: LayerSet::none(),
            layers: Vec::new(),
            head: None,
            rope_frequencies: Vec::new(),
            mapped_bytes: 0,
            allocated_bytes: 0,
            gpu_bytes: BTreeMap::new(),
        }
    }

    /// Loads the weights; those whose layers may move are declared only, in the store.
    pub(crate) fn load(
        files: &[Arc<MappedFile>],
        directory: &ModelDirectory,
        parts: Parts<'_>,
        layouts: &Layouts,
    ) -> Result<(Self, Option<Store>), StoreError> {
        let wanted = wanted_tensors(directory, parts, Site::Processor);
        let mut loader = Loader::new();
        let store = match parts.placement.fixed() {
            Some(Residency::Mapped) => {
                loader.map(files, directory, &wanted)?;
                None
            }
            Some(_) => {
                loader.read(files, &wanted, layouts)?;
                None
            }
            None => Some(loader.place(files, directory, &wanted, parts)?),
        };
        let mapped = parts.placement.fixed() == Some(Residency::Mapped);
        loader.pack(files, &wanted, layouts, mapped)?;
        for gpu in parts.sites.gpus() {
            let wanted = wanted_tensors(directory, parts, Site::Gpu(gpu));
            loader.upload(files, &wanted, parts.sites, gpu)?;
        }
        let weights = loader.finish(directory, parts);
        Ok((weights, store))
    }

    /// Weights without memory, to build graphs that are never run; all parts on the processor.
    pub(crate) fn imagined(
        directory: &ModelDirectory,
        parts: Parts<'_>,
    ) -> Result<Self, TensorError> {
        let wanted = wanted_tensors(directory, parts, Site::Processor);
        let tensors: Vec<&TensorInfo> = wanted.iter().map(|wanted| wanted.tensor).collect();
        let specs: Vec<TensorSpec> = tensors.iter().map(|tensor| spec(tensor)).collect();
        let mut loader = Loader::new();
        loader.add_plain(&TensorSet::imagined(&specs)?, &tensors);
        Ok(loader.finish(directory, parts))
    }

    /// The weights of a layer that is held.
    pub(crate) fn layer(&self, layer: usize) -> &LayerWeights {
        &self.layers[self.held.index_of(layer).expect("checked: the layer is held here")]
    }

    /// The factors of rotary frequencies where a layer that is held is computed.
    pub(crate) fn rope_frequencies(&self, layer: usize) -> Option<&Weight> {
        let index = self.held.index_of(layer).expect("checked: the layer is held here");
        self.rope_frequencies[index].as_ref()
    }
}

/// A tensor to load, and what it serves for.
#[derive(Clone, Copy, Debug)]
struct Wanted<'d> {
    tensor: &'d TensorInfo,
    /// As the matrix of products.
    multiplied: bool,
    /// For anything else.
    otherwise: bool,
}

impl<'d> Wanted<'d> {
    fn matrix(tensor: &'d TensorInfo) -> Self {
        Self { tensor, multiplied: true, otherwise: false }
    }

    fn other(tensor: &'d TensorInfo) -> Self {
        Self { tensor, multiplied: false, otherwise: true }
    }

    fn layout(&self, layouts: &Layouts) -> Layout {
        if self.multiplied { layouts.of(self.tensor) } else { Layout::Plain }
    }
}

/// Tensors of the parts at a site, each once.
fn wanted_tensors<'d>(
    directory: &'d ModelDirectory,
    parts: Parts<'_>,
    site: Site,
) -> Vec<Wanted<'d>> {
    let mut wanted = Vec::new();
    let here = parts.layers.iter().filter(|layer| parts.sites.of_layer(*layer) == site);
    for layer in here.map(|layer| &directory.layers[layer]) {
        let matrices = layer.matrices();
        wanted.extend(layer.tensors().map(|tensor| {
            let matrix = matrices.contains(&tensor);
            if matrix { Wanted::matrix(tensor) } else { Wanted::other(tensor) }
        }));
    }
    let tied = directory.output.is_none();
    let head = parts.head && parts.sites.head() == site;
    let embedding = parts.embedding && site == Site::Processor;
    if head {
        wanted.push(Wanted::other(&directory.output_norm));
        wanted.push(Wanted {
            otherwise: tied && embedding,
            ..Wanted::matrix(directory.head_matrix())
        });
        wanted.extend(directory.output_bias.as_ref().map(Wanted::other));
    }
    if embedding && !(head && tied) {
        wanted.push(Wanted::other(&directory.embedding));
    }
    wanted.extend(directory.rope_frequencies.as_ref().map(Wanted::other));
    wanted
}

struct Loader {
    /// Of the processor, by name.
    weights: Vec<(String, Weight)>,
    /// Of the GPUs, by name.
    elsewhere: BTreeMap<Site, Vec<(String, Weight)>>,
    mapped_bytes: u64,
    allocated_bytes: u64,
    gpu_bytes: BTreeMap<usize, u64>,
}

impl Loader {
    fn new() -> Self {
        Self {
            weights: Vec::new(),
            elsewhere: BTreeMap::new(),
            mapped_bytes: 0,
            allocated_bytes: 0,
            gpu_bytes: BTreeMap::new(),
        }
    }

    fn finish(self, directory: &ModelDirectory, parts: Parts<'_>) -> Weights {
        let sites = parts.sites;
        let at = |site| self.at(site);
        let layers: Vec<(Site, usize)> =
            parts.layers.iter().map(|layer| (sites.of_layer(layer), layer)).collect();
        Weights {
            embedding: parts.embedding.then(|| at(Site::Processor).weight(&directory.embedding)),
            held: parts.layers.clone(),
            rope_frequencies: layers
                .iter()
                .map(|(site, _)| at(*site).optional(directory.rope_frequencies.as_ref()))
                .collect(),
            layers: layers
                .iter()
                .map(|(site, layer)| at(*site).layer(&directory.layers[*layer]))
                .collect(),
            head: parts.head.then(|| {
                let here = at(sites.head());
                HeadWeights {
                    norm: here.weight(&directory.output_norm),
                    output: here.weight(directory.head_matrix()),
                    output_bias: here.optional(directory.output_bias.as_ref()),
                }
            }),
            mapped_bytes: self.mapped_bytes,
            allocated_bytes: self.allocated_bytes,
            gpu_bytes: self.gpu_bytes,
        }
    }

    /// What was loaded at a site.
    fn at(&self, site: Site) -> Loaded<'_> {
        match site {
            Site::Processor => Loaded(&self.weights),
            Site::Gpu(_) => Loaded(&self.elsewhere[&site]),
        }
    }

    /// Copies tensors to a GPU.
    fn upload(
        &mut self,
        files: &[Arc<MappedFile>],
        wanted: &[Wanted<'_>],
        sites: &Sites,
        gpu: usize,
    ) -> Result<(), TensorError> {
        let site = Site::Gpu(gpu);
        let tensors: Vec<&TensorInfo> = wanted.iter().map(|wanted| wanted.tensor).collect();
        for (file, tensors) in files_of(files, &tensors) {
            let set = TensorSet::upload(sites.memory(site), file, &placed(&tensors))?;
            *self.gpu_bytes.entry(gpu).or_default() += set.allocated_bytes() as u64;
            let loaded = self.elsewhere.entry(site).or_default();
            loaded.extend(set.ids().zip(&tensors).map(|(id, tensor)| {
                let plain = Some(Stored { set: Rc::clone(&set), id });
                (tensor.name.clone(), Weight { plain, packed: None, layout: Layout::Plain })
            }));
        }
        Ok(())
    }

    /// Maps the mapped layers and what is looked up by rows, copies what is small or misaligned,
    /// and declares everything else in pieces.
    fn place(
        &mut self,
        files: &[Arc<MappedFile>],
        directory: &ModelDirectory,
        wanted: &[Wanted<'_>],
        parts: Parts<'_>,
    ) -> Result<Store, StoreError> {
        let placement = parts.placement;
        let mut mapped = Vec::new();
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut experts: Vec<ExpertLayer<'_>> = Vec::new();
        for (index, layer) in parts.layers.iter().enumerate() {
            let tensors = &directory.layers[layer];
            if parts.sites.of_layer(layer) != Site::Processor {
                continue;
            }
            if placement.of_layer(index) == Residency::Mapped {
                mapped.extend(tensors.tensors());
                continue;
            }
            let pieces = cut_layer(tensors, placement.stream.piece_bytes).into_iter();
            groups.extend(pieces.map(|tensors| Group::new(tensors, Some(layer))));
            experts.extend(tensors.experts().map(|_| ExpertLayer { layer, tensors }));
        }
        if parts.head && parts.sites.head() == Site::Processor {
            groups.push(Group::new(vec![directory.head_matrix()], None));
        }
        groups.retain(|group| group.tensors.iter().all(|tensor| is_aligned(tensor)));
        for file in files_of(files, &mapped) {
            self.map_all(file.0, &file.1, true)?;
        }
        let in_pieces = |tensor: &TensorInfo| {
            let of_layer = |of: &ExpertLayer<'_>| {
                of.tensors.experts().is_some_and(|experts| experts.contains(&tensor))
            };
            groups.iter().any(|group| group.tensors.contains(&tensor))
                || experts.iter().any(of_layer)
        };
        let (rows, small): (Vec<&TensorInfo>, Vec<&TensorInfo>) = wanted
            .iter()
            .map(|wanted| wanted.tensor)
            .filter(|tensor| !mapped.contains(tensor) && !in_pieces(tensor))
            .partition(|tensor| *tensor == &directory.embedding && is_aligned(tensor));
        for (file, tensors) in files_of(files, &rows) {
            self.map_all(file, &tensors, false)?;
        }
        for (file, tensors) in files_of(files, &small) {
            self.copy(file, &tensors)?;
        }
        let members: Vec<Vec<&TensorInfo>> =
            groups.iter().map(|group| group.tensors.clone()).collect();
        let of_experts: Vec<&TensorInfo> =
            experts.iter().filter_map(|of| of.tensors.experts()).flatten().collect();
        let sizes = directory.hyper.experts;
        let sizes = sizes.map(|experts| ExpertSizes { experts, batch_rows: parts.batch_rows });
        let store = Store::new(files, Declared { groups, experts, sizes }, &placement.stream)?;
        store.sets().zip(&members).for_each(|(set, tensors)| self.add_plain(set, tensors));
        // Their tensors follow once the layers are there.
        of_experts.into_iter().for_each(|tensor| self.add(tensor, None));
        Ok(store)
    }

    /// Maps every tensor; those at places that ggml's kernels cannot read are copied. An embedding
    /// of its own is not brought into memory: each token needs one row, and plans do not count it.
    fn map(
        &mut self,
        files: &[Arc<MappedFile>],
        directory: &ModelDirectory,
        wanted: &[Wanted<'_>],
    ) -> Result<(), TensorError> {
        let (rows, whole): (Vec<&TensorInfo>, Vec<&TensorInfo>) = wanted
            .iter()
            .map(|wanted| wanted.tensor)
            .partition(|tensor| directory.output.is_some() && *tensor == &directory.embedding);
        for (tensors, populated) in [(whole, true), (rows, false)] {
            for (file, tensors) in files_of(files, &tensors) {
                self.map_all(file, &tensors, populated)?;
            }
        }
        Ok(())
    }

    fn map_all(
        &mut self,
        file: &Arc<MappedFile>,
        tensors: &[&TensorInfo],
        populated: bool,
    ) -> Result<(), TensorError> {
        {
            let (aligned, misaligned): (Vec<&TensorInfo>, Vec<&TensorInfo>) =
                tensors.iter().partition(|tensor| is_aligned(tensor));
            let mapped = TensorSet::map(Arc::clone(file), &placed(&aligned))?;
            if populated {
                populate(file, &aligned);
            }
            self.mapped_bytes += aligned.iter().map(|tensor| tensor.bytes).sum::<u64>();
            self.add_plain(&mapped, &aligned);
            self.copy(file, &misaligned)?;
        }
        Ok(())
    }

    /// Reads every tensor that some use needs as in the file.
    fn read(
        &mut self,
        files: &[Arc<MappedFile>],
        wanted: &[Wanted<'_>],
        layouts: &Layouts,
    ) -> Result<(), TensorError> {
        for (index, file) in files.iter().enumerate() {
            let (plain, packed): (Vec<Wanted<'_>>, Vec<Wanted<'_>>) = wanted
                .iter()
                .filter(|wanted| wanted.tensor.file_index == index)
                .partition(|wanted| wanted.otherwise || wanted.layout(layouts) != Layout::Packed);
            self.copy(file, &plain.iter().map(|wanted| wanted.tensor).collect::<Vec<_>>())?;
            for wanted in packed {
                self.add(wanted.tensor, None);
            }
        }
        Ok(())
    }

    fn copy(&mut self, file: &MappedFile, tensors: &[&TensorInfo]) -> Result<(), TensorError> {
        let copied = TensorSet::read_file(file, &placed(tensors))?;
        self.allocated_bytes += copied.allocated_bytes() as u64;
        self.add_plain(&copied, tensors);
        Ok(())
    }

    fn add_plain(&mut self, set: &Rc<TensorSet>, tensors: &[&TensorInfo]) {
        for (id, tensor) in set.ids().zip(tensors) {
            self.add(tensor, Some(Stored { set: Rc::clone(set), id }));
        }
    }

    fn add(&mut self, tensor: &TensorInfo, plain: Option<Stored>) {
        let weight = Weight { plain, packed: None, layout: Layout::Plain };
        self.weights.push((tensor.name.clone(), weight));
    }

    /// Makes the interleaved copies that `layouts` asks for, from the map or by reading. What is
    /// mapped and nobody reads as in the file leaves memory.
    fn pack(
        &mut self,
        files: &[Arc<MappedFile>],
        wanted: &[Wanted<'_>],
        layouts: &Layouts,
        mapped: bool,
    ) -> Result<(), TensorError> {
        let Some(memory) = layouts.packed_memory() else { return Ok(()) };
        let chosen: Vec<&Wanted<'_>> =
            wanted.iter().filter(|wanted| wanted.layout(layouts) != Layout::Plain).collect();
        let specs: Vec<TensorSpec> = chosen.iter().map(|wanted| spec(wanted.tensor)).collect();
        let set = TensorSet::allocate(memory, &specs)?;
        let mut buffer = Vec::new();
        for (id, wanted) in set.ids().zip(&chosen) {
            let tensor = wanted.tensor;
            let file = &files[tensor.file_index];
            if mapped {
                set.write(id, 0, bytes_of(file, tensor))?;
            } else {
                buffer.resize(set.tensor_bytes(id), 0);
                file.read_at(tensor.offset, &mut buffer).map_err(|error| {
                    let (name, message) = (tensor.name.clone(), error.to_string());
                    TensorError::Unreadable { name, message }
                })?;
                set.write(id, 0, &buffer)?;
            }
            let layout = wanted.layout(layouts);
            if mapped && layout == Layout::Packed && !wanted.otherwise && is_aligned(tensor) {
                let bytes = bytes_of(file, tensor);
                file.let_go(usize::try_from(tensor.offset).expect("mapped"), bytes.len());
                self.mapped_bytes -= tensor.bytes;
            }
            let weight = self.find_mut(&tensor.name);
            weight.packed = Some(Stored { set: Rc::clone(&set), id });
            weight.layout = layout;
        }
        self.allocated_bytes += set.allocated_bytes() as u64;
        Ok(())
    }

    fn find_mut(&mut self, name: &str) -> &mut Weight {
        let found = self.weights.iter_mut().find(|(known, _)| known == name);
        &mut found.expect("every wanted tensor was added").1
    }
}

/// What was loaded at one site, by name.
#[derive(Clone, Copy)]
struct Loaded<'l>(&'l [(String, Weight)]);

impl Loaded<'_> {
    fn weight(&self, tensor: &TensorInfo) -> Weight {
        let found = self.0.iter().find(|(known, _)| *known == tensor.name);
        found.expect("every wanted tensor was added").1.clone()
    }

    fn optional(&self, tensor: Option<&TensorInfo>) -> Option<Weight> {
        tensor.map(|tensor| self.weight(tensor))
    }

    fn layer(&self, layer: &LayerTensors) -> LayerWeights {
        LayerWeights {
            attention_norm: self.weight(&layer.attention_norm),
            query: self.weight(&layer.query),
            query_bias: self.optional(layer.query_bias.as_ref()),
            key: self.weight(&layer.key),
            key_bias: self.optional(layer.key_bias.as_ref()),
            value: self.weight(&layer.value),
            value_bias: self.optional(layer.value_bias.as_ref()),
            query_norm: self.optional(layer.query_norm.as_ref()),
            key_norm: self.optional(layer.key_norm.as_ref()),
            attention_output: self.weight(&layer.attention_output),
            attention_output_bias: self.optional(layer.attention_output_bias.as_ref()),
            attention_post_norm: self.optional(layer.attention_post_norm.as_ref()),
            feed_forward_norm: self.weight(&layer.feed_forward_norm),
            router: self.optional(layer.router.as_ref()),
            expert_slots: None,
            gate: self.weight(&layer.gate),
            gate_bias: self.optional(layer.gate_bias.as_ref()),
            up: self.weight(&layer.up),
            up_bias: self.optional(layer.up_bias.as_ref()),
            down: self.weight(&layer.down),
            down_bias: self.optional(layer.down_bias.as_ref()),
            feed_forward_post_norm: self.optional(layer.feed_forward_post_norm.as_ref()),
        }
    }
}

/// The tensors by the file that holds them.
fn files_of<'f, 'd>(
    files: &'f [Arc<MappedFile>],
    tensors: &[&'d TensorInfo],
) -> Vec<(&'f Arc<MappedFile>, Vec<&'d TensorInfo>)> {
    let of_file = |index| tensors.iter().copied().filter(move |tensor| tensor.file_index == index);
    files.iter().enumerate().map(|(index, file)| (file, of_file(index).collect())).collect()
}

/// Whether ggml's kernels can read the tensor at its place in the file.
fn is_aligned(tensor: &TensorInfo) -> bool {
    tensor.offset.is_multiple_of(TensorSet::FILE_ALIGNMENT)
}

/// Brings the tensors into memory, neighbours in one go.
fn populate(file: &MappedFile, tensors: &[&TensorInfo]) {
    let mut extents: Vec<Range<u64>> =
        tensors.iter().map(|tensor| tensor.offset..tensor.offset + tensor.bytes).collect();
    extents.sort_unstable_by_key(|extent| extent.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for extent in extents {
        match merged.last_mut() {
            // Padding between tensors is less than a page.
            Some(last) if extent.start <= last.end + PAGE_BYTES => last.end = extent.end,
            _ => merged.push(extent),
        }
    }
    for extent in merged {
        let start = usize::try_from(extent.start).expect("inside the map");
        let length = usize::try_from(extent.end - extent.start).expect("inside the map");
        file.populate(start, length);
    }
}

/// Gaps up to this length are cheaper to read than to leave out.
const PAGE_BYTES: u64 = 4096;

fn placed(tensors: &[&TensorInfo]) -> Vec<PlacedTensor> {
    let place = |tensor: &&TensorInfo| PlacedTensor { spec: spec(tensor), offset: tensor.offset };
    tensors.iter().map(place).collect()
}

/// The tensor as ggml knows it.
pub(crate) fn spec(tensor: &TensorInfo) -> TensorSpec {
    TensorSpec { name: tensor.name.clone(), element: element(tensor), shape: tensor.shape }
}

/// ggml's number of the tensor's element type; both type tables are ggml's.
pub(crate) fn element(tensor: &TensorInfo) -> ElementType {
    ElementType::from_id(tensor.tensor_type.id()).expect("the reader knows only types of ggml")
}

pub(crate) fn bytes_of<'f>(file: &'f MappedFile, tensor: &TensorInfo) -> &'f [u8] {
    let start = usize::try_from(tensor.offset).expect("inside the map");
    let length = usize::try_from(tensor.bytes).expect("inside the map");
    &file.bytes()[start..start + length]
}

#[cfg(test)]
mod tests {
    use motley_model::TensorType;

    use super::*;

    /// Two tables of one format: the reader's, in safe Rust, and ggml's own.
    #[test]
    fn the_reader_knows_the_types_and_blocks_of_ggml() {
        for id in 0..256 {
            let (ours, theirs) = (TensorType::from_id(id), ElementType::from_id(id));
            assert_eq!(ours.is_some(), theirs.is_some(), "type {id}");
            let (Some(ours), Some(theirs)) = (ours, theirs) else { continue };
            let blocks = (theirs.block_elements() as u64, theirs.block_bytes() as u64);
            assert_eq!((ours.block_elements(), ours.block_bytes()), blocks, "{theirs}");
            assert_eq!(ours.name().to_lowercase(), theirs.name().to_lowercase());
        }
    }
}
