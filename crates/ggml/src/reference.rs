//! llama.cpp itself, in this process: the oracle of tests and the opponent of benchmarks.
//!
//! Nothing in the product's own path uses it.

use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::element::ElementType;
use crate::log;
use crate::threads::{ThreadPool, ThreadPoolOptions};
use crate::vocabulary::Token;

/// Why the reference could not answer.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// llama.cpp refused the file.
    #[error("llama.cpp cannot load {}: {message}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What llama.cpp logged last.
        message: String,
    },
    /// llama.cpp refused the context.
    #[error("llama.cpp cannot make a context: {message}")]
    Context {
        /// What llama.cpp logged last.
        message: String,
    },
    /// A batch failed.
    #[error("llama.cpp failed to decode a batch with status {status}: {message}")]
    Decode {
        /// llama.cpp's status number.
        status: i32,
        /// What llama.cpp logged last.
        message: String,
    },
}

/// A model loaded by llama.cpp.
pub struct ReferenceModel {
    raw: NonNull<sys::llama_model>,
    vocabulary_size: usize,
    width: usize,
}

impl ReferenceModel {
    /// Loads the model file on the processor; `repack` allows llama.cpp's interleaved weights, as
    /// it does by default.
    ///
    /// # Errors
    /// When llama.cpp refuses the file.
    pub fn load(path: &Path, repack: bool) -> Result<Self, ReferenceError> {
        log::start();
        log::take_last_error();
        let refused =
            || ReferenceError::Load { path: path.to_owned(), message: log::take_last_error() };
        let name = CString::new(path.to_string_lossy().into_owned()).map_err(|_| refused())?;
        // SAFETY: the path is NUL-terminated; the parameters are defaults with one switch set.
        let raw = unsafe {
            let mut parameters = sys::llama_model_default_params();
            parameters.n_gpu_layers = 0;
            parameters.use_extra_bufts = repack;
            sys::llama_model_load_from_file(name.as_ptr(), parameters)
        };
        let raw = NonNull::new(raw).ok_or_else(refused)?;
        // SAFETY: the model is live.
        let size = unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(raw.as_ptr())) };
        // SAFETY: the model is live.
        let width = unsafe { sys::llama_model_n_embd(raw.as_ptr()) };
        let count = |number: i32| usize::try_from(number).unwrap_or(0);
        Ok(Self { raw, vocabulary_size: count(size), width: count(width) })
    }

    /// Tokens in the vocabulary, which is the number of logits.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }
}

impl Drop for ReferenceModel {
    fn drop(&mut self) {
        // SAFETY: owned; contexts borrow the model.
        unsafe { sys::llama_model_free(self.raw.as_ptr()) }
    }
}

impl fmt::Debug for ReferenceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReferenceModel").field("vocabulary_size", &self.vocabulary_size).finish()
    }
}

/// Sizes of a reference context.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceOptions {
    /// Tokens of context per sequence.
    pub context_tokens: u32,
    /// Sequences at a time.
    pub sequences: u32,
    /// Rows in one batch at most.
    pub batch_rows: u32,
    /// Types of cached keys and of cached values.
    pub cache_elements: [ElementType; 2],
    /// Compute threads; the pool stays alive between batches.
    pub threads: ThreadPoolOptions,
    /// Threads for batches of several rows, if not as many.
    pub batch_threads: Option<usize>,
}

/// One row of a reference batch.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceRow {
    /// The token.
    pub token: Token,
    /// Its position in its sequence.
    pub position: u32,
    /// Its sequence.
    pub sequence: u32,
    /// Whether logits are wanted.
    pub logits: bool,
}

/// A context over a [`ReferenceModel`], with flash attention as in the product.
pub struct ReferenceContext<'m> {
    model: &'m ReferenceModel,
    raw: NonNull<sys::llama_context>,
    batch: sys::llama_batch,
    options: ReferenceOptions,
    // Dropped after the context that uses it; see `Drop`.
    _pool: ThreadPool,
}

