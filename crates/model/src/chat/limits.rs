//! Every limit on a chat template, in one place.
//!
//! Templates come out of model files, so they are somebody else's program run with somebody
//! else's data. The largest of the 70 reference templates has 16738 bytes.

/// Longest template source, in bytes.
pub(super) const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Most operators, brackets and keywords in one tag; the most in a known template is 32.
pub(super) const OPERATORS_MAX: usize = 512;

/// Most `elif` tags in a template; the most in a known one is 20.
pub(super) const ELIFS_MAX: usize = 256;

/// Work one rendering may do, in the engine's unit (one step, or 64 bytes of data made or read).
pub(super) const FUEL: u64 = 4_000_000;

/// Most items of a list that a template keeps under a name.
pub(super) const LIST_ITEMS_MAX: usize = 1 << 20;

/// Longest rendered prompt, in bytes: well above the longest context of any model served.
pub(super) const OUTPUT_BYTES_MAX: usize = 32 << 20;

/// Engine recursion: a macro call costs several levels, a loop or condition one.
/// Low enough for a thread with a 2 MB stack.
pub(super) const RECURSION_MAX: usize = 250;

/// Deepest nesting of lists and objects in messages, tools and variables.
pub(super) const INPUT_DEPTH_MAX: usize = 128;

/// Renderings spent on finding which of a template's literals matter for the origin of control
/// tokens. Beyond it more literals count as mattering than do, which errs towards plain text.
pub(super) const ORIGIN_ATTEMPTS_MAX: usize = 24;

const _: () = assert!(
    OUTPUT_BYTES_MAX as u64 / 64 <= FUEL,
    "the longest prompt must be payable with the fuel of one rendering"
);
const _: () = assert!(TEMPLATE_BYTES_MAX < OUTPUT_BYTES_MAX);
