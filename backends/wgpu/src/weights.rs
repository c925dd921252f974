//! Weight matrices on the device.
//!
//! Tiles of 8 or 16 rows by units of 128 columns, as `weights.wgsl` describes: neighbouring threads have
//! neighbouring rows, so 16 bytes of each row of a tile come before the next 16 bytes. A matrix beyond the
//! device's largest binding is split into parts by rows.

use half::f16;
use rayon::prelude::*;
use trine_backend::{Activation, Codes, Error, Format, Group, HostMatrix, Result, Zero};

use crate::device::Device;

/// Columns of a unit.
pub(crate) const UNIT: usize = 128;
/// Threads that share a tile.
const THREADS: usize = 256;
/// From so many rows on, tiles of 16 are enough to keep a large GPU busy; below, tiles of 8 are twice as many.
const MANY_ROWS: usize = 16384;
/// Bytes that are packed and sent at a time.
const BATCH: usize = 16 << 20;
/// Tiles that one dispatch reaches.
const MOST_TILES: usize = 65535;
/// Ternary sums stay whole numbers below 2^24 up to here.
const MOST_TERNARY_COLUMNS: usize = (1 << 24) / 127;

/// A matrix in the device's layout.
#[derive(Debug)]
pub struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) format: Format,
    pub(crate) activation: Activation,
    /// Rows of a tile.
    pub(crate) tile: usize,
    pub(crate) parts: Vec<Part>,
}

/// Some rows of a matrix.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) codes: wgpu::Buffer,
    pub(crate) scales: Option<wgpu::Buffer>,
    /// Zero points or minima.
    pub(crate) zeros: Option<wgpu::Buffer>,
}

impl Matrix {
    pub(crate) fn new(device: &Device, matrix: &HostMatrix<'_>) -> Result<Matrix> {
        let (rows, columns, format) = (matrix.rows(), matrix.columns(), matrix.format());
        if format == Format::Ternary && columns > MOST_TERNARY_COLUMNS {
            return Err(Error::Unsupported(format!(
                "ternary rows of {columns} columns are above the {MOST_TERNARY_COLUMNS} of the wgpu backend"
            )));
        }
        let packer = Packer::new(matrix);
        let tiles = rows.div_ceil(packer.tile);
        let per_part = (device.binding_limit / packer.tile_bytes() as u64).min(MOST_TILES as u64) as usize;
        if per_part == 0 {
            return Err(Error::Unsupported(format!(
                "{} rows of {columns} columns take {} bytes, and {} has buffers of at most {}",
                packer.tile,
                packer.tile_bytes(),
                device.facts.name,
                device.binding_limit
            )));
        }
        let mut parts = Vec::new();
        for first in (0..tiles).step_by(per_part) {
            let count = per_part.min(tiles - first);
            parts.push(packer.part(device, first, count)?);
        }
        Ok(Matrix { rows, columns, format, activation: matrix.activation(), tile: packer.tile, parts })
    }

    /// Units of 128 columns.
    pub(crate) fn units(&self) -> usize {
        self.columns.div_ceil(UNIT)
    }

    /// Units that one thread sums in order. It depends on the shape alone, so that the order of sums does.
    pub(crate) fn units_per_segment(&self) -> usize {
        self.units().div_ceil(THREADS / self.tile)
    }
}

/// A host matrix and how it is laid out.
struct Packer<'a> {
    matrix: &'a HostMatrix<'a>,
    /// Rows of a tile.
    tile: usize,
    units: usize,
    /// 16-byte pieces of a row in a unit.
    pieces: usize,
}

impl<'a> Packer<'a> {
    fn new(matrix: &'a HostMatrix<'a>) -> Self {
        let pieces = match matrix.format() {
            Format::F32 => 32,
            Format::F16 | Format::Bf16 => 16,
            Format::Int8 { .. } => 8,
            Format::Int4 { .. } => 4,
            Format::Ternary => 2,
        };
        let tile = if matrix.rows() < MANY_ROWS { 8 } else { 16 };
        Packer { matrix, tile, units: matrix.columns().div_ceil(UNIT), pieces }
    }

    fn tile_bytes(&self) -> usize {
        self.units * self.pieces * self.tile * 16
    }

