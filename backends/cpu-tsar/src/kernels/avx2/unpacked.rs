//! INT4 products of many tokens: codes are unpacked once for all of them.
//!
//! A panel of columns is copied to where it stays in the L1 cache: the codes of two tiles a byte each, with their scales as
//! f32, and the tokens four by four, so that what a step needs lies side by side. The sums of a pair of tiles and four
//! tokens then take two loads and four broadcasts for 16 multiplications, and nothing else but the additions. From one
//! panel to the next the float sums wait in the output, so that each is still added to in the order of the blocks.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use trine_backend::{Format, ZeroKind};

use super::{Simd, and, halves, load, prefetch_line};
use crate::kernels::{Job, LANES, Outputs, Workspace};
use crate::pool::chunk;
use crate::weights::{Layout, TILE};

/// Most blocks of a panel: 15 KB of two tiles' codes and 4 KB of four tokens', next to their sums.
pub(in crate::kernels) const PANEL: usize = 24;

/// Tokens that are multiplied at once.
pub(in crate::kernels) const TOKENS: usize = 4;

/// Most tokens that codes are unpacked for.
pub(in crate::kernels) const MOST: usize = 2 * LANES;

/// Most tiles of a sweep: with as many tokens their outputs take 128 KB, which stay in the L2 cache.
pub(in crate::kernels) const TILES: usize = 64;

/// The codes of a block, packed.
const PACKED: usize = 128;

/// A block of two tiles.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(in crate::kernels) struct TileBlock {
    /// For each four columns the codes of 8 rows, of one tile and of the other: 0..=15.
    codes: [[[u32; TILE]; 2]; 8],
    scales: [[f32; TILE]; 2],
    /// The zero points as int32, or the minima as f32.
    zeros: [[u32; TILE]; 2],
}

/// A block of four tokens.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(in crate::kernels) struct TokenBlock {
    codes: [[i32; 8]; TOKENS],
    /// What the int16 sums start from.
    starts: [i32; TOKENS],
    scales: [f32; TOKENS],
    sums: [i32; TOKENS],
}

/// A panel of everything, for one worker.
#[derive(Debug)]
pub(in crate::kernels) struct Panel {
    tiles: Box<[TileBlock; PANEL]>,
    tokens: Box<[[TokenBlock; PANEL]; MOST / TOKENS]>,
    /// `[tile][token]`.
    outputs: Vec<[Outputs; MOST]>,
    /// Where the sums of a tile go that there is not.
    spare: Box<[Outputs; MOST]>,
}

impl Default for Panel {
    fn default() -> Self {
        Panel {
            tiles: Box::new([TileBlock::default(); PANEL]),
            tokens: Box::new([[TokenBlock::default(); PANEL]; MOST / TOKENS]),
            outputs: vec![[Outputs::default(); MOST]; TILES],
            spare: Box::new([Outputs::default(); MOST]),
        }
    }
}

/// Some tiles times up to [`MOST`] tokens.
#[inline(always)]
pub(super) fn sums(simd: Simd, job: &Job<'_>, panel: &mut Panel) {
    match job.layout.format {
        Format::Int4 { zero: ZeroKind::Point, .. } => panels::<{ 3 * TILE }>(simd, job, panel),
        Format::Int4 { zero: ZeroKind::Min, .. } => panels::<{ 4 * TILE }>(simd, job, panel),
        _ => panels::<{ 2 * TILE }>(simd, job, panel),
    }
}

/// Of what [`sums`] left the outputs of some tiles and [`LANES`] tokens.
pub(super) fn outputs(_: &Job<'_>, work: &Workspace, [tile, token]: [usize; 2], out: &mut [[Outputs; LANES]]) {
    for (out, outputs) in out.iter_mut().zip(&work.panel.outputs[tile..]) {
        out.copy_from_slice(&outputs[token..token + LANES]);
    }
}

