//! Token ids to text, one id at a time.

use std::borrow::Borrow;

use super::Tokenizer;

/// Turns a stream of ids into text. Each [`push`](Self::push) returns the text that is complete so far; a UTF-8
/// character that is spread over several tokens is held back until its last byte has come.
///
/// Work per token is proportional to the token's length, and at most three bytes are ever held back: bytes that can no
/// longer become a character are replaced by U+FFFD at once. All text returned, [`finish`](Self::finish) included, is
/// exactly what [`Tokenizer::decode`] makes of the same ids.
///
/// Holds the tokenizer as `&Tokenizer` or as `Arc<Tokenizer>`.
pub struct Detokenizer<T: Borrow<Tokenizer>> {
    tokenizer: T,
    skip_special: bool,
    /// Whether no token has been taken yet; skipped ones do not count.
    first: bool,
    /// How many characters may still be dropped from the start of the text.
    strip: usize,
    /// The bytes not yet returned as text: the start of one character, between calls at most three bytes.
    held: Vec<u8>,
    text: String,
}

impl<T: Borrow<Tokenizer>> Detokenizer<T> {
    /// A stream at the start of a text. `skip_special` leaves special tokens out.
    pub fn new(tokenizer: T, skip_special: bool) -> Self {
        let strip = tokenizer.borrow().joining().strip_start.map_or(0, |(_, count)| count);
        Detokenizer { tokenizer, skip_special, first: true, strip, held: Vec::new(), text: String::new() }
    }

    /// Takes one id and returns the text that it completes, which may be empty. An id that names no token has no text.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        let tokenizer = self.tokenizer.borrow();
        if tokenizer.has_token(id) && !(self.skip_special && tokenizer.is_special(id)) {
            if !self.first && tokenizer.joining().spaced {
                self.held.push(b' ');
            }
            match tokenizer.first_piece(id).filter(|_| self.first) {
                Some(piece) => self.held.extend_from_slice(piece.as_bytes()),
                None => self.held.extend_from_slice(tokenizer.token_bytes(id)),
            }
            self.first = false;
            self.complete();
        }
        &self.text
    }

    /// Ends the text and returns what was held back: nothing, or U+FFFD for a character that was never finished.
    pub fn finish(mut self) -> String {
        self.text.clear();
        if !self.held.is_empty() {
            self.mark(self.held.len());
        }
        std::mem::take(&mut self.text)
    }

    /// Moves what is complete from `held` to `text`.
    fn complete(&mut self) {
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_slice();
        for chunk in held.utf8_chunks() {
            self.write(chunk.valid());
            rest = &rest[chunk.valid().len()..];
            let broken = chunk.invalid();
            // Only the last chunk can be the start of a character that later bytes may finish.
            if !broken.is_empty() && broken.len() == rest.len() && can_grow(broken) {
                break;
            }
            if !broken.is_empty() {
                self.mark(broken.len());
                rest = &rest[broken.len()..];
            }
        }
        let kept = rest.len();
        self.held = held;
        self.held.drain(..self.held.len() - kept);
    }

    /// Writes U+FFFD for `count` bytes that are one broken character.
    fn mark(&mut self, count: usize) {
        let marks = if self.tokenizer.borrow().joining().mark_each_byte { count } else { 1 };
        (0..marks).for_each(|_| self.write("\u{fffd}"));
    }

    /// Writes text, less what is stripped from the start.
    fn write(&mut self, mut text: &str) {
        if let Some((content, _)) = self.tokenizer.borrow().joining().strip_start {
            while self.strip > 0 && !text.is_empty() {
                match text.strip_prefix(content) {
                    Some(rest) => (self.strip, text) = (self.strip - 1, rest),
                    None => self.strip = 0,
                }
            }
        }
        self.text.push_str(text);
    }
}

/// Whether `bytes`, invalid as they are, can become one UTF-8 character by more bytes.
fn can_grow(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(e) if e.valid_up_to() == 0 && e.error_len().is_none())
}

#[cfg(test)]
mod tests;
