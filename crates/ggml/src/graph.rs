//! Compute graphs: built once in a closure, allocated, then run many times.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;

use llama_cpp_sys_2 as sys;

use crate::arena;
use crate::backend::{Backend, Device, DeviceKind};
use crate::element::ElementType;
use crate::log;
use crate::packed::{Rounding, Turns};
use crate::segments::{self, Part, Segments};
use crate::tensors::{TensorId, TensorSet};

/// A tensor of a graph under construction; it cannot leave the closure that builds the graph.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    pub(crate) raw: NonNull<sys::ggml_tensor>,
    // Invariant in 'g, so that tensors of two builders never mix.
    _graph: PhantomData<Cell<&'g ()>>,
}

impl Tensor<'_> {
    /// Elements per dimension, fastest first.
    pub fn shape(&self) -> [usize; 4] {
        // SAFETY: the tensor belongs to a live context.
        unsafe { self.raw.as_ref() }.ne.map(|n| usize::try_from(n).expect("extents are positive"))
    }

    /// Bytes between neighbours per dimension.
    pub fn strides_bytes(&self) -> [usize; 4] {
        // SAFETY: as above.
        unsafe { self.raw.as_ref() }.nb
    }

    /// Element type.
    pub fn element(&self) -> ElementType {
        // SAFETY: as above.
        ElementType::from_id(unsafe { self.raw.as_ref() }.type_).expect("a type of a live tensor")
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        // SAFETY: as above.
        unsafe { sys::ggml_is_contiguous(self.raw.as_ptr()) }
    }

    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: as above.
        unsafe { sys::ggml_nbytes(self.raw.as_ptr()) }
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{:?}", self.element(), self.shape())
    }
}

/// A value that the caller writes before each run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input(usize);

/// A value that the caller may read after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output(usize);

/// Plain numbers that inputs and outputs are made of.
pub trait Scalar: Copy + sealed::Sealed {
    /// The element type with the same layout.
    const ELEMENT: ElementType;

    /// The value as a row index, where it can be one.
    fn as_index(self) -> Option<usize>;
}

mod sealed {
    #[expect(unnameable_types, reason = "the point of a sealed trait")]
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
    impl Sealed for u16 {}
}

impl Scalar for f32 {
    const ELEMENT: ElementType = ElementType::F32;

    fn as_index(self) -> Option<usize> {
        None
    }
}
impl Scalar for i32 {
    const ELEMENT: ElementType = ElementType::I32;

    fn as_index(self) -> Option<usize> {
        usize::try_from(self).ok()
    }
}
impl Scalar for i64 {
    const ELEMENT: ElementType = ElementType::I64;

    fn as_index(self) -> Option<usize> {
        usize::try_from(self).ok()
    }
}
/// The bits of a 16-bit float.
impl Scalar for u16 {
    const ELEMENT: ElementType = ElementType::F16;

    fn as_index(self) -> Option<usize> {
        None
    }
}

#[derive(Clone, Copy)]
struct DeclaredInput {
    tensor: NonNull<sys::ggml_tensor>,
    // What row indices must stay below; ggml would abort on a larger one.
    index_limit: Option<usize>,
}

type Raw = NonNull<sys::ggml_tensor>;

/// Makes the nodes of one graph.
pub struct Builder<'g> {
    pub(crate) context: NonNull<sys::ggml_context>,
    graph: NonNull<sys::ggml_cgraph>,
    tensors_left: Cell<usize>,
    inputs: RefCell<Vec<DeclaredInput>>,
    outputs: RefCell<Vec<NonNull<sys::ggml_tensor>>>,
    sets: RefCell<Vec<Rc<TensorSet>>>,
    turns: RefCell<Vec<Pin<Box<Turns>>>>,
    /// Rows that were laid out last, how they were rounded, and the result.
    pub(crate) last_packed: Cell<Option<(Raw, Rounding, Raw)>>,
    _graph: PhantomData<Cell<&'g ()>>,
}