/// The kind of zero is known by the size of a group's header, `H`.
#[inline(always)]
fn panels<const H: usize>(simd: Simd, job: &Job<'_>, panel: &mut Panel) {
    let Panel { tiles, tokens, outputs, spare } = panel;
    let out = &mut outputs[..job.tiles.len() / job.layout.tile_bytes];
    let count = job.layout.blocks.div_ceil(PANEL);
    let pair_bytes = 2 * job.layout.tile_bytes;
    let groups = job.tokens.len().div_ceil(TOKENS);
    out.as_flattened_mut().fill(Outputs::default());
    for part in 0..count {
        let blocks = chunk(job.layout.blocks, count, part, 1);
        copy_tokens::<H>(job, blocks.clone(), &mut tokens[..]);
        for (pair, out) in out.chunks_mut(2).enumerate() {
            let [first, second] = [2 * pair, (2 * pair + 1).min(2 * pair + out.len() - 1)].map(|tile| job.tile(tile));
            unpack::<H>(simd, job.layout, [first, second], blocks.clone(), tiles);
            let next =
                [first, second].map(|tile| tile[job.layout.codes_at(blocks.start)..].as_ptr().wrapping_add(pair_bytes));
            let (first, second) = match out {
                [first, second] => (first, second),
                [first] => (first, &mut **spare),
                _ => unreachable!("pairs have one or two"),
            };
            let sums = first.as_chunks_mut().0.iter_mut().zip(second.as_chunks_mut().0);
            for (group, (tokens, (first, second))) in tokens[..groups].iter().zip(sums).enumerate() {
                // While this pair is multiplied the next one is on its way, a part with each group of tokens.
                for line in chunk(blocks.len() * job.layout.block_bytes / 64, groups, group, 1) {
                    prefetch_line(simd, next[0].wrapping_add(64 * line));
                    prefetch_line(simd, next[1].wrapping_add(64 * line));
                }
                #[allow(unsafe_code)]
                // SAFETY: the token proves that the CPU has AVX2.
                unsafe {
                    multiply::<H>(&tiles[..blocks.len()], &tokens[..blocks.len()], [first, second]);
                }
            }
        }
    }
}

/// Copies some blocks of the job's tokens to the panel. The last four may be less than four: then what was there before is
/// multiplied in the place of the others, and nobody asks for the result.
#[inline(always)]
fn copy_tokens<const H: usize>(job: &Job<'_>, blocks: Range<usize>, panel: &mut [[TokenBlock; PANEL]]) {
    let count = job.tokens.len();
    for (group, panel) in panel[..count.div_ceil(TOKENS)].iter_mut().enumerate() {
        let first = group * TOKENS;
        let panel = &mut panel[..blocks.len()];
        for t in 0..TOKENS.min(count - first) {
            let token = job.tokens.token(first + t);
            let (codes, scales) = (&token.codes[blocks.clone()], &token.scales[blocks.clone()]);
            let (sums, centres) = (&token.sums[blocks.clone()], &token.centres[blocks.clone()]);
            for (block, to) in panel.iter_mut().enumerate() {
                to.codes[t] = codes[block];
                to.scales[t] = scales[block];
                to.sums[t] = sums[block];
                to.starts[t] = if H == 2 * TILE { centres[block] } else { 0 };
            }
        }
    }
}

/// Unpacks some blocks of two tiles.
#[inline(always)]
fn unpack<const H: usize>(
    simd: Simd,
    layout: &Layout,
    tiles: [&[u8]; 2],
    blocks: Range<usize>,
    panel: &mut [TileBlock; PANEL],
) {
    let mask = simd.avx._mm256_set1_epi8(15);
    let (mut header_at, mut at) = (layout.header_at(blocks.start), layout.codes_at(blocks.start));
    let mut left_of_group = layout.group_blocks - blocks.start % layout.group_blocks;
    for to in &mut panel[..blocks.len()] {
        if left_of_group == 0 {
            header_at = at;
            at += H;
            left_of_group = layout.group_blocks;
        }
        left_of_group -= 1;
        for r in 0..2 {
            let header: &[u8; H] = tiles[r][header_at..].first_chunk().expect("a group has a header");
            let codes: &[u8; PACKED] = tiles[r][at..].first_chunk().expect("a block has all of its codes");
            to.scales[r] = pulp::cast(halves(simd, part(header, 0)));
            if H == 3 * TILE {
                let points: __m128i = pulp::cast(*part(header, TILE)); // The points are the upper 8 bytes.
                to.zeros[r] = pulp::cast(simd.avx2._mm256_cvtepu8_epi32(simd.sse2._mm_srli_si128::<8>(points)));
            }
            if H == 4 * TILE {
                to.zeros[r] = pulp::cast(halves(simd, part(header, 2 * TILE)));
            }
            for (vector, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
                let codes = load(codes);
                to.codes[2 * vector][r] = pulp::cast(and(simd, codes, mask));
                to.codes[2 * vector + 1][r] = pulp::cast(and(simd, simd.avx2._mm256_srli_epi16::<4>(codes), mask));
            }
        }
        at += PACKED;
    }
}

#[inline(always)]
fn part<const H: usize>(header: &[u8; H], at: usize) -> &[u8; 2 * TILE] {
    header[at..].first_chunk().expect("the header has this part")
}

