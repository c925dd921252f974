//! One tensor of a checkpoint: typed, shaped, bounds-checked bytes, and their conversion to f32.

use std::path::Path;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::mapped::Mapped;
use super::quoted;
use crate::{Error, Result};

pub use ::safetensors::Dtype;

/// A view of one tensor. The bytes are little-endian, row-major, and may start at any address: they are converted,
/// never cast. Their number agrees with dtype and shape.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    pub(super) name: &'a str,
    pub(super) file: &'a Path,
    pub(super) dtype: Dtype,
    pub(super) shape: &'a [usize],
    pub(super) source: &'a Mapped,
    /// Where the bytes begin in `source`.
    pub(super) start: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// The name in the checkpoint, such as `model.norm.weight`.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The file that holds the tensor, or the name of the bytes in memory.
    pub fn file(&self) -> &'a Path {
        self.file
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The extents, outermost first; a scalar has none.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The raw little-endian bytes, at any alignment.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How many elements the tensor has.
    pub fn elements(&self) -> usize {
        // Checked on opening: the product fits.
        self.shape.iter().product()
    }

    /// An error about this tensor: file, tensor, and `problem`.
    pub fn error(&self, problem: impl std::fmt::Display) -> Error {
        Error::file(self.file, format_args!("tensor {}: {problem}", quoted(self.name)))
    }

    /// The extents of a matrix: (rows, columns).
    ///
    /// # Errors
    /// The tensor is not two-dimensional.
    pub fn matrix(&self) -> Result<(usize, usize)> {
        match *self.shape {
            [rows, cols] => Ok((rows, cols)),
            _ => Err(self.error(format_args!("shape {:?} where a matrix is needed", self.shape))),
        }
    }

    /// The tensor itself, if its shape is `expected`.
    ///
    /// # Errors
    /// The shape is another: names both.
    pub fn expect_shape(self, expected: &[usize]) -> Result<Self> {
        if self.shape == expected {
            return Ok(self);
        }
        Err(self.error(format_args!("shape {:?} where {expected:?} is expected", self.shape)))
    }

    /// The bytes of one row of a matrix whose elements are whole bytes.
    ///
    /// # Errors
    /// The tensor is not a matrix, or has no such row.
    pub fn row_bytes(&self, row: usize) -> Result<&'a [u8]> {
        let (rows, cols) = self.matrix()?;
        if row >= rows {
            return Err(self.error(format_args!("row {row} of {rows}")));
        }
        let bits = self.dtype.bitsize();
        if !bits.is_multiple_of(8) {
            return Err(self.error(format_args!("{} elements are no whole bytes", self.dtype)));
        }
        // In bounds: the byte count was checked against dtype and shape on opening.
        let size = cols * (bits / 8);
        Ok(&self.bytes[row * size..][..size])
    }

    /// Converts one row of an F32, F16 or BF16 matrix to f32: `out` holds the row's `cols` values. NaN and infinity
    /// pass through; see [`check_finite`].
    ///
    /// # Errors
    /// The tensor is no matrix of floats, has no such row, or `out` has another length than a row.
    pub fn row_f32(&self, row: usize, out: &mut [f32]) -> Result<()> {
        let bytes = self.row_bytes(row)?;
        let (_, cols) = self.matrix()?;
        if out.len() != cols {
            return Err(self.error(format_args!("a row has {cols} values and the place for it {}", out.len())));
        }
        self.convert(bytes, out)
    }

    /// All elements of an F32, F16 or BF16 tensor as f32, in row-major order.
    ///
    /// # Errors
    /// The elements are no floats of these types.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        self.check_float()?;
        let mut out = vec![0.0; self.elements()];
        self.convert(self.bytes, &mut out)?;
        Ok(out)
    }

    /// Tells the system that the tensor's pages are not needed for now; see [`Mapped::release`].
    pub fn release(&self) {
        self.source.release(self.start..self.start + self.bytes.len());
    }

    /// Tells the system that one row of a matrix was read; see [`Mapped::passed`].
    pub fn passed(&self, row: usize) {
        if let Ok(bytes) = self.row_bytes(row) {
            let start = self.start + row * bytes.len();
            self.source.passed(self.start, start..start + bytes.len());
        }
    }

    /// # Errors
    /// The elements are not F32, F16 or BF16.
    pub fn check_float(&self) -> Result<()> {
        match self.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok(()),
            other => Err(self.error(format_args!("dtype {other} where F32, F16 or BF16 is needed"))),
        }
    }

    /// `bytes` are `out.len()` whole elements.
    fn convert(&self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        self.check_float()?;
        match self.dtype {
            Dtype::F32 => {
                let (values, _) = bytes.as_chunks::<4>();
                out.iter_mut().zip(values).for_each(|(x, b)| *x = f32::from_le_bytes(*b));
            }
            Dtype::BF16 => {
                let (values, _) = bytes.as_chunks::<2>();
                // A bf16 is the upper half of an f32.
                out.iter_mut()
                    .zip(values)
                    .for_each(|(x, b)| *x = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16));
            }
            _ => f16_to_f32(bytes, out),
        }
        Ok(())
    }
}

/// Converts little-endian f16 at any alignment, a block at a time through an aligned buffer so that the hardware's
/// conversion can be used.
fn f16_to_f32(bytes: &[u8], out: &mut [f32]) {
    const BLOCK: usize = 64;
    let (values, _) = bytes.as_chunks::<2>();
    let mut block = [f16::ZERO; BLOCK];
    for (values, out) in values.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let block = &mut block[..values.len()];
        block.iter_mut().zip(values).for_each(|(x, b)| *x = f16::from_le_bytes(*b));
        block.convert_to_f32_slice(out);
    }
}

