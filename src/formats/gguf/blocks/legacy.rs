//! Blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! An f16 scale `d`, in the `_1` types an f16 minimum `m`, in Q5 32 fifth bits, then the codes: byte `j` holds column `j`
//! in its low and column `j + 16` in its high nibble.

use half::f16;

use super::{half_at, nibbles};

const COLUMNS: usize = 32;
const Q4_0: usize = 18;
const Q4_1: usize = 20;
const Q5_0: usize = 22;
const Q5_1: usize = 24;
const Q8_0: usize = 34;

/// Codes in 0..=15, which mean `d (q - 8)`.
pub(super) fn q4_0_codes(row: &[u8], codes: &mut [u8], scales: &mut [f16]) {
    for ((block, codes), scale) in row.chunks_exact(Q4_0).zip(codes.chunks_exact_mut(COLUMNS)).zip(scales) {
        *scale = half_at(block, 0);
        nibbles(&block[2..], codes);
    }
}

/// Codes in 0..=15, which mean `d q + m`.
pub(super) fn q4_1_codes(row: &[u8], codes: &mut [u8], scales: &mut [f16], minima: &mut [f16]) {
    let groups = scales.iter_mut().zip(minima);
    for ((block, codes), (scale, minimum)) in row.chunks_exact(Q4_1).zip(codes.chunks_exact_mut(COLUMNS)).zip(groups) {
        (*scale, *minimum) = (half_at(block, 0), half_at(block, 2));
        nibbles(&block[4..], codes);
    }
}

/// Codes in -16..=15, which mean `d q`.
pub(super) fn q5_0_codes(row: &[u8], codes: &mut [i8], scales: &mut [f16]) {
    for ((block, codes), scale) in row.chunks_exact(Q5_0).zip(codes.chunks_exact_mut(COLUMNS)).zip(scales) {
        *scale = half_at(block, 0);
        let mut raw = [0; COLUMNS];
        five_bits(&block[2..6], &block[6..], &mut raw);
        codes.iter_mut().zip(raw).for_each(|(code, raw)| *code = raw as i8 - 16);
    }
}

/// Codes in -127..=127, which mean `d q`. The file's range goes to -128, which no quantiser of the format writes and no
/// kernel takes: it becomes -127, an error of 1/128 of that one weight.
pub(super) fn q8_0_codes(row: &[u8], codes: &mut [i8], scales: &mut [f16]) {
    for ((block, codes), scale) in row.chunks_exact(Q8_0).zip(codes.chunks_exact_mut(COLUMNS)).zip(scales) {
        *scale = half_at(block, 0);
        codes.iter_mut().zip(&block[2..]).for_each(|(code, &byte)| *code = (byte as i8).max(-127));
    }
}

pub(super) fn q4_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(Q4_0).zip(out.chunks_exact_mut(COLUMNS)) {
        let mut raw = [0; COLUMNS];
        nibbles(&block[2..], &mut raw);
        scaled(half_at(block, 0), -8.0, 0.0, &raw, out);
    }
}

pub(super) fn q4_1(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(Q4_1).zip(out.chunks_exact_mut(COLUMNS)) {
        let mut raw = [0; COLUMNS];
        nibbles(&block[4..], &mut raw);
        scaled(half_at(block, 0), 0.0, half_at(block, 2).to_f32(), &raw, out);
    }
}

pub(super) fn q5_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(Q5_0).zip(out.chunks_exact_mut(COLUMNS)) {
        let mut raw = [0; COLUMNS];
        five_bits(&block[2..6], &block[6..], &mut raw);
        scaled(half_at(block, 0), -16.0, 0.0, &raw, out);
    }
}

pub(super) fn q5_1(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(Q5_1).zip(out.chunks_exact_mut(COLUMNS)) {
        let mut raw = [0; COLUMNS];
        five_bits(&block[4..8], &block[8..], &mut raw);
        scaled(half_at(block, 0), 0.0, half_at(block, 2).to_f32(), &raw, out);
    }
}

pub(super) fn q8_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(Q8_0).zip(out.chunks_exact_mut(COLUMNS)) {
        let scale = half_at(block, 0).to_f32();
        out.iter_mut().zip(&block[2..]).for_each(|(out, &byte)| *out = scale * f32::from(byte as i8));
    }
}

/// Nibbles with their fifth bits: bit `c` of `high` belongs to column `c`.
fn five_bits(high: &[u8], bytes: &[u8], out: &mut [u8; COLUMNS]) {
    nibbles(bytes, out);
    for (column, out) in out.iter_mut().enumerate() {
        *out |= (high[column / 8] >> (column % 8) & 1) << 4;
    }
}

/// `scale (q + shift) + minimum`.
fn scaled(scale: f16, shift: f32, minimum: f32, raw: &[u8; COLUMNS], out: &mut [f32]) {
    let scale = scale.to_f32();
    out.iter_mut().zip(raw).for_each(|(out, &raw)| *out = scale * (f32::from(raw) + shift) + minimum);
}
