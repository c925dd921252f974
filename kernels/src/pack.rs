//! Weights as the kernels read them: rows of units of 32 columns in 16 segments that 16 lanes walk side by side, 8 rows a step
//! after the other, so that blocks read long stretches of memory; scales and zeros in planes of their own, those of 8 rows beside
//! each other; floats row by row.
//!
//! A lane sums the units of one segment in their order; so that neighbouring lanes' loads are neighbours, step `s` of all
//! segments comes before step `s + 1`. Unit `u` of a row whose segments have `per` units is at step `u % per` of lane
//! `u / per`.

use trine_backend::{Activation, Codes, Format, Group, HostMatrix, Zero, ZeroKind};

/// Columns of a unit.
pub const UNIT: usize = 32;
/// Segments of a row.
pub const LANES: usize = 16;
/// Rows whose scales lie beside each other; matrices have a multiple of that many rows in memory.
pub const TILE: usize = 8;

/// Tokens of a tile of `gemm`: it reads whole tiles, so that quantised activations of more than 8 rows have a multiple of
/// that many in memory.
pub const TOKENS: usize = 64;

/// Units of a segment of a row of `columns`.
pub fn segment(columns: usize) -> usize {
    columns.div_ceil(UNIT).div_ceil(LANES)
}

/// The place of a unit among those of its row, in memory.
pub fn place(unit: usize, per: usize) -> usize {
    unit % per * LANES + unit / per
}

/// Floats of a row of a dense matrix, in memory.
pub fn pitch(columns: usize) -> usize {
    columns.next_multiple_of(8)
}

/// Scales of a row, in memory.
pub fn slots(format: Format, columns: usize) -> usize {
    match format {
        Format::Int4 { group: Group::G32, .. } | Format::Int8 { group: Group::G32 } => segment(columns) * LANES,
        Format::Int4 { group, .. } | Format::Int8 { group } => group.count(columns),
        _ => 1,
    }
}

/// Whether a row's product is one integer sum, scaled once.
pub fn is_integer(format: Format, activation: Activation) -> bool {
    match format {
        Format::Ternary => true,
        Format::Int4 { group: Group::Row, zero } => activation == Activation::Token && zero != ZeroKind::Min,
        Format::Int8 { group: Group::Row } => activation == Activation::Token,
        _ => false,
    }
}

type Pack<'a> = Box<dyn Fn(usize, &mut [u8]) + Sync + 'a>;

/// Rows of bytes in device memory, made one by one.
pub struct Plane<'a> {
    /// How many there are.
    pub rows: usize,
    /// Bytes of each.
    pub row_bytes: usize,
    pack: Pack<'a>,
}

impl<'a> Plane<'a> {
    fn new(rows: usize, row_bytes: usize, pack: impl Fn(usize, &mut [u8]) + Sync + 'a) -> Self {
        Plane { rows, row_bytes, pack: Box::new(pack) }
    }

    /// Writes one row.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not [`Plane::row_bytes`] long.
    pub fn pack(&self, row: usize, out: &mut [u8]) {
        assert!(row < self.rows && out.len() == self.row_bytes);
        out.fill(0);
        (self.pack)(row, out);
    }

    /// All rows.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.rows * self.row_bytes];
        out.chunks_exact_mut(self.row_bytes).enumerate().for_each(|(row, out)| self.pack(row, out));
        out
    }
}

/// All of a matrix.
pub struct Planes<'a> {
    /// Codes or floats.
    pub codes: Plane<'a>,
    /// Scales of codes.
    pub scales: Option<Plane<'a>>,
    /// Zero points or minima.
    pub zeros: Option<Plane<'a>>,
}

impl<'a> Planes<'a> {
    /// Those of a matrix.
    pub fn new(matrix: &'a HostMatrix<'a>) -> Self {
        Planes { codes: codes(matrix), scales: scales(matrix), zeros: zeros(matrix) }
    }
}

fn padded_rows(matrix: &HostMatrix<'_>) -> usize {
    matrix.rows().next_multiple_of(TILE)
}

fn row_bytes(format: Format, columns: usize) -> usize {
    let per = segment(columns);
    match format {
        Format::F32 => 4 * pitch(columns),
        Format::F16 | Format::Bf16 => 2 * pitch(columns),
        Format::Int8 { .. } => per * LANES * UNIT,
        Format::Int4 { .. } => per * LANES * UNIT / 2,
        Format::Ternary => per.div_ceil(2) * LANES * UNIT / 2,
    }
}

fn codes<'a>(matrix: &'a HostMatrix<'a>) -> Plane<'a> {
    let (rows, bytes) = (matrix.rows(), row_bytes(matrix.format(), matrix.columns()));
    if matrix.format().is_dense() {
        return Plane::new(padded_rows(matrix), bytes, move |row, out| {
            if row < rows {
                pack_row(matrix, row, out);
            }
        });
    }
    Plane::new(padded_rows(matrix) / TILE, TILE * bytes, move |tile, out| {
        let step = step_bytes(matrix.format());
        let mut packed = vec![0; bytes];
        for row in tile * TILE..((tile + 1) * TILE).min(rows) {
            packed.fill(0);
            pack_row(matrix, row, &mut packed);
            for (at, packed) in packed.chunks(step).enumerate() {
                out[(at * TILE + row % TILE) * step..][..step].copy_from_slice(packed);
            }
        }
    })
}

