//! The article's two loop orders, for the rows of a thread and one token.

// Tiles of weights and of sums go by the same index, and iterators would bring closures.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::instructions::Instructions;
use super::{Job, OUTPUTS, Registers};
use crate::kernels::{Lanes, Room, Wide};

/// Columns whose sums fit in int16: |Σ w·a| is at most 256 · 127 = 32,512, also while the dense part of a block is in and
/// its sparse part is not out: then its columns count as 1 each, and no more.
const FLUSH: usize = 256;

/// AP (activation-persistent): a table stays in its registers and all outputs pass.
#[inline(always)]
pub(super) fn activation_persistent<R: Registers, I: Instructions>(
    r: R,
    job: &Job<'_>,
    tiles: Range<usize>,
    room: &mut Room,
) {
    let count = tiles.len();
    let pairs = count.div_ceil(2);
    let (narrow, wide) = (&mut room.narrow[..pairs], &mut room.wide[..pairs]);
    wide.fill(Wide::default());
    let columns = job.layout.column_tiles();
    let mut first = 0;
    while first < columns {
        let last = (first + FLUSH / I::COLUMNS).min(columns);
        narrow.fill(Lanes::default());
        for column in first..last {
            let tables = I::tables(r, &job.activations[column * I::COLUMNS..]);
            // Tiles of the same columns lie one after another.
            let bytes = &job.bytes[job.layout.tile_at(tiles.start, column)..][..count * I::TILE_BYTES];
            let mut bytes = bytes.chunks_exact(I::TILE_BYTES);
            'sums: for pair in &mut *narrow {
                for sums in &mut pair.0 {
                    let Some(tile) = bytes.next() else { break 'sums };
                    // In memory by reference: lanes that are handed over by value go through it one by one.
                    r.store(I::multiply(r, r.sums(sums), &tables, tile), sums);
                }
            }
        }
        for (narrow, wide) in narrow.iter().zip(&mut *wide) {
            for half in 0..2 {
                flush(&narrow.0[half], &mut wide.0, half);
            }
        }
        first = last;
    }
}

/// OP (output-persistent): the sums of a tile stay in their register and the columns pass, their tables made anew.
#[inline(always)]
pub(super) fn output_persistent<R: Registers, I: Instructions>(
    r: R,
    job: &Job<'_>,
    tiles: Range<usize>,
    room: &mut Room,
) {
    let wide = &mut room.wide[..tiles.len().div_ceil(2)];
    wide.fill(Wide::default());
    let columns = job.layout.column_tiles();
    for tile in 0..tiles.len() {
        let mut first = 0;
        while first < columns {
            let last = (first + FLUSH / I::COLUMNS).min(columns);
            let mut sums = r.words([0; OUTPUTS]);
            for column in first..last {
                let tables = I::tables(r, &job.activations[column * I::COLUMNS..]);
                let bytes = &job.bytes[job.layout.tile_at(tiles.start + tile, column)..];
                sums = I::multiply(r, sums, &tables, bytes);
            }
            let mut lanes = [0; OUTPUTS];
            r.store(sums, &mut lanes);
            flush(&lanes, &mut wide[tile / 2].0, tile % 2);
            first = last;
        }
    }
}

/// Adds int16 sums to the int32 ones of one tile of two.
#[inline(always)]
fn flush(narrow: &[i16; OUTPUTS], wide: &mut [[i32; 8]; 4], tile: usize) {
    for half in 0..2 {
        for lane in 0..8 {
            wide[2 * tile + half][lane] += i32::from(narrow[8 * half + lane]);
        }
    }
}
