//! Where T-SAR's instructions find ternary weights: the operands of TGEMV, in the order of a dataflow.
//!
//! First come the scales of the rows, f32 each, then tiles of 16 rows by 8 columns (TGEMV_8x16, 32 bytes) or by 16
//! (TGEMV_16x16, 64 bytes), for AP `[columns / 8][rows / 16]` and for OP `[rows / 16][columns / 8]`. A tile is one register
//! or two with a little-endian word for each row. A row's bits are those of its 4 blocks in order, from the lowest bit on:
//! the dense bits of a block, of which the first column has the highest, and then its sparse bits. Rows and columns are
//! padded with bits of 0: those columns meet activations of 0, and the outputs of those rows are dropped.

use std::ops::Range;

use trine_backend::{HostMatrix, Ternary};

use crate::kernels::tsar::OUTPUTS;
use crate::pool::Pool;

/// Blocks of a tile.
const BLOCKS: usize = 4;

/// The shape of a matrix in tiles for T-SAR's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    row_tiles: usize,
    column_tiles: usize,
    /// Columns of a tile: 8 or 16.
    tile_columns: usize,
    /// Whether all rows come before the next columns: for AP.
    rows_first: bool,
}

impl Published {
    /// The layout of a matrix, or `None` where that is beyond the address space.
    pub(crate) fn new(rows: usize, columns: usize, tile_columns: usize, rows_first: bool) -> Option<Self> {
        let (row_tiles, column_tiles) = (rows.div_ceil(OUTPUTS), columns.div_ceil(tile_columns));
        let layout = Published { row_tiles, column_tiles, tile_columns, rows_first };
        let tiles = row_tiles.checked_mul(column_tiles)?.checked_mul(layout.tile_bytes())?;
        tiles.checked_add(row_tiles.checked_mul(4 * OUTPUTS)?)?;
        Some(layout)
    }

    /// Tiles of 16 rows.
    pub(crate) fn row_tiles(&self) -> usize {
        self.row_tiles
    }

    /// Tiles of 8 or 16 columns.
    pub(crate) fn column_tiles(&self) -> usize {
        self.column_tiles
    }

    /// Dense and sparse bits of all weights.
    fn tile_bytes(&self) -> usize {
        OUTPUTS * self.tile_columns / 4
    }

    fn scales_bytes(&self) -> usize {
        4 * OUTPUTS * self.row_tiles
    }

    /// Bytes of the whole matrix.
    pub(super) fn bytes(&self) -> usize {
        self.scales_bytes() + self.row_tiles * self.column_tiles * self.tile_bytes()
    }

    /// Where a tile begins.
    #[inline(always)]
    pub(crate) fn tile_at(&self, row_tile: usize, column_tile: usize) -> usize {
        let tile = if self.rows_first {
            column_tile * self.row_tiles + row_tile
        } else {
            row_tile * self.column_tiles + column_tile
        };
        self.scales_bytes() + tile * self.tile_bytes()
    }

    /// How it is called in reports.
    pub(crate) fn name(&self) -> String {
        let (columns, bytes) = (self.tile_columns, self.tile_bytes());
        let order = if self.rows_first { format!("[K/{columns}][M/16]") } else { format!("[M/16][K/{columns}]") };
        format!("{bytes}-byte tiles {order}")
    }

    /// The scale of a row.
    #[inline(always)]
    pub(crate) fn scale(&self, bytes: &[u8], row: usize) -> f32 {
        f32::from_ne_bytes(bytes.as_chunks().0[row])
    }

    /// The weight -1, 0 or 1 at a place.
    pub(super) fn weight(&self, bytes: &[u8], row: usize, column: usize) -> i8 {
        let tile = self.tile_at(row / OUTPUTS, column / self.tile_columns);
        let [dense, sparse] = self.bits(column).map(|bit| {
            let byte = bytes[tile + 2 * OUTPUTS * (bit / 16) + 2 * (row % OUTPUTS) + bit / 8 % 2];
            (byte >> (bit % 8) & 1) as i8
        });
        2 * dense - 1 - sparse
    }

    /// The numbers of a column's dense and sparse bits among those of its row and tile.
    fn bits(&self, column: usize) -> [usize; 2] {
        let block_columns = self.tile_columns / BLOCKS;
        let (block, at) = (column % self.tile_columns / block_columns, column % block_columns);
        let dense = 2 * block_columns * block + block_columns - 1 - at;
        [dense, dense + block_columns]
    }

    /// Fills `bytes`, zeros so far, with a matrix, on all threads.
    pub(super) fn pack(&self, pool: &Pool, matrix: &HostMatrix<'_>, ternary: &Ternary<'_>, bytes: &mut [u8]) {
        let (scales, tiles) = bytes.split_at_mut(self.scales_bytes());
        for (to, scale) in scales.as_chunks_mut().0.iter_mut().zip(ternary.scales()) {
            *to = scale.to_ne_bytes();
        }
        // What is together in memory: for AP all rows of a tile's columns, for OP all columns of a tile's rows.
        let strip = self.tile_bytes() * if self.rows_first { self.row_tiles } else { self.column_tiles };
        pool.split(tiles, strip, |start, part| {
            let strips = start / strip..(start + part.len()) / strip;
            let (rows, columns) = if self.rows_first {
                (0..matrix.rows(), strips.start * self.tile_columns..strips.end * self.tile_columns)
            } else {
                (strips.start * OUTPUTS..strips.end * OUTPUTS, 0..matrix.columns())
            };
            let rows = rows.start..rows.end.min(matrix.rows());
            let columns = columns.start..columns.end.min(matrix.columns());
            self.pack_part(matrix.columns(), ternary, rows, columns, self.scales_bytes() + start, part);
        });
    }

