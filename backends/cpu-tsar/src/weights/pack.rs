//! Filling tiles from a host matrix, and reading single codes back.

use std::ops::Range;

use half::f16;
use trine_backend::activation::BLOCK;
use trine_backend::{Codes, HostMatrix, Zero};

use super::layout::{Layout, TILE};

/// Bytes of a vector: a dword for each row of the tile.
const VECTOR: usize = 4 * TILE;

/// Fills `out`, whole tiles of zeroed bytes, of which the first is tile number `first` of the matrix.
pub(super) fn tiles(matrix: &HostMatrix<'_>, layout: &Layout, first: usize, out: &mut [u8]) {
    if layout.format.is_dense() {
        return dense(matrix, layout, first, out);
    }
    let mut codes = vec![0u8; layout.blocks * BLOCK];
    for (tile, out) in out.chunks_exact_mut(layout.tile_bytes).enumerate() {
        let rows = rows_of(matrix, first + tile);
        for row in rows.clone() {
            read_codes(matrix, row, &mut codes[..matrix.columns()]);
            for (block, codes) in codes.as_chunks::<BLOCK>().0.iter().enumerate() {
                put_block(&mut out[layout.codes_at(block)..][..layout.block_bytes], row - rows.start, codes);
            }
        }
        for block in (0..layout.blocks).step_by(layout.group_blocks) {
            let group = block / layout.group_blocks;
            put_header(matrix, rows.clone(), group, &mut out[layout.header_at(block)..][..layout.header]);
        }
    }
}

fn rows_of(matrix: &HostMatrix<'_>, tile: usize) -> Range<usize> {
    tile * TILE..((tile + 1) * TILE).min(matrix.rows())
}

/// The unsigned (ternary: t + 1; int4) or two's complement (int8) codes of a row.
fn read_codes(matrix: &HostMatrix<'_>, row: usize, out: &mut [u8]) {
    match matrix.codes() {
        Codes::Ternary(ternary) => {
            let values: &mut [i8] = bytemuck::cast_slice_mut(out);
            ternary.row(row, values);
            values.iter_mut().for_each(|value| *value += 1);
        }
        Codes::Int4(int4) => int4.row(row, out),
        Codes::Int8(int8) => {
            let columns = out.len();
            out.copy_from_slice(bytemuck::cast_slice(&int8.codes()[row * columns..][..columns]));
        }
        Codes::F32(_) | Codes::F16(_) | Codes::Bf16(_) => unreachable!("dense matrices have no codes"),
    }
}

/// Writes 32 codes of one row: each vector takes as many dwords of 4 codes as its bytes have fields.
fn put_block(out: &mut [u8], row: usize, codes: &[u8; BLOCK]) {
    let fields = fields(out.len());
    let dwords: &[[u8; 4]] = codes.as_chunks().0;
    for (out, dwords) in out.chunks_exact_mut(VECTOR).zip(dwords.chunks(fields)) {
        let packed = dwords
            .iter()
            .enumerate()
            .fold(0, |packed, (field, &codes)| packed | u32::from_le_bytes(codes) << (field * 8 / fields));
        out[4 * row..][..4].copy_from_slice(&packed.to_le_bytes());
    }
}

/// Codes in a byte of a block that has `block_bytes`.
fn fields(block_bytes: usize) -> usize {
    TILE * BLOCK / block_bytes
}

/// One code of a block.
pub(super) fn code(block: &[u8], row: usize, column: usize) -> u8 {
    let fields = fields(block.len());
    let (vector, field) = (column / (4 * fields), column / 4 % fields);
    let byte = block[vector * VECTOR + 4 * row + column % 4];
    byte >> (field * 8 / fields) & (255 >> (8 - 8 / fields))
}

/// Writes what a group of the tile's rows holds besides codes; the rows past the matrix keep zeros.
fn put_header(matrix: &HostMatrix<'_>, rows: Range<usize>, group: usize, out: &mut [u8]) {
    let put_halves = |values: &[f16], groups: usize, out: &mut [u8]| {
        for (row, out) in rows.clone().zip(out.chunks_exact_mut(2)) {
            out.copy_from_slice(&values[row * groups + group].to_ne_bytes());
        }
    };
    match matrix.codes() {
        Codes::Ternary(ternary) => {
            for (row, out) in rows.zip(out.chunks_exact_mut(4)) {
                out.copy_from_slice(&ternary.scales()[row].to_ne_bytes());
            }
        }
        Codes::Int8(int8) => put_halves(int8.scales(), int8.group().count(matrix.columns()), out),
        Codes::Int4(int4) => {
            let groups = int4.group().count(matrix.columns());
            let (scales, zeros) = out.split_at_mut(2 * TILE);
            put_halves(int4.scales(), groups, scales);
            match int4.zero() {
                Zero::Symmetric => {}
                Zero::Point(points) => {
                    rows.zip(zeros).for_each(|(row, out)| *out = points[row * groups + group]);
                }
                Zero::Min(minima) => put_halves(minima, groups, zeros),
            }
        }
        Codes::F32(_) | Codes::F16(_) | Codes::Bf16(_) => unreachable!("dense matrices have no scales"),
    }
}

/// The f32 scale of a row in a ternary tile's header.
pub(super) fn row_scale(header: &[u8], row: usize) -> f32 {
    f32::from_ne_bytes(header.as_chunks().0[row])
}

fn dense(matrix: &HostMatrix<'_>, layout: &Layout, first: usize, out: &mut [u8]) {
    let values: &[u8] = match matrix.codes() {
        Codes::F32(values) => bytemuck::cast_slice(values),
        Codes::F16(values) => bytemuck::cast_slice(values),
        Codes::Bf16(values) => bytemuck::cast_slice(values),
        _ => unreachable!("only dense matrices get here"),
    };
    let from = values.len() / matrix.rows();
    for (tile, out) in out.chunks_exact_mut(layout.tile_bytes).enumerate() {
        for (row, out) in rows_of(matrix, first + tile).zip(out.chunks_exact_mut(layout.tile_bytes / TILE)) {
            out[..from].copy_from_slice(&values[row * from..][..from]);
        }
    }
}