    fn part(&self, device: &Device, first: usize, tiles: usize) -> Result<Part> {
        let what = format!("{} weights", self.matrix.format());
        let codes = device.storage(&what, (tiles * self.tile_bytes()) as u64)?;
        self.send_codes(device, &codes, first, tiles)?;
        let send = |words: Option<Vec<u32>>| -> Result<Option<wgpu::Buffer>> {
            let Some(words) = words else { return Ok(None) };
            let bytes: &[u8] = bytemuck::cast_slice(&words);
            let buffer = device.storage(&what, bytes.len() as u64)?;
            device.queue.write_buffer(&buffer, 0, bytes);
            Ok(Some(buffer))
        };
        let (scales, zeros) = (send(self.scales(first, tiles))?, send(self.zeros(first, tiles))?);
        let first_row = first * self.tile;
        let rows = (tiles * self.tile).min(self.matrix.rows() - first_row);
        Ok(Part { first_row, rows, codes, scales, zeros })
    }

    /// Packs and sends a batch while the one before is on its way, and no more than that: the host holds little
    /// beside the matrix.
    fn send_codes(&self, device: &Device, buffer: &wgpu::Buffer, first: usize, tiles: usize) -> Result<()> {
        let per_batch = (BATCH / self.tile_bytes()).max(1);
        let mut bytes = vec![0; per_batch.min(tiles) * self.tile_bytes()];
        let mut before = None;
        for start in (0..tiles).step_by(per_batch) {
            let count = per_batch.min(tiles - start);
            let batch = &mut bytes[..count * self.tile_bytes()];
            batch.par_chunks_mut(self.tile_bytes()).enumerate().for_each(|(at, out)| {
                self.pack_tile(first + start + at, out);
            });
            device.queue.write_buffer(buffer, (start * self.tile_bytes()) as u64, batch);
            let submission = device.queue.submit([]);
            if let Some(before) = before.replace(submission) {
                device.wait(Some(before))?;
            }
        }
        Ok(())
    }

    /// `[unit, piece, row]` of one tile; what is past the last row or column is zero.
    fn pack_tile(&self, tile: usize, out: &mut [u8]) {
        let mut pieces = out.chunks_exact_mut(16);
        for unit in 0..self.units {
            for piece in 0..self.pieces {
                for (lane, out) in pieces.by_ref().take(self.tile).enumerate() {
                    let row = tile * self.tile + lane;
                    let mut bytes = [0; 16];
                    if row < self.matrix.rows() {
                        self.pack_piece(row, unit * self.pieces + piece, &mut bytes);
                    }
                    out.copy_from_slice(&bytes);
                }
            }
        }
    }

    /// 16 bytes of a row.
    fn pack_piece(&self, row: usize, piece: usize, out: &mut [u8; 16]) {
        let columns = self.matrix.columns();
        match self.matrix.codes() {
            Codes::F32(values) => {
                let values = slice_of(&values[row * columns..(row + 1) * columns], 4 * piece, 4);
                out[..4 * values.len()].copy_from_slice(bytemuck::cast_slice(values));
            }
            Codes::F16(values) => {
                let values = slice_of(&values[row * columns..(row + 1) * columns], 8 * piece, 8);
                out[..2 * values.len()].copy_from_slice(bytemuck::cast_slice(values));
            }
            Codes::Bf16(values) => {
                let values = slice_of(&values[row * columns..(row + 1) * columns], 8 * piece, 8);
                out[..2 * values.len()].copy_from_slice(bytemuck::cast_slice(values));
            }
            Codes::Int8(int8) => {
                let codes = slice_of(&int8.codes()[row * columns..(row + 1) * columns], 16 * piece, 16);
                out[..codes.len()].copy_from_slice(bytemuck::cast_slice(codes));
            }
            Codes::Int4(int4) => {
                let row_bytes = columns.div_ceil(2);
                let codes = slice_of(&int4.codes()[row * row_bytes..(row + 1) * row_bytes], 16 * piece, 16);
                pack_int4(codes, out);
            }
            Codes::Ternary(ternary) => {
                let row_bytes = columns.div_ceil(4);
                let codes = slice_of(&ternary.codes()[row * row_bytes..(row + 1) * row_bytes], 16 * piece, 16);
                pack_ternary(codes, out);
            }
        }
    }

