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
        Ok(Self { tensor, rows, cols, inverse: 1.0 / mean.max(SMALLEST_MEAN) })
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
    pub fn row(&self, row: usize, out: &mut [i8]) -> Result<()> {
        check_len(&self.tensor, out.len(), self.cols)?;
        let mut buffer = vec![0.0; self.cols];
        self.tensor.row_f32(row, &mut buffer)?;
        ternarise(&buffer, self.inverse, out);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::checkpoint::Checkpoint;
    use super::super::test_files::{Builder, fixture};
    use super::*;

    fn checkpoint(file: Builder) -> Checkpoint {
        Checkpoint::from_bytes("test", file.build()).unwrap()
    }

    fn problem<T: std::fmt::Debug>(result: Result<T>) -> String {
        result.unwrap_err().to_string().strip_prefix("test: tensor \"t\": ").unwrap().to_owned()
    }

    /// Packs a row-major matrix of -1, 0, 1 the way that the layout's description says, byte by byte.
    fn pack(values: &[i8], rows: usize, cols: usize) -> Vec<u8> {
        let byte_rows = rows / 4;
        let code = |row: usize, col: usize| (values[row * cols + col] + 1) as u8;
        let byte = |at: usize| (0..4).fold(0, |byte, i| byte | code(at / cols + i * byte_rows, at % cols) << (2 * i));
        (0..byte_rows * cols).map(byte).collect()
    }

    #[test]
    fn rows_lie_a_quarter_of_the_matrix_apart() {
        // Codes, from the low bits: 1, 0, 2, 2 and 0, 2, 1, 0; then 0, 0, 1, 2 and 2, 2, 0, 0.
        let bytes = [0b10_10_00_01, 0b00_01_10_00, 0b10_01_00_00, 0b00_00_10_10];
        let checkpoint = checkpoint(Builder::default().tensor("t", "U8", &[2, 2], &bytes));
        let packed = PackedTernary::new(checkpoint.tensor("t").unwrap()).unwrap();
        assert_eq!((packed.rows(), packed.cols()), (8, 2));
        let expected = [[0, -1], [-1, 1], [-1, 1], [-1, 1], [1, 0], [0, -1], [1, -1], [1, -1]];
        for (row, expected) in expected.iter().enumerate() {
            let mut found = [9; 2];
            packed.row(row, &mut found).unwrap();
            assert_eq!(found, *expected, "row {row}");
        }
    }

    #[test]
    fn code_3_is_an_error_that_says_where() {
        let bytes = [0b01_01_01_01, 0b01_11_01_01];
        let checkpoint = checkpoint(Builder::default().tensor("t", "U8", &[1, 2], &bytes));
        let packed = PackedTernary::new(checkpoint.tensor("t").unwrap()).unwrap();
        assert_eq!(problem(packed.row(2, &mut [0; 2])), "invalid ternary code 3 at row 2, column 1");
        packed.row(3, &mut [0; 2]).unwrap();
        assert_eq!(problem(packed.row(4, &mut [0; 2])), "row 4 of 4");
        assert_eq!(problem(packed.row(0, &mut [0; 3])), "a row has 2 values and the place for it 3");
    }

    #[test]
    fn packed_weights_are_matrices_of_bytes() {
        let checkpoint = checkpoint(Builder::default().f32("t", &[1, 1], &[1.0]).tensor("v", "U8", &[2], &[0; 2]));
        let found = problem(PackedTernary::new(checkpoint.tensor("t").unwrap()));
        assert_eq!(found, "dtype F32 where packed ternary weights are U8");
        let vector = PackedTernary::new(checkpoint.tensor("v").unwrap()).unwrap_err().to_string();
        assert!(vector.ends_with("tensor \"v\": shape [2] where a matrix is needed"), "{vector}");
        let huge = Builder::default().tensor("t", "U8", &[usize::MAX / 2, 0], &[]).build();
        let huge = Checkpoint::from_bytes("test", huge).unwrap();
        assert!(problem(PackedTernary::new(huge.tensor("t").unwrap())).ends_with("packed rows are too many"));
    }

    #[test]
    fn scales_multiply_or_divide() {
        let checkpoint = checkpoint(Builder::default().bf16("t", &[1], &[0.25]));
        let tensor = checkpoint.tensor("t").unwrap();
        assert_eq!(scale(false, &tensor).unwrap(), 0.25);
        assert_eq!(scale(true, &tensor).unwrap(), 4.0);
    }

    #[test]
    fn damaged_scales_are_refused() {
        for bad in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let checkpoint = checkpoint(Builder::default().f32("t", &[1], &[bad]));
            let expected = format!("scale {bad} is not a positive, finite number: the weights are damaged");
            assert_eq!(problem(scale(false, &checkpoint.tensor("t").unwrap())), expected);
            assert_eq!(problem(scale(true, &checkpoint.tensor("t").unwrap())), expected);
        }
        let tiny = checkpoint(Builder::default().f32("t", &[], &[1e-40]));
        assert!(scale(false, &tiny.tensor("t").unwrap()).is_ok());
        assert!(scale(true, &tiny.tensor("t").unwrap()).is_err());
        let two = checkpoint(Builder::default().f32("t", &[2], &[1.0, 1.0]));
        assert_eq!(problem(scale(false, &two.tensor("t").unwrap())), "shape [2] where a scale is one number");
        let int = checkpoint(Builder::default().tensor("t", "U8", &[1], &[1]));
        assert_eq!(problem(scale(false, &int.tensor("t").unwrap())), "dtype U8 where F32, F16 or BF16 is needed");
    }

    #[test]
    fn online_weights_round_half_to_even_around_their_mean() {
        // Mean magnitude 2: 1 is half of it (even: 0), 3 is one and a half of it (2, clamped to 1).
        let values = [1.0, -1.0, 3.0, -3.0, 1.5, -2.5, 0.0, 4.0];
        let checkpoint = checkpoint(Builder::default().f32("t", &[2, 4], &values));
        let online = OnlineTernary::new(checkpoint.tensor("t").unwrap()).unwrap();
        assert_eq!((online.rows(), online.cols(), online.scale()), (2, 4, 2.0));
        let mut row = [9; 4];
        online.row(0, &mut row).unwrap();
        assert_eq!(row, [0, 0, 1, -1]);
        online.row(1, &mut row).unwrap();
        assert_eq!(row, [1, -1, 0, 1]);
        assert_eq!(problem(online.row(2, &mut row)), "row 2 of 2");
    }

    #[test]
    fn tiny_online_weights_use_the_smallest_mean() {
        let checkpoint = checkpoint(Builder::default().f32("t", &[1, 2], &[1e-7, 6e-6]));
        let online = OnlineTernary::new(checkpoint.tensor("t").unwrap()).unwrap();
        let mut row = [9; 2];
        online.row(0, &mut row).unwrap();
        assert_eq!(row, [0, 1]);
        assert!((online.scale() - 1e-5).abs() < 1e-11);
    }

    #[test]
    fn online_weights_must_be_finite_floats() {
        let bad = checkpoint(Builder::default().f32("t", &[2, 1], &[1.0, f32::NAN]));
        let found = problem(OnlineTernary::new(bad.tensor("t").unwrap()));
        assert_eq!(found, "NaN at row 1, column 0: the weights are damaged");
        let empty = checkpoint(Builder::default().f32("t", &[0, 4], &[]));
        assert_eq!(problem(OnlineTernary::new(empty.tensor("t").unwrap())), "shape [0, 4] has no elements");
        let bytes = checkpoint(Builder::default().tensor("t", "U8", &[1, 1], &[1]));
        let found = problem(OnlineTernary::new(bytes.tensor("t").unwrap()));
        assert_eq!(found, "dtype U8 where F32, F16 or BF16 is needed");
    }

    /// Every linear layer of the fixtures can be read, and its values are plausible: no constant matrix.
    #[test]
    fn the_fixtures_layers_are_ternary() {
        const LINEAR: &str = "_proj.weight";
        for (name, online) in [("tiny-bitnet", false), ("tiny-llama-b158", false), ("tiny-bitnet-online", true)] {
            let checkpoint = Checkpoint::open(fixture(name)).unwrap();
            let mut layers = 0;
            for name in checkpoint.names().filter(|name| name.ends_with(LINEAR)) {
                let tensor = checkpoint.tensor(name).unwrap();
                let mut counts = [0usize; 3];
                let mut count = |row: &[i8]| row.iter().for_each(|t| counts[(t + 1) as usize] += 1);
                if online {
                    let matrix = OnlineTernary::new(tensor).unwrap();
                    let mut row = vec![0; matrix.cols()];
                    for i in 0..matrix.rows() {
                        matrix.row(i, &mut row).unwrap();
                        count(&row);
                    }
                } else {
                    let matrix = PackedTernary::new(tensor).unwrap();
                    let mut row = vec![0; matrix.cols()];
                    for i in 0..matrix.rows() {
                        matrix.row(i, &mut row).unwrap();
                        count(&row);
                    }
                    let stored = checkpoint.tensor(&format!("{name}_scale")).unwrap();
                    assert!(scale(name.contains("llama"), &stored).unwrap() > 0.0);
                }
                assert!(counts.iter().all(|&n| n > counts.iter().sum::<usize>() / 10), "{name}: {counts:?}");
                layers += 1;
            }
            assert_eq!(layers, 14);
        }
    }

    proptest! {
        #[test]
        fn unpacking_undoes_packing(byte_rows in 1usize..5, cols in 0usize..20, seed in any::<u64>()) {
            let rows = 4 * byte_rows;
            let value = |i: usize| (seed.wrapping_mul(i as u64 * 2 + 1).wrapping_add(i as u64) >> 40) % 3;
            let values: Vec<i8> = (0..rows * cols).map(|i| value(i) as i8 - 1).collect();
            let file = Builder::default().tensor("t", "U8", &[byte_rows, cols], &pack(&values, rows, cols));
            let checkpoint = checkpoint(file);
            let packed = PackedTernary::new(checkpoint.tensor("t").unwrap()).unwrap();
            let mut row = vec![9; cols];
            for i in 0..rows {
                packed.row(i, &mut row).unwrap();
                prop_assert_eq!(&row, &values[i * cols..][..cols]);
            }
        }
    }
}
