//! Our own layout of quantised matrices in safetensors, documented in `docs/formats.md`.
//!
//! A matrix `X` of `[rows, columns]` is `X.weight` (codes), `X.weight_scale` and, with a zero point or a minimum,
//! `X.weight_zero` or `X.weight_min`. The bytes are those of a [`HostMatrix`]'s codes, so that loading is no more work
//! than copying rows.

use std::borrow::Cow;

use bytemuck::cast_slice;
use half::f16;
use trine_backend::{
    CodedRow, Codes, Format, Group, HostMatrix, Int4, Int8, RowBuffer, Ternary, Zero, ZeroKind, ZeroRow,
};

use super::checkpoint::Checkpoint;
use super::part::{self, Part};
use super::tensor::{Dtype, Tensor};
use crate::{Error, Result};

/// Name behind `X`, type and extents of each tensor of a matrix of `[rows, columns]`, in the order in which
/// [`bytes`] gives them. Scales come first, so that they are aligned wherever the matrix begins evenly.
pub(crate) fn tensors(format: Format, rows: usize, columns: usize) -> Vec<(&'static str, Dtype, Vec<usize>)> {
    let dense = |dtype| vec![("weight", dtype, vec![rows, columns])];
    match format {
        Format::F32 => dense(Dtype::F32),
        Format::F16 => dense(Dtype::F16),
        Format::Bf16 => dense(Dtype::BF16),
        Format::Ternary => vec![
            ("weight_scale", Dtype::F32, vec![rows]),
            ("weight", Dtype::U8, vec![rows, Ternary::row_bytes(columns)]),
        ],
        Format::Int8 { group } => vec![
            ("weight_scale", Dtype::F16, vec![rows, group.count(columns)]),
            ("weight", Dtype::I8, vec![rows, columns]),
        ],
        Format::Int4 { group, zero } => {
            let groups = vec![rows, group.count(columns)];
            let mut tensors = vec![("weight_scale", Dtype::F16, groups.clone())];
            match zero {
                ZeroKind::Symmetric => {}
                ZeroKind::Point => tensors.push(("weight_zero", Dtype::U8, groups)),
                ZeroKind::Min => tensors.push(("weight_min", Dtype::F16, groups)),
            }
            tensors.push(("weight", Dtype::U8, vec![rows, Int4::row_bytes(columns)]));
            tensors
        }
    }
}

/// The bytes of each of those tensors for the rows from `first` to `first + rows` of `matrix`, which may be a part of a
/// fused one.
pub(crate) fn bytes<'a>(matrix: &'a HostMatrix<'_>, first: usize, rows: usize) -> Vec<Cow<'a, [u8]>> {
    fn part<T: bytemuck::Pod>(values: &[T], all: usize, first: usize, rows: usize) -> Cow<'_, [u8]> {
        let width = values.len() / all;
        little_endian(&values[first * width..(first + rows) * width])
    }
    let all = matrix.rows();
    match matrix.codes() {
        Codes::F32(values) => vec![part(values, all, first, rows)],
        Codes::F16(values) => vec![part(values, all, first, rows)],
        Codes::Bf16(values) => vec![part(values, all, first, rows)],
        Codes::Ternary(ternary) => {
            vec![part(ternary.scales(), all, first, rows), part(ternary.codes(), all, first, rows)]
        }
        Codes::Int8(int8) => vec![part(int8.scales(), all, first, rows), part(int8.codes(), all, first, rows)],
        Codes::Int4(int4) => {
            let mut bytes = vec![part(int4.scales(), all, first, rows)];
            match int4.zero() {
                Zero::Symmetric => {}
                Zero::Point(points) => bytes.push(part(points, all, first, rows)),
                Zero::Min(minima) => bytes.push(part(minima, all, first, rows)),
            }
            bytes.push(part(int4.codes(), all, first, rows));
            bytes
        }
    }
}

