//! Quantisation of activations, bit by bit as `trine_backend::activation` defines it.

use std::arch::x86_64::__m256i;

use trine_backend::Activation;
use trine_backend::activation::{BLOCK, span_scale};

use super::{Simd, and, floats};
use crate::activations::CodeBlock;
use crate::kernels::blocks;

/// One token; see [`crate::activations::quantize_plain`].
pub(in crate::kernels) fn quantize(
    x: &[f32],
    activation: Activation,
    codes: &mut [CodeBlock],
    scales: &mut [f32],
    sums: &mut [i32],
) {
    let simd = Simd::try_new().expect("the quantiser is chosen for CPUs that have AVX2");
    simd.vectorize(Op { simd, x, activation, codes, scales, sums });
}

struct Op<'a> {
    simd: Simd,
    x: &'a [f32],
    activation: Activation,
    codes: &'a mut [CodeBlock],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
}

impl pulp::NullaryFnOnce for Op<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        token(self.simd, self.x, self.activation, self.codes, self.scales, self.sums);
    }
}

#[inline(always)]
fn token(simd: Simd, x: &[f32], activation: Activation, codes: &mut [CodeBlock], scales: &mut [f32], sums: &mut [i32]) {
    let (full, rest) = x.as_chunks::<BLOCK>();
    let rest = (!rest.is_empty()).then(|| blocks::padded(rest));
    let rest = rest.as_slice();
    let none = simd.avx._mm256_setzero_si256();
    let whole = if activation == Activation::Token {
        Some(scale_of(largest_bits(simd, largest_bits(simd, none, full), rest)))
    } else {
        None
    };
    for at in 0..full.len() + rest.len() {
        let x = if at < full.len() { &full[at] } else { &rest[0] };
        let (scale, inverse) = match whole {
            Some(whole) => whole,
            None => scale_of(largest_bits(simd, none, std::slice::from_ref(x))),
        };
        scales[at] = scale;
        // Also spans with a NaN or an infinity have the multiplier 0, and codes of 0.
        (codes[at], sums[at]) = if inverse == 0.0 { ([0; 8], 0) } else { block(simd, x, inverse) };
    }
}

/// The largest magnitude in each lane, as bits: those of floats without a sign are in the floats' order,
/// and every NaN is above infinity.
#[inline(always)]
fn largest_bits(simd: Simd, largest: __m256i, x: &[[f32; BLOCK]]) -> __m256i {
    let magnitude = simd.avx._mm256_set1_epi32(i32::MAX);
    let mut largest = [largest, simd.avx._mm256_setzero_si256()];
    for x in x.as_flattened().as_chunks::<16>().0 {
        for (half, largest) in largest.iter_mut().enumerate() {
            let bits = simd.avx._mm256_castps_si256(floats(x.as_chunks::<8>().0[half]));
            *largest = simd.avx2._mm256_max_epi32(*largest, and(simd, bits, magnitude));
        }
    }
    simd.avx2._mm256_max_epi32(largest[0], largest[1])
}

/// The scale and the multiplier of a span whose magnitudes are at most these.
#[inline(always)]
fn scale_of(largest: __m256i) -> (f32, f32) {
    let lanes: [u32; 8] = pulp::cast(largest);
    span_scale(&[f32::from_bits(lanes.into_iter().fold(0, u32::max))])
}

/// The codes of a block and their sum.
#[inline(always)]
fn block(simd: Simd, x: &[f32; BLOCK], inverse: f32) -> (CodeBlock, i32) {
    let inverse = simd.avx._mm256_set1_ps(inverse);
    let limit = simd.avx._mm256_set1_ps(127.0);
    let mut code = [simd.avx._mm256_setzero_si256(); 4];
    for (vector, code) in code.iter_mut().enumerate() {
        let scaled = simd.avx._mm256_mul_ps(floats(x.as_chunks::<8>().0[vector]), inverse);
        let bound = simd.avx._mm256_min_ps(scaled, limit);
        // Rounds halves to even, as the processor does unless told otherwise.
        *code = simd.avx._mm256_cvtps_epi32(simd.avx._mm256_max_ps(bound, simd.avx._mm256_set1_ps(-127.0)));
    }
    let low = simd.avx2._mm256_packs_epi32(code[0], code[1]);
    let high = simd.avx2._mm256_packs_epi32(code[2], code[3]);
    // The packs work within 128 bits: dwords 0 2 4 6 1 3 5 7 of the result are in order.
    let packed = simd.avx2._mm256_packs_epi16(low, high);
    let order = simd.avx._mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let pairs = simd.avx2._mm256_add_epi16(low, high);
    let sums: [i32; 8] = pulp::cast(simd.avx2._mm256_madd_epi16(pairs, simd.avx._mm256_set1_epi16(1)));
    (pulp::cast(simd.avx2._mm256_permutevar8x32_epi32(packed, order)), sums.iter().sum())
}
