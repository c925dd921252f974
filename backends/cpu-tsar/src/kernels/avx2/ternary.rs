//! Ternary products: codes t + 1 in 2 bits, four to a byte.

use std::arch::asm;
use std::arch::x86_64::{__m256i, _mm256_set1_epi8, _mm256_setzero_si256};

use super::{Simd, add_pairs, and, broadcast, floats, load, multiply_add, prefetch_next};
use crate::activations::CodeBlock;
use crate::kernels::{Job, Outputs};
use crate::weights::TILE;

/// The codes of a block: two vectors.
type Block = [u8; 64];

/// One token. The second and fourth code of a byte stay where they are after the mask, that is times 4:
/// they have a sum of their own, and the vector is shifted once instead of three times.
#[inline(always)]
pub(super) fn decode<const R: usize>(simd: Simd, job: &Job<'_>, out: &mut [Outputs]) {
    let activations = job.tokens.codes(0);
    let codes = codes::<R>(job);
    let mut sums = [simd.avx._mm256_setzero_si256(); R];
    let blocks = activations.len();
    let mut first = 0;
    while first < blocks {
        // A pair of codes times 4 is at most 4 · 2 · 2 · 127 = 2032, and 16 of them fit in int16.
        let last = (first + 4).min(blocks);
        let mut part = codes;
        for r in 0..R {
            part[r] = &codes[r][first..last];
        }
        decode_blocks(simd, job, part, &activations[first..last], &mut sums);
        first = last;
    }
    for r in 0..R {
        out[r] = scaled(simd, job, [r, 0], sums[r]);
    }
}

/// Adds at most 4 blocks to the sums of each tile.
#[inline(always)]
fn decode_blocks<const R: usize>(
    simd: Simd,
    job: &Job<'_>,
    codes: [&[Block]; R],
    activations: &[CodeBlock],
    sums: &mut [__m256i; R],
) {
    let (first, second) = (simd.avx._mm256_set1_epi8(0b0011), simd.avx._mm256_set1_epi8(0b1100));
    let mut ones = [simd.avx._mm256_setzero_si256(); R];
    let mut fours = [simd.avx._mm256_setzero_si256(); R];
    for (block, activations) in activations.iter().enumerate() {
        for half in 0..2 {
            let a: [i32; 4] = activations.as_chunks::<4>().0[half];
            for r in 0..R {
                let vector = &codes[r][block].as_chunks::<32>().0[half];
                if half == 0 {
                    prefetch_next::<R>(simd, job, vector);
                }
                let low = load(vector);
                let high = simd.avx2._mm256_srli_epi16::<4>(low);
                ones[r] = multiply_add(simd, ones[r], and(simd, low, first), broadcast(simd, a[0]));
                fours[r] = multiply_add(simd, fours[r], and(simd, low, second), broadcast(simd, a[1]));
                ones[r] = multiply_add(simd, ones[r], and(simd, high, first), broadcast(simd, a[2]));
                fours[r] = multiply_add(simd, fours[r], and(simd, high, second), broadcast(simd, a[3]));
            }
        }
    }
    for r in 0..R {
        let pairs = simd.avx2._mm256_add_epi16(ones[r], simd.avx2._mm256_srai_epi16::<2>(fours[r]));
        sums[r] = simd.avx2._mm256_add_epi32(sums[r], add_pairs(simd, pairs));
    }
}

/// Several tokens.
#[inline(always)]
pub(super) fn prefill<const R: usize, const T: usize>(simd: Simd, job: &Job<'_>, out: &mut [Outputs]) {
    let codes = codes::<R>(job);
    let blocks = job.layout.blocks;
    let mut activations = [&[][..]; T];
    for t in 0..T {
        activations[t] = &job.tokens.codes(t)[..blocks];
    }
    let mut sums = [[simd.avx._mm256_setzero_si256(); T]; R];
    let mut first = 0;
    while first < blocks {
        // A pair of codes is at most 2 · 2 · 127 = 508, and 64 of them fit in int16.
        let last = (first + 8).min(blocks);
        let (mut some_codes, mut some_activations) = ([&[][..]; R], [&[][..]; T]);
        for r in 0..R {
            some_codes[r] = &codes[r][first..last];
        }
        for t in 0..T {
            some_activations[t] = &activations[t][first..last];
        }
        let pairs = multiply(simd, job, some_codes, some_activations);
        for r in 0..R {
            for t in 0..T {
                sums[r][t] = simd.avx2._mm256_add_epi32(sums[r][t], add_pairs(simd, pairs[r][t]));
            }
        }
        first = last;
    }
    for r in 0..R {
        for t in 0..T {
            out[r * T + t] = scaled(simd, job, [r, t], sums[r][t]);
        }
    }
}

