//! Tensors without a file: random weights of given shapes, made row by row when they are asked for.
//!
//! A weight depends on the seed, the tensor's name, its row and its column, and on nothing else: rows can be read in any
//! order on any number of threads, and the same seed gives the same model everywhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::f16;
use trine_backend::{CodedRow, Format, Group, RowBuffer, ZeroKind, ZeroRow};

use super::part::{Part, PartInfo};
use super::quoted;
use crate::random::split_mix;
use crate::{Error, Result};

/// What the weights of a random matrix are. All are scaled so that a row's product with values of mean square 1 has about
/// that mean square too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Random {
    /// -1, 0 and 1, a third each, with a scale per row.
    Ternary,
    /// -8..=7, all as likely, with a scale per 32 columns.
    Int4,
    /// Floats, uniform around 0.
    Dense,
}

impl Random {
    /// The number format that rows come in.
    fn format(self) -> Format {
        match self {
            Random::Ternary => Format::Ternary,
            Random::Int4 => Format::Int4 { group: Group::G32, zero: ZeroKind::Symmetric },
            Random::Dense => Format::Bf16,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Matrix { rows: usize, columns: usize, weights: Random },
    Vector { length: usize },
}

/// Random tensors by name.
#[derive(Debug)]
pub struct SyntheticTensors {
    path: PathBuf,
    seed: u64,
    tensors: BTreeMap<String, Shape>,
}

impl SyntheticTensors {
    /// No tensors yet; `path` stands for a file's in errors.
    pub fn new(path: impl Into<PathBuf>, seed: u64) -> Self {
        Self { path: path.into(), seed, tensors: BTreeMap::new() }
    }

    /// Adds the matrix called `name` (without `.weight`).
    pub fn add_matrix(&mut self, name: &str, [rows, columns]: [usize; 2], weights: Random) {
        self.tensors.insert(format!("{name}.weight"), Shape::Matrix { rows, columns, weights });
    }

    /// Adds the vector called `name`: a norm around 1, or what ends in `.bias` around 0.
    pub fn add_vector(&mut self, name: &str, length: usize) {
        self.tensors.insert(name.to_owned(), Shape::Vector { length });
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// All names, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The bytes that a tensor would have in a file.
    pub(super) fn bytes(&self, name: &str) -> Option<u64> {
        match *self.tensors.get(name)? {
            Shape::Vector { length } => Some(4 * length as u64),
            Shape::Matrix { rows, columns, weights } => weights.format().bytes(rows, columns),
        }
    }

    /// As [`Checkpoint::part_info`](super::Checkpoint::part_info).
    pub(super) fn part_info(&self, name: &str) -> Result<PartInfo> {
        let tensor = format!("{name}.weight");
        let (_, weights) = self.matrix(&tensor)?;
        Ok(PartInfo { tensor, format: weights.format(), stored: "random".to_owned(), exact: true })
    }

    /// As [`Checkpoint::part`](super::Checkpoint::part).
    pub(super) fn part(&self, name: &str, shape: [usize; 2]) -> Result<Box<dyn Part + '_>> {
        let name = format!("{name}.weight");
        let (own, weights) = self.matrix(&name)?;
        if own != shape {
            return Err(self.error(&name, format_args!("shape {own:?} where {shape:?} is expected")));
        }
        let [rows, columns] = shape;
        let seed = self.tensor_seed(&name);
        Ok(Box::new(SyntheticPart { tensors: self, name, rows, columns, weights, seed }))
    }

    /// As [`Checkpoint::vector`](super::Checkpoint::vector).
    pub(super) fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>> {
        match self.tensors.get(name) {
            Some(&Shape::Vector { length: own }) if own == length => {}
            Some(Shape::Vector { length: own }) => {
                return Err(self.error(name, format_args!("shape [{own}] where [{length}] is expected")));
            }
            _ => return Err(self.error(name, "is no vector")),
        }
        let middle = if name.ends_with(".bias") { 0.0 } else { 1.0 };
        let mut values = vec![0.0; length];
        dense(&mut Stream::new(self.tensor_seed(name), 0), 0.25, &mut values);
        values.iter_mut().for_each(|value| *value += middle);
        Ok(values)
    }

    pub(super) fn error(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        if !self.contains(name) {
            return Error::file(&self.path, format_args!("tensor {} is missing", quoted(name)));
        }
        Error::file(&self.path, format_args!("tensor {}: {problem}", quoted(name)))
    }

    fn matrix(&self, name: &str) -> Result<([usize; 2], Random)> {
        match self.tensors.get(name) {
            Some(&Shape::Matrix { rows, columns, weights }) => Ok(([rows, columns], weights)),
            _ => Err(self.error(name, "is no matrix")),
        }
    }

    /// Where the random numbers of a tensor begin.
    fn tensor_seed(&self, name: &str) -> u64 {
        let mut state = self.seed;
        name.bytes().fold(split_mix(&mut state), |hash, byte| {
            let mut state = hash ^ u64::from(byte);
            split_mix(&mut state)
        })
    }
}

/// The random bytes of a row.
struct Stream(u64);

impl Stream {
    fn new(tensor: u64, row: usize) -> Self {
        let mut state = row as u64;
        Self(tensor ^ split_mix(&mut state))
    }

    /// Makes each value of `out` of a byte.
    fn fill<T>(&mut self, out: &mut [T], value: impl Fn(u8) -> T) {
        for chunk in out.chunks_mut(8) {
            let bytes = split_mix(&mut self.0).to_le_bytes();
            chunk.iter_mut().zip(bytes).for_each(|(out, byte)| *out = value(byte));
        }
    }
}

/// -1, 0 and 1 of the lower, middle and upper third of bytes.
fn trit(byte: u8) -> i8 {
    ((u16::from(byte) * 3) >> 8) as i8 - 1
}

/// Floats in ±`reach`, none of them 0.
fn dense(stream: &mut Stream, reach: f32, out: &mut [f32]) {
    stream.fill(out, |byte| (f32::from(byte as i8) + 0.5) * (reach / 128.0));
}

struct SyntheticPart<'a> {
    tensors: &'a SyntheticTensors,
    name: String,
    rows: usize,
    columns: usize,
    weights: Random,
    seed: u64,
}

impl SyntheticPart<'_> {
    fn stream(&self, row: usize) -> Result<Stream> {
        if row >= self.rows {
            return Err(self.error(&format_args!("row {row} of {}", self.rows)));
        }
        Ok(Stream::new(self.seed, row))
    }