/// Checks that the values of one row hold neither NaN nor infinity: one pass without branches when all is well.
///
/// # Errors
/// Names file, tensor, row and column of the first value that is not finite.
pub fn check_finite(values: &[f32], tensor: &Tensor<'_>, row: usize) -> Result<()> {
    if values.iter().fold(true, |finite, x| finite & x.is_finite()) {
        return Ok(());
    }
    let col = values.iter().position(|x| !x.is_finite()).unwrap_or_default();
    Err(tensor.error(format_args!("{} at row {row}, column {col}: the weights are damaged", values[col])))
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::super::checkpoint::Checkpoint;
    use super::super::test_files::Builder;
    use super::*;

    /// A checkpoint whose tensor `t` starts `shift` bytes after another, at an odd address for odd shifts or even.
    fn checkpoint(shift: usize, dtype: &str, shape: &[usize], bytes: &[u8]) -> Checkpoint {
        let file = Builder::default().tensor("pad", "U8", &[shift], &vec![0; shift]).tensor("t", dtype, shape, bytes);
        Checkpoint::from_bytes("test", file.build()).unwrap()
    }

    fn problem<T: std::fmt::Debug>(result: Result<T>) -> String {
        result.unwrap_err().to_string().strip_prefix("test: tensor \"t\": ").unwrap().to_owned()
    }

    #[test]
    fn every_f16_and_bf16_converts_at_every_alignment() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for shift in 0..4 {
            for (dtype, convert) in
                [("F16", (|x| f16::from_bits(x).to_f32()) as fn(u16) -> f32), ("BF16", |x| bf16::from_bits(x).to_f32())]
            {
                let checkpoint = checkpoint(shift, dtype, &[1, 65_536], &bytes);
                let tensor = checkpoint.tensor("t").unwrap();
                let mut row = vec![0.0; 65_536];
                tensor.row_f32(0, &mut row).unwrap();
                for (x, found) in (0..=u16::MAX).zip(row) {
                    let expected = convert(x);
                    assert!(found == expected || (found.is_nan() && expected.is_nan()), "{dtype} {x:#x}");
                }
            }
        }
    }

    #[test]
    fn rows_are_rows() {
        let values: Vec<f32> = (0..6).map(|i| i as f32 - 2.5).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        for shift in 0..5 {
            let checkpoint = checkpoint(shift, "F32", &[2, 3], &bytes);
            let tensor = checkpoint.tensor("t").unwrap();
            let mut row = [0.0; 3];
            tensor.row_f32(1, &mut row).unwrap();
            assert_eq!(row, values[3..]);
            assert_eq!(tensor.to_f32().unwrap(), values);
            assert_eq!(tensor.row_bytes(0).unwrap(), &bytes[..12]);
            tensor.release();
        }
    }

    #[test]
    fn wrong_asks_are_told() {
        let float = checkpoint(1, "F32", &[2, 3], &[0; 24]);
        let float = float.tensor("t").unwrap();
        assert_eq!(problem(float.row_f32(2, &mut [0.0; 3])), "row 2 of 2");
        assert_eq!(problem(float.row_f32(0, &mut [0.0; 2])), "a row has 3 values and the place for it 2");
        assert_eq!(problem(float.expect_shape(&[3, 2])), "shape [2, 3] where [3, 2] is expected");
        assert_eq!(float.expect_shape(&[2, 3]).unwrap().elements(), 6);
        let vector = checkpoint(1, "F32", &[6], &[0; 24]);
        let problem_of_vector = problem(vector.tensor("t").unwrap().row_f32(0, &mut [0.0; 6]));
        assert_eq!(problem_of_vector, "shape [6] where a matrix is needed");
        let ints = checkpoint(1, "I32", &[2, 3], &[0; 24]);
        let ints = ints.tensor("t").unwrap();
        assert_eq!(problem(ints.row_f32(0, &mut [0.0; 3])), "dtype I32 where F32, F16 or BF16 is needed");
        assert_eq!(problem(ints.to_f32()), "dtype I32 where F32, F16 or BF16 is needed");
        let halves = checkpoint(1, "F4", &[2, 3], &[0; 3]);
        assert_eq!(problem(halves.tensor("t").unwrap().row_bytes(0)), "F4 elements are no whole bytes");
    }

    #[test]
    fn a_scalar_has_one_element_and_an_empty_matrix_none() {
        let scalar = checkpoint(3, "F32", &[], &1.5f32.to_le_bytes());
        assert_eq!(scalar.tensor("t").unwrap().to_f32().unwrap(), [1.5]);
        let wide = checkpoint(0, "F32", &[0, 1 << 40], &[]);
        assert!(wide.tensor("t").unwrap().to_f32().unwrap().is_empty());
        assert_eq!(problem(wide.tensor("t").unwrap().row_bytes(0)), "row 0 of 0");
        let tall = checkpoint(0, "F32", &[1 << 40, 0], &[]);
        tall.tensor("t").unwrap().row_f32((1 << 40) - 1, &mut []).unwrap();
    }

    proptest! {
        #[test]
        fn what_is_not_finite_is_found(len in 1usize..200, at in any::<prop::sample::Index>(), kind in 0usize..3) {
            let checkpoint = checkpoint(0, "F32", &[1], &[0; 4]);
            let tensor = checkpoint.tensor("t").unwrap();
            let mut values = vec![f32::MAX; len];
            prop_assert!(check_finite(&values, &tensor, 7).is_ok());
            let (bad, text) = [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")][kind];
            let col = at.index(len);
            values[col] = bad;
            let found = problem(check_finite(&values, &tensor, 7));
            prop_assert_eq!(found, format!("{text} at row 7, column {col}: the weights are damaged"));
        }
    }
}
