//! Packers: rows of floats or of ternary values to a [`HostMatrix`], large ones on all cores, one row in memory per
//! core besides the result.

use half::{bf16, f16};

use super::rows::fill_rows;
use super::{Codes, HostMatrix, Int4, Int8, Ternary, Zero, int4, ternary};
use crate::format::{Group, ZeroKind};
use crate::{Error, Format};

impl HostMatrix<'static> {
    /// Quantises a matrix whose row `r` is written by `read_row(r, out)`; q|k|v and gate|up are fused by
    /// a reader that takes its rows from several tensors.
    ///
    /// INT4 and INT8 scales are rounded to f16 first and the codes chosen for the rounded scale. INT4
    /// tries the two classic scales (largest magnitude on -8, or on ±7), refines each by least squares
    /// over its codes, and keeps the one with the smaller squared error. INT4 with a minimum does so with one
    /// start: the smallest weight on 0 and the largest on 15.
    ///
    /// # Errors
    /// What `read_row` returns, and [`Error::Unsupported`] for formats that are not made from floats
    /// alone: ternary (see [`HostMatrix::ternary`]) and INT4 with a zero point.
    pub fn quantize<E: From<Error> + Send>(
        rows: usize,
        columns: usize,
        format: Format,
        read_row: impl Fn(usize, &mut [f32]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let codes = match format {
            Format::F32 => {
                let mut values = vec![0.0; rows * columns];
                let fields = (&mut values[..], &mut vec![(); rows][..], &mut vec![(); rows][..]);
                fill_rows(rows, columns, fields, || (), |(), row, out, _, _| read_row(row, out))?;
                Codes::F32(values.into())
            }
            Format::F16 => Codes::F16(narrow(rows, columns, read_row, f16::from_f32)?.into()),
            Format::Bf16 => Codes::Bf16(narrow(rows, columns, read_row, bf16::from_f32)?.into()),
            Format::Int8 { group } => int8_rows(rows, columns, group, read_row)?,
            Format::Int4 { group, zero: ZeroKind::Symmetric } => int4_rows(rows, columns, group, read_row)?,
            Format::Int4 { group, zero: ZeroKind::Min } => int4_min_rows(rows, columns, group, read_row)?,
            Format::Ternary | Format::Int4 { .. } => {
                return Err(Error::Unsupported(format!("floats can't be quantised to {format}")).into());
            }
        };
        Ok(HostMatrix::new(rows, columns, codes)?)
    }

    /// Packs a ternary matrix whose row `r` is written as -1, 0, 1 by `read_row(r, out)`, which returns
    /// the row's scale.
    ///
    /// # Errors
    /// What `read_row` returns.
    pub fn ternary<E: From<Error> + Send>(
        rows: usize,
        columns: usize,
        read_row: impl Fn(usize, &mut [i8]) -> Result<f32, E> + Sync,
    ) -> Result<Self, E> {
        let row_bytes = Ternary::row_bytes(columns);
        let mut codes = vec![0u8; rows * row_bytes];
        let mut scales = vec![0.0f32; rows];
        let fields = (&mut codes[..], &mut scales[..], &mut vec![(); rows][..]);
        fill_rows(
            rows,
            columns,
            fields,
            || vec![0i8; columns],
            |values, row, codes, scale, _| {
                scale[0] = read_row(row, values)?;
                let wrong = ternary::pack_row(values, codes);
                assert_eq!(wrong, None, "a value of row {row} is not ternary");
                Ok::<(), E>(())
            },
        )?;
        Ok(HostMatrix::new(rows, columns, Codes::Ternary(Ternary::new(codes, scales)))?)
    }
}

fn narrow<T: Copy + Default + Send, E: Send>(
    rows: usize,
    columns: usize,
    read_row: impl Fn(usize, &mut [f32]) -> Result<(), E> + Sync,
    from_f32: impl Fn(f32) -> T + Sync,
) -> Result<Vec<T>, E> {
    let mut values = vec![T::default(); rows * columns];
    let fields = (&mut values[..], &mut vec![(); rows][..], &mut vec![(); rows][..]);
    fill_rows(
        rows,
        columns,
        fields,
        || vec![0.0; columns],
        |floats, row, out, _, _| {
            read_row(row, floats)?;
            out.iter_mut().zip(floats.iter()).for_each(|(out, &value)| *out = from_f32(value));
            Ok(())
        },
    )?;
    Ok(values)
}