/// Bytes of a row that 16 lanes read at a time.
fn step_bytes(format: Format) -> usize {
    if matches!(format, Format::Int8 { .. }) { LANES * UNIT } else { LANES * UNIT / 2 }
}

/// A row by itself, its steps in order.
fn pack_row(matrix: &HostMatrix<'_>, row: usize, out: &mut [u8]) {
    let columns = matrix.columns();
    let per = segment(columns);
    let values = row * columns..(row + 1) * columns;
    match matrix.codes() {
        Codes::F32(floats) => copy_words(out, floats[values].iter().map(|x| x.to_le_bytes())),
        Codes::F16(floats) => copy_words(out, floats[values].iter().map(|x| x.to_le_bytes())),
        Codes::Bf16(floats) => copy_words(out, floats[values].iter().map(|x| x.to_le_bytes())),
        Codes::Int8(int8) => {
            for (unit, codes) in int8.codes()[values].chunks(UNIT).enumerate() {
                let (step, lane) = (unit % per, unit / per);
                for (half, codes) in codes.chunks(16).enumerate() {
                    let at = ((step * 2 + half) * LANES + lane) * 16;
                    copy_words(&mut out[at..], codes.iter().map(|code| code.to_le_bytes()));
                }
            }
        }
        Codes::Int4(int4) => {
            let row_bytes = columns.div_ceil(2);
            let codes = &int4.codes()[row * row_bytes..(row + 1) * row_bytes];
            for (unit, codes) in codes.chunks(UNIT / 2).enumerate() {
                pack_int4(codes, &mut out[place(unit, per) * 16..][..16]);
            }
        }
        Codes::Ternary(ternary) => {
            let row_bytes = columns.div_ceil(4);
            let codes = &ternary.codes()[row * row_bytes..(row + 1) * row_bytes];
            for (unit, codes) in codes.chunks(UNIT / 4).enumerate() {
                let (step, lane) = (unit % per, unit / per);
                let at = ((step / 2) * LANES + lane) * 16 + step % 2 * 8;
                pack_ternary(codes, &mut out[at..at + 8]);
            }
        }
    }
}

fn copy_words<const N: usize>(out: &mut [u8], words: impl Iterator<Item = [u8; N]>) {
    for (out, word) in out.chunks_exact_mut(N).zip(words) {
        out.copy_from_slice(&word);
    }
}

fn scales<'a>(matrix: &'a HostMatrix<'a>) -> Option<Plane<'a>> {
    match matrix.codes() {
        Codes::Int4(int4) => Some(groups(matrix, int4.group(), |at| int4.scales()[at].to_le_bytes())),
        Codes::Int8(int8) => Some(groups(matrix, int8.group(), |at| int8.scales()[at].to_le_bytes())),
        Codes::Ternary(ternary) => Some(Plane::new(padded_rows(matrix), 4, |row, out| {
            out.copy_from_slice(&ternary.scales().get(row).copied().unwrap_or(0.0).to_le_bytes());
        })),
        Codes::F32(_) | Codes::F16(_) | Codes::Bf16(_) => None,
    }
}

fn zeros<'a>(matrix: &'a HostMatrix<'a>) -> Option<Plane<'a>> {
    let Codes::Int4(int4) = matrix.codes() else { return None };
    match int4.zero() {
        Zero::Symmetric => None,
        Zero::Point(points) => Some(groups(matrix, int4.group(), |at| [points[at]])),
        Zero::Min(minima) => Some(groups(matrix, int4.group(), |at| minima[at].to_le_bytes())),
    }
}

/// `[tile of 8 rows][slot][8]`: what each group of each row has.
fn groups<'a, const N: usize>(
    matrix: &'a HostMatrix<'a>,
    group: Group,
    value: impl Fn(usize) -> [u8; N] + Sync + 'a,
) -> Plane<'a> {
    let columns = matrix.columns();
    let (groups, per, slots) = (group.count(columns), segment(columns), slots(matrix.format(), columns));
    Plane::new(padded_rows(matrix) / TILE, slots * TILE * N, move |tile, out| {
        for row in tile * TILE..((tile + 1) * TILE).min(matrix.rows()) {
            for at in 0..groups {
                let slot = if group == Group::G32 { place(at, per) } else { at };
                out[(slot * TILE + row % TILE) * N..][..N].copy_from_slice(&value(row * groups + at));
            }
        }
    })
}

/// 32 nibbles: from neighbours in a byte to words whose low nibbles are four neighbours and whose high nibbles are the
/// four after them.
fn pack_int4(codes: &[u8], out: &mut [u8]) {
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
fn pack_ternary(codes: &[u8], out: &mut [u8]) {
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
        for columns in [1usize, 32, 33, 512, 513, 3584, 18944] {
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
