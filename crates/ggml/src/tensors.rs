//! Sets of tensors with memory of their own: weights and caches.

use std::cell::RefCell;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::arena::{self, Arena, Region};
use crate::backend::{BufferKind, Device};
use crate::element::ElementType;
use crate::file::MappedFile;
use crate::log;

/// Name, type and shape of a tensor to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name for messages; ggml keeps its first 63 bytes.
    pub name: String,
    /// Element type.
    pub element: ElementType,
    /// Elements per dimension, fastest first; unused dimensions are 1.
    pub shape: [u64; 4],
}

/// A tensor that lies at a place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedTensor {
    /// What the tensor is.
    pub spec: TensorSpec,
    /// First byte in the file.
    pub offset: u64,
}

/// Why a set of tensors could not be made or touched.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TensorError {
    /// A dimension is zero, or the sizes overflow, or rows are no whole blocks.
    #[error("tensor {name} has the impossible shape {shape:?} for type {element}")]
    Shape {
        /// The tensor.
        name: String,
        /// The shape asked for.
        shape: [u64; 4],
        /// The type asked for.
        element: ElementType,
    },
    /// The tensor does not lie inside the file.
    #[error("tensor {name} needs {bytes} bytes at {offset} of a file of {file_bytes} bytes")]
    OutsideFile {
        /// The tensor.
        name: String,
        /// First byte in the file.
        offset: u64,
        /// Length of the tensor.
        bytes: usize,
        /// Length of the file.
        file_bytes: usize,
    },
    /// The place in the file is not aligned as ggml's kernels need it.
    #[error("tensor {name} lies at byte {offset}, which is no multiple of {alignment}")]
    Misaligned {
        /// The tensor.
        name: String,
        /// First byte in the file.
        offset: u64,
        /// What the offset must be a multiple of.
        alignment: u64,
    },
    /// The memory was refused.
    #[error("{bytes} bytes of {kind} memory were refused: {message}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Name of the buffer kind.
        kind: String,
        /// What ggml logged last.
        message: String,
    },
    /// The file could not be read, or has become shorter.
    #[error("tensor {name} cannot be read: {message}")]
    Unreadable {
        /// The tensor.
        name: String,
        /// What the system said.
        message: String,
    },
    /// An access beyond the end of a tensor.
    #[error("{length} bytes at {offset} lie outside a tensor of {bytes} bytes")]
    OutsideTensor {
        /// First byte touched.
        offset: usize,
        /// Bytes touched.
        length: usize,
        /// Size of the tensor.
        bytes: usize,
    },
}

/// The place of a tensor in its [`TensorSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TensorId(usize);

/// Tensors with memory, shared by the graphs that use them.
pub struct TensorSet {
    context: NonNull<sys::ggml_context>,
    buffer: Option<NonNull<sys::ggml_backend_buffer>>,
    tensors: Vec<NonNull<sys::ggml_tensor>>,
    // Keeps mapped memory alive.
    _file: Option<Arc<MappedFile>>,
    movable: Option<Movable>,
}

/// What a set needs whose tensors have memory only at times.
struct Movable {
    // Keeps every address alive that the tensors may point to.
    arena: Arena,
    held: RefCell<Option<Region>>,
}

impl TensorSet {
    /// What a mapped tensor's offset must be a multiple of.
    pub const FILE_ALIGNMENT: u64 = 32;

    /// Makes zero-filled tensors in memory of `kind`.
    ///
    /// # Errors
    /// When a shape is impossible or the memory is refused.
    pub fn allocate(kind: BufferKind, specs: &[TensorSpec]) -> Result<Rc<Self>, TensorError> {
        let mut set = Self::declare(specs.iter())?;
        if specs.is_empty() {
            return Ok(Rc::new(set));
        }
        // SAFETY: the context holds unallocated tensors only.
        let buffer = unsafe {
            sys::ggml_backend_alloc_ctx_tensors_from_buft(set.context.as_ptr(), kind.raw())
        };
        let Some(buffer) = NonNull::new(buffer) else {
            return Err(TensorError::OutOfMemory {
                bytes: set.tensors.iter().map(|tensor| bytes_of(*tensor)).sum(),
                kind: kind.name(),
                message: log::take_last_error(),
            });
        };
        set.buffer = Some(buffer);
        if kind.is_in_processor_memory() {
            // SAFETY: the buffer is owned by the set and lies in memory of this process.
            unsafe { arena::prefer_large_pages(buffer) };
        }
        // SAFETY: the buffer is owned by the set.
        unsafe { sys::ggml_backend_buffer_clear(buffer.as_ptr(), 0) };
        Ok(Rc::new(set))
    }

