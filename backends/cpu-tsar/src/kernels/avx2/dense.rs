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
        Format::F16 => {
            rows::<{ 2 * BLOCK }, T>(simd, job, out, |simd, bytes, lane| halves(simd, &bytes.as_chunks().0[lane]))
        }
        Format::Bf16 => rows::<{ 2 * BLOCK }, T>(simd, job, out, |simd, bytes, lane| {
            let values: __m128i = pulp::cast(bytes.as_chunks::<16>().0[lane]);
            let words = simd.avx2._mm256_slli_epi32::<16>(simd.avx2._mm256_cvtepu16_epi32(values));
            simd.avx._mm256_castsi256_ps(words)
        }),
        _ => rows::<{ 4 * BLOCK }, T>(simd, job, out, |_, bytes, lane| pulp::cast(bytes.as_chunks::<32>().0[lane])),
    }
}

/// `B`: bytes of a block of 32 weights, of which `weights` reads vector number 0 to 3.
#[inline(always)]
fn rows<const B: usize, const T: usize>(
    simd: Simd,
    job: &Job<'_>,
    out: &mut [Outputs],
    weights: impl Fn(Simd, &[u8; B], usize) -> __m256,
) {
    let x: [&[f32]; T] = std::array::from_fn(|t| job.tokens.floats(t));
    let (full, rest): ([&[[f32; BLOCK]]; T], [&[f32]; T]) =
        (x.map(|x| x.as_chunks().0), x.map(|x| x.as_chunks::<BLOCK>().1));
    let rest = rest.map(blocks::padded);
    for row in 0..TILE {
        let bytes: &[[u8; B]] = job.tile(0)[row * job.layout.blocks * B..][..job.layout.blocks * B].as_chunks().0;
        let mut sums = [[simd.avx._mm256_setzero_ps(); 4]; T];
        let mut add = |bytes: &[u8; B], x: [&[f32; BLOCK]; T]| {
            for lane in 0..4 {
                let weights = weights(simd, bytes, lane);
                for t in 0..T {
                    let x = floats(x[t].as_chunks::<8>().0[lane]);
                    sums[t][lane] = simd.fma._mm256_fmadd_ps(weights, x, sums[t][lane]);
                }
            }
        };
        let count = full[0].len();
        let full = full.map(|x| &x[..count]);
        for (block, bytes) in bytes[..count].iter().enumerate() {
            add(bytes, full.map(|x| &x[block]));
        }
        if let Some(bytes) = bytes.get(count) {
            add(bytes, rest.each_ref());
        }
        for t in 0..T {
            out[t][row] = blocks::add_up(pulp::cast(sums[t]));
        }
    }
}