/// Numbers as a file has them.
fn little_endian<T: bytemuck::Pod>(values: &[T]) -> Cow<'_, [u8]> {
    let bytes: &[u8] = cast_slice(values);
    if cfg!(target_endian = "little") {
        return Cow::Borrowed(bytes);
    }
    let size = size_of::<T>();
    Cow::Owned(bytes.chunks(size).flat_map(|value| value.iter().rev().copied()).collect())
}

/// The number format of the matrix called `name`: what the types and shapes of its tensors say. Group sizes that give as
/// many groups mean the same.
///
/// # Errors
/// A tensor is missing, or they do not fit each other.
pub(super) fn format(checkpoint: &Checkpoint, name: &str) -> Result<Format> {
    let weight = checkpoint.tensor(&format!("{name}.weight"))?;
    let scale_name = format!("{name}.weight_scale");
    if !checkpoint.contains(&scale_name) {
        return part::dense_format(&weight);
    }
    let scale = checkpoint.tensor(&scale_name)?;
    let (_, width) = weight.matrix()?;
    match (weight.dtype(), scale.dtype()) {
        (Dtype::U8, Dtype::F32) => Ok(Format::Ternary),
        (Dtype::I8, Dtype::F16) => Ok(Format::Int8 { group: group(&scale, width)? }),
        (Dtype::U8, Dtype::F16) => {
            let has = |tail: &str| checkpoint.contains(&format!("{name}.{tail}"));
            let zero = match (has("weight_zero"), has("weight_min")) {
                (false, false) => ZeroKind::Symmetric,
                (true, false) => ZeroKind::Point,
                (false, true) => ZeroKind::Min,
                (true, true) => return Err(weight.error("both a weight_zero and a weight_min")),
            };
            // An odd last column has a byte of its own: as many groups as with the even one that is not there.
            Ok(Format::Int4 { group: group(&scale, width.saturating_mul(2))?, zero })
        }
        (codes, scales) => Err(weight.error(format_args!("codes of {codes} with scales of {scales} are no format"))),
    }
}

/// The group that makes as many groups in a row of `columns` as `scale`, `[rows, groups]`, has.
fn group(scale: &Tensor<'_>, columns: usize) -> Result<Group> {
    let (_, groups) = scale.matrix()?;
    let all = [Group::G32, Group::G64, Group::G128, Group::Row];
    all.into_iter()
        .find(|group| group.count(columns) == groups)
        .ok_or_else(|| scale.error(format_args!("{groups} scales in a row of {columns} are for no known group size")))
}

/// A tensor's bytes as the numbers that they are, where their place and this machine's byte order allow it.
fn cast<'a, T: bytemuck::AnyBitPattern>(tensor: &Tensor<'a>) -> Option<Cow<'a, [T]>> {
    let values = bytemuck::try_cast_slice(tensor.bytes()).ok()?;
    (size_of::<T>() == 1 || cfg!(target_endian = "little")).then_some(Cow::Borrowed(values))
}

/// A matrix in our layout, open for reading.
pub(super) struct TrinePart<'a> {
    format: Format,
    columns: usize,
    weight: Tensor<'a>,
    scale: Tensor<'a>,
    /// Zero points or minima.
    zero: Option<Tensor<'a>>,
    per_token: bool,
}