    /// Makes tensors in the processor's memory and reads their bytes from `file`, in the order of
    /// the file; it may be truncated or removed afterwards.
    ///
    /// # Errors
    /// When a tensor is misshaped or not inside the file, or memory or reading is refused.
    pub fn read_file(file: &MappedFile, placed: &[PlacedTensor]) -> Result<Rc<Self>, TensorError> {
        let specs: Vec<TensorSpec> = placed.iter().map(|tensor| tensor.spec.clone()).collect();
        let set = Self::allocate(Device::cpu().memory(), &specs)?;
        let mut in_order: Vec<_> = set.tensors.iter().zip(placed).collect();
        in_order.sort_unstable_by_key(|(_, place)| place.offset);
        for (tensor, place) in in_order {
            // SAFETY: the tensor has zero-filled memory of the processor, as many bytes as it
            // needs, which nothing else refers to yet.
            let bytes = unsafe {
                let data = sys::ggml_get_data(tensor.as_ptr()).cast::<u8>();
                std::slice::from_raw_parts_mut(data, bytes_of(*tensor))
            };
            file.read_at(place.offset, bytes).map_err(|error| TensorError::Unreadable {
                name: place.spec.name.clone(),
                message: error.to_string(),
            })?;
        }
        Ok(set)
    }

    /// Makes tensors in memory of `kind`, which may be a device's own, and copies their bytes there
    /// from `file`, in the order of the file.
    ///
    /// # Errors
    /// When a tensor is misshaped or not inside the file, or memory or reading is refused.
    pub fn upload(
        kind: BufferKind,
        file: &MappedFile,
        placed: &[PlacedTensor],
    ) -> Result<Rc<Self>, TensorError> {
        let specs: Vec<TensorSpec> = placed.iter().map(|tensor| tensor.spec.clone()).collect();
        let set = Self::allocate(kind, &specs)?;
        set.mark_weights();
        let mut in_order: Vec<_> = set.ids().zip(placed).collect();
        in_order.sort_unstable_by_key(|(_, place)| place.offset);
        let mut part = vec![0; UPLOAD_BYTES];
        for (id, place) in in_order {
            let bytes = set.tensor_bytes(id);
            for start in (0..bytes).step_by(UPLOAD_BYTES) {
                let part = &mut part[..UPLOAD_BYTES.min(bytes - start)];
                let read = file.read_at(place.offset.saturating_add(start as u64), part);
                read.map_err(|error| TensorError::Unreadable {
                    name: place.spec.name.clone(),
                    message: error.to_string(),
                })?;
                set.write(id, start, part)?;
            }
        }
        Ok(set)
    }

    /// Makes tensors that never have memory, for graphs that are only asked
    /// [what a device lacks for them](crate::Graph::lacking).
    ///
    /// # Errors
    /// When a shape is impossible.
    pub fn imagined(specs: &[TensorSpec]) -> Result<Rc<Self>, TensorError> {
        Ok(Rc::new(Self::declare(specs.iter())?))
    }

