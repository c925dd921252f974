//! Kernels for CPUs that multiply unsigned bytes with signed ones and add four products to an int32 in one
//! instruction (`vpdpbusd`): nothing saturates, nothing is flushed, and what AVX2 does in three instructions is one.
//!
//! The kernels are written once over [`Lanes`]: 8 lanes of a tile (AVX-VNNI: Intel's hybrid CPUs since Alder Lake) or 16
//! lanes of two tiles side by side (AVX-512 VNNI: AMD since Zen 4, Intel servers), for which activations are still
//! one broadcast. The float steps are those of every other kernel.

// Registers, codes and tokens go by the same index, and iterators would bring closures (see `avx2`).
#![allow(clippy::needless_range_loop)]

mod avx;
mod avx512;
#[cfg(test)]
pub(super) mod emulated;

use trine_backend::{Format, ZeroKind};

pub(super) use {avx::KERNELS as AVX, avx::is_available as has_avx};
pub(super) use {avx512::KERNELS as AVX512, avx512::is_available as has_avx512};

use super::{AHEAD, Job, Outputs};
use crate::activations::Token;
use crate::weights::TILE;

/// Vectors of an int32 or an f32 for each row of one tile or of two.
pub(super) trait Lanes: Copy {
    /// int32 lanes, or four bytes each.
    type Int: Copy;
    /// f32 lanes.
    type Float: Copy;
    /// Tiles of a vector: 1 or 2.
    const TILES: usize;

    /// 32 bytes at `at` of each tile.
    fn load(self, tiles: &[&[u8]], at: usize) -> Self::Int;
    /// The same int32 in all lanes.
    fn splat(self, x: i32) -> Self::Int;
    fn and(self, a: Self::Int, b: Self::Int) -> Self::Int;
    fn xor(self, a: Self::Int, b: Self::Int) -> Self::Int;
    fn add(self, a: Self::Int, b: Self::Int) -> Self::Int;
    fn sub(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lane by lane, the lower 32 bits.
    fn mul(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Shifts lanes right by 0, 2, 4 or 6 bits.
    fn shift<const BITS: u32>(self, a: Self::Int) -> Self::Int;
    /// `sum + Σ code · activation` over the four bytes of a lane: unsigned codes, signed activations.
    fn dot(self, sum: Self::Int, codes: Self::Int, activations: Self::Int) -> Self::Int;
    /// Eight bytes at `at` of each tile, as int32.
    fn bytes(self, tiles: &[&[u8]], at: usize) -> Self::Int;
    /// Eight f16 at `at` of each tile.
    fn halves(self, tiles: &[&[u8]], at: usize) -> Self::Float;
    /// Eight f32 at `at` of each tile.
    fn floats(self, tiles: &[&[u8]], at: usize) -> Self::Float;
    /// The same f32 in all lanes.
    fn splat_float(self, x: f32) -> Self::Float;
    fn to_float(self, a: Self::Int) -> Self::Float;
    fn mul_float(self, a: Self::Float, b: Self::Float) -> Self::Float;
    fn add_float(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// The lanes of one of the tiles.
    fn store(self, a: Self::Float, tile: usize) -> Outputs;
    /// Asks for the cache line at an address, which need not exist.
    fn prefetch(self, at: *const u8);
}

/// The tiles of `R` vectors.
struct Tiles<'a, const R: usize>([[&'a [u8]; 2]; R]);

impl<'a, const R: usize> Tiles<'a, R> {
    #[inline(always)]
    fn of<L: Lanes>(job: &Job<'a>) -> Self {
        let mut tiles = [[&[][..]; 2]; R];
        for r in 0..R {
            for tile in 0..L::TILES {
                tiles[r][tile] = job.tile(r * L::TILES + tile);
            }
        }
        Tiles(tiles)
    }

    /// The tiles of a vector.
    #[inline(always)]
    fn get<L: Lanes>(&self, r: usize) -> &[&'a [u8]] {
        &self.0[r][..L::TILES]
    }

    /// Asks for what the tiles' streams come to when all have gone [`AHEAD`] from `at`: with one token every weight is used once, straight from
    /// memory.
    #[inline(always)]
    fn prefetch_next<L: Lanes>(&self, lanes: L, at: usize) {
        for r in 0..R {
            for tile in 0..L::TILES {
                lanes.prefetch(self.0[r][tile].as_ptr().wrapping_add(at + AHEAD / (R * L::TILES)));
            }
        }
    }
}

/// The tokens of a job.
#[inline(always)]
fn tokens<'a, const T: usize>(job: &Job<'a>) -> [Token<'a>; T] {
    let mut tokens = [job.tokens.token(0); T];
    for t in 1..T {
        tokens[t] = job.tokens.token(t);
    }
    for t in 0..T {
        let blocks = job.layout.blocks;
        tokens[t].codes = &tokens[t].codes[..blocks];
        tokens[t].scales = &tokens[t].scales[..blocks];
        tokens[t].sums = &tokens[t].sums[..blocks];
    }
    tokens
}

