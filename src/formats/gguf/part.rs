//! The rows of a GGUF matrix, as the loader wants them.

use trine_backend::{CodedRow, Format, Group, ZeroKind};

use super::blocks::{self, I2s, Packing};
use super::header::Entry;
use super::names::RowOrder;
use super::types::GgmlType;
use crate::formats::part::Part;
use crate::formats::{Mapped, Tensor, check_finite, quoted};
use crate::{Error, Result};

/// One matrix of the file.
pub(super) struct GgufPart<'a> {
    pub(super) path: &'a std::path::Path,
    pub(super) source: &'a Mapped,
    pub(super) entry: &'a Entry,
    columns: usize,
    order: RowOrder,
    rows: Rows<'a>,
    format: Format,
}

enum Rows<'a> {
    Dense(Tensor<'a>),
    /// Rows of whole blocks, this many bytes each.
    Blocks(&'a [u8], usize),
    I2s(I2s<'a>),
}

impl<'a> GgufPart<'a> {
    /// The matrix `entry`, `[rows, columns]`; `dense` is the tensor where it is one of floats. Reads the scales of TQ1_0
    /// and TQ2_0: blocks of a row that agree on it are a row of our ternary format. `packing` is that of I2_S tensors.
    pub(super) fn new(
        path: &'a std::path::Path,
        source: &'a Mapped,
        entry: &'a Entry,
        dense: Option<Tensor<'a>>,
        order: RowOrder,
        packing: Packing,
    ) -> Result<Self> {
        let columns = entry.shape.last().copied().unwrap_or(1);
        let bytes = &source[entry.range.clone()];
        let rows = match (dense, entry.kind) {
            (Some(tensor), _) => Rows::Dense(tensor),
            (None, GgmlType::I2S) => {
                let rows = entry.shape.iter().rev().skip(1).product();
                let i2s = I2s::new(bytes, [rows, columns], packing);
                Rows::I2s(i2s.map_err(|problem| error(path, &entry.name, problem))?)
            }
            (None, kind) => Rows::Blocks(bytes, columns / kind.block() * kind.block_bytes()),
        };
        let mut part = GgufPart { path, source, entry, columns, order, rows, format: entry.kind.native().0 };
        if !part.scales_agree() {
            part.format = Format::Int4 { group: Group::G128, zero: ZeroKind::Symmetric };
        }
        Ok(part)
    }

    fn scales_agree(&self) -> bool {
        let Rows::Blocks(bytes, row_bytes) = self.rows else { return true };
        if !self.entry.kind.is_ternary() || row_bytes == 0 {
            return true;
        }
        bytes.chunks_exact(row_bytes).all(|row| {
            let mut scales = blocks::block_scales(self.entry.kind, row).filter(|scale| scale.to_f32() != 0.0);
            let first = scales.next();
            scales.all(|scale| Some(scale) == first)
        })
    }

    fn problem(&self, row: usize, problem: impl std::fmt::Display) -> Error {
        error(self.path, &self.entry.name, format_args!("row {row}: {problem}"))
    }

    fn block_row(&self, bytes: &'a [u8], row_bytes: usize, row: usize) -> Result<&'a [u8]> {
        let start = row.checked_mul(row_bytes);
        let row_of = start.and_then(|start| bytes.get(start..)?.get(..row_bytes));
        row_of.ok_or_else(|| self.problem(row, "there is no such row"))
    }

    fn ternary(&self, i2s: &I2s<'_>, row: usize, out: &mut [i8]) -> Result<f32> {
        i2s.row(row, out).map_err(|problem| self.problem(row, problem))?;
        Ok(i2s.scale)
    }
}

fn error(path: &std::path::Path, name: &str, problem: impl std::fmt::Display) -> Error {
    Error::file(path, format_args!("tensor {}: {problem}", quoted(name)))
}

impl Part for GgufPart<'_> {
    fn format(&self) -> Format {
        self.format
    }

    fn is_ternary(&self) -> bool {
        self.entry.kind.is_ternary()
    }

    fn codes(&self, row: usize, out: CodedRow<'_>) -> Result<()> {
        let row = self.order.stored(row);
        match &self.rows {
            Rows::Dense(tensor) => Err(tensor.error("dense weights have no codes")),
            Rows::I2s(i2s) => match out {
                CodedRow::Ternary { values, scale } => {
                    *scale = self.ternary(i2s, row, values)?;
                    Ok(())
                }
                _ => Err(self.problem(row, "ternary codes where others are asked for")),
            },
            Rows::Blocks(bytes, row_bytes) if self.entry.kind.native().1 => {
                let bytes = self.block_row(bytes, *row_bytes, row)?;
                blocks::codes(self.entry.kind, bytes, out).map_err(|problem| self.problem(row, problem))?;
                self.passed(row, *row_bytes);
                Ok(())
            }
            Rows::Blocks(bytes, row_bytes) => {
                let bytes = self.block_row(bytes, *row_bytes, row)?;
                let mut values = vec![0.0; self.columns];
                blocks::floats(self.entry.kind, bytes, &mut values).map_err(|problem| self.problem(row, problem))?;
                self.passed(row, *row_bytes);
                self.check(&values, row)?;
                out.quantize(Group::G32, &values).map_err(|problem| self.problem(row, problem))
            }
        }
    }

    fn floats(&self, row: usize, out: &mut [f32]) -> Result<()> {
        let row = self.order.stored(row);
        match &self.rows {
            Rows::Dense(tensor) => {
                tensor.row_f32(row, out)?;
                tensor.passed(row);
                check_finite(out, tensor, row)
            }
            Rows::I2s(i2s) => {
                let mut values = vec![0; out.len()];
                let scale = self.ternary(i2s, row, &mut values)?;
                out.iter_mut().zip(values).for_each(|(out, value)| *out = scale * f32::from(value));
                Ok(())
            }
            Rows::Blocks(bytes, row_bytes) => {
                let bytes = self.block_row(bytes, *row_bytes, row)?;
                blocks::floats(self.entry.kind, bytes, out).map_err(|problem| self.problem(row, problem))?;
                self.passed(row, *row_bytes);
                self.check(out, row)
            }
        }
    }

    fn error(&self, problem: &dyn std::fmt::Display) -> Error {
        error(self.path, &self.entry.name, problem)
    }

    fn release(&self) -> u64 {
        self.source.release(self.entry.range.clone());
        self.entry.range.len() as u64
    }
}

impl GgufPart<'_> {
    /// A row of blocks was read; see [`Mapped::passed`].
    fn passed(&self, row: usize, row_bytes: usize) {
        let first = self.entry.range.start;
        self.source.passed(first, first + row * row_bytes..first + (row + 1) * row_bytes);
    }

    fn check(&self, values: &[f32], row: usize) -> Result<()> {
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(column) => {
                let problem = format_args!("{} in column {column}: the weights are damaged", values[column]);
                Err(self.problem(row, problem))
            }
        }
    }
}
