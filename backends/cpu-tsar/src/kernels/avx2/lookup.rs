//! Ternary products of many tokens by table look-up: T-SAR's AP dataflow in software.
//!
//! Lanes are tokens. A code byte names one of 81 signed sums of four activations; for half a block of columns the
//! sums of all tokens are built once (4 tables, 81 of 171 entries of a cache line used, 21 KB: they stay in the L1
//! cache) and then all rows go past them, one 256-bit addition for 64 multiply-adds. Nothing is unpacked: the byte
//! of the layout that decode multiplies is the index here. After T-SAR (arXiv 2511.13676), which keeps such tables
//! in registers, and Vec-LUT, which makes tokens the lanes.

use std::arch::asm;
use std::arch::x86_64::{__m128i, __m256, __m256i};

use super::{Simd, floats};
use crate::activations::{CodeBlock, Tokens};
use crate::kernels::{HALF_TABLES, HalfBlock, Job, LANES, Lanes, Outputs, Room, TABLE, Wide};
use crate::weights::TILE;

/// How far the int16 sums of each token can have come: Σ|a| since they were last added to the int32 ones. Only where
/// that would pass 32,767 must they be; with activations as models have them that is once in a thousand columns,
/// though 258 may suffice.
struct Reach([__m256i; LANES / 16]);

impl Reach {
    #[inline(always)]
    fn new(simd: Simd) -> Self {
        Reach([simd.avx._mm256_setzero_si256(); LANES / 16])
    }

    /// Takes half a block in, or starts with it and says so.
    #[inline(always)]
    fn restarts_with(&mut self, simd: Simd, half: &HalfBlock) -> bool {
        let s = simd.avx2;
        let mut beyond = simd.avx._mm256_setzero_si256();
        for part in 0..LANES / 16 {
            self.0[part] = s._mm256_adds_epi16(self.0[part], pulp::cast(half.magnitudes.0[part]));
            let end = s._mm256_cmpeq_epi16(self.0[part], simd.avx._mm256_set1_epi16(i16::MAX));
            beyond = s._mm256_or_si256(beyond, end);
        }
        let restarts = s._mm256_movemask_epi8(beyond) != 0;
        if restarts {
            self.0 = pulp::cast(half.magnitudes.0);
        }
        restarts
    }
}

/// A block of at most [`LANES`] tokens' activations, turned so that the tokens are lanes.
#[inline(always)]
pub(super) fn turn(simd: Simd, tokens: &Tokens<'_>, block: usize, halves: &mut [HalfBlock; 2]) {
    for (at, half) in halves.iter_mut().enumerate() {
        for part in 0..LANES / 16 {
            let mut magnitudes = simd.avx._mm256_setzero_si256();
            let columns = columns(simd, tokens, block, at, 16 * part);
            for column in 0..16 {
                half.columns[column][part] = pulp::cast(columns[column]);
                let wide = simd.avx2._mm256_cvtepi8_epi16(columns[column]);
                magnitudes = simd.avx2._mm256_add_epi16(magnitudes, simd.avx2._mm256_abs_epi16(wide));
            }
            half.magnitudes.0[part] = pulp::cast(magnitudes);
        }
    }
}

/// The sums of all tiles of the job for its tokens, at most [`LANES`].
#[inline(always)]
pub(super) fn sums(simd: Simd, job: &Job<'_>, room: &mut Room) {
    let rows = job.tiles.len() / job.layout.tile_bytes * TILE;
    let Room { tables, narrow, wide, is_wide } = room;
    let (narrow, wide) = (&mut narrow[..rows], &mut wide[..rows]);
    let mut reach = Reach::new(simd);
    *is_wide = false;
    for block in 0..job.layout.blocks {
        for half in 0..2 {
            let activations = &job.halves[2 * block + half];
            build_tables(simd, activations, tables);
            prefetch_half(simd, activations);
            let restarts = reach.restarts_with(simd, activations);
            if restarts {
                widen(simd, narrow, wide, is_wide);
            }
            if restarts || (block, half) == (0, 0) {
                add_half::<true>(simd, job, block, half, tables, narrow);
            } else {
                add_half::<false>(simd, job, block, half, tables, narrow);
            }
        }
    }
}