/// Writes `[tile][token]`.
#[inline(always)]
fn put<L: Lanes, const R: usize, const T: usize>(lanes: L, sums: &[[L::Float; T]; R], out: &mut [Outputs]) {
    for r in 0..R {
        for tile in 0..L::TILES {
            for t in 0..T {
                out[(r * L::TILES + tile) * T + t] = lanes.store(sums[r][t], tile);
            }
        }
    }
}

/// Ternary: codes t + 1 in 2 bits. An instruction's sum takes five cycles to be there for the next: with one token the
/// four codes of a byte have a sum each, with several tokens there are sums enough.
#[inline(always)]
pub(super) fn ternary<L: Lanes, const R: usize, const T: usize>(lanes: L, job: &Job<'_>, out: &mut [Outputs]) {
    let (tiles, tokens) = (Tiles::<R>::of::<L>(job), tokens::<T>(job));
    let mut sums = [[[lanes.splat(0); 4]; T]; R];
    for t in 0..T {
        for r in 0..R {
            sums[r][t][0] = lanes.splat(-tokens[t].total);
        }
    }
    for block in 0..job.layout.blocks {
        let at = job.layout.header + block * job.layout.block_bytes;
        if T == 1 {
            tiles.prefetch_next(lanes, at);
        }
        for half in 0..2 {
            let mut codes = [lanes.splat(0); R];
            for r in 0..R {
                codes[r] = lanes.load(tiles.get::<L>(r), at + 32 * half);
            }
            field::<L, 0, R, T>(lanes, &codes, &tokens, block, 4 * half, &mut sums);
            field::<L, 2, R, T>(lanes, &codes, &tokens, block, 4 * half + 1, &mut sums);
            field::<L, 4, R, T>(lanes, &codes, &tokens, block, 4 * half + 2, &mut sums);
            field::<L, 6, R, T>(lanes, &codes, &tokens, block, 4 * half + 3, &mut sums);
        }
    }
    let mut scaled = [[lanes.splat_float(0.0); T]; R];
    for r in 0..R {
        let scales = lanes.floats(tiles.get::<L>(r), 0);
        for t in 0..T {
            let scale = lanes.mul_float(scales, lanes.splat_float(tokens[t].scales[0]));
            let [a, b, c, d] = sums[r][t];
            let sum = if T == 1 { lanes.add(lanes.add(a, b), lanes.add(c, d)) } else { a };
            scaled[r][t] = lanes.mul_float(lanes.to_float(sum), scale);
        }
    }
    put(lanes, &scaled, out);
}