/// The sums of at most 8 blocks in int16 pairs.
#[inline(always)]
fn multiply<const R: usize, const T: usize>(
    simd: Simd,
    job: &Job<'_>,
    codes: [&[Block]; R],
    activations: [&[CodeBlock]; T],
) -> [[__m256i; T]; R] {
    if R == 2 && T == 4 {
        let (codes, four) = ([codes[0], codes[R - 1]], [0, 1, 2, 3].map(|t| activations[t.min(T - 1)]));
        #[allow(unsafe_code)]
        // SAFETY: the token proves that the CPU has AVX2.
        let two = unsafe { multiply_four(simd, job, codes, four) };
        let mut pairs = [[simd.avx._mm256_setzero_si256(); T]; R];
        for r in 0..R {
            pairs[r].copy_from_slice(&two[r][..T]);
        }
        return pairs;
    }
    multiply_blocks(simd, job, codes, activations)
}

/// [`multiply`] with the intrinsics left to the compiler.
#[inline(always)]
fn multiply_blocks<const R: usize, const T: usize>(
    simd: Simd,
    job: &Job<'_>,
    codes: [&[Block]; R],
    activations: [&[CodeBlock]; T],
) -> [[__m256i; T]; R] {
    let mut pairs = [[simd.avx._mm256_setzero_si256(); T]; R];
    for block in 0..codes[0].len() {
        for half in 0..2 {
            let mut vectors = [simd.avx._mm256_setzero_si256(); R];
            let mut a = [[0; 4]; T];
            for r in 0..R {
                let vector = &codes[r][block].as_chunks::<32>().0[half];
                if half == 0 {
                    prefetch_next::<R>(simd, job, vector);
                }
                vectors[r] = load(vector);
            }
            for t in 0..T {
                a[t] = activations[t][block].as_chunks::<4>().0[half];
            }
            field::<0, R, T>(simd, &vectors, &a, &mut pairs);
            field::<2, R, T>(simd, &vectors, &a, &mut pairs);
            field::<4, R, T>(simd, &vectors, &a, &mut pairs);
            field::<6, R, T>(simd, &vectors, &a, &mut pairs);
        }
    }
    pairs
}

/// Half a block of two tiles and four tokens.
macro_rules! half {
    ($half:literal) => {
        concat!(
            "vmovdqu {v0}, [{tile0} + 32*", $half, "]\n", "vmovdqu {v1}, [{tile1} + 32*", $half, "]\n",
            half!(field $half, 0), half!(shift), half!(field $half, 1), half!(shift), half!(field $half, 2), half!(shift),
            half!(field $half, 3),
        )
    };
    (shift) => {
        "vpsrlw {v0}, {v0}, 2\nvpsrlw {v1}, {v1}, 2\n"
    };
    (field $half:literal, $field:literal) => {
        concat!(
            "vpand {c0}, {v0}, {mask}\n", "vpand {c1}, {v1}, {mask}\n",
            half!(token $half, $field, 0), half!(token $half, $field, 1), half!(token $half, $field, 2),
            half!(token $half, $field, 3),
        )
    };
    (token $half:literal, $field:literal, $t:literal) => {
        concat!(
            "vpbroadcastd {a}, dword ptr [{a", $t, "} + 16*", $half, " + 4*", $field, "]\n",
            "vpmaddubsw {x}, {c0}, {a}\n", "vpmaddubsw {a}, {c1}, {a}\n",
            "vpaddw {s0", $t, "}, {s0", $t, "}, {x}\n", "vpaddw {s1", $t, "}, {s1", $t, "}, {a}\n",
        )
    };
}

