//! Matrices whose codes exist already: a file's own rows of codes, taken over as they are.

use half::f16;

use super::quantize::{int4_min_row, int4_row, int8_row};
use super::rows::fill_rows;
use super::{Codes, HostMatrix, Int4, Int8, Ternary, Zero, int4, ternary};
use crate::error::ensure;
use crate::format::{Group, ZeroKind};
use crate::{Error, Format};

/// One row of a coded matrix, to be filled: a code for each column, a scale for each group.
#[derive(Debug)]
pub enum CodedRow<'a> {
    /// `w = scale · t`.
    Ternary {
        /// t, one per column: -1, 0 or 1.
        values: &'a mut [i8],
        /// The row's scale.
        scale: &'a mut f32,
    },
    /// Raw codes u in 0..=15; see [`Zero`] for what they mean.
    Int4 {
        /// u, one per column, not packed.
        codes: &'a mut [u8],
        /// One per group.
        scales: &'a mut [f16],
        /// What a group holds besides its scale.
        zero: ZeroRow<'a>,
    },
    /// `w = s · q`.
    Int8 {
        /// q in -127..=127, one per column.
        codes: &'a mut [i8],
        /// One per group.
        scales: &'a mut [f16],
    },
}

/// What the groups of an INT4 row hold besides their scales.
#[derive(Debug)]
pub enum ZeroRow<'a> {
    /// Nothing: `w = s · (u - 8)`.
    Symmetric,
    /// `w = s · (u - z)`, z in 0..=16, one per group.
    Point(&'a mut [u8]),
    /// `w = s · u + m`, one per group.
    Min(&'a mut [f16]),
}

impl CodedRow<'_> {
    /// Chooses codes and scales for the row `values`, as [`HostMatrix::quantize`] does. Each group's columns are those
    /// of a row as long as `values`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for ternary and for INT4 with a zero point.
    pub fn quantize(self, group: Group, values: &[f32]) -> Result<(), Error> {
        let width = group.columns(values.len());
        match self {
            CodedRow::Int8 { codes, scales } => int8_row(values, width, codes, scales),
            CodedRow::Int4 { codes, scales, zero: ZeroRow::Symmetric } => int4_row(values, width, codes, scales),
            CodedRow::Int4 { codes, scales, zero: ZeroRow::Min(minima) } => {
                int4_min_row(values, width, codes, scales, minima);
            }
            _ => return Err(Error::Unsupported("floats can't be quantised to this format".to_owned())),
        }
        Ok(())
    }
}

impl HostMatrix<'static> {
    /// Builds a matrix of `format` whose row `r` is written by `write_row(r, row)`, on all cores if it is large; besides
    /// the result there is one row in memory for each core. What is to be written is zero before.
    ///
    /// # Errors
    /// What `write_row` returns; [`Error::Unsupported`] for a dense format; [`Error::Invalid`] for an empty matrix, a
    /// code out of range, a scale or minimum that is not finite.
    pub fn coded<E: From<Error> + Send>(
        rows: usize,
        columns: usize,
        format: Format,
        write_row: impl Fn(usize, CodedRow<'_>) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        if rows == 0 || columns == 0 || rows.checked_mul(columns).is_none() {
            return Err(Error::Invalid(format!("a matrix of {rows} x {columns} can't be built")).into());
        }
        let codes = match format {
            Format::Ternary => ternary_rows(rows, columns, write_row)?,
            Format::Int4 { group, zero } => int4_rows(rows, columns, group, zero, write_row)?,
            Format::Int8 { group } => int8_rows(rows, columns, group, write_row)?,
            Format::F32 | Format::F16 | Format::Bf16 => {
                return Err(Error::Unsupported(format!("{format} weights have no codes")).into());
            }
        };
        Ok(HostMatrix::new(rows, columns, codes)?)
    }
}

fn ternary_rows<E: From<Error> + Send>(
    rows: usize,
    columns: usize,
    write_row: impl Fn(usize, CodedRow<'_>) -> Result<(), E> + Sync,
) -> Result<Codes<'static>, E> {
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
            values.fill(0);
            write_row(row, CodedRow::Ternary { values: &mut *values, scale: &mut scale[0] })?;
            check_code(row, "ternary", ternary::pack_row(values, codes).map(i16::from))?;
            Ok::<(), E>(())
        },
    )?;
    Ok(Codes::Ternary(Ternary::new(codes, scales)))
}

