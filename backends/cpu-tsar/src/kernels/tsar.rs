//! T-SAR as published (arXiv 2511.13676), each of its instructions emulated by several real ones.
//!
//! Ternary weights are split into a dense part, bit 1 for +1 and 0 for -1, and a sparse part, bit 1 where the weight is 0
//! (there the dense bit is 1): `y = Σ wD·a - Σ wS·a`. `TLUT_c×4` makes tables of what `c` activations add up to under all
//! dense and all sparse bits, for 4 blocks of `c` columns, in registers; `TGEMV_k×16` looks up `k = 4c` columns of 16
//! outputs in them and adds the differences to 16 sums of int16. `instructions.rs` has these with the operand layout of the
//! article's figures, over a [`Registers`] of 16 int16 lanes; `dataflows.rs` has its two loop orders.
//!
//! They are the reference for the article's scheme and no way to be fast: in hardware TLUT and TGEMV would be one
//! instruction each, here TLUT_2×4 is some 10 and TGEMV_8×16 some 45. The int16 sums are flushed into int32 ones in time,
//! which the article leaves open.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod dataflows;
mod instructions;
#[cfg(any(target_arch = "aarch64", test))]
mod neon;
mod plain;
#[cfg(test)]
mod tests;

use std::ops::Range;

use super::{KernelInfo, Room};
use crate::isa::Isa;
use crate::weights::Published;

/// Outputs of a tile, and lanes of a register.
pub(crate) const OUTPUTS: usize = 16;

/// Most tiles of a run: as many as [`Room`] has sums for.
pub(crate) const MOST_TILES: usize = super::SWEEP * super::TILE * super::LANES / OUTPUTS;

/// What a kernel multiplies: some rows of a matrix with a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    /// How the tiles lie.
    pub(crate) layout: &'a Published,
    /// The bytes of the whole matrix.
    pub(crate) bytes: &'a [u8],
    /// The token's codes, padded with zeros to whole tiles.
    pub(crate) activations: &'a [i8],
}

/// A pair of instructions with a dataflow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    /// Columns of a tile.
    tile_columns: usize,
    /// Whether tiles with the same columns lie together: for AP.
    rows_first: bool,
    /// Leaves the sums of the tiles' outputs in `room.wide`, from its start: see [`sums`].
    pub(crate) run: Run,
}

type Run = fn(&Job<'_>, Range<usize>, &mut Room);

impl Variant {
    /// The layout that it reads, or `None` where that is beyond the address space.
    pub(crate) fn layout(&self, rows: usize, columns: usize) -> Option<Published> {
        Published::new(rows, columns, self.tile_columns, self.rows_first)
    }
}

/// The sums of tile number `tile` of a run, in two halves.
#[inline(always)]
pub(crate) fn sums(room: &Room, tile: usize) -> [[i32; 8]; 2] {
    let [a, b, c, d] = room.wide[tile / 2].0;
    if tile.is_multiple_of(2) { [a, b] } else { [c, d] }
}

/// Sixteen int16 lanes, and what T-SAR's instructions are made of here. No sum may overflow.
pub(super) trait Registers: Copy {
    /// A register.
    type Words: Copy;

    /// A register with these lanes.
    fn words(self, lanes: [i16; OUTPUTS]) -> Self::Words;
    /// Lanes from memory.
    fn sums(self, lanes: &[i16; OUTPUTS]) -> Self::Words;
    /// Lanes to memory.
    fn store(self, words: Self::Words, to: &mut [i16; OUTPUTS]);
    /// Lanes from memory, little-endian.
    fn load(self, bytes: &[u8; 2 * OUTPUTS]) -> Self::Words;
    /// Eight bytes with their signs, in the lower half and again in the upper one.
    fn widen(self, bytes: [i8; 8]) -> Self::Words;
    /// `a + b`.
    fn add(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// `a - b`.
    fn sub(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// `a · sign`, where a sign is -1, 0 or 1.
    fn sign(self, a: Self::Words, sign: Self::Words) -> Self::Words;
    /// `lane >> SHIFT & mask`, for even `SHIFT`.
    fn field<const SHIFT: i32>(self, words: Self::Words, mask: i16) -> Self::Words;
    /// In each lane the entry `0..8` of that half of the table which `UPPER` names.
    fn lookup_8<const UPPER: bool>(self, table: Self::Words, index: Self::Words) -> Self::Words;
    /// In each lane the entry `0..16` of the table.
    fn lookup_16(self, table: Self::Words, index: Self::Words) -> Self::Words;
}

/// The four kernels of an instruction set, `$run` being its [`Run`] for a pair of instructions and a dataflow, with what
/// they cost.
macro_rules! variants {
    ($isa:ident, $run:ident, $costs:expr) => {{
        const COSTS: [f64; $crate::kernels::tsar::VARIANTS] = $costs;
        [
            variants!(@ $isa, "tsar-2x4-ap", COSTS[0], 8, true, $run::<TwoByFour, true>,
                "TLUT_2x4 and TGEMV_8x16, emulated; the tables stay in registers while the outputs pass"),
            variants!(@ $isa, "tsar-2x4-op", COSTS[1], 8, false, $run::<TwoByFour, false>,
                "TLUT_2x4 and TGEMV_8x16, emulated; 16 outputs stay in a register, and each 16 make the tables anew"),
            variants!(@ $isa, "tsar-4x4-ap", COSTS[2], 16, true, $run::<FourByFour, true>,
                "TLUT_4x4 and TGEMV_16x16, emulated; the tables stay in registers while the outputs pass"),
            variants!(@ $isa, "tsar-4x4-op", COSTS[3], 16, false, $run::<FourByFour, false>,
                "TLUT_4x4 and TGEMV_16x16, emulated; 16 outputs stay in a register, and each 16 make the tables anew"),
        ]
    }};
    (@ $isa:ident, $name:literal, $cycles:expr, $columns:literal, $rows_first:literal, $run:expr, $reason:literal) => {
        $crate::kernels::KernelInfo {
            name: $name,
            isa: $crate::isa::Isa::$isa,
            family: $crate::kernels::Family::Ternary,
            tiles: $crate::kernels::tsar::OUTPUTS / $crate::weights::TILE,
            tokens: 1,
            cycles: $cycles,
            reason: $reason,
            run: $crate::kernels::Run::Published($crate::kernels::tsar::Variant {
                tile_columns: $columns,
                rows_first: $rows_first,
                run: $run,
            }),
        }
    };
}
use variants;

/// How many kernels an instruction set has.
const VARIANTS: usize = 4;

/// The kernels of an instruction set. They run when they are asked for by name and are not in the choice otherwise.
pub(super) fn kernels(isa: Isa) -> &'static [KernelInfo; VARIANTS] {
    match isa {
        Isa::Plain => &plain::KERNELS,
        #[cfg(any(target_arch = "aarch64", test))]
        Isa::Neon => &neon::KERNELS,
        #[cfg(target_arch = "x86_64")]
        // All x86 instruction sets above the baseline have AVX2.
        _ if super::avx2::Simd::is_available() => &avx2::KERNELS,
        _ => &plain::KERNELS,
    }
}