    fn scales(&self, first: usize, tiles: usize) -> Option<Vec<u32>> {
        match self.matrix.codes() {
            Codes::Int4(int4) => Some(self.groups(first, tiles, int4.group(), |at| int4.scales()[at])),
            Codes::Int8(int8) => Some(self.groups(first, tiles, int8.group(), |at| int8.scales()[at])),
            Codes::Ternary(ternary) => {
                let bits = |row: usize| ternary.scales().get(row).map_or(0, |scale| scale.to_bits());
                Some((first * self.tile..(first + tiles) * self.tile).map(bits).collect())
            }
            Codes::F32(_) | Codes::F16(_) | Codes::Bf16(_) => None,
        }
    }

    fn zeros(&self, first: usize, tiles: usize) -> Option<Vec<u32>> {
        let Codes::Int4(int4) = self.matrix.codes() else { return None };
        match int4.zero() {
            Zero::Symmetric => None,
            Zero::Point(points) => {
                Some(self.groups(first, tiles, int4.group(), |at| f16::from_f32(f32::from(points[at]))))
            }
            Zero::Min(minima) => Some(self.groups(first, tiles, int4.group(), |at| minima[at])),
        }
    }

    /// `[tile, pair of groups, row]`: two f16 in a word, the first in its low half.
    fn groups(&self, first: usize, tiles: usize, group: Group, value: impl Fn(usize) -> f16) -> Vec<u32> {
        let groups = group.count(self.matrix.columns());
        let words = match group {
            Group::G32 => 2 * self.units,
            Group::G64 => self.units,
            Group::G128 => self.units.div_ceil(2),
            Group::Row => 1,
        };
        let mut out = Vec::with_capacity(tiles * words * self.tile);
        for tile in first..first + tiles {
            for word in 0..words {
                for row in tile * self.tile..(tile + 1) * self.tile {
                    let half = |at: usize| {
                        let exists = row < self.matrix.rows() && at < groups;
                        if exists { u32::from(value(row * groups + at).to_bits()) } else { 0 }
                    };
                    out.push(half(2 * word) | half(2 * word + 1) << 16);
                }
            }
        }
        out
    }
}

/// Up to `count` values from `start`; fewer or none past the end.
fn slice_of<T>(values: &[T], start: usize, count: usize) -> &[T] {
    let start = start.min(values.len());
    &values[start..(start + count).min(values.len())]
}

/// 32 nibbles: from neighbours in a byte to columns `i` and `16 + i` in byte `i`.
fn pack_int4(codes: &[u8], out: &mut [u8; 16]) {
    let mut padded = [0u8; 16];
    padded[..codes.len()].copy_from_slice(codes);
    for i in 0..8 {
        let (low, high) = (padded[i], padded[8 + i]);
        out[2 * i] = low & 15 | high << 4;
        out[2 * i + 1] = low >> 4 | high & 0xf0;
    }
}

/// 64 codes of 2 bits: from neighbours in a byte to columns `i`, `16 + i`, `32 + i` and `48 + i` in byte `i`.
fn pack_ternary(codes: &[u8], out: &mut [u8; 16]) {
    let mut padded = [0u8; 16];
    padded[..codes.len()].copy_from_slice(codes);
    for (i, out) in out.iter_mut().enumerate() {
        let code = |column: usize| padded[column / 4] >> (2 * (column % 4)) & 3;
        *out = code(i) | code(16 + i) << 2 | code(32 + i) << 4 | code(48 + i) << 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_and_ternary_codes_go_where_shaders_look() {
        let codes: Vec<u8> = (0..16).map(|byte| (2 * byte % 16) | ((2 * byte + 1) % 16) << 4).collect();
        let mut out = [0; 16];
        pack_int4(&codes, &mut out);
        // Column c has the code c % 16, so columns i and 16 + i are alike.
        assert_eq!(out, std::array::from_fn(|i| (i as u8) << 4 | i as u8));
        let column = |c: usize| (c / 16 + c) as u8 % 3;
        let codes: Vec<u8> =
            (0..16).map(|byte| (0..4).fold(0, |b, at| b | column(4 * byte + at) << (2 * at))).collect();
        pack_ternary(&codes, &mut out);
        for (i, &byte) in out.iter().enumerate() {
            assert_eq!(byte, (0..4).fold(0, |b, p| b | column(16 * p + i) << (2 * p)), "byte {i}");
        }
    }
}
