//! Ternary codes: four to a byte, lowest bits first, stored as t + 1.

use std::borrow::Cow;

use super::owned;
use crate::Result;
use crate::error::ensure;

/// `w = scale[row] · t`, t in {-1, 0, 1}.
#[derive(Clone, Debug, PartialEq)]
pub struct Ternary<'a> {
    codes: Cow<'a, [u8]>,
    scales: Cow<'a, [f32]>,
}

impl<'a> Ternary<'a> {
    /// Bytes of a row of `columns` codes.
    pub fn row_bytes(columns: usize) -> usize {
        columns.div_ceil(4)
    }

    /// `codes`: [`Ternary::row_bytes`] for each row; column `c` is at bits `2 (c % 4)` of byte `c / 4`,
    /// as t + 1; bits past the last column are 0. `scales`: one per row.
    pub fn new(codes: impl Into<Cow<'a, [u8]>>, scales: impl Into<Cow<'a, [f32]>>) -> Self {
        Ternary { codes: codes.into(), scales: scales.into() }
    }

    pub(super) fn validate(&self, rows: usize, columns: usize) -> Result<()> {
        let row_bytes = Self::row_bytes(columns);
        ensure!(
            rows.checked_mul(row_bytes) == Some(self.codes.len()) && self.scales.len() == rows,
            "a ternary matrix of {rows} x {columns} can't have {} bytes of codes and {} scales",
            self.codes.len(),
            self.scales.len()
        );
        let tail = columns % 4;
        for (row, codes) in self.codes.chunks(row_bytes).enumerate() {
            // A code of 3 has both of its bits set.
            let invalid = codes.iter().position(|byte| byte & (byte >> 1) & 0x55 != 0);
            ensure!(invalid.is_none(), "ternary row {row} has a code of 3 in byte {}", invalid.unwrap_or(0));
            let clean = tail == 0 || codes[row_bytes - 1] >> (2 * tail) == 0;
            ensure!(clean, "ternary row {row} has bits past its last column");
            ensure!(self.scales[row].is_finite(), "ternary row {row} has the scale {}", self.scales[row]);
        }
        Ok(())
    }

    /// All codes, row after row.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// One scale per row.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The values -1, 0, 1 of one row.
    pub fn row(&self, row: usize, out: &mut [i8]) {
        let row_bytes = Self::row_bytes(out.len());
        let codes = &self.codes[row * row_bytes..(row + 1) * row_bytes];
        for (column, out) in out.iter_mut().enumerate() {
            *out = (codes[column / 4] >> (2 * (column % 4)) & 3) as i8 - 1;
        }
    }

    pub(super) fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        let row_bytes = Self::row_bytes(out.len());
        let codes = &self.codes[row * row_bytes..(row + 1) * row_bytes];
        for (column, out) in out.iter_mut().enumerate() {
            let value = (codes[column / 4] >> (2 * (column % 4)) & 3) as f32 - 1.0;
            *out = value * self.scales[row];
        }
    }

    pub(super) fn into_owned(self) -> Ternary<'static> {
        Ternary { codes: owned(self.codes), scales: owned(self.scales) }
    }
}

/// Packs one row of values -1, 0, 1 into [`Ternary::row_bytes`] bytes.
///
/// # Panics
/// If a value is none of them, or the lengths do not fit.
pub(super) fn pack_row(values: &[i8], out: &mut [u8]) {
    assert_eq!(out.len(), Ternary::row_bytes(values.len()));
    for (out, values) in out.iter_mut().zip(values.chunks(4)) {
        *out = values.iter().enumerate().fold(0, |byte, (at, &value)| {
            assert!((-1..=1).contains(&value), "{value} is not ternary");
            byte | ((value + 1) as u8) << (2 * at)
        });
    }
}
