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
mod selection;
pub(crate) mod tsar;
#[cfg(target_arch = "x86_64")]
mod vnni;

use trine_backend::{Activation, Format};

use crate::activations::{CodeBlock, Tokens, quantize_plain};
use crate::isa::Isa;
use crate::shares::Left;
use crate::weights::{Layout, TILE};

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Simd as Avx2;
pub(crate) use selection::{Kernels, Selection};

/// What a kernel works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    /// The shape of a tile.
    pub(crate) layout: &'a Layout,
    /// As many tiles as the kernel takes, and whatever lies between them.
    pub(crate) tiles: &'a [u8],
    /// Bytes from the start of one of its tiles to the next: a tile's for sweeps, which take tiles that follow each other.
    pub(crate) apart: usize,
    /// As many tokens as the kernel takes.
    pub(crate) tokens: Tokens<'a>,
    /// Whether weights should be asked for [`AHEAD`] of their turn: only the first tokens that go past some tiles find them in
    /// memory.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // Elsewhere the CPU looks ahead by itself.
    pub(crate) ahead: bool,
    /// `[half block]`: the activations of its tokens as its sweep turns them; none where that takes them as they are.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // Where no sweep is written yet.
    pub(crate) halves: &'a [HalfBlock],
}

impl<'a> Job<'a> {
    /// The bytes of one tile.
    #[inline(always)]
    pub(crate) fn tile(&self, tile: usize) -> &'a [u8] {
        &self.tiles[tile * self.apart..][..self.layout.tile_bytes]
    }
}

/// Bytes of weights that are asked for ahead of their turn, in all of a kernel's streams together: what memory gives a thread in
/// 0.3 µs. With four streams half and twice as many are alike; a tile of each, which is 5 KB and more, loses a tenth.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // As above.
pub(crate) const AHEAD: usize = 4096;

/// The outputs of a tile's rows for one token: a vector, which never lies across two cache lines. Stores that do and loads of
/// what they wrote make steps of 8 tokens a twelfth slower.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct Outputs(pub(crate) [f32; TILE]);

/// How a kernel is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    /// On exactly its number of tiles and tokens; the outputs are `[tile][token]`.
    Tiles(fn(&Job<'_>, &mut [Outputs])),
    /// On up to its number of tiles and tokens, with working memory.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // Where no sweep is written yet.
    Sweep(Sweep),
    /// On tiles in the layout that T-SAR's authors published.
    Published(tsar::Variant),
}

/// A product in two halves, so that its outputs can go to their places while they are in the L1 cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    /// Turns a block of up to [`LANES`] tokens' activations, if it works on turned ones: once for all of a product's parts.
    pub(crate) turn: Option<fn(&Tokens<'_>, usize, &mut [HalfBlock; 2])>,
    /// Leaves the sums of all tiles and tokens in the workspace.
    pub(crate) sums: fn(&Job<'_>, &mut Workspace),
    /// Of these sums the outputs `[tile][token]` of as many tiles as there is room for, from this tile and this token on,
    /// the token a multiple of [`LANES`].
    pub(crate) outputs: fn(&Job<'_>, &Workspace, [usize; 2], &mut [[Outputs; LANES]]),
    /// Tokens that cost as much as one of them.
    pub(crate) step: usize,
    /// Cycles for a tile and 32 columns that do not depend on the number of tokens.
    pub(crate) setup: f64,
}

/// Tokens that sweeps take a multiple of.
pub(crate) const LANES: usize = 32;

/// Most tiles of a sweep. Their int16 sums, which all tables go past, take 160 KB and stay in the L2 cache; the more tiles
/// there are, the less do the tables cost that are built for every half block: as much as some 150 rows.
pub(crate) const SWEEP: usize = 320;

/// From one look-up table to the next. The largest index is 2·(1 + 4 + 16 + 64) = 170; with two lines more four tables use the
/// sets of an L1 cache most evenly, so that few of their lines are driven out by what streams past.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // Where no sweep is written yet.
pub(crate) const TABLE: usize = 173;

/// The tables of half a block, and room for any byte to be an index of the last.
pub(crate) const HALF_TABLES: usize = 3 * TABLE + 256;

/// An int16 for each token of a sweep: a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Lanes(pub(crate) [[i16; 16]; LANES / 16]);

/// An int32 for each token of a sweep.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Wide(pub(crate) [[i32; 8]; LANES / 8]);

/// Half a block of activations with a lane for each token of a sweep: what look-up tables are the sums of.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct HalfBlock {
    /// The codes of 16 columns; those of tokens that there are not are 0.
    pub(crate) columns: [[[i8; 16]; LANES / 16]; 16],
    /// Σ|a| of each token.
    pub(crate) magnitudes: Lanes,
}

/// What products of many tokens work in; grown by the first large step, and not after.
#[derive(Debug, Default)]
pub(crate) struct Workspaces {
    /// For each worker.
    pub(crate) workers: Vec<Workspace>,
    /// `[group of tokens][half block]`: activations as a sweep turned them.
    pub(crate) halves: Vec<HalfBlock>,
    /// What is left of the workers' shares of the sweep, and of the rest.
    pub(crate) shares: [Vec<Left>; 2],
}

/// What a worker's sweeps work in.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// For look-up tables.
    pub(crate) room: Room,
    /// For unpacked codes.
    #[cfg(target_arch = "x86_64")]
    panel: avx2::Panel,
}

/// What a sweep with look-up tables works in.
#[derive(Debug)]
pub(crate) struct Room {
    /// The look-up tables of half a block.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // As above.
    pub(crate) tables: Box<[Lanes; HALF_TABLES]>,
    /// `[row]`: sums of the last blocks.
    pub(crate) narrow: Vec<Lanes>,
    /// `[row]`: sums of all blocks before those, if there are any.
    pub(crate) wide: Vec<Wide>,
    /// Whether there are.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // As above.
    pub(crate) is_wide: bool,
}

impl Default for Room {
    fn default() -> Self {
        Room {
            tables: vec![Lanes::default(); HALF_TABLES].try_into().expect("the length is the same constant"),
            narrow: vec![Lanes::default(); SWEEP * TILE],
            wide: vec![Wide::default(); SWEEP * TILE],
            is_wide: false,
        }
    }
}

/// Most tiles times tokens of a job.
pub(crate) const MAX_OUTPUTS: usize = 16;

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
    /// What it costs: cycles for a tile, 32 columns and a token (256 multiply-adds), with weights in the cache and as
    /// many tokens as it takes. Measured on Zen 3 for AVX2, counted from the instructions for others: only kernels of
    /// one instruction set are compared.
    pub cycles: f64,
    /// Why it has this form.
    pub reason: &'static str,
    pub(crate) run: Run,
}

