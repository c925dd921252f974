//! Weight matrices on the device.
//!
//! A matrix is packed into the kernels' layout and sent a batch of rows at a time, so that the host holds little beside the
//! matrix itself: on a device whose memory is the host's no second copy of it exists.

use rayon::prelude::*;
use trine_backend::{Activation, Error, Format, HostMatrix, Result};
use trine_kernels::{Plane, Planes, TILE, pitch, segment, slots};

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
    codes: Piece,
    scales: Option<Piece>,
    /// Zero points or minima.
    zeros: Option<Piece>,
}

impl Matrix {
    pub(crate) fn new(memory: &Memory, matrix: &HostMatrix<'_>) -> Result<Matrix> {
        let (rows, columns, format) = (matrix.rows(), matrix.columns(), matrix.format());
        if columns > MOST_COLUMNS || u32::try_from(rows.next_multiple_of(TILE)).is_err() {
            return Err(Error::Unsupported(format!(
                "a matrix of {rows} x {columns} is above the {MOST_COLUMNS} columns or 2^32 rows of the cuda-orin backend"
            )));
        }
        let what = format!("{format} weights of {rows} x {columns}");
        let planes = Planes::new(matrix);
        let send = |plane: Option<Plane<'_>>| plane.map(|plane| send(memory, &what, &plane)).transpose();
        Ok(Matrix {
            rows,
            columns,
            format,
            activation: matrix.activation(),
            codes: self::send(memory, &what, &planes.codes)?,
            scales: send(planes.scales)?,
            zeros: send(planes.zeros)?,
        })
    }

    /// Units of a segment of a row.
    pub(crate) fn per(&self) -> usize {
        segment(self.columns)
    }

    /// Scales of a row, in memory.
    pub(crate) fn slots(&self) -> usize {
        slots(self.format, self.columns)
    }

    /// Floats of a row of a dense matrix, in memory.
    pub(crate) fn pitch(&self) -> usize {
        pitch(self.columns)
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

fn send(memory: &Memory, what: &str, plane: &Plane<'_>) -> Result<Piece> {
    let Plane { rows, row_bytes, .. } = *plane;
    let bytes = (rows as u64).checked_mul(row_bytes as u64);
    let bytes = bytes.ok_or_else(|| Error::OutOfMemory(format!("{what} are beyond 64 bits")))?;
    let piece = memory.piece(what, bytes)?;
    let per_batch = (BATCH / row_bytes).max(1);
    let mut buffer = vec![0u8; per_batch.min(rows) * row_bytes];
    for first in (0..rows).step_by(per_batch) {
        let batch = &mut buffer[..per_batch.min(rows - first) * row_bytes];
        batch.par_chunks_mut(row_bytes).enumerate().for_each(|(at, out)| plane.pack(first + at, out));
        piece.write((first * row_bytes) as u64, batch)?;
    }
    Ok(piece)
}