fn int8_rows<E: Send>(
    rows: usize,
    columns: usize,
    group: Group,
    read_row: impl Fn(usize, &mut [f32]) -> Result<(), E> + Sync,
) -> Result<Codes<'static>, E> {
    let (width, groups) = (group.columns(columns), group.count(columns));
    let mut codes = vec![0i8; rows * columns];
    let mut scales = vec![f16::ZERO; rows * groups];
    let fields = (&mut codes[..], &mut scales[..], &mut vec![(); rows][..]);
    fill_rows(
        rows,
        columns,
        fields,
        || vec![0.0; columns],
        |floats, row, codes, scales, _| {
            read_row(row, floats)?;
            int8_row(floats, width, codes, scales);
            Ok(())
        },
    )?;
    Ok(Codes::Int8(Int8::new(group, codes, scales)))
}

fn int4_rows<E: Send>(
    rows: usize,
    columns: usize,
    group: Group,
    read_row: impl Fn(usize, &mut [f32]) -> Result<(), E> + Sync,
) -> Result<Codes<'static>, E> {
    let symmetric = |floats: &[f32], raw: &mut [u8], scales: &mut [f16], _: &mut [()]| {
        int4_row(floats, group.columns(columns), raw, scales);
    };
    let (codes, scales) = int4_parts([rows, columns], group, &mut vec![(); rows], read_row, symmetric)?;
    Ok(Codes::Int4(Int4::new(group, codes, scales, Zero::Symmetric)))
}

fn int4_min_rows<E: Send>(
    rows: usize,
    columns: usize,
    group: Group,
    read_row: impl Fn(usize, &mut [f32]) -> Result<(), E> + Sync,
) -> Result<Codes<'static>, E> {
    let mut minima = vec![f16::ZERO; rows * group.count(columns)];
    let with_minima = |floats: &[f32], raw: &mut [u8], scales: &mut [f16], minima: &mut [f16]| {
        int4_min_row(floats, group.columns(columns), raw, scales, minima);
    };
    let (codes, scales) = int4_parts([rows, columns], group, &mut minima, read_row, with_minima)?;
    Ok(Codes::Int4(Int4::new(group, codes, scales, Zero::Min(minima.into()))))
}

/// The packed codes and the scales of rows that `quantize` makes codes, scales and `zeros` of.
fn int4_parts<Z: Send, E: Send>(
    [rows, columns]: [usize; 2],
    group: Group,
    zeros: &mut [Z],
    read_row: impl Fn(usize, &mut [f32]) -> Result<(), E> + Sync,
    quantize: impl Fn(&[f32], &mut [u8], &mut [f16], &mut [Z]) + Sync + Send,
) -> Result<(Vec<u8>, Vec<f16>), E> {
    let mut codes = vec![0u8; rows * Int4::row_bytes(columns)];
    let mut scales = vec![f16::ZERO; rows * group.count(columns)];
    let fields = (&mut codes[..], &mut scales[..], zeros);
    let scratch = || (vec![0.0; columns], vec![0u8; columns]);
    fill_rows(rows, columns, fields, scratch, |(floats, raw), row, codes, scales, zeros| {
        read_row(row, floats)?;
        quantize(floats, raw, scales, zeros);
        let wrong = int4::pack_row(raw, codes);
        debug_assert_eq!(wrong, None);
        Ok(())
    })?;
    Ok((codes, scales))
}

/// INT8 codes and scales of one row whose groups have `width` columns.
pub(super) fn int8_row(floats: &[f32], width: usize, codes: &mut [i8], scales: &mut [f16]) {
    for ((floats, codes), scale) in floats.chunks(width).zip(codes.chunks_mut(width)).zip(scales) {
        *scale = f16_scale(largest_magnitude(floats) / 127.0);
        let inverse = invert(*scale);
        codes.iter_mut().zip(floats).for_each(|(code, &value)| {
            let scaled = (value * inverse).clamp(-127.0, 127.0);
            // NaN, which a cast would make 0.
            let scaled = if scaled.is_nan() { 0.0 } else { scaled };
            *code = (scaled + ROUND).to_bits() as i8;
        });
    }
}

/// Symmetric INT4 codes, not packed, and scales of one row whose groups have `width` columns.
pub(super) fn int4_row(floats: &[f32], width: usize, raw: &mut [u8], scales: &mut [f16]) {
    for ((floats, raw), scale) in floats.chunks(width).zip(raw.chunks_mut(width)).zip(scales) {
        *scale = int4_scale(floats);
        let inverse = invert(*scale);
        raw.iter_mut().zip(floats).for_each(|(raw, &value)| *raw = (int4_code(value, inverse) + 8.0) as u8);
    }
}

