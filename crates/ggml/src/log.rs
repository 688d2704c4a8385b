//! Keeps what the C libraries say, so that errors can repeat it.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, Once, PoisonError};

use llama_cpp_sys_2 as sys;

static START: Once = Once::new();
static LAST_ERROR: Mutex<String> = Mutex::new(String::new());

/// Readies the C libraries: messages are kept instead of printed, and a failed assertion inside
/// ggml prints its text without forking a debugger.
pub(crate) fn start() {
    START.call_once(|| {
        // SAFETY: the callbacks are functions with static lifetime that never unwind.
        unsafe {
            sys::llama_log_set(Some(keep), std::ptr::null_mut());
            sys::ggml_set_abort_callback(Some(report_abort));
            sys::llama_backend_init();
        }
    });
}

/// Takes the newest error message, or an empty string when there is none.
pub(crate) fn take_last_error() -> String {
    std::mem::take(&mut LAST_ERROR.lock().unwrap_or_else(PoisonError::into_inner))
}

unsafe extern "C" fn keep(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if text.is_null() || level != sys::GGML_LOG_LEVEL_ERROR {
        return;
    }
    // SAFETY: ggml passes a NUL-terminated string that lives during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim();
    if !text.is_empty() {
        let mut last = LAST_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
        last.clear();
        last.push_str(text);
    }
}

unsafe extern "C" fn report_abort(text: *const c_char) {
    if !text.is_null() {
        // SAFETY: ggml passes a NUL-terminated string that lives during the call.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        #[expect(clippy::print_stderr, reason = "the process ends right after this message")]
        {
            eprintln!("ggml: {text}");
        }
    }
}