fn int4_rows<E: From<Error> + Send>(
    rows: usize,
    columns: usize,
    group: Group,
    zero: ZeroKind,
    write_row: impl Fn(usize, CodedRow<'_>) -> Result<(), E> + Sync,
) -> Result<Codes<'static>, E> {
    let (groups, row_bytes) = (group.count(columns), Int4::row_bytes(columns));
    let mut codes = vec![0u8; rows * row_bytes];
    let mut scales = vec![f16::ZERO; rows * groups];
    let write = |raw: &mut Vec<u8>, row: usize, codes: &mut [u8], scales: &mut [f16], zero: ZeroRow<'_>| {
        raw.fill(0);
        write_row(row, CodedRow::Int4 { codes: &mut *raw, scales, zero })?;
        check_code(row, "int4", int4::pack_row(raw, codes).map(i16::from))?;
        Ok::<(), E>(())
    };
    let scratch = || vec![0u8; columns];
    let (codes_mut, scales_mut) = (&mut codes[..], &mut scales[..]);
    let zero = match zero {
        ZeroKind::Symmetric => {
            let fields = (codes_mut, scales_mut, &mut vec![(); rows][..]);
            fill_rows(rows, columns, fields, scratch, |raw, row, codes, scales, _| {
                write(raw, row, codes, scales, ZeroRow::Symmetric)
            })?;
            Zero::Symmetric
        }
        ZeroKind::Point => {
            let mut points = vec![0u8; rows * groups];
            fill_rows(
                rows,
                columns,
                (codes_mut, scales_mut, &mut points),
                scratch,
                |raw, row, codes, scales, points| write(raw, row, codes, scales, ZeroRow::Point(points)),
            )?;
            Zero::Point(points.into())
        }
        ZeroKind::Min => {
            let mut minima = vec![f16::ZERO; rows * groups];
            fill_rows(
                rows,
                columns,
                (codes_mut, scales_mut, &mut minima),
                scratch,
                |raw, row, codes, scales, minima| write(raw, row, codes, scales, ZeroRow::Min(minima)),
            )?;
            Zero::Min(minima.into())
        }
    };
    Ok(Codes::Int4(Int4::new(group, codes, scales, zero)))
}

fn int8_rows<E: From<Error> + Send>(
    rows: usize,
    columns: usize,
    group: Group,
    write_row: impl Fn(usize, CodedRow<'_>) -> Result<(), E> + Sync,
) -> Result<Codes<'static>, E> {
    let groups = group.count(columns);
    let mut codes = vec![0i8; rows * columns];
    let mut scales = vec![f16::ZERO; rows * groups];
    let fields = (&mut codes[..], &mut scales[..], &mut vec![(); rows][..]);
    fill_rows(
        rows,
        columns,
        fields,
        || (),
        |(), row, codes, scales, _| write_row(row, CodedRow::Int8 { codes, scales }),
    )?;
    Ok(Codes::Int8(Int8::new(group, codes, scales)))
}

fn check_code(row: usize, format: &str, wrong: Option<i16>) -> Result<(), Error> {
    match wrong {
        None => Ok(()),
        Some(code) => Err(Error::Invalid(format!("{format} row {row} has the code {code}, which is out of range"))),
    }
}

/// One row of codes of its own, which can be copied into a row of a format that holds it.
#[derive(Clone, Debug)]
pub struct RowBuffer {
    format: Format,
    /// Ternary and INT8 codes.
    signed: Vec<i8>,
    /// INT4 codes.
    unsigned: Vec<u8>,
    scales: Vec<f16>,
    points: Vec<u8>,
    minima: Vec<f16>,
    scale: f32,
}