/// [`multiply_blocks`] of two tiles and four tokens.
///
/// In assembly because the compiler adds the products in another order, in which it runs out of registers.
#[target_feature(enable = "avx2")]
#[inline]
fn multiply_four(simd: Simd, job: &Job<'_>, codes: [&[Block]; 2], activations: [&[CodeBlock]; 4]) -> [[__m256i; 4]; 2] {
    let [mut s00, mut s01, mut s02, mut s03] = [_mm256_setzero_si256(); 4];
    let [mut s10, mut s11, mut s12, mut s13] = [_mm256_setzero_si256(); 4];
    let mask = _mm256_set1_epi8(3);
    for block in 0..codes[0].len() {
        let [tile0, tile1]: [&Block; 2] = [&codes[0][block], &codes[1][block]];
        let [a0, a1, a2, a3]: [&CodeBlock; 4] =
            [&activations[0][block], &activations[1][block], &activations[2][block], &activations[3][block]];
        prefetch_next::<2>(simd, job, tile0);
        prefetch_next::<2>(simd, job, tile1);
        #[allow(unsafe_code)]
        // SAFETY: the loads are of the 64 bytes of each tile's codes and the 32 of each token's.
        unsafe {
            asm!(
                half!(0), half!(1),
                tile0 = in(reg) tile0.as_ptr(), tile1 = in(reg) tile1.as_ptr(),
                a0 = in(reg) a0.as_ptr(), a1 = in(reg) a1.as_ptr(), a2 = in(reg) a2.as_ptr(), a3 = in(reg) a3.as_ptr(),
                mask = in(ymm_reg) mask,
                v0 = out(ymm_reg) _, v1 = out(ymm_reg) _, c0 = out(ymm_reg) _, c1 = out(ymm_reg) _,
                a = out(ymm_reg) _, x = out(ymm_reg) _,
                s00 = inout(ymm_reg) s00, s01 = inout(ymm_reg) s01, s02 = inout(ymm_reg) s02, s03 = inout(ymm_reg) s03,
                s10 = inout(ymm_reg) s10, s11 = inout(ymm_reg) s11, s12 = inout(ymm_reg) s12, s13 = inout(ymm_reg) s13,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
    }
    [[s00, s01, s02, s03], [s10, s11, s12, s13]]
}

/// Adds the products of the codes at bits `SHIFT` and `SHIFT + 1` of each byte.
#[inline(always)]
fn field<const SHIFT: i32, const R: usize, const T: usize>(
    simd: Simd,
    vectors: &[__m256i; R],
    activations: &[[i32; 4]; T],
    pairs: &mut [[__m256i; T]; R],
) {
    let mut codes = *vectors;
    for codes in &mut codes {
        let shifted = simd.avx2._mm256_srli_epi16::<SHIFT>(*codes);
        *codes = and(simd, shifted, simd.avx._mm256_set1_epi8(3));
    }
    for t in 0..T {
        let activations = broadcast(simd, activations[t][SHIFT as usize / 2]);
        for r in 0..R {
            pairs[r][t] = multiply_add(simd, pairs[r][t], codes[r], activations);
        }
    }
}

/// The codes of each tile, by block.
#[inline(always)]
fn codes<'a, const R: usize>(job: &Job<'a>) -> [&'a [Block]; R] {
    let mut codes = [&[][..]; R];
    for r in 0..R {
        codes[r] = &job.tile(r)[4 * TILE..].as_chunks().0[..job.layout.blocks];
    }
    codes
}

/// Takes the activations' sum for the codes' offset of 1 and applies the scales.
#[inline(always)]
fn scaled(simd: Simd, job: &Job<'_>, [tile, token]: [usize; 2], sums: __m256i) -> Outputs {
    let sums = simd.avx2._mm256_sub_epi32(sums, simd.avx._mm256_set1_epi32(job.tokens.total(token)));
    let scales: [f32; TILE] = pulp::cast(*job.tile(tile).first_chunk::<{ 4 * TILE }>().expect("a tile has a header"));
    let scales = simd.avx._mm256_mul_ps(floats(scales), simd.avx._mm256_set1_ps(job.tokens.scale(token)));
    Outputs(pulp::cast(simd.avx._mm256_mul_ps(simd.avx._mm256_cvtepi32_ps(sums), scales)))
}
