//! Text to tokens and back, through llama.cpp's vocabulary.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::log;

/// A token id. Negative values never name a token.
pub type Token = i32;

/// Why a vocabulary could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// llama.cpp refused the metadata.
    #[error("the vocabulary was refused: {message}")]
    Refused {
        /// What llama.cpp logged last.
        message: String,
    },
    /// The metadata could not be handed over.
    #[error("the vocabulary could not be handed to llama.cpp")]
    Handover(#[source] std::io::Error),
    /// The text is longer than token counts reach.
    #[error("a text of {bytes} bytes is too long to tokenise")]
    TextTooLong {
        /// Length of the text.
        bytes: usize,
    },
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {size}")]
    UnknownToken {
        /// The token asked for.
        token: Token,
        /// Tokens in the vocabulary.
        size: usize,
    },
}

/// A loaded vocabulary; immutable, hence shareable between threads.
pub struct Vocabulary {
    model: NonNull<sys::llama_model>,
    vocab: NonNull<sys::llama_vocab>,
    size: usize,
    /// Visible characters of ASCII in the token that has the most; none where text may vanish.
    visible_max: Option<usize>,
}

// SAFETY: after loading, llama.cpp only reads the vocabulary; tokenising keeps its state on the
// stack of the call.
unsafe impl Send for Vocabulary {}
// SAFETY: as above.
unsafe impl Sync for Vocabulary {}

impl Vocabulary {
    /// Loads the vocabulary from the bytes of a GGUF file that holds metadata and no tensors.
    ///
    /// Take the bytes from a checked directory, so that llama.cpp never reads an untrusted file.
    ///
    /// # Errors
    /// When the bytes cannot be handed over or llama.cpp refuses the vocabulary.
    pub fn from_metadata(gguf: &[u8]) -> Result<Self, VocabularyError> {
        log::start();
        let file = MemoryFile::new(gguf).map_err(VocabularyError::Handover)?;
        let path = file.path().map_err(VocabularyError::Handover)?;
        log::take_last_error();
        // SAFETY: the path is NUL-terminated, and the parameters are llama.cpp's own defaults.
        let model = unsafe {
            let mut parameters = sys::llama_model_default_params();
            parameters.vocab_only = true;
            sys::llama_model_load_from_file(path.as_ptr(), parameters)
        };
        let model = NonNull::new(model)
            .ok_or_else(|| VocabularyError::Refused { message: log::take_last_error() })?;
        // SAFETY: the model is live; its vocabulary lives as long.
        let (vocab, size) = unsafe {
            let vocab = sys::llama_model_get_vocab(model.as_ptr());
            (vocab.cast_mut(), sys::llama_vocab_n_tokens(vocab))
        };
        let Some(vocab) = NonNull::new(vocab) else {
            // SAFETY: the model is owned and used no more.
            unsafe { sys::llama_model_free(model.as_ptr()) };
            return Err(VocabularyError::Refused { message: "no vocabulary".to_owned() });
        };
        let size = usize::try_from(size).unwrap_or(0);
        let mut vocabulary = Self { model, vocab, size, visible_max: None };
        vocabulary.visible_max = vocabulary.count_visible();
        Ok(vocabulary)
    }

