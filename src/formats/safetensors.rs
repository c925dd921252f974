//! One safetensors file: eight bytes of header length, a JSON header, the tensors' bytes.
//!
//! The format is <https://github.com/huggingface/safetensors>. Its crate gives the element types; the header is
//! checked here because a user needs to hear which tensor is wrong, and because the crate lets the last of two equal
//! names win.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::mapped::Mapped;
use super::tensor::{Dtype, Tensor};
use super::unique::{Named, for_each_key};
use super::{kind, quoted};
use crate::{Error, Result};

/// The header's length field.
const PREFIX: usize = 8;
/// The limit that the format's own readers have.
const LONGEST_HEADER: u64 = 100_000_000;
/// More dimensions than any weight has; keeps a header's memory near its size in the file.
const MOST_DIMENSIONS: usize = 8;

/// A safetensors file whose header has been checked: every tensor lies inside the file, no two overlap, no byte is
/// left over, and each has as many bytes as its dtype and shape ask for.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    bytes: Mapped,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    /// In the file.
    range: Range<usize>,
}

impl SafetensorsFile {
    /// Maps and checks the file at `path`.
    ///
    /// # Errors
    /// The file can't be read or is not sound safetensors: says what is wrong with which tensor.
    pub fn open(path: &Path) -> Result<Self> {
        Self::parse(path, Mapped::open(path)?)
    }

    /// Checks `bytes` as a safetensors file; `path` names them in errors.
    ///
    /// # Errors
    /// The bytes are not sound safetensors.
    pub fn parse(path: &Path, bytes: Mapped) -> Result<Self> {
        let entries = read_entries(&bytes).map_err(|problem| Error::file(path, problem))?;
        Ok(Self { path: path.to_owned(), bytes, entries })
    }

    /// How many tensors the file holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the file holds no tensor at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The file's path, or the name of the bytes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensor at `index`, in the order of the bytes in the file.
    pub fn tensor(&self, index: usize) -> Option<Tensor<'_>> {
        let entry = self.entries.get(index)?;
        Some(Tensor {
            name: &entry.name,
            file: &self.path,
            dtype: entry.dtype,
            shape: &entry.shape,
            source: &self.bytes,
            start: entry.range.start,
            bytes: self.bytes.get(entry.range.clone())?,
        })
    }

    /// All tensors in the order of their bytes in the file.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        (0..self.len()).filter_map(|index| self.tensor(index))
    }
}

fn read_entries(bytes: &[u8]) -> std::result::Result<Vec<Entry>, String> {
    let (header, data) = split(bytes)?;
    // A copy: what was checked to be UTF-8 must not change under the parser, as a mapped file could.
    let header = String::from_utf8(header.to_vec())
        .map_err(|error| format!("the header is not UTF-8 (from its byte {})", error.utf8_error().valid_up_to()))?;
    let header: Header = serde_json::from_str(&header)
        .map_err(|error| format!("the header is not valid JSON for safetensors: {error}"))?;
    let mut tensors = header.tensors;
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    check_sizes(&tensors, data.len())?;
    check_layout(&tensors, data.len())?;
    let data_start = bytes.len() - data.len();
    let entry = |(name, info): (String, Info)| {
        // In bounds of the file, hence of usize.
        let (start, end) = (info.data_offsets.0 as usize, info.data_offsets.1 as usize);
        Entry { name, dtype: info.dtype, shape: info.shape.0, range: data_start + start..data_start + end }
    };
    Ok(tensors.into_iter().map(entry).collect())
}

