//! Ternary blocks: TQ1_0 and TQ2_0 of 256 columns with an f16 scale behind them.

use half::f16;

use super::super::types::GgmlType;
use super::{Problem, half_at};

const COLUMNS: usize = 256;

/// The scales of a row's blocks.
pub(in super::super) fn block_scales(kind: GgmlType, row: &[u8]) -> impl Iterator<Item = f16> + '_ {
    let bytes = kind.block_bytes();
    row.chunks_exact(bytes).map(move |block| half_at(block, bytes - 2))
}

/// A row whose blocks have the same scale, or 0, as -1, 0, 1; returns the scale.
pub(super) fn row_codes(kind: GgmlType, row: &[u8], values: &mut [i8]) -> Problem<f32> {
    let mut scale = f16::ZERO;
    for (block, values) in row.chunks_exact(kind.block_bytes()).zip(values.chunks_exact_mut(COLUMNS)) {
        let of_block = unpack(kind, block, values)?;
        if of_block.to_f32() == 0.0 {
            // Whatever the codes are, the weights are 0.
            values.fill(0);
        } else {
            scale = of_block;
        }
    }
    Ok(scale.to_f32())
}

/// A row as symmetric INT4 codes in groups of 128.
pub(super) fn int4_codes(kind: GgmlType, row: &[u8], codes: &mut [u8], scales: &mut [f16]) -> Problem<()> {
    let blocks = row.chunks_exact(kind.block_bytes()).zip(codes.chunks_exact_mut(COLUMNS));
    for ((block, codes), scales) in blocks.zip(scales.chunks_exact_mut(2)) {
        let mut values = [0; COLUMNS];
        scales.fill(unpack(kind, block, &mut values)?);
        codes.iter_mut().zip(values).for_each(|(code, value)| *code = (value + 8) as u8);
    }
    Ok(())
}

pub(super) fn floats(kind: GgmlType, row: &[u8], out: &mut [f32]) -> Problem<()> {
    for (block, out) in row.chunks_exact(kind.block_bytes()).zip(out.chunks_exact_mut(COLUMNS)) {
        let mut values = [0; COLUMNS];
        let scale = unpack(kind, block, &mut values)?.to_f32();
        out.iter_mut().zip(values).for_each(|(out, value)| *out = scale * f32::from(value));
    }
    Ok(())
}

/// The block as -1, 0, 1; returns its scale.
fn unpack(kind: GgmlType, block: &[u8], values: &mut [i8]) -> Problem<f16> {
    let bytes = block.len() - 2;
    if kind == GgmlType::Tq1_0 {
        unpack_base3(&block[..bytes], values);
    } else {
        unpack_pairs(&block[..bytes], values)?;
    }
    Ok(half_at(block, bytes))
}

/// TQ2_0: of each 32 bytes, byte `j` holds columns `j`, `j + 32`, `j + 64`, `j + 96` from its lowest bits up, as t + 1.
fn unpack_pairs(bytes: &[u8], values: &mut [i8]) -> Problem<()> {
    for (bytes, values) in bytes.chunks_exact(32).zip(values.chunks_exact_mut(128)) {
        for (column, value) in values.iter_mut().enumerate() {
            *value = (bytes[column % 32] >> (2 * (column / 32)) & 3) as i8 - 1;
        }
    }
    match values.iter().position(|&value| value == 2) {
        None => Ok(()),
        Some(column) => Err(format!("invalid ternary code 3 in column {column} of a block")),
    }
}

/// TQ1_0: a byte is a fraction of 256 whose base-3 digits are t + 1. Runs of 32, 16 and 4 bytes hold five, five and four
/// digits; in a run all first digits come first.
fn unpack_base3(bytes: &[u8], values: &mut [i8]) {
    let mut values = values.iter_mut();
    for (from, length, digits) in [(0, 32, 5), (32, 16, 5), (48, 4, 4)] {
        for digit in 0..digits {
            for (byte, value) in bytes[from..from + length].iter().zip(values.by_ref()) {
                let rest = byte.wrapping_mul(3u8.pow(digit));
                *value = ((u16::from(rest) * 3) >> 8) as i8 - 1;
            }
        }
    }
}