    /// Tokens in the vocabulary.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Splits `text` into tokens. `add_special` adds the begin and end tokens that the model
    /// wants; `parse_special` turns texts such as `<|im_end|>` into their control tokens, so it
    /// must be off for text from users.
    ///
    /// # Errors
    /// When the text is too long to count.
    pub fn tokenize(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<Token>, VocabularyError> {
        let too_long = || VocabularyError::TextTooLong { bytes: text.len() };
        // Half of the range leaves room for added tokens, whatever llama.cpp sums up inside.
        let length = i32::try_from(text.len()).map_err(|_| too_long())?;
        let mut capacity =
            length.checked_mul(2).and_then(|twice| twice.checked_add(16)).ok_or_else(too_long)? / 4;
        loop {
            let mut tokens: Vec<Token> = vec![0; usize::try_from(capacity).unwrap_or(0)];
            // SAFETY: text and tokens are valid for the lengths given.
            let count = unsafe {
                sys::llama_tokenize(
                    self.vocab.as_ptr(),
                    text.as_ptr().cast::<c_char>(),
                    length,
                    tokens.as_mut_ptr(),
                    capacity,
                    add_special,
                    parse_special,
                )
            };
            if let Ok(count) = usize::try_from(count) {
                tokens.truncate(count);
                return Ok(tokens);
            }
            // A negative count is the room needed; the minimum means that it cannot be counted.
            let needed = count.checked_neg().ok_or_else(too_long)?;
            if needed <= capacity {
                return Err(too_long());
            }
            capacity = needed;
        }
    }

    /// A number of tokens that `text` has at least, told from its length alone, in a hundredth of
    /// the time that splitting it takes.
    ///
    /// Only visible characters of ASCII count: each of them ends up in some token, and no token has
    /// more than so many of them. White space may be taken away beside special tokens, and what a
    /// broken vocabulary has no token for is left out by llama.cpp. It is 0 for the kinds of
    /// vocabularies that shorten texts before they split them.
    pub fn tokens_at_least(&self, text: &str) -> usize {
        let visible = text.bytes().filter(u8::is_ascii_graphic).count();
        self.visible_max.map_or(0, |most| visible.div_ceil(most))
    }

    /// Appends the bytes that `token` stands for; control tokens give their text only when
    /// `special` is set. The bytes of one token need not be valid UTF-8.
    ///
    /// # Errors
    /// When the token is outside the vocabulary.
    pub fn append_bytes(
        &self,
        token: Token,
        special: bool,
        bytes: &mut Vec<u8>,
    ) -> Result<(), VocabularyError> {
        self.check(token)?;
        let start = bytes.len();
        let mut room = 32_i32;
        loop {
            bytes.resize(start + usize::try_from(room).unwrap_or(0), 0);
            // SAFETY: the token is in range and the buffer has `room` bytes from `start`.
            let length = unsafe {
                sys::llama_token_to_piece(
                    self.vocab.as_ptr(),
                    token,
                    bytes[start..].as_mut_ptr().cast::<c_char>(),
                    room,
                    0,
                    special,
                )
            };
            match usize::try_from(length) {
                Ok(length) => {
                    bytes.truncate(start + length);
                    return Ok(());
                }
                Err(_) => room = length.saturating_neg(),
            }
        }
    }

    /// The text of a sequence of tokens, with llama.cpp's rules for spaces between them; invalid
    /// UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// When a token is outside the vocabulary or the text is too long to count.
    pub fn detokenize(&self, tokens: &[Token], special: bool) -> Result<String, VocabularyError> {
        for token in tokens {
            self.check(*token)?;
        }
        let too_long = || VocabularyError::TextTooLong { bytes: tokens.len() };
        let count = i32::try_from(tokens.len()).map_err(|_| too_long())?;
        let mut room = count.checked_mul(8).and_then(|n| n.checked_add(32)).ok_or_else(too_long)?;
        loop {
            let mut bytes = vec![0_u8; usize::try_from(room).unwrap_or(0)];
            // SAFETY: both slices are valid for the lengths given, and the tokens are in range.
            let length = unsafe {
                sys::llama_detokenize(
                    self.vocab.as_ptr(),
                    tokens.as_ptr(),
                    count,
                    bytes.as_mut_ptr().cast::<c_char>(),
                    room,
                    false,
                    special,
                )
            };
            if let Ok(length) = usize::try_from(length) {
                bytes.truncate(length);
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
            let needed = length.checked_neg().ok_or_else(too_long)?;
            if needed <= room {
                return Err(too_long());
            }
            room = needed;
        }
    }

    /// Token that begins a text, if the model has one.
    pub fn begin_of_text(&self) -> Option<Token> {
        // SAFETY: the vocabulary is live.
        self.existing(unsafe { sys::llama_vocab_bos(self.vocab.as_ptr()) })
    }

    /// Token that ends a text, if the model has one.
    pub fn end_of_text(&self) -> Option<Token> {
        // SAFETY: the vocabulary is live.
        self.existing(unsafe { sys::llama_vocab_eos(self.vocab.as_ptr()) })
    }

    /// Token that ends a turn, if the model has one.
    pub fn end_of_turn(&self) -> Option<Token> {
        // SAFETY: the vocabulary is live.
        self.existing(unsafe { sys::llama_vocab_eot(self.vocab.as_ptr()) })
    }

    /// Whether the model expects a begin token in front of every text.
    pub fn adds_begin_of_text(&self) -> bool {
        // SAFETY: the vocabulary is live.
        unsafe { sys::llama_vocab_get_add_bos(self.vocab.as_ptr()) }
    }

    /// Whether generation ends at `token`; false outside the vocabulary.
    pub fn ends_generation(&self, token: Token) -> bool {
        // SAFETY: the token is in range.
        self.check(token).is_ok() && unsafe { sys::llama_vocab_is_eog(self.vocab.as_ptr(), token) }
    }

    /// Whether `token` is a control token; false outside the vocabulary.
    pub fn is_control(&self, token: Token) -> bool {
        // SAFETY: the token is in range.
        self.check(token).is_ok()
            && unsafe { sys::llama_vocab_is_control(self.vocab.as_ptr(), token) }
    }

    /// All tokens at which generation ends.
    pub fn end_tokens(&self) -> Vec<Token> {
        self.tokens().filter(|token| self.ends_generation(*token)).collect()
    }

    /// Texts of all control and user-defined tokens: what special parsing would recognise.
    pub fn special_texts(&self) -> Vec<String> {
        let special = sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_USER_DEFINED;
        let mut texts = Vec::new();
        for token in self.tokens() {
            // SAFETY: the token is in range.
            let attributes = unsafe { sys::llama_vocab_get_attr(self.vocab.as_ptr(), token) };
            if attributes & special != 0 {
                let mut bytes = Vec::new();
                if self.append_bytes(token, true, &mut bytes).is_ok()
                    && let Ok(text) = String::from_utf8(bytes)
                    && !text.is_empty()
                {
                    texts.push(text);
                }
            }
        }
        texts
    }

    /// The visible characters of ASCII of the token that has the most, for kinds of vocabularies
    /// that lose none: sentence pieces, which give a token per byte to what they do not know, and
    /// byte pairs that have each character by itself.
    fn count_visible(&self) -> Option<usize> {
        let (mut most, mut alone) = (0, 0_u128);
        for token in self.tokens() {
            let text = self.text(token);
            most = most.max(text.iter().filter(|byte| byte.is_ascii_graphic()).count());
            if let [byte @ 0..128] = text {
                alone |= 1 << byte;
            }
        }
        let has_each = (b'!'..=b'~').all(|byte| alone & (1 << byte) != 0);
        let loses_none = match self.kind().as_deref() {
            Some("llama") => true,
            Some("gpt2") => has_each && self.is_byte_level(),
            _ => false,
        };
        (loses_none && most > 0).then_some(most)
    }

    /// Whether byte pairs are made of bytes, each written as a character of its own, and not of the
    /// text's characters: then the byte 1 is written as U+0101.
    fn is_byte_level(&self) -> bool {
        let tokens = self.tokenize("\u{1}", false, false);
        matches!(tokens.as_deref(), Ok([token]) if self.text(*token) == "\u{101}".as_bytes())
    }

    /// The kind of vocabulary in the words of the file, if they are short.
    fn kind(&self) -> Option<String> {
        let mut bytes = [0_u8; 32];
        // SAFETY: the model is live, the key is NUL-terminated, and the buffer has the length given,
        // its terminating NUL included.
        let length = unsafe {
            sys::llama_model_meta_val_str(
                self.model.as_ptr(),
                c"tokenizer.ggml.model".as_ptr(),
                bytes.as_mut_ptr().cast::<c_char>(),
                bytes.len(),
            )
        };
        let kind = bytes.get(..usize::try_from(length).ok()?)?;
        String::from_utf8(kind.to_vec()).ok()
    }

    /// A token's text as the file writes it; empty outside the vocabulary.
    fn text(&self, token: Token) -> &[u8] {
        if self.check(token).is_err() {
            return &[];
        }
        // SAFETY: the token is in range.
        let text = unsafe { sys::llama_vocab_get_text(self.vocab.as_ptr(), token) };
        if text.is_null() {
            return &[];
        }
        // SAFETY: llama.cpp keeps a NUL-terminated text for each token as long as the vocabulary.
        unsafe { CStr::from_ptr(text) }.to_bytes()
    }

    fn tokens(&self) -> impl Iterator<Item = Token> {
        0..Token::try_from(self.size).unwrap_or(Token::MAX)
    }

    fn check(&self, token: Token) -> Result<(), VocabularyError> {
        match usize::try_from(token) {
            Ok(index) if index < self.size => Ok(()),
            _ => Err(VocabularyError::UnknownToken { token, size: self.size }),
        }
    }

    fn existing(&self, token: Token) -> Option<Token> {
        self.check(token).is_ok().then_some(token)
    }
}

impl Drop for Vocabulary {
    fn drop(&mut self) {
        // SAFETY: the model is owned; the vocabulary is a part of it.
        unsafe { sys::llama_model_free(self.model.as_ptr()) }
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.size).finish()
    }
}

/// Bytes under a path that llama.cpp can open: in memory on Linux, a temporary file elsewhere.
struct MemoryFile {
    #[cfg(target_os = "linux")]
    file: std::fs::File,
    #[cfg(not(target_os = "linux"))]
    file: tempfile::NamedTempFile,
}

impl MemoryFile {
    #[cfg(target_os = "linux")]
    fn new(bytes: &[u8]) -> std::io::Result<Self> {
        use std::io::Write;
        use std::os::fd::FromRawFd;

        // SAFETY: the name is NUL-terminated.
        let descriptor =
            unsafe { libc::memfd_create(c"motley-vocabulary".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor is fresh and owned by nobody else.
        let mut file = unsafe { std::fs::File::from_raw_fd(descriptor) };
        file.write_all(bytes)?;
        Ok(Self { file })
    }

    #[cfg(target_os = "linux")]
    fn path(&self) -> std::io::Result<CString> {
        use std::os::fd::AsRawFd;

        Ok(CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?)
    }

    #[cfg(not(target_os = "linux"))]
    fn new(bytes: &[u8]) -> std::io::Result<Self> {
        use std::io::Write;

        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(bytes)?;
        file.flush()?;
        Ok(Self { file })
    }

    #[cfg(not(target_os = "linux"))]
    fn path(&self) -> std::io::Result<CString> {
        Ok(CString::new(self.file.path().to_string_lossy().into_owned())?)
    }
}
