//! AVX-VNNI: 256 bits, one tile to a vector.
//!
//! The token [`Avx`] is only made inside functions that are compiled for AVX-VNNI and only called on CPUs that have it;
//! everything here is inlined into those.

use std::arch::x86_64::*;

use super::super::{Family, Job, KernelInfo, Outputs, Run, avx2};
use super::Lanes;
use crate::isa::Isa;

/// Proof of AVX-VNNI, AVX2 and F16C.
#[derive(Clone, Copy)]
struct Avx(());

/// Whether the CPU has what these kernels use.
pub(in super::super) fn is_available() -> bool {
    avx2::Simd::is_available() && is_x86_feature_detected!("avxvnni")
}

#[inline(always)]
fn part<const N: usize>(tiles: &[&[u8]], at: usize) -> [u8; N] {
    *tiles[0][at..].first_chunk().expect("the tile has these bytes")
}

#[allow(unsafe_code)]
// SAFETY (of each block): the token proves that the CPU has the instruction; no memory is accessed.
impl Lanes for Avx {
    type Int = __m256i;
    type Float = __m256;
    const TILES: usize = 1;

    #[inline(always)]
    fn load(self, tiles: &[&[u8]], at: usize) -> __m256i {
        pulp::cast(part::<32>(tiles, at))
    }

    #[inline(always)]
    fn splat(self, x: i32) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_set1_epi32(x) }
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_sub_epi32(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_mullo_epi32(a, b) }
    }

    #[inline(always)]
    fn shift<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            match BITS {
                0 => a,
                2 => _mm256_srli_epi32::<2>(a),
                4 => _mm256_srli_epi32::<4>(a),
                6 => _mm256_srli_epi32::<6>(a),
                _ => unreachable!("no kernel shifts by {BITS} bits"),
            }
        }
    }

    #[inline(always)]
    fn dot(self, sum: __m256i, codes: __m256i, activations: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_dpbusd_avx_epi32(sum, codes, activations) }
    }

    #[inline(always)]
    fn bytes(self, tiles: &[&[u8]], at: usize) -> __m256i {
        let eight = u64::from_le_bytes(part::<8>(tiles, at));
        // SAFETY: as above.
        unsafe { _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight as i64)) }
    }

    #[inline(always)]
    fn halves(self, tiles: &[&[u8]], at: usize) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtph_ps(pulp::cast(part::<16>(tiles, at))) }
    }

    #[inline(always)]
    fn floats(self, tiles: &[&[u8]], at: usize) -> __m256 {
        pulp::cast(part::<32>(tiles, at))
    }

    #[inline(always)]
    fn splat_float(self, x: f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn to_float(self, a: __m256i) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn mul_float(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn add_float(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn store(self, a: __m256, _: usize) -> Outputs {
        Outputs(pulp::cast(a))
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
            isa: Isa::AvxVnni,
            family: Family::$family,
            tiles: $tiles,
            tokens: $tokens,
            cycles: $cycles,
            reason: $reason,
            run: Run::Tiles(|job, out| {
                #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
                fn compiled(job: &Job<'_>, out: &mut [Outputs]) {
                    $body(Avx(()), job, out)
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

/// By family; then by tokens, then by tiles, both falling. Cycles are counted from the instructions, for three vector ports.
pub(in super::super) static KERNELS: [KernelInfo; 12] = [
    kernel!("vnni-ternary-2x4", Ternary, 2 x 4, 4.7, super::ternary::<_, 2, 4>, "int32 sums without flushes; codes unpacked once for 4 tokens"),
    kernel!("vnni-ternary-1x4", Ternary, 1 x 4, 5.5, super::ternary::<_, 1, 4>, "an odd last tile"),
    kernel!("vnni-ternary-2x1", Ternary, 2 x 1, 8.0, super::ternary::<_, 2, 1>, "two tiles share the broadcasts; two streams from memory"),
    kernel!("vnni-ternary-1x1", Ternary, 1 x 1, 9.0, super::ternary::<_, 1, 1>, "an odd last tile"),
    kernel!("vnni-int4-2x4", Int4, 2 x 4, 7.0, super::int4::<_, 2, 4>, "codes unpacked once for 4 tokens"),
    kernel!("vnni-int4-1x4", Int4, 1 x 4, 8.0, super::int4::<_, 1, 4>, "an odd last tile"),
    kernel!("vnni-int4-2x1", Int4, 2 x 1, 10.0, super::int4::<_, 2, 1>, "two tiles share the broadcasts; two streams from memory"),
    kernel!("vnni-int4-1x1", Int4, 1 x 1, 11.0, super::int4::<_, 1, 1>, "an odd last tile"),
    kernel!("vnni-int8-2x4", Int8, 2 x 4, 7.0, super::int8::<_, 2, 4>, "one instruction for four products, where AVX2 takes five"),
    kernel!("vnni-int8-1x4", Int8, 1 x 4, 8.0, super::int8::<_, 1, 4>, "an odd last tile"),
    kernel!("vnni-int8-2x1", Int8, 2 x 1, 9.0, super::int8::<_, 2, 1>, "two tiles share the broadcasts; two streams from memory"),
    kernel!("vnni-int8-1x1", Int8, 1 x 1, 10.0, super::int8::<_, 1, 1>, "an odd last tile"),
];
