//! INT8 products.

use std::arch::x86_64::__m256i;

use super::{Simd, activations, add_pairs, broadcast, halves, load, prefetch_next, scale_add, tiles};
use crate::kernels::{Job, Outputs};
use crate::weights::TILE;

/// The codes of a block: eight vectors.
const BLOCK_BYTES: usize = 256;

/// A group's header: f16 scales.
const HEADER: usize = 2 * TILE;

/// `R` tiles times `T` tokens. `vpmaddubsw` multiplies |w| with a · sign(w): a pair is at most
/// 2 · 127 · 127 = 32258, which leaves no room for a second one in int16.
#[inline(always)]
pub(super) fn product<const R: usize, const T: usize>(simd: Simd, job: &Job<'_>, out: &mut [Outputs]) {
    let (tiles, tokens) = (tiles::<R>(job), activations::<T>(job));
    let mut scales = [simd.avx._mm256_setzero_ps(); R];
    let mut sums = [[simd.avx._mm256_setzero_ps(); T]; R];
    let (mut at, mut left_of_group) = (0, 0);
    for block in 0..job.layout.blocks {
        if left_of_group == 0 {
            for r in 0..R {
                scales[r] = halves(simd, tiles[r][at..].first_chunk().expect("a group has a header"));
            }
            at += HEADER;
            left_of_group = job.layout.group_blocks;
        }
        left_of_group -= 1;
        let mut codes = [&[0; BLOCK_BYTES]; R];
        let mut broadcasts = [&[0; 8]; T];
        for r in 0..R {
            codes[r] = tiles[r][at..].first_chunk().expect("a block has all of its codes");
            for line in 0..BLOCK_BYTES / 64 {
                prefetch_next(simd, job, &codes[r][64 * line..]);
            }
        }
        for t in 0..T {
            broadcasts[t] = &tokens.codes[t][block];
        }
        let products = multiply_block(simd, codes, broadcasts);
        for t in 0..T {
            let scale = simd.avx._mm256_set1_ps(tokens.scales[t][block]);
            for r in 0..R {
                let scale = simd.avx._mm256_mul_ps(scales[r], scale);
                sums[r][t] = scale_add(simd, sums[r][t], products[r][t], scale);
            }
        }
        at += BLOCK_BYTES;
    }
    for r in 0..R {
        for t in 0..T {
            out[r * T + t] = pulp::cast(sums[r][t]);
        }
    }
}

/// The integer sums of a block.
#[inline(always)]
fn multiply_block<const R: usize, const T: usize>(
    simd: Simd,
    codes: [&[u8; BLOCK_BYTES]; R],
    activations: [&[i32; 8]; T],
) -> [[__m256i; T]; R] {
    let mut sums = [[simd.avx._mm256_setzero_si256(); T]; R];
    for vector in 0..8 {
        let mut a = [simd.avx._mm256_setzero_si256(); T];
        for t in 0..T {
            a[t] = broadcast(simd, activations[t][vector]);
        }
        for r in 0..R {
            let codes = load(&codes[r].as_chunks::<32>().0[vector]);
            let magnitude = simd.avx2._mm256_abs_epi8(codes);
            for t in 0..T {
                let signed = simd.avx2._mm256_sign_epi8(a[t], codes);
                let pairs = simd.avx2._mm256_maddubs_epi16(magnitude, signed);
                sums[r][t] = simd.avx2._mm256_add_epi32(sums[r][t], add_pairs(simd, pairs));
            }
        }
    }
    sums
}
