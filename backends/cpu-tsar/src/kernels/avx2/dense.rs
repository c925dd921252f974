//! Dense products, with fused multiply-adds.

use std::arch::x86_64::{__m128i, __m256};

use trine_backend::Format;
use trine_backend::activation::BLOCK;

use super::{Simd, floats, halves};
use crate::kernels::{Job, Outputs, blocks};
use crate::weights::TILE;

/// A tile of rows times `T` tokens.
#[inline(always)]
pub(super) fn product<const T: usize>(simd: Simd, job: &Job<'_>, out: &mut [Outputs]) {
    match job.layout.format {
        Format::F16 => rows::<Half, { 2 * BLOCK }, T>(simd, job, out),
        Format::Bf16 => rows::<Brain, { 2 * BLOCK }, T>(simd, job, out),
        _ => rows::<Single, { 4 * BLOCK }, T>(simd, job, out),
    }
}

/// A format of `B` bytes for a block of 32 weights.
trait Weights<const B: usize> {
    /// Vector number 0 to 3 of a block.
    fn vector(simd: Simd, block: &[u8; B], vector: usize) -> __m256;
}

struct Single;

impl Weights<128> for Single {
    #[inline(always)]
    fn vector(_: Simd, block: &[u8; 128], vector: usize) -> __m256 {
        pulp::cast(block.as_chunks::<32>().0[vector])
    }
}

struct Half;

impl Weights<64> for Half {
    #[inline(always)]
    fn vector(simd: Simd, block: &[u8; 64], vector: usize) -> __m256 {
        halves(simd, &block.as_chunks().0[vector])
    }
}

struct Brain;

impl Weights<64> for Brain {
    #[inline(always)]
    fn vector(simd: Simd, block: &[u8; 64], vector: usize) -> __m256 {
        let values: __m128i = pulp::cast(block.as_chunks::<16>().0[vector]);
        let words = simd.avx2._mm256_slli_epi32::<16>(simd.avx2._mm256_cvtepu16_epi32(values));
        simd.avx._mm256_castsi256_ps(words)
    }
}

#[inline(always)]
fn rows<W: Weights<B>, const B: usize, const T: usize>(simd: Simd, job: &Job<'_>, out: &mut [Outputs]) {
    let count = job.tokens.floats(0).len() / BLOCK;
    let mut full: [&[[f32; BLOCK]]; T] = [&[]; T];
    let mut rest = [[0.0; BLOCK]; T];
    for t in 0..T {
        let (whole, end) = job.tokens.floats(t).as_chunks::<BLOCK>();
        full[t] = &whole[..count];
        rest[t] = blocks::padded(end);
    }
    for row in 0..TILE {
        let bytes = &job.tile(0)[row * job.layout.blocks * B..][..job.layout.blocks * B];
        let (whole, last) = bytes.as_chunks::<B>().0.split_at(count);
        let mut sums = [[simd.avx._mm256_setzero_ps(); 4]; T];
        for block in 0..count {
            for t in 0..T {
                add_block::<W, B>(simd, &whole[block], &full[t][block], &mut sums[t]);
            }
        }
        if let [last] = last {
            for t in 0..T {
                add_block::<W, B>(simd, last, &rest[t], &mut sums[t]);
            }
        }
        for t in 0..T {
            out[t].0[row] = blocks::add_up(pulp::cast(sums[t]));
        }
    }
}

/// Adds the products of 32 weights. (The compiler converts them once for all tokens.)
#[inline(always)]
fn add_block<W: Weights<B>, const B: usize>(simd: Simd, weights: &[u8; B], x: &[f32; BLOCK], sums: &mut [__m256; 4]) {
    for (vector, sum) in sums.iter_mut().enumerate() {
        let x = floats(x.as_chunks::<8>().0[vector]);
        *sum = simd.fma._mm256_fmadd_ps(W::vector(simd, weights, vector), x, *sum);
    }
}
