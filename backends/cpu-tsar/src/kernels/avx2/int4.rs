//! INT4 products: codes of 0..=15, two to a byte.

use std::arch::x86_64::{__m128i, __m256, __m256i};

use trine_backend::{Format, ZeroKind};

use super::{
    Activations, OWN, Simd, activations, add_pairs, and, broadcast, halves, load, multiply_add, prefetch_next,
    scale_add, tiles,
};
use crate::kernels::{Job, Outputs};
use crate::weights::TILE;

/// The codes of a block: four vectors.
const BLOCK_BYTES: usize = 128;

/// `R` tiles times `T` tokens.
#[inline(always)]
pub(super) fn product<const R: usize, const T: usize>(simd: Simd, job: &Job<'_>, out: &mut [Outputs]) {
    match job.layout.format {
        Format::Int4 { zero: ZeroKind::Point, .. } => groups::<{ 3 * TILE }, R, T>(simd, job, out),
        Format::Int4 { zero: ZeroKind::Min, .. } => groups::<{ 4 * TILE }, R, T>(simd, job, out),
        _ => groups::<{ 2 * TILE }, R, T>(simd, job, out),
    }
}

/// What the header of a group says of the 8 rows.
#[derive(Clone, Copy)]
struct Header {
    scales: __m256,
    /// With a zero point: int32.
    points: __m256i,
    /// With a minimum.
    minima: __m256,
}

/// The kind of zero is known by the size of the header, `H`.
#[inline(always)]
fn groups<const H: usize, const R: usize, const T: usize>(simd: Simd, job: &Job<'_>, out: &mut [Outputs]) {
    let (tiles, tokens) = (tiles::<R>(job), activations::<T>(job));
    let none = simd.avx._mm256_setzero_ps();
    let mut headers = [Header { scales: none, points: simd.avx._mm256_setzero_si256(), minima: none }; R];
    let mut sums = [[none; T]; R];
    let (mut at, mut left_of_group) = (0, 0);
    for block in 0..job.layout.blocks {
        if left_of_group == 0 {
            for r in 0..R {
                headers[r] = read_header::<H>(simd, tiles[r][at..].first_chunk().expect("a group has a header"));
            }
            at += H;
            left_of_group = job.layout.group_blocks;
        }
        left_of_group -= 1;
        let mut codes = [&[0; BLOCK_BYTES]; R];
        let mut broadcasts = [&[0; 8]; T];
        for r in 0..R {
            codes[r] = tiles[r][at..].first_chunk().expect("a block has all of its codes");
            if R < OWN {
                prefetch_next::<R>(simd, job, codes[r]);
                prefetch_next::<R>(simd, job, &codes[r][64..]);
            }
        }
        let mut starts = [simd.avx._mm256_setzero_si256(); T];
        for t in 0..T {
            broadcasts[t] = &tokens.codes[t][block];
            if H == 2 * TILE {
                starts[t] = broadcast(simd, tokens.centres[t][block]);
            }
        }
        let pairs = multiply_block(simd, codes, broadcasts, starts);
        for t in 0..T {
            add_block::<H, R, T>(simd, &headers, &pairs, &tokens, block, t, &mut sums);
        }
        at += BLOCK_BYTES;
    }
    for r in 0..R {
        for t in 0..T {
            out[r * T + t] = Outputs(pulp::cast(sums[r][t]));
        }
    }
}

#[inline(always)]
fn read_header<const H: usize>(simd: Simd, header: &[u8; H]) -> Header {
    let zero = simd.avx._mm256_setzero_si256();
    let mut read = Header { scales: halves(simd, part(header, 0)), points: zero, minima: simd.avx._mm256_setzero_ps() };
    if H == 3 * TILE {
        let points: __m128i = pulp::cast(*part(header, TILE)); // The points are the upper 8 bytes.
        read.points = simd.avx2._mm256_cvtepu8_epi32(simd.sse2._mm_srli_si128::<8>(points));
    }
    if H == 4 * TILE {
        read.minima = halves(simd, part(header, 2 * TILE));
    }
    read
}

#[inline(always)]
fn part<const H: usize>(header: &[u8; H], at: usize) -> &[u8; 2 * TILE] {
    header[at..].first_chunk().expect("the header has this part")
}

/// The products of a block in int16 pairs, each token's from its own start: 8 times 2 · 15 · 127 = 3810 fits, and from
/// [`crate::activations::centre`] too.
#[inline(always)]
fn multiply_block<const R: usize, const T: usize>(
    simd: Simd,
    codes: [&[u8; BLOCK_BYTES]; R],
    activations: [&[i32; 8]; T],
    starts: [__m256i; T],
) -> [[__m256i; T]; R] {
    let mask = simd.avx._mm256_set1_epi8(15);
    let mut pairs = [starts; R];
    for vector in 0..4 {
        let mut low = [simd.avx._mm256_setzero_si256(); R];
        let mut high = low;
        for r in 0..R {
            let codes = load(&codes[r].as_chunks::<32>().0[vector]);
            low[r] = and(simd, codes, mask);
            high[r] = and(simd, simd.avx2._mm256_srli_epi16::<4>(codes), mask);
        }
        for t in 0..T {
            let a = broadcast(simd, activations[t][2 * vector]);
            let b = broadcast(simd, activations[t][2 * vector + 1]);
            for r in 0..R {
                pairs[r][t] = multiply_add(simd, pairs[r][t], low[r], a);
                pairs[r][t] = multiply_add(simd, pairs[r][t], high[r], b);
            }
        }
    }
    pairs
}

/// Corrects a block's sums of one token for the zero (where they did not start from it), scales and adds them up.
#[inline(always)]
fn add_block<const H: usize, const R: usize, const T: usize>(
    simd: Simd,
    headers: &[Header; R],
    pairs: &[[__m256i; T]; R],
    tokens: &Activations<'_, T>,
    block: usize,
    t: usize,
    sums: &mut [[__m256; T]; R],
) {
    let scale = simd.avx._mm256_set1_ps(tokens.scales[t][block]);
    let sum = broadcast(simd, tokens.sums[t][block]);
    for r in 0..R {
        let mut product = add_pairs(simd, pairs[r][t]);
        if H == 3 * TILE {
            // Points are at most 16 and |sums| at most 32 · 127: both fit in the lower int16 of a dword,
            // and the upper one of the points is 0.
            product = simd.avx2._mm256_sub_epi32(product, simd.avx2._mm256_madd_epi16(headers[r].points, sum));
        }
        sums[r][t] = scale_add(simd, sums[r][t], product, simd.avx._mm256_mul_ps(headers[r].scales, scale));
        if H == 4 * TILE {
            sums[r][t] = scale_add(simd, sums[r][t], sum, simd.avx._mm256_mul_ps(headers[r].minima, scale));
        }
    }
}