    /// Makes tensors that read the mapped bytes of `file`; nothing is copied.
    ///
    /// # Errors
    /// When a tensor is misshaped, misaligned or not inside the file.
    pub fn map(file: Arc<MappedFile>, placed: &[PlacedTensor]) -> Result<Rc<Self>, TensorError> {
        let mut set = Self::declare(placed.iter().map(|tensor| &tensor.spec))?;
        let bytes = file.bytes();
        for (tensor, place) in set.tensors.iter().zip(placed) {
            let length = bytes_of(*tensor);
            let outside = || TensorError::OutsideFile {
                name: place.spec.name.clone(),
                offset: place.offset,
                bytes: length,
                file_bytes: bytes.len(),
            };
            let end = place.offset.checked_add(length as u64).ok_or_else(outside)?;
            if end > bytes.len() as u64 {
                return Err(outside());
            }
            if !place.offset.is_multiple_of(Self::FILE_ALIGNMENT) {
                return Err(TensorError::Misaligned {
                    name: place.spec.name.clone(),
                    offset: place.offset,
                    alignment: Self::FILE_ALIGNMENT,
                });
            }
        }
        if placed.is_empty() {
            return Ok(Rc::new(set));
        }
        // SAFETY: the map is page aligned and outlives the buffer, which does not own it. Tensors
        // made here are only read: `write` refuses them, and graphs never write into weights.
        unsafe {
            let base = bytes.as_ptr().cast_mut();
            let buffer = sys::ggml_backend_cpu_buffer_from_ptr(base.cast(), bytes.len());
            set.buffer = NonNull::new(buffer);
            sys::ggml_backend_buffer_set_usage(buffer, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            for (tensor, place) in set.tensors.iter().zip(placed) {
                let offset = usize::try_from(place.offset).expect("inside the map");
                let status = sys::ggml_backend_tensor_alloc(
                    buffer,
                    tensor.as_ptr(),
                    base.add(offset).cast(),
                );
                assert_eq!(status, sys::GGML_STATUS_SUCCESS, "placing a tensor in a host buffer");
            }
        }
        set._file = Some(file);
        Ok(Rc::new(set))
    }

    /// Makes tensors that have memory only while a region of `arena` is lent to them.
    ///
    /// # Errors
    /// When a shape is impossible.
    ///
    /// # Panics
    /// When a tensor is larger than the arena.
    pub fn movable(arena: &Arena, specs: &[TensorSpec]) -> Result<Rc<Self>, TensorError> {
        let mut set = Self::declare(specs.iter())?;
        let largest = set.tensors.iter().map(|tensor| bytes_of(*tensor)).max().unwrap_or(0);
        assert!(largest <= arena.bytes(), "a tensor that fits nowhere");
        // SAFETY: the arena is page aligned and outlives the buffer, which does not own it.
        // Graphs take the tensors for placed, as they must, and only run while a region is lent.
        unsafe {
            let base = arena.base().as_ptr();
            let buffer = sys::ggml_backend_cpu_buffer_from_ptr(base.cast(), arena.bytes());
            set.buffer = NonNull::new(buffer);
            sys::ggml_backend_buffer_set_usage(buffer, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            for tensor in &set.tensors {
                let status = sys::ggml_backend_tensor_alloc(buffer, tensor.as_ptr(), base.cast());
                assert_eq!(status, sys::GGML_STATUS_SUCCESS, "placing a tensor in a host buffer");
            }
        }
        set.movable = Some(Movable { arena: arena.clone(), held: RefCell::new(None) });
        Ok(Rc::new(set))
    }

    /// Lends a region to a movable set: each tensor's bytes begin at its offset there.
    ///
    /// # Panics
    /// When the set is not movable or holds a region already, when the region is of another arena,
    /// or when an offset is misaligned or its tensor does not lie inside the region.
    pub fn lend(&self, mut region: Region, offsets: &[usize]) {
        let movable = self.movable.as_ref().expect("a movable set");
        assert!(movable.arena.owns(&region), "a region of the set's arena");
        assert_eq!(offsets.len(), self.tensors.len(), "an offset per tensor");
        let bytes = region.bytes_mut();
        for (tensor, offset) in self.tensors.iter().zip(offsets) {
            let end = offset.checked_add(bytes_of(*tensor));
            assert!(end.is_some_and(|end| end <= bytes.len()), "a tensor outside its region");
            assert!(offset.is_multiple_of(Self::FILE_ALIGNMENT as usize), "a misaligned tensor");
            // SAFETY: the tensor lies inside the region, which the set holds from here on. ggml
            // reads the address when a graph runs; graphs make no views of weights.
            unsafe { (*tensor.as_ptr()).data = bytes.as_mut_ptr().add(*offset).cast() };
        }
        let before = movable.held.borrow_mut().replace(region);
        assert!(before.is_none(), "a set holds one region at a time");
    }

    /// Takes a lent region back; nothing where none is lent.
    pub fn take_back(&self) -> Option<Region> {
        self.movable.as_ref().and_then(|movable| movable.held.borrow_mut().take())
    }

    /// Whether the tensors have memory now; imagined sets never have any, movable ones at times.
    pub fn is_placed(&self) -> bool {
        match &self.movable {
            Some(movable) => movable.held.borrow().is_some(),
            None => !self.is_imagined(),
        }
    }

    pub(crate) fn is_imagined(&self) -> bool {
        self.buffer.is_none() && !self.tensors.is_empty()
    }

    /// Whether graphs on `device` can use the tensors where they lie.
    pub(crate) fn is_read_by(&self, device: Device) -> bool {
        // SAFETY: the buffer is owned by the set; kinds are static.
        self.buffer.is_none_or(|buffer| unsafe {
            device.reads(sys::ggml_backend_buffer_get_type(buffer.as_ptr()))
        })
    }

    /// Whether the memory is that of the processor and not one of another device's that it can read;
    /// imagined tensors are nobody's.
    pub fn is_of_processor(&self) -> bool {
        // SAFETY: the buffer is owned by the set; kinds and devices are static. Ordinary memory of
        // the processor has no device in ggml.
        self.buffer.is_some_and(|buffer| unsafe {
            let kind = sys::ggml_backend_buffer_get_type(buffer.as_ptr());
            let device = sys::ggml_backend_buft_get_device(kind);
            device.is_null()
                || sys::ggml_backend_dev_type(device) == sys::GGML_BACKEND_DEVICE_TYPE_CPU
        })
    }

    fn mark_weights(&self) {
        if let Some(buffer) = self.buffer {
            let usage = sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
            // SAFETY: the buffer is owned by the set.
            unsafe { sys::ggml_backend_buffer_set_usage(buffer.as_ptr(), usage) };
        }
    }

    /// Whether this is a movable set and `tensor` one of its own.
    pub(crate) fn movable_contains(&self, tensor: *mut sys::ggml_tensor) -> bool {
        self.movable.is_some() && self.tensors.iter().any(|known| known.as_ptr() == tensor)
    }

    /// The tensors' ids, in the order they were declared.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = TensorId> + use<> {
        (0..self.tensors.len()).map(TensorId)
    }

    /// Bytes of one tensor in its stored form.
    pub fn tensor_bytes(&self, id: TensorId) -> usize {
        bytes_of(self.tensors[id.0])
    }

    /// Bytes of memory that the set allocated; zero for mapped and movable sets.
    pub fn allocated_bytes(&self) -> usize {
        match self.buffer {
            // SAFETY: the buffer is owned by the set.
            Some(buffer) if self._file.is_none() && self.movable.is_none() => unsafe {
                sys::ggml_backend_buffer_get_size(buffer.as_ptr())
            },
            _ => 0,
        }
    }

    /// Copies `bytes` into a tensor, beginning at byte `offset`.
    ///
    /// # Errors
    /// When the bytes do not fit.
    ///
    /// # Panics
    /// When the set is mapped or movable, hence read-only.
    pub fn write(&self, id: TensorId, offset: usize, bytes: &[u8]) -> Result<(), TensorError> {
        assert!(self._file.is_none(), "mapped tensors are read-only");
        assert!(self.movable.is_none(), "movable tensors are read-only");
        assert!(!self.is_imagined(), "imagined tensors have no memory");
        let tensor = self.checked(id, offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies inside the tensor, which has memory.
        unsafe {
            sys::ggml_backend_tensor_set(
                tensor.as_ptr(),
                bytes.as_ptr().cast(),
                offset,
                bytes.len(),
            );
        }
        Ok(())
    }

    /// Copies bytes out of a tensor, beginning at byte `offset`.
    ///
    /// # Errors
    /// When the range does not lie inside the tensor.
    ///
    /// # Panics
    /// When the set has no memory now.
    pub fn read(&self, id: TensorId, offset: usize, bytes: &mut [u8]) -> Result<(), TensorError> {
        assert!(self.is_placed(), "reading a tensor that has no memory now");
        let tensor = self.checked(id, offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies inside the tensor, which has memory.
        unsafe {
            sys::ggml_backend_tensor_get(
                tensor.as_ptr(),
                bytes.as_mut_ptr().cast(),
                offset,
                bytes.len(),
            );
        }
        Ok(())
    }

    pub(crate) fn raw(&self, id: TensorId) -> NonNull<sys::ggml_tensor> {
        self.tensors[id.0]
    }

    fn checked(
        &self,
        id: TensorId,
        offset: usize,
        length: usize,
    ) -> Result<NonNull<sys::ggml_tensor>, TensorError> {
        let tensor = self.tensors[id.0];
        let bytes = bytes_of(tensor);
        match offset.checked_add(length) {
            Some(end) if end <= bytes => Ok(tensor),
            _ => Err(TensorError::OutsideTensor { offset, length, bytes }),
        }
    }

    /// Makes a context with tensors that have no memory yet.
    fn declare<'a>(
        specs: impl ExactSizeIterator<Item = &'a TensorSpec>,
    ) -> Result<Self, TensorError> {
        log::start();
        // SAFETY: ggml allocates the context; tensors are made below within its size.
        let context = unsafe {
            sys::ggml_init(sys::ggml_init_params {
                mem_size: (specs.len() + 1) * sys::ggml_tensor_overhead(),
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            })
        };
        let context = NonNull::new(context).expect("a small allocation");
        let tensors = Vec::with_capacity(specs.len());
        let mut set = Self { context, buffer: None, tensors, _file: None, movable: None };
        for spec in specs {
            let shape = checked_shape(spec)?;
            let name = c_name(&spec.name);
            // SAFETY: the shape was checked and the context has room for every tensor.
            unsafe {
                let tensor =
                    sys::ggml_new_tensor(context.as_ptr(), spec.element.raw(), 4, shape.as_ptr());
                sys::ggml_set_name(tensor, name.as_ptr());
                set.tensors.push(NonNull::new(tensor).expect("the context has room"));
            }
        }
        Ok(set)
    }
}

impl Drop for TensorSet {
    fn drop(&mut self) {
        // SAFETY: both are owned; graphs that use the tensors hold a reference to this set.
        unsafe {
            if let Some(buffer) = self.buffer {
                sys::ggml_backend_buffer_free(buffer.as_ptr());
            }
            sys::ggml_free(self.context.as_ptr());
        }
    }
}

impl fmt::Debug for TensorSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorSet").field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}

/// Bytes of a file that are copied to a device at a time.
const UPLOAD_BYTES: usize = 4 << 20;

fn bytes_of(tensor: NonNull<sys::ggml_tensor>) -> usize {
    // SAFETY: the tensor belongs to a live context.
    unsafe { sys::ggml_nbytes(tensor.as_ptr()) }
}

/// The shape as ggml takes it, once its byte size is known to fit 62 bits.
fn checked_shape(spec: &TensorSpec) -> Result<[i64; 4], TensorError> {
    let misfit =
        || TensorError::Shape { name: spec.name.clone(), shape: spec.shape, element: spec.element };
    let columns = usize::try_from(spec.shape[0]).map_err(|_| misfit())?;
    let mut bytes = spec.element.row_bytes(columns).ok_or_else(misfit)? as u64;
    let mut shape = [0; 4];
    for (index, extent) in spec.shape.into_iter().enumerate() {
        shape[index] = i64::try_from(extent).map_err(|_| misfit())?;
        if extent == 0 {
            return Err(misfit());
        }
        if index > 0 {
            bytes = bytes.checked_mul(extent).ok_or_else(misfit)?;
        }
    }
    if bytes > 1 << 62 { Err(misfit()) } else { Ok(shape) }
}

/// A name cut to what ggml stores, without NUL inside.
pub(crate) fn c_name(name: &str) -> std::ffi::CString {
    let kept: Vec<u8> = name.bytes().filter(|byte| *byte != 0).take(63).collect();
    std::ffi::CString::new(kept).expect("NUL bytes were removed")
}