/// INT4 codes, not packed, scales and minima of one row whose groups have `width` columns.
pub(super) fn int4_min_row(floats: &[f32], width: usize, raw: &mut [u8], scales: &mut [f16], minima: &mut [f16]) {
    let groups = floats.chunks(width).zip(raw.chunks_mut(width)).zip(scales).zip(minima);
    for (((floats, raw), scale), minimum) in groups {
        let grid = int4_grid(floats);
        (*scale, *minimum) = (grid.scale, grid.minimum);
        raw.iter_mut().zip(floats).for_each(|(raw, &value)| *raw = grid.code(value) as u8);
    }
}

/// The weights that a group's codes 0..=15 stand for.
#[derive(Clone, Copy)]
struct Grid {
    scale: f16,
    minimum: f16,
}

impl Grid {
    fn new(scale: f32, minimum: f32) -> Self {
        Grid { scale: f16_scale(scale), minimum: f16_scale(minimum) }
    }

    /// The nearest code.
    fn code(self, value: f32) -> f32 {
        ((value - self.minimum.to_f32()) * invert(self.scale)).clamp(0.0, 15.0) + ROUND - ROUND
    }

    fn squared_error(self, values: &[f32]) -> f64 {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        values.iter().map(|&value| f64::from((value - (self.code(value) * scale + minimum)).powi(2))).sum()
    }

    /// The grid that fits the codes of this one best.
    fn least_squares(self, values: &[f32]) -> Option<Self> {
        let (mut codes, mut squares, mut sum, mut products) = (0.0f32, 0.0f32, 0.0f32, 0.0f32);
        for &value in values {
            let code = self.code(value);
            codes += code;
            squares += code * code;
            sum += value;
            products += code * value;
        }
        let count = values.len() as f32;
        let determinant = count * squares - codes * codes;
        let scale = (count * products - codes * sum) / determinant;
        (determinant > 0.0).then(|| Grid::new(scale, (sum - scale * codes) / count))
    }
}

/// The grid from the smallest to the largest value, or the one that least squares makes of it.
fn int4_grid(values: &[f32]) -> Grid {
    let lowest = values.iter().copied().fold(f32::INFINITY, f32::min);
    let highest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Each by itself, as their difference may be beyond all floats.
    let plain = Grid::new(highest / 15.0 - lowest / 15.0, lowest);
    match plain.least_squares(values) {
        Some(fitted) if fitted.squared_error(values) < plain.squared_error(values) => fitted,
        _ => plain,
    }
}

/// The f16 scale with the smallest squared error among four candidates.
fn int4_scale(values: &[f32]) -> f16 {
    let signed = largest(values);
    if signed == 0.0 {
        return f16::ZERO;
    }
    let mut best = (f64::INFINITY, f16::ZERO);
    for start in [signed / -8.0, signed / 7.0] {
        let first = f16_scale(start);
        for scale in [first, f16_scale(least_squares(values, invert(first)).unwrap_or(start))] {
            let error = squared_error(values, scale);
            if error < best.0 {
                best = (error, scale);
            }
        }
    }
    best.1
}

/// `Σ w q / Σ q²`, the scale that fits codes best once they are chosen.
fn least_squares(values: &[f32], inverse: f32) -> Option<f32> {
    let (mut product, mut square) = (0.0f32, 0.0f32);
    for &value in values {
        let code = int4_code(value, inverse);
        product += value * code;
        square += code * code;
    }
    (square > 0.0).then(|| product / square)
}

fn squared_error(values: &[f32], scale: f16) -> f64 {
    let (inverse, scale) = (invert(scale), scale.to_f32());
    let error = |&value: &f32| f64::from((value - int4_code(value, inverse) * scale).powi(2));
    values.iter().map(error).sum()
}

fn int4_code(value: f32, inverse: f32) -> f32 {
    (value * inverse).clamp(-8.0, 7.0) + ROUND - ROUND
}

/// 1.5 · 2^23: floats around it are the integers, so that adding it rounds a small number to an integer, ties to even,
/// which then is in the lowest bits. CPUs without an instruction that rounds (x86-64 as first sold) call a function for
/// [`f32::round_ties_even`].
const ROUND: f32 = 12_582_912.0;

