//! Eight f32 lanes, the same arithmetic on every instruction set: for loops whose sums must stay in
//! registers, which the compiler does not find by itself.

use crate::isa::Isa;

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// Arithmetic on [`LANES`] f32 at a time, never fused.
pub(crate) trait Simd: Copy {
    /// The lanes.
    type F32s: Copy;
    /// The same number in all lanes.
    fn splat(self, x: f32) -> Self::F32s;
    /// From memory.
    fn load(self, x: &[f32; LANES]) -> Self::F32s;
    /// To memory.
    fn store(self, x: Self::F32s, to: &mut [f32; LANES]);
    /// Lane by lane.
    fn add(self, a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// Lane by lane.
    fn mul(self, a: Self::F32s, b: Self::F32s) -> Self::F32s;
    /// Sum of the lanes: halves are added until one is left.
    fn sum(self, x: Self::F32s) -> f32;
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
        if let (Isa::Avx2 | Isa::AvxVnni | Isa::Avx512, Some(simd)) = (self, pulp::x86::V3::try_new()) {
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
    fn add(self, a: Self::F32s, b: Self::F32s) -> Self::F32s {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn mul(self, a: Self::F32s, b: Self::F32s) -> Self::F32s {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn sum(self, x: Self::F32s) -> f32 {
        let four = [x[0] + x[4], x[1] + x[5], x[2] + x[6], x[3] + x[7]];
        (four[0] + four[2]) + (four[1] + four[3])
    }
}

#[cfg(target_arch = "x86_64")]
impl Simd for pulp::x86::V3 {
    type F32s = pulp::f32x8;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F32s {
        self.splat_f32x8(x)
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
    fn add(self, a: Self::F32s, b: Self::F32s) -> Self::F32s {
        self.add_f32x8(a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F32s, b: Self::F32s) -> Self::F32s {
        self.mul_f32x8(a, b)
    }

    #[inline(always)]
    fn sum(self, x: Self::F32s) -> f32 {
        let [low, high]: [pulp::f32x4; 2] = pulp::cast(x);
        let four = self.sse._mm_add_ps(pulp::cast(low), pulp::cast(high));
        let two = self.sse._mm_add_ps(four, self.sse._mm_movehl_ps(four, four));
        let one = self.sse._mm_add_ss(two, self.sse._mm_shuffle_ps::<1>(two, two));
        self.sse._mm_cvtss_f32(one)
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
    fn add(self, a: Self::F32s, b: Self::F32s) -> Self::F32s {
        [self.neon.vaddq_f32(a[0], b[0]), self.neon.vaddq_f32(a[1], b[1])]
    }

    #[inline(always)]
    fn mul(self, a: Self::F32s, b: Self::F32s) -> Self::F32s {
        [self.neon.vmulq_f32(a[0], b[0]), self.neon.vmulq_f32(a[1], b[1])]
    }

    #[inline(always)]
    fn sum(self, x: Self::F32s) -> f32 {
        let four = self.neon.vaddq_f32(x[0], x[1]);
        let two = self.neon.vadd_f32(self.neon.vget_low_f32(four), self.neon.vget_high_f32(four));
        let two: [f32; 2] = pulp::cast(two);
        two[0] + two[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum<'a>(&'a [f32; LANES], &'a mut f32);

    impl Kernel for Sum<'_> {
        #[inline(always)]
        fn run(self, simd: impl Simd) {
            let x = simd.add(simd.load(self.0), simd.mul(simd.load(self.0), simd.splat(2.0)));
            let mut stored = [0.0; LANES];
            simd.store(x, &mut stored);
            *self.1 = simd.sum(simd.load(&stored));
        }
    }

    #[test]
    fn lanes_agree_to_the_bit() {
        let x = [1e8, -3.1, 0.7, 1e-3, -1e8, 5.5, 12.25, -0.3];
        let sums = [Isa::Plain, Isa::detect()].map(|isa| {
            let mut sum = 0.0;
            isa.run(Sum(&x, &mut sum));
            sum
        });
        let three = x.map(|x: f32| x + x * 2.0);
        let pairs: [f32; 4] = std::array::from_fn(|i| three[i] + three[i + 4]);
        assert_eq!(sums, [(pairs[0] + pairs[2]) + (pairs[1] + pairs[3]); 2]);
    }
}