impl<'a> TrinePart<'a> {
    /// Opens the coded matrix called `name`, which must have `shape`; with `per_token` it is from a model whose
    /// activations have one scale per token.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub(super) fn new(checkpoint: &'a Checkpoint, name: &str, shape: [usize; 2], per_token: bool) -> Result<Self> {
        let [rows, columns] = shape;
        let format = format(checkpoint, name)?;
        let mut found = [None; 3];
        for (tail, dtype, shape) in tensors(format, rows, columns) {
            let tensor = checkpoint.tensor_of_shape(&format!("{name}.{tail}"), &shape)?;
            if tensor.dtype() != dtype {
                return Err(tensor.error(format_args!("dtype {} where {dtype} is needed", tensor.dtype())));
            }
            let place = match tail {
                "weight" => 0,
                "weight_scale" => 1,
                _ => 2,
            };
            found[place] = Some(tensor);
        }
        match found {
            [Some(weight), Some(scale), zero] => Ok(TrinePart { format, columns, weight, scale, zero, per_token }),
            _ => Err(checkpoint.error(&format!("{name}.weight"), "floats where codes are needed")),
        }
    }

    /// A row of `tensor` of f16, all of them finite.
    fn halves(&self, tensor: &Tensor<'_>, row: usize, out: &mut [f16]) -> Result<()> {
        let (values, _) = tensor.row_bytes(row)?.as_chunks::<2>();
        out.iter_mut().zip(values).for_each(|(out, bytes)| *out = f16::from_le_bytes(*bytes));
        match out.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(group) => {
                Err(tensor.error(format_args!("{} at row {row}, group {group}: the file is damaged", out[group])))
            }
        }
    }
}

