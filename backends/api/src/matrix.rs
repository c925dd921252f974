//! [`HostMatrix`]: a weight matrix as every backend receives it.
//!
//! Row-major `[rows = outputs, columns = inputs]`. Every row starts at a byte of its own, so rows of
//! matrices of one format can be put under each other (q|k|v, gate|up) by appending their bytes.

mod coded;
mod int4;
mod int8;
mod quantize;
mod rows;
mod ternary;

use std::borrow::Cow;

use half::{bf16, f16};

pub use coded::{CodedRow, RowBuffer, ZeroRow};
pub use int4::{Int4, Zero};
pub use int8::Int8;
pub use ternary::Ternary;

use crate::error::ensure;
use crate::{Activation, Format, Result};

/// A weight matrix on the host: codes, scales, and the activations it is multiplied with.
#[derive(Clone, Debug, PartialEq)]
pub struct HostMatrix<'a> {
    rows: usize,
    columns: usize,
    codes: Codes<'a>,
    activation: Activation,
}

/// The numbers of a matrix in one of the formats.
#[derive(Clone, Debug, PartialEq)]
pub enum Codes<'a> {
    /// `[rows, columns]`.
    F32(Cow<'a, [f32]>),
    /// `[rows, columns]`.
    F16(Cow<'a, [f16]>),
    /// `[rows, columns]`.
    Bf16(Cow<'a, [bf16]>),
    /// 2-bit codes and a scale per row.
    Ternary(Ternary<'a>),
    /// 4-bit codes and a scale per group.
    Int4(Int4<'a>),
    /// 8-bit codes and a scale per group.
    Int8(Int8<'a>),
}

impl<'a> HostMatrix<'a> {
    /// A matrix of `[rows, columns]`, with the activations that its format asks for. Errors if it is
    /// empty, if a length does not fit the shape, or if a code is out of its format's range.
    pub fn new(rows: usize, columns: usize, codes: Codes<'a>) -> Result<Self> {
        ensure!(rows > 0 && columns > 0, "a matrix of {rows} x {columns} has no weights");
        let cells = rows.checked_mul(columns);
        let dense = |length: usize| -> Result<()> {
            ensure!(cells == Some(length), "a matrix of {rows} x {columns} can't have {length} values");
            Ok(())
        };
        match &codes {
            Codes::F32(values) => dense(values.len())?,
            Codes::F16(values) => dense(values.len())?,
            Codes::Bf16(values) => dense(values.len())?,
            Codes::Ternary(ternary) => ternary.validate(rows, columns)?,
            Codes::Int4(int4) => int4.validate(rows, columns)?,
            Codes::Int8(int8) => int8.validate(rows, columns)?,
        }
        let mut matrix = HostMatrix { rows, columns, codes, activation: Activation::Float };
        matrix.activation = matrix.format().activation();
        Ok(matrix)
    }

    /// The same matrix, multiplied with other activations. Errors for a combination that has no kernel:
    /// dense weights take floats and only floats, ternary weights take one scale per token.
    pub fn with_activation(mut self, activation: Activation) -> Result<Self> {
        let format = self.format();
        let fits = match format {
            Format::F32 | Format::F16 | Format::Bf16 => activation == Activation::Float,
            Format::Ternary => activation == Activation::Token,
            Format::Int4 { .. } | Format::Int8 { .. } => activation != Activation::Float,
        };
        ensure!(fits, "{format} weights can't be multiplied with {activation:?} activations");
        self.activation = activation;
        Ok(self)
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The codes and scales.
    pub fn codes(&self) -> &Codes<'a> {
        &self.codes
    }

    /// How the activations that it is multiplied with are represented.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// The number format.
    pub fn format(&self) -> Format {
        match &self.codes {
            Codes::F32(_) => Format::F32,
            Codes::F16(_) => Format::F16,
            Codes::Bf16(_) => Format::Bf16,
            Codes::Ternary(_) => Format::Ternary,
            Codes::Int4(int4) => Format::Int4 { group: int4.group(), zero: int4.zero().kind() },
            Codes::Int8(int8) => Format::Int8 { group: int8.group() },
        }
    }

    /// The weights of one row as floats.
    ///
    /// # Panics
    /// If the row does not exist or `out` is not `columns` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.columns);
        let span = row * self.columns..(row + 1) * self.columns;
        match &self.codes {
            Codes::F32(values) => out.copy_from_slice(&values[span]),
            Codes::F16(values) => widen(&values[span], out, f16::to_f32),
            Codes::Bf16(values) => widen(&values[span], out, bf16::to_f32),
            Codes::Ternary(ternary) => ternary.dequantize_row(row, out),
            Codes::Int4(int4) => int4.dequantize_row(row, out),
            Codes::Int8(int8) => int8.dequantize_row(row, out),
        }
    }

    /// The same matrix with its own copy of everything borrowed.
    pub fn into_owned(self) -> HostMatrix<'static> {
        let codes = match self.codes {
            Codes::F32(values) => Codes::F32(owned(values)),
            Codes::F16(values) => Codes::F16(owned(values)),
            Codes::Bf16(values) => Codes::Bf16(owned(values)),
            Codes::Ternary(ternary) => Codes::Ternary(ternary.into_owned()),
            Codes::Int4(int4) => Codes::Int4(int4.into_owned()),
            Codes::Int8(int8) => Codes::Int8(int8.into_owned()),
        };
        HostMatrix { rows: self.rows, columns: self.columns, codes, activation: self.activation }
    }
}

fn widen<T: Copy>(values: &[T], out: &mut [f32], to_f32: impl Fn(T) -> f32) {
    for (out, &value) in out.iter_mut().zip(values) {
        *out = to_f32(value);
    }
}

fn owned<T: Clone + 'static>(values: Cow<'_, [T]>) -> Cow<'static, [T]> {
    Cow::Owned(values.into_owned())
}
