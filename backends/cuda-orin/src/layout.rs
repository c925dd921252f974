//! How rows lie in memory: units of 32 columns, in 16 segments that 16 lanes walk side by side.
//!
//! A lane sums the units of one segment in their order; so that neighbouring lanes' loads are neighbours, step `s` of all
//! segments comes before step `s + 1`. Unit `u` of a row whose segments have `per` units is at step `u % per` of lane
//! `u / per`. See the kernels' own description in `trine_kernels`.

/// Columns of a unit.
pub(crate) const UNIT: usize = 32;
/// Segments of a row.
pub(crate) const LANES: usize = 16;
/// Rows whose scales lie beside each other; matrices have a multiple of that many rows in memory.
pub(crate) const TILE: usize = 8;

/// Units of a segment of a row of `columns`.
pub(crate) fn segment(columns: usize) -> usize {
    columns.div_ceil(UNIT).div_ceil(LANES)
}

/// The place of a unit among those of its row, in memory.
pub(crate) fn place(unit: usize, per: usize) -> usize {
    unit % per * LANES + unit / per
}

/// 32 nibbles: from neighbours in a byte to words whose low nibbles are four neighbours and whose high nibbles are the
/// four after them.
pub(crate) fn pack_int4(codes: &[u8], out: &mut [u8]) {
    let mut padded = [0u8; 16];
    padded[..codes.len()].copy_from_slice(codes);
    for (word, out) in padded.chunks_exact(4).zip(out.chunks_exact_mut(4)) {
        let spread = |pair: [u8; 2]| {
            let nibbles = u32::from(u16::from_le_bytes(pair));
            let bytes = (nibbles | nibbles << 8) & 0x00ff_00ff;
            (bytes | bytes << 4) & 0x0f0f_0f0f
        };
        let planar = spread([word[0], word[1]]) | spread([word[2], word[3]]) << 4;
        out.copy_from_slice(&planar.to_le_bytes());
    }
}

/// 32 codes of 2 bits: in each word, from four neighbours in a byte to bits `2p` of byte `b` being column `4p + b`.
pub(crate) fn pack_ternary(codes: &[u8], out: &mut [u8]) {
    let mut padded = [0u8; 8];
    padded[..codes.len()].copy_from_slice(codes);
    for (word, out) in padded.chunks_exact(4).zip(out.chunks_exact_mut(4)) {
        for (byte, out) in out.iter_mut().enumerate() {
            *out = (0..4).fold(0, |bits, p| bits | (word[p] >> (2 * byte) & 3) << (2 * p));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_every_unit_once() {
        for columns in [1, 32, 33, 512, 513, 3584, 18944] {
            let (units, per) = (columns.div_ceil(UNIT), segment(columns));
            let mut places: Vec<usize> = (0..units).map(|unit| place(unit, per)).collect();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), units);
            assert!(places.iter().all(|&place| place < per * LANES));
        }
        assert_eq!((segment(3584), segment(18944), segment(1)), (7, 37, 1));
        // The units of a segment are neighbours for its lane, and 16 places apart in memory.
        assert_eq!([0, 1, 6, 7].map(|unit| place(unit, 7)), [0, 16, 96, 1]);
    }

    #[test]
    fn nibbles_go_where_two_masks_find_four_neighbours() {
        let codes: Vec<u8> = (0..16).map(|byte| (2 * byte % 16) | ((2 * byte + 1) % 16) << 4).collect();
        let mut out = [0; 16];
        pack_int4(&codes, &mut out);
        for column in 0..32 {
            let (word, at) = (column / 8, column % 8);
            let byte = out[4 * word + at % 4];
            assert_eq!(byte >> (4 * (at / 4)) & 15, (column % 16) as u8, "column {column}");
        }
        pack_int4(&[0xff, 0x0f], &mut out);
        assert_eq!(out[..4], [0x0f, 0x0f, 0x0f, 0x00]);
        assert_eq!(out[4..], [0; 12]);
    }

    #[test]
    fn ternary_codes_go_where_shifts_find_four_neighbours() {
        let value = |column: usize| (column * 7 / 3 % 3) as u8;
        let codes: Vec<u8> = (0..8).map(|byte| (0..4).fold(0, |b, at| b | value(4 * byte + at) << (2 * at))).collect();
        let mut out = [0; 8];
        pack_ternary(&codes, &mut out);
        for column in 0..32 {
            let (word, p, byte) = (column / 16, column % 16 / 4, column % 4);
            assert_eq!(out[4 * word + byte] >> (2 * p) & 3, value(column), "column {column}");
        }
    }
}
