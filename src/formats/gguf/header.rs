//! A GGUF file's header: metadata and where the tensors are, all of it checked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::MAGIC;
use super::types::GgmlType;
use crate::formats::mapped::Mapped;
use crate::formats::quoted;
use crate::{Error, Result};

type Problem<T> = std::result::Result<T, String>;

/// Elements of all arrays together: far above any vocabulary with its merges and scores.
const MOST_ELEMENTS: u64 = 1 << 24;
/// Metadata entries and tensors; a model has some tens and some hundreds.
const MOST_KEYS: u64 = 1 << 16;
const MOST_TENSORS: u64 = 1 << 20;
const LONGEST_NAME: u64 = 1 << 10;
const MOST_DIMENSIONS: u32 = 4;
/// Where tensors begin, unless `general.alignment` says otherwise.
const ALIGNMENT: u64 = 32;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number of any width; those above `i64::MAX` are cut to it.
    Int(i64),
    /// A float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list.
    Array(Array),
}

/// A list of values of one kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Whole numbers or truth values.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f64>),
    /// Texts.
    Texts(Vec<String>),
}

/// The metadata of a file: values by key.
#[derive(Debug)]
pub struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The file's path, or the name of the bytes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An error about `key`.
    pub fn error(&self, key: &str, problem: impl std::fmt::Display) -> Error {
        Error::file(&self.path, format_args!("{key}: {problem}"))
    }

    fn typed<'a, T>(&'a self, key: &str, wanted: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.error(key, format_args!("{} where {wanted} is needed", brief(value))))
    }

    /// A whole number that is not negative.
    ///
    /// # Errors
    /// The value is something else.
    pub fn int(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a whole number", |value| match value {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        })
    }

    /// A number.
    ///
    /// # Errors
    /// The value is something else, or not finite.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |value| match value {
            Value::Float(number) if number.is_finite() => Some(*number),
            Value::Int(number) => Some(*number as f64),
            _ => None,
        })
    }

    /// A truth value.
    ///
    /// # Errors
    /// The value is something else.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A text.
    ///
    /// # Errors
    /// The value is something else.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a text", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A list of texts.
    ///
    /// # Errors
    /// The value is something else.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "a list of texts", |value| match value {
            Value::Array(Array::Texts(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// A list of whole numbers.
    ///
    /// # Errors
    /// The value is something else.
    pub fn ints(&self, key: &str) -> Result<Option<&[i64]>> {
        self.typed(key, "a list of whole numbers", |value| match value {
            Value::Array(Array::Ints(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    /// A list of numbers.
    ///
    /// # Errors
    /// The value is something else.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.typed(key, "a list of numbers", |value| match value {
            Value::Array(Array::Floats(numbers)) => Some(numbers.clone()),
            Value::Array(Array::Ints(numbers)) => Some(numbers.iter().map(|&number| number as f64).collect()),
            _ => None,
        })
    }
}

fn brief(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Text(text) => quoted(text),
        Value::Array(_) => "a list".to_owned(),
    }
}

/// A GGUF file whose header has been checked: every tensor is of a type that is read, lies inside the file at an aligned
/// place, and overlaps no other; no key and no name appears twice.
#[derive(Debug)]
pub struct GgufFile {
    pub(super) bytes: Mapped,
    pub(super) metadata: Metadata,
    /// In the order of the header.
    pub(super) entries: Vec<Entry>,
}

/// A tensor of the file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: GgmlType,
    /// Outermost first.
    pub(super) shape: Vec<usize>,
    /// In the file.
    pub(super) range: Range<usize>,
}

impl GgufFile {
    /// Maps and checks the file at `path`.
    ///
    /// # Errors
    /// It can't be read or is not sound GGUF: says what is wrong with which key or tensor.
    pub fn open(path: &Path) -> Result<Self> {
        Self::parse(path, Mapped::open(path)?)
    }

    /// Checks `bytes` as a GGUF file; `path` names them in errors.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn parse(path: &Path, bytes: Mapped) -> Result<Self> {
        let problem = |problem| Error::file(path, problem);
        let mut reader = Reader { bytes: &bytes, at: 0, elements: 0 };
        let (tensors, keys) = read_start(&mut reader).map_err(problem)?;
        let values = read_metadata(&mut reader, keys).map_err(problem)?;
        let metadata = Metadata { path: path.to_owned(), values };
        check_whole(&metadata)?;
        let alignment = read_alignment(&metadata)?;
        let entries = read_tensors(&mut reader, tensors, alignment).map_err(problem)?;
        Ok(GgufFile { bytes, metadata, entries })
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The counts of tensors and keys.
fn read_start(reader: &mut Reader<'_>) -> Problem<(u64, u64)> {
    if reader.take(4, "the magic")? != MAGIC {
        return Err("not a GGUF file".to_owned());
    }
    match reader.u32("the version")? {
        2 | 3 => {}
        version if version.swap_bytes() < 16 && version != 1 => {
            return Err("a big-endian GGUF file: convert it to little-endian".to_owned());
        }
        version => return Err(format!("GGUF version {version} is not read: 2 and 3 are")),
    }
    let (tensors, keys) = (reader.u64("the number of tensors")?, reader.u64("the number of keys")?);
    if tensors > MOST_TENSORS {
        return Err(format!("{tensors} tensors are over the limit of {MOST_TENSORS}: the file is damaged"));
    }
    if keys > MOST_KEYS {
        return Err(format!("{keys} metadata keys are over the limit of {MOST_KEYS}: the file is damaged"));
    }
    Ok((tensors, keys))
}

fn read_metadata(reader: &mut Reader<'_>, count: u64) -> Problem<BTreeMap<String, Value>> {
    let mut values = BTreeMap::new();
    for number in 0..count {
        let key = reader.text(LONGEST_NAME).map_err(|problem| format!("key {number} of {count}: {problem}"))?;
        let value = reader.value().map_err(|problem| format!("key {}: {problem}", quoted(&key)))?;
        if values.insert(key.clone(), value).is_some() {
            return Err(format!("key {} appears twice", quoted(&key)));
        }
    }
    Ok(values)
}

/// Refuses one piece of a file that was split.
fn check_whole(metadata: &Metadata) -> Result<()> {
    match metadata.int("split.count")? {
        Some(pieces) if pieces > 1 => {
            Err(metadata
                .error("split.count", format_args!("one of {pieces} pieces of a model: merge them to one file")))
        }
        _ => Ok(()),
    }
}

fn read_alignment(metadata: &Metadata) -> Result<u64> {
    const KEY: &str = "general.alignment";
    match metadata.int(KEY)? {
        None => Ok(ALIGNMENT),
        Some(alignment) if alignment.is_power_of_two() && alignment <= 1 << 20 => Ok(alignment),
        Some(other) => Err(metadata.error(KEY, format_args!("{other} is no power of two up to {}", 1 << 20))),
    }
}

fn read_tensors(reader: &mut Reader<'_>, count: u64, alignment: u64) -> Problem<Vec<Entry>> {
    let mut infos = Vec::new();
    let mut names = BTreeSet::new();
    for number in 0..count {
        let name = reader.text(LONGEST_NAME).map_err(|problem| format!("tensor {number} of {count}: {problem}"))?;
        let info = TensorInfo::read(reader).map_err(|problem| format!("tensor {}: {problem}", quoted(&name)))?;
        if !names.insert(name.clone()) {
            return Err(format!("tensor {} appears twice", quoted(&name)));
        }
        infos.push((name, info));
    }
    let header = reader.at as u64;
    let data = header.div_ceil(alignment) * alignment;
    let size = reader.bytes.len() as u64;
    let place = |(name, info): (String, TensorInfo)| -> Problem<Entry> {
        let range = info
            .place(alignment, data, size)
            .map_err(|problem| format!("tensor {} ({} {:?}): {problem}", quoted(&name), info.kind, info.shape))?;
        Ok(Entry { name, kind: info.kind, shape: info.shape, range })
    };
    let entries = infos.into_iter().map(place).collect::<Problem<Vec<_>>>()?;
    check_overlap(&entries)?;
    Ok(entries)
}

struct TensorInfo {
    kind: GgmlType,
    /// Outermost first.
    shape: Vec<usize>,
    bytes: u64,
    /// From the start of the data.
    offset: u64,
}

impl TensorInfo {
    fn read(reader: &mut Reader<'_>) -> Problem<Self> {
        let dimensions = reader.u32("its number of dimensions")?;
        if dimensions > MOST_DIMENSIONS {
            return Err(format!("{dimensions} dimensions are over the limit of {MOST_DIMENSIONS}"));
        }
        let mut extents = Vec::new();
        for _ in 0..dimensions {
            extents.push(reader.u64("its extents")?);
        }
        let kind = GgmlType::from_id(reader.u32("its type")?)?;
        let offset = reader.u64("its offset")?;
        let overflow = || format!("the size of {kind} {extents:?} overflows");
        let elements = extents.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent));
        let elements = elements.ok_or_else(overflow)?;
        let columns = extents.first().copied().unwrap_or(1);
        let bytes = kind.bytes(columns, elements).ok_or_else(|| {
            format!("rows of {columns} values are no whole blocks of {kind}, which have {}", kind.block())
        })?;
        let shape = extents.iter().rev().map(|&extent| usize::try_from(extent).map_err(|_| overflow()));
        Ok(TensorInfo { kind, shape: shape.collect::<Problem<_>>()?, bytes, offset })
    }

    /// Where the bytes are in a file of `size` bytes whose data starts at `data`.
    fn place(&self, alignment: u64, data: u64, size: u64) -> Problem<Range<usize>> {
        if !self.offset.is_multiple_of(alignment) {
            return Err(format!("offset {} is no multiple of the alignment {alignment}", self.offset));
        }
        let start = data.checked_add(self.offset);
        let end = start.and_then(|start| start.checked_add(self.bytes)).filter(|&end| end <= size);
        match (start, end) {
            (Some(start), Some(end)) => Ok(start as usize..end as usize),
            _ => Err(format!(
                "{} bytes at offset {} of the data and the file ends at {size}: it is truncated (an incomplete download?)",
                self.bytes, self.offset
            )),
        }
    }
}