    /// The scale at which weights of mean square `square` give a row of length 1.
    fn scale(&self, square: f32) -> f32 {
        1.0 / (square * self.columns as f32).sqrt()
    }
}

impl Part for SyntheticPart<'_> {
    fn format(&self) -> Format {
        self.weights.format()
    }

    fn is_ternary(&self) -> bool {
        self.weights == Random::Ternary
    }

    fn codes(&self, row: usize, out: CodedRow<'_>) -> Result<()> {
        let mut stream = self.stream(row)?;
        match (self.weights, out) {
            (Random::Ternary, CodedRow::Ternary { values, scale }) => {
                stream.fill(values, trit);
                *scale = self.scale(2.0 / 3.0);
            }
            (Random::Int4, CodedRow::Int4 { codes, scales, zero: ZeroRow::Symmetric }) => {
                stream.fill(codes, |byte| byte & 15);
                // The mean square of -8..=7, and groups that differ by up to a quarter.
                let scale = self.scale(21.5);
                stream.fill(scales, |byte| f16::from_f32(scale * (0.75 + f32::from(byte) / 512.0)));
            }
            _ => return Err(self.error(&format_args!("{} rows where others are asked for", self.format()))),
        }
        Ok(())
    }

    fn floats(&self, row: usize, out: &mut [f32]) -> Result<()> {
        if self.weights == Random::Dense {
            // A uniform variable's mean square is a third of its reach's square.
            dense(&mut self.stream(row)?, self.scale(1.0 / 3.0), out);
            return Ok(());
        }
        let mut buffer = RowBuffer::new(self.format(), out.len())?;
        self.codes(row, buffer.row())?;
        buffer.dequantize(out);
        Ok(())
    }

    fn error(&self, problem: &dyn std::fmt::Display) -> Error {
        self.tensors.error(&self.name, problem)
    }

    fn release(&self) -> u64 {
        self.tensors.bytes(&self.name).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{Checkpoint, Quantization};

    const ALL: [(&str, Random); 3] = [("t", Random::Ternary), ("i", Random::Int4), ("d", Random::Dense)];

    fn tensors(seed: u64) -> Checkpoint {
        let mut tensors = SyntheticTensors::new("random", seed);
        for (name, weights) in ALL {
            tensors.add_matrix(name, [7, 1000], weights);
        }
        tensors.add_matrix("other", [7, 1000], Random::Dense);
        tensors.add_vector("norm.weight", 100);
        tensors.add_vector("x.bias", 100);
        Checkpoint::synthetic(tensors)
    }

    fn row(checkpoint: &Checkpoint, name: &str, row: usize) -> Vec<f32> {
        let mut out = vec![0.0; 1000];
        checkpoint.part(name, [7, 1000], Quantization::None).unwrap().floats(row, &mut out).unwrap();
        out
    }

    #[test]
    fn a_seed_a_name_and_a_row_make_a_row() {
        let (one, again, two) = (tensors(1), tensors(1), tensors(2));
        for (name, _) in ALL {
            // Whatever was read before.
            row(&one, "other", 3);
            assert_eq!(row(&one, name, 6), row(&again, name, 6), "{name}");
            assert_ne!(row(&one, name, 6), row(&one, name, 5), "{name}");
            assert_ne!(row(&one, name, 6), row(&two, name, 6), "{name}");
        }
        assert_ne!(row(&one, "d", 0), row(&one, "other", 0));
        assert_eq!(one.vector("norm.weight", 100).unwrap(), again.vector("norm.weight", 100).unwrap());
        assert_ne!(one.vector("norm.weight", 100).unwrap(), two.vector("norm.weight", 100).unwrap());
    }

    #[test]
    fn weights_are_spread_as_they_should_be() {
        let checkpoint = tensors(3);
        for (name, _) in ALL {
            let values = row(&checkpoint, name, 0);
            // The row's length is 1: half of it either way would be far beyond chance.
            let square: f32 = values.iter().map(|value| value * value).sum();
            assert!((0.8..1.2).contains(&square), "{name}: {square}");
        }
        let ternary = row(&checkpoint, "t", 0);
        let count = |wanted: fn(f32) -> bool| ternary.iter().filter(|value| wanted(**value)).count();
        let thirds = [count(|v| v < 0.0), count(|v| v == 0.0), count(|v| v > 0.0)];
        assert!(thirds.iter().all(|count| (250..420).contains(count)), "{thirds:?}");
        let scale = ternary.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        assert!(ternary.iter().all(|value| *value == 0.0 || value.abs() == scale), "one scale");
        let norm = checkpoint.vector("norm.weight", 100).unwrap();
        assert!(norm.iter().all(|value| (0.75..1.25).contains(value)), "{norm:?}");
        assert!(checkpoint.vector("x.bias", 100).unwrap().iter().all(|value| value.abs() < 0.25 && *value != 0.0));
    }

    #[test]
    fn int4_rows_have_all_codes_and_a_scale_per_group() {
        let checkpoint = tensors(4);
        let part = checkpoint.part("i", [7, 1000], Quantization::None).unwrap();
        let (mut codes, mut scales) = (vec![0u8; 1000], vec![f16::ZERO; 32]);
        part.codes(2, CodedRow::Int4 { codes: &mut codes, scales: &mut scales, zero: ZeroRow::Symmetric }).unwrap();
        assert!((0..16).all(|code| codes.contains(&code)));
        assert!(codes.iter().all(|code| *code < 16) && scales.iter().all(|scale| scale.to_f32() > 0.0));
        assert!(scales.windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn headers_tell_names_formats_and_sizes() {
        let checkpoint = tensors(0);
        assert!(checkpoint.names().eq(["d.weight", "i.weight", "norm.weight", "other.weight", "t.weight", "x.bias"]));
        assert!(checkpoint.contains("t.weight") && !checkpoint.contains("t"));
        for (name, weights) in ALL {
            let info = checkpoint.part_info(name, Quantization::None).unwrap();
            assert_eq!((info.format, info.stored.as_str(), info.exact), (weights.format(), "random", true));
            let part = checkpoint.part(name, [7, 1000], Quantization::None).unwrap();
            assert_eq!((part.is_ternary(), part.release()), (name == "t", weights.format().bytes(7, 1000).unwrap()));
        }
        let sum: u64 = checkpoint.stored().map(|(_, _, bytes)| bytes).sum();
        assert_eq!(checkpoint.total_bytes(), sum);
        assert_eq!(sum, 7 * (250 + 4) + 7 * (500 + 64) + 2 * 7 * 2000 + 2 * 400);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let checkpoint = tensors(0);
        let part = |name, shape| checkpoint.part(name, shape, Quantization::None).map(|_| ()).unwrap_err().to_string();
        assert_eq!(part("u", [1, 1]), "random: tensor \"u.weight\" is missing");
        assert_eq!(part("t", [8, 1000]), "random: tensor \"t.weight\": shape [7, 1000] where [8, 1000] is expected");
        let vector = |name, length| checkpoint.vector(name, length).unwrap_err().to_string();
        assert_eq!(vector("x.bias", 7), "random: tensor \"x.bias\": shape [100] where [7] is expected");
        assert_eq!(vector("t.weight", 7), "random: tensor \"t.weight\": is no vector");
        let bytes = checkpoint.tensor("t.weight").unwrap_err().to_string();
        assert!(bytes.contains("made when it is asked for"), "{bytes}");
        let part = checkpoint.part("t", [7, 1000], Quantization::None).unwrap();
        assert!(part.floats(7, &mut [0.0; 1000]).unwrap_err().to_string().contains("row 7 of 7"));
        let mut int8 = RowBuffer::new(Format::Int8 { group: Group::G32 }, 1000).unwrap();
        assert!(part.codes(0, int8.row()).unwrap_err().to_string().contains("ternary rows where others"));
    }
}