impl<'g> Builder<'g> {
    /// Declares a value that the caller writes before each run.
    ///
    /// # Panics
    /// When an extent is zero.
    pub fn input(&self, element: ElementType, shape: [usize; 4]) -> (Tensor<'g>, Input) {
        self.declare_input(element, shape, None)
    }

    /// Declares `count` row indices of type `element` (32 or 64 bits), each below `limit`.
    pub fn indices(&self, element: ElementType, count: usize, limit: usize) -> (Tensor<'g>, Input) {
        assert!(element == ElementType::I32 || element == ElementType::I64, "indices are integers");
        self.declare_input(element, [count, 1, 1, 1], Some(limit))
    }

    pub(crate) fn declare_input(
        &self,
        element: ElementType,
        shape: [usize; 4],
        index_limit: Option<usize>,
    ) -> (Tensor<'g>, Input) {
        assert!(shape.iter().all(|extent| *extent > 0), "an input of no elements");
        assert!(element.row_bytes(shape[0]).is_some(), "input rows are whole blocks");
        let shape = shape.map(as_i64);
        self.take_one();
        // SAFETY: the context has room and the extents are positive.
        let raw = unsafe {
            let raw = sys::ggml_new_tensor(self.context.as_ptr(), element.raw(), 4, shape.as_ptr());
            sys::ggml_set_input(raw);
            NonNull::new(raw).expect("the context has room")
        };
        self.inputs.borrow_mut().push(DeclaredInput { tensor: raw, index_limit });
        let tensor = Tensor { raw, _graph: PhantomData };
        // Gives the input memory even if no node reads it; writing it would abort otherwise.
        self.expand(tensor);
        (tensor, Input(self.inputs.borrow().len() - 1))
    }

    /// Brings a tensor of a set, such as a weight, into the graph.
    pub fn stored(&self, set: &Rc<TensorSet>, id: TensorId) -> Tensor<'g> {
        let mut sets = self.sets.borrow_mut();
        if !sets.iter().any(|held| Rc::ptr_eq(held, set)) {
            sets.push(Rc::clone(set));
        }
        Tensor { raw: set.raw(id), _graph: PhantomData }
    }

    /// Appends `tensor` and what it depends on to the run order, unless already there.
    pub fn expand(&self, tensor: Tensor<'g>) {
        // SAFETY: the graph has room for every tensor of its context and for imported leaves.
        unsafe { sys::ggml_build_forward_expand(self.graph.as_ptr(), tensor.raw.as_ptr()) }
    }

    /// Declares `tensor` readable after a run, or after the segment of it that computes it, and
    /// appends it to the run order.
    pub fn output(&self, tensor: Tensor<'g>) -> Output {
        assert!(tensor.is_contiguous(), "outputs are contiguous");
        // SAFETY: the tensor belongs to this graph.
        unsafe { sys::ggml_set_output(tensor.raw.as_ptr()) };
        self.expand(tensor);
        self.outputs.borrow_mut().push(tensor.raw);
        Output(self.outputs.borrow().len() - 1)
    }

    /// Asserts that `rows` was declared by [`indices`](Self::indices) for at most `table_rows`.
    pub(crate) fn check_indices(&self, rows: Tensor<'g>, table_rows: usize) {
        let limit = self
            .inputs
            .borrow()
            .iter()
            .find(|input| input.tensor == rows.raw)
            .and_then(|input| input.index_limit);
        assert!(
            limit.is_some_and(|limit| limit <= table_rows),
            "row indices must be declared with a limit of at most {table_rows}"
        );
    }

    /// Asserts that the memory of `tensor` never moves: a view of it would not follow.
    pub(crate) fn check_stays(&self, tensor: Tensor<'g>) {
        let moves = |set: &Rc<TensorSet>| set.movable_contains(tensor.raw.as_ptr());
        assert!(!self.sets.borrow().iter().any(moves), "a view of a tensor whose memory moves");
    }

    /// Wraps a fresh node.
    pub(crate) fn node(&self, raw: *mut sys::ggml_tensor) -> Tensor<'g> {
        Tensor { raw: NonNull::new(raw).expect("the context has room"), _graph: PhantomData }
    }

    /// Keeps what a node points to for as long as the graph lives.
    pub(crate) fn keep(&self, turns: Turns) -> *const Turns {
        let turns = Box::pin(turns);
        let pointer = std::ptr::from_ref(&*turns);
        self.turns.borrow_mut().push(turns);
        pointer
    }

    /// Accounts for one tensor about to be made; ggml would abort on a full context.
    pub(crate) fn take_one(&self) {
        let left = self.tensors_left.get();
        assert!(left > 0, "the graph has more tensors than it was sized for");
        self.tensors_left.set(left - 1);
    }
}

