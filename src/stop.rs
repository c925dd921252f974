//! Stop strings: texts that end a generation, found while the text streams in pieces.

use crate::{Error, Result};

/// What a piece of text brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Text that can be shown now. Never holds any part of the stop string that was met.
    pub text: String,
    /// Which stop string was met, by its place in the list given to [`StopStrings::new`]: the generation is over.
    pub stop: Option<usize>,
}

/// Watches a stream of text for stop strings, whatever the pieces it comes in.
///
/// The text ends with the first character that completes a stop string; where several are completed by the same
/// character, the longest counts. So the outcome doesn't depend on where the pieces part. Everything before that stop
/// string is released, and nothing from it on. While no stop string is complete, only the longest end of the text
/// that is the beginning of one is held back.
#[derive(Debug, Clone)]
pub struct StopStrings {
    needles: Vec<Needle>,
    /// The end of the text that may become a stop string.
    held: String,
    met: Option<usize>,
}

impl StopStrings {
    /// Watches for `stops`, in any number; with none all text passes at once.
    ///
    /// # Errors
    /// [`Error::Usage`] for an empty string, which would stop before the first character.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        if let Some(place) = stops.iter().position(String::is_empty) {
            let (nth, all) = (place + 1, stops.len());
            return Err(Error::Usage(format!("stop string {nth} of {all} is empty: give at least one character")));
        }
        let needles = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !ends_inside(&stops, stop))
            .map(|(place, stop)| Needle::new(place, stop))
            .collect();
        Ok(Self { needles, held: String::new(), met: None })
    }

    /// Takes the next piece of text, in time linear in the piece and the text held back, for each stop string.
    ///
    /// Once a stop string is met nothing is released any more, and each step names it.
    pub fn push(&mut self, text: &str) -> Step {
        if self.met.is_some() {
            return Step { text: String::new(), stop: self.met };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            self.needles.iter_mut().for_each(|needle| needle.advance(byte));
            let complete = self.needles.iter().filter(|needle| needle.is_complete());
            // The longest; of equal ones the first.
            if let Some(needle) = complete.min_by_key(|needle| (std::cmp::Reverse(needle.bytes.len()), needle.place)) {
                self.met = Some(needle.place);
                let start = before + i + 1 - needle.bytes.len();
                self.held.truncate(start);
                return Step { text: std::mem::take(&mut self.held), stop: self.met };
            }
        }
        let open = self.needles.iter().map(|needle| needle.matched).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - open);
        Step { text: std::mem::replace(&mut self.held, kept), stop: None }
    }

    /// The text held back: the beginning of a stop string that may be still to come.
    pub fn held(&self) -> &str {
        &self.held
    }

    /// Ends the text and releases what was held back: nothing where a stop string was met. The next piece begins a
    /// new text.
    pub fn finish(&mut self) -> String {
        self.needles.iter_mut().for_each(|needle| needle.matched = 0);
        self.met = None;
        std::mem::take(&mut self.held)
    }
}

/// Whether one of `stops` is always complete before `stop` is, so that `stop` can't be met and holding text back for
/// it would be in vain.
fn ends_inside(stops: &[String], stop: &str) -> bool {
    let mut inside = stop.chars();
    inside.next_back();
    stops.iter().any(|other| inside.as_str().contains(other.as_str()))
}

/// One stop string and how much of it the text ends with: D. Knuth, J. Morris, V. Pratt, "Fast Pattern Matching in
/// Strings", SIAM J. Comput. 6(2), 1977.
///
/// It works on bytes. In UTF-8 no character's bytes begin inside another's, so a match of whole characters, or the
/// beginning of one at the end of a whole text, lies on character boundaries.
#[derive(Debug, Clone)]
struct Needle {
    place: usize,
    bytes: Vec<u8>,
    /// For each length of beginning, less 1: the length of the longest shorter beginning that it ends with.
    fallback: Vec<usize>,
    matched: usize,
}

impl Needle {
    fn new(place: usize, stop: &str) -> Self {
        let bytes = stop.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len()];
        for i in 1..bytes.len() {
            fallback[i] = extend(&bytes, &fallback, fallback[i - 1], bytes[i]);
        }
        Self { place, bytes, fallback, matched: 0 }
    }

    fn advance(&mut self, byte: u8) {
        self.matched = extend(&self.bytes, &self.fallback, self.matched, byte);
    }

    fn is_complete(&self) -> bool {
        self.matched == self.bytes.len()
    }
}