/// The outputs of some tiles, from tile number `first` of the job on.
#[inline(always)]
pub(super) fn outputs(simd: Simd, job: &Job<'_>, room: &Room, first: usize, out: &mut [[Outputs; LANES]]) {
    let tokens = token_scales(job);
    for (tile, out) in (first..).zip(out) {
        let rows = job.tile(tile).first_chunk::<{ 4 * TILE }>().expect("a tile has a header");
        let narrow = room.narrow[tile * TILE..].first_chunk().expect("the sums of a job are in its room");
        let wide = room.wide[tile * TILE..].first_chunk().filter(|_| room.is_wide);
        scale(simd, (narrow, wide), pulp::cast(*rows), &tokens, out);
    }
}

/// Asks for the half block after this one: by the time that all tiles have gone past the tables it has come.
#[inline(always)]
fn prefetch_half(simd: Simd, half: &HalfBlock) {
    for line in 0..size_of::<HalfBlock>() / 64 {
        super::prefetch_line(simd, std::ptr::from_ref(half).wrapping_add(1).cast::<u8>().wrapping_add(64 * line));
    }
}

/// The tables of half a block: number `i` is for byte `i` of the rows' dwords.
#[inline(always)]
fn build_tables(simd: Simd, half: &HalfBlock, tables: &mut [Lanes; HALF_TABLES]) {
    for byte in 0..4 {
        let table = tables[byte * TABLE..].first_chunk_mut::<TABLE>().expect("there is room for all tables");
        for part in 0..LANES / 16 {
            let mut columns = [simd.avx._mm256_setzero_si256(); 4];
            for i in 0..4 {
                columns[i] = simd.avx2._mm256_cvtepi8_epi16(pulp::cast(half.columns[byte + 4 * i][part]));
            }
            build_table(simd, table, part, columns);
        }
    }
}

/// Entry `c0 + 4·c1 + 16·c2 + 64·c3` is the sum of `(c - 1) · x` over the four columns.
#[inline(always)]
fn build_table(simd: Simd, table: &mut [Lanes; TABLE], part: usize, x: [__m256i; 4]) {
    let s = simd.avx2;
    let zero = simd.avx._mm256_setzero_si256();
    let mut low = [zero; 9];
    let minus = [s._mm256_sub_epi16(zero, x[0]), zero, x[0]];
    let second = [s._mm256_sub_epi16(zero, x[1]), zero, x[1]];
    for c1 in 0..3 {
        for c0 in 0..3 {
            low[3 * c1 + c0] = s._mm256_add_epi16(second[c1], minus[c0]);
        }
    }
    let mut high = s._mm256_sub_epi16(s._mm256_sub_epi16(zero, x[2]), x[3]);
    for c3 in 0..3 {
        let mut sum = high;
        for c2 in 0..3 {
            for c1 in 0..3 {
                for c0 in 0..3 {
                    let entry = s._mm256_add_epi16(sum, low[3 * c1 + c0]);
                    table[c0 + 4 * c1 + 16 * c2 + 64 * c3].0[part] = pulp::cast(entry);
                }
            }
            sum = s._mm256_add_epi16(sum, x[2]);
        }
        high = s._mm256_add_epi16(high, x[3]);
    }
}

/// The activations of 16 columns of the 16 tokens from `first` on, one lane for each; those past the last token are 0.
#[inline(always)]
fn columns(simd: Simd, tokens: &Tokens<'_>, block: usize, half: usize, first: usize) -> [__m128i; 16] {
    let mut bytes: [__m128i; 16] = [simd.sse2._mm_setzero_si128(); 16];
    for token in first..tokens.len().min(first + 16) {
        let codes: &CodeBlock = &tokens.codes(token)[block];
        bytes[token - first] = pulp::cast(*codes.as_chunks::<4>().0[half].first_chunk::<4>().expect("half a block"));
    }
    // Interleaving row i with row i + 8 four times transposes 16 x 16 bytes.
    for _ in 0..4 {
        let rows = bytes;
        for i in 0..8 {
            bytes[2 * i] = simd.sse2._mm_unpacklo_epi8(rows[i], rows[i + 8]);
            bytes[2 * i + 1] = simd.sse2._mm_unpackhi_epi8(rows[i], rows[i + 8]);
        }
    }
    bytes
}

