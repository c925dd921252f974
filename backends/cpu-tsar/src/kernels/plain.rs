//! Kernels in plain code, for CPUs that have nothing better and as the check on those that do.

use super::blocks::{self, Dot, Sums};
use super::{Family, KernelInfo, Run};
use crate::activations::CodeBlock;
use crate::isa::Isa;
use crate::weights::TILE;

/// By family.
pub(super) static KERNELS: [KernelInfo; 4] = [
    KernelInfo {
        name: "plain-ternary",
        isa: Isa::Plain,
        family: Family::Ternary,
        tiles: 1,
        tokens: 1,
        cycles: 400.0,
        reason: "one tile, so that its sums stay in registers where there are few",
        run: Run::Tiles(blocks::ternary::<Plain, 1>),
    },
    KernelInfo {
        name: "plain-int4",
        isa: Isa::Plain,
        family: Family::Int4,
        tiles: 1,
        tokens: 1,
        cycles: 400.0,
        reason: "one tile, so that its sums stay in registers where there are few",
        run: Run::Tiles(blocks::int4::<Plain, 1>),
    },
    KernelInfo {
        name: "plain-int8",
        isa: Isa::Plain,
        family: Family::Int8,
        tiles: 1,
        tokens: 1,
        cycles: 500.0,
        reason: "one tile, so that its sums stay in registers where there are few",
        run: Run::Tiles(blocks::int8::<Plain, 1>),
    },
    KernelInfo {
        name: "plain-dense",
        isa: Isa::Plain,
        family: Family::Dense,
        tiles: 1,
        tokens: 1,
        cycles: 900.0,
        reason: "32 partial sums, which the compiler keeps in vectors",
        run: Run::Tiles(blocks::dense),
    },
];

/// Integer sums by the compiler.
struct Plain;

impl Dot for Plain {
    fn ternary<const T: usize>(codes: &[[u8; 64]], activations: [&[CodeBlock]; T]) -> [Sums; T] {
        let mut sums = [[0; TILE]; T];
        for (sums, activations) in sums.iter_mut().zip(activations) {
            for (codes, activations) in codes.iter().zip(activations) {
                add_block::<2, 64>(codes, activations, |code| code as i16, sums);
            }
        }
        sums
    }

    fn int4<const T: usize>(codes: &[u8; 128], activations: [&CodeBlock; T]) -> [Sums; T] {
        activations.map(|activations| {
            let mut sums = [0; TILE];
            add_block::<4, 128>(codes, activations, |code| code as i16, &mut sums);
            sums
        })
    }

    fn int8<const T: usize>(codes: &[u8; 256], activations: [&CodeBlock; T]) -> [Sums; T] {
        activations.map(|activations| {
            let mut sums = [0; TILE];
            add_block::<8, 256>(codes, activations, |code| i16::from(code as i8), &mut sums);
            sums
        })
    }
}

/// Adds the products of a block of `BYTES` codes of `BITS`.
#[inline(always)]
fn add_block<const BITS: usize, const BYTES: usize>(
    codes: &[u8; BYTES],
    activations: &CodeBlock,
    value: impl Fn(u8) -> i16,
    sums: &mut Sums,
) {
    let fields = 8 / BITS;
    for (vector, activations) in codes.as_chunks::<{ 4 * TILE }>().0.iter().zip(activations.chunks(fields)) {
        for (field, activations) in activations.iter().enumerate() {
            let a: [i8; 4] = bytemuck::cast(*activations);
            for (sum, codes) in sums.iter_mut().zip(vector.as_chunks::<4>().0) {
                let product = |i: usize| {
                    let code = codes[i] >> (field * BITS) & (255 >> (8 - BITS));
                    i32::from(value(code)) * i32::from(a[i])
                };
                *sum += product(0) + product(1) + product(2) + product(3);
            }
        }
    }
}
