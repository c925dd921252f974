//! aarch64 kernels for CPUs that have `sdot` (ARMv8.2's dot product, all big cores since 2018): four products of bytes
//! are added to an int32 in one instruction.
//!
//! A lane of the layout's vectors is four columns of one row, which is what the instruction adds up: no sum is flushed and
//! nothing is added across lanes.

use super::lanes::{I8, I32, Lanes};
use super::{Dot, Family, KernelInfo, Run, Sums, blocks, halves, kernel};
use crate::activations::CodeBlock;
use crate::isa::Isa;

/// By family; then by tokens, falling. Costs are counted for two `sdot` in a cycle.
pub(in crate::kernels) static KERNELS: [KernelInfo; 9] = [
    kernel!(
        "neon-dot-ternary-8",
        Ternary,
        8,
        11.0,
        blocks::ternary::<NeonDot, 8>,
        "16 sums in registers; codes unpacked once for 8 tokens"
    ),
    kernel!("neon-dot-ternary-4", Ternary, 4, 13.0, blocks::ternary::<NeonDot, 4>, "codes unpacked once for 4 tokens"),
    kernel!(
        "neon-dot-ternary-1",
        Ternary,
        1,
        16.0,
        blocks::ternary::<NeonDot, 1>,
        "four products and their sum in one instruction"
    ),
    kernel!("neon-dot-int4-4", Int4, 4, 17.0, blocks::int4::<NeonDot, 4>, "codes unpacked once for 4 tokens"),
    kernel!(
        "neon-dot-int4-1",
        Int4,
        1,
        22.0,
        blocks::int4::<NeonDot, 1>,
        "four products and their sum in one instruction"
    ),
    kernel!("neon-dot-int8-4", Int8, 4, 16.0, blocks::int8::<NeonDot, 4>, "codes loaded once for 4 tokens"),
    kernel!("neon-dot-int8-2", Int8, 2, 18.0, blocks::int8::<NeonDot, 2>, "codes loaded once for 2 tokens"),
    kernel!("neon-dot-int8-1", Int8, 1, 20.0, blocks::int8::<NeonDot, 1>, "bound by memory"),
    kernel!("neon-dense", Dense, 1, 80.0, blocks::dense, "plain code, which the compiler turns into NEON"),
];

/// Whether the CPU has the instruction.
pub(in crate::kernels) fn is_available() -> bool {
    #[cfg(target_arch = "aarch64")]
    let available = std::arch::is_aarch64_feature_detected!("dotprod");
    #[cfg(not(target_arch = "aarch64"))]
    let available = false;
    available
}

/// Integer sums by `sdot`.
pub(super) struct NeonDot;

/// The sums of a tile: of four rows in each register.
type Rows = [I32; 2];

impl Dot for NeonDot {
    #[inline(always)]
    fn ternary<const T: usize>(codes: &[[u8; 64]], activations: [&[CodeBlock]; T]) -> [Sums; T] {
        let lanes = Lanes::new();
        let mut sums = [[lanes.zero32(); 2]; T];
        for (block, codes) in codes.iter().enumerate() {
            let activations = activations.map(|token| &token[block]);
            for (half, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
                let a = |field: usize| activations.map(|token| token[4 * half + field]);
                add_products(lanes, halves(codes).map(|c| lanes.field::<0>(c, 3)), a(0), &mut sums);
                add_products(lanes, halves(codes).map(|c| lanes.field::<2>(c, 3)), a(1), &mut sums);
                add_products(lanes, halves(codes).map(|c| lanes.field::<4>(c, 3)), a(2), &mut sums);
                add_products(lanes, halves(codes).map(|c| lanes.field::<6>(c, 3)), a(3), &mut sums);
            }
        }
        sums.map(|sums| lanes.rows(sums))
    }

    #[inline(always)]
    fn int4<const T: usize>(codes: &[u8; 128], activations: [&CodeBlock; T]) -> [Sums; T] {
        let lanes = Lanes::new();
        let mut sums = [[lanes.zero32(); 2]; T];
        for (vector, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            let a = |field: usize| activations.map(|token| token[2 * vector + field]);
            add_products(lanes, halves(codes).map(|c| lanes.field::<0>(c, 15)), a(0), &mut sums);
            add_products(lanes, halves(codes).map(|c| lanes.field::<4>(c, 15)), a(1), &mut sums);
        }
        sums.map(|sums| lanes.rows(sums))
    }

    #[inline(always)]
    fn int8<const T: usize>(codes: &[u8; 256], activations: [&CodeBlock; T]) -> [Sums; T] {
        let lanes = Lanes::new();
        let mut sums = [[lanes.zero32(); 2]; T];
        for (vector, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            let a = activations.map(|token| token[vector]);
            add_products(lanes, halves(codes).map(|c| lanes.signed(c)), a, &mut sums);
        }
        sums.map(|sums| lanes.rows(sums))
    }
}

/// Adds the products of a vector's codes with four activations of each token.
#[inline(always)]
fn add_products<const T: usize>(lanes: Lanes, codes: [I8; 2], activations: [i32; T], sums: &mut [Rows; T]) {
    for (sums, activations) in sums.iter_mut().zip(activations) {
        let activations = lanes.broadcast(activations);
        for (sums, codes) in sums.iter_mut().zip(codes) {
            *sums = lanes.dot(*sums, codes, activations);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Neon;
    use super::*;

    /// Bytes that look random, half of them extreme.
    fn bytes<const N: usize>(seed: u32, least: i8, most: i8) -> [u8; N] {
        let mut state = seed;
        std::array::from_fn(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (pick, value) = (state >> 30, (state >> 16) as i8);
            (match pick {
                0 => least,
                1 => most,
                _ => value.clamp(least, most),
            }) as u8
        })
    }

    #[test]
    fn sums_are_those_of_the_other_kernels() {
        // Elsewhere the emulated instruction is checked; on aarch64 only where the CPU has it.
        if cfg!(target_arch = "aarch64") && !is_available() {
            return;
        }
        for seed in 0..200 {
            let activations: [CodeBlock; 4] = bytemuck::cast(bytes::<128>(seed, -127, 127));
            let tokens = activations.each_ref();
            let codes = bytes::<256>(seed + 1, -127, 127);
            assert_eq!(NeonDot::int8(&codes, tokens), Neon::int8(&codes, tokens));
            let nibbles = bytes::<128>(seed + 2, -128, 127);
            assert_eq!(NeonDot::int4(&nibbles, tokens), Neon::int4(&nibbles, tokens));
            // Pairs of bits are 0..=2.
            let ternary: [[u8; 64]; 4] =
                bytemuck::cast(bytes::<256>(seed + 3, -128, 127).map(|byte| byte & !(byte >> 1 & 0x55)));
            let rows = [&activations[..], &activations[..]];
            assert_eq!(NeonDot::ternary(&ternary, rows), Neon::ternary(&ternary, rows));
        }
    }
}
