//! INT8 products.

use std::arch::x86_64::__m256i;

use super::{Simd, add_pairs, broadcast, halves, load, prefetch_next, scale_add, streams};
use crate::activations::Token;
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
    let tokens: [Token<'_>; T] = std::array::from_fn(|t| job.tokens.token(t));
    let tiles: [&[u8]; R] = std::array::from_fn(|r| job.tile(r));
    let (blocks, group_blocks) = (job.layout.blocks, job.layout.group_blocks);
    let mut sums = [[simd.avx._mm256_setzero_ps(); T]; R];
    let (mut first, mut at) = (0, 0);
    while first < blocks {
        let last = (first + group_blocks).min(blocks);
        let len = HEADER + (last - first) * BLOCK_BYTES;
        let group = tiles.map(|tile| tile[at..at + len].split_first_chunk::<HEADER>().expect("a group has a header"));
        let mut scales = [simd.avx._mm256_setzero_ps(); R];
        for r in 0..R {
            scales[r] = halves(simd, group[r].0);
        }
        let codes: [&[[u8; BLOCK_BYTES]]; R] = group.map(|(_, codes)| &codes.as_chunks().0[..last - first]);
        let token_codes = tokens.map(|token| &token.codes[first..last]);
        let token_scales = tokens.map(|token| &token.scales[first..last]);
        for block in 0..last - first {
            let mut block_codes = [&[0; BLOCK_BYTES]; R];
            let mut activations = [&[0; 8]; T];
            for r in 0..R {
                block_codes[r] = &codes[r][block];
            }
            for t in 0..T {
                activations[t] = &token_codes[t][block];
            }
            if streams(T) {
                for r in 0..R {
                    for line in block_codes[r].as_chunks::<64>().0 {
                        prefetch_next(simd, job, line);
                    }
                }
            }
            let products = multiply_block(simd, block_codes, activations);
            for t in 0..T {
                let scale = simd.avx._mm256_set1_ps(token_scales[t][block]);
                for r in 0..R {
                    let scale = simd.avx._mm256_mul_ps(scales[r], scale);
                    sums[r][t] = scale_add(simd, sums[r][t], products[r][t], scale);
                }
            }
        }
        (first, at) = (last, at + len);
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
