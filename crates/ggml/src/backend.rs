//! Devices, back-ends and the kinds of memory they offer.

use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::arena::{Arena, Region};
use crate::element::ElementType;
use crate::graph::Graph;
use crate::log;
use crate::threads::ThreadPool;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// A GPU with its own memory.
    Gpu,
    /// A GPU that shares the system's memory.
    IntegratedGpu,
    /// Another accelerator that works in system memory.
    Accelerator,
}

/// A device that this build of ggml can compute on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device {
    raw: NonNull<sys::ggml_backend_device>,
}

// SAFETY: entries of ggml's registry are static, and its questions about a device may be asked on
// any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// All devices, in ggml's order.
pub fn devices() -> Vec<Device> {
    log::start();
    // SAFETY: the registry is static; indices below the count are valid.
    unsafe {
        (0..sys::ggml_backend_dev_count())
            .filter_map(|index| NonNull::new(sys::ggml_backend_dev_get(index)))
            .map(|raw| Device { raw })
            .collect()
    }
}

/// The GPUs among the devices, in ggml's order.
pub fn gpus() -> Vec<Device> {
    let is_gpu =
        |device: &Device| matches!(device.kind(), DeviceKind::Gpu | DeviceKind::IntegratedGpu);
    devices().into_iter().filter(is_gpu).collect()
}

impl Device {
    /// The processor.
    ///
    /// # Panics
    /// When ggml was built without its CPU back-end, which this crate never does.
    pub fn cpu() -> Self {
        devices()
            .into_iter()
            .find(|device| device.kind() == DeviceKind::Cpu)
            .expect("the CPU back-end is always built")
    }

    /// ggml's short name, such as `CPU` or `Vulkan0`.
    pub fn name(&self) -> String {
        // SAFETY: device names are static strings.
        unsafe { CStr::from_ptr(sys::ggml_backend_dev_name(self.raw.as_ptr())) }
            .to_string_lossy()
            .into_owned()
    }

    /// What the maker calls it.
    pub fn description(&self) -> String {
        // SAFETY: device descriptions are static strings.
        unsafe { CStr::from_ptr(sys::ggml_backend_dev_description(self.raw.as_ptr())) }
            .to_string_lossy()
            .into_owned()
    }

    /// What the device is.
    pub fn kind(&self) -> DeviceKind {
        // SAFETY: the handle is static.
        match unsafe { sys::ggml_backend_dev_type(self.raw.as_ptr()) } {
            sys::GGML_BACKEND_DEVICE_TYPE_GPU => DeviceKind::Gpu,
            sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::IntegratedGpu,
            sys::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
            _ => DeviceKind::Accelerator,
        }
    }

    /// Free and total memory in bytes, as the driver reports them.
    pub fn memory_bytes(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the handle is static and both pointers are valid for writes.
        unsafe { sys::ggml_backend_dev_memory(self.raw.as_ptr(), &mut free, &mut total) };
        (free, total)
    }

    /// Whether graphs on this device can use tensors that lie in `kind` of memory.
    ///
    /// # Safety
    /// The kind is one of ggml's, which are static.
    pub(crate) unsafe fn reads(&self, kind: sys::ggml_backend_buffer_type_t) -> bool {
        // SAFETY: the device is static, the kind as the caller promises.
        unsafe { sys::ggml_backend_dev_supports_buft(self.raw.as_ptr(), kind) }
    }

    /// Whether the device has the operation of a node.
    ///
    /// # Safety
    /// The node and its sources belong to live contexts.
    pub(crate) unsafe fn supports(&self, node: NonNull<sys::ggml_tensor>) -> bool {
        // SAFETY: the device is static, the node as the caller promises.
        unsafe { sys::ggml_backend_dev_supports_op(self.raw.as_ptr(), node.as_ptr()) }
    }

    /// The device's ordinary memory.
    ///
    /// # Panics
    /// When the device offers none, which no ggml back-end does.
    pub fn memory(&self) -> BufferKind {
        // SAFETY: the handle is static.
        let raw = unsafe { sys::ggml_backend_dev_buffer_type(self.raw.as_ptr()) };
        BufferKind { raw: NonNull::new(raw).expect("every device has memory"), device: *self }
    }

    /// Further layouts for weights, such as the CPU's interleaved ("repacked") one.
    pub fn weight_layouts(&self) -> Vec<BufferKind> {
        // SAFETY: the registry entry is static; the procedure, where it exists, has the bound
        // signature by ggml's contract for this name and returns a NULL-terminated array.
        unsafe {
            let registry = sys::ggml_backend_dev_backend_reg(self.raw.as_ptr());
            let procedure = sys::ggml_backend_reg_get_proc_address(
                registry,
                c"ggml_backend_dev_get_extra_bufts".as_ptr(),
            );
            if procedure.is_null() {
                return Vec::new();
            }
            let procedure: sys::ggml_backend_dev_get_extra_bufts_t = std::mem::transmute(procedure);
            let Some(procedure) = procedure else { return Vec::new() };
            let mut next = procedure(self.raw.as_ptr());
            let mut layouts = Vec::new();
            while !next.is_null()
                && let Some(raw) = NonNull::new(*next)
            {
                layouts.push(BufferKind { raw, device: *self });
                next = next.add(1);
            }
            layouts
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name()).field("kind", &self.kind()).finish()
    }
}