impl fmt::Debug for Builder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("tensors_left", &self.tensors_left.get()).finish()
    }
}

/// A finished graph and everything that its nodes point to.
pub struct Graph {
    context: NonNull<sys::ggml_context>,
    graph: NonNull<sys::ggml_cgraph>,
    inputs: Vec<DeclaredInput>,
    outputs: Vec<NonNull<sys::ggml_tensor>>,
    // Keep the memory alive that nodes point into.
    sets: Vec<Rc<TensorSet>>,
    // Nodes of our own hold pointers to them.
    turns: Vec<Pin<Box<Turns>>>,
    segments: Segments,
    memory: Option<(Rc<ComputeMemory>, u64)>,
}

impl Graph {
    /// Builds a graph of at most `tensors_max` new tensors with the nodes that `build` makes.
    ///
    /// # Panics
    /// When `build` makes more tensors than that.
    pub fn build<R>(
        tensors_max: usize,
        build: impl for<'g> FnOnce(&Builder<'g>) -> R,
    ) -> (Self, R) {
        log::start();
        // Leaves from tensor sets do not live in this context, but take places in the graph.
        let places = tensors_max * 2;
        // SAFETY: plain allocation; sizes follow ggml's own accounting.
        let (context, graph) = unsafe {
            let context = sys::ggml_init(sys::ggml_init_params {
                mem_size: tensors_max * sys::ggml_tensor_overhead()
                    + sys::ggml_graph_overhead_custom(places, false),
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            });
            let graph = sys::ggml_new_graph_custom(context, places, false);
            (context, graph)
        };
        let builder = Builder {
            context: NonNull::new(context).expect("an allocation of metadata"),
            graph: NonNull::new(graph).expect("the context was sized for it"),
            tensors_left: Cell::new(tensors_max),
            inputs: RefCell::default(),
            outputs: RefCell::default(),
            sets: RefCell::default(),
            turns: RefCell::default(),
            last_packed: Cell::default(),
            _graph: PhantomData,
        };
        // Owned before `build` runs, so that a panic there frees the context.
        let mut graph = Self {
            context: builder.context,
            graph: builder.graph,
            inputs: Vec::new(),
            outputs: Vec::new(),
            sets: Vec::new(),
            turns: Vec::new(),
            segments: Segments::default(),
            memory: None,
        };
        let result = build(&builder);
        graph.inputs = builder.inputs.into_inner();
        graph.outputs = builder.outputs.into_inner();
        graph.sets = builder.sets.into_inner();
        graph.turns = builder.turns.into_inner();
        (graph, result)
    }

    /// Writes all elements of an input.
    ///
    /// # Panics
    /// When the graph has no memory, type or length differ from the declaration, or an index
    /// reaches its limit.
    pub fn write<T: Scalar>(&mut self, input: Input, values: &[T]) {
        let declared = self.inputs[input.0];
        if let Some(limit) = declared.index_limit {
            assert!(
                values.iter().all(|value| value.as_index().is_some_and(|index| index < limit)),
                "a row index outside a table of {limit} rows"
            );
        }
        let tensor = self.checked::<T>(declared.tensor, values.len());
        // SAFETY: type and byte length equal the tensor's, which has memory.
        unsafe {
            sys::ggml_backend_tensor_set(tensor, values.as_ptr().cast(), 0, size_of_val(values));
        }
    }

    /// Reads all elements of an output.
    ///
    /// # Panics
    /// When the graph has no memory, or type or length differ from the output's.
    pub fn read<T: Scalar>(&self, output: Output, values: &mut [T]) {
        let tensor = self.checked::<T>(self.outputs[output.0], values.len());
        // SAFETY: type and byte length equal the tensor's, which has memory.
        unsafe {
            sys::ggml_backend_tensor_get(
                tensor,
                values.as_mut_ptr().cast(),
                0,
                size_of_val(values),
            );
        }
    }

    /// Elements of an output.
    pub fn output_elements(&self, output: Output) -> usize {
        // SAFETY: the tensor belongs to this graph.
        usize::try_from(unsafe { sys::ggml_nelements(self.outputs[output.0].as_ptr()) })
            .expect("counts are positive")
    }

    /// Nodes in the run order.
    pub fn nodes(&self) -> usize {
        // SAFETY: the graph is live.
        usize::try_from(unsafe { sys::ggml_graph_n_nodes(self.graph.as_ptr()) })
            .expect("counts are positive")
    }

    /// Whether the graph still owns its compute memory; a larger graph may have taken it.
    pub fn is_allocated(&self) -> bool {
        self.placed_on().is_some()
    }

    /// The device whose compute memory the graph owns.
    pub fn placed_on(&self) -> Option<Device> {
        let (memory, round) = self.memory.as_ref()?;
        (memory.round.get() == *round).then_some(memory.device)
    }

    /// The first operation of the graph that `device` does not have for its types and shapes;
    /// nothing where the whole graph can run there.
    pub fn lacking(&self, device: Device) -> Option<String> {
        let nodes = self.node_pointers().into_iter();
        // SAFETY: the nodes belong to this graph, and their sources to it or to its sets.
        let lacking = nodes.filter(|node| unsafe { !device.supports(*node) });
        lacking.map(op_name).next()
    }

    /// Cuts the run order into segments, each of which reads tensors of at most one of `sets`,
    /// so that these need memory one after the other; replaces an earlier cutting.
    ///
    /// # Panics
    /// When one node reads tensors of two of the sets.
    pub fn cut(&mut self, sets: &[Rc<TensorSet>]) {
        let is_cut = |set: &Rc<TensorSet>| sets.iter().any(|cut| Rc::ptr_eq(cut, set));
        let nodes = self.node_pointers();
        let reads: Vec<Vec<usize>> = nodes.iter().map(|node| self.movable_read_by(*node)).collect();
        let cut_reads: Vec<Option<usize>> = reads
            .iter()
            .map(|reads| {
                let mut cut = reads.iter().copied().filter(|set| is_cut(&self.sets[*set]));
                let first = cut.next();
                assert!(cut.all(|other| Some(other) == first), "a node reads two of the sets");
                first
            })
            .collect();
        let parts = segments::cut(&cut_reads).into_iter().map(|(range, set)| {
            let mut resident: Vec<usize> = reads[range.clone()].concat();
            resident.retain(|other| Some(*other) != set);
            resident.sort_unstable();
            resident.dedup();
            Part {
                nodes: nodes[range].to_vec(),
                set: set.map(|set| Rc::clone(&self.sets[set])),
                resident: resident.into_iter().map(|set| Rc::clone(&self.sets[set])).collect(),
            }
        });
        self.segments = Segments::new(parts.collect());
    }

    /// Segments of the run order; none where it was not cut.
    pub fn segments(&self) -> usize {
        self.segments.parts.len()
    }

    /// The set, of those that the graph was cut by, whose tensors a segment reads.
    pub fn segment_set(&self, segment: usize) -> Option<&Rc<TensorSet>> {
        self.segments.parts[segment].set.as_ref()
    }

    pub(crate) fn raw(&self) -> *mut sys::ggml_cgraph {
        self.graph.as_ptr()
    }

    pub(crate) fn raw_segment(&self, segment: usize) -> *mut sys::ggml_cgraph {
        self.segments.parts[segment].graph.as_ptr()
    }

    /// Whether every stored tensor has memory.
    pub(crate) fn is_placed(&self) -> bool {
        self.sets.iter().all(|set| set.is_placed())
    }

    /// Whether the stored tensors that a segment reads have memory.
    pub(crate) fn is_segment_placed(&self, segment: usize) -> bool {
        let segment = &self.segments.parts[segment];
        segment.set.iter().chain(&segment.resident).all(|set| set.is_placed())
    }

    /// The movable sets whose tensors a node reads, as places in the list of sets.
    fn movable_read_by(&self, node: NonNull<sys::ggml_tensor>) -> Vec<usize> {
        // SAFETY: the node belongs to this graph.
        let sources = unsafe { node.as_ref() }.src;
        let set_of = |source| self.sets.iter().position(|set| set.movable_contains(source));
        sources.into_iter().filter(|source| !source.is_null()).filter_map(set_of).collect()
    }

    fn node_pointers(&self) -> Vec<NonNull<sys::ggml_tensor>> {
        (0..self.nodes())
            .map(|index| {
                let index = i32::try_from(index).expect("graphs are small");
                // SAFETY: the index lies below the number of nodes.
                let node = unsafe { sys::ggml_graph_node(self.graph.as_ptr(), index) };
                NonNull::new(node).expect("nodes exist")
            })
            .collect()
    }

    /// Makes every tensor of the graph's own context unplaced again; ggml would otherwise take an
    /// address from an earlier placement for memory of somebody else's and keep it.
    fn forget_memory(&mut self) {
        self.memory = None;
        // SAFETY: walks the tensors of the owned context; their memory belongs to a compute
        // buffer or, for views of stored tensors, is found again by ggml when it is placed.
        unsafe {
            let mut next = sys::ggml_get_first_tensor(self.context.as_ptr());
            while let Some(tensor) = NonNull::new(next) {
                (*tensor.as_ptr()).data = std::ptr::null_mut();
                (*tensor.as_ptr()).buffer = std::ptr::null_mut();
                next = sys::ggml_get_next_tensor(self.context.as_ptr(), next);
            }
        }
    }

    /// Asks for large pages for the compute memory that the graph was just given.
    fn prefer_large_pages(&self) {
        // SAFETY: walks the tensors of the owned context. Those that are no views lie in the
        // buffer of the processor's memory that was just made for this graph.
        unsafe {
            let mut next = sys::ggml_get_first_tensor(self.context.as_ptr());
            while let Some(tensor) = NonNull::new(next) {
                if tensor.as_ref().view_src.is_null()
                    && let Some(buffer) = NonNull::new(tensor.as_ref().buffer)
                {
                    return arena::prefer_large_pages(buffer);
                }
                next = sys::ggml_get_next_tensor(self.context.as_ptr(), next);
            }
        }
    }

    fn checked<T: Scalar>(
        &self,
        tensor: NonNull<sys::ggml_tensor>,
        elements: usize,
    ) -> *mut sys::ggml_tensor {
        assert!(self.is_allocated(), "the graph has no compute memory");
        // SAFETY: the tensor belongs to this graph.
        let (element, count) =
            unsafe { (tensor.as_ref().type_, sys::ggml_nelements(tensor.as_ptr())) };
        assert_eq!(element, T::ELEMENT.raw(), "element type of a graph value");
        assert_eq!(count, as_i64(elements), "elements of a graph value");
        tensor.as_ptr()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the context is owned, and the graph lives in it.
        unsafe { sys::ggml_free(self.context.as_ptr()) }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("nodes", &self.nodes()).finish_non_exhaustive()
    }
}

