//! Blocks of 256: Q4_K, Q5_K, Q6_K.
//!
//! Q4_K and Q5_K have eight groups of 32 with a 6-bit scale `s` and minimum `m` each, and f16 factors `d` and `e` of the
//! block: `w = (d s) q - e m`. Q6_K has sixteen groups of 16 with an 8-bit scale: `w = (d s) q`.

use half::f16;

use super::{half_at, nibbles};

const COLUMNS: usize = 256;
const GROUP: usize = 32;
const Q4_K: usize = 144;
const Q5_K: usize = 176;
const Q6_K: usize = 210;

/// Codes in 0..=15 with the scale `d s` and the minimum `-e m`, rounded to f16.
pub(super) fn q4_k_codes(row: &[u8], codes: &mut [u8], scales: &mut [f16], minima: &mut [f16]) {
    let groups = scales.chunks_exact_mut(8).zip(minima.chunks_exact_mut(8));
    for ((block, codes), (scales, minima)) in row.chunks_exact(Q4_K).zip(codes.chunks_exact_mut(COLUMNS)).zip(groups) {
        for (bytes, codes) in block[16..].chunks_exact(GROUP).zip(codes.chunks_exact_mut(2 * GROUP)) {
            nibbles(bytes, codes);
        }
        for ((scale, minimum), (s, m)) in scales.iter_mut().zip(minima).zip(factors(block)) {
            (*scale, *minimum) = (f16::from_f32(s), f16::from_f32(-m));
        }
    }
}

pub(super) fn q4_k(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(Q4_K).zip(out.chunks_exact_mut(COLUMNS)) {
        let mut raw = [0; COLUMNS];
        for (bytes, raw) in block[16..].chunks_exact(GROUP).zip(raw.chunks_exact_mut(2 * GROUP)) {
            nibbles(bytes, raw);
        }
        scaled(block, &raw, out);
    }
}

/// Behind the factors 32 bytes of fifth bits: bit `g` of byte `c` belongs to column `c` of group `g`.
pub(super) fn q5_k(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(Q5_K).zip(out.chunks_exact_mut(COLUMNS)) {
        let mut raw = [0; COLUMNS];
        let high = &block[16..48];
        for (bytes, raw) in block[48..].chunks_exact(GROUP).zip(raw.chunks_exact_mut(2 * GROUP)) {
            nibbles(bytes, raw);
        }
        for (group, raw) in raw.chunks_exact_mut(GROUP).enumerate() {
            raw.iter_mut().zip(high).for_each(|(raw, byte)| *raw |= (byte >> group & 1) << 4);
        }
        scaled(block, &raw, out);
    }
}

/// For each half of the block 64 bytes of nibbles, then for each half 32 bytes of upper two bits, then 16 scales and `d`.
pub(super) fn q6_k(row: &[u8], out: &mut [f32]) {
    const HALF: usize = COLUMNS / 2;
    for (block, out) in row.chunks_exact(Q6_K).zip(out.chunks_exact_mut(COLUMNS)) {
        let (low, rest) = block.split_at(HALF);
        let (high, rest) = rest.split_at(HALF / 2);
        let factor = half_at(rest, 16).to_f32();
        let halves = low.chunks_exact(HALF / 2).zip(high.chunks_exact(GROUP)).zip(rest.chunks_exact(8));
        for (((low, high), scales), out) in halves.zip(out.chunks_exact_mut(HALF)) {
            let mut raw = [0; HALF];
            nibbles(low, &mut raw);
            for (column, (out, raw)) in out.iter_mut().zip(raw).enumerate() {
                let code = raw | (high[column % GROUP] >> (2 * (column / GROUP)) & 3) << 4;
                let scale = factor * f32::from(scales[column / 16] as i8);
                *out = scale * (f32::from(code) - 32.0);
            }
        }
    }
}

fn scaled(block: &[u8], raw: &[u8; COLUMNS], out: &mut [f32]) {
    let groups = raw.chunks_exact(GROUP).zip(out.chunks_exact_mut(GROUP));
    for ((raw, out), (scale, minimum)) in groups.zip(factors(block)) {
        out.iter_mut().zip(raw).for_each(|(out, &raw)| *out = scale * f32::from(raw) - minimum);
    }
}

/// Scale and minimum of the eight groups. The 6-bit numbers are in 12 bytes: those of the first four groups in the lower
/// bits of bytes 0..4 (scales) and 4..8 (minima); of the last four the lower four bits in the nibbles of bytes 8..12 and
/// the upper two on top of the first four's.
fn factors(block: &[u8]) -> [(f32, f32); 8] {
    let (d, e) = (half_at(block, 0).to_f32(), half_at(block, 2).to_f32());
    let packed = &block[4..16];
    std::array::from_fn(|group| {
        let (scale, minimum) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let low = packed[group + 4];
            (low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4)
        };
        (d * f32::from(scale), e * f32::from(minimum))
    })
}
