//! Large pages for large buffers.
//!
//! Weights are read from end to end for every token. With pages of 4 kB the processor has to look
//! up 250,000 addresses per gigabyte, which costs most in a virtual machine.

use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

/// Asks the system to back a fresh buffer of the processor's memory by large pages, where it
/// leaves that choice to programs. Without effect on other systems.
pub(crate) fn advise_large(buffer: NonNull<sys::ggml_backend_buffer>) {
    #[cfg(target_os = "linux")]
    {
        const LARGE_PAGE_BYTES: usize = 2 << 20;
        // SAFETY: the buffer is live. Only whole large pages inside of it are advised, and advice
        // changes no content.
        unsafe {
            let base = sys::ggml_backend_buffer_get_base(buffer.as_ptr());
            let bytes = sys::ggml_backend_buffer_get_size(buffer.as_ptr());
            let skipped = base.addr().next_multiple_of(LARGE_PAGE_BYTES) - base.addr();
            let whole = bytes.saturating_sub(skipped) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
            if whole > 0 {
                libc::madvise(base.byte_add(skipped), whole, libc::MADV_HUGEPAGE);
            }
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = buffer;
}
