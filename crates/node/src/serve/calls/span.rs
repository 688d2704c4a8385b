//! Where a JSON object or array ends.

/// Follows an object or array byte by byte, without judging what is in it.
#[derive(Debug, Default)]
pub(super) struct Span {
    depth: u32,
    in_text: bool,
    escaped: bool,
}

impl Span {
    /// Takes the next byte, the first of which opens the value; true when it closes it.
    pub(super) fn closes_at(&mut self, byte: u8) -> bool {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}