/// Splits a file into its header and the tensors' bytes.
fn split(bytes: &[u8]) -> std::result::Result<(&[u8], &[u8]), String> {
    if let Some(other) = kind::not_safetensors(bytes) {
        return Err(other.to_string());
    }
    let Some((length, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err(format!("{} bytes are too few for a safetensors file: it is truncated", bytes.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER {
        return Err(format!(
            "header length {length} is over the limit of {LONGEST_HEADER}: damaged, or not a safetensors file"
        ));
    }
    // At most LONGEST_HEADER, which fits.
    rest.split_at_checked(length as usize).ok_or_else(|| {
        format!("the header should have {length} bytes and only {} follow: the file is truncated", rest.len())
    })
}

/// Each tensor has as many bytes as dtype and shape ask for, inside the data.
fn check_sizes(tensors: &[(String, Info)], data: usize) -> std::result::Result<(), String> {
    for (name, info) in tensors {
        let (start, end) = info.data_offsets;
        let Some(found) = end.checked_sub(start) else {
            return Err(format!("tensor {}: offsets [{start}, {end}] run backwards", quoted(name)));
        };
        let Some(bits) = info.bits() else {
            return Err(format!("tensor {}: the size of {} {:?} overflows", quoted(name), info.dtype, info.shape.0));
        };
        if !bits.is_multiple_of(8) {
            return Err(format!("tensor {}: {} {:?} ends inside a byte", quoted(name), info.dtype, info.shape.0));
        }
        if bits / 8 != found {
            return Err(format!(
                "tensor {}: {} {:?} takes {} bytes and its offsets [{start}, {end}] hold {found}",
                quoted(name),
                info.dtype,
                info.shape.0,
                bits / 8
            ));
        }
        if end > data as u64 {
            return Err(format!(
                "tensor {}: offsets [{start}, {end}] and only {data} bytes of data: the file is truncated \
                 (an incomplete download?)",
                quoted(name)
            ));
        }
    }
    Ok(())
}

/// The tensors, sorted by offset, cover the data without overlap or hole.
fn check_layout(tensors: &[(String, Info)], data: usize) -> std::result::Result<(), String> {
    let mut covered = 0;
    let mut previous = "";
    for (name, info) in tensors {
        let (start, end) = info.data_offsets;
        if start < covered {
            return Err(format!("tensors {} and {} overlap at byte {start}", quoted(previous), quoted(name)));
        }
        if start > covered {
            return Err(format!("tensor {}: a hole of {} bytes before it", quoted(name), start - covered));
        }
        (covered, previous) = (end, name);
    }
    if covered < data as u64 {
        return Err(format!("the last {} bytes belong to no tensor", data as u64 - covered));
    }
    Ok(())
}

/// The header's JSON object, without the free text under `__metadata__`.
struct Header {
    tensors: Vec<(String, Info)>,
}

/// What the header says about one tensor.
#[derive(Debug, Deserialize)]
struct Info {
    dtype: Dtype,
    shape: Shape,
    data_offsets: (u64, u64),
}

#[derive(Debug)]
struct Shape(Vec<usize>);

impl Info {
    /// The size in bits, unless it or the number of elements overflows.
    fn bits(&self) -> Option<u64> {
        let elements = self.shape.0.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent))?;
        (elements as u64).checked_mul(self.dtype.bitsize() as u64)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
        let mut tensors = Vec::new();
        for_each_key(&mut map, |name, map| {
            if name == "__metadata__" {
                return map.next_value_seed(Named::<Option<HashMap<String, String>>>::new(&name)).map(drop);
            }
            let info = map.next_value_seed(Named::<Info>::new(&name))?;
            tensors.push((name, info));
            Ok(())
        })?;
        Ok(Header { tensors })
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a shape of at most {MOST_DIMENSIONS} extents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Shape, A::Error> {
        let mut shape = Vec::new();
        while let Some(extent) = seq.next_element()? {
            if shape.len() == MOST_DIMENSIONS {
                return Err(A::Error::custom(format_args!("more than {MOST_DIMENSIONS} dimensions")));
            }
            shape.push(extent);
        }
        Ok(Shape(shape))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::test_files::{Builder, FIXTURES, file, fixture};
    use super::*;

    fn parse(bytes: Vec<u8>) -> Result<SafetensorsFile> {
        SafetensorsFile::parse(Path::new("test.safetensors"), bytes.into())
    }

    /// The error's text after the file's name.
    fn problem(bytes: Vec<u8>) -> String {
        let error = parse(bytes).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        error.strip_prefix("test.safetensors: ").unwrap().to_owned()
    }

    /// A header of one tensor `t` with these fields, over `data` bytes.
    fn one(dtype: &str, shape: &str, offsets: &str, data: usize) -> Vec<u8> {
        let header = format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
        file(&header, &vec![0; data])
    }

    #[test]
    fn tensors_come_out_as_they_were_put_in() {
        let bytes = Builder::default().f32("b", &[2, 2], &[1.0, 2.0, 3.0, 4.0]).tensor("a", "U8", &[3], b"xyz").build();
        let file = parse(bytes).unwrap();
        let tensors: Vec<_> = file.tensors().collect();
        assert_eq!(tensors.len(), 2);
        assert_eq!((tensors[0].name(), tensors[0].dtype(), tensors[0].shape()), ("b", Dtype::F32, [2, 2].as_slice()));
        assert_eq!(tensors[0].to_f32().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!((tensors[1].name(), tensors[1].dtype(), tensors[1].shape()), ("a", Dtype::U8, [3].as_slice()));
        assert_eq!(tensors[1].bytes(), b"xyz");
        assert_eq!(tensors[1].file(), Path::new("test.safetensors"));
    }

    #[test]
    fn order_in_the_header_is_free_and_metadata_is_skipped() {
        let header = r#"{"__metadata__":{"dtype":"F32","format":"pt"},
            "late":{"dtype":"U8","shape":[1],"data_offsets":[2,3],"more":[1]},
            "none":{"dtype":"F32","shape":[0,7],"data_offsets":[2,2]},
            "early":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}   "#;
        let file = parse(file(header, b"abc")).unwrap();
        let found: Vec<_> = file.tensors().map(|t| (t.name().to_owned(), t.bytes().to_vec())).collect();
        let expected = [("early", b"ab".as_slice()), ("none", b""), ("late", b"c")];
        assert_eq!(found, expected.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())));
    }

    #[test]
    fn damaged_prefixes_and_headers_are_told() {
        let sound = Builder::default().f32("t", &[2], &[1.0, 2.0]).build();
        assert_eq!(problem(vec![]), "0 bytes are too few for a safetensors file: it is truncated");
        assert_eq!(problem(sound[..7].to_vec()), "7 bytes are too few for a safetensors file: it is truncated");
        let truncated = problem(sound[..20].to_vec());
        assert!(truncated.contains("bytes and only 12 follow: the file is truncated"), "{truncated}");
        for absurd in [1u64 << 60, u64::MAX, LONGEST_HEADER + 1] {
            let found = problem([&absurd.to_le_bytes()[..], b"{}"].concat());
            assert!(found.starts_with(&format!("header length {absurd} is over the limit")), "{found}");
        }
        let not_utf8 = problem([&4u64.to_le_bytes()[..], b"{\"\xff\""].concat());
        assert_eq!(not_utf8, "the header is not UTF-8 (from its byte 2)");
        for text in ["", "{", "nonsense", "[]", "{}x", r#"{"t":1}"#, &"[".repeat(100_000)] {
            let found = problem(file(text, b""));
            assert!(found.starts_with("the header is not valid JSON for safetensors: "), "{text}: {found}");
        }
    }

    #[test]
    fn wrong_entries_name_the_tensor() {
        for (dtype, shape, offsets, expected) in [
            ("F33", "[1]", "[0,4]", "unknown variant `F33`"),
            ("F32", "[-1]", "[0,4]", "-1"),
            ("F32", "[1.5]", "[0,4]", "1.5"),
            ("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]", "more than 8 dimensions"),
            ("F32", "[1]", "[0]", "expected a tuple of size 2"),
            ("F32", "[1]", "[-4,0]", "-4"),
            ("F32", "7", "[0,4]", "a shape of at most 8 extents"),
        ] {
            let found = problem(one(dtype, shape, offsets, 4));
            assert!(found.contains("\"t\": ") && found.contains(expected), "{shape} {offsets}: {found}");
        }
        let missing = problem(file(r#"{"t":{"dtype":"F32","shape":[1]}}"#, b"1234"));
        assert!(missing.contains("\"t\": missing field `data_offsets`"), "{missing}");
    }

    #[test]
    fn sizes_and_offsets_must_agree() {
        let check = |dtype: &str, shape: &str, offsets: &str, data: usize, expected: &str| {
            assert_eq!(problem(one(dtype, shape, offsets, data)), format!("tensor \"t\": {expected}"));
        };
        check("F32", "[1]", "[4,0]", 4, "offsets [4, 0] run backwards");
        check("F32", "[2]", "[0,4]", 4, "F32 [2] takes 8 bytes and its offsets [0, 4] hold 4");
        check("F16", "[3]", "[0,8]", 8, "F16 [3] takes 6 bytes and its offsets [0, 8] hold 8");
        check("F4", "[3]", "[0,1]", 1, "F4 [3] ends inside a byte");
        check("U8", "[4294967296,4294967296]", "[0,0]", 0, "the size of U8 [4294967296, 4294967296] overflows");
        check("F64", "[2305843009213693952,2]", "[0,0]", 0, "the size of F64 [2305843009213693952, 2] overflows");
        let past = "offsets [0, 8] and only 7 bytes of data: the file is truncated (an incomplete download?)";
        check("F32", "[2]", "[0,8]", 7, past);
        check("U8", "[0]", "[9,9]", 7, past.replace("[0, 8]", "[9, 9]").as_str());
        let most = u64::MAX;
        check(
            "U8",
            "[1]",
            &format!("[0,{most}]"),
            1,
            &format!("U8 [1] takes 1 bytes and its offsets [0, {most}] hold {most}"),
        );
    }

    #[test]
    fn the_data_is_covered_once() {
        let two = |a: &str, b: &str, data: usize| {
            let entry = |offsets: &str| {
                let (start, end) = offsets.split_once(',').unwrap();
                let size = end.parse::<usize>().unwrap() - start.parse::<usize>().unwrap();
                format!(r#"{{"dtype":"U8","shape":[{size}],"data_offsets":[{offsets}]}}"#)
            };
            file(&format!(r#"{{"a":{},"b":{}}}"#, entry(a), entry(b)), &vec![0; data])
        };
        assert!(parse(two("0,4", "4,8", 8)).is_ok());
        assert_eq!(problem(two("0,4", "3,8", 8)), "tensors \"a\" and \"b\" overlap at byte 3");
        assert_eq!(problem(two("0,8", "0,8", 8)), "tensors \"a\" and \"b\" overlap at byte 0");
        assert_eq!(problem(two("0,4", "5,8", 8)), "tensor \"b\": a hole of 1 bytes before it");
        assert_eq!(problem(two("1,4", "4,8", 8)), "tensor \"a\": a hole of 1 bytes before it");
        assert_eq!(problem(two("0,4", "4,8", 9)), "the last 1 bytes belong to no tensor");
    }

    #[test]
    fn a_repeated_name_is_an_error() {
        let entry = r#""t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
        let found = problem(file(&format!("{{{entry},{entry}}}"), b""));
        assert!(found.contains("\"t\" appears twice"), "{found}");
    }

    #[test]
    fn a_line_break_in_the_header_is_none_in_the_error() {
        let header = br#"{"a":{"dtype":"F32\n!","shape":[0],"data_offsets":[0,0]}}"#;
        let line = parse([&(header.len() as u64).to_le_bytes(), &header[..]].concat()).unwrap_err().to_string();
        assert!(line.contains("not valid JSON for safetensors") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn other_kinds_of_files_are_named() {
        let gguf = problem(b"GGUF\x03\0\0\0\0\0\0\0".to_vec());
        assert_eq!(gguf, "a GGUF file: give that file itself, not the directory");
        // A header of 0x280 bytes begins like a pickle and is none.
        let header = format!("{:<640}", "{}");
        assert!(parse([&640u64.to_le_bytes(), header.as_bytes()].concat()).is_ok());
        assert!(problem(b"PK\x03\x04 and so on".to_vec()).starts_with("a PyTorch checkpoint"));
        let lfs = problem(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n".to_vec());
        assert!(lfs.contains("run `git lfs pull`"), "{lfs}");
    }

    #[test]
    fn the_fixtures_agree_with_the_format_s_own_reader() {
        for name in FIXTURES {
            let path = fixture(name).join("model.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let ours = SafetensorsFile::open(&path).unwrap();
            assert_eq!(ours.len(), theirs.len());
            for tensor in ours.tensors() {
                let other = theirs.tensor(tensor.name()).unwrap();
                assert_eq!((tensor.dtype(), tensor.shape()), (other.dtype(), other.shape()));
                assert_eq!(tensor.bytes(), other.data());
            }
        }
    }

    proptest! {
        /// Whatever is changed or cut in a sound file: no panic, one line, and what is accepted the format's own
        /// reader accepts too, with the same tensors.
        #[test]
        fn damage_never_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
                               digits in any::<bool>(), cut in prop::option::of(any::<prop::sample::Index>())) {
            let mut bytes = Builder::default()
                .f32("model.a", &[2, 3], &[1.0; 6]).bf16("model.b", &[4], &[2.0; 4]).tensor("c", "U8", &[1, 5], b"12345")
                .build();
            for (index, value) in changes {
                let at = index.index(bytes.len());
                // Digits alone keep the JSON valid and reach the checks behind it.
                if !digits { bytes[at] = value } else if bytes[at].is_ascii_digit() { bytes[at] = b'0' + value % 10 }
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            match parse(bytes.clone()) {
                Err(error) => prop_assert!(!error.to_string().contains('\n')),
                Ok(ours) => {
                    let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
                    prop_assert_eq!(ours.len(), theirs.len());
                    for tensor in ours.tensors() {
                        prop_assert_eq!(tensor.bytes(), theirs.tensor(tensor.name()).unwrap().data());
                    }
                }
            }
        }
    }
}