/// Adds half a block to each row's int16 sums, or starts them with it.
#[inline(always)]
fn add_half<const START: bool>(
    simd: Simd,
    job: &Job<'_>,
    block: usize,
    half: usize,
    tables: &[Lanes; HALF_TABLES],
    narrow: &mut [Lanes],
) {
    let (stride, at) = (job.layout.tile_bytes, job.layout.header + block * job.layout.block_bytes + 32 * half);
    for (tile, sums) in job.tiles.chunks_exact(stride).zip(narrow.as_chunks_mut::<TILE>().0) {
        // What comes next in this tile, wanted when all tiles have gone past the tables.
        super::prefetch_line(simd, tile.as_ptr().wrapping_add(at + 64));
        let codes: &[u8; 32] = tile[at..].first_chunk().expect("a block has all of its codes");
        let _ = (simd.avx2, simd.bmi2);
        #[allow(unsafe_code)]
        // SAFETY: the token proves that the CPU has AVX2 and BMI2.
        unsafe {
            add_tile::<START>(codes, tables, sums);
        }
    }
}

/// One of both halves (`$h` is 0 or 32) of row `$row`'s lanes: the entries at offsets `o0` to `o3` are added up, and to the row's sums.
#[rustfmt::skip]
macro_rules! add {
    ($row:literal, $h:literal, $start:tt) => {
        concat!(
            "vmovdqa {x}, ymmword ptr [{tables} + {o0} + ", $h, "]\n",
            "vpaddw {x}, {x}, ymmword ptr [{tables} + {o1} + {table} + ", $h, "]\n",
            "vpaddw {x}, {x}, ymmword ptr [{tables} + {o2} + 2*{table} + ", $h, "]\n",
            "vpaddw {x}, {x}, ymmword ptr [{tables} + {o3} + 3*{table} + ", $h, "]\n",
            sum!($start, $row, $h),
            "vmovdqa ymmword ptr [{sums} + 64*", $row, " + ", $h, "], {x}\n",
        )
    };
}

/// The row's sum so far, unless this is the start.
#[rustfmt::skip]
macro_rules! sum {
    (true, $row:literal, $h:literal) => { "" };
    (false, $row:literal, $h:literal) => {
        concat!("vpaddw {x}, {x}, ymmword ptr [{sums} + 64*", $row, " + ", $h, "]\n")
    };
}

/// Row `$row`: its four codes are turned to bit 6 one by one, which makes each the offset of a line.
#[rustfmt::skip]
macro_rules! row {
    ($row:literal, [$t0:literal, $t1:literal, $t2:literal, $t3:literal], $start:tt) => {
        concat!(
            "rorx {o0}, {codes}, ", $t0, "\n", "and {o0:e}, {byte:e}\n",
            "rorx {o1}, {codes}, ", $t1, "\n", "and {o1:e}, {byte:e}\n",
            "rorx {o2}, {codes}, ", $t2, "\n", "and {o2:e}, {byte:e}\n",
            "rorx {o3}, {codes}, ", $t3, "\n", "and {o3:e}, {byte:e}\n",
            add!($row, 0, $start),
            add!($row, 32, $start),
        )
    };
}

/// Rows `$even` and `$odd`, whose codes are loaded together.
#[rustfmt::skip]
macro_rules! rows {
    ($even:literal, $odd:literal, $start:tt) => {
        concat!(
            "mov {codes}, qword ptr [{from} + 4*", $even, "]\n",
            row!($even, [58, 2, 10, 18], $start),
            row!($odd, [26, 34, 42, 50], $start),
        )
    };
}

/// Adds half a block to the int16 sums of a tile's rows, or starts them with it.
///
/// In assembly because the compiler loads each row's codes by themselves and takes ten instructions for its offsets, where these are eight
/// and a half.
#[target_feature(enable = "avx2,bmi2")]
#[inline]
fn add_tile<const START: bool>(codes: &[u8; 32], tables: &[Lanes; HALF_TABLES], sums: &mut [Lanes; TILE]) {
    macro_rules! add_tile {
        ($start:tt) => {
            asm!(
                rows!(0, 1, $start), rows!(2, 3, $start), rows!(4, 5, $start), rows!(6, 7, $start),
                from = in(reg) codes.as_ptr(), tables = in(reg) tables.as_ptr(), sums = in(reg) sums.as_mut_ptr(),
                byte = in(reg) 255 * size_of::<Lanes>(), table = const TABLE * size_of::<Lanes>(),
                codes = out(reg) _, o0 = out(reg) _, o1 = out(reg) _, o2 = out(reg) _, o3 = out(reg) _,
                x = out(ymm_reg) _,
                options(nostack),
            )
        };
    }
    #[allow(unsafe_code)]
    // SAFETY: the loads are of the 32 bytes of codes and, for any byte, of lines of the tables; the stores are to the rows' sums.
    unsafe {
        match START {
            true => add_tile!(true),
            false => add_tile!(false),
        }
    }
}

