//! Ending text before a stop string.

use super::limits::{STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX};

/// Finds stop strings in text that arrives in pieces, and lets through only text that no stop
/// string can claim any more.
///
/// The first stop string to be complete ends the text; of several that end at the same byte the
/// longest does. How the text was cut into pieces makes no difference. The search is Aho and
/// Corasick's (1975): each byte is looked at a constant number of times on average, however the
/// stop strings resemble each other.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    states: Vec<State>,
    current: usize,
    /// Text not let through yet: as many bytes as the current state is deep.
    held: String,
    verdict: StopVerdict,
}

/// Whether a stop string has been met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopVerdict {
    /// The text goes on.
    Continue,
    /// The text has ended before this stop string.
    Stopped {
        /// Index of the stop string in the list given.
        stop_index: usize,
    },
}

/// Why a list of stop strings is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopStringError {
    /// Too many strings.
    #[error("stop has {count} strings, at most {STOP_STRINGS_MAX} are accepted")]
    TooMany {
        /// Strings given.
        count: usize,
    },
    /// A string without a character would stop everything.
    #[error("stop string {index} is empty")]
    Empty {
        /// Place in the list.
        index: usize,
    },
    /// A string beyond the limit.
    #[error("stop string {index} has {length} bytes, at most {STOP_STRING_BYTES_MAX} are accepted")]
    TooLong {
        /// Place in the list.
        index: usize,
        /// Bytes of UTF-8.
        length: usize,
    },
}

impl StopMatcher {
    /// A matcher at the beginning of a text.
    pub fn new<S: AsRef<str>>(stop_strings: &[S]) -> Result<Self, StopStringError> {
        if stop_strings.len() > STOP_STRINGS_MAX {
            return Err(StopStringError::TooMany { count: stop_strings.len() });
        }
        let mut states = vec![State::new(0, 0)];
        for (index, stop_string) in stop_strings.iter().enumerate() {
            let bytes = stop_string.as_ref().as_bytes();
            match bytes.len() {
                0 => return Err(StopStringError::Empty { index }),
                1..=STOP_STRING_BYTES_MAX => insert(&mut states, bytes, index),
                length => return Err(StopStringError::TooLong { index, length }),
            }
        }
        link(&mut states);
        let held = String::new();
        Ok(Self { states, current: ROOT, held, verdict: StopVerdict::Continue })
    }

    /// Takes the next piece of text and appends to `text` what may be shown. After a stop string
    /// was met everything is swallowed.
    pub fn push(&mut self, piece: &str, text: &mut String) -> StopVerdict {
        if self.verdict != StopVerdict::Continue {
            return self.verdict;
        }
        self.held.push_str(piece);
        let piece_start = self.held.len() - piece.len();
        for (index, &byte) in piece.as_bytes().iter().enumerate() {
            self.current = advance(&self.states, self.current, byte);
            if let Some(found) = self.states[self.current].found {
                let stop_start = piece_start + index + 1 - usize::from(found.length);
                text.push_str(&self.held[..stop_start]);
                self.held.clear();
                self.verdict = StopVerdict::Stopped { stop_index: usize::from(found.stop_index) };
                return self.verdict;
            }
        }
        // The last bytes that could begin a stop string; they begin with a whole character,
        // because a stop string does.
        let free_length = self.held.len() - usize::from(self.states[self.current].depth);
        text.push_str(&self.held[..free_length]);
        self.held.drain(..free_length);
        self.verdict
    }

    /// Ends the text: what was held back is no stop string after all.
    pub fn finish(&mut self, text: &mut String) {
        text.push_str(&self.held);
        self.held.clear();
        self.current = ROOT;
    }

    /// Number of bytes held back now.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }
}

const ROOT: usize = 0;

