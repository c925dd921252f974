//! The instructions that the kernels are made of.

use std::arch::aarch64::{int8x16_t, int16x8_t, int32x4_t, uint8x16_t};

use pulp::aarch64::Neon;

/// Sixteen bytes.
pub(super) type I8 = int8x16_t;
/// Eight int16.
pub(in crate::kernels) type I16 = int16x8_t;
/// Four int32.
pub(super) type I32 = int32x4_t;

/// Proof that the CPU has NEON.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Lanes(Neon);

impl Lanes {
    #[inline(always)]
    pub(in crate::kernels) fn new() -> Self {
        #[allow(unsafe_code)]
        // SAFETY: every aarch64 target with a standard library has NEON.
        Lanes(unsafe { Neon::new_unchecked() })
    }

    #[inline(always)]
    pub(super) fn zero(self) -> I16 {
        self.0.neon.vdupq_n_s16(0)
    }

    #[inline(always)]
    pub(super) fn zero32(self) -> I32 {
        self.0.neon.vdupq_n_s32(0)
    }

    /// The same four bytes for each row.
    #[inline(always)]
    pub(super) fn broadcast(self, activations: i32) -> I8 {
        self.0.neon.vreinterpretq_s8_s32(self.0.neon.vdupq_n_s32(activations))
    }

    /// Codes that are bytes.
    #[inline(always)]
    pub(super) fn signed(self, codes: &[u8; 16]) -> I8 {
        pulp::cast(*codes)
    }

    /// The codes at bit `SHIFT` of each byte. (An immediate shift by 0 is not an instruction.)
    #[inline(always)]
    pub(super) fn field<const SHIFT: i32>(self, codes: &[u8; 16], mask: u8) -> I8 {
        let codes: uint8x16_t = pulp::cast(*codes);
        let shifted = match SHIFT {
            2 => self.0.neon.vshrq_n_u8::<2>(codes),
            4 => self.0.neon.vshrq_n_u8::<4>(codes),
            6 => self.0.neon.vshrq_n_u8::<6>(codes),
            _ => codes,
        };
        self.0.neon.vreinterpretq_s8_u8(self.0.neon.vandq_u8(shifted, self.0.neon.vdupq_n_u8(mask)))
    }

    /// `sums + a · b` of the lower eight bytes.
    #[inline(always)]
    pub(super) fn multiply_add_low(self, sums: I16, a: I8, b: I8) -> I16 {
        self.0.neon.vmlal_s8(sums, self.0.neon.vget_low_s8(a), self.0.neon.vget_low_s8(b))
    }

    /// `sums + a · b` of the upper eight bytes.
    #[inline(always)]
    pub(super) fn multiply_add_high(self, sums: I16, a: I8, b: I8) -> I16 {
        self.0.neon.vmlal_high_s8(sums, a, b)
    }

    /// `sums[i] + pairs[2i] + pairs[2i + 1]`.
    #[inline(always)]
    pub(super) fn add_pairs(self, sums: I32, pairs: I16) -> I32 {
        self.0.neon.vpadalq_s16(sums, pairs)
    }

    /// The sums of neighbours in `a`, then those in `b`.
    #[inline(always)]
    pub(super) fn add_across(self, a: I32, b: I32) -> [i32; 4] {
        pulp::cast(self.0.neon.vpaddq_s32(a, b))
    }

    /// `sums[i] + Σ a · b` of bytes `4i` to `4i + 3`. Only where [`super::dot::is_available`].
    #[inline(always)]
    pub(super) fn dot(self, mut sums: I32, a: I8, b: I8) -> I32 {
        #[allow(unsafe_code)]
        // SAFETY: the kernels that call this are chosen for CPUs that have the instruction, whose intrinsic is not
        // stable; it reads and writes these registers only.
        unsafe {
            std::arch::asm!(
                ".arch_extension dotprod",
                "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
                sums = inout(vreg) sums,
                a = in(vreg) a,
                b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }

    /// The sums of eight rows.
    #[inline(always)]
    pub(super) fn rows(self, sums: [I32; 2]) -> [i32; 8] {
        pulp::cast(sums)
    }

    /// Eight words.
    #[inline(always)]
    pub(in crate::kernels) fn words(self, words: [i16; 8]) -> I16 {
        pulp::cast(words)
    }

    /// The words of a register.
    #[inline(always)]
    pub(in crate::kernels) fn array(self, words: I16) -> [i16; 8] {
        pulp::cast(words)
    }

    /// The same word everywhere.
    #[inline(always)]
    pub(in crate::kernels) fn splat(self, word: i16) -> I16 {
        self.0.neon.vdupq_n_s16(word)
    }

    /// Bytes with their signs as words.
    #[inline(always)]
    pub(in crate::kernels) fn widen(self, bytes: [i8; 8]) -> I16 {
        self.0.neon.vmovl_s8(pulp::cast(bytes))
    }

    /// `a + b`.
    #[inline(always)]
    pub(in crate::kernels) fn add(self, a: I16, b: I16) -> I16 {
        self.0.neon.vaddq_s16(a, b)
    }

    /// `a - b`.
    #[inline(always)]
    pub(in crate::kernels) fn subtract(self, a: I16, b: I16) -> I16 {
        self.0.neon.vsubq_s16(a, b)
    }

    /// `a · b`.
    #[inline(always)]
    pub(in crate::kernels) fn multiply(self, a: I16, b: I16) -> I16 {
        self.0.neon.vmulq_s16(a, b)
    }

    /// `a ^ b`.
    #[inline(always)]
    pub(in crate::kernels) fn exclusive_or(self, a: I16, b: I16) -> I16 {
        self.0.neon.veorq_s16(a, b)
    }

    /// The bits at even `SHIFT` of each word. (An immediate shift by 0 is not an instruction.)
    #[inline(always)]
    pub(in crate::kernels) fn word_field<const SHIFT: i32>(self, words: I16, mask: i16) -> I16 {
        let words = self.0.neon.vreinterpretq_u16_s16(words);
        let shifted = match SHIFT {
            2 => self.0.neon.vshrq_n_u16::<2>(words),
            4 => self.0.neon.vshrq_n_u16::<4>(words),
            6 => self.0.neon.vshrq_n_u16::<6>(words),
            8 => self.0.neon.vshrq_n_u16::<8>(words),
            10 => self.0.neon.vshrq_n_u16::<10>(words),
            12 => self.0.neon.vshrq_n_u16::<12>(words),
            14 => self.0.neon.vshrq_n_u16::<14>(words),
            _ => words,
        };
        self.0.neon.vandq_s16(self.0.neon.vreinterpretq_s16_u16(shifted), self.0.neon.vdupq_n_s16(mask))
    }

    /// The bytes of `table` with these numbers; 0 for numbers from 16 on.
    #[inline(always)]
    pub(in crate::kernels) fn shuffle(self, table: I16, bytes: I16) -> I16 {
        let (table, bytes) = (self.0.neon.vreinterpretq_u8_s16(table), self.0.neon.vreinterpretq_u8_s16(bytes));
        self.0.neon.vreinterpretq_s16_u8(self.0.neon.vqtbl1q_u8(table, bytes))
    }
}
