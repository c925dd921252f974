//! The same kernels on plain arrays, so that they are tested on every CPU.

use half::f16;

use super::super::{Family, Job, KernelInfo, Outputs, Run};
use super::Lanes;
use crate::isa::Isa;
use crate::weights::TILE;

/// `N` tiles to a vector.
#[derive(Clone, Copy)]
struct Emulated<const N: usize>;

impl<const N: usize> Lanes for Emulated<N> {
    type Int = [[i32; TILE]; N];
    type Float = [[f32; TILE]; N];
    const TILES: usize = N;

    fn load(self, tiles: &[&[u8]], at: usize) -> Self::Int {
        std::array::from_fn(|tile| {
            let bytes = &tiles[tile][at..at + 4 * TILE];
            std::array::from_fn(|row| i32::from_le_bytes(bytes.as_chunks().0[row]))
        })
    }
    fn splat(self, x: i32) -> Self::Int {
        [[x; TILE]; N]
    }
    fn and(self, a: Self::Int, b: Self::Int) -> Self::Int {
        zip(a, b, |a, b| a & b)
    }
    fn xor(self, a: Self::Int, b: Self::Int) -> Self::Int {
        zip(a, b, |a, b| a ^ b)
    }
    fn add(self, a: Self::Int, b: Self::Int) -> Self::Int {
        zip(a, b, |a, b| a + b)
    }
    fn sub(self, a: Self::Int, b: Self::Int) -> Self::Int {
        zip(a, b, |a, b| a - b)
    }
    fn mul(self, a: Self::Int, b: Self::Int) -> Self::Int {
        zip(a, b, |a, b| a * b)
    }
    fn shift<const BITS: u32>(self, a: Self::Int) -> Self::Int {
        a.map(|tile| tile.map(|lane| (lane as u32 >> BITS) as i32))
    }
    fn dot(self, sum: Self::Int, codes: Self::Int, activations: Self::Int) -> Self::Int {
        let products = zip(codes, activations, |codes, activations| {
            let pairs = codes.to_le_bytes().into_iter().zip(activations.to_le_bytes());
            pairs.map(|(code, activation)| i32::from(code) * i32::from(activation as i8)).sum()
        });
        zip(sum, products, |sum, product| sum + product)
    }
    fn bytes(self, tiles: &[&[u8]], at: usize) -> Self::Int {
        std::array::from_fn(|tile| std::array::from_fn(|row| i32::from(tiles[tile][at + row])))
    }
    fn halves(self, tiles: &[&[u8]], at: usize) -> Self::Float {
        let half = |tile: &[u8], row| f16::from_ne_bytes(tile[at..].as_chunks().0[row]).to_f32();
        std::array::from_fn(|tile| std::array::from_fn(|row| half(tiles[tile], row)))
    }
    fn floats(self, tiles: &[&[u8]], at: usize) -> Self::Float {
        let float = |tile: &[u8], row| f32::from_ne_bytes(tile[at..].as_chunks().0[row]);
        std::array::from_fn(|tile| std::array::from_fn(|row| float(tiles[tile], row)))
    }
    fn splat_float(self, x: f32) -> Self::Float {
        [[x; TILE]; N]
    }
    fn to_float(self, a: Self::Int) -> Self::Float {
        a.map(|tile| tile.map(|lane| lane as f32))
    }
    fn mul_float(self, a: Self::Float, b: Self::Float) -> Self::Float {
        zip(a, b, |a, b| a * b)
    }
    fn add_float(self, a: Self::Float, b: Self::Float) -> Self::Float {
        zip(a, b, |a, b| a + b)
    }
    fn store(self, a: Self::Float, tile: usize) -> Outputs {
        Outputs(a[tile])
    }
    fn prefetch(self, _: *const u8) {}
}

fn zip<T: Copy, const N: usize>(a: [[T; TILE]; N], b: [[T; TILE]; N], op: impl Fn(T, T) -> T) -> [[T; TILE]; N] {
    std::array::from_fn(|tile| std::array::from_fn(|row| op(a[tile][row], b[tile][row])))
}

const fn kernel(family: Family, tiles: usize, tokens: usize, run: fn(&Job<'_>, &mut [Outputs])) -> KernelInfo {
    let (name, reason, isa) = ("emulated-vnni", "tests", Isa::Avx512);
    KernelInfo { name, isa, family, tiles, tokens, cycles: 1.0, reason, run: Run::Tiles(run) }
}

/// Every form that the tables of AVX-VNNI and AVX-512 have: by family; then by tokens, then by tiles, both falling.
pub(in super::super) static KERNELS: [KernelInfo; 12] = [
    kernel(Family::Ternary, 4, 4, |job, out| super::ternary::<_, 2, 4>(Emulated::<2>, job, out)),
    kernel(Family::Ternary, 1, 4, |job, out| super::ternary::<_, 1, 4>(Emulated::<1>, job, out)),
    kernel(Family::Ternary, 2, 1, |job, out| super::ternary::<_, 2, 1>(Emulated::<1>, job, out)),
    kernel(Family::Ternary, 1, 1, |job, out| super::ternary::<_, 1, 1>(Emulated::<1>, job, out)),
    kernel(Family::Int4, 4, 4, |job, out| super::int4::<_, 2, 4>(Emulated::<2>, job, out)),
    kernel(Family::Int4, 1, 4, |job, out| super::int4::<_, 1, 4>(Emulated::<1>, job, out)),
    kernel(Family::Int4, 2, 1, |job, out| super::int4::<_, 2, 1>(Emulated::<1>, job, out)),
    kernel(Family::Int4, 1, 1, |job, out| super::int4::<_, 1, 1>(Emulated::<1>, job, out)),
    kernel(Family::Int8, 4, 4, |job, out| super::int8::<_, 2, 4>(Emulated::<2>, job, out)),
    kernel(Family::Int8, 1, 4, |job, out| super::int8::<_, 1, 4>(Emulated::<1>, job, out)),
    kernel(Family::Int8, 2, 1, |job, out| super::int8::<_, 2, 1>(Emulated::<1>, job, out)),
    kernel(Family::Int8, 1, 1, |job, out| super::int8::<_, 1, 1>(Emulated::<1>, job, out)),
];