/// A prefix of one or more stop strings.
#[derive(Debug, Clone)]
struct State {
    /// Byte and state of each longer prefix; never more than there are stop strings.
    longer: Vec<(u8, u16)>,
    /// State of the longest proper suffix that is a prefix too.
    suffix: u16,
    /// Length of the prefix in bytes.
    depth: u16,
    /// The longest stop string that this prefix ends with.
    found: Option<Found>,
}

#[derive(Debug, Clone, Copy)]
struct Found {
    stop_index: u16,
    length: u16,
}

impl State {
    fn new(suffix: u16, depth: u16) -> Self {
        Self { longer: Vec::new(), suffix, depth, found: None }
    }

    fn longer_by(&self, byte: u8) -> Option<usize> {
        self.longer
            .iter()
            .find(|(candidate, _)| *candidate == byte)
            .map(|&(_, state)| usize::from(state))
    }
}

fn insert(states: &mut Vec<State>, bytes: &[u8], stop_index: usize) {
    let mut current = ROOT;
    for &byte in bytes {
        current = match states[current].longer_by(byte) {
            Some(next) => next,
            None => {
                let next = states.len();
                let depth = states[current].depth + 1;
                states[current].longer.push((byte, next as u16));
                states.push(State::new(0, depth));
                next
            }
        };
    }
    // Of equal stop strings the first one in the list is named.
    let found = Found { stop_index: stop_index as u16, length: bytes.len() as u16 };
    states[current].found.get_or_insert(found);
}

/// Sets suffixes in order of depth, so that those of shorter prefixes are known.
fn link(states: &mut [State]) {
    let mut order: Vec<usize> = (0..states.len()).collect();
    order.sort_by_key(|&state| states[state].depth);
    for state in order {
        for (byte, next) in states[state].longer.clone() {
            let suffix = match state {
                ROOT => ROOT,
                _ => advance(states, usize::from(states[state].suffix), byte),
            };
            let next = usize::from(next);
            states[next].suffix = suffix as u16;
            states[next].found = states[next].found.or(states[suffix].found);
        }
    }
}

