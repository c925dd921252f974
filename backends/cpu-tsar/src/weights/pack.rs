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
    for (tile, out) in out.chunks_exact_mut(layout.tile_bytes).enumerate() {
        let rows = rows_of(matrix, first + tile);
        match matrix.codes() {
            Codes::Ternary(ternary) => put_codes::<8>(ternary.codes(), &rows, matrix, layout, out, transpose_2_bits),
            Codes::Int4(int4) => put_codes::<16>(int4.codes(), &rows, matrix, layout, out, shuffle_4_bits),
            Codes::Int8(int8) => {
                put_codes::<32>(bytemuck::cast_slice(int8.codes()), &rows, matrix, layout, out, |codes| codes);
            }
            Codes::F32(_) | Codes::F16(_) | Codes::Bf16(_) => unreachable!("dense matrices have no codes"),
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

/// Writes the codes of `rows`, a block after the other. `codes` are the host matrix's, of which `BYTES` are 32 columns of a
/// row: as many bytes as the row has of the tile's block. So each dword becomes one of a vector, in which `arrange` puts the
/// codes in their order.
fn put_codes<const BYTES: usize>(
    codes: &[u8],
    rows: &Range<usize>,
    matrix: &HostMatrix<'_>,
    layout: &Layout,
    out: &mut [u8],
    arrange: impl Fn(u32) -> u32,
) {
    debug_assert_eq!(layout.block_bytes, TILE * BYTES);
    let row_bytes = codes.len() / matrix.rows();
    let mut sources: [&[u8]; TILE] = [&[]; TILE];
    for (source, row) in sources.iter_mut().zip(rows.clone()) {
        *source = &codes[row * row_bytes..][..row_bytes];
    }
    for block in 0..layout.blocks {
        let vectors = out[layout.codes_at(block)..][..layout.block_bytes].as_chunks_mut::<VECTOR>().0;
        let mut rows = [[0u8; BYTES]; TILE];
        for (row, source) in rows.iter_mut().zip(sources) {
            put_row(row, source, block * BYTES);
        }
        for (at, vector) in vectors.iter_mut().enumerate() {
            for (out, row) in vector.as_chunks_mut::<4>().0.iter_mut().zip(&rows) {
                *out = arrange(u32::from_le_bytes(row.as_chunks().0[at])).to_le_bytes();
            }
        }
    }
}

/// Fills `out` from place `start` of `source` as far as that goes: less than a block is left at the end of a row, and
/// nothing of rows past the matrix.
fn put_row<const BYTES: usize>(out: &mut [u8; BYTES], source: &[u8], start: usize) {
    if let Some(whole) = source.get(start..start + BYTES) {
        out.copy_from_slice(whole);
    } else if let Some(rest) = source.get(start..) {
        out[..rest.len()].copy_from_slice(rest);
    }
}

/// 16 codes of 2 bits, of which code `c` is field `c % 4` of byte `c / 4`: to field `c / 4` of byte `c % 4`. A transposition
/// of 4 x 4, in two steps that exchange what is across the diagonal: single codes, then squares of four.
fn transpose_2_bits(codes: u32) -> u32 {
    let codes = exchange(codes, 6, 0x00CC_00CC);
    exchange(codes, 12, 0x0000_F0F0)
}

/// 8 codes of 4 bits, of which code `c` is field `c % 2` of byte `c / 2`: to field `c / 4` of byte `c % 4`. With the three
/// bits of `c` as the name of a place, exchanging places whose highest two differ and then those whose lowest two do makes
/// the highest bit the lowest.
fn shuffle_4_bits(codes: u32) -> u32 {
    let codes = exchange(codes, 8, 0x0000_FF00);
    exchange(codes, 4, 0x00F0_00F0)
}

/// Exchanges the bits of `mask` with those `distance` above them.
fn exchange(bits: u32, distance: u32, mask: u32) -> u32 {
    let differ = (bits ^ bits >> distance) & mask;
    bits ^ differ ^ differ << distance
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trine_backend::{CodedRow, Error, Format, Group, ZeroKind, ZeroRow};

    use super::*;

    fn formats() -> Vec<Format> {
        let groups = [Group::G32, Group::G64, Group::G128, Group::Row];
        let zeros = [ZeroKind::Symmetric, ZeroKind::Point, ZeroKind::Min];
        let int4 = groups.iter().flat_map(|&group| zeros.map(|zero| Format::Int4 { group, zero }));
        let int8 = groups.iter().map(|&group| Format::Int8 { group });
        int4.chain(int8).chain([Format::Ternary]).collect()
    }

    /// A number for each row and column.
    fn number(seed: u64, row: usize, column: usize) -> u64 {
        let mixed = (seed ^ (row as u64) << 32 ^ column as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33
    }

    fn matrix(rows: usize, columns: usize, format: Format, seed: u64) -> HostMatrix<'static> {
        let half = |row: usize, group: usize| f16::from_f32(1.0 + (number(!seed, row, group) % 512) as f32 / 512.0);
        HostMatrix::coded(rows, columns, format, |row, out| {
            let code = |column: usize, among: u64| (number(seed, row, column) % among) as i16;
            match out {
                CodedRow::Ternary { values, scale } => {
                    values.iter_mut().enumerate().for_each(|(c, value)| *value = code(c, 3) as i8 - 1);
                    *scale = half(row, 0).to_f32();
                }
                CodedRow::Int4 { codes, scales, zero } => {
                    codes.iter_mut().enumerate().for_each(|(c, out)| *out = code(c, 16) as u8);
                    scales.iter_mut().enumerate().for_each(|(g, scale)| *scale = half(row, g));
                    match zero {
                        ZeroRow::Symmetric => {}
                        ZeroRow::Point(points) => {
                            points.iter_mut().enumerate().for_each(|(g, point)| *point = code(1000 + g, 17) as u8);
                        }
                        ZeroRow::Min(minima) => {
                            minima.iter_mut().enumerate().for_each(|(g, minimum)| *minimum = -half(row, 1000 + g));
                        }
                    }
                }
                CodedRow::Int8 { codes, scales } => {
                    codes.iter_mut().enumerate().for_each(|(c, out)| *out = (code(c, 255) - 127) as i8);
                    scales.iter_mut().enumerate().for_each(|(g, scale)| *scale = half(row, g));
                }
            }
            Ok::<(), Error>(())
        })
        .unwrap()
    }

    /// The code at a place as the formats define it: unsigned (ternary: t + 1; int4) or two's complement.
    fn stored_code(matrix: &HostMatrix<'_>, row: usize, column: usize) -> u8 {
        let columns = matrix.columns();
        match matrix.codes() {
            Codes::Ternary(ternary) => {
                ternary.codes()[row * columns.div_ceil(4) + column / 4] >> (2 * (column % 4)) & 3
            }
            Codes::Int4(int4) => int4.codes()[row * columns.div_ceil(2) + column / 2] >> (4 * (column % 2)) & 15,
            Codes::Int8(int8) => int8.codes()[row * columns + column] as u8,
            _ => unreachable!(),
        }
    }

    proptest! {
        #[test]
        fn every_code_is_at_its_place(
            format in prop::sample::select(formats()),
            rows in 1usize..28,
            columns in 1usize..300,
            seed: u64,
        ) {
            let matrix = matrix(rows, columns, format, seed);
            let layout = Layout::new(format, columns).unwrap();
            let mut out = vec![0; layout.tile_bytes * rows.div_ceil(TILE)];
            let second = layout.tile_bytes.min(out.len());
            // As two threads share the tiles.
            tiles(&matrix, &layout, 1, &mut out[second..]);
            tiles(&matrix, &layout, 0, &mut out[..second]);
            for row in 0..rows.next_multiple_of(TILE) {
                let tile = &out[row / TILE * layout.tile_bytes..][..layout.tile_bytes];
                for column in 0..layout.blocks * BLOCK {
                    let block = &tile[layout.codes_at(column / BLOCK)..][..layout.block_bytes];
                    let inside = row < rows && column < columns;
                    let expected = if inside { stored_code(&matrix, row, column) } else { 0 };
                    prop_assert_eq!(code(block, row % TILE, column % BLOCK), expected, "row {}, column {}", row, column);
                }
            }
        }
    }

    /// Each bit alone, as `code` reads it.
    #[test]
    fn dwords_are_arranged() {
        for bit in 0..32 {
            let (code, within) = (bit / 2, bit % 2);
            assert_eq!(transpose_2_bits(1 << bit), 1 << (8 * (code % 4) + 2 * (code / 4) + within), "bit {bit}");
            let (code, within) = (bit / 4, bit % 4);
            assert_eq!(shuffle_4_bits(1 << bit), 1 << (8 * (code % 4) + 4 * (code / 4) + within), "bit {bit}");
        }
    }
}