/// Adds the products of the codes at bits `SHIFT` and `SHIFT + 1` of each byte.
#[inline(always)]
fn field<L: Lanes, const SHIFT: u32, const R: usize, const T: usize>(
    lanes: L,
    codes: &[L::Int; R],
    tokens: &[Token<'_>; T],
    block: usize,
    dword: usize,
    sums: &mut [[[L::Int; 4]; T]; R],
) {
    let chain = if T == 1 { SHIFT as usize / 2 } else { 0 };
    let mut fields = *codes;
    for r in 0..R {
        fields[r] = lanes.and(lanes.shift::<SHIFT>(codes[r]), lanes.splat(0x0303_0303));
    }
    for t in 0..T {
        let activations = lanes.splat(tokens[t].codes[block][dword]);
        for r in 0..R {
            sums[r][t][chain] = lanes.dot(sums[r][t][chain], fields[r], activations);
        }
    }
}

/// INT4: codes of 0..=15 in 4 bits.
#[inline(always)]
pub(super) fn int4<L: Lanes, const R: usize, const T: usize>(lanes: L, job: &Job<'_>, out: &mut [Outputs]) {
    match job.layout.format {
        Format::Int4 { zero: ZeroKind::Point, .. } => int4_groups::<L, { 3 * TILE }, R, T>(lanes, job, out),
        Format::Int4 { zero: ZeroKind::Min, .. } => int4_groups::<L, { 4 * TILE }, R, T>(lanes, job, out),
        _ => int4_groups::<L, { 2 * TILE }, R, T>(lanes, job, out),
    }
}

/// The kind of zero is known by the size of the header, `H`.
#[inline(always)]
fn int4_groups<L: Lanes, const H: usize, const R: usize, const T: usize>(lanes: L, job: &Job<'_>, out: &mut [Outputs]) {
    let (tiles, tokens) = (Tiles::<R>::of::<L>(job), tokens::<T>(job));
    let mut scales = [lanes.splat_float(0.0); R];
    let mut minima = scales;
    let mut points = [lanes.splat(8); R];
    let mut sums = [[lanes.splat_float(0.0); T]; R];
    let (mut at, mut left_of_group) = (0, 0);
    for block in 0..job.layout.blocks {
        if left_of_group == 0 {
            for r in 0..R {
                scales[r] = lanes.halves(tiles.get::<L>(r), at);
                if H == 3 * TILE {
                    points[r] = lanes.bytes(tiles.get::<L>(r), at + 2 * TILE);
                }
                if H == 4 * TILE {
                    minima[r] = lanes.halves(tiles.get::<L>(r), at + 2 * TILE);
                }
            }
            at += H;
            left_of_group = job.layout.group_blocks;
        }
        left_of_group -= 1;
        if T == 1 {
            tiles.prefetch_next(lanes, at);
            tiles.prefetch_next(lanes, at + 64);
        }
        let products = int4_block::<L, R, T>(lanes, &tiles, &tokens, block, at);
        for t in 0..T {
            let scale = lanes.splat_float(tokens[t].scales[block]);
            let sum = lanes.splat(tokens[t].sums[block]);
            for r in 0..R {
                let mut product = products[r][t];
                if H != 4 * TILE {
                    product = lanes.sub(product, lanes.mul(points[r], sum));
                }
                let scaled = lanes.mul_float(lanes.to_float(product), lanes.mul_float(scales[r], scale));
                sums[r][t] = lanes.add_float(sums[r][t], scaled);
                if H == 4 * TILE {
                    let scaled = lanes.mul_float(lanes.to_float(sum), lanes.mul_float(minima[r], scale));
                    sums[r][t] = lanes.add_float(sums[r][t], scaled);
                }
            }
        }
        at += job.layout.block_bytes;
    }
    put(lanes, &sums, out);
}

#[inline(always)]
fn int4_block<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    tiles: &Tiles<'_, R>,
    tokens: &[Token<'_>; T],
    block: usize,
    at: usize,
) -> [[L::Int; T]; R] {
    let mask = lanes.splat(0x0f0f_0f0f);
    let mut sums = [[lanes.splat(0); T]; R];
    for vector in 0..4 {
        let mut low = [mask; R];
        let mut high = [mask; R];
        for r in 0..R {
            let codes = lanes.load(tiles.get::<L>(r), at + 32 * vector);
            low[r] = lanes.and(codes, mask);
            high[r] = lanes.and(lanes.shift::<4>(codes), mask);
        }
        for t in 0..T {
            let activations = &tokens[t].codes[block];
            let (first, second) = (lanes.splat(activations[2 * vector]), lanes.splat(activations[2 * vector + 1]));
            for r in 0..R {
                sums[r][t] = lanes.dot(sums[r][t], low[r], first);
                sums[r][t] = lanes.dot(sums[r][t], high[r], second);
            }
        }
    }
    sums
}

/// INT8: signed codes, made unsigned by adding 128 to each, which 128 times the activations' sum takes back.
#[inline(always)]
pub(super) fn int8<L: Lanes, const R: usize, const T: usize>(lanes: L, job: &Job<'_>, out: &mut [Outputs]) {
    let (tiles, tokens) = (Tiles::<R>::of::<L>(job), tokens::<T>(job));
    let sign = lanes.splat(i32::from_ne_bytes([0x80; 4]));
    let mut scales = [lanes.splat_float(0.0); R];
    let mut sums = [[lanes.splat_float(0.0); T]; R];
    let (mut at, mut left_of_group) = (0, 0);
    for block in 0..job.layout.blocks {
        if left_of_group == 0 {
            for r in 0..R {
                scales[r] = lanes.halves(tiles.get::<L>(r), at);
            }
            at += job.layout.header;
            left_of_group = job.layout.group_blocks;
        }
        left_of_group -= 1;
        if T == 1 {
            for line in 0..4 {
                tiles.prefetch_next(lanes, at + 64 * line);
            }
        }
        let mut products = [[lanes.splat(0); T]; R];
        for t in 0..T {
            for r in 0..R {
                products[r][t] = lanes.splat(-128 * tokens[t].sums[block]);
            }
        }
        for vector in 0..8 {
            let mut codes = [sign; R];
            for r in 0..R {
                codes[r] = lanes.xor(lanes.load(tiles.get::<L>(r), at + 32 * vector), sign);
            }
            for t in 0..T {
                let activations = lanes.splat(tokens[t].codes[block][vector]);
                for r in 0..R {
                    products[r][t] = lanes.dot(products[r][t], codes[r], activations);
                }
            }
        }
        for t in 0..T {
            let scale = lanes.splat_float(tokens[t].scales[block]);
            for r in 0..R {
                let scaled = lanes.mul_float(lanes.to_float(products[r][t]), lanes.mul_float(scales[r], scale));
                sums[r][t] = lanes.add_float(sums[r][t], scaled);
            }
        }
        at += job.layout.block_bytes;
    }
    put(lanes, &sums, out);
}
