//! The bytes of every token, and the rules by which bytes become text.

/// Every token's bytes in one block, indexed by id.
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end; they start where those of `id - 1` end.
    ends: Vec<usize>,
}

impl Pieces {
    pub(super) fn new() -> Self {
        Pieces { bytes: Vec::new(), ends: Vec::new() }
    }

    /// Appends the bytes of the next id. An id that names no token has none.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len());
    }

    /// The bytes of `id`, empty for an id that names no token.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match self.ends.get(id) {
            Some(&end) => &self.bytes[if id == 0 { 0 } else { self.ends[id - 1] }..end],
            None => &[],
        }
    }

    /// The number of ids: the highest plus one.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// How the pieces of a text join.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Joining {
    /// Up to `.1` characters `.0` are dropped from the start of the text (SentencePiece's dummy prefix).
    pub(super) strip_start: Option<(char, usize)>,
    /// This character is dropped from the first token wherever it stands (Metaspace's dummy prefix).
    pub(super) first_drops: Option<char>,
    /// A space between any two tokens, for a tokenizer without a decoder.
    pub(super) spaced: bool,
    /// A byte that belongs to no UTF-8 character becomes one U+FFFD each; otherwise each broken character becomes one.
    pub(super) mark_each_byte: bool,
}

/// The byte that `c` stands for in a byte-level vocabulary, where every byte is written as a printable character:
/// printable Latin-1 as itself, the other 68 bytes in order from U+0100 (GPT-2's `bytes_to_unicode`).
fn byte_level(c: char) -> Option<u8> {
    let plain = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(c) {
        code @ 0..=0xff => Some(code as u8).filter(|&b| plain(b)),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121) as u8 + 0x7f),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The bytes of a byte-level token. A token that is not spelt in the byte alphabet stands for itself.
pub(super) fn byte_level_bytes(token: &str) -> Vec<u8> {
    token.chars().map(byte_level).collect::<Option<_>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte of a byte-fallback token, `<0x00>` to `<0xFF>`.
pub(super) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_alphabet() {
        assert_eq!(byte_level_bytes("ĠHi"), b" Hi");
        assert_eq!(byte_level_bytes("Ċ"), b"\n");
        assert_eq!(byte_level_bytes("ðŁĺĢ"), "😀".as_bytes());
        let unprintable = (0..=255u8).filter(|b| !matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff));
        for (c, byte) in ('\u{100}'..='\u{143}').zip(unprintable) {
            assert_eq!(byte_level(c), Some(byte));
        }
        assert_eq!(byte_level('\u{144}'), None);
        assert_eq!(byte_level_bytes("a b"), b"a b", "a plain space is not in the alphabet");
        let all: std::collections::BTreeSet<u8> =
            (0..0x144).filter_map(char::from_u32).filter_map(byte_level).collect();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn fallback_tokens() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        assert_eq!(fallback_byte("<0xff>"), Some(255));
        for not in ["<0x+1>", "<0x0>", "<0x000>", "0x0A", "<0xG0>", "<0x0A", "<0xé>"] {
            assert_eq!(fallback_byte(not), None, "{not}");
        }
    }

    #[test]
    fn pieces_by_id() {
        let mut pieces = Pieces::new();
        for piece in ["ab", "", "c"] {
            pieces.push(piece.as_bytes());
        }
        assert_eq!([pieces.get(0), pieces.get(1), pieces.get(2), pieces.get(3)], [&b"ab"[..], b"", b"c", b""]);
        assert_eq!(pieces.get(u32::MAX), b"");
        assert_eq!(pieces.len(), 3);
    }
}
