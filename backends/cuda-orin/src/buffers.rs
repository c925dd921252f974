//! Activations on the device.

use std::sync::OnceLock;

use trine_backend::{Error, Result};
use trine_kernels::{LANES, TOKENS, UNIT, segment};

use crate::fuse::MOST_FEW_ROWS;
use crate::memory::{Memory, Piece};

/// f32 `[rows, columns]`, row-major, and their INT8 codes where a product asks for them.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) floats: Piece,
    /// What products of few rows read, and those of many: the places that one order leaves at zero are in the midst of the
    /// other.
    quantized: [OnceLock<Quantized>; 2],
}

/// INT8 activations in the order of segments, or unit after unit for products of many rows; the places that are for no
/// column stay zero.
#[derive(Debug)]
pub(crate) struct Quantized {
    /// `[rows, units]` of 32 codes.
    pub(crate) codes: Piece,
    /// `[rows, units]` scales with the sums of their codes.
    pub(crate) spans: Piece,
}

impl Buffer {
    pub(crate) fn new(memory: &Memory, rows: usize, columns: usize) -> Result<Buffer> {
        let bytes = (rows as u64).checked_mul(columns as u64).and_then(|cells| cells.checked_mul(4));
        let fits = rows > 0 && columns > 0 && u32::try_from(columns).is_ok();
        let bytes = bytes
            .filter(|_| fits)
            .ok_or_else(|| Error::Invalid(format!("a buffer of {rows} x {columns} can't be made")))?;
        let floats = memory.zeros(&format!("a buffer of {rows} x {columns}"), bytes)?;
        Ok(Buffer { rows, columns, floats, quantized: Default::default() })
    }

    /// Units of a segment of a row's codes.
    pub(crate) fn per(&self) -> usize {
        segment(self.columns)
    }

    /// Where the floats of a row begin.
    pub(crate) fn row(&self, row: usize) -> u64 {
        self.floats.address() + 4 * (row * self.columns) as u64
    }

    /// Where the codes of a row begin, and its spans, as products of few or of `many` rows read them.
    pub(crate) fn quantized_row(&self, memory: &Memory, row: usize, many: bool) -> Result<(u64, u64)> {
        let quantized = self.quantized(memory, many)?;
        let units = (row * LANES * self.per()) as u64;
        Ok((quantized.codes.address() + UNIT as u64 * units, quantized.spans.address() + 8 * units))
    }

    /// The codes' buffers, made when they are first asked for.
    fn quantized(&self, memory: &Memory, many: bool) -> Result<&Quantized> {
        let slot = &self.quantized[usize::from(many)];
        if let Some(quantized) = slot.get() {
            return Ok(quantized);
        }
        // Products of many rows read whole tiles of them.
        let rows = if many { self.rows.next_multiple_of(TOKENS) } else { self.rows.min(MOST_FEW_ROWS) };
        let units = (rows as u64).checked_mul((LANES * self.per()) as u64);
        let bytes = |each: u64| {
            let bytes = units.and_then(|units| units.checked_mul(each));
            bytes.ok_or_else(|| Error::OutOfMemory(format!("the codes of {rows} rows are beyond 64 bits")))
        };
        let codes = memory.zeros("activation codes", bytes(UNIT as u64)?)?;
        let spans = memory.zeros("activation scales", bytes(8)?)?;
        Ok(slot.get_or_init(|| Quantized { codes, spans }))
    }
}
