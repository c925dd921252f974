//! x86-64-v3 kernels.
//!
//! Helpers are `#[inline(always)]`: compiled by themselves they would lack AVX2. For the same reason no
//! instruction is used in a closure: `array::map`, `fold` and the like are compiled around closures without
//! AVX2, every instruction in them becomes a call, and the kernel a hundred times slower.

// Registers, codes and tokens go by the same index, and iterators would bring closures.
#![allow(clippy::needless_range_loop)]

mod dense;
mod int4;
mod int8;
mod lookup;
mod quantize;
mod ternary;
mod unpacked;

use std::arch::x86_64::{__m128i, __m256, __m256i};

use super::{AHEAD, Family, HalfBlock, Job, KernelInfo, LANES, Outputs, Room, Run, SWEEP, Sweep, Workspace};
use crate::activations::{CodeBlock, Tokens};
use crate::isa::Isa;

pub(super) use quantize::quantize;
pub(super) use unpacked::Panel;

pulp::simd_type!({
    /// Proof that the CPU has the instructions that these kernels use: of x86-64-v3, with the F16C that
    /// pulp's own token leaves out.
    pub(crate) struct Simd {
        pub(crate) sse: f!("sse"),
        pub(crate) sse2: f!("sse2"),
        pub(crate) avx: f!("avx"),
        pub(crate) avx2: f!("avx2"),
        pub(crate) bmi2: f!("bmi2"),
        pub(crate) fma: f!("fma"),
        pub(crate) f16c: f!("f16c"),
    }
});

impl Simd {
    /// f16 to f32.
    #[inline(always)]
    pub(crate) fn halves(self, halves: __m128i) -> __m256 {
        let _ = self.f16c;
        #[allow(unsafe_code)]
        // SAFETY: the token proves that the CPU has F16C.
        unsafe {
            std::arch::x86_64::_mm256_cvtph_ps(halves)
        }
    }
}

/// A table entry: `$body` is an `#[inline(always)]` function of `(Simd, &Job, &mut [Outputs])`.
macro_rules! kernel {
    ($name:literal, $family:ident, $tiles:literal x $tokens:literal, $cycles:literal, $body:expr, $reason:literal) => {
        KernelInfo {
            name: $name,
            isa: Isa::Avx2,
            family: Family::$family,
            tiles: $tiles,
            tokens: $tokens,
            cycles: $cycles,
            reason: $reason,
            run: Run::Tiles(|job, out| {
                // Not a closure: the shim through which one is called is not always inlined, and without
                // that its body is compiled for the baseline CPU.
                struct Op<'a> {
                    simd: Simd,
                    job: &'a Job<'a>,
                    out: &'a mut [Outputs],
                }
                impl pulp::NullaryFnOnce for Op<'_> {
                    type Output = ();

                    #[inline(always)]
                    fn call(self) {
                        $body(self.simd, self.job, self.out)
                    }
                }
                let simd = Simd::try_new().expect("the kernels are chosen for CPUs that have AVX2");
                simd.vectorize(Op { simd, job, out });
            }),
        }
    };
}

/// [`lookup::turn`] compiled with AVX2.
fn lookup_turn(tokens: &Tokens<'_>, block: usize, halves: &mut [HalfBlock; 2]) {
    struct Op<'a> {
        simd: Simd,
        tokens: &'a Tokens<'a>,
        block: usize,
        halves: &'a mut [HalfBlock; 2],
    }
    impl pulp::NullaryFnOnce for Op<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            lookup::turn(self.simd, self.tokens, self.block, self.halves);
        }
    }
    let simd = Simd::try_new().expect("the kernels are chosen for CPUs that have AVX2");
    simd.vectorize(Op { simd, tokens, block, halves });
}

/// [`lookup::sums`] compiled with AVX2.
fn lookup_sums(job: &Job<'_>, work: &mut Workspace) {
    struct Op<'a> {
        simd: Simd,
        job: &'a Job<'a>,
        room: &'a mut Room,
    }
    impl pulp::NullaryFnOnce for Op<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            lookup::sums(self.simd, self.job, self.room);
        }
    }
    let simd = Simd::try_new().expect("the kernels are chosen for CPUs that have AVX2");
    simd.vectorize(Op { simd, job, room: &mut work.room });
}

/// [`lookup::outputs`] compiled with AVX2.
fn lookup_outputs(job: &Job<'_>, work: &Workspace, [first, token]: [usize; 2], out: &mut [[Outputs; LANES]]) {
    struct Op<'a> {
        simd: Simd,
        job: &'a Job<'a>,
        room: &'a Room,
        first: usize,
        out: &'a mut [[Outputs; LANES]],
    }
    impl pulp::NullaryFnOnce for Op<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            lookup::outputs(self.simd, self.job, self.room, self.first, self.out);
        }
    }
    let simd = Simd::try_new().expect("the kernels are chosen for CPUs that have AVX2");
    debug_assert_eq!(token, 0, "a sweep has no more tokens than these");
    simd.vectorize(Op { simd, job, room: &work.room, first, out });
}