impl Part for TrinePart<'_> {
    fn format(&self) -> Format {
        self.format
    }

    fn is_ternary(&self) -> bool {
        self.per_token
    }

    fn codes(&self, row: usize, out: CodedRow<'_>) -> Result<()> {
        let bytes = self.weight.row_bytes(row)?;
        match out {
            CodedRow::Ternary { values, scale } => {
                Ternary::unpack_row(bytes, values);
                if let Some(column) = values.iter().position(|&value| value == 2) {
                    return Err(self
                        .weight
                        .error(format_args!("invalid ternary code 3 at row {row}, column {column}")));
                }
                let bytes = &self.scale.bytes()[4 * row..][..4];
                *scale = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                if !scale.is_finite() {
                    return Err(self.scale.error(format_args!("{scale} at row {row}: the file is damaged")));
                }
            }
            CodedRow::Int8 { codes, scales } => {
                codes.copy_from_slice(cast_slice(bytes));
                if let Some(column) = codes.iter().position(|&code| code == -128) {
                    let problem = format_args!("code -128 at row {row}, column {column}: codes go from -127 to 127");
                    return Err(self.weight.error(problem));
                }
                self.halves(&self.scale, row, scales)?;
            }
            CodedRow::Int4 { codes, scales, zero } => {
                Int4::unpack_row(bytes, codes);
                self.halves(&self.scale, row, scales)?;
                match (zero, &self.zero) {
                    (ZeroRow::Point(points), Some(tensor)) => {
                        points.copy_from_slice(tensor.row_bytes(row)?);
                        if points.iter().any(|&point| point > 16) {
                            return Err(tensor.error(format_args!("a zero point above 16 in row {row}")));
                        }
                    }
                    (ZeroRow::Min(minima), Some(tensor)) => self.halves(tensor, row, minima)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn floats(&self, row: usize, out: &mut [f32]) -> Result<()> {
        let mut buffer = RowBuffer::new(self.format, self.columns)?;
        self.codes(row, buffer.row())?;
        buffer.dequantize(out);
        Ok(())
    }

    fn borrowed(&self) -> Option<HostMatrix<'_>> {
        let (rows, _) = self.weight.matrix().ok()?;
        let codes = match self.format {
            Format::Ternary => Codes::Ternary(Ternary::new(cast(&self.weight)?, cast(&self.scale)?)),
            Format::Int8 { group } => Codes::Int8(Int8::new(group, cast(&self.weight)?, cast(&self.scale)?)),
            Format::Int4 { group, zero } => {
                let zero = match (zero, &self.zero) {
                    (ZeroKind::Symmetric, _) => Zero::Symmetric,
                    (ZeroKind::Point, Some(points)) => Zero::Point(cast(points)?),
                    (ZeroKind::Min, Some(minima)) => Zero::Min(cast(minima)?),
                    _ => return None,
                };
                Codes::Int4(Int4::new(group, cast(&self.weight)?, cast(&self.scale)?, zero))
            }
            _ => return None,
        };
        // Checks every code and scale.
        HostMatrix::new(rows, self.columns, codes).ok()
    }

    fn error(&self, problem: &dyn std::fmt::Display) -> Error {
        self.weight.error(problem)
    }

    fn release(&self) -> u64 {
        let tensors = [Some(&self.weight), Some(&self.scale), self.zero.as_ref()];
        tensors
            .into_iter()
            .flatten()
            .map(|tensor| {
                tensor.release();
                tensor.bytes().len() as u64
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_files::Builder;
    use super::*;

    const ZEROS: [ZeroKind; 3] = [ZeroKind::Symmetric, ZeroKind::Point, ZeroKind::Min];

    /// A matrix of every kind of code.
    fn sample(format: Format, rows: usize, columns: usize) -> HostMatrix<'static> {
        HostMatrix::coded(rows, columns, format, |row, out| {
            let number = |at: usize| (row * 31 + at * 17) % 251;
            let half = |at: usize| f16::from_f32(0.01 * (1 + number(at)) as f32);
            match out {
                CodedRow::Ternary { values, scale } => {
                    values.iter_mut().enumerate().for_each(|(at, value)| *value = (number(at) % 3) as i8 - 1);
                    *scale = 0.1 + row as f32;
                }
                CodedRow::Int8 { codes, scales } => {
                    codes.iter_mut().enumerate().for_each(|(at, code)| *code = number(at) as u8 as i8 / 2);
                    scales.iter_mut().enumerate().for_each(|(at, scale)| *scale = half(at));
                }
                CodedRow::Int4 { codes, scales, zero } => {
                    codes.iter_mut().enumerate().for_each(|(at, code)| *code = (number(at) % 16) as u8);
                    scales.iter_mut().enumerate().for_each(|(at, scale)| *scale = half(at));
                    match zero {
                        ZeroRow::Symmetric => {}
                        ZeroRow::Point(points) => {
                            points.iter_mut().enumerate().for_each(|(at, p)| *p = (at % 17) as u8)
                        }
                        ZeroRow::Min(minima) => minima.iter_mut().enumerate().for_each(|(at, m)| *m = -half(at + 1)),
                    }
                }
            }
            Ok::<(), Error>(())
        })
        .unwrap()
    }

    /// Changes a tensor: by what follows its name, its dtype, shape and bytes.
    type Change = dyn Fn(&str, &mut String, &mut Vec<usize>, &mut Vec<u8>);

    /// The tensors of a matrix as a file has them, `change`d on the way: name, dtype, shape, bytes.
    fn file(matrix: &HostMatrix<'_>, change: &Change) -> Checkpoint {
        let (rows, columns) = (matrix.rows(), matrix.columns());
        let mut builder = Builder::default();
        for ((tail, dtype, mut shape), bytes) in
            tensors(matrix.format(), rows, columns).into_iter().zip(bytes(matrix, 0, rows))
        {
            let (mut dtype, mut bytes) = (dtype.to_string(), bytes.into_owned());
            change(tail, &mut dtype, &mut shape, &mut bytes);
            builder = builder.tensor(&format!("m.{tail}"), &dtype, &shape, &bytes);
        }
        Checkpoint::from_bytes("test", builder.build()).unwrap()
    }

    #[test]
    fn every_format_reads_back_bit_for_bit() {
        let mut formats = vec![Format::Ternary];
        for group in [Group::G32, Group::G64, Group::G128, Group::Row] {
            formats.push(Format::Int8 { group });
            formats.extend(ZEROS.map(|zero| Format::Int4 { group, zero }));
        }
        let mut borrowings = 0;
        // More columns than any group, an odd number, and rows of two parts.
        for (format, columns) in formats.iter().flat_map(|&format| [(format, 320), (format, 301)]) {
            let matrix = sample(format, 6, columns);
            let checkpoint = file(&matrix, &|_, _, _, _| ());
            let part = TrinePart::new(&checkpoint, "m", [6, columns], false).unwrap();
            assert_eq!(part.format(), format);
            let back = HostMatrix::coded(6, columns, format, |row, out| part.codes(row, out)).unwrap();
            assert_eq!(back, matrix);
            // Test files begin tensors where the one before ends: some lie unevenly.
            if let Some(borrowed) = part.borrowed() {
                assert_eq!(borrowed, matrix);
                borrowings += 1;
            }
            let (mut a, mut b) = (vec![0.0; columns], vec![0.0; columns]);
            for row in 0..6 {
                matrix.dequantize_row(row, &mut a);
                part.floats(row, &mut b).unwrap();
                assert_eq!(a, b);
            }
            let halves = [bytes(&matrix, 0, 2), bytes(&matrix, 2, 4)];
            let whole = bytes(&matrix, 0, 6);
            for ((first, second), whole) in halves[0].iter().zip(&halves[1]).zip(&whole) {
                assert_eq!([&first[..], &second[..]].concat(), whole[..]);
            }
        }
        assert!(borrowings > 0);
    }

    #[test]
    fn damaged_tensors_are_named() {
        let int4 = |zero| Format::Int4 { group: Group::G32, zero };
        let problem = |format, change: &Change| {
            let checkpoint = file(&sample(format, 4, 64), change);
            let mut buffer = RowBuffer::new(format, 64).unwrap();
            let part = TrinePart::new(&checkpoint, "m", [4, 64], false);
            assert!(part.is_err() || part.is_ok_and(|part| part.borrowed().is_none()));
            let read = TrinePart::new(&checkpoint, "m", [4, 64], false)
                .and_then(|part| (0..4).try_for_each(|row| part.codes(row, buffer.row())));
            let text = read.unwrap_err().to_string();
            text.strip_prefix("test: tensor \"m.").unwrap().to_owned()
        };
        let byte = |place: &'static str, at: usize, value: u8| {
            move |tail: &str, _: &mut String, _: &mut Vec<usize>, bytes: &mut Vec<u8>| {
                if tail == place {
                    bytes[at] = value;
                }
            }
        };
        // The upper byte of an f16 infinity, of group 1 of row 1.
        let broken = problem(int4(ZeroKind::Symmetric), &byte("weight_scale", 7, 0x7f));
        assert!(broken.starts_with("weight_scale\": NaN at row 1, group 1: the file is damaged"), "{broken}");
        let broken = problem(int4(ZeroKind::Min), &byte("weight_min", 1, 0x7f));
        assert!(broken.starts_with("weight_min\": NaN at row 0, group 0"), "{broken}");
        let broken = problem(int4(ZeroKind::Point), &byte("weight_zero", 2, 17));
        assert_eq!(broken, "weight_zero\": a zero point above 16 in row 1");
        let broken = problem(Format::Ternary, &byte("weight", 16, 3));
        assert_eq!(broken, "weight\": invalid ternary code 3 at row 1, column 0");
        let broken = problem(Format::Int8 { group: Group::G32 }, &byte("weight", 65, 0x80));
        assert_eq!(broken, "weight\": code -128 at row 1, column 1: codes go from -127 to 127");
        let broken = problem(int4(ZeroKind::Symmetric), &|tail, _, shape, _| {
            if tail == "weight" {
                *shape = vec![8, 16];
            }
        });
        // Sixteen bytes are 32 columns, for which two scales are no group's.
        assert_eq!(broken, "weight_scale\": 2 scales in a row of 32 are for no known group size");
        let broken = problem(Format::Int8 { group: Group::G32 }, &|tail, dtype, shape, _| {
            if tail == "weight_scale" {
                (*dtype, *shape) = ("F32".to_owned(), vec![4, 1]);
            }
        });
        assert_eq!(broken, "weight\": codes of I8 with scales of F32 are no format");
        let checkpoint = file(&sample(Format::Ternary, 4, 64), &|_, _, _, _| ());
        let other = TrinePart::new(&checkpoint, "m", [4, 68], false).err().unwrap().to_string();
        assert!(other.ends_with("shape [4, 16] where [4, 17] is expected"), "{other}");
    }
}