impl KernelInfo {
    /// Whether it goes over many tiles with each block, rather than over all blocks of a tile.
    pub fn is_sweep(&self) -> bool {
        matches!(self.run, Run::Sweep(_))
    }

    /// What a token costs on average in a run of `tokens`, full sweeps and a rest.
    pub(crate) fn cost(&self, tokens: usize) -> f64 {
        let Run::Sweep(Sweep { step, setup, .. }) = self.run else { return self.cycles };
        let (computed, sweeps) = (tokens.next_multiple_of(step), tokens.div_ceil(self.tokens));
        (self.cycles * computed as f64 + setup * (sweeps as f64 - computed as f64 / self.tokens as f64)) / tokens as f64
    }
}

/// How many of `tokens` are best given to a sweep, and to which; the kernels that take tiles get the others.
pub(crate) fn sweep_for(kernels: &'static [KernelInfo], tokens: usize) -> Option<(&'static KernelInfo, usize)> {
    let sweep = kernels.iter().find(|kernel| kernel.is_sweep())?;
    let rest = tokens % sweep.tokens;
    let by_tiles = |tokens| {
        let fitting = kernels.iter().filter(move |kernel| !kernel.is_sweep() && kernel.tokens <= tokens);
        fitting.map(|kernel| kernel.cycles).fold(f64::INFINITY, f64::min)
    };
    let swept = if rest > 0 && sweep.cost(rest) < by_tiles(rest) { tokens } else { tokens - rest };
    (swept > 0).then_some((sweep, swept))
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

impl Family {
    /// All of them.
    pub const ALL: [Family; 4] = [Family::Ternary, Family::Int4, Family::Int8, Family::Dense];
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
        // Dense products have no use for it.
        #[cfg(all(target_arch = "x86_64", test))]
        Isa::Avx512 | Isa::AvxVnni if family != Family::Dense && !isa.is_available() => &vnni::emulated::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if family != Family::Dense => &vnni::AVX512,
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni if family != Family::Dense => &vnni::AVX,
        #[cfg(target_arch = "x86_64")]
        // Where a hypervisor hides F16C the plain kernels give the same bits.
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 if avx2::Simd::is_available() => &avx2::KERNELS,
        #[cfg(any(target_arch = "aarch64", test))]
        Isa::Neon if neon::dot::is_available() => &neon::dot::KERNELS,
        #[cfg(any(target_arch = "aarch64", test))]
        Isa::Neon => &neon::KERNELS,
        _ => &plain::KERNELS,
    };
    let start = all.iter().position(|kernel| kernel.family == family).unwrap_or(0);
    let len = all[start..].iter().take_while(|kernel| kernel.family == family).count();
    &all[start..start + len]
}

