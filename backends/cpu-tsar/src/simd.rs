//! Eight f32 lanes, the same arithmetic on every instruction set: for loops whose sums must stay in
//! registers, which the compiler does not find by itself.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256;

use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::kernels::Avx2;

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// Arithmetic on [`LANES`] f32 at a time. Nothing is fused but [`Simd::mul_add`], which is everywhere.
pub(crate) trait Simd: Copy {
    /// The lanes.
    type F32s: Copy;
    /// The same number in all lanes.
    fn splat(self, x: f32) -> Self::F32s;
    /// From memory.
    fn load(self, x: &[f32; LANES]) -> Self::F32s;
    /// To memory.
    fn store(self, x: Self::F32s, to: &mut [f32; LANES]);
    /// `a · b + c`, lane by lane, rounded once. CPUs without such an instruction take long for it.
    fn mul_add(self, a: Self::F32s, b: Self::F32s, c: Self::F32s) -> Self::F32s;
    /// From the bits of f16.
    fn widen(self, bits: &[u16; LANES]) -> Self::F32s;
    /// From small integers.
    fn convert(self, codes: &[i8; LANES]) -> Self::F32s;
    /// Asks for the cache lines of what will be read soon; it need not exist.
    #[inline(always)]
    fn prefetch(self, _: *const u8, _bytes: usize) {}
}

/// Code over any [`Simd`].
pub(crate) trait Kernel {
    /// Must be `#[inline(always)]`, as all that it calls, to be compiled for the instruction set.
    fn run(self, simd: impl Simd);
}

impl Isa {
    /// Runs a kernel with this instruction set's lanes.
    #[inline(always)]
    pub(crate) fn run(self, kernel: impl Kernel) {
        #[cfg(target_arch = "x86_64")]
        if let (Isa::Avx2 | Isa::AvxVnni | Isa::Avx512, Some(simd)) = (self, Avx2::try_new()) {
            return simd.vectorize(With { simd, kernel });
        }
        #[cfg(target_arch = "aarch64")]
        if let (Isa::Neon, Some(simd)) = (self, pulp::aarch64::Neon::try_new()) {
            return kernel.run(simd); // Compiled for NEON as everything is.
        }
        kernel.run(Plain);
    }
}

/// A kernel together with its lanes, to be compiled for an instruction set that not every CPU has.
#[cfg(target_arch = "x86_64")]
struct With<S, K> {
    simd: S,
    kernel: K,
}

#[cfg(target_arch = "x86_64")]
impl<S: Simd, K: Kernel> pulp::NullaryFnOnce for With<S, K> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.kernel.run(self.simd);
    }
}

/// Whatever the compiler makes of eight floats.
#[derive(Clone, Copy)]
struct Plain;