/// A kind of memory: where tensors live and in which layout.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BufferKind {
    raw: NonNull<sys::ggml_backend_buffer_type>,
    device: Device,
}

impl BufferKind {
    /// ggml's name of the kind, such as `CPU` or `CPU_REPACK`.
    pub fn name(&self) -> String {
        // SAFETY: buffer type names are static strings.
        unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(self.raw.as_ptr())) }
            .to_string_lossy()
            .into_owned()
    }

    /// Whether the memory is the process's own, in whatever layout.
    pub(crate) fn is_in_processor_memory(&self) -> bool {
        self.device.kind() == DeviceKind::Cpu
    }

    /// Whether a matrix of `rows` rows of `row_elements` may be kept here as the weight of a
    /// matrix product with 32-bit floats.
    pub fn holds_matrix(&self, element: ElementType, row_elements: usize, rows: usize) -> bool {
        if element.row_bytes(row_elements).is_none() {
            return false;
        }
        let (Ok(columns), Ok(rows)) = (i64::try_from(row_elements), i64::try_from(rows)) else {
            return false;
        };
        // SAFETY: a small context is made and freed here; the probe tensors carry a buffer of
        // this kind so that the device can answer, and nothing is computed or kept.
        unsafe {
            let context = sys::ggml_init(sys::ggml_init_params {
                mem_size: 8 * sys::ggml_tensor_overhead(),
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            });
            let buffer = sys::ggml_backend_buft_alloc_buffer(self.raw.as_ptr(), 0);
            let supported = if context.is_null() || buffer.is_null() {
                false
            } else {
                let weight = sys::ggml_new_tensor_2d(context, element.raw(), columns, rows);
                let input = sys::ggml_new_tensor_2d(context, sys::GGML_TYPE_F32, columns, 512);
                (*weight).buffer = buffer;
                let product = sys::ggml_mul_mat(context, weight, input);
                sys::ggml_backend_dev_supports_op(self.device.raw.as_ptr(), product)
            };
            if !buffer.is_null() {
                sys::ggml_backend_buffer_free(buffer);
            }
            if !context.is_null() {
                sys::ggml_free(context);
            }
            supported
        }
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn raw(&self) -> sys::ggml_backend_buffer_type_t {
        self.raw.as_ptr()
    }
}

impl fmt::Debug for BufferKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BufferKind").field(&self.name()).finish()
    }
}

/// A graph could not be run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ComputeError {
    /// The graph has no memory, or its memory was given to a larger graph since.
    #[error("the graph has no compute memory of its current allocator")]
    NotAllocated,
    /// The graph has its memory on another device.
    #[error("the graph has its memory on {graph}, and was to run on {device}")]
    Elsewhere {
        /// The device that the graph was placed on.
        graph: String,
        /// The device that was to run it.
        device: String,
    },
    /// Weights that the graph reads have no memory now.
    #[error("weights that the graph reads have no memory now")]
    NotPlaced,
    /// The back-end reported a failure.
    #[error("the back-end failed with status {status}: {message}")]
    Backend {
        /// ggml's status number.
        status: i32,
        /// What ggml logged last.
        message: String,
    },
}

/// A device could not be made ready.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{device} does not start: {message}")]
pub struct StartError {
    /// ggml's name of the device.
    pub device: String,
    /// What ggml logged last.
    pub message: String,
}

/// A device made ready to run graphs.
#[derive(Debug)]
pub struct Backend {
    device: Device,
    runner: Runner,
}

#[derive(Debug)]
enum Runner {
    Processor(Processor),
    Driver(Driver),
}

/// The compute threads and what they share.
#[derive(Debug)]
struct Processor {
    pool: ThreadPool,
    /// Of the pool's threads those that compute.
    threads: i32,
    /// Where operations keep what they need beside their tensors. ggml's own back-end takes it from
    /// the heap, at any multiple of 16 bytes; here it begins a cache line, so that no vector that is
    /// read from it lies in two.
    work: Option<Region>,
}

/// A back-end of ggml for another device than the processor.
#[derive(Debug)]
struct Driver(NonNull<sys::ggml_backend>);

impl Backend {
    /// The processor with a pool of compute threads.
    pub fn cpu(pool: ThreadPool) -> Self {
        let threads = i32::try_from(pool.threads()).expect("at most 512");
        let runner = Runner::Processor(Processor { pool, threads, work: None });
        Self { device: Device::cpu(), runner }
    }

