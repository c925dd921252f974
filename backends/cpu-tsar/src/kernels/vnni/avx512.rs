//! AVX-512 VNNI: 512 bits, two tiles to a vector.
//!
//! The token [`Avx512`] is only made inside functions that are compiled for AVX-512 and only called on CPUs that have it;
//! everything here is inlined into those.

use std::arch::x86_64::*;

use super::super::{Family, Job, KernelInfo, Outputs, Run, avx2};
use super::Lanes;
use crate::isa::Isa;

/// Proof of AVX-512 F, BW, VL and VNNI, AVX2 and F16C.
///
/// A vector holds `N` tiles: a single one fills the lower half, and the upper one repeats it.
#[derive(Clone, Copy)]
struct Avx512<const N: usize>(());

/// Whether the CPU has what these kernels use.
pub(in super::super) fn is_available() -> bool {
    avx2::Simd::is_available()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

#[inline(always)]
fn part<const N: usize>(tile: &[u8], at: usize) -> [u8; N] {
    *tile[at..].first_chunk().expect("the tile has these bytes")
}

#[allow(unsafe_code)]
// SAFETY (of each block): the token proves that the CPU has the instruction; no memory is accessed.
impl<const N: usize> Lanes for Avx512<N> {
    type Int = __m512i;
    type Float = __m512;
    const TILES: usize = N;

    #[inline(always)]
    fn load(self, tiles: &[&[u8]], at: usize) -> __m512i {
        let (first, last) = (part::<32>(tiles[0], at), part::<32>(tiles[N - 1], at));
        // SAFETY: as above.
        unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(pulp::cast(first)), pulp::cast(last)) }
    }

    #[inline(always)]
    fn splat(self, x: i32) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_mullo_epi32(a, b) }
    }

    #[inline(always)]
    fn shift<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_srli_epi32::<BITS>(a) }
    }

    #[inline(always)]
    fn dot(self, sum: __m512i, codes: __m512i, activations: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_dpbusd_epi32(sum, codes, activations) }
    }

    #[inline(always)]
    fn bytes(self, tiles: &[&[u8]], at: usize) -> __m512i {
        let halves: [[u8; 8]; 2] = [part(tiles[0], at), part(tiles[N - 1], at)];
        // SAFETY: as above.
        unsafe { _mm512_cvtepu8_epi32(pulp::cast(halves)) }
    }

    #[inline(always)]
    fn halves(self, tiles: &[&[u8]], at: usize) -> __m512 {
        let halves: [[u8; 16]; 2] = [part(tiles[0], at), part(tiles[N - 1], at)];
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(pulp::cast(halves)) }
    }

    #[inline(always)]
    fn floats(self, tiles: &[&[u8]], at: usize) -> __m512 {
        let halves: [[f32; 8]; 2] = [pulp::cast(part::<32>(tiles[0], at)), pulp::cast(part::<32>(tiles[N - 1], at))];
        // SAFETY: as above, and 16 floats lie there.
        unsafe { _mm512_loadu_ps(halves.as_ptr().cast()) }
    }

    #[inline(always)]
    fn splat_float(self, x: f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn to_float(self, a: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn mul_float(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn add_float(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn store(self, a: __m512, tile: usize) -> Outputs {
        let mut tiles = [Outputs::default(); 2];
        // SAFETY: as above, and there is room for 16 floats.
        unsafe { _mm512_storeu_ps(tiles.as_mut_ptr().cast(), a) };
        tiles[tile]
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: as above; a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

/// A table entry: `$body` is a kernel of [`super`].
macro_rules! kernel {
    ($name:literal, $family:ident, $tiles:literal x $tokens:literal, $cycles:literal, $body:expr, $reason:literal) => {
        KernelInfo {
            name: $name,
            isa: Isa::Avx512,
            family: Family::$family,
            tiles: $tiles,
            tokens: $tokens,
            cycles: $cycles,
            reason: $reason,
            run: Run::Tiles(|job, out| {
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
                fn compiled(job: &Job<'_>, out: &mut [Outputs]) {
                    $body(Avx512(()), job, out)
                }
                #[allow(unsafe_code)]
                // SAFETY: the table is used on CPUs that have these instructions ([`is_available`]).
                unsafe {
                    compiled(job, out)
                }
            }),
        }
    };
}

/// By family; then by tokens, then by tiles, both falling. Cycles are counted from the instructions, for two vector ports of
/// 512 bits.
pub(in super::super) static KERNELS: [KernelInfo; 18] = [
    kernel!("avx512-ternary-4x4", Ternary, 4 x 4, 2.6, super::ternary::<Avx512<2>, 2, 4>, "16 sums in registers; codes unpacked once for 4 tokens, activations broadcast from memory"),
    kernel!("avx512-ternary-2x4", Ternary, 2 x 4, 3.0, super::ternary::<Avx512<2>, 1, 4>, "two tiles that are left"),
    kernel!("avx512-ternary-1x4", Ternary, 1 x 4, 6.0, super::ternary::<Avx512<1>, 1, 4>, "an odd last tile fills half of the lanes"),
    kernel!("avx512-ternary-4x1", Ternary, 4 x 1, 4.6, super::ternary::<Avx512<2>, 2, 1>, "two vectors of two tiles share the broadcasts; four streams from memory"),
    kernel!("avx512-ternary-2x1", Ternary, 2 x 1, 5.0, super::ternary::<Avx512<2>, 1, 1>, "two tiles that are left"),
    kernel!("avx512-ternary-1x1", Ternary, 1 x 1, 8.0, super::ternary::<Avx512<1>, 1, 1>, "an odd last tile fills half of the lanes"),
    kernel!("avx512-int4-4x4", Int4, 4 x 4, 4.0, super::int4::<Avx512<2>, 2, 4>, "16 sums in registers; codes unpacked once for 4 tokens, activations broadcast from memory"),
    kernel!("avx512-int4-2x4", Int4, 2 x 4, 5.0, super::int4::<Avx512<2>, 1, 4>, "two tiles that are left"),
    kernel!("avx512-int4-1x4", Int4, 1 x 4, 10.0, super::int4::<Avx512<1>, 1, 4>, "an odd last tile fills half of the lanes"),
    kernel!("avx512-int4-4x1", Int4, 4 x 1, 6.0, super::int4::<Avx512<2>, 2, 1>, "two vectors of two tiles share the broadcasts; four streams from memory"),
    kernel!("avx512-int4-2x1", Int4, 2 x 1, 6.4, super::int4::<Avx512<2>, 1, 1>, "two tiles that are left"),
    kernel!("avx512-int4-1x1", Int4, 1 x 1, 10.0, super::int4::<Avx512<1>, 1, 1>, "an odd last tile fills half of the lanes"),
    kernel!("avx512-int8-4x4", Int8, 4 x 4, 4.0, super::int8::<Avx512<2>, 2, 4>, "16 sums in registers; codes unpacked once for 4 tokens, activations broadcast from memory"),
    kernel!("avx512-int8-2x4", Int8, 2 x 4, 5.0, super::int8::<Avx512<2>, 1, 4>, "two tiles that are left"),
    kernel!("avx512-int8-1x4", Int8, 1 x 4, 10.0, super::int8::<Avx512<1>, 1, 4>, "an odd last tile fills half of the lanes"),
    kernel!("avx512-int8-4x1", Int8, 4 x 1, 6.0, super::int8::<Avx512<2>, 2, 1>, "two vectors of two tiles share the broadcasts; four streams from memory"),
    kernel!("avx512-int8-2x1", Int8, 2 x 1, 6.4, super::int8::<Avx512<2>, 1, 1>, "two tiles that are left"),
    kernel!("avx512-int8-1x1", Int8, 1 x 1, 10.0, super::int8::<Avx512<1>, 1, 1>, "an odd last tile fills half of the lanes"),
];