/// Adds the products of a panel of two tiles and four tokens to their sums, block by block.
#[target_feature(enable = "avx2")]
fn multiply<const H: usize>(tiles: &[TileBlock], tokens: &[TokenBlock], sums: [&mut [Outputs; TOKENS]; 2]) {
    for (tile, token) in tiles.iter().zip(tokens) {
        let pairs = multiply_block(tile, token);
        for t in 0..TOKENS {
            let scale = _mm256_set1_ps(token.scales[t]);
            let sum = _mm256_set1_epi32(token.sums[t]);
            for r in 0..2 {
                let mut product = _mm256_madd_epi16(pairs[r][t], _mm256_set1_epi16(1));
                let zeros: __m256i = pulp::cast(tile.zeros[r]);
                if H == 3 * TILE {
                    // Points are at most 16 and |sums| at most 32 · 127: both fit in the lower int16 of a dword,
                    // and the upper one of the points is 0.
                    product = _mm256_sub_epi32(product, _mm256_madd_epi16(zeros, sum));
                }
                let y = pulp::cast(sums[r][t].0);
                let mut y = scale_add(y, product, _mm256_mul_ps(pulp::cast(tile.scales[r]), scale));
                if H == 4 * TILE {
                    y = scale_add(y, sum, _mm256_mul_ps(_mm256_castsi256_ps(zeros), scale));
                }
                sums[r][t] = Outputs(pulp::cast(y));
            }
        }
    }
}

/// `y + sum · scale`, rounded after each of the two.
#[target_feature(enable = "avx2")]
#[inline]
fn scale_add(y: __m256, sum: __m256i, scale: __m256) -> __m256 {
    _mm256_add_ps(y, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale))
}

/// Four columns of both tiles and all tokens. The sums of a token are added while the next one is multiplied.
macro_rules! columns {
    ($step:literal) => {
        concat!(
            columns!(load $step),
            columns!(multiply $step, 0, "x"),
            columns!(multiply $step, 1, "y"),
            columns!(add 0, "x"),
            columns!(multiply $step, 2, "x"),
            columns!(add 1, "y"),
            columns!(multiply $step, 3, "y"),
            columns!(add 2, "x"),
            columns!(add 3, "y"),
        )
    };
    (load $step:literal) => {
        concat!("vmovdqa {c0}, [{tiles} + 64*", $step, "]\n", "vmovdqa {c1}, [{tiles} + 64*", $step, " + 32]\n")
    };
    (multiply $step:literal, $t:literal, $to:literal) => {
        concat!(
            "vpbroadcastd {", $to, "1}, dword ptr [{tokens} + 32*", $t, " + 4*", $step, "]\n",
            "vpmaddubsw {", $to, "0}, {c0}, {", $to, "1}\n",
            "vpmaddubsw {", $to, "1}, {c1}, {", $to, "1}\n",
        )
    };
    (add $t:literal, $from:literal) => {
        concat!(
            "vpaddw {s0", $t, "}, {s0", $t, "}, {", $from, "0}\n",
            "vpaddw {s1", $t, "}, {s1", $t, "}, {", $from, "1}\n",
        )
    };
    (start $t:literal) => {
        concat!(
            "vpbroadcastd {s0", $t, "}, dword ptr [{tokens} + 128 + 4*", $t, "]\n",
            "vmovdqa {s1", $t, "}, {s0", $t, "}\n",
        )
    };
}

/// The products of a block in int16 pairs, each token's from its own start: 8 times 2 · 15 · 127 = 3810 fits, and from
/// [`crate::activations::centre`] too.
///
/// In assembly because the compiler adds the products in another order, in which it runs out of registers: it then spends
/// every sixth instruction on moving sums to the stack and back.
#[target_feature(enable = "avx2")]
#[inline]
fn multiply_block(tile: &TileBlock, token: &TokenBlock) -> [[__m256i; TOKENS]; 2] {
    let [s00, s01, s02, s03]: [__m256i; TOKENS];
    let [s10, s11, s12, s13]: [__m256i; TOKENS];
    #[allow(unsafe_code)]
    // SAFETY: the loads are of the codes of the tiles and of the codes and starts of the tokens, as `repr(C)` lays them.
    unsafe {
        asm!(
            columns!(start 0), columns!(start 1), columns!(start 2), columns!(start 3),
            columns!(0), columns!(1), columns!(2), columns!(3), columns!(4), columns!(5), columns!(6), columns!(7),
            tiles = in(reg) &raw const *tile,
            tokens = in(reg) &raw const *token,
            c0 = out(ymm_reg) _, c1 = out(ymm_reg) _,
            x0 = out(ymm_reg) _, x1 = out(ymm_reg) _, y0 = out(ymm_reg) _, y1 = out(ymm_reg) _,
            s00 = out(ymm_reg) s00, s01 = out(ymm_reg) s01, s02 = out(ymm_reg) s02, s03 = out(ymm_reg) s03,
            s10 = out(ymm_reg) s10, s11 = out(ymm_reg) s11, s12 = out(ymm_reg) s12, s13 = out(ymm_reg) s13,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [[s00, s01, s02, s03], [s10, s11, s12, s13]]
}