impl Simd for Plain {
    type F32s = [f32; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F32s {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F32s {
        *x
    }

    #[inline(always)]
    fn store(self, x: Self::F32s, to: &mut [f32; LANES]) {
        *to = x;
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F32s, b: Self::F32s, c: Self::F32s) -> Self::F32s {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn widen(self, bits: &[u16; LANES]) -> Self::F32s {
        std::array::from_fn(|lane| widen_f16(bits[lane]))
    }

    #[inline(always)]
    fn convert(self, codes: &[i8; LANES]) -> Self::F32s {
        std::array::from_fn(|lane| f32::from(codes[lane]))
    }
}

#[cfg(target_arch = "x86_64")]
impl Simd for Avx2 {
    type F32s = __m256;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        self.avx._mm256_set1_ps(x)
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m256 {
        pulp::cast(*x)
    }

    #[inline(always)]
    fn store(self, x: __m256, to: &mut [f32; LANES]) {
        *to = pulp::cast(x);
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        self.fma._mm256_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    fn widen(self, bits: &[u16; LANES]) -> __m256 {
        self.halves(pulp::cast(*bits))
    }

    #[inline(always)]
    fn convert(self, codes: &[i8; LANES]) -> __m256 {
        let codes = self.sse2._mm_set1_epi64x(pulp::cast(*codes));
        self.avx._mm256_cvtepi32_ps(self.avx2._mm256_cvtepi8_epi32(codes))
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8, bytes: usize) {
        const T0: i32 = std::arch::x86_64::_MM_HINT_T0;
        for line in (0..bytes).step_by(64) {
            self.sse._mm_prefetch::<T0>(at.wrapping_add(line).cast());
        }
    }
}

#[cfg(target_arch = "aarch64")]
impl Simd for pulp::aarch64::Neon {
    type F32s = [std::arch::aarch64::float32x4_t; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F32s {
        [self.neon.vdupq_n_f32(x); 2]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F32s {
        pulp::cast(*x)
    }

    #[inline(always)]
    fn store(self, x: Self::F32s, to: &mut [f32; LANES]) {
        *to = pulp::cast(x);
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F32s, b: Self::F32s, c: Self::F32s) -> Self::F32s {
        [self.neon.vfmaq_f32(c[0], a[0], b[0]), self.neon.vfmaq_f32(c[1], a[1], b[1])]
    }

    #[inline(always)]
    fn widen(self, bits: &[u16; LANES]) -> Self::F32s {
        pulp::cast::<[f32; LANES], _>(std::array::from_fn(|lane| widen_f16(bits[lane])))
    }

    #[inline(always)]
    fn convert(self, codes: &[i8; LANES]) -> Self::F32s {
        pulp::cast::<[f32; LANES], _>(std::array::from_fn(|lane| f32::from(codes[lane])))
    }
}

/// f16 to f32, exactly. The bits moved to f32's places are the number times 2^-112 (also for subnormals);
/// only infinity and NaN need their exponent replaced.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    const TWO_TO_112: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * TWO_TO_112).to_bits();
    let special = magnitude | 0x7f80_0000;
    let widened = if bits & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(widened | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (got, expected) = (widen_f16(bits), half::f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{bits:#x}");
        }
    }

    struct Widen<'a>(&'a [u16; LANES], &'a mut [f32; LANES]);

    impl Kernel for Widen<'_> {
        #[inline(always)]
        fn run(self, simd: impl Simd) {
            simd.store(simd.widen(self.0), self.1);
        }
    }

    #[test]
    fn every_instruction_set_widens_exactly() {
        for first in (0..=u16::MAX).step_by(LANES) {
            let bits = std::array::from_fn(|lane| first + lane as u16);
            let mut got = [0.0; LANES];
            Isa::detect().run(Widen(&bits, &mut got));
            for (got, bits) in got.iter().zip(bits) {
                let expected = widen_f16(bits);
                assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{bits:#x}");
            }
        }
    }

    struct MulAdd<'a>([&'a [f32; LANES]; 2], &'a mut [f32; LANES]);

    impl Kernel for MulAdd<'_> {
        #[inline(always)]
        fn run(self, simd: impl Simd) {
            let [x, y] = self.0;
            simd.store(simd.mul_add(simd.load(x), simd.splat(1.1), simd.load(y)), self.1);
        }
    }

    #[test]
    fn lanes_agree_to_the_bit() {
        let x: [f32; LANES] = [1e8, -3.1, 0.7, 1e-3, -1e8, 5.5, 12.25, -0.3];
        // What is left of a product when its rounded self is taken away: little, and nothing had it been rounded itself.
        let y = x.map(|x| x * -1.1);
        let expected: [f32; LANES] =
            std::array::from_fn(|i| (f64::from(x[i]) * f64::from(1.1f32) + f64::from(y[i])) as f32);
        assert!(expected.iter().all(|rest| rest.abs() < 10.0) && expected.iter().any(|&rest| rest != 0.0));
        for isa in [Isa::Plain, Isa::detect()] {
            let mut got = [0.0; LANES];
            isa.run(MulAdd([&x, &y], &mut got));
            assert_eq!(got, expected);
        }
    }
}