/// [`unpacked::sums`] compiled with AVX2.
fn unpacked_sums(job: &Job<'_>, work: &mut Workspace) {
    struct Op<'a> {
        simd: Simd,
        job: &'a Job<'a>,
        panel: &'a mut Panel,
    }
    impl pulp::NullaryFnOnce for Op<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            unpacked::sums(self.simd, self.job, self.panel);
        }
    }
    let simd = Simd::try_new().expect("the kernels are chosen for CPUs that have AVX2");
    simd.vectorize(Op { simd, job, panel: &mut work.panel });
}

/// By family; then by tokens, then by tiles, both falling.
pub(super) static KERNELS: [KernelInfo; 26] = [
    KernelInfo {
        name: "avx2-ternary-lookup",
        isa: Isa::Avx2,
        family: Family::Ternary,
        tiles: SWEEP,
        tokens: LANES,
        cycles: 4.5,
        reason: "81 sums of four activations for 32 tokens at once; a code byte is an index, and an addition 64 multiply-adds",
        run: Run::Sweep(Sweep {
            turn: Some(lookup_turn),
            sums: lookup_sums,
            outputs: lookup_outputs,
            step: LANES,
            setup: 0.0,
        }),
    },
    kernel!("avx2-ternary-2x4", Ternary, 2 x 4, 5.8, ternary::prefill::<2, 4>,
        "8 sums in registers; codes unpacked once for 4 tokens, activations broadcast once for 16 rows"),
    kernel!("avx2-ternary-1x4", Ternary, 1 x 4, 6.6, ternary::prefill::<1, 4>, "an odd last tile"),
    kernel!("avx2-ternary-2x2", Ternary, 2 x 2, 6.6, ternary::prefill::<2, 2>, "what is left of several tokens"),
    kernel!("avx2-ternary-1x2", Ternary, 1 x 2, 8.0, ternary::prefill::<1, 2>, "an odd last tile"),
    kernel!("avx2-ternary-4x1", Ternary, 4 x 1, 9.0, ternary::decode::<4>,
        "one shift for four codes; four tiles share the broadcasts; four streams from memory"),
    kernel!("avx2-ternary-2x1", Ternary, 2 x 1, 9.1, ternary::decode::<2>,
        "one shift for four codes; two tiles share the broadcasts; two streams from memory"),
    kernel!("avx2-ternary-1x1", Ternary, 1 x 1, 11.0, ternary::decode::<1>, "an odd last tile"),
    KernelInfo {
        name: "avx2-int4-unpacked",
        isa: Isa::Avx2,
        family: Family::Int4,
        tiles: unpacked::TILES,
        tokens: unpacked::MOST,
        cycles: 7.4,
        reason: "codes unpacked once for 64 tokens, 2 tiles x 4 tokens at a time from the L1 cache; 8 int16 sums in registers",
        run: Run::Sweep(Sweep {
            turn: None,
            sums: unpacked_sums,
            outputs: unpacked::outputs,
            step: unpacked::TOKENS,
            setup: 16.0,
        }),
    },
    kernel!("avx2-int4-2x4", Int4, 2 x 4, 9.0, int4::product::<2, 4>,
        "codes unpacked once for 4 tokens, broadcasts shared by 16 rows; 8 int16 sums in registers, the float sums in L1"),
    kernel!("avx2-int4-1x4", Int4, 1 x 4, 10.0, int4::product::<1, 4>, "an odd last tile"),
    kernel!("avx2-int4-2x2", Int4, 2 x 2, 11.0, int4::product::<2, 2>, "what is left of several tokens"),
    kernel!("avx2-int4-1x2", Int4, 1 x 2, 13.0, int4::product::<1, 2>, "an odd last tile"),
    kernel!("avx2-int4-4x1", Int4, 4 x 1, 20.0, int4::product::<4, 1>,
        "four tiles share the broadcasts and hide each other's latency; four streams from memory"),
    kernel!("avx2-int4-2x1", Int4, 2 x 1, 20.0, int4::product::<2, 1>,
        "two tiles share the broadcasts and hide each other's latency; two streams from memory"),
    kernel!("avx2-int4-1x1", Int4, 1 x 1, 22.0, int4::product::<1, 1>, "an odd last tile"),
    kernel!("avx2-int8-1x8", Int8, 1 x 8, 13.5, int8::product::<1, 8>, "weights come from memory once for 8 tokens; 8 int32 sums in registers"),
    kernel!("avx2-int8-2x4", Int8, 2 x 4, 14.5, int8::product::<2, 4>, "activations broadcast once for 16 rows"),
    kernel!("avx2-int8-1x4", Int8, 1 x 4, 15.0, int8::product::<1, 4>, "an odd last tile"),
    kernel!("avx2-int8-2x2", Int8, 2 x 2, 16.0, int8::product::<2, 2>, "what is left of several tokens"),
    kernel!("avx2-int8-1x2", Int8, 1 x 2, 17.0, int8::product::<1, 2>, "an odd last tile"),
    kernel!("avx2-int8-4x1", Int8, 4 x 1, 31.0, int8::product::<4, 1>,
        "four tiles share the broadcasts; four streams from memory"),
    kernel!("avx2-int8-2x1", Int8, 2 x 1, 31.0, int8::product::<2, 1>,
        "two tiles share the broadcasts; two streams from memory"),
    kernel!("avx2-int8-1x1", Int8, 1 x 1, 33.0, int8::product::<1, 1>, "an odd last tile"),
    kernel!("avx2-dense-1x2", Dense, 1 x 2, 60.0, dense::product::<2>, "8 sums in registers; weights converted once for both tokens"),
    kernel!("avx2-dense-1x1", Dense, 1 x 1, 80.0, dense::product::<1>, "bound by memory"),
];

