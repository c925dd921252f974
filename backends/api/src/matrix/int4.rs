//! INT4 codes: two to a byte, the even column in the low nibble.

use std::borrow::Cow;

use half::f16;

use super::owned;
use crate::Result;
use crate::error::ensure;
use crate::format::{Group, ZeroKind};

/// 4-bit codes `u` in 0..=15 with an f16 scale per group; what a code means is [`Zero`]'s to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Int4<'a> {
    group: Group,
    codes: Cow<'a, [u8]>,
    scales: Cow<'a, [f16]>,
    zero: Zero<'a>,
}

/// Where zero lies among the codes of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum Zero<'a> {
    /// `w = s · (u - 8)`.
    Symmetric,
    /// `w = s · (u - z)`, z in 0..=16, one per group.
    Point(Cow<'a, [u8]>),
    /// `w = s · u + m`, one per group.
    Min(Cow<'a, [f16]>),
}

impl Zero<'_> {
    /// Which of the three it is.
    pub fn kind(&self) -> ZeroKind {
        match self {
            Zero::Symmetric => ZeroKind::Symmetric,
            Zero::Point(_) => ZeroKind::Point,
            Zero::Min(_) => ZeroKind::Min,
        }
    }
}

impl<'a> Int4<'a> {
    /// Bytes of a row of `columns` codes.
    pub fn row_bytes(columns: usize) -> usize {
        columns.div_ceil(2)
    }

    /// `codes`: [`Int4::row_bytes`] for each row; column `c` is the low (even) or high (odd) nibble of
    /// byte `c / 2`; a nibble past the last column is 0. `scales` and what `zero` holds:
    /// `[rows, groups of a row]`.
    pub fn new(
        group: Group,
        codes: impl Into<Cow<'a, [u8]>>,
        scales: impl Into<Cow<'a, [f16]>>,
        zero: Zero<'a>,
    ) -> Self {
        Int4 { group, codes: codes.into(), scales: scales.into(), zero }
    }

    pub(super) fn validate(&self, rows: usize, columns: usize) -> Result<()> {
        let (row_bytes, groups) = (Self::row_bytes(columns), rows.checked_mul(self.group.count(columns)));
        ensure!(
            rows.checked_mul(row_bytes) == Some(self.codes.len()) && groups == Some(self.scales.len()),
            "an int4 matrix of {rows} x {columns} can't have {} bytes of codes and {} scales",
            self.codes.len(),
            self.scales.len()
        );
        if columns % 2 == 1 {
            let dirty = self.codes.chunks(row_bytes).position(|row| row[row_bytes - 1] > 15);
            ensure!(dirty.is_none(), "int4 row {} has a nibble past its last column", dirty.unwrap_or(0));
        }
        let broken = self.scales.iter().position(|scale| !scale.is_finite());
        ensure!(broken.is_none(), "int4 group {} has a scale that is not finite", broken.unwrap_or(0));
        match &self.zero {
            Zero::Symmetric => {}
            Zero::Point(points) => {
                ensure!(
                    points.len() == self.scales.len(),
                    "{} zero points for {} scales",
                    points.len(),
                    self.scales.len()
                );
                ensure!(points.iter().all(|&point| point <= 16), "an int4 zero point is above 16");
            }
            Zero::Min(minima) => {
                ensure!(minima.len() == self.scales.len(), "{} minima for {} scales", minima.len(), self.scales.len());
                ensure!(minima.iter().all(|minimum| minimum.is_finite()), "an int4 minimum is not finite");
            }
        }
        Ok(())
    }

    /// Columns that share a scale.
    pub fn group(&self) -> Group {
        self.group
    }

    /// All codes, row after row.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// `[rows, groups of a row]`.
    pub fn scales(&self) -> &[f16] {
        &self.scales
    }

    /// What the groups hold besides their scales.
    pub fn zero(&self) -> &Zero<'a> {
        &self.zero
    }

    /// The raw codes `u` in 0..=15 of one row.
    pub fn row(&self, row: usize, out: &mut [u8]) {
        let row_bytes = Self::row_bytes(out.len());
        Self::unpack_row(&self.codes[row * row_bytes..(row + 1) * row_bytes], out);
    }

    /// The raw codes of the row that is packed in `codes`.
    ///
    /// # Panics
    /// If `codes` is shorter than [`Int4::row_bytes`].
    pub fn unpack_row(codes: &[u8], out: &mut [u8]) {
        let (pairs, tail) = out.as_chunks_mut::<2>();
        let (whole, rest) = codes.split_at(pairs.len());
        pairs.iter_mut().zip(whole).for_each(|(out, &byte)| *out = [byte & 15, byte >> 4]);
        if let [out] = tail {
            *out = rest[0] & 15;
        }
    }

    pub(super) fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        let columns = out.len();
        let row_bytes = Self::row_bytes(columns);
        let codes = &self.codes[row * row_bytes..(row + 1) * row_bytes];
        let (width, groups) = (self.group.columns(columns), self.group.count(columns));
        for (column, out) in out.iter_mut().enumerate() {
            let at = row * groups + column / width;
            let (scale, code) = (self.scales[at].to_f32(), f32::from(codes[column / 2] >> (4 * (column % 2)) & 15));
            *out = match &self.zero {
                Zero::Symmetric => scale * (code - 8.0),
                Zero::Point(points) => scale * (code - f32::from(points[at])),
                Zero::Min(minima) => scale * code + minima[at].to_f32(),
            };
        }
    }

    pub(super) fn into_owned(self) -> Int4<'static> {
        let zero = match self.zero {
            Zero::Symmetric => Zero::Symmetric,
            Zero::Point(points) => Zero::Point(owned(points)),
            Zero::Min(minima) => Zero::Min(owned(minima)),
        };
        Int4 { group: self.group, codes: owned(self.codes), scales: owned(self.scales), zero }
    }
}

/// Packs one row of raw codes 0..=15 into [`Int4::row_bytes`] bytes. Returns the first code above 15, if there is one: then
/// what was packed is good for nothing.
///
/// # Panics
/// If the lengths do not fit.
#[must_use]
pub(super) fn pack_row(codes: &[u8], out: &mut [u8]) -> Option<u8> {
    assert_eq!(out.len(), Int4::row_bytes(codes.len()));
    let (pairs, rest) = codes.as_chunks::<2>();
    let (whole, tail) = out.split_at_mut(pairs.len());
    whole.iter_mut().zip(pairs).for_each(|(out, [even, odd])| *out = even | odd << 4);
    tail.copy_from_slice(rest);
    // One pass without branches while all is well.
    let all = codes.iter().fold(0, |all, &code| all | code);
    if all <= 15 { None } else { codes.iter().copied().find(|&code| code > 15) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packing_is_what_the_layout_says(codes in prop::collection::vec(0u8..16, 1..100), wrong in 16u8..) {
            let mut packed = vec![0xFF; Int4::row_bytes(codes.len())];
            prop_assert_eq!(pack_row(&codes, &mut packed), None);
            for (at, byte) in packed.iter().enumerate() {
                prop_assert_eq!(*byte, codes[2 * at] | codes.get(2 * at + 1).map_or(0, |code| code << 4));
            }
            let mut unpacked = vec![99; codes.len()];
            Int4::unpack_row(&packed, &mut unpacked);
            prop_assert_eq!(&unpacked, &codes);
            unpacked[codes.len() / 2] = wrong;
            prop_assert_eq!(pack_row(&unpacked, &mut packed), Some(wrong));
        }
    }
}
