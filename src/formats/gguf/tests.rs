//! Files of the `gguf` package against its own dequantisation, and files broken byte by byte.

use half::f16;
use proptest::prelude::*;
use trine_backend::{Format, Group, HostMatrix, RowBuffer, ZeroKind};

use super::*;
use crate::formats::test_files::fixture;
use crate::formats::{Checkpoint, Part, Quantization};
use crate::tokens::{Special, Tokenizer};

const SHAPE: [usize; 2] = [2, 256];

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(fixture("gguf").join(name)).unwrap()
}

fn types() -> Checkpoint {
    Checkpoint::open(fixture("gguf/types.gguf")).unwrap()
}

fn floats(part: &dyn Part, rows: usize, columns: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows * columns];
    out.chunks_mut(columns).enumerate().for_each(|(row, out)| part.floats(row, out).unwrap());
    out
}

/// The weights of a matrix built of the part's codes.
fn coded(part: &dyn Part, rows: usize, columns: usize) -> Vec<f32> {
    let matrix = HostMatrix::coded(rows, columns, part.format(), |row, out| part.codes(row, out)).unwrap();
    let mut out = vec![0.0; rows * columns];
    out.chunks_mut(columns).enumerate().for_each(|(row, out)| matrix.dequantize_row(row, out));
    out
}

#[test]
fn every_type_is_what_the_package_dequantises() {
    let checkpoint = types();
    for name in
        ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "I2_S"]
    {
        let expected = checkpoint.tensor(&format!("{name}.expected")).unwrap().to_f32().unwrap();
        let part = checkpoint.part(name, SHAPE, Quantization::None).unwrap();
        assert_eq!(floats(&*part, 2, 256), expected, "{name}");
        let info = checkpoint.part_info(name, Quantization::None).unwrap();
        assert_eq!((info.stored.as_str(), info.format), (name, part.format()));
        assert_eq!(part.is_ternary(), matches!(name, "TQ1_0" | "TQ2_0" | "I2_S"));
        part.release();
    }
}

#[test]
fn codes_are_kept_where_a_format_holds_them() {
    let checkpoint = types();
    let int4 = |group, zero| Format::Int4 { group, zero };
    let int8 = Format::Int8 { group: Group::G32 };
    let cases = [
        ("Q4_0", int4(Group::G32, ZeroKind::Symmetric)),
        ("Q4_1", int4(Group::G32, ZeroKind::Min)),
        ("Q5_0", int8),
        ("Q8_0", int8),
        ("TQ1_0", Format::Ternary),
        ("TQ2_0", Format::Ternary),
        ("I2_S", Format::Ternary),
        ("MIXED", int4(Group::G128, ZeroKind::Symmetric)),
    ];
    for (name, format) in cases {
        let columns = if name == "MIXED" { 512 } else { 256 };
        let expected = checkpoint.tensor(&format!("{name}.expected")).unwrap().to_f32().unwrap();
        let part = checkpoint.part(name, [2, columns], Quantization::None).unwrap();
        assert_eq!(part.format(), format, "{name}");
        assert_eq!(coded(&*part, 2, columns), expected, "{name}");
        assert!(checkpoint.part_info(name, Quantization::None).unwrap().exact);
    }
}

#[test]
fn q4_k_keeps_its_codes_and_rounds_its_scales() {
    let checkpoint = types();
    let expected = checkpoint.tensor("Q4_K.expected").unwrap().to_f32().unwrap();
    let part = checkpoint.part("Q4_K", SHAPE, Quantization::None).unwrap();
    for (group, (found, expected)) in coded(&*part, 2, 256).chunks(32).zip(expected.chunks(32)).enumerate() {
        // Two roundings to f16: of a scale times at most 15, and of a minimum.
        let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 2.5 * largest.max(0.1) / 1024.0, "group {group}: {found} {expected}");
        }
    }
}

#[test]
fn what_no_format_holds_is_quantised_to_int8() {
    let checkpoint = types();
    for name in ["Q5_1", "Q5_K", "Q6_K"] {
        let expected = checkpoint.tensor(&format!("{name}.expected")).unwrap().to_f32().unwrap();
        let part = checkpoint.part(name, SHAPE, Quantization::None).unwrap();
        let info = checkpoint.part_info(name, Quantization::None).unwrap();
        assert!(!info.exact && info.format == Format::Int8 { group: Group::G32 });
        for (found, expected) in coded(&*part, 2, 256).chunks(32).zip(expected.chunks(32)) {
            let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= largest / 127.0 * 0.51, "{name}: {worst} of {largest}");
        }
    }
}

