//! Ternary codes: four to a byte, lowest bits first, stored as t + 1.

use std::borrow::Cow;

use super::owned;
use crate::error::ensure;
use crate::{Error, Result};

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
        // A code of 3 has both of its bits set.
        let threes = |byte: u8| byte & (byte >> 1) & 0x55;
        // One pass without branches while all is well.
        if self.codes.iter().fold(0, |found, &byte| found | threes(byte)) != 0 {
            let at = self.codes.iter().position(|&byte| threes(byte) != 0).unwrap_or(0);
            let (row, byte) = (at / row_bytes, at % row_bytes);
            return Err(Error::Invalid(format!("ternary row {row} has a code of 3 in byte {byte}")));
        }
        if tail != 0 {
            let dirty = self.codes.chunks(row_bytes).position(|codes| codes[row_bytes - 1] >> (2 * tail) != 0);
            ensure!(dirty.is_none(), "ternary row {} has bits past its last column", dirty.unwrap_or(0));
        }
        for (row, scale) in self.scales.iter().enumerate() {
            ensure!(scale.is_finite(), "ternary row {row} has the scale {scale}");
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
        Self::unpack_row(&self.codes[row * row_bytes..(row + 1) * row_bytes], out);
    }

    /// The values of the row that is packed in `codes`: -1, 0, 1, and 2 for a code of 3, which stands for nothing.
    ///
    /// # Panics
    /// If `codes` is shorter than [`Ternary::row_bytes`].
    pub fn unpack_row(codes: &[u8], out: &mut [i8]) {
        let (fours, tail) = out.as_chunks_mut::<4>();
        let (whole, rest) = codes.split_at(fours.len());
        fours.iter_mut().zip(whole).for_each(|(out, &byte)| *out = unpack(byte));
        if !tail.is_empty() {
            tail.copy_from_slice(&unpack(rest[0])[..tail.len()]);
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

/// The four values of a byte, without a loop over them: each code is shifted to a byte of its own, and the byte made one
/// less.
fn unpack(byte: u8) -> [i8; 4] {
    let codes = u32::from(byte);
    let codes = (codes | codes << 12) & 0x000F_000F;
    let codes = (codes | codes << 6) & 0x0303_0303;
    // Subtracting from codes with the highest bit set borrows nothing from the next byte.
    (((codes | 0x8080_8080) - 0x0101_0101) ^ 0x8080_8080).to_le_bytes().map(|byte| byte as i8)
}

/// Packs one row of values -1, 0, 1 into [`Ternary::row_bytes`] bytes. Returns the first value that is none of them, if
/// there is one: then what was packed is good for nothing.
///
/// # Panics
/// If the lengths do not fit.
#[must_use]
pub(super) fn pack_row(values: &[i8], out: &mut [u8]) -> Option<i8> {
    const SPAN: usize = 64;
    assert_eq!(out.len(), Ternary::row_bytes(values.len()));
    let (spans, rest) = values.as_chunks::<SPAN>();
    let (whole, tail) = out.split_at_mut(spans.len() * SPAN / 4);
    let mut sound = true;
    for (out, values) in whole.as_chunks_mut::<{ SPAN / 4 }>().0.iter_mut().zip(spans) {
        // Loops over arrays, without branches: the compiler makes vector instructions of them.
        let (mut codes, mut nibbles) = ([0u8; SPAN], [0u8; SPAN / 2]);
        for (code, value) in codes.iter_mut().zip(values) {
            *code = value.wrapping_add(1) as u8;
        }
        sound &= codes.iter().fold(0, |largest, &code| largest.max(code)) <= 2;
        for (nibble, pair) in nibbles.iter_mut().zip(codes.as_chunks().0) {
            let pair = u16::from_le_bytes(*pair);
            *nibble = (pair | pair >> 6) as u8;
        }
        for (byte, pair) in out.iter_mut().zip(nibbles.as_chunks().0) {
            let pair = u16::from_le_bytes(*pair) & 0x0F0F;
            *byte = (pair | pair >> 4) as u8;
        }
    }
    for (out, values) in tail.iter_mut().zip(rest.chunks(4)) {
        let codes = values.iter().map(|value| value.wrapping_add(1) as u8);
        sound &= codes.clone().all(|code| code <= 2);
        *out = codes.enumerate().fold(0, |byte, (at, code)| byte | (code & 3) << (2 * at));
    }
    if sound { None } else { values.iter().copied().find(|value| !(-1..=1).contains(value)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_byte_is_unpacked() {
        for byte in 0..=255u8 {
            let mut out = [9; 4];
            Ternary::unpack_row(&[byte], &mut out);
            assert_eq!(out, [0, 2, 4, 6].map(|shift| (byte >> shift & 3) as i8 - 1), "{byte}");
        }
    }

    proptest! {
        #[test]
        fn packing_is_what_the_layout_says(values in prop::collection::vec(-1i8..=1, 1..300)) {
            let mut packed = vec![0xFF; Ternary::row_bytes(values.len())];
            prop_assert_eq!(pack_row(&values, &mut packed), None);
            for (at, byte) in packed.iter().enumerate() {
                let code = |i: usize| values.get(4 * at + i).map_or(0, |&value| (value + 1) as u8);
                prop_assert_eq!(*byte, code(0) | code(1) << 2 | code(2) << 4 | code(3) << 6);
            }
            let mut unpacked = vec![9; values.len()];
            Ternary::unpack_row(&packed, &mut unpacked);
            prop_assert_eq!(unpacked, values);
        }

        #[test]
        fn a_value_that_is_not_ternary_is_found(
            mut values in prop::collection::vec(-1i8..=1, 1..300),
            at in any::<prop::sample::Index>(),
            wrong in any::<i8>().prop_filter("not ternary", |value| !(-1..=1).contains(value)),
        ) {
            let at = at.index(values.len());
            values[at] = wrong;
            prop_assert_eq!(pack_row(&values, &mut vec![0; Ternary::row_bytes(values.len())]), Some(wrong));
        }
    }
}