/// Compute memory was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("compute memory was refused: {message}")]
pub struct AllocateError {
    /// What ggml logged last.
    pub message: String,
}

struct ComputeMemory {
    raw: NonNull<sys::ggml_gallocr>,
    device: Device,
    // Grows when the memory moves, which leaves older graphs without memory.
    round: Cell<u64>,
    bytes: Cell<usize>,
}

impl Drop for ComputeMemory {
    fn drop(&mut self) {
        // SAFETY: owned; graphs placed in it hold a reference.
        unsafe { sys::ggml_gallocr_free(self.raw.as_ptr()) }
    }
}

/// Memory for intermediate values, shared by graphs that never run at the same time.
///
/// A graph keeps its place until a larger graph makes the memory move; reserve the largest first.
pub struct ComputeBuffer {
    memory: Rc<ComputeMemory>,
}

impl ComputeBuffer {
    /// Empty memory of the back-end's device.
    ///
    /// # Panics
    /// When the few bytes of the allocator itself are refused.
    pub fn new(backend: &Backend) -> Self {
        // SAFETY: the buffer type is static.
        let raw = unsafe { sys::ggml_gallocr_new(backend.device().memory().raw()) };
        let raw = NonNull::new(raw).expect("a small allocation");
        let (device, round, bytes) = (backend.device(), Cell::new(0), Cell::new(0));
        Self { memory: Rc::new(ComputeMemory { raw, device, round, bytes }) }
    }