/// The largest magnitude, NaN left out: in as many lanes as let the compiler use vectors.
fn largest_magnitude(values: &[f32]) -> f32 {
    let larger = |best: f32, value: f32| if value > best { value } else { best };
    let (chunks, rest) = values.as_chunks::<8>();
    let mut best = [0.0f32; 8];
    for chunk in chunks {
        for (best, value) in best.iter_mut().zip(chunk) {
            *best = larger(*best, value.abs());
        }
    }
    let [a, b, c, d, e, f, g, h] = best;
    let halves = [larger(a, e), larger(b, f), larger(c, g), larger(d, h)];
    halves.into_iter().chain(rest.iter().map(|value| value.abs())).fold(0.0, larger)
}

/// The value of largest magnitude, with its sign.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |best: f32, &value| if value.abs() > best.abs() { value } else { best })
}

/// The nearest f16, kept finite.
fn f16_scale(scale: f32) -> f16 {
    f16::from_f32(scale.clamp(-65504.0, 65504.0))
}

fn invert(scale: f16) -> f32 {
    if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quantize(rows: usize, columns: usize, values: &[f32], format: Format) -> HostMatrix<'static> {
        HostMatrix::quantize::<Error>(rows, columns, format, |row, out| {
            out.copy_from_slice(&values[row * columns..(row + 1) * columns]);
            Ok(())
        })
        .unwrap()
    }

    fn dequantize(matrix: &HostMatrix<'_>) -> Vec<f32> {
        let mut out = vec![0.0; matrix.rows() * matrix.columns()];
        for (row, out) in out.chunks_mut(matrix.columns()).enumerate() {
            matrix.dequantize_row(row, out);
        }
        out
    }

    const ALL: [&str; 11] = [
        "f32",
        "f16",
        "bf16",
        "int8",
        "int8-row",
        "int4-g32",
        "int4-g64",
        "int4-g128",
        "int4-row",
        "int4-g32-min",
        "int4-row-min",
    ];

    #[test]
    fn integers_on_the_grid_are_kept() {
        // Groups that span the whole range of codes (the short last one too) have only one good scale.
        let values: Vec<f32> = (0..3 * 48).map(|i| (i % 16) as f32 - 8.0).collect();
        for name in ["f32", "f16", "bf16", "int4-g32", "int4-row", "int4-g32-min", "int4-row-min"] {
            assert_eq!(dequantize(&quantize(3, 48, &values, name.parse().unwrap())), values, "{name}");
        }
        let values: Vec<f32> = (0..2 * 300).map(|i| (i % 255) as f32 - 127.0).collect();
        assert_eq!(dequantize(&quantize(2, 300, &values, "int8-row".parse().unwrap())), values);
    }

    #[test]
    fn zero_groups_stay_zero() {
        for name in ALL {
            let matrix = quantize(2, 70, &[0.0; 140], name.parse().unwrap());
            assert_eq!(dequantize(&matrix), [0.0; 140], "{name}");
        }
    }

    #[test]
    fn ternary_rows_are_packed_lowest_bits_first() {
        let values = [[1, 0, -1, -1, 1], [0, 0, 0, 0, 0]];
        let matrix = HostMatrix::ternary::<Error>(2, 5, |row, out| {
            out.copy_from_slice(&values[row]);
            Ok(0.5 + row as f32)
        })
        .unwrap();
        let Codes::Ternary(ternary) = matrix.codes() else { panic!() };
        assert_eq!(ternary.codes(), [0b00_00_01_10, 0b10, 0b01_01_01_01, 0b01]);
        assert_eq!(dequantize(&matrix), [0.5, 0.0, -0.5, -0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn broken_codes_are_refused() {
        let refused = |codes| HostMatrix::new(1, 3, codes).unwrap_err().to_string();
        assert!(refused(Codes::Ternary(Ternary::new(vec![3], vec![1.0]))).contains("code of 3"));
        assert!(refused(Codes::Ternary(Ternary::new(vec![0x40], vec![1.0]))).contains("past its last column"));
        assert!(refused(Codes::Ternary(Ternary::new(vec![0], vec![f32::NAN]))).contains("NaN"));
        assert!(refused(Codes::Ternary(Ternary::new(vec![0, 0], vec![1.0]))).contains("2 bytes"));
        let int4 = |codes: Vec<u8>, scales: Vec<f16>, zero| Codes::Int4(Int4::new(Group::G32, codes, scales, zero));
        assert!(refused(int4(vec![0, 0x10], vec![f16::ONE], Zero::Symmetric)).contains("past its last"));
        assert!(refused(int4(vec![0, 0], vec![f16::INFINITY], Zero::Symmetric)).contains("not finite"));
        assert!(refused(int4(vec![0, 0], vec![f16::ONE], Zero::Point(vec![17].into()))).contains("above 16"));
        assert!(refused(int4(vec![0, 0], vec![f16::ONE], Zero::Min(vec![].into()))).contains("0 minima"));
        let int8 = Int8::new(Group::Row, vec![0, -128, 0], vec![f16::ONE]);
        assert!(refused(Codes::Int8(int8)).contains("-128"));
        assert!(refused(Codes::F32(vec![0.0; 2].into())).contains("2 values"));
    }

    #[test]
    fn a_reader_error_comes_out() {
        let result = HostMatrix::quantize(4, 8, Format::F16, |row, _| {
            if row == 2 { Err(Error::Invalid("row 2 is bad".into())) } else { Ok(()) }
        });
        assert_eq!(result, Err(Error::Invalid("row 2 is bad".into())));
    }

    /// Floats of all kinds, small integers and halves among them.
    fn any_floats() -> impl Strategy<Value = Vec<f32>> {
        let number = prop_oneof![
            any::<f32>(),
            any::<u32>().prop_map(f32::from_bits),
            (-300i32..300).prop_map(|x| x as f32 * 0.5),
            (-1.0f32..1.0),
            Just(-0.0f32),
        ];
        prop::collection::vec(number, 1..150)
    }

    proptest! {
        /// The definition, with the functions that say what they do.
        #[test]
        fn int8_codes_are_rounded_to_even_and_clamped(values in any_floats(), width in 1usize..70) {
            let groups = values.len().div_ceil(width);
            let (mut codes, mut scales) = (vec![9i8; values.len()], vec![f16::ONE; groups]);
            int8_row(&values, width, &mut codes, &mut scales);
            for ((values, codes), scale) in values.chunks(width).zip(codes.chunks(width)).zip(scales) {
                prop_assert_eq!(scale.to_bits(), f16_scale(largest(values).abs() / 127.0).to_bits());
                for (value, code) in values.iter().zip(codes) {
                    let expected = (value * invert(scale)).round_ties_even().clamp(-127.0, 127.0) as i8;
                    prop_assert_eq!(*code, expected, "{} with scale {}", value, scale);
                }
            }
        }

        #[test]
        fn int4_codes_are_rounded_to_even_and_clamped(value in any::<u32>().prop_map(f32::from_bits), step in -20.0f32..20.0) {
            for (value, inverse) in [(value, 1.0), (value, step), (step, 1.0), ((2.0 * step).round() / 2.0, 1.0)] {
                let expected = (value * inverse).round_ties_even().clamp(-8.0, 7.0);
                let found = int4_code(value, inverse);
                prop_assert!(found == expected || (found.is_nan() && expected.is_nan()), "{value} x {inverse}: {found}");
            }
        }

        #[test]
        fn errors_stay_below_half_a_step(
            columns in 1usize..200,
            seed in prop::collection::vec(-1000.0f32..1000.0, 400),
        ) {
            let rows = 400 / columns.max(1);
            prop_assume!(rows > 0);
            let values = &seed[..rows * columns];
            for name in ALL {
                let format: Format = name.parse().unwrap();
                let back = dequantize(&quantize(rows, columns, values, format));
                let (width, step) = match format {
                    Format::Int8 { group } => (group.columns(columns), 1.0 / 127.0),
                    // Least squares may shrink the scale, so that the largest value clips: bounded by a step.
                    Format::Int4 { group, .. } => (group.columns(columns), 2.0 / 7.0),
                    Format::F32 => (columns, 0.0),
                    Format::F16 => (columns, 1.0 / 1024.0),
                    _ => (columns, 1.0 / 128.0),
                };
                for (row, back) in values.chunks(columns).zip(back.chunks(columns)) {
                    for (values, back) in row.chunks(width).zip(back.chunks(width)) {
                        let bound = largest(values).abs() * step * 0.51;
                        for (value, back) in values.iter().zip(back) {
                            prop_assert!((value - back).abs() <= bound, "{name}: {value} became {back}");
                        }
                    }
                }
            }
        }
    }
}
