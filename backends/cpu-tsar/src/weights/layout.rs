//! Where the numbers of a matrix lie.
//!
//! A matrix is a sequence of tiles of 8 rows, a tile a sequence of groups, a group a header with the
//! scales of the 8 rows and then the codes of its blocks of 32 columns: a product over a tile reads its
//! bytes once, in order.
//!
//! A vector of 32 bytes holds a dword for each row of the tile, and byte `i` of a dword holds a code of
//! column `i`, `4 + i`, … of the vector: four codes of 2 bits (16 columns), two of 4 bits (8 columns) or
//! one of 8 bits (4 columns), the first column in the lowest bits. So the lanes of a SIMD register are rows,
//! four activations are broadcast as one dword to all of them, each lane sums up one row, and nothing is
//! added across lanes. `vpmaddubsw`, `vpdpbusd`, `smlal` and `sdot` all take this order.
//!
//! Rows are padded to 8 and columns to 32 with zero bytes: padded columns meet activations of 0, and the
//! outputs of padded rows are dropped. Dense matrices are plain rows, padded in the same way.

use trine_backend::activation::BLOCK;
use trine_backend::{Format, Group, ZeroKind};

/// Rows of a tile.
pub(crate) const TILE: usize = 8;

/// Sums of 2-bit codes (0..=2) with activations of ±127 stay within 31 bits up to here.
pub(super) const MAX_COLUMNS: usize = 1 << 22;

/// The shape of a tile of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The number format.
    pub(crate) format: Format,
    /// Blocks of 32 columns, the last one padded.
    pub(crate) blocks: usize,
    /// Blocks that share a header; the last group may have fewer.
    pub(crate) group_blocks: usize,
    /// Bytes of a group's header.
    pub(crate) header: usize,
    /// Bytes of a block's codes, for all rows of the tile.
    pub(crate) block_bytes: usize,
    /// Bytes of a tile.
    pub(crate) tile_bytes: usize,
}

impl Layout {
    /// The layout of a matrix of `columns`, or `None` where that is beyond the address space.
    pub(super) fn new(format: Format, columns: usize) -> Option<Self> {
        let blocks = columns.div_ceil(BLOCK);
        let grouped = |group: Group| match group {
            Group::Row => blocks,
            Group::G32 | Group::G64 | Group::G128 => group.columns(columns) / BLOCK,
        };
        let (group_blocks, header, bits) = match format {
            Format::F32 => (blocks, 0, 32),
            Format::F16 | Format::Bf16 => (blocks, 0, 16),
            Format::Ternary => (blocks, 4 * TILE, 2),
            Format::Int8 { group } => (grouped(group), 2 * TILE, 8),
            Format::Int4 { group, zero } => {
                let header = match zero {
                    ZeroKind::Symmetric => 2 * TILE,
                    ZeroKind::Point => 3 * TILE,
                    ZeroKind::Min => 4 * TILE,
                };
                (grouped(group), header, 4)
            }
        };
        let block_bytes = TILE * BLOCK / 8 * bits;
        let headers = blocks.div_ceil(group_blocks).checked_mul(header)?;
        let tile_bytes = blocks.checked_mul(block_bytes)?.checked_add(headers)?;
        Some(Layout { format, blocks, group_blocks, header, block_bytes, tile_bytes })
    }

    /// Where in a tile the header of a block's group is.
    pub(crate) fn header_at(&self, block: usize) -> usize {
        let group = block / self.group_blocks;
        group * (self.header + self.group_blocks * self.block_bytes)
    }

    /// Where in a tile the codes of a block are.
    pub(crate) fn codes_at(&self, block: usize) -> usize {
        (block / self.group_blocks + 1) * self.header + block * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_have_no_gaps() {
        let groups = [Group::G32, Group::G64, Group::G128, Group::Row];
        let zeros = [ZeroKind::Symmetric, ZeroKind::Point, ZeroKind::Min];
        let int4 = groups.iter().flat_map(|&group| zeros.map(|zero| Format::Int4 { group, zero }));
        let int8 = groups.iter().map(|&group| Format::Int8 { group });
        for format in int4.chain(int8).chain([Format::Ternary, Format::F32, Format::Bf16]) {
            for columns in [1, 32, 33, 64, 100, 128, 300] {
                let layout = Layout::new(format, columns).unwrap();
                let mut end = 0;
                for block in 0..layout.blocks {
                    if block.is_multiple_of(layout.group_blocks) {
                        assert_eq!(layout.header_at(block), end);
                        end += layout.header;
                    }
                    assert_eq!(layout.codes_at(block), end);
                    end += layout.block_bytes;
                }
                assert_eq!(end, layout.tile_bytes);
            }
        }
    }

    #[test]
    fn bits_per_weight() {
        let bits = |format: &str| {
            let layout = Layout::new(format.parse().unwrap(), 2560).unwrap();
            layout.tile_bytes as f64 * 8.0 / (TILE * 2560) as f64
        };
        assert_eq!(bits("ternary"), 2.0125);
        assert_eq!(bits("int4-g32"), 4.5);
        assert_eq!(bits("int4-g128"), 4.125);
        assert_eq!(bits("int8"), 8.5);
        assert_eq!(Layout::new(Format::F32, usize::MAX), None);
    }
}
