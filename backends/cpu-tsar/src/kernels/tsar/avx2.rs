//! On AVX2: a table half is what `vpshufb` looks up in, and `vpsignw` gives an activation its sign.

use std::arch::x86_64::__m256i;
use std::marker::PhantomData;
use std::ops::Range;

use super::instructions::{FourByFour, Instructions, TwoByFour};
use super::{Job, OUTPUTS, Registers, dataflows, variants};
use crate::kernels::avx2::Simd;
use crate::kernels::{KernelInfo, Room};

pub(super) static KERNELS: [KernelInfo; super::VARIANTS] = variants!(Avx2, run, [27.0, 47.0, 22.0, 67.0]);

fn run<I: Instructions, const AP: bool>(job: &Job<'_>, tiles: Range<usize>, room: &mut Room) {
    struct Op<'a, I, const AP: bool> {
        simd: Simd,
        job: &'a Job<'a>,
        tiles: Range<usize>,
        room: &'a mut Room,
        instructions: PhantomData<I>,
    }
    impl<I: Instructions, const AP: bool> pulp::NullaryFnOnce for Op<'_, I, AP> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            if AP {
                dataflows::activation_persistent::<_, I>(self.simd, self.job, self.tiles, self.room);
            } else {
                dataflows::output_persistent::<_, I>(self.simd, self.job, self.tiles, self.room);
            }
        }
    }
    let simd = Simd::try_new().expect("the kernels are chosen for CPUs that have AVX2");
    simd.vectorize(Op::<I, AP> { simd, job, tiles, room, instructions: PhantomData });
}

impl Registers for Simd {
    type Words = __m256i;

    #[inline(always)]
    fn words(self, lanes: [i16; OUTPUTS]) -> __m256i {
        pulp::cast(lanes)
    }

    #[inline(always)]
    fn sums(self, lanes: &[i16; OUTPUTS]) -> __m256i {
        pulp::cast(*lanes)
    }

    #[inline(always)]
    fn store(self, words: __m256i, to: &mut [i16; OUTPUTS]) {
        *to = pulp::cast(words);
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 2 * OUTPUTS]) -> __m256i {
        pulp::cast(*bytes)
    }

    #[inline(always)]
    fn widen(self, bytes: [i8; 8]) -> __m256i {
        self.avx2._mm256_cvtepi8_epi16(self.sse2._mm_set1_epi64x(pulp::cast(bytes)))
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        self.avx2._mm256_add_epi16(a, b)
    }

    #[inline(always)]
    fn sub(self, a: __m256i, b: __m256i) -> __m256i {
        self.avx2._mm256_sub_epi16(a, b)
    }

    #[inline(always)]
    fn sign(self, a: __m256i, sign: __m256i) -> __m256i {
        self.avx2._mm256_sign_epi16(a, sign)
    }

    #[inline(always)]
    fn field<const SHIFT: i32>(self, words: __m256i, mask: i16) -> __m256i {
        let shifted = self.avx2._mm256_srli_epi16::<SHIFT>(words);
        self.avx2._mm256_and_si256(shifted, self.avx._mm256_set1_epi16(mask))
    }

    #[inline(always)]
    fn lookup_8<const UPPER: bool>(self, table: __m256i, index: __m256i) -> __m256i {
        let s = self.avx2;
        // The shuffle works in each half by itself, on bytes: those of word i are 2i and 2i + 1.
        let halves = if UPPER { upper(self, table) } else { lower(self, table) };
        let bytes = s._mm256_mullo_epi16(index, self.avx._mm256_set1_epi16(0x0202));
        s._mm256_shuffle_epi8(halves, s._mm256_add_epi16(bytes, self.avx._mm256_set1_epi16(0x0100)))
    }

    #[inline(always)]
    fn lookup_16(self, table: __m256i, index: __m256i) -> __m256i {
        let s = self.avx2;
        // With 0x70 more, the bytes of the upper half's words have the bit that makes the shuffle give 0.
        let bytes = s._mm256_mullo_epi16(index, self.avx._mm256_set1_epi16(0x0202));
        let low = s._mm256_add_epi16(bytes, self.avx._mm256_set1_epi16(0x7170));
        let high = s._mm256_xor_si256(low, self.avx._mm256_set1_epi8(-128));
        let low = s._mm256_shuffle_epi8(lower(self, table), low);
        s._mm256_or_si256(low, s._mm256_shuffle_epi8(upper(self, table), high))
    }
}

/// The lower half, twice.
#[inline(always)]
fn lower(simd: Simd, table: __m256i) -> __m256i {
    simd.avx2._mm256_permute2x128_si256::<0x00>(table, table)
}

/// The upper half, twice.
#[inline(always)]
fn upper(simd: Simd, table: __m256i) -> __m256i {
    simd.avx2._mm256_permute2x128_si256::<0x11>(table, table)
}