    /// Gives `graph` its place on the back-end's device.
    ///
    /// # Errors
    /// When the memory has to grow and the system refuses, or another device than the processor
    /// lacks an operation of the graph.
    ///
    /// # Panics
    /// When the graph reads tensors that never have memory, or have it where the device cannot
    /// read it.
    pub fn allocate(&mut self, graph: &mut Graph) -> Result<(), AllocateError> {
        let device = self.memory.device;
        for set in &graph.sets {
            assert!(!set.is_imagined(), "a graph of tensors that never have memory");
            assert!(set.is_read_by(device), "stored tensors lie where {device:?} cannot read them");
        }
        if device.kind() != DeviceKind::Cpu
            && let Some(operation) = graph.lacking(device)
        {
            let message = format!("{} lacks the operation {operation}", device.name());
            return Err(AllocateError { message });
        }
        graph.forget_memory();
        // SAFETY: the graph is live; ggml writes addresses into its unallocated tensors only.
        let done = unsafe { sys::ggml_gallocr_alloc_graph(self.memory.raw.as_ptr(), graph.raw()) };
        // SAFETY: the allocator has one buffer.
        let bytes = unsafe { sys::ggml_gallocr_get_buffer_size(self.memory.raw.as_ptr(), 0) };
        if bytes != self.memory.bytes.get() || !done {
            self.memory.bytes.set(bytes);
            self.memory.round.set(self.memory.round.get() + 1);
            if done && device.kind() == DeviceKind::Cpu {
                graph.prefer_large_pages();
            }
        }
        if !done {
            return Err(AllocateError { message: log::take_last_error() });
        }
        graph.memory = Some((Rc::clone(&self.memory), self.memory.round.get()));
        Ok(())
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.memory.bytes.get()
    }
}

/// The name of a node's operation, with the type of what it reads first.
fn op_name(node: NonNull<sys::ggml_tensor>) -> String {
    // SAFETY: the node belongs to a live context, and so do its sources; names are static.
    unsafe {
        let name = CStr::from_ptr(sys::ggml_op_desc(node.as_ptr())).to_string_lossy();
        let first = node.as_ref().src[0];
        let element = first.as_ref().and_then(|first| ElementType::from_id(first.type_));
        element.map_or_else(|| name.to_string(), |element| format!("{name} of {element}"))
    }
}

impl fmt::Debug for ComputeBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ComputeBuffer").field("bytes", &self.bytes()).finish()
    }
}

pub(crate) fn as_i64(value: usize) -> i64 {
    i64::try_from(value).expect("extents fit 63 bits")
}
