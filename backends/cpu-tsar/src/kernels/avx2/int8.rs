//! INT8 products.

use std::arch::asm;
use std::arch::x86_64::{__m256i, _mm256_set1_epi16};

use super::{OWN, Simd, activations, add_pairs, broadcast, halves, load, prefetch_next, scale_add, tiles};
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
            if R < OWN {
                for line in 0..BLOCK_BYTES / 64 {
                    prefetch_next::<R>(simd, job, &codes[r][64 * line..]);
                }
            }
        }
        for t in 0..T {
            broadcasts[t] = &tokens.codes[t][block];
        }
        let products = multiply(simd, codes, broadcasts);
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
            out[r * T + t] = Outputs(pulp::cast(sums[r][t]));
        }
    }
}

/// The integer sums of a block.
#[inline(always)]
fn multiply<const R: usize, const T: usize>(
    simd: Simd,
    codes: [&[u8; BLOCK_BYTES]; R],
    activations: [&[i32; 8]; T],
) -> [[__m256i; T]; R] {
    if R == 1 && T == 8 {
        let mut eight = [activations[0]; 8];
        eight[..T].copy_from_slice(&activations);
        #[allow(unsafe_code)]
        // SAFETY: the token proves that the CPU has AVX2.
        let products = unsafe { multiply_eight(codes[0], eight) };
        let mut sums = [[simd.avx._mm256_setzero_si256(); T]; R];
        sums[0].copy_from_slice(&products[..T]);
        return sums;
    }
    multiply_block(simd, codes, activations)
}

/// [`multiply_block`] with the intrinsics left to the compiler.
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

/// Four columns of a tile and of 8 tokens, two by two.
macro_rules! columns {
    (first) => {
        concat!(columns!(load 0), columns!(pair 0, 0, 1, "x", "s0", "s1"), columns!(pair 0, 2, 3, "y", "s2", "s3"),
            columns!(pair 0, 4, 5, "x", "s4", "s5"), columns!(pair 0, 6, 7, "y", "s6", "s7"))
    };
    ($step:literal) => {
        concat!(columns!(load $step), columns!(add $step, 0, 1, "x"), columns!(add $step, 2, 3, "y"),
            columns!(add $step, 4, 5, "x"), columns!(add $step, 6, 7, "y"))
    };
    (load $step:literal) => {
        concat!("vmovdqu {codes}, [{tile} + 32*", $step, "]\n", "vpabsb {magnitudes}, {codes}\n")
    };
    (pair $step:literal, $t:literal, $u:literal, $x:literal, $to:literal, $to_next:literal) => {
        concat!(
            "vpbroadcastd {", $x, "0}, dword ptr [{a", $t, "} + 4*", $step, "]\n",
            "vpbroadcastd {", $x, "1}, dword ptr [{a", $u, "} + 4*", $step, "]\n",
            "vpsignb {", $x, "0}, {", $x, "0}, {codes}\n",
            "vpsignb {", $x, "1}, {", $x, "1}, {codes}\n",
            "vpmaddubsw {", $x, "0}, {magnitudes}, {", $x, "0}\n",
            "vpmaddubsw {", $x, "1}, {magnitudes}, {", $x, "1}\n",
            "vpmaddwd {", $to, "}, {", $x, "0}, {ones}\n",
            "vpmaddwd {", $to_next, "}, {", $x, "1}, {ones}\n",
        )
    };
    (add $step:literal, $t:literal, $u:literal, "x") => {
        concat!(columns!(pair $step, $t, $u, "x", "x0", "x1"),
            "vpaddd {s", $t, "}, {s", $t, "}, {x0}\n", "vpaddd {s", $u, "}, {s", $u, "}, {x1}\n")
    };
    (add $step:literal, $t:literal, $u:literal, "y") => {
        concat!(columns!(pair $step, $t, $u, "y", "y0", "y1"),
            "vpaddd {s", $t, "}, {s", $t, "}, {y0}\n", "vpaddd {s", $u, "}, {s", $u, "}, {y1}\n")
    };
}

/// [`multiply_block`] of one tile and 8 tokens.
///
/// In assembly because the compiler adds the products in another order, in which it runs out of registers.
#[target_feature(enable = "avx2")]
#[inline]
fn multiply_eight(tile: &[u8; BLOCK_BYTES], activations: [&[i32; 8]; 8]) -> [__m256i; 8] {
    let [s0, s1, s2, s3, s4, s5, s6, s7]: [__m256i; 8];
    let [a0, a1, a2, a3, a4, a5, a6, a7] = activations;
    #[allow(unsafe_code)]
    // SAFETY: the loads are of the 256 bytes of codes and the 32 of each token.
    unsafe {
        asm!(
            columns!(first), columns!(1), columns!(2), columns!(3), columns!(4), columns!(5), columns!(6), columns!(7),
            tile = in(reg) tile.as_ptr(),
            a0 = in(reg) a0.as_ptr(), a1 = in(reg) a1.as_ptr(), a2 = in(reg) a2.as_ptr(), a3 = in(reg) a3.as_ptr(),
            a4 = in(reg) a4.as_ptr(), a5 = in(reg) a5.as_ptr(), a6 = in(reg) a6.as_ptr(), a7 = in(reg) a7.as_ptr(),
            ones = in(ymm_reg) _mm256_set1_epi16(1),
            codes = out(ymm_reg) _, magnitudes = out(ymm_reg) _,
            x0 = out(ymm_reg) _, x1 = out(ymm_reg) _, y0 = out(ymm_reg) _, y1 = out(ymm_reg) _,
            s0 = out(ymm_reg) s0, s1 = out(ymm_reg) s1, s2 = out(ymm_reg) s2, s3 = out(ymm_reg) s3,
            s4 = out(ymm_reg) s4, s5 = out(ymm_reg) s5, s6 = out(ymm_reg) s6, s7 = out(ymm_reg) s7,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [s0, s1, s2, s3, s4, s5, s6, s7]
}
