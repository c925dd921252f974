//! Activations on the device.

use std::sync::OnceLock;

use trine_backend::{Error, Result};

use crate::device::Device;
use crate::weights::UNIT;

/// f32 `[rows, columns]`, row-major, and their INT8 codes where a product asks for them.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) floats: wgpu::Buffer,
    quantized: OnceLock<Quantized>,
}

/// INT8 activations, padded with zeros to units of 128 columns.
#[derive(Debug)]
pub(crate) struct Quantized {
    /// `[rows, units * 128]` codes.
    pub(crate) codes: wgpu::Buffer,
    /// `[rows, units * 4]` scales with the sums of their codes.
    pub(crate) spans: wgpu::Buffer,
}

impl Buffer {
    pub(crate) fn new(device: &Device, rows: usize, columns: usize) -> Result<Buffer> {
        let bytes = (rows as u64).checked_mul(columns as u64).and_then(|cells| cells.checked_mul(4));
        let fits = rows > 0 && columns > 0;
        let bytes = bytes
            .filter(|_| fits)
            .ok_or_else(|| Error::Invalid(format!("a buffer of {rows} x {columns} can't be made")))?;
        let floats = device.storage(&format!("a buffer of {rows} x {columns}"), bytes)?;
        Ok(Buffer { rows, columns, floats, quantized: OnceLock::new() })
    }

    /// Units of 128 columns.
    pub(crate) fn units(&self) -> usize {
        self.columns.div_ceil(UNIT)
    }

    /// The codes' buffers, made when they are first asked for.
    pub(crate) fn quantized(&self, device: &Device) -> Result<&Quantized> {
        if let Some(quantized) = self.quantized.get() {
            return Ok(quantized);
        }
        let codes = device.storage("activation codes", (self.rows * self.units() * UNIT) as u64)?;
        let spans = device.storage("activation scales", (self.rows * self.units() * UNIT / 32 * 8) as u64)?;
        Ok(self.quantized.get_or_init(|| Quantized { codes, spans }))
    }
}