    /// Makes another device than the processor ready.
    ///
    /// # Errors
    /// When the driver refuses.
    ///
    /// # Panics
    /// When the device is the processor, which computes with [a pool of threads](Self::cpu).
    pub fn start(device: Device) -> Result<Self, StartError> {
        assert!(device.kind() != DeviceKind::Cpu, "the processor starts with a pool of threads");
        // SAFETY: the handle is static, and no back-end of ggml needs parameters.
        let raw = unsafe { sys::ggml_backend_dev_init(device.raw.as_ptr(), std::ptr::null()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { device, runner: Runner::Driver(Driver(raw)) }),
            None => Err(StartError { device: device.name(), message: log::take_last_error() }),
        }
    }

    /// The device that this back-end runs on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Compute threads, where the device has any.
    pub fn threads(&self) -> Option<usize> {
        match &self.runner {
            Runner::Processor(processor) => Some(processor.pool.threads()),
            Runner::Driver(_) => None,
        }
    }

    /// Lets only so many threads of the pool compute from now on.
    ///
    /// # Panics
    /// When the device has no pool, or one of fewer threads.
    pub fn use_threads(&mut self, threads: usize) {
        let Runner::Processor(processor) = &mut self.runner else {
            panic!("only the processor has threads");
        };
        let all = processor.pool.threads();
        assert!((1..=all).contains(&threads), "{threads} of {all} threads");
        processor.threads = i32::try_from(threads).expect("at most 512");
    }

    /// Lets the threads of a pool sleep until something is computed. Otherwise they look for work
    /// for a while after each graph, and take a processor from who could use it.
    pub fn rest(&self) {
        if let Runner::Processor(processor) = &self.runner {
            // SAFETY: the pool is live; computing wakes the threads of one that is paused.
            unsafe { sys::ggml_threadpool_pause(processor.pool.raw()) };
        }
    }

    /// Runs `graph` to its end.
    ///
    /// # Errors
    /// When the graph has no valid compute memory or the back-end fails.
    pub fn compute(&mut self, graph: &Graph) -> Result<(), ComputeError> {
        self.check_place(graph)?;
        if !graph.is_placed() {
            return Err(ComputeError::NotPlaced);
        }
        // SAFETY: every tensor of the graph has memory that the graph keeps alive.
        unsafe { self.run(graph.raw()) }
    }

    /// Runs one segment of a graph that was [cut](Graph::cut); all segments in order are the
    /// graph.
    ///
    /// # Errors
    /// When the graph or the weights that the segment reads have no memory, or the back-end fails.
    ///
    /// # Panics
    /// When there is no such segment.
    pub fn compute_segment(&mut self, graph: &Graph, segment: usize) -> Result<(), ComputeError> {
        self.check_place(graph)?;
        if !graph.is_segment_placed(segment) {
            return Err(ComputeError::NotPlaced);
        }
        // SAFETY: every tensor that the segment's nodes touch has memory that the graph keeps
        // alive: intermediate values by its place, weights as was checked.
        unsafe { self.run(graph.raw_segment(segment)) }
    }

    fn check_place(&self, graph: &Graph) -> Result<(), ComputeError> {
        match graph.placed_on() {
            None => Err(ComputeError::NotAllocated),
            Some(device) if device == self.device => Ok(()),
            Some(device) => {
                Err(ComputeError::Elsewhere { graph: device.name(), device: self.device.name() })
            }
        }
    }

    /// # Safety
    /// Every tensor of the graph has memory.
    unsafe fn run(&mut self, graph: *mut sys::ggml_cgraph) -> Result<(), ComputeError> {
        let status = match &mut self.runner {
            // SAFETY: promised by the caller.
            Runner::Processor(processor) => unsafe { processor.run(graph)? },
            // SAFETY: as above, and the handle is live.
            Runner::Driver(driver) => unsafe {
                sys::ggml_backend_graph_compute(driver.0.as_ptr(), graph)
            },
        };
        if status == sys::GGML_STATUS_SUCCESS {
            Ok(())
        } else {
            Err(ComputeError::Backend { status, message: log::take_last_error() })
        }
    }
}

impl Processor {
    /// # Safety
    /// Every tensor of the graph has memory.
    unsafe fn run(&mut self, graph: *mut sys::ggml_cgraph) -> Result<i32, ComputeError> {
        // SAFETY: the graph is live, and so is the pool, which has so many threads.
        let mut plan = unsafe { sys::ggml_graph_plan(graph, self.threads, self.pool.raw()) };
        if self.work.as_ref().is_none_or(|work| work.bytes() < plan.work_size) {
            self.work = None;
            let work = Arena::reserve(plan.work_size).map_err(ComputeError::no_memory)?;
            self.work = Some(work.1);
        }
        plan.work_data =
            self.work.as_mut().map_or(std::ptr::null_mut(), |work| work.bytes_mut().as_mut_ptr());
        // SAFETY: promised by the caller; the plan is of this graph and has the memory it asks for.
        Ok(unsafe { sys::ggml_graph_compute(graph, &mut plan) })
    }
}

impl ComputeError {
    fn no_memory(error: std::io::Error) -> Self {
        Self::Backend { status: sys::GGML_STATUS_ALLOC_FAILED, message: error.to_string() }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: the back-end is owned.
        unsafe { sys::ggml_backend_free(self.0.as_ptr()) }
    }
}
