//! Hugging Face's BitNet b1.58 layouts: packed ternary weights with a scale, and float weights that are made ternary
//! on loading.
//!
//! The layouts are those of transformers' `integrations/bitnet.py`; the quantisation is "absmean" of
//! <https://arxiv.org/abs/2402.17764>.

use super::tensor::{Dtype, Tensor, check_finite};
use crate::Result;

/// Rows of the matrix in one row of bytes.
const ROWS_PER_BYTE: usize = 4;
/// A mean magnitude below this counts as this, as transformers has it.
const SMALLEST_MEAN: f32 = 1e-5;

/// A packed ternary matrix: a U8 tensor `[rows / 4, cols]`, in whose byte row `r` bits `2i..2i + 2` hold `w + 1` of
/// matrix row `r + i * rows / 4`.
#[derive(Debug, Clone, Copy)]
pub struct PackedTernary<'a> {
    tensor: Tensor<'a>,
    byte_rows: usize,
    rows: usize,
    cols: usize,
}

impl<'a> PackedTernary<'a> {
    /// Reads `tensor` as a packed matrix.
    ///
    /// # Errors
    /// It is not a matrix of U8.
    pub fn new(tensor: Tensor<'a>) -> Result<Self> {
        if tensor.dtype() != Dtype::U8 {
            return Err(tensor.error(format_args!("dtype {} where packed ternary weights are U8", tensor.dtype())));
        }
        let (byte_rows, cols) = tensor.matrix()?;
        let rows = byte_rows
            .checked_mul(ROWS_PER_BYTE)
            .ok_or_else(|| tensor.error(format_args!("{byte_rows} packed rows are too many")))?;
        Ok(Self { tensor, byte_rows, rows, cols })
    }

    /// Rows of the unpacked matrix: outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The packed tensor.
    pub fn tensor(&self) -> &Tensor<'a> {
        &self.tensor
    }

    /// Unpacks matrix row `row` into `out`, `cols` values of -1, 0 or 1.
    ///
    /// # Errors
    /// There is no such row, `out` has another length, or a code is 3, which stands for nothing: names the tensor.
    pub fn row(&self, row: usize, out: &mut [i8]) -> Result<()> {
        if row >= self.rows {
            return Err(self.tensor.error(format_args!("row {row} of {}", self.rows)));
        }
        check_len(&self.tensor, out.len(), self.cols)?;
        let bytes = self.tensor.row_bytes(row % self.byte_rows)?;
        let shift = 2 * (row / self.byte_rows);
        let mut largest = 0;
        for (value, byte) in out.iter_mut().zip(bytes) {
            let code = (byte >> shift) & 3;
            largest = largest.max(code);
            *value = code as i8 - 1;
        }
        if largest == 3 {
            let col = out.iter().position(|&value| value == 2).unwrap_or_default();
            return Err(self.tensor.error(format_args!("invalid ternary code 3 at row {row}, column {col}")));
        }
        Ok(())
    }
}

/// The factor that a packed matrix's products are multiplied by, out of its `weight_scale` tensor: the scale itself,
/// or with `divide` (the older `linear_class: bitlinear`) one over it.
///
/// # Errors
/// The tensor is not one float, or not a positive, finite one (a scale is a mean magnitude), or one whose inverse is
/// not.
pub fn scale(divide: bool, tensor: &Tensor<'_>) -> Result<f32> {
    if tensor.elements() != 1 {
        return Err(tensor.error(format_args!("shape {:?} where a scale is one number", tensor.shape())));
    }
    let stored = tensor.to_f32()?[0];
    let factor = if divide { 1.0 / stored } else { stored };
    let usable = |x: f32| x.is_finite() && x > 0.0;
    if !usable(stored) || !usable(factor) {
        return Err(
            tensor.error(format_args!("scale {stored} is not a positive, finite number: the weights are damaged"))
        );
    }
    Ok(factor)
}

/// A float matrix that is made ternary on loading (`quantization_mode: online`): with `m` the mean magnitude of the
/// whole matrix, at least 1e-5, and `k = 1 / m` in f32, `t = clamp(round(w * k), -1, 1)`, halves to even, and the
/// weight is `t / k`.
#[derive(Debug)]
pub struct OnlineTernary<'a> {
    tensor: Tensor<'a>,
    rows: usize,
    cols: usize,
    inverse: f32,
    /// One row of floats.
    buffer: Vec<f32>,
}

impl<'a> OnlineTernary<'a> {
    /// Reads all of `tensor` once for its mean magnitude, summed in f64.
    ///
    /// # Errors
    /// It is no matrix of F32, F16 or BF16, has no elements, or holds NaN or infinity: names the row.
    pub fn new(tensor: Tensor<'a>) -> Result<Self> {
        let (rows, cols) = tensor.matrix()?;
        if tensor.elements() == 0 {
            return Err(tensor.error(format_args!("shape {:?} has no elements", tensor.shape())));
        }
        let mut buffer = vec![0.0; cols];
        let mut sum = 0.0;
        for row in 0..rows {
            tensor.row_f32(row, &mut buffer)?;
            check_finite(&buffer, &tensor, row)?;
            sum += buffer.iter().map(|w| f64::from(w.abs())).sum::<f64>();
        }
        let mean = (sum / tensor.elements() as f64) as f32;
        Ok(Self { tensor, rows, cols, inverse: 1.0 / mean.max(SMALLEST_MEAN), buffer })
    }

    /// Rows of the matrix: outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The float tensor.
    pub fn tensor(&self) -> &Tensor<'a> {
        &self.tensor
    }

    /// The factor of the ternary values.
    pub fn scale(&self) -> f32 {
        1.0 / self.inverse
    }

    /// Makes matrix row `row` ternary: `out` holds `cols` values of -1, 0 or 1.
    ///
    /// # Errors
    /// There is no such row, or `out` has another length.
    pub fn row(&mut self, row: usize, out: &mut [i8]) -> Result<()> {
        check_len(&self.tensor, out.len(), self.cols)?;
        self.tensor.row_f32(row, &mut self.buffer)?;
        ternarise(&self.buffer, self.inverse, out);
        Ok(())
    }
}

/// `clamp(round(w * inverse), -1, 1)` with halves to even, for values of the same number.
pub fn ternarise(values: &[f32], inverse: f32, out: &mut [i8]) {
    for (t, w) in out.iter_mut().zip(values) {
        *t = (w * inverse).round_ties_even().clamp(-1.0, 1.0) as i8;
    }
}

fn check_len(tensor: &Tensor<'_>, found: usize, cols: usize) -> Result<()> {
    if found == cols {
        return Ok(());
    }
    Err(tensor.error(format_args!("a row has {cols} values and the place for it {found}")))
}
