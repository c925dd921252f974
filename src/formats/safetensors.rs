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
