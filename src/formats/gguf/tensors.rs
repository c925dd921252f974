//! A GGUF file's tensors under the graph's names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::blocks::Packing;
use super::config;
use super::header::{Entry, GgufFile, Metadata};
use super::names::{ROPE_FACTORS, RowOrder, graph_name, row_order};
use super::part::GgufPart;
use super::types::GgmlType;
use crate::formats::part::{Part, PartInfo};
use crate::formats::tensor::{Dtype, Tensor};
use crate::formats::{Mapped, check_finite, quoted};
use crate::{Error, Result};

/// The tensors of a GGUF file, found by the names that Hugging Face's checkpoints have.
#[derive(Debug)]
pub struct GgufTensors {
    path: PathBuf,
    bytes: Mapped,
    entries: Vec<Entry>,
    /// The graph's name -> index in `entries`, and how rows are stored.
    places: BTreeMap<String, (usize, RowOrder)>,
    /// Of I2_S tensors.
    packing: Packing,
}

impl GgufFile {
    /// Separates the metadata, which is large and only needed to set a model up, from the tensors.
    ///
    /// # Errors
    /// Two tensors have the same name in the graph, or the sizes of the heads, on which the order of rows depends, are
    /// missing.
    pub fn split(self) -> Result<(Metadata, GgufTensors)> {
        let GgufFile { bytes, metadata, entries } = self;
        let arch = config::architecture(&metadata)?;
        let dim = config::head_dim(&metadata, arch)?;
        let mut places = BTreeMap::new();
        for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.name != ROPE_FACTORS) {
            let name = graph_name(&entry.name);
            let order = row_order(arch, &name, dim);
            if let RowOrder::Interleaved { dim } = order
                && !entry.shape.first().is_some_and(|rows| rows.is_multiple_of(dim))
            {
                let problem =
                    format_args!("tensor {}: {:?} is not made of heads of {dim}", quoted(&entry.name), entry.shape);
                return Err(Error::file(metadata.path(), problem));
            }
            if places.insert(name, (index, order)).is_some() {
                let problem = format_args!("tensor {} is there under another name too", quoted(&entry.name));
                return Err(Error::file(metadata.path(), problem));
            }
        }
        let packing = i2s_packing(&bytes, &entries);
        let tensors = GgufTensors { path: metadata.path().to_owned(), bytes, entries, places, packing };
        Ok((metadata, tensors))
    }
}

fn i2s_packing(bytes: &Mapped, entries: &[Entry]) -> Packing {
    let coded = entries.iter().filter(|entry| entry.kind == GgmlType::I2S);
    let shaped = coded.filter_map(|entry| Some((entry, <[usize; 2]>::try_from(entry.shape.as_slice()).ok()?)));
    Packing::of(shaped.filter_map(|(entry, shape)| Some((bytes.get(entry.range.clone())?, shape))))
}

impl GgufTensors {
    /// The file's path, or the name of the bytes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the graph's tensor `name` is there.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The graph's names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    fn find(&self, name: &str) -> Result<(&Entry, RowOrder)> {
        let place = self.places.get(name);
        let entry = place.and_then(|&(index, order)| Some((self.entries.get(index)?, order)));
        entry.ok_or_else(|| Error::file(&self.path, format_args!("tensor {} is missing", quoted(name))))
    }

    /// The type of the graph's tensor `name` and its bytes.
    ///
    /// # Errors
    /// It is missing.
    pub fn stored(&self, name: &str) -> Result<(GgmlType, u64)> {
        self.find(name).map(|(entry, _)| (entry.kind, entry.range.len() as u64))
    }

    /// The extents of the graph's tensor `name`, outermost first.
    ///
    /// # Errors
    /// It is missing.
    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        self.find(name).map(|(entry, _)| entry.shape.as_slice())
    }

    /// The tensor of floats that the graph calls `name`, its rows in the file's order.
    ///
    /// # Errors
    /// It is missing, or coded.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let (entry, _) = self.find(name)?;
        let problem = format_args!("type {} where F32, F16 or BF16 is needed", entry.kind);
        self.dense(entry).ok_or_else(|| self.entry_error(entry, problem))
    }

    fn dense<'a>(&'a self, entry: &'a Entry) -> Option<Tensor<'a>> {
        let dtype = match entry.kind {
            GgmlType::F32 => Dtype::F32,
            GgmlType::F16 => Dtype::F16,
            GgmlType::Bf16 => Dtype::BF16,
            _ => return None,
        };
        Some(Tensor {
            name: &entry.name,
            file: &self.path,
            dtype,
            shape: &entry.shape,
            source: &self.bytes,
            start: entry.range.start,
            bytes: self.bytes.get(entry.range.clone())?,
        })
    }

    /// As [`Checkpoint::part_info`](crate::formats::Checkpoint::part_info).
    ///
    /// # Errors
    /// The matrix is missing.
    pub fn part_info(&self, name: &str) -> Result<PartInfo> {
        let (entry, _) = self.find(&format!("{name}.weight"))?;
        let (format, exact) = entry.kind.native();
        Ok(PartInfo { tensor: entry.name.clone(), format, stored: entry.kind.to_string(), exact })
    }

    /// As [`Checkpoint::part`](crate::formats::Checkpoint::part).
    ///
    /// # Errors
    /// The matrix is missing, or has another shape.
    pub fn part(&self, name: &str, shape: [usize; 2]) -> Result<Box<dyn Part + '_>> {
        let (entry, order) = self.find(&format!("{name}.weight"))?;
        self.expect_shape(entry, &shape)?;
        let dense = self.dense(entry);
        Ok(Box::new(GgufPart::new(&self.path, &self.bytes, entry, dense, order, self.packing)?))
    }

    /// As [`Checkpoint::vector`](crate::formats::Checkpoint::vector).
    ///
    /// # Errors
    /// As there.
    pub fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>> {
        let (entry, order) = self.find(name)?;
        self.expect_shape(entry, &[length])?;
        let tensor = self.tensor(name)?;
        let stored = tensor.to_f32()?;
        check_finite(&stored, &tensor, 0)?;
        Ok((0..length).map(|at| stored[order.stored(at)]).collect())
    }

    /// The factors that RoPE's frequencies are divided by, where the file has them.
    ///
    /// # Errors
    /// They are no vector of floats, or hold NaN or infinity.
    pub fn rope_factors(&self) -> Result<Option<Vec<f32>>> {
        let Some(entry) = self.entries.iter().find(|entry| entry.name == ROPE_FACTORS) else { return Ok(None) };
        let Some(tensor) = self.dense(entry) else {
            return Err(self.entry_error(entry, format_args!("type {} where floats are needed", entry.kind)));
        };
        let values = tensor.to_f32()?;
        check_finite(&values, &tensor, 0)?;
        Ok(Some(values))
    }

    fn expect_shape(&self, entry: &Entry, expected: &[usize]) -> Result<()> {
        if entry.shape == expected {
            return Ok(());
        }
        Err(self.entry_error(entry, format_args!("shape {:?} where {expected:?} is expected", entry.shape)))
    }

    fn entry_error(&self, entry: &Entry, problem: impl std::fmt::Display) -> Error {
        Error::file(&self.path, format_args!("tensor {}: {problem}", quoted(&entry.name)))
    }

    /// An error about the graph's tensor `name`.
    pub fn error(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        match self.find(name) {
            Ok((entry, _)) => self.entry_error(entry, problem),
            Err(missing) => missing,
        }
    }
}
