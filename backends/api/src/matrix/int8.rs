//! INT8 codes: a byte each.

use std::borrow::Cow;

use half::f16;

use super::owned;
use crate::Result;
use crate::error::ensure;
use crate::format::Group;

/// `w = s · q`, q in -127..=127 (-128 is refused: |q| must fit in 7 bits for `vpmaddubsw` kernels).
#[derive(Clone, Debug, PartialEq)]
pub struct Int8<'a> {
    group: Group,
    codes: Cow<'a, [i8]>,
    scales: Cow<'a, [f16]>,
}

impl<'a> Int8<'a> {
    /// `codes`: `[rows, columns]`; `scales`: `[rows, groups of a row]`.
    pub fn new(group: Group, codes: impl Into<Cow<'a, [i8]>>, scales: impl Into<Cow<'a, [f16]>>) -> Self {
        Int8 { group, codes: codes.into(), scales: scales.into() }
    }

    pub(super) fn validate(&self, rows: usize, columns: usize) -> Result<()> {
        ensure!(
            rows.checked_mul(columns) == Some(self.codes.len())
                && rows.checked_mul(self.group.count(columns)) == Some(self.scales.len()),
            "an int8 matrix of {rows} x {columns} can't have {} codes and {} scales",
            self.codes.len(),
            self.scales.len()
        );
        ensure!(!self.codes.contains(&-128), "an int8 matrix has the code -128: codes go from -127 to 127");
        let broken = self.scales.iter().position(|scale| !scale.is_finite());
        ensure!(broken.is_none(), "int8 group {} has a scale that is not finite", broken.unwrap_or(0));
        Ok(())
    }

    /// Columns that share a scale.
    pub fn group(&self) -> Group {
        self.group
    }

    /// All codes, row after row.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// `[rows, groups of a row]`.
    pub fn scales(&self) -> &[f16] {
        &self.scales
    }

    pub(super) fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        let columns = out.len();
        let codes = &self.codes[row * columns..(row + 1) * columns];
        let (width, groups) = (self.group.columns(columns), self.group.count(columns));
        for (group, (out, codes)) in out.chunks_mut(width).zip(codes.chunks(width)).enumerate() {
            let scale = self.scales[row * groups + group].to_f32();
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(code);
            }
        }
    }

    pub(super) fn into_owned(self) -> Int8<'static> {
        Int8 { group: self.group, codes: owned(self.codes), scales: owned(self.scales) }
    }
}