/// Adds the int16 sums to the int32 ones, or starts those with them.
#[inline(always)]
fn widen(simd: Simd, narrow: &[Lanes], wide: &mut [Wide], is_wide: &mut bool) {
    for (narrow, wide) in narrow.iter().zip(wide) {
        let before = is_wide.then_some(*wide);
        for part in 0..LANES / 8 {
            wide.0[part] = pulp::cast(total(simd, narrow, before.as_ref(), part));
        }
    }
    *is_wide = true;
}

/// Eight tokens' sums.
#[inline(always)]
fn total(simd: Simd, narrow: &Lanes, wide: Option<&Wide>, part: usize) -> __m256i {
    let sum = simd.avx2._mm256_cvtepi16_epi32(pulp::cast(narrow.0[part / 2].as_chunks::<8>().0[part % 2]));
    match wide {
        Some(wide) => simd.avx2._mm256_add_epi32(sum, pulp::cast(wide.0[part])),
        None => sum,
    }
}

/// The tokens' scales, one lane each.
#[inline(always)]
fn token_scales(job: &Job<'_>) -> [[f32; 8]; LANES / 8] {
    let mut scales = [[0.0; 8]; LANES / 8];
    for token in 0..job.tokens.len() {
        scales[token / 8][token % 8] = job.tokens.scale(token);
    }
    scales
}

/// `sum · (s_row · s_token)`, turned from `[row][token]` to `[token][row]`.
#[inline(always)]
fn scale(
    simd: Simd,
    (narrow, wide): (&[Lanes; TILE], Option<&[Wide; TILE]>),
    rows: [f32; TILE],
    tokens: &[[f32; 8]; LANES / 8],
    out: &mut [Outputs; LANES],
) {
    for part in 0..LANES / 8 {
        let tokens = floats(tokens[part]);
        let mut lanes = [simd.avx._mm256_setzero_ps(); TILE];
        for row in 0..TILE {
            let scale = simd.avx._mm256_mul_ps(simd.avx._mm256_set1_ps(rows[row]), tokens);
            let sum = match wide {
                Some(wide) => total(simd, &narrow[row], Some(&wide[row]), part),
                None => total(simd, &narrow[row], None, part),
            };
            lanes[row] = simd.avx._mm256_mul_ps(simd.avx._mm256_cvtepi32_ps(sum), scale);
        }
        let turned = transpose(simd, lanes);
        for token in 0..8 {
            out[8 * part + token] = Outputs(pulp::cast(turned[token]));
        }
    }
}

/// Interleaves floats of rows `i` and `i + 4` three times, which transposes 8 x 8 (with the 128-bit halves that
/// AVX interleaves apart put together last).
#[inline(always)]
fn transpose(simd: Simd, rows: [__m256; 8]) -> [__m256; 8] {
    let s = simd.avx;
    let mut pairs = rows;
    for i in 0..4 {
        pairs[2 * i] = s._mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = s._mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    let mut quads = pairs;
    for i in 0..2 {
        quads[4 * i] = s._mm256_shuffle_ps::<0x44>(pairs[4 * i], pairs[4 * i + 2]);
        quads[4 * i + 1] = s._mm256_shuffle_ps::<0xee>(pairs[4 * i], pairs[4 * i + 2]);
        quads[4 * i + 2] = s._mm256_shuffle_ps::<0x44>(pairs[4 * i + 1], pairs[4 * i + 3]);
        quads[4 * i + 3] = s._mm256_shuffle_ps::<0xee>(pairs[4 * i + 1], pairs[4 * i + 3]);
    }
    let mut turned = quads;
    for i in 0..4 {
        turned[i] = s._mm256_permute2f128_ps::<0x20>(quads[i], quads[i + 4]);
        turned[i + 4] = s._mm256_permute2f128_ps::<0x31>(quads[i], quads[i + 4]);
    }
    turned
}
