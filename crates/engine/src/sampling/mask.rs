//! Which tokens of a vocabulary are eligible.

use motley_ggml::Token;

/// One bit per token; a constraint such as a grammar allows or forbids tokens through it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
    vocabulary_size: usize,
}

impl TokenMask {
    /// A mask that allows every token.
    pub fn all_allowed(vocabulary_size: usize) -> Self {
        let mut mask = Self::none_allowed(vocabulary_size);
        mask.words.fill(u64::MAX);
        let used_bits = vocabulary_size % BITS;
        if used_bits > 0 {
            // Bits beyond the vocabulary stay zero, so that masks compare by value.
            *mask.words.last_mut().expect("a partial word exists") = (1 << used_bits) - 1;
        }
        mask
    }

    /// A mask that forbids every token.
    pub fn none_allowed(vocabulary_size: usize) -> Self {
        Self { words: vec![0; vocabulary_size.div_ceil(BITS)], vocabulary_size }
    }

    /// Makes exactly those tokens eligible whose bit is set: 32 tokens a word, the lowest bit first.
    /// Bits beyond the vocabulary count for nothing, and tokens without a word are not eligible.
    pub fn assign(&mut self, words: &[u32]) {
        let mut halves = words.iter().map(|half| u64::from(*half));
        for word in &mut self.words {
            let (low, high) = (halves.next().unwrap_or(0), halves.next().unwrap_or(0));
            *word = low | high << u32::BITS;
        }
        let used_bits = self.vocabulary_size % BITS;
        if used_bits > 0 {
            *self.words.last_mut().expect("a partial word exists") &= (1 << used_bits) - 1;
        }
    }

    /// Number of tokens the mask speaks about.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// Makes `token` eligible.
    ///
    /// # Panics
    /// When the token lies outside the vocabulary.
    pub fn allow(&mut self, token: Token) {
        let (word, bit) = self.place(token);
        self.words[word] |= bit;
    }

    /// Makes `token` ineligible.
    ///
    /// # Panics
    /// When the token lies outside the vocabulary.
    pub fn forbid(&mut self, token: Token) {
        let (word, bit) = self.place(token);
        self.words[word] &= !bit;
    }

    /// Whether `token` is eligible.
    ///
    /// # Panics
    /// When the token lies outside the vocabulary.
    pub fn is_allowed(&self, token: Token) -> bool {
        let (word, bit) = self.place(token);
        self.words[word] & bit != 0
    }

    /// Number of eligible tokens.
    pub fn allowed_count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Sets the logits of ineligible tokens to negative infinity.
    pub(super) fn ban_others(&self, logits: &mut [f32]) {
        for (word, block) in self.words.iter().zip(logits.chunks_mut(BITS)) {
            if *word == u64::MAX {
                continue;
            }
            for (index, logit) in block.iter_mut().enumerate() {
                if word & (1 << index) == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    fn place(&self, token: Token) -> (usize, u64) {
        // A negative token becomes a huge index.
        let index = token as usize;
        assert!(index < self.vocabulary_size, "token {token} of {}", self.vocabulary_size);
        (index / BITS, 1 << (index % BITS))
    }
}

const BITS: usize = u64::BITS as usize;