/// Whether this CPU has what the kernels of an x86 instruction set beyond AVX2 use.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_vnni(isa: Isa) -> bool {
    match isa {
        Isa::AvxVnni => vnni::has_avx(),
        Isa::Avx512 => vnni::has_avx512(),
        _ => false,
    }
}

/// Quantises one token: what [`quantize_plain`] does.
type Quantize = fn(&[f32], Activation, &mut [CodeBlock], &mut [f32], &mut [i32]);

/// The quantiser of an instruction set.
pub(crate) fn quantize(isa: Isa) -> Quantize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 if avx2::Simd::is_available() => avx2::quantize,
        _ => quantize_plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_takes_the_tokens_that_it_is_cheaper_for() {
        static TABLE: [KernelInfo; 3] = {
            const fn kernel(tokens: usize, cycles: f64, run: Run) -> KernelInfo {
                let (name, reason, isa, family) = ("", "", Isa::Plain, Family::Ternary);
                KernelInfo { name, isa, family, tiles: 1, tokens, cycles, reason, run }
            }
            const NONE: Run = Run::Tiles(|_, _| {});
            const RUN: Run =
                Run::Sweep(Sweep { turn: None, sums: |_, _| {}, outputs: |_, _, _, _| {}, step: 16, setup: 0.0 });
            [kernel(16, 4.0, RUN), kernel(4, 9.0, NONE), kernel(1, 11.0, NONE)]
        };
        let swept = |tokens| sweep_for(&TABLE, tokens).map_or(0, |(_, swept)| swept);
        // 16 lanes of 4 cycles cost as much as 7.1 tokens of 9.
        for (tokens, expected) in [(0, 0), (1, 0), (7, 0), (8, 8), (16, 16), (23, 16), (24, 24), (512, 512), (513, 512)]
        {
            assert_eq!(swept(tokens), expected, "{tokens} tokens");
        }
        assert!(sweep_for(&TABLE[1..], 512).is_none());
    }

    #[test]
    fn sweeps_cost_more_with_few_tokens() {
        let run = Run::Sweep(Sweep { turn: None, sums: |_, _| {}, outputs: |_, _, _, _| {}, step: 4, setup: 16.0 });
        let (name, reason, isa, family) = ("", "", Isa::Plain, Family::Int4);
        let sweep = KernelInfo { name, isa, family, tiles: 1, tokens: 64, cycles: 8.0, reason, run };
        // 7.75 cycles for each of the tokens that are computed, and 16 for each sweep.
        let costs =
            [(64, 8.0), (128, 8.0), (8, 9.75), (5, (8.0 * 7.75 + 16.0) / 5.0), (72, (72.0 * 7.75 + 32.0) / 72.0)];
        for (tokens, expected) in costs {
            assert_eq!(sweep.cost(tokens), expected, "{tokens} tokens");
        }
    }

    #[test]
    fn every_job_has_a_kernel() {
        for isa in Isa::ALL {
            for family in Family::ALL {
                let kernels = kernels(isa, family);
                let sizes: Vec<_> = kernels.iter().map(|kernel| (kernel.tokens, kernel.tiles)).collect();
                assert!(sizes.is_sorted_by(|a, b| a > b), "{isa} {family:?}: {sizes:?}");
                assert_eq!(sizes.last(), Some(&(1, 1)));
                // Whatever number of tokens is taken at once, there is a kernel for a single tile of them.
                let tiles = kernels.iter().filter(|kernel| !kernel.is_sweep());
                let sizes: Vec<_> = tiles.map(|kernel| (kernel.tokens, kernel.tiles)).collect();
                assert!(sizes.iter().all(|&(tokens, _)| sizes.contains(&(tokens, 1))), "{isa} {family:?}: {sizes:?}");
                let most = |kernel: &KernelInfo| if kernel.is_sweep() { LANES * SWEEP } else { MAX_OUTPUTS };
                assert!(kernels.iter().all(|kernel| kernel.tokens * kernel.tiles <= most(kernel)));
                assert!(kernels.iter().all(|kernel| !kernel.is_sweep() || kernel.tokens.is_multiple_of(LANES)));
                assert!(kernels.iter().all(|kernel| kernel.family == family && !kernel.reason.is_empty()));
            }
        }
    }
}
