use std::sync::Arc;

use proptest::prelude::*;

use crate::tokens::tokenizer::fixtures::{byte_fallback, demo, metaspace};
use crate::tokens::{Detokenizer, Special, Tokenizer};

/// The pieces in which the text of `ids` comes, and the text as a whole.
fn stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> (Vec<String>, String) {
    let mut stream = Detokenizer::new(tokenizer, skip_special);
    let mut parts: Vec<String> = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
    parts.push(stream.finish());
    let whole = parts.concat();
    (parts, whole)
}

#[test]
fn a_character_comes_whole() {
    let demo = demo();
    // The demo model has no token for this emoji: its four bytes are four tokens.
    let ids = demo.encode("a😀b", Special::TEXT).unwrap();
    let (parts, whole) = stream(&demo, &ids, false);
    assert_eq!(whole, "a😀b");
    assert!(ids.len() > 3, "{ids:?}");
    assert_eq!(parts.iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>(), ["a", "😀", "b"]);
}

#[test]
fn invalid_bytes_are_not_held_back() {
    let demo = demo();
    let lead = demo.id_of("ð").unwrap(); // byte 0xF0, the start of a four-byte character
    let (parts, _) = stream(&demo, &[lead; 4], false);
    // Each further lead byte shows that the one before is broken.
    assert_eq!(parts, ["", "\u{fffd}", "\u{fffd}", "\u{fffd}", "\u{fffd}"]);
    let lone = demo.id_of("Ģ").unwrap(); // byte 0x80, a continuation byte
    let (parts, _) = stream(&demo, &[lone, lone], false);
    assert_eq!(parts, ["\u{fffd}", "\u{fffd}", ""]);
}

#[test]
fn an_unfinished_character_is_marked_at_the_end() {
    let demo = demo();
    let ids = demo.encode("😀", Special::TEXT).unwrap();
    let (parts, whole) = stream(&demo, &ids[..ids.len() - 1], false);
    assert_eq!(whole, "\u{fffd}");
    assert_eq!(parts.last().unwrap(), "\u{fffd}");
}

#[test]
fn only_the_first_leading_space_goes() {
    let tokenizer = byte_fallback();
    let ids = |names: &[&str]| names.iter().map(|name| tokenizer.id_of(name).unwrap()).collect::<Vec<_>>();
    assert_eq!(stream(&tokenizer, &ids(&["▁a", "▁b"]), false).0, ["a", " b", ""]);
    assert_eq!(stream(&tokenizer, &ids(&["▁", "▁a"]), false).1, " a");
    assert_eq!(stream(&tokenizer, &ids(&["<s>", "▁a"]), true).1, "a", "a skipped token is not the start");
    assert_eq!(stream(&tokenizer, &ids(&["<s>", "▁a"]), false).1, "<s> a");
    assert_eq!(stream(&tokenizer, &ids(&["<0x20>", "▁a"]), false).1, " a", "a space by its byte is a space too");
}

#[test]
fn byte_fallback_marks_each_byte() {
    let tokenizer = byte_fallback();
    let bytes =
        |bytes: &[u8]| bytes.iter().map(|b| tokenizer.id_of(&format!("<0x{b:02X}>")).unwrap()).collect::<Vec<_>>();
    assert_eq!(stream(&tokenizer, &bytes(&[0xe4, 0xbd]), false).0, ["", "", "\u{fffd}\u{fffd}"]);
    assert_eq!(stream(&tokenizer, &bytes("你".as_bytes()), false).0, ["", "", "你", ""]);
    // What was a whole character stays one, whatever comes behind it.
    assert_eq!(stream(&tokenizer, &bytes(&[0xe4, 0xbd, 0xa0, 0xff]), false).1, "你\u{fffd}");
}

#[test]
fn metaspace_drops_the_dummy_prefix() {
    let tokenizer = metaspace();
    let ids = tokenizer.encode("a b", Special::TEXT).unwrap();
    assert_eq!(stream(&tokenizer, &ids, false).0, ["a", " b", ""]);
}

#[test]
fn ids_without_a_token_have_no_text() {
    let tokenizer = byte_fallback();
    let a = tokenizer.id_of("▁a").unwrap();
    assert_eq!(stream(&tokenizer, &[u32::MAX, a, 100_000], false).1, "a");
}

#[test]
fn the_stream_may_own_the_tokenizer() {
    let tokenizer = Arc::new(byte_fallback());
    let id = tokenizer.id_of("▁a").unwrap();
    let mut stream = Detokenizer::new(tokenizer, true);
    let text = std::thread::spawn(move || stream.push(id).to_owned() + &stream.finish()).join().unwrap();
    assert_eq!(text, "a");
}

#[test]
fn long_text_costs_no_more_per_token() {
    let demo = demo();
    let ids = demo.encode("the old house by the sea ", Special::TEXT).unwrap();
    let mut stream = Detokenizer::new(&demo, true);
    let length: usize = (0..200_000).map(|i| stream.push(ids[i % ids.len()]).len()).sum();
    assert!(length > 200_000);
    assert!(stream.held.capacity() < 256 && stream.text.capacity() < 256, "nothing grows with the text");
}

proptest! {
    /// Byte-level BPE: the stream equals both this crate's and the library's decoding.
    #[test]
    fn stream_is_decode_over_the_demo_vocabulary(ids in prop::collection::vec(0u32..5000, 0..60), skip: bool) {
        let demo = demo();
        let (_, whole) = stream(&demo, &ids, skip);
        prop_assert_eq!(&whole, &demo.decode(&ids, skip));
        prop_assert_eq!(&whole, &demo.library_decode(&ids, skip));
    }

    /// The bytes of emoji in any order and with gaps: nothing longer than three bytes is ever held back.
    #[test]
    fn broken_bytes_never_stall(bytes in prop::collection::vec(prop::sample::select("😀é你a".as_bytes().to_vec()), 0..40)) {
        let tokenizer = byte_fallback();
        let mut stream = Detokenizer::new(&tokenizer, false);
        let mut text = String::new();
        for &byte in &bytes {
            text.push_str(stream.push(tokenizer.id_of(&format!("<0x{byte:02X}>")).unwrap()));
            prop_assert!(stream.held.len() <= 3);
        }
        text.push_str(&stream.finish());
        // Written another way: every byte outside a character is one mark.
        let expected: String = bytes
            .utf8_chunks()
            .map(|chunk| chunk.valid().to_owned() + &"\u{fffd}".repeat(chunk.invalid().len()))
            .collect();
        prop_assert_eq!(text, expected);
    }

    /// SentencePiece style: the same text as the library's for what an encoder makes, special tokens in it or not.
    #[test]
    fn stream_is_the_librarys_decode_for_byte_fallback(words in prop::collection::vec("[ab 😀é你]{0,6}", 0..8), skip: bool) {
        let tokenizer = byte_fallback();
        let ids = tokenizer.encode(&words.join("<s>"), Special::PROMPT).unwrap();
        let (_, whole) = stream(&tokenizer, &ids, skip);
        prop_assert_eq!(&whole, &tokenizer.library_decode(&ids, skip));
        prop_assert_eq!(&whole, &tokenizer.decode(&ids, skip));
    }

    #[test]
    fn stream_is_the_librarys_decode_for_metaspace(ids in prop::collection::vec(0u32..8, 0..12), skip: bool) {
        let tokenizer = metaspace();
        prop_assert_eq!(stream(&tokenizer, &ids, skip).1, tokenizer.library_decode(&ids, skip));
    }
}
