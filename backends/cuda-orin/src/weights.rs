//! Weight matrices on the device.
//!
//! Rows of units as in `layout.rs`; scales and zero points in planes of their own, those of 8 rows beside each other; floats
//! row by row. A matrix is packed and sent a batch of rows at a time, so that the host holds little beside the matrix
//! itself: on a device whose memory is the host's no second copy of it exists.

use half::f16;
use rayon::prelude::*;
use trine_backend::{Activation, Codes, Error, Format, Group, HostMatrix, Result, Zero, ZeroKind};

use crate::layout::{LANES, TILE, UNIT, pack_int4, pack_ternary, place, segment};
use crate::memory::{Memory, Piece};

/// Bytes that are packed and sent at a time.
const BATCH: usize = 16 << 20;
/// Sums of a row's codes times activations stay below 2^31 up to here: 127 · 16 · columns.
const MOST_COLUMNS: usize = 1 << 20;

/// A matrix in the device's layout.
#[derive(Debug)]
pub struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) format: Format,
    pub(crate) activation: Activation,
    pub(crate) codes: Piece,
    pub(crate) scales: Option<Piece>,
    /// Zero points or minima.
    pub(crate) zeros: Option<Piece>,
}

impl Matrix {
    pub(crate) fn new(memory: &Memory, matrix: &HostMatrix<'_>) -> Result<Matrix> {
        let (rows, columns, format) = (matrix.rows(), matrix.columns(), matrix.format());
        if columns > MOST_COLUMNS || u32::try_from(rows.next_multiple_of(TILE)).is_err() {
            return Err(Error::Unsupported(format!(
                "a matrix of {rows} x {columns} is above the {MOST_COLUMNS} columns or 2^32 rows of the cuda-orin backend"
            )));
        }
        let packer = Packer { matrix, what: format!("{format} weights of {rows} x {columns}") };
        Ok(Matrix {
            rows,
            columns,
            format,
            activation: matrix.activation(),
            codes: packer.codes(memory)?,
            scales: packer.scales(memory)?,
            zeros: packer.zeros(memory)?,
        })
    }

    /// Units of a segment of a row.
    pub(crate) fn per(&self) -> usize {
        segment(self.columns)
    }

    /// Scales of a row, in memory.
    pub(crate) fn slots(&self) -> usize {
        match self.format {
            Format::Int4 { group, .. } | Format::Int8 { group } => slots(group, self.columns),
            _ => 1,
        }
    }

    /// Floats of a row of a dense matrix, in memory.
    pub(crate) fn pitch(&self) -> usize {
        pitch(self.columns)
    }

    /// Whether a row's product is one integer sum, scaled once.
    pub(crate) fn is_integer(&self) -> bool {
        match self.format {
            Format::Ternary => true,
            Format::Int4 { group: Group::Row, zero } => self.activation == Activation::Token && zero != ZeroKind::Min,
            Format::Int8 { group: Group::Row } => self.activation == Activation::Token,
            _ => false,
        }
    }

    /// Bytes that a product with it reads.
    pub(crate) fn bytes(&self) -> u64 {
        let planes = [Some(&self.codes), self.scales.as_ref(), self.zeros.as_ref()];
        planes.into_iter().flatten().map(Piece::bytes).sum()
    }

    /// Addresses of codes, scales and zeros; 0 for what it does without.
    pub(crate) fn addresses(&self) -> [u64; 3] {
        let address = |piece: &Option<Piece>| piece.as_ref().map_or(0, Piece::address);
        [self.codes.address(), address(&self.scales), address(&self.zeros)]
    }
}

fn slots(group: Group, columns: usize) -> usize {
    match group {
        Group::G32 => segment(columns) * LANES,
        _ => group.count(columns),
    }
}

fn pitch(columns: usize) -> usize {
    columns.next_multiple_of(8)
}

/// A host matrix on its way to the device.
struct Packer<'a> {
    matrix: &'a HostMatrix<'a>,
    what: String,
}

