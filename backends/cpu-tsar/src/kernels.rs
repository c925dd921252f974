//! The kernels: what computes a tile of a product, for each instruction set, format and batch size.
//!
//! All kernels of a quantised format give the same bits: integer sums are exact, and each output goes
//! through the same float operations in the same order, without fused multiply-adds:
//!
//! - ternary: `y = (Σ t·a) · (s_row · s_token)`;
//! - int4, int8: from `y = 0`, for each block of 32 columns in order, `y = y + (Σ q·a) · (s · s_a)`, and then
//!   for int4 with a minimum `y = y + (Σ a) · (m · s_a)`.
//!
//! Dense products sum up 32 partial sums, column `c` in number `c % 32`, and add these in a fixed tree:
//! their bits do not depend on the batch or the threads, but they do on whether the instruction set has a
//! fused multiply-add.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod blocks;
#[cfg(any(target_arch = "aarch64", test))]
mod neon;
mod plain;

use trine_backend::{Activation, Format};

use crate::activations::{CodeBlock, Tokens, quantize_plain};
use crate::isa::Isa;
use crate::weights::{Layout, TILE};

/// What a kernel works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    /// The shape of a tile.
    pub(crate) layout: &'a Layout,
    /// As many tiles as the kernel takes.
    pub(crate) tiles: &'a [u8],
    /// As many tokens as the kernel takes.
    pub(crate) tokens: Tokens<'a>,
}

impl<'a> Job<'a> {
    /// The bytes of one tile.
    #[inline(always)]
    pub(crate) fn tile(&self, tile: usize) -> &'a [u8] {
        &self.tiles[tile * self.layout.tile_bytes..][..self.layout.tile_bytes]
    }
}

/// The outputs of a tile's rows for one token.
pub(crate) type Outputs = [f32; TILE];

/// The outputs of a job: `[tile][token]`.
type Run = fn(&Job<'_>, &mut [Outputs]);

/// Most tiles times tokens of a job.
pub(crate) const MAX_OUTPUTS: usize = 8;

/// A micro-kernel and what it is for.
#[derive(Clone, Copy, Debug)]
pub struct KernelInfo {
    /// Its name in reports.
    pub name: &'static str,
    /// The instruction set that it needs.
    pub isa: Isa,
    /// The formats that it multiplies.
    pub family: Family,
    /// Tiles of 8 rows that it computes at once.
    pub tiles: usize,
    /// Tokens that it computes at once.
    pub tokens: usize,
    /// Why it has this form.
    pub reason: &'static str,
    run: Run,
}

impl KernelInfo {
    /// Computes a job of exactly `tiles` tiles and `tokens` tokens.
    pub(crate) fn run(&self, job: &Job<'_>, out: &mut [Outputs]) {
        (self.run)(job, out);
    }
}

/// Formats that share a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// 2-bit codes.
    Ternary,
    /// 4-bit codes with any kind of zero.
    Int4,
    /// 8-bit codes.
    Int8,
    /// Floats.
    Dense,
}

impl From<Format> for Family {
    fn from(format: Format) -> Self {
        match format {
            Format::F32 | Format::F16 | Format::Bf16 => Family::Dense,
            Format::Ternary => Family::Ternary,
            Format::Int4 { .. } => Family::Int4,
            Format::Int8 { .. } => Family::Int8,
        }
    }
}

/// The kernels of an instruction set for a family, the largest first; the last takes one tile and one
/// token. A job takes the first that is not too large for it.
pub(crate) fn kernels(isa: Isa, family: Family) -> &'static [KernelInfo] {
    let all: &[KernelInfo] = match isa {
        #[cfg(target_arch = "x86_64")]
        // Where a hypervisor hides F16C the plain kernels give the same bits.
        Isa::Avx2 if avx2::Simd::is_available() => &avx2::KERNELS,
        #[cfg(any(target_arch = "aarch64", test))]
        Isa::Neon => &neon::KERNELS,
        _ => &plain::KERNELS,
    };
    let start = all.iter().position(|kernel| kernel.family == family).unwrap_or(0);
    let len = all[start..].iter().take_while(|kernel| kernel.family == family).count();
    &all[start..start + len]
}

/// Quantises one token: what [`quantize_plain`] does.
type Quantize = fn(&[f32], Activation, &mut [CodeBlock], &mut [f32], &mut [i32]);

/// The quantiser of an instruction set.
pub(crate) fn quantize(isa: Isa) -> Quantize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if avx2::Simd::is_available() => avx2::quantize,
        _ => quantize_plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_has_a_kernel() {
        for isa in Isa::ALL {
            for family in [Family::Ternary, Family::Int4, Family::Int8, Family::Dense] {
                let kernels = kernels(isa, family);
                let sizes: Vec<_> = kernels.iter().map(|kernel| (kernel.tokens, kernel.tiles)).collect();
                assert!(sizes.is_sorted_by(|a, b| a > b), "{isa} {family:?}: {sizes:?}");
                assert_eq!(sizes.last(), Some(&(1, 1)));
                // Whatever number of tokens is taken at once, there is a kernel for a single tile of them.
                assert!(sizes.iter().all(|&(tokens, _)| sizes.contains(&(tokens, 1))), "{isa} {family:?}: {sizes:?}");
                assert!(sizes.iter().all(|&(tokens, tiles)| tokens * tiles <= MAX_OUTPUTS));
                assert!(kernels.iter().all(|kernel| kernel.family == family && !kernel.reason.is_empty()));
            }
        }
    }
}