#[test]
fn the_lowest_q8_0_code_is_the_next_one_up() {
    let mut file = bytes("types.gguf");
    // A block of 1.0 scales and codes -128, where the first block of Q8_0 is.
    let start = {
        let file = GgufFile::parse("test".as_ref(), file.clone().into()).unwrap();
        file.entries.iter().find(|entry| entry.name == "Q8_0.weight").unwrap().range.start
    };
    file[start..start + 2].copy_from_slice(&f16::ONE.to_le_bytes());
    file[start + 2..start + 34].fill(128);
    let (_, tensors) = GgufFile::parse("test".as_ref(), file.into()).unwrap().split().unwrap();
    let part = tensors.part("Q8_0", SHAPE).unwrap();
    assert_eq!(floats(&*part, 2, 256)[..32], [-128.0; 32]);
    assert_eq!(coded(&*part, 2, 256)[..32], [-127.0; 32]);
}

#[test]
fn another_format_than_the_native_one_is_refused() {
    let checkpoint = types();
    for name in ["F16", "Q4_0", "Q4_K", "I2_S", "TQ1_0"] {
        let part = checkpoint.part(name, SHAPE, Quantization::None).unwrap();
        let mut row = RowBuffer::new(Format::Int8 { group: Group::G32 }, 256).unwrap();
        let error = part.codes(0, row.row()).unwrap_err().to_string();
        assert!(error.contains(&format!("tensor \"{name}.weight\": ")), "{error}");
        assert!(part.floats(2, &mut [0.0; 256]).is_err(), "{name}");
    }
    let shape = checkpoint.part("Q4_0", [256, 2], Quantization::None).map(|_| ()).unwrap_err().to_string();
    assert!(shape.ends_with("tensor \"Q4_0.weight\": shape [2, 256] where [256, 2] is expected"), "{shape}");
    let coded = checkpoint.tensor("Q4_0.weight").unwrap_err().to_string();
    assert!(coded.ends_with("type Q4_0 where F32, F16 or BF16 is needed"), "{coded}");
}

/// A file with this metadata and these tensors' headers (name, extents, type, offset), and `data` bytes of data.
struct Written {
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: usize,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Written {
    fn new(data: usize) -> Self {
        let llama = |written: Self| {
            written
                .key("general.architecture", 8, &text("llama"))
                .key("llama.embedding_length", 4, &64u32.to_le_bytes())
                .key("llama.attention.head_count", 4, &4u32.to_le_bytes())
        };
        llama(Written { keys: Vec::new(), tensors: Vec::new(), data })
    }

    fn key(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.push([&text(key), &kind.to_le_bytes()[..], value].concat());
        self
    }

    fn tensor(mut self, name: &str, extents: &[u64], kind: u32, offset: u64) -> Self {
        let extents: Vec<u8> = extents.iter().flat_map(|extent| extent.to_le_bytes()).collect();
        let dimensions = (extents.len() / 8) as u32;
        let parts = [&text(name), &dimensions.to_le_bytes()[..], &extents, &kind.to_le_bytes(), &offset.to_le_bytes()];
        self.tensors.push(parts.concat());
        self
    }

    fn build(self) -> Vec<u8> {
        let counts = [self.tensors.len() as u64, self.keys.len() as u64];
        let mut file = [&MAGIC[..], &3u32.to_le_bytes(), &counts[0].to_le_bytes(), &counts[1].to_le_bytes()].concat();
        self.keys.iter().chain(&self.tensors).for_each(|part| file.extend(part));
        file.resize(file.len().next_multiple_of(32) + self.data, 0);
        file
    }

    fn problem(self) -> String {
        problem(self.build())
    }
}

fn problem(bytes: Vec<u8>) -> String {
    let error = GgufFile::parse("test".as_ref(), bytes.into()).and_then(GgufFile::split).map(|_| ()).unwrap_err();
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() < 400, "{line}");
    line.strip_prefix("test: ").unwrap().to_owned()
}