impl<'m> ReferenceContext<'m> {
    /// Makes a context.
    ///
    /// # Errors
    /// When llama.cpp refuses, mostly for want of memory.
    pub fn new(
        model: &'m ReferenceModel,
        options: ReferenceOptions,
    ) -> Result<Self, ReferenceError> {
        log::take_last_error();
        let count = |threads: usize| i32::try_from(threads).expect("at most 512");
        let (single, several) = {
            let single = options.threads.threads;
            (single, options.batch_threads.unwrap_or(single))
        };
        let most = ThreadPoolOptions { threads: single.max(several), ..options.threads };
        let pool = ThreadPool::new(most);
        let rows = i32::try_from(options.batch_rows).expect("batches are small");
        // SAFETY: the model is live; the parameters are defaults with sizes set. The pool is
        // dropped after the context.
        let raw = unsafe {
            let mut parameters = sys::llama_context_default_params();
            parameters.n_ctx = options.context_tokens * options.sequences;
            parameters.n_batch = options.batch_rows;
            parameters.n_ubatch = options.batch_rows;
            parameters.n_seq_max = options.sequences;
            parameters.n_threads = count(single);
            parameters.n_threads_batch = count(several);
            parameters.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
            let [keys, values] = options.cache_elements;
            parameters.type_k = keys.raw();
            parameters.type_v = values.raw();
            sys::llama_init_from_model(model.raw.as_ptr(), parameters)
        };
        let raw = NonNull::new(raw)
            .ok_or_else(|| ReferenceError::Context { message: log::take_last_error() })?;
        // SAFETY: both handles are live; one sequence id per row.
        let batch = unsafe {
            sys::llama_attach_threadpool(raw.as_ptr(), pool.raw(), pool.raw());
            sys::llama_batch_init(rows, 0, 1)
        };
        Ok(Self { model, raw, batch, options, _pool: pool })
    }

    /// Runs one batch.
    ///
    /// # Errors
    /// When llama.cpp fails, for instance because the context is full.
    ///
    /// # Panics
    /// When there are no rows or more than the context was made for, or a row is outside the
    /// vocabulary or the sequences.
    pub fn decode(&mut self, rows: &[ReferenceRow]) -> Result<(), ReferenceError> {
        let most = self.options.batch_rows as usize;
        assert!(!rows.is_empty() && rows.len() <= most, "1 to {most} rows in a batch");
        for (index, row) in rows.iter().enumerate() {
            let known = usize::try_from(row.token).is_ok_and(|t| t < self.model.vocabulary_size);
            assert!(known, "token {} is outside the vocabulary", row.token);
            assert!(row.sequence < self.options.sequences, "sequence {}", row.sequence);
            // SAFETY: the batch was made with room for `most` rows of one sequence each.
            unsafe {
                *self.batch.token.add(index) = row.token;
                *self.batch.pos.add(index) = i32::try_from(row.position).expect("a position");
                *self.batch.n_seq_id.add(index) = 1;
                **self.batch.seq_id.add(index) = i32::try_from(row.sequence).expect("small");
                *self.batch.logits.add(index) = i8::from(row.logits);
            }
        }
        self.batch.n_tokens = i32::try_from(rows.len()).expect("batches are small");
        // SAFETY: the batch is filled for `n_tokens` rows.
        let status = unsafe {
            let status = sys::llama_decode(self.raw.as_ptr(), self.batch);
            sys::llama_synchronize(self.raw.as_ptr());
            status
        };
        if status == 0 {
            Ok(())
        } else {
            Err(ReferenceError::Decode { status, message: log::take_last_error() })
        }
    }

    /// Logits of row `index` of the last batch, one per token of the vocabulary.
    ///
    /// # Panics
    /// When no logits were asked for that row.
    pub fn logits(&mut self, index: usize) -> &[f32] {
        let row = i32::try_from(index).expect("batches are small");
        // SAFETY: llama.cpp returns null for rows without logits, else a row of the vocabulary's
        // length that lives until the next call on the context.
        unsafe {
            let row = sys::llama_get_logits_ith(self.raw.as_ptr(), row);
            assert!(!row.is_null(), "row {index} has no logits");
            std::slice::from_raw_parts(row, self.model.vocabulary_size)
        }
    }

    /// Makes the rows asked for give their final hidden states instead of logits, or logits again.
    pub fn set_gives_states(&mut self, states: bool) {
        // SAFETY: the context is live.
        unsafe { sys::llama_set_embeddings(self.raw.as_ptr(), states) }
    }

    /// The final hidden state, normed, of row `index` of the last batch.
    ///
    /// # Panics
    /// When no state was asked for that row.
    pub fn state(&mut self, index: usize) -> &[f32] {
        let row = i32::try_from(index).expect("batches are small");
        // SAFETY: llama.cpp returns null for rows without a state, else as many values as the model
        // is wide, which live until the next call on the context.
        unsafe {
            let row = sys::llama_get_embeddings_ith(self.raw.as_ptr(), row);
            assert!(!row.is_null(), "row {index} has no state");
            std::slice::from_raw_parts(row, self.model.width)
        }
    }

    /// Forgets all sequences.
    pub fn clear(&mut self) {
        // SAFETY: the context is live.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.raw.as_ptr()), true) }
    }
}

impl Drop for ReferenceContext<'_> {
    fn drop(&mut self) {
        // SAFETY: both are owned; the pool is a field and is dropped afterwards.
        unsafe {
            sys::llama_batch_free(self.batch);
            sys::llama_free(self.raw.as_ptr());
        }
    }
}

impl fmt::Debug for ReferenceContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReferenceContext").field("options", &self.options).finish_non_exhaustive()
    }
}