fn check_overlap(entries: &[Entry]) -> Problem<()> {
    let mut order: Vec<&Entry> = entries.iter().filter(|entry| !entry.range.is_empty()).collect();
    order.sort_by_key(|entry| entry.range.start);
    match order.windows(2).find(|pair| pair[1].range.start < pair[0].range.end) {
        None => Ok(()),
        Some(pair) => Err(format!(
            "tensors {} and {} overlap at byte {}",
            quoted(&pair[0].name),
            quoted(&pair[1].name),
            pair[1].range.start
        )),
    }
}

/// Reads the header front to back.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Array elements so far.
    elements: u64,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: u64, what: &str) -> Problem<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let Some(taken) = taken else {
            return Err(format!(
                "{what} should have {count} bytes and {} are left: the file is truncated or damaged",
                rest.len()
            ));
        };
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Problem<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Problem<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Problem<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A text of at most `longest` bytes. Copied before it is looked at: a mapped file may change.
    fn text(&mut self, longest: u64) -> Problem<String> {
        let length = self.u64("a text's length")?;
        if length > longest {
            return Err(format!("a text of {length} bytes is over the limit of {longest}: the file is damaged"));
        }
        let bytes = self.take(length, "a text")?.to_vec();
        String::from_utf8(bytes).map_err(|_| "a text that is not UTF-8".to_owned())
    }

    fn value(&mut self) -> Problem<Value> {
        let kind = self.u32("the value's type")?;
        if kind == ARRAY {
            return self.list().map(Value::Array);
        }
        self.scalar(kind)
    }

    fn scalar(&mut self, kind: u32) -> Problem<Value> {
        const WHAT: &str = "a value";
        Ok(match kind {
            0 => Value::Int(self.array::<1>(WHAT)?[0].into()),
            1 => Value::Int(i8::from_le_bytes(self.array(WHAT)?).into()),
            2 => Value::Int(u16::from_le_bytes(self.array(WHAT)?).into()),
            3 => Value::Int(i16::from_le_bytes(self.array(WHAT)?).into()),
            4 => Value::Int(self.u32(WHAT)?.into()),
            5 => Value::Int(i32::from_le_bytes(self.array(WHAT)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(WHAT)?).into()),
            7 => match self.array::<1>(WHAT)?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => return Err(format!("{other} where 0 or 1 stand for false and true")),
            },
            8 => Value::Text(self.text(u64::MAX)?),
            10 => Value::Int(i64::try_from(self.u64(WHAT)?).unwrap_or(i64::MAX)),
            11 => Value::Int(i64::from_le_bytes(self.array(WHAT)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(WHAT)?)),
            ARRAY => return Err("lists in lists are not read".to_owned()),
            other => return Err(format!("unknown value type {other}")),
        })
    }

    fn list(&mut self) -> Problem<Array> {
        let kind = self.u32("the list's type")?;
        let count = self.u64("the list's length")?;
        self.elements = self.elements.saturating_add(count);
        if self.elements > MOST_ELEMENTS {
            return Err(format!("lists of {} values are over the limit of {MOST_ELEMENTS}", self.elements));
        }
        let (mut ints, mut floats, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..count {
            match self.scalar(kind).map_err(|problem| format!("value {number} of {count}: {problem}"))? {
                Value::Int(value) => ints.push(value),
                Value::Bool(value) => ints.push(value.into()),
                Value::Float(value) => floats.push(value),
                Value::Text(value) => texts.push(value),
                Value::Array(_) => unreachable!("a scalar is no list"),
            }
        }
        Ok(match kind {
            6 | 12 => Array::Floats(floats),
            8 => Array::Texts(texts),
            _ => Array::Ints(ints),
        })
    }
}

/// The type number of lists.
const ARRAY: u32 = 9;