impl Packer<'_> {
    /// Rows in memory.
    fn padded_rows(&self) -> usize {
        self.matrix.rows().next_multiple_of(TILE)
    }

    /// Bytes of a row's codes, in memory.
    fn row_bytes(&self) -> usize {
        let (columns, per) = (self.matrix.columns(), segment(self.matrix.columns()));
        match self.matrix.format() {
            Format::F32 => 4 * pitch(columns),
            Format::F16 | Format::Bf16 => 2 * pitch(columns),
            Format::Int8 { .. } => per * LANES * UNIT,
            Format::Int4 { .. } => per * LANES * UNIT / 2,
            Format::Ternary => per.div_ceil(2) * LANES * UNIT / 2,
        }
    }

    /// Sends rows (or groups of rows) of `row_bytes` that `pack` writes into zeros.
    fn send(
        &self,
        memory: &Memory,
        rows: usize,
        row_bytes: usize,
        pack: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Result<Piece> {
        let bytes = (rows as u64).checked_mul(row_bytes as u64);
        let bytes = bytes.ok_or_else(|| Error::OutOfMemory(format!("{} are beyond 64 bits", self.what)))?;
        let piece = memory.piece(&self.what, bytes)?;
        let per_batch = (BATCH / row_bytes).max(1);
        let mut buffer = vec![0u8; per_batch.min(rows) * row_bytes];
        for first in (0..rows).step_by(per_batch) {
            let batch = &mut buffer[..per_batch.min(rows - first) * row_bytes];
            batch.par_chunks_mut(row_bytes).enumerate().for_each(|(at, out)| {
                out.fill(0);
                pack(first + at, out);
            });
            piece.write((first * row_bytes) as u64, batch)?;
        }
        Ok(piece)
    }

    fn codes(&self, memory: &Memory) -> Result<Piece> {
        self.send(memory, self.padded_rows(), self.row_bytes(), |row, out| {
            if row < self.matrix.rows() {
                self.pack_row(row, out);
            }
        })
    }

    fn pack_row(&self, row: usize, out: &mut [u8]) {
        let columns = self.matrix.columns();
        let per = segment(columns);
        let values = row * columns..(row + 1) * columns;
        match self.matrix.codes() {
            Codes::F32(floats) => fill(out, bytemuck::cast_slice(&floats[values])),
            Codes::F16(floats) => fill(out, bytemuck::cast_slice(&floats[values])),
            Codes::Bf16(floats) => fill(out, bytemuck::cast_slice(&floats[values])),
            Codes::Int8(int8) => {
                for (unit, codes) in int8.codes()[values].chunks(UNIT).enumerate() {
                    let (step, lane) = (unit % per, unit / per);
                    for (half, codes) in codes.chunks(16).enumerate() {
                        fill(&mut out[((step * 2 + half) * LANES + lane) * 16..], bytemuck::cast_slice(codes));
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

    fn scales(&self, memory: &Memory) -> Result<Option<Piece>> {
        match self.matrix.codes() {
            Codes::Int4(int4) => self.groups(memory, int4.group(), |at| int4.scales()[at].to_le_bytes()).map(Some),
            Codes::Int8(int8) => self.groups(memory, int8.group(), |at| int8.scales()[at].to_le_bytes()).map(Some),
            Codes::Ternary(ternary) => {
                let scale = |row: usize, out: &mut [u8]| {
                    let scale = ternary.scales().get(row).copied().unwrap_or(0.0);
                    out.copy_from_slice(&scale.to_le_bytes());
                };
                self.send(memory, self.padded_rows(), 4, scale).map(Some)
            }
            Codes::F32(_) | Codes::F16(_) | Codes::Bf16(_) => Ok(None),
        }
    }

    fn zeros(&self, memory: &Memory) -> Result<Option<Piece>> {
        let Codes::Int4(int4) = self.matrix.codes() else { return Ok(None) };
        match int4.zero() {
            Zero::Symmetric => Ok(None),
            Zero::Point(points) => self.groups(memory, int4.group(), |at| [points[at]]).map(Some),
            Zero::Min(minima) => self.groups(memory, int4.group(), |at| f16::to_le_bytes(minima[at])).map(Some),
        }
    }

    /// `[tile of 8 rows][slot][8]`: what each group of each row has.
    fn groups<const N: usize>(
        &self,
        memory: &Memory,
        group: Group,
        value: impl Fn(usize) -> [u8; N] + Sync,
    ) -> Result<Piece> {
        let columns = self.matrix.columns();
        let (groups, per, slots) = (group.count(columns), segment(columns), slots(group, columns));
        self.send(memory, self.padded_rows() / TILE, slots * TILE * N, |tile, out| {
            for row in tile * TILE..((tile + 1) * TILE).min(self.matrix.rows()) {
                for at in 0..groups {
                    let slot = if group == Group::G32 { place(at, per) } else { at };
                    out[(slot * TILE + row % TILE) * N..][..N].copy_from_slice(&value(row * groups + at));
                }
            }
        })
    }
}

fn fill(out: &mut [u8], bytes: &[u8]) {
    out[..bytes.len()].copy_from_slice(bytes);
}
