//! Reasoning ahead of an answer, which models write between two tags.

/// What opens reasoning.
pub(super) const OPENING: &str = "<think>";

/// What closes it.
pub(super) const CLOSING: &str = "</think>";

/// Tells reasoning from the answer behind it, in text that comes in pieces.
#[derive(Debug)]
pub(super) struct Thinking {
    place: Place,
    /// White space and the part of a tag that may turn out to be one.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the beginning, where reasoning may open.
    Beginning,
    /// In reasoning.
    Inside,
    /// Behind it, where white space says nothing.
    Behind,
    /// In the answer.
    Answer,
}

/// Whether a model's template knows reasoning.
pub(super) fn is_known(template: Option<&str>) -> bool {
    template.is_some_and(|template| template.contains(CLOSING))
}

impl Thinking {
    /// For an answer whose prompt ends with this text, which may have opened the reasoning.
    pub(super) fn after(prompt_end: &str) -> Self {
        let opened = prompt_end.trim_end().ends_with(OPENING);
        let place = if opened { Place::Inside } else { Place::Beginning };
        Self { place, held: String::new() }
    }

    /// Whether what comes next would be reasoning.
    pub(super) fn is_inside(&self) -> bool {
        self.place == Place::Inside
    }

    /// Divides the next piece of text.
    pub(super) fn push(&mut self, text: &str, thought: &mut String, answer: &mut String) {
        for character in text.chars() {
            self.take(character, thought, answer);
        }
    }

    /// Gives out what was held back, now that nothing more comes.
    pub(super) fn finish(&mut self, thought: &mut String, answer: &mut String) {
        match self.place {
            Place::Inside => thought.push_str(&self.held),
            Place::Beginning => answer.push_str(&self.held),
            Place::Behind | Place::Answer => {}
        }
        self.held.clear();
    }

    fn take(&mut self, character: char, thought: &mut String, answer: &mut String) {
        match self.place {
            Place::Beginning => {
                self.held.push(character);
                let tag = self.held.trim_start();
                if tag == OPENING {
                    self.held.clear();
                    self.place = Place::Inside;
                } else if !OPENING.starts_with(tag) {
                    answer.push_str(&self.held);
                    self.held.clear();
                    self.place = Place::Answer;
                }
            }
            Place::Inside => {
                self.held.push(character);
                if self.held.ends_with(CLOSING) {
                    let length = self.held.len() - CLOSING.len();
                    thought.push_str(self.held[..length].trim_end());
                    self.held.clear();
                    self.place = Place::Behind;
                } else {
                    // White space before the closing tag says nothing either.
                    let tag = self.held.trim_start();
                    if !tag.is_empty() && !CLOSING.starts_with(tag) {
                        let keep = begun_tag(&self.held);
                        thought.push_str(&self.held[..keep]);
                        self.held.drain(..keep);
                    }
                }
            }
            Place::Behind if character.is_whitespace() => {}
            Place::Behind | Place::Answer => {
                self.place = Place::Answer;
                answer.push(character);
            }
        }
    }
}

/// Where, in held text, white space and the beginning of a closing tag start anew: what is before
/// cannot belong to the tag any more.
fn begun_tag(held: &str) -> usize {
    let last = held.chars().next_back().map_or(0, char::len_utf8);
    let before = held.len() - last;
    match &held[before..] {
        "<" => held[..before].trim_end().len(),
        text if text.trim().is_empty() => held.trim_end().len(),
        _ => held.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reasoning and answer of a text, the same however it is cut.
    fn divided(prompt_end: &str, text: &str) -> (String, String) {
        let divide = |pieces: &[&str]| {
            let mut thinking = Thinking::after(prompt_end);
            let (mut thought, mut answer) = (String::new(), String::new());
            for piece in pieces {
                thinking.push(piece, &mut thought, &mut answer);
            }
            thinking.finish(&mut thought, &mut answer);
            (thought, answer)
        };
        let whole = divide(&[text]);
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(divide(&pieces), whole, "{text:?}");
        whole
    }

    #[test]
    fn reasoning_is_told_from_the_answer() {
        let both = |thought: &str, answer: &str| (thought.to_owned(), answer.to_owned());
        for (prompt_end, text, expected) in [
            (
                "",
                "<think>\nA < b.\n\nSo </ x\n</think>\n\nYes. </think>",
                both("\nA < b.\n\nSo </ x", "Yes. </think>"),
            ),
            ("assistant\n", "\n<think></think>No", both("", "No")),
            ("<think>\n", "Well </thin</think> Yes", both("Well </thin", "Yes")),
            ("<think>", "never closed </thi", both("never closed </thi", "")),
            ("", "I <think> so", both("", "I <think> so")),
            ("", " <thinking> so", both("", " <thinking> so")),
            ("", "<think", both("", "<think")),
            ("</think>\n\n", "Yes", both("", "Yes")),
        ] {
            assert_eq!(divided(prompt_end, text), expected, "{text:?}");
        }
    }
}