/// The longest beginning of `bytes` that ends a text which ended with `matched` (not all) of them and goes on with
/// `byte`.
fn extend(bytes: &[u8], fallback: &[usize], mut matched: usize, byte: u8) -> usize {
    while matched > 0 && bytes[matched] != byte {
        matched = fallback[matched - 1];
    }
    if bytes[matched] == byte { matched + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn watch(stops: &[&str]) -> StopStrings {
        StopStrings::new(stops.iter().map(|stop| stop.to_string()).collect()).unwrap()
    }

    fn step(text: &str, stop: Option<usize>) -> Step {
        Step { text: text.to_string(), stop }
    }

    #[test]
    fn a_stop_string_over_many_pieces() {
        let mut stops = watch(&["</answer>"]);
        assert_eq!(stops.push("42 <"), step("42 ", None));
        assert_eq!(stops.push("/an"), step("", None));
        assert_eq!(stops.held(), "</an");
        assert_eq!(stops.push(""), step("", None));
        assert_eq!(stops.push("swer"), step("", None));
        assert_eq!(stops.push("> and more"), step("", Some(0)));
        assert_eq!(stops.push("text"), step("", Some(0)));
        assert_eq!(stops.finish(), "");
    }

    #[test]
    fn a_false_start_is_released() {
        let mut stops = watch(&["\n\nUser:"]);
        assert_eq!(stops.push("a\n\nUs"), step("a", None));
        assert_eq!(stops.push("ing\n"), step("\n\nUsing", None));
        assert_eq!(stops.finish(), "\n");
        assert_eq!(stops.push("\nUser:"), step("\nUser:", None), "finish begins a new text");
    }

    #[test]
    fn overlapping_stop_strings() {
        let mut stops = watch(&["\n\nUser:", "\n\n"]);
        assert_eq!(stops.push("a\n"), step("a", None));
        assert_eq!(stops.push("\nUser: hi"), step("", Some(1)));
        // Completed by the same character: the longer one.
        assert_eq!(watch(&["b", "ab"]).push("xab"), step("x", Some(1)));
        // Completed first, though another began earlier; and no text waits for that other.
        let mut stops = watch(&["abcd", "bc"]);
        assert_eq!(stops.push("a"), step("a", None));
        assert_eq!(stops.push("bcd"), step("", Some(1)));
        assert_eq!(watch(&["aa", "aa"]).push("baa"), step("b", Some(0)));
    }

    #[test]
    fn a_repeating_beginning_slides() {
        let mut stops = watch(&["aab"]);
        assert_eq!(stops.push("aaaa"), step("aa", None));
        assert_eq!(stops.push("b"), step("", Some(0)));
    }

    #[test]
    fn characters_that_share_bytes() {
        // U+00E9 and U+00E8 share their first byte; U+1F600 and U+1F601 their first three.
        let mut stops = watch(&["\u{e9}nd", "\u{1f600}"]);
        assert_eq!(stops.push("x\u{e8}"), step("x\u{e8}", None));
        assert_eq!(stops.push("\u{1f601}\u{e9}n"), step("\u{1f601}", None));
        assert_eq!(stops.push("\u{1f601}"), step("\u{e9}n\u{1f601}", None));
        assert_eq!(stops.push("y\u{1f600}"), step("y", Some(1)));
    }

    #[test]
    fn none_and_empty() {
        let mut stops = watch(&[]);
        assert_eq!(stops.push("anything"), step("anything", None));
        assert_eq!(stops.finish(), "");
        let error = StopStrings::new(vec!["a".into(), String::new()]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_eq!(error.to_string(), "stop string 2 of 2 is empty: give at least one character");
    }

    /// First the shortest beginning of `text` that ends with a stop string, then the longest such stop string.
    fn naive(stops: &[String], text: &str) -> Option<(usize, usize)> {
        let ends = (1..=text.len()).filter(|&end| text.is_char_boundary(end));
        ends.filter_map(|end| {
            let complete = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            let longest = complete.max_by_key(|stop| stop.len())?;
            Some((end - longest.len(), stops.iter().position(|stop| stop == longest)?))
        })
        .next()
    }

    /// Whether some text to come would make the stop string that is met begin exactly at `start`.
    fn can_begin_at(stops: &[String], text: &str, start: usize) -> bool {
        stops.iter().any(|stop| {
            let rest = stop.strip_prefix(&text[start..]).filter(|rest| !rest.is_empty());
            rest.is_some_and(|rest| naive(stops, &format!("{text}{rest}")).is_some_and(|found| found.0 == start))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn agrees_with_a_search_of_the_whole_text(
            stops in proptest::collection::vec("[ab\u{e9}\u{e8}]{1,5}", 0..4),
            pieces in proptest::collection::vec("[ab\u{e9}\u{e8}]{0,4}", 0..14),
        ) {
            let mut watched = StopStrings::new(stops.clone()).unwrap();
            let (mut text, mut released) = (String::new(), String::new());
            for piece in &pieces {
                let step = watched.push(piece);
                text.push_str(piece);
                released.push_str(&step.text);
                let found = naive(&stops, &text);
                prop_assert_eq!(step.stop, found.map(|found| found.1));
                if let Some((start, _)) = found {
                    prop_assert_eq!(&released, &text[..start]);
                } else {
                    // Held back is what may still be cut off, and no more.
                    let boundaries = (0..text.len()).filter(|&at| text.is_char_boundary(at));
                    let first = boundaries.filter(|&at| can_begin_at(&stops, &text, at)).min();
                    prop_assert_eq!(released.len(), first.unwrap_or(text.len()));
                    prop_assert_eq!(format!("{released}{}", watched.held()), text.clone());
                }
            }
            released.push_str(&watched.finish());
            let end = naive(&stops, &text).map_or(text.len(), |found| found.0);
            prop_assert_eq!(released, &text[..end]);
        }
    }
}