#[test]
fn a_small_file_is_read() {
    let file = Written::new(128).tensor("a.weight", &[8, 2], 0, 0).tensor("b.weight", &[32], 2, 64).build();
    let (metadata, tensors) = GgufFile::parse("test".as_ref(), file.into()).unwrap().split().unwrap();
    assert_eq!(metadata.text("general.architecture").unwrap(), Some("llama"));
    assert!(tensors.names().eq(["a.weight", "b.weight"]));
    assert_eq!(tensors.shape("a.weight").unwrap(), [2, 8]);
    assert_eq!(tensors.stored("b.weight").unwrap(), (GgmlType::Q4_0, 18));
}

#[test]
fn every_prefix_of_a_file_is_refused_in_one_line() {
    for name in ["types.gguf", "spm.gguf", "bpe.gguf"] {
        let whole = bytes(name);
        let header = if name == "types.gguf" { 3000 } else { whole.len() };
        for keep in (0..header.min(whole.len())).step_by(7).chain([whole.len() - 1]) {
            let parsed = GgufFile::parse("test".as_ref(), whole[..keep].to_vec().into());
            if let Err(error) = parsed {
                let line = error.to_string();
                let told = line.contains("truncated") || line.contains("not a GGUF file");
                assert!(told && !line.contains('\n'), "{name} {keep}: {line}");
            } else {
                // Only the padding behind a file without tensors may be missing.
                assert!(name != "types.gguf" && whole[keep..].iter().all(|byte| *byte == 0), "{name} {keep}");
            }
        }
    }
}

