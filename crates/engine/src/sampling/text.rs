//! Bytes of tokens in, valid UTF-8 out.

use std::str;

/// Joins the bytes of successive tokens to text that is valid UTF-8 at every moment.
///
/// A character whose bytes are spread over tokens appears when its last byte arrives. Bytes that
/// can become no character appear as U+FFFD, one for each longest prefix of a character, exactly
/// as `String::from_utf8_lossy` shows the whole stream.
#[derive(Debug, Clone, Default)]
pub struct TextStream {
    /// Beginning of a character that may still be completed: at most three bytes.
    pending: [u8; 4],
    pending_length: usize,
}

impl TextStream {
    /// A stream that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of one token and appends the text that is certain now.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        let mut rest = bytes;
        while self.pending_length > 0 && !rest.is_empty() {
            self.pending[self.pending_length] = rest[0];
            match classify(&self.pending[..=self.pending_length]) {
                Prefix::Whole(character) => {
                    text.push_str(character);
                    self.pending_length = 0;
                    rest = &rest[1..];
                }
                Prefix::Partial => {
                    self.pending_length += 1;
                    rest = &rest[1..];
                }
                // The new byte does not belong to the held ones; it is looked at again alone.
                Prefix::Invalid => self.finish(text),
            }
        }
        self.push_fresh(rest, text);
    }

    /// Ends the stream: what is still held back can become no character any more.
    pub fn finish(&mut self, text: &mut String) {
        if self.pending_length > 0 {
            text.push(char::REPLACEMENT_CHARACTER);
            self.pending_length = 0;
        }
    }

    /// Number of bytes held back, 0 to 3.
    pub fn held_bytes(&self) -> usize {
        self.pending_length
    }

    fn push_fresh(&mut self, mut bytes: &[u8], text: &mut String) {
        loop {
            let error = match str::from_utf8(bytes) {
                Ok(valid) => return text.push_str(valid),
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            text.push_str(str::from_utf8(valid).expect("checked up to here"));
            let Some(invalid_length) = error.error_len() else {
                self.pending[..rest.len()].copy_from_slice(rest);
                self.pending_length = rest.len();
                return;
            };
            text.push(char::REPLACEMENT_CHARACTER);
            bytes = &rest[invalid_length..];
        }
    }
}

enum Prefix<'a> {
    Whole(&'a str),
    Partial,
    Invalid,
}

fn classify(bytes: &[u8]) -> Prefix<'_> {
    match str::from_utf8(bytes) {
        Ok(character) => Prefix::Whole(character),
        Err(error) if error.error_len().is_none() => Prefix::Partial,
        Err(_) => Prefix::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(parts: &[&[u8]]) -> Vec<String> {
        let mut stream = TextStream::new();
        let mut pieces: Vec<String> = Vec::new();
        for part in parts {
            let mut piece = String::new();
            stream.push(part, &mut piece);
            pieces.push(piece);
        }
        let mut tail = String::new();
        stream.finish(&mut tail);
        pieces.push(tail);
        pieces
    }

    #[test]
    fn a_character_appears_with_its_last_byte() {
        assert_eq!(stream(&[b"\xf0\x9f", b"\x98", b"\x80!"]), ["", "", "\u{1f600}!", ""]);
    }

    #[test]
    fn a_broken_beginning_is_replaced_and_the_next_byte_kept() {
        assert_eq!(stream(&[b"\xe2\x82", b"A"]), ["", "\u{fffd}A", ""]);
        assert_eq!(stream(&[b"\xe2\x82", b"\xe2\x82\xac"]), ["", "\u{fffd}\u{20ac}", ""]);
        assert_eq!(stream(&[b"\xe2\x82"]), ["", "\u{fffd}"]);
    }

    /// Bytes that are near valid UTF-8: whole characters mixed with pieces of others.
    fn nearly_utf8() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<char>().prop_map(|character| character.to_string().into_bytes()),
            any::<char>().prop_map(|character| {
                let bytes = character.to_string().into_bytes();
                bytes[..bytes.len() - 1].to_vec()
            }),
            any::<u8>().prop_map(|byte| vec![byte]),
            prop::sample::select(vec![0xc0, 0xe0, 0xed, 0xf0, 0xf4, 0xf5, 0x80, 0xbf])
                .prop_map(|byte| vec![byte]),
        ];
        prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn every_split_gives_the_lossy_text_of_the_whole(
            bytes in nearly_utf8(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut places: Vec<usize> =
                cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            places.push(bytes.len());
            places.sort_unstable();
            let mut start = 0;
            let parts: Vec<&[u8]> = places
                .iter()
                .map(|&end| &bytes[std::mem::replace(&mut start, end)..end])
                .collect();
            prop_assert_eq!(stream(&parts).concat(), String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn single_bytes_give_the_lossy_text_and_hold_back_at_most_three(bytes in nearly_utf8()) {
            let mut stream = TextStream::new();
            let mut text = String::new();
            for byte in &bytes {
                stream.push(&[*byte], &mut text);
                prop_assert!(stream.held_bytes() <= 3);
            }
            stream.finish(&mut text);
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