/// The tiles of a job.
#[inline(always)]
fn tiles<'a, const R: usize>(job: &Job<'a>) -> [&'a [u8]; R] {
    let mut tiles = [&[][..]; R];
    for r in 0..R {
        tiles[r] = job.tile(r);
    }
    tiles
}

/// The quantised activations of a job's tokens, each slice as long as a tile has blocks.
#[derive(Clone, Copy)]
struct Activations<'a, const T: usize> {
    codes: [&'a [CodeBlock]; T],
    scales: [&'a [f32]; T],
    sums: [&'a [i32]; T],
    centres: [&'a [i32]; T],
}

#[inline(always)]
fn activations<'a, const T: usize>(job: &Job<'a>) -> Activations<'a, T> {
    let mut all = Activations { codes: [&[]; T], scales: [&[]; T], sums: [&[]; T], centres: [&[]; T] };
    let blocks = job.layout.blocks;
    for t in 0..T {
        let token = job.tokens.token(t);
        all.codes[t] = &token.codes[..blocks];
        all.scales[t] = &token.scales[..blocks];
        all.sums[t] = &token.sums[..blocks];
        all.centres[t] = &token.centres[..blocks];
    }
    all
}

#[inline(always)]
fn load(bytes: &[u8; 32]) -> __m256i {
    pulp::cast(*bytes)
}

#[inline(always)]
fn floats(values: [f32; 8]) -> __m256 {
    pulp::cast(values)
}

/// f16 to f32.
#[inline(always)]
fn halves(simd: Simd, bytes: &[u8; 16]) -> __m256 {
    simd.halves(pulp::cast(*bytes))
}

/// Streams from which on a CPU looks ahead in each by itself: then asking costs more than it saves, unless the weights are as few
/// bytes as ternary ones.
const OWN: usize = 4;

/// Asks for the cache line that one of `R` streams comes to when all have gone [`AHEAD`].
#[inline(always)]
fn prefetch_next<const R: usize>(simd: Simd, job: &Job<'_>, at: &[u8]) {
    if job.ahead {
        prefetch_line(simd, at.as_ptr().wrapping_add(AHEAD / R));
    }
}

/// Asks for a cache line; it need not exist.
#[inline(always)]
fn prefetch_line(simd: Simd, at: *const u8) {
    const T1: i32 = std::arch::x86_64::_MM_HINT_T1;
    simd.sse._mm_prefetch::<T1>(at.cast());
}

#[inline(always)]
fn and(simd: Simd, a: __m256i, b: __m256i) -> __m256i {
    simd.avx2._mm256_and_si256(a, b)
}

/// Adds the pairs of int16 in each dword.
#[inline(always)]
fn add_pairs(simd: Simd, sums: __m256i) -> __m256i {
    simd.avx2._mm256_madd_epi16(sums, simd.avx._mm256_set1_epi16(1))
}

/// `sums + Σ codes · activations` in int16 pairs: unsigned codes, signed activations.
#[inline(always)]
fn multiply_add(simd: Simd, sums: __m256i, codes: __m256i, activations: __m256i) -> __m256i {
    simd.avx2._mm256_add_epi16(sums, simd.avx2._mm256_maddubs_epi16(codes, activations))
}

/// Four activations for each row.
#[inline(always)]
fn broadcast(simd: Simd, activations: i32) -> __m256i {
    simd.avx._mm256_set1_epi32(activations)
}

/// `y + sum · scale`, rounded after each of the two.
#[inline(always)]
fn scale_add(simd: Simd, y: __m256, sum: __m256i, scale: __m256) -> __m256 {
    simd.avx._mm256_add_ps(y, simd.avx._mm256_mul_ps(simd.avx._mm256_cvtepi32_ps(sum), scale))
}