fn advance(states: &[State], mut current: usize, byte: u8) -> usize {
    loop {
        match states[current].longer_by(byte) {
            Some(next) => return next,
            None if current == ROOT => return ROOT,
            None => current = usize::from(states[current].suffix),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    fn run(stop_strings: &[&str], pieces: &[&str]) -> (Vec<String>, StopVerdict) {
        let mut matcher = StopMatcher::new(stop_strings).expect("stop strings are accepted");
        let mut verdict = StopVerdict::Continue;
        let mut shown = Vec::new();
        for piece in pieces {
            let mut text = String::new();
            verdict = matcher.push(piece, &mut text);
            shown.push(text);
        }
        let mut text = String::new();
        matcher.finish(&mut text);
        shown.push(text);
        (shown, verdict)
    }

    fn check(stop_strings: &[&str], pieces: &[&str], expected: Expect) {
        expected.assert_eq(&format!("{:?}", run(stop_strings, pieces)));
    }

    #[test]
    fn text_is_held_back_only_while_it_may_be_a_stop_string() {
        check(
            &["END"],
            &["a", " E", "N", "x E", "ND tail", "more"],
            expect![[r#"(["a", " ", "", "ENx ", "", "", ""], Stopped { stop_index: 0 })"#]],
        );
        check(&["END"], &["E", "N"], expect![[r#"(["", "", "EN"], Continue)"#]]);
        check(&[], &["any", "thing"], expect![[r#"(["any", "thing", ""], Continue)"#]]);
    }

    #[test]
    fn the_longest_stop_string_that_ends_first_wins() {
        check(&["b", "abcd"], &["xabcd"], expect![[r#"(["xa", ""], Stopped { stop_index: 0 })"#]]);
        check(
            &["bc", "abc", "c"],
            &["xabcd"],
            expect![[r#"(["x", ""], Stopped { stop_index: 1 })"#]],
        );
        check(&["x", "x"], &["x"], expect![[r#"(["", ""], Stopped { stop_index: 0 })"#]]);
    }

    #[test]
    fn characters_of_several_bytes_stay_whole() {
        check(&["äö"], &["ä", "ä", "ü"], expect![[r#"(["", "ä", "äü", ""], Continue)"#]]);
        check(
            &["\u{1f600}\u{1f601}"],
            &["\u{1f600}", "\u{1f602}"],
            expect![[r#"(["", "😀😂", ""], Continue)"#]],
        );
    }

    #[test]
    fn each_refusal_says_which_string_and_why() {
        let long = "x".repeat(STOP_STRING_BYTES_MAX + 1);
        let refusals = [vec!["a"; 17], vec!["a", ""], vec!["a", "b", long.as_str()]]
            .map(|list| StopMatcher::new(&list).expect_err("must be refused").to_string());
        expect![[r#"
            stop has 17 strings, at most 16 are accepted
            stop string 1 is empty
            stop string 2 has 1025 bytes, at most 1024 are accepted"#]]
        .assert_eq(&refusals.join("\n"));
    }

    #[test]
    fn the_largest_accepted_list_works() {
        let strings: Vec<String> = (0..STOP_STRINGS_MAX)
            .map(|index| {
                let first = char::from(b'a' + index as u8);
                format!("{first}{}", "z".repeat(STOP_STRING_BYTES_MAX - 1))
            })
            .collect();
        let mut matcher = StopMatcher::new(&strings).expect("within the limits");
        let mut text = String::new();
        assert_eq!(matcher.push(&strings[3][..1_000], &mut text), StopVerdict::Continue);
        assert_eq!(matcher.held_bytes(), 1_000);
        let verdict = matcher.push(&strings[3][1_000..], &mut text);
        assert_eq!((verdict, text.as_str()), (StopVerdict::Stopped { stop_index: 3 }, ""));
    }

    /// Looks at every end position and every stop string.
    fn naive(stop_strings: &[String], text: &str) -> (String, Option<String>) {
        for (start, character) in text.char_indices() {
            let end = start + character.len_utf8();
            let ended = stop_strings.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(stop) = ended.max_by_key(|stop| stop.len()) {
                return (text[..end - stop.len()].to_owned(), Some(stop.clone()));
            }
        }
        (text.to_owned(), None)
    }

    /// Texts over few characters, so that stop strings overlap and repeat.
    fn short_text(length: std::ops::Range<usize>) -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!['a', 'b', 'ä', '\u{1f600}']), length)
            .prop_map(|characters| characters.into_iter().collect())
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_search_for_every_split(
            stop_strings in prop::collection::vec(short_text(1..6), 0..5),
            pieces in prop::collection::vec(short_text(0..5), 0..12),
        ) {
            let mut matcher = StopMatcher::new(&stop_strings).expect("within the limits");
            let (mut shown, mut given) = (String::new(), String::new());
            let mut verdict = StopVerdict::Continue;
            for piece in &pieces {
                verdict = matcher.push(piece, &mut shown);
                given.push_str(piece);
                // No byte of text that may be shown is kept longer than needed.
                if verdict == StopVerdict::Continue {
                    let held = &given[shown.len()..];
                    let needed = (0..=given.len())
                        .filter(|&start| given.is_char_boundary(start))
                        .find(|&start| {
                            let tail = &given[start..];
                            tail.is_empty()
                                || stop_strings.iter().any(|stop| stop.starts_with(tail))
                        })
                        .expect("the empty tail is found last");
                    prop_assert_eq!(held, &given[needed..]);
                }
            }
            matcher.finish(&mut shown);
            let (expected_text, expected_stop) = naive(&stop_strings, &given);
            prop_assert_eq!(shown, expected_text);
            let stop = match verdict {
                StopVerdict::Continue => None,
                StopVerdict::Stopped { stop_index } => Some(stop_strings[stop_index].clone()),
            };
            prop_assert_eq!(stop, expected_stop);
        }
    }
}