#[test]
fn a_bad_start_is_told() {
    assert!(problem(b"GGML\x03\0\0\0".to_vec()).starts_with("not a GGUF file"));
    let version = |version: u32| problem([&MAGIC[..], &version.to_le_bytes(), &[0; 16]].concat());
    assert_eq!(version(1), "GGUF version 1 is not read: 2 and 3 are");
    assert!(version(3u32.swap_bytes()).starts_with("a big-endian GGUF file"));
    let counts = |tensors: u64, keys: u64| {
        problem([&MAGIC[..], &3u32.to_le_bytes(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat())
    };
    assert!(counts(u64::MAX, 0).contains("18446744073709551615 tensors are over the limit"));
    assert!(counts(0, 1 << 40).contains("metadata keys are over the limit"));
    assert!(counts(7, 0).contains("tensor 0 of 7: a text's length should have 8 bytes and 0 are left"));
}

#[test]
fn bad_metadata_are_told() {
    let lengths = Written::new(0).key("k", 8, &(1u64 << 63).to_le_bytes()).problem();
    assert!(lengths.contains("key \"k\": a text should have 9223372036854775808 bytes and "), "{lengths}");
    let long_key = [&(1u64 << 63).to_le_bytes()[..], b"x"].concat();
    let long_key = [&MAGIC[..], &3u32.to_le_bytes(), &[0; 8], &1u64.to_le_bytes(), &long_key].concat();
    assert!(problem(long_key).contains("key 0 of 1: a text of 9223372036854775808 bytes is over the limit of 1024"));
    let twice = Written::new(0).key("a", 4, &[0; 4]).key("a", 4, &[0; 4]).problem();
    assert_eq!(twice, "key \"a\" appears twice");
    assert!(Written::new(0).key("a", 13, &[]).problem().contains("unknown value type 13"));
    assert!(Written::new(0).key("a", 7, &[2]).problem().contains("2 where 0 or 1"));
    assert!(Written::new(0).key("a", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 255]).problem().contains("not UTF-8"));
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    assert!(Written::new(0).key("a", 9, &list(9, 1)).problem().contains("lists in lists"));
    assert!(Written::new(0).key("a", 9, &list(4, u64::MAX)).problem().contains("over the limit of 16777216"));
    assert!(!Written::new(0).key("a", 9, &list(8, 1 << 20)).problem().contains("over"));
    assert!(Written::new(0).key("a", 9, &list(4, 1 << 20)).problem().contains("value "));
    let aligned = |alignment: u32| Written::new(0).key("general.alignment", 4, &alignment.to_le_bytes()).problem();
    assert_eq!(aligned(0), "general.alignment: 0 is no power of two up to 1048576");
    assert_eq!(aligned(48), "general.alignment: 48 is no power of two up to 1048576");
    let typed = Written::new(0).key("general.alignment", 8, &text("32")).problem();
    assert_eq!(typed, "general.alignment: \"32\" where a whole number is needed");
    let split = Written::new(0).key("split.count", 2, &3u16.to_le_bytes()).problem();
    assert_eq!(split, "split.count: one of 3 pieces of a model: merge them to one file");
}

#[test]
fn bad_tensors_are_told() {
    let one = |extents: &[u64], kind, offset| Written::new(64).tensor("t", extents, kind, offset).problem();
    assert_eq!(one(&[1 << 63, 4], 0, 0), "tensor \"t\": the size of F32 [9223372036854775808, 4] overflows");
    assert!(one(&[u64::MAX], 0, 0).contains("no whole blocks") || one(&[u64::MAX], 0, 0).contains("overflow"));
    assert!(one(&[33], 2, 0).contains("rows of 33 values are no whole blocks of Q4_0, which have 32"));
    assert!(one(&[2, 2, 2, 2, 2], 0, 0).contains("5 dimensions are over the limit of 4"));
    assert!(one(&[8], 10, 0).contains("type 10 (Q2_K) is not read: F32, F16, Q4_0"));
    assert!(one(&[8], 1000, 0).contains("type 1000 (unknown) is not read"));
    assert!(one(&[8], 0, 8).contains("offset 8 is no multiple of the alignment 32"));
    assert!(one(&[64], 0, 0).contains("256 bytes at offset 0 of the data and the file ends at"));
    assert!(one(&[8], 0, u64::MAX - 31).contains("it is truncated"));
    let twice = Written::new(64).tensor("t", &[8], 0, 0).tensor("t", &[8], 0, 32).problem();
    assert_eq!(twice, "tensor \"t\" appears twice");
    let overlap = Written::new(128).tensor("t", &[16], 0, 0).tensor("u", &[8], 0, 32).problem();
    assert!(overlap.starts_with("tensors \"t\" and \"u\" overlap at byte "), "{overlap}");
    let other = Written::new(128)
        .tensor("token_embd.weight", &[8], 0, 0)
        .tensor("model.embed_tokens.weight", &[8], 0, 32)
        .problem();
    assert!(other.contains("is there under another name too"), "{other}");
    let heads = Written::new(128).tensor("blk.0.attn_q.weight", &[1, 24], 0, 0).problem();
    assert!(heads.ends_with("[24, 1] is not made of heads of 16"), "{heads}");
}

#[test]
fn damaged_weights_are_told_with_tensor_and_row() {
    let damaged = |name: &str, at: usize, bytes_at: &[u8]| {
        let mut file = bytes("types.gguf");
        let tensor = format!("{name}.weight");
        let start = {
            let file = GgufFile::parse("test".as_ref(), file.clone().into()).unwrap();
            file.entries.iter().find(|entry| entry.name == tensor).unwrap().range.start
        };
        file[start + at..start + at + bytes_at.len()].copy_from_slice(bytes_at);
        let (_, tensors) = GgufFile::parse("test".as_ref(), file.into()).unwrap().split().unwrap();
        let read = tensors.part(name, SHAPE).and_then(|part| part.floats(0, &mut [0.0; 256]));
        let line = read.unwrap_err().to_string();
        assert!(line.contains(&format!("tensor \"{tensor}\": ")), "{line}");
        line
    };
    let infinite = f16::INFINITY.to_le_bytes();
    assert!(damaged("Q4_0", 0, &infinite).ends_with("in column 0: the weights are damaged"));
    assert!(damaged("Q6_K", 208, &infinite).contains("row 0: "));
    assert!(damaged("TQ2_0", 0, &[255]).contains("invalid ternary code 3 in column 0"));
    assert!(damaged("I2_S", 0, &[255]).contains("invalid ternary code 3 at weight 0"));
    assert!(damaged("I2_S", 128, &f32::NAN.to_le_bytes()).contains("the scale NaN"));
}

proptest! {
    #[test]
    fn a_patched_file_never_panics(at in 0usize..4096, patch in prop::collection::vec(any::<u8>(), 1..9)) {
        let mut file = bytes("types.gguf");
        file[at..at + patch.len()].copy_from_slice(&patch);
        if let Ok((_, tensors)) = GgufFile::parse("test".as_ref(), file.into()).and_then(GgufFile::split) {
            let names: Vec<_> = tensors.names().map(str::to_owned).collect();
            for name in names {
                let Ok(&[rows, columns]) = tensors.shape(&name).map(|shape| shape.first_chunk().unwrap_or(&[0, 0])) else {
                    continue;
                };
                let stem = name.trim_end_matches(".weight");
                if let Ok(part) = tensors.part(stem, [rows, columns]) {
                    let mut row = vec![0.0; columns.min(1 << 16)];
                    let _ = part.floats(0, &mut row);
                }
            }
        }
    }
}

fn tokenizer(name: &str) -> (Tokenizer, TokenizerFiles) {
    // The vocabularies have no sizes of a model: they are parsed and not split.
    let metadata = GgufFile::parse(name.as_ref(), bytes(name).into()).unwrap().metadata;
    let files = metadata.tokenizer_files().unwrap().unwrap();
    let json = |value: &serde_json::Value| value.to_string().into_bytes();
    (Tokenizer::from_bytes(&json(&files.tokenizer), Some(&json(&files.config)), name).unwrap(), files)
}

#[test]
fn a_sentence_piece_vocabulary_tokenises() {
    let (tokenizer, files) = tokenizer("spm.gguf");
    assert_eq!(files.ends, [Some("<s>".to_owned()), Some("</s>".to_owned())]);
    assert!(files.chat_template.unwrap().contains("[INST]"));
    let id = |token: &str| tokenizer.id_of(token).unwrap();
    let text = |text| tokenizer.encode(text, Special::TEXT).unwrap();
    // The highest score first: the whole word, with the space that SentencePiece puts in front.
    assert_eq!(text("hello world"), [id("▁hello"), id("▁world")]);
    assert_eq!(text("hell"), [id("▁hell")]);
    // A newline is no token: its byte is.
    assert_eq!(text("he\n"), [id("▁he"), id("<0x0A>")]);
    assert_eq!(text("é"), [id("▁"), id("<0xC3>"), id("<0xA9>")]);
    let prompt = tokenizer.encode("[INST]hello</s>", Special::PROMPT).unwrap();
    assert_eq!(prompt, [id("<s>"), id("[INST]"), id("▁hello"), id("</s>")]);
    assert_eq!(tokenizer.decode(&prompt, true), "[INST] hello");
    assert_eq!(tokenizer.decode(&text("hello é\n"), true), "hello é\n");
}

#[test]
fn a_byte_level_vocabulary_tokenises() {
    let (tokenizer, files) = tokenizer("bpe.gguf");
    let id = |token: &str| tokenizer.id_of(token).unwrap();
    assert_eq!(files.ends[0].as_deref(), Some("<|endoftext|>"));
    let prompt = tokenizer.encode("hello world", Special::PROMPT).unwrap();
    assert_eq!(prompt, [id("<|endoftext|>"), id("hello"), id("Ġworld")]);
    // smollm takes digits apart before merges could join them.
    assert_eq!(tokenizer.encode("123", Special::TEXT).unwrap(), [id("1"), id("2"), id("3")]);
    let think = tokenizer.encode("<think>a<|im_end|>", Special::TEMPLATE).unwrap();
    assert_eq!(think, [id("<think>"), id("a"), id("<|im_end|>")]);
    assert!(tokenizer.is_special(id("<|im_end|>")) && !tokenizer.is_special(id("<think>")));
}

/// The metadata of `name` with a key's bytes changed.
fn patched(name: &str, from: &str, to: &str) -> String {
    assert_eq!(from.len(), to.len());
    let mut file = bytes(name);
    let at = file.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    file[at..at + to.len()].copy_from_slice(to.as_bytes());
    let file = GgufFile::parse("test".as_ref(), file.into()).unwrap();
    let error = file.metadata.tokenizer_files().unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn bad_vocabularies_are_told() {
    let pre = patched("bpe.gguf", "smollm", "tekken");
    assert!(pre.contains("tokenizer.ggml.pre: \"tekken\" is not supported: llama-bpe, "), "{pre}");
    assert!(patched("bpe.gguf", "gpt2", "bert").contains("tokenizer.ggml.model: \"bert\" is not supported"));
    assert!(patched("bpe.gguf", "Ġw or", "Ġw_or").contains("merge 6 is \"Ġw_or\", no two tokens"));
    assert!(patched("spm.gguf", "<0x01>", "<0x00>").contains("tokens 3 and 4 are both \"<0x00>\""));
    assert!(patched("spm.gguf", "ggml.scores", "ggml.scorez").contains("tokenizer.ggml.scores: is missing"));
    assert!(patched("spm.gguf", "ggml.tokens", "ggml.tokenz").contains("tokenizer.ggml.tokens: is missing"));
}