impl RowBuffer {
    /// A row of `columns` codes of `format`, all zero.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a dense format.
    pub fn new(format: Format, columns: usize) -> Result<Self, Error> {
        ensure_coded(format)?;
        let signed = if matches!(format, Format::Int4 { .. }) { 0 } else { columns };
        let groups = match format {
            Format::Int4 { group, .. } | Format::Int8 { group } => group.count(columns),
            _ => 0,
        };
        let zeros = |kind| if matches!(format, Format::Int4 { zero, .. } if zero == kind) { groups } else { 0 };
        Ok(RowBuffer {
            format,
            signed: vec![0; signed],
            unsigned: vec![0; columns - signed],
            scales: vec![f16::ZERO; groups],
            points: vec![0; zeros(ZeroKind::Point)],
            minima: vec![f16::ZERO; zeros(ZeroKind::Min)],
            scale: 0.0,
        })
    }

    /// The weights that the codes stand for.
    ///
    /// # Panics
    /// If `out` is not as long as the row.
    pub fn dequantize(&self, out: &mut [f32]) {
        let columns = self.signed.len() + self.unsigned.len();
        assert_eq!(out.len(), columns);
        for (column, out) in out.iter_mut().enumerate() {
            *out = match self.format {
                Format::Int4 { group, zero } => {
                    let group = column / group.columns(columns);
                    let (scale, code) = (self.scales[group].to_f32(), f32::from(self.unsigned[column]));
                    match zero {
                        ZeroKind::Symmetric => scale * (code - 8.0),
                        ZeroKind::Point => scale * (code - f32::from(self.points[group])),
                        ZeroKind::Min => scale * code + self.minima[group].to_f32(),
                    }
                }
                Format::Int8 { group } => {
                    self.scales[column / group.columns(columns)].to_f32() * f32::from(self.signed[column])
                }
                _ => self.scale * f32::from(self.signed[column]),
            };
        }
    }

    /// The row, to be filled.
    pub fn row(&mut self) -> CodedRow<'_> {
        match self.format {
            Format::Int4 { zero, .. } => CodedRow::Int4 {
                codes: &mut self.unsigned,
                scales: &mut self.scales,
                zero: match zero {
                    ZeroKind::Symmetric => ZeroRow::Symmetric,
                    ZeroKind::Point => ZeroRow::Point(&mut self.points),
                    ZeroKind::Min => ZeroRow::Min(&mut self.minima),
                },
            },
            Format::Int8 { .. } => CodedRow::Int8 { codes: &mut self.signed, scales: &mut self.scales },
            _ => CodedRow::Ternary { values: &mut self.signed, scale: &mut self.scale },
        }
    }

    /// Copies the row into `out`, a row of `format` and of the same length. The weights stay what they are.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless `format` [holds](Format::holds) the buffer's.
    pub fn copy_to(&self, format: Format, out: CodedRow<'_>) -> Result<(), Error> {
        ensure!(format.holds(self.format), "{format} can't hold the codes of {}", self.format);
        // Columns of a group of the buffer, and the groups in which those of `out` lie.
        let columns = self.signed.len() + self.unsigned.len();
        let width = |format| match format {
            Format::Int4 { group, .. } | Format::Int8 { group } => group.columns(columns),
            _ => columns.max(1),
        };
        let (from, to) = (width(self.format), width(format));
        let source = |group: usize| group * to / from;
        match out {
            CodedRow::Ternary { values, scale } => {
                values.copy_from_slice(&self.signed);
                *scale = self.scale;
            }
            CodedRow::Int8 { codes, scales } => {
                for (column, code) in codes.iter_mut().enumerate() {
                    *code = match self.format {
                        Format::Int4 { zero: ZeroKind::Point, .. } => {
                            self.unsigned[column] as i8 - self.points[column / from] as i8
                        }
                        Format::Int4 { .. } => self.unsigned[column] as i8 - 8,
                        _ => self.signed[column],
                    };
                }
                scales.iter_mut().enumerate().for_each(|(group, scale)| *scale = self.scales[source(group)]);
            }
            CodedRow::Int4 { codes, scales, zero } => {
                codes.copy_from_slice(&self.unsigned);
                scales.iter_mut().enumerate().for_each(|(group, scale)| *scale = self.scales[source(group)]);
                let symmetric = matches!(self.format, Format::Int4 { zero: ZeroKind::Symmetric, .. });
                match zero {
                    ZeroRow::Symmetric => {}
                    ZeroRow::Point(points) => points
                        .iter_mut()
                        .enumerate()
                        .for_each(|(group, point)| *point = if symmetric { 8 } else { self.points[source(group)] }),
                    ZeroRow::Min(minima) => minima.iter_mut().enumerate().for_each(|(group, minimum)| {
                        // Eight times a float is the same float with another exponent: nothing is lost.
                        let eight = f16::from_f32(-8.0 * self.scales[source(group)].to_f32());
                        *minimum = if symmetric { eight } else { self.minima[source(group)] };
                    }),
                }
            }
        }
        Ok(())
    }
}