    /// Fills the part of the matrix that begins at byte `start`, which has these rows and columns.
    fn pack_part(
        &self,
        width: usize,
        ternary: &Ternary<'_>,
        rows: Range<usize>,
        columns: Range<usize>,
        start: usize,
        part: &mut [u8],
    ) {
        let mut weights = vec![0i8; width];
        for row in rows {
            ternary.row(row, &mut weights);
            for column in columns.clone() {
                let tile = self.tile_at(row / OUTPUTS, column / self.tile_columns) - start;
                let set = [weights[column] >= 0, weights[column] == 0];
                for (bit, set) in self.bits(column).into_iter().zip(set) {
                    let byte = tile + 2 * OUTPUTS * (bit / 16) + 2 * (row % OUTPUTS) + bit / 8 % 2;
                    part[byte] |= u8::from(set) << (bit % 8);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::Codes;

    use super::*;

    /// A matrix of these weights, all with the scale 1.
    fn matrix(rows: usize, weights: &[i8]) -> HostMatrix<'static> {
        let columns = weights.len() / rows;
        let mut codes = vec![0u8; rows * Ternary::row_bytes(columns)];
        for (row, weights) in weights.chunks(columns).enumerate() {
            for (column, weight) in weights.iter().enumerate() {
                codes[row * Ternary::row_bytes(columns) + column / 4] |= ((weight + 1) as u8) << (2 * (column % 4));
            }
        }
        HostMatrix::new(rows, columns, Codes::Ternary(Ternary::new(codes, vec![1.0; rows]))).unwrap()
    }

    fn packed(layout: &Published, matrix: &HostMatrix<'_>, threads: usize) -> Vec<u8> {
        let Codes::Ternary(ternary) = matrix.codes() else { unreachable!("it was made of ternary codes") };
        let mut bytes = vec![0; layout.bytes()];
        layout.pack(&Pool::new(threads).unwrap(), matrix, ternary, &mut bytes);
        bytes
    }

    #[test]
    fn bits_are_those_of_the_article() {
        // w = {+1, 0} has the dense bits 1 1 and the sparse bits 0 1, w = {-1, +1} has 0 1 and 0 0.
        let matrix = matrix(1, &[1, 0, -1, 1, 0, 0, -1, -1]);
        let layout = Published::new(1, 8, 8, true).unwrap();
        let bytes = packed(&layout, &matrix, 1);
        assert_eq!(bytes.len(), 64 + 32);
        assert_eq!(bytes[64..66], [0b0001_0111, 0b0000_1111]);
        assert_eq!(bytes[66..], [0; 30]);
    }

    #[test]
    fn wide_tiles_are_two_registers() {
        let matrix = matrix(2, &[[1, 0, -1, 0, 1, 1, 1, 1, -1, -1, -1, -1, 0, 0, 0, 1], [-1; 16]].concat());
        let layout = Published::new(2, 16, 16, false).unwrap();
        let bytes = packed(&layout, &matrix, 1);
        assert_eq!(bytes.len(), 64 + 64);
        assert_eq!(bytes[64..68], [0b0101_1101, 0b0000_1111, 0, 0]);
        assert_eq!(bytes[96..100], [0b0000_0000, 0b1110_1111, 0, 0]);
    }

    #[test]
    fn weights_come_back_and_tiles_have_no_gaps() {
        for (rows, columns) in [(1, 1), (16, 16), (17, 9), (40, 133)] {
            let weights: Vec<i8> = (0..rows * columns).map(|i| (i * i / 7 % 3) as i8 - 1).collect();
            let matrix = matrix(rows, &weights);
            for (tile_columns, rows_first) in [(8, true), (8, false), (16, true), (16, false)] {
                let layout = Published::new(rows, columns, tile_columns, rows_first).unwrap();
                let bytes = packed(&layout, &matrix, 1);
                assert_eq!(packed(&layout, &matrix, 3), bytes);
                let got = (0..rows * columns).map(|i| layout.weight(&bytes, i / columns, i % columns));
                assert!(got.eq(weights.iter().copied()), "{layout:?}");
                let tiles = (0..layout.row_tiles).flat_map(|r| (0..layout.column_tiles).map(move |c| (r, c)));
                let mut starts: Vec<_> = tiles.map(|(r, c)| layout.tile_at(r, c)).collect();
                starts.sort_unstable();
                let expected = (layout.scales_bytes()..layout.bytes()).step_by(layout.tile_bytes());
                assert!(starts.into_iter().eq(expected), "{layout:?}");
            }
        }
    }

    #[test]
    fn sizes_beyond_the_address_space_are_noticed() {
        assert_eq!(Published::new(usize::MAX, 1 << 20, 8, true), None);
        assert_eq!(Published::new(usize::MAX / 2, 8, 8, true), None);
    }
}
