//! What the bytes of a row mean: each block format unpacked to codes and scales, or to floats.
//!
//! A row is whole blocks (the header is checked for that), so nothing here can fail but a code that stands for nothing.

mod i2s;
mod k;
mod legacy;
mod ternary;

use half::f16;
use trine_backend::{CodedRow, ZeroRow};

pub(super) use i2s::{I2s, Packing};
pub(super) use ternary::block_scales;

use super::types::GgmlType;

/// Why a row can't be read.
pub(super) type Problem<T> = Result<T, String>;

/// Writes the codes of a row of `kind` into `out`, a row of its [native format](GgmlType::native) or, for TQ1_0 and
/// TQ2_0, of symmetric INT4 in groups of 128.
pub(super) fn codes(kind: GgmlType, row: &[u8], out: CodedRow<'_>) -> Problem<()> {
    match (kind, out) {
        (GgmlType::Q4_0, CodedRow::Int4 { codes, scales, zero: ZeroRow::Symmetric }) => {
            legacy::q4_0_codes(row, codes, scales);
        }
        (GgmlType::Q4_1, CodedRow::Int4 { codes, scales, zero: ZeroRow::Min(minima) }) => {
            legacy::q4_1_codes(row, codes, scales, minima);
        }
        (GgmlType::Q4K, CodedRow::Int4 { codes, scales, zero: ZeroRow::Min(minima) }) => {
            k::q4_k_codes(row, codes, scales, minima);
        }
        (GgmlType::Q5_0, CodedRow::Int8 { codes, scales }) => legacy::q5_0_codes(row, codes, scales),
        (GgmlType::Q8_0, CodedRow::Int8 { codes, scales }) => legacy::q8_0_codes(row, codes, scales),
        (GgmlType::Tq1_0 | GgmlType::Tq2_0, CodedRow::Ternary { values, scale }) => {
            *scale = ternary::row_codes(kind, row, values)?;
        }
        (GgmlType::Tq1_0 | GgmlType::Tq2_0, CodedRow::Int4 { codes, scales, zero: ZeroRow::Symmetric }) => {
            ternary::int4_codes(kind, row, codes, scales)?;
        }
        (kind, _) => return Err(format!("{kind} has no codes of this format")),
    }
    Ok(())
}

/// The weights of a row of `kind`, which is neither dense nor I2_S, as floats; NaN and infinity where a scale is.
pub(super) fn floats(kind: GgmlType, row: &[u8], out: &mut [f32]) -> Problem<()> {
    match kind {
        GgmlType::Q4_0 => legacy::q4_0(row, out),
        GgmlType::Q4_1 => legacy::q4_1(row, out),
        GgmlType::Q5_0 => legacy::q5_0(row, out),
        GgmlType::Q5_1 => legacy::q5_1(row, out),
        GgmlType::Q8_0 => legacy::q8_0(row, out),
        GgmlType::Q4K => k::q4_k(row, out),
        GgmlType::Q5K => k::q5_k(row, out),
        GgmlType::Q6K => k::q6_k(row, out),
        GgmlType::Tq1_0 | GgmlType::Tq2_0 => ternary::floats(kind, row, out)?,
        GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16 | GgmlType::I2S => {
            return Err(format!("{kind} is not stored in rows of blocks"));
        }
    }
    Ok(())
}

/// The f16 at byte `at`.
fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// Low nibbles first, then the high ones: twice as many codes as bytes.
fn nibbles(bytes: &[u8], out: &mut [u8]) {
    let (low, high) = out.split_at_mut(bytes.len());
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}
