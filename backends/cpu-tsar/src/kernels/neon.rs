//! aarch64 kernels for every CPU that has NEON: `smlal` and `sadalp`, no dot product instructions (those are in `dot`).
//!
//! A vector of the layout is two registers of four rows. The eight bytes of two rows are multiplied with
//! the broadcast activations into eight int16, which are added up before they are widened.

pub(super) mod dot;
#[cfg(target_arch = "aarch64")]
pub(super) mod lanes;
/// The instructions, one by one in plain code: the kernels' tests run everywhere.
#[cfg(not(target_arch = "aarch64"))]
#[path = "neon/emulated.rs"]
pub(super) mod lanes;

use self::lanes::Lanes;
use super::blocks::{self, Dot, Sums};
use super::{Family, KernelInfo, Run};
use crate::activations::CodeBlock;
use crate::isa::Isa;
use crate::weights::TILE;

macro_rules! kernel {
    ($name:literal, $family:ident, $tokens:literal, $cycles:literal, $run:expr, $reason:literal) => {
        KernelInfo {
            name: $name,
            isa: Isa::Neon,
            family: Family::$family,
            tiles: 1,
            tokens: $tokens,
            cycles: $cycles,
            reason: $reason,
            run: Run::Tiles($run),
        }
    };
}

use kernel;

/// By family; then by tokens, falling.
pub(super) static KERNELS: [KernelInfo; 7] = [
    kernel!(
        "neon-ternary-4",
        Ternary,
        4,
        24.0,
        blocks::ternary::<Neon, 4>,
        "16 sums in registers; codes unpacked once for 4 tokens"
    ),
    kernel!(
        "neon-ternary-1",
        Ternary,
        1,
        32.0,
        blocks::ternary::<Neon, 1>,
        "one tile has sums enough to hide the latency"
    ),
    kernel!(
        "neon-int4-4",
        Int4,
        4,
        34.0,
        blocks::int4::<Neon, 4>,
        "16 sums in registers; codes unpacked once for 4 tokens"
    ),
    kernel!("neon-int4-1", Int4, 1, 42.0, blocks::int4::<Neon, 1>, "one tile has sums enough to hide the latency"),
    kernel!(
        "neon-int8-2",
        Int8,
        2,
        36.0,
        blocks::int8::<Neon, 2>,
        "8 sums and 8 products in registers; codes loaded once for 2 tokens"
    ),
    kernel!("neon-int8-1", Int8, 1, 40.0, blocks::int8::<Neon, 1>, "bound by memory"),
    kernel!("neon-dense", Dense, 1, 80.0, blocks::dense, "plain code, which the compiler turns into NEON"),
];

/// Integer sums by NEON.
struct Neon;

/// Int16 sums of a tile: in register `p` those of rows `2p` (lanes 0 to 3) and `2p + 1`.
type Pairs = [lanes::I16; TILE / 2];

impl Dot for Neon {
    #[inline(always)]
    fn ternary<const T: usize>(codes: &[[u8; 64]], activations: [&[CodeBlock]; T]) -> [Sums; T] {
        let lanes = Lanes::new();
        let mut sums = [[0; TILE]; T];
        let blocks = codes.len();
        let mut first = 0;
        while first < blocks {
            // A lane gets 8 products of at most 2 · 127 from a block: those of 16 blocks fit in int16.
            let last = (first + 16).min(blocks);
            let mut pairs = [[lanes.zero(); TILE / 2]; T];
            for block in first..last {
                let activations = activations.map(|token| &token[block]);
                for (half, codes) in codes[block].as_chunks::<32>().0.iter().enumerate() {
                    let a = |field: usize| activations.map(|token| token[4 * half + field]);
                    add_products(lanes, halves(codes).map(|c| lanes.field::<0>(c, 3)), a(0), &mut pairs);
                    add_products(lanes, halves(codes).map(|c| lanes.field::<2>(c, 3)), a(1), &mut pairs);
                    add_products(lanes, halves(codes).map(|c| lanes.field::<4>(c, 3)), a(2), &mut pairs);
                    add_products(lanes, halves(codes).map(|c| lanes.field::<6>(c, 3)), a(3), &mut pairs);
                }
            }
            for (sums, pairs) in sums.iter_mut().zip(&pairs) {
                let added = rows(lanes, pairs);
                sums.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
            }
            first = last;
        }
        sums
    }

    #[inline(always)]
    fn int4<const T: usize>(codes: &[u8; 128], activations: [&CodeBlock; T]) -> [Sums; T] {
        let lanes = Lanes::new();
        // A lane gets 8 products of at most 15 · 127.
        let mut pairs = [[lanes.zero(); TILE / 2]; T];
        for (vector, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            let a = |field: usize| activations.map(|token| token[2 * vector + field]);
            add_products(lanes, halves(codes).map(|c| lanes.field::<0>(c, 15)), a(0), &mut pairs);
            add_products(lanes, halves(codes).map(|c| lanes.field::<4>(c, 15)), a(1), &mut pairs);
        }
        pairs.map(|pairs| rows(lanes, &pairs))
    }

    #[inline(always)]
    fn int8<const T: usize>(codes: &[u8; 256], activations: [&CodeBlock; T]) -> [Sums; T] {
        let lanes = Lanes::new();
        let mut sums = [[lanes.zero32(); TILE / 2]; T];
        for (two, codes) in codes.as_chunks::<64>().0.iter().enumerate() {
            // A lane gets 2 products of at most 127 · 127.
            let mut pairs = [[lanes.zero(); TILE / 2]; T];
            for (vector, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
                let a = activations.map(|token| token[2 * two + vector]);
                add_products(lanes, halves(codes).map(|c| lanes.signed(c)), a, &mut pairs);
            }
            for (sums, pairs) in sums.iter_mut().zip(pairs) {
                for (sum, pairs) in sums.iter_mut().zip(pairs) {
                    *sum = lanes.add_pairs(*sum, pairs);
                }
            }
        }
        sums.map(|sums| joined(lanes, sums))
    }
}

/// The two registers of a vector.
#[inline(always)]
fn halves(vector: &[u8; 32]) -> [&[u8; 16]; 2] {
    let halves = vector.as_chunks().0;
    [&halves[0], &halves[1]]
}

/// Adds the products of a vector's codes with four activations of each token.
#[inline(always)]
fn add_products<const T: usize>(lanes: Lanes, codes: [lanes::I8; 2], activations: [i32; T], pairs: &mut [Pairs; T]) {
    for (pairs, activations) in pairs.iter_mut().zip(activations) {
        let activations = lanes.broadcast(activations);
        for (half, &codes) in codes.iter().enumerate() {
            pairs[2 * half] = lanes.multiply_add_low(pairs[2 * half], codes, activations);
            pairs[2 * half + 1] = lanes.multiply_add_high(pairs[2 * half + 1], codes, activations);
        }
    }
}

/// The sum of each row.
#[inline(always)]
fn rows(lanes: Lanes, pairs: &Pairs) -> Sums {
    joined(lanes, pairs.map(|pairs| lanes.add_pairs(lanes.zero32(), pairs)))
}

/// The sum of each row, of which register `p` has two parts each for rows `2p` and `2p + 1`.
#[inline(always)]
fn joined(lanes: Lanes, parts: [lanes::I32; TILE / 2]) -> Sums {
    let low = lanes.add_across(parts[0], parts[1]);
    let high = lanes.add_across(parts[2], parts[3]);
    std::array::from_fn(|row| if row < 4 { low[row] } else { high[row - 4] })
}