fn ensure_coded(format: Format) -> Result<(), Error> {
    if format.is_dense() {
        return Err(Error::Unsupported(format!("{format} weights have no codes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: [Group; 4] = [Group::G32, Group::G64, Group::G128, Group::Row];
    const ZEROS: [ZeroKind; 3] = [ZeroKind::Symmetric, ZeroKind::Point, ZeroKind::Min];

    fn coded_formats() -> Vec<Format> {
        let mut formats = vec![Format::Ternary];
        for group in GROUPS {
            formats.push(Format::Int8 { group });
            formats.extend(ZEROS.map(|zero| Format::Int4 { group, zero }));
        }
        formats
    }

    /// Fills a row with codes and scales that differ everywhere.
    fn fill(row: usize, out: CodedRow<'_>) -> Result<(), Error> {
        let half = |group: usize| f16::from_f32(0.25 + 0.125 * (row * 3 + group) as f32);
        match out {
            CodedRow::Ternary { values, scale } => {
                values.iter_mut().enumerate().for_each(|(c, value)| *value = ((row + c) % 3) as i8 - 1);
                *scale = 0.1 + row as f32;
            }
            CodedRow::Int4 { codes, scales, zero } => {
                codes.iter_mut().enumerate().for_each(|(c, code)| *code = ((row * 5 + c * 7) % 16) as u8);
                scales.iter_mut().enumerate().for_each(|(g, scale)| *scale = half(g));
                match zero {
                    ZeroRow::Symmetric => {}
                    ZeroRow::Point(points) => {
                        points.iter_mut().enumerate().for_each(|(g, point)| *point = ((row + g) % 17) as u8)
                    }
                    ZeroRow::Min(minima) => minima.iter_mut().enumerate().for_each(|(g, m)| *m = -half(g + 1)),
                }
            }
            CodedRow::Int8 { codes, scales } => {
                codes.iter_mut().enumerate().for_each(|(c, code)| *code = ((row * 31 + c * 17) % 255) as i8);
                codes.iter_mut().for_each(|code| *code = (*code).max(-127));
                scales.iter_mut().enumerate().for_each(|(g, scale)| *scale = half(g));
            }
        }
        Ok(())
    }

    fn dequantize(matrix: &HostMatrix<'_>) -> Vec<f32> {
        let mut out = vec![0.0; matrix.rows() * matrix.columns()];
        out.chunks_mut(matrix.columns()).enumerate().for_each(|(row, out)| matrix.dequantize_row(row, out));
        out
    }

    #[test]
    fn codes_come_out_as_they_went_in() {
        let format = Format::Int4 { group: Group::G32, zero: ZeroKind::Min };
        let matrix = HostMatrix::coded(3, 67, format, fill).unwrap();
        let Codes::Int4(int4) = matrix.codes() else { panic!() };
        let mut row = [0; 67];
        int4.row(2, &mut row);
        assert!(row.iter().enumerate().all(|(c, &code)| usize::from(code) == (10 + c * 7) % 16));
        let scale = 0.25 + 0.125 * 8.0;
        assert_eq!(dequantize(&matrix)[2 * 67 + 66], scale * f32::from(row[66]) - (0.25 + 0.125 * 9.0));
        let ternary = HostMatrix::coded(2, 5, Format::Ternary, fill).unwrap();
        assert_eq!(dequantize(&ternary), [-0.1, 0.0, 0.1, -0.1, 0.0, 0.0, 1.1, -1.1, 0.0, 1.1]);
    }

    #[test]
    fn a_format_that_holds_another_keeps_every_weight() {
        for from in coded_formats() {
            for to in coded_formats().into_iter().filter(|to| to.holds(from)) {
                for columns in [1, 31, 64, 200] {
                    let exact = HostMatrix::coded(3, columns, from, fill).unwrap();
                    let copied = HostMatrix::coded(3, columns, to, |row, out| {
                        let mut buffer = RowBuffer::new(from, columns)?;
                        fill(row, buffer.row())?;
                        buffer.copy_to(to, out)
                    });
                    assert_eq!(dequantize(&copied.unwrap()), dequantize(&exact), "{from} in {to}, {columns} columns");
                }
            }
        }
    }

    #[test]
    fn what_is_not_held_is_refused() {
        let symmetric = Format::Int4 { group: Group::G32, zero: ZeroKind::Symmetric };
        let coarse = Format::Int4 { group: Group::G64, zero: ZeroKind::Symmetric };
        let buffer = RowBuffer::new(symmetric, 64).unwrap();
        let mut target = RowBuffer::new(coarse, 64).unwrap();
        let error = buffer.copy_to(coarse, target.row()).unwrap_err().to_string();
        assert_eq!(error, "int4-g64 can't hold the codes of int4-g32");
        assert!(RowBuffer::new(Format::F16, 64).is_err());
    }

    #[test]
    fn wrong_codes_and_shapes_are_errors() {
        let problem = |format, write: &(dyn Fn(CodedRow<'_>) + Sync)| {
            let built = HostMatrix::coded(2, 3, format, |_, row| {
                write(row);
                Ok::<(), Error>(())
            });
            built.unwrap_err().to_string()
        };
        let int4 = Format::Int4 { group: Group::Row, zero: ZeroKind::Symmetric };
        let above = problem(int4, &|row| {
            if let CodedRow::Int4 { codes, .. } = row {
                codes[1] = 16;
            }
        });
        assert!(above.ends_with("has the code 16, which is out of range"), "{above}");
        let two = problem(Format::Ternary, &|row| {
            if let CodedRow::Ternary { values, .. } = row {
                values[2] = 2;
            }
        });
        assert!(two.starts_with("ternary row ") && two.contains("the code 2"), "{two}");
        let lowest = problem(Format::Int8 { group: Group::G32 }, &|row| {
            if let CodedRow::Int8 { codes, .. } = row {
                codes[0] = -128;
            }
        });
        assert!(lowest.contains("-128"), "{lowest}");
        let infinite = problem(int4, &|row| {
            if let CodedRow::Int4 { scales, .. } = row {
                scales[0] = f16::INFINITY;
            }
        });
        assert!(infinite.contains("not finite"), "{infinite}");
        for (rows, columns) in [(0, 3), (3, 0), (usize::MAX, 2)] {
            assert!(HostMatrix::coded(rows, columns, int4, fill).is_err());
        }
        assert!(HostMatrix::coded(1, 1, Format::Bf16, fill).is_err());
        let carried =
            HostMatrix::coded(4, 8, int4, |row, _| if row == 3 { Err(Error::Device("row 3".into())) } else { Ok(()) });
        assert_eq!(carried, Err(Error::Device("row 3".into())));
    }

    #[test]
    fn a_quantised_row_is_the_matrix_packers() {
        let values: Vec<f32> = (0..77).map(|i| ((i * 37) % 23) as f32 - 11.3).collect();
        for group in GROUPS {
            let int4 = |zero| Format::Int4 { group, zero };
            for format in [Format::Int8 { group }, int4(ZeroKind::Symmetric), int4(ZeroKind::Min)] {
                let whole = HostMatrix::quantize::<Error>(1, 77, format, |_, out| {
                    out.copy_from_slice(&values);
                    Ok(())
                });
                let rows = HostMatrix::coded(1, 77, format, |_, out| out.quantize(group, &values));
                assert_eq!(whole, rows, "{format}");
            }
        }
        let mut buffer = RowBuffer::new(Format::Ternary, 77).unwrap();
        assert!(buffer.row().quantize(Group::Row, &values).is_err());
    }
}
