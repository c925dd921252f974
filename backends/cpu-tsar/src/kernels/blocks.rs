//! Kernels whose float steps are plain loops over the 8 rows of a tile, which the compiler vectorises; the
//! integer sums are an instruction set's own ([`Dot`]).

use half::{bf16, f16};
use trine_backend::activation::BLOCK;
use trine_backend::{Format, ZeroKind};

use super::{Job, Outputs};
use crate::activations::CodeBlock;
use crate::weights::TILE;

/// An integer for each row of a tile.
pub(super) type Sums = [i32; TILE];

/// Exact integer sums `Σ code · activation` over blocks of 32 columns, for each row of a tile.
pub(super) trait Dot {
    /// Codes 0..=2 of all blocks of a tile.
    fn ternary<const T: usize>(codes: &[[u8; 64]], activations: [&[CodeBlock]; T]) -> [Sums; T];
    /// Codes 0..=15 of a block.
    fn int4<const T: usize>(codes: &[u8; 128], activations: [&CodeBlock; T]) -> [Sums; T];
    /// Codes -127..=127 of a block.
    fn int8<const T: usize>(codes: &[u8; 256], activations: [&CodeBlock; T]) -> [Sums; T];
}

/// A tile of a ternary matrix times `T` tokens.
#[inline(always)]
pub(super) fn ternary<D: Dot, const T: usize>(job: &Job<'_>, out: &mut [Outputs]) {
    let tokens: [_; T] = std::array::from_fn(|t| job.tokens.token(t));
    let (header, codes) = job.tile(0).split_at(job.layout.header);
    let scales: [f32; TILE] = std::array::from_fn(|row| f32::from_ne_bytes(header.as_chunks().0[row]));
    let sums = D::ternary(codes.as_chunks().0, tokens.map(|token| token.codes));
    for t in 0..T {
        for row in 0..TILE {
            // Codes are t + 1.
            let sum = sums[t][row] - tokens[t].total;
            out[t].0[row] = sum as f32 * (scales[row] * tokens[t].scales[0]);
        }
    }
}

/// A tile of an INT4 matrix times `T` tokens.
#[inline(always)]
pub(super) fn int4<D: Dot, const T: usize>(job: &Job<'_>, out: &mut [Outputs]) {
    let Format::Int4 { zero, .. } = job.layout.format else { unreachable!("chosen for int4 matrices") };
    let tokens: [_; T] = std::array::from_fn(|t| job.tokens.token(t));
    out[..T].fill(Outputs::default());
    for_groups(job, |header, codes, first| {
        let scales = halves(header);
        let points: Sums = match zero {
            ZeroKind::Symmetric => [8; TILE],
            ZeroKind::Point => std::array::from_fn(|row| i32::from(header[2 * TILE + row])),
            ZeroKind::Min => [0; TILE],
        };
        let minima = if zero == ZeroKind::Min { halves(&header[2 * TILE..]) } else { [0.0; TILE] };
        for (block, codes) in (first..).zip(codes.as_chunks().0) {
            let sums = D::int4(codes, tokens.map(|token| &token.codes[block]));
            for t in 0..T {
                let (scale, total) = (tokens[t].scales[block], tokens[t].sums[block]);
                for row in 0..TILE {
                    let sum = sums[t][row] - points[row] * total;
                    out[t].0[row] += sum as f32 * (scales[row] * scale);
                    if zero == ZeroKind::Min {
                        out[t].0[row] += total as f32 * (minima[row] * scale);
                    }
                }
            }
        }
    });
}

/// A tile of an INT8 matrix times `T` tokens.
#[inline(always)]
pub(super) fn int8<D: Dot, const T: usize>(job: &Job<'_>, out: &mut [Outputs]) {
    let tokens: [_; T] = std::array::from_fn(|t| job.tokens.token(t));
    out[..T].fill(Outputs::default());
    for_groups(job, |header, codes, first| {
        let scales = halves(header);
        for (block, codes) in (first..).zip(codes.as_chunks().0) {
            let sums = D::int8(codes, tokens.map(|token| &token.codes[block]));
            for t in 0..T {
                for row in 0..TILE {
                    out[t].0[row] += sums[t][row] as f32 * (scales[row] * tokens[t].scales[block]);
                }
            }
        }
    });
}

/// A tile of a dense matrix times one token.
pub(super) fn dense(job: &Job<'_>, out: &mut [Outputs]) {
    match job.layout.format {
        Format::F16 => dense_rows(job, out, |x: [u8; 2]| f16::from_ne_bytes(x).to_f32()),
        Format::Bf16 => dense_rows(job, out, |x: [u8; 2]| bf16::from_ne_bytes(x).to_f32()),
        _ => dense_rows(job, out, f32::from_ne_bytes),
    }
}

#[inline(always)]
fn dense_rows<const B: usize>(job: &Job<'_>, out: &mut [Outputs], weight: impl Fn([u8; B]) -> f32) {
    let (full, rest) = job.tokens.floats(0).as_chunks::<BLOCK>();
    let rest = (!rest.is_empty()).then(|| padded(rest));
    let rows = job.tile(0).chunks_exact(job.layout.tile_bytes / TILE);
    for (out, row) in out[0].0.iter_mut().zip(rows) {
        let mut sums = [0.0; BLOCK];
        for (x, weights) in full.iter().chain(&rest).zip(row.chunks_exact(B * BLOCK)) {
            for (i, &bytes) in weights.as_chunks::<B>().0.iter().enumerate() {
                sums[i] += weight(bytes) * x[i];
            }
        }
        *out = add_up(sums);
    }
}

/// Adds the partial sums of a dense product: halves onto halves.
#[inline(always)]
pub(super) fn add_up(mut sums: [f32; BLOCK]) -> f32 {
    let mut half = BLOCK / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}

/// The columns past the last full block, padded with zeros.
#[inline(always)]
pub(super) fn padded(rest: &[f32]) -> [f32; BLOCK] {
    let mut block = [0.0; BLOCK];
    block[..rest.len()].copy_from_slice(rest);
    block
}

/// Calls `group(header, codes, first block)` for each group of the job's tile.
#[inline(always)]
fn for_groups(job: &Job<'_>, mut group: impl FnMut(&[u8], &[u8], usize)) {
    let layout = job.layout;
    let bytes = layout.header + layout.group_blocks * layout.block_bytes;
    for (at, part) in job.tile(0).chunks(bytes).enumerate() {
        let (header, codes) = part.split_at(layout.header);
        group(header, codes, at * layout.group_blocks);
    }
}

/// Eight f16 as floats.
#[inline(always)]
fn halves(bytes: &[u8]) -> [f32; TILE] {
    std::array::from_fn(|row| f16::from_ne_bytes(bytes.as_chunks().0[row]).to_f32())
}
