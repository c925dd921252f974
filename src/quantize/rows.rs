//! Rows of weights become INT4 codes, on all cores, by one of the methods.

use std::str::FromStr;

use half::f16;
use rayon::prelude::*;
use trine_backend::{Codes, Format, Group, HostMatrix, Int4, Zero, ZeroKind};

use super::gptq::Gptq;
use super::inputs::Inputs;
use super::scale::{self, Grid};
use crate::{Error, Result};

/// How INT4 codes and scales are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The nearest code, with the better of the two classic scales: what loading with `--weights` does.
    Nearest,
    /// The nearest code, with the scale of the smallest squared error, weighted by the inputs where a calibration text
    /// shows them.
    #[default]
    Search,
    /// GPTQ: the weights that follow make up for each rounding. Needs a calibration text.
    Gptq,
}

impl Method {
    /// The names that `--method` takes.
    pub const NAMES: [&'static str; 3] = ["rtn", "search", "gptq"];
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "rtn" => Ok(Method::Nearest),
            "search" => Ok(Method::Search),
            "gptq" => Ok(Method::Gptq),
            _ => Err(Error::Usage(format!("'{name}' is no method: it is one of {}", Method::NAMES.join(", ")))),
        }
    }
}

/// Rows that are rounded together: GPTQ goes once through its factor for all of them.
const TILE: usize = 32;

/// What decides the codes of a matrix.
enum Rounding {
    Search(Vec<f32>),
    Gptq(Gptq),
}

/// Quantises a matrix whose row `r` is written by `read_row(r, out)` to `format`. `inputs` is what calibration saw of
/// it, with products for [`Method::Gptq`], which is [`Method::Search`] where nothing was seen.
///
/// # Errors
/// What `read_row` returns, and formats that are not made from floats alone.
pub(super) fn quantize(
    rows: usize,
    columns: usize,
    format: Format,
    method: Method,
    inputs: Option<Inputs>,
    read_row: impl Fn(usize, &mut [f32]) -> Result<()> + Sync,
) -> Result<HostMatrix<'static>> {
    let (group, zero) = match format {
        Format::Int4 { group, zero: zero @ (ZeroKind::Symmetric | ZeroKind::Min) } if method != Method::Nearest => {
            (group, zero)
        }
        _ => return HostMatrix::quantize(rows, columns, format, read_row),
    };
    let rounding = match (method, inputs) {
        (Method::Gptq, Some(inputs)) => Rounding::Gptq(Gptq::new(inputs)),
        (_, Some(inputs)) => Rounding::Search(inputs.importance()),
        (_, None) => Rounding::Search(vec![1.0; columns]),
    };
    int4(rows, columns, (group, zero), &rounding, read_row)
}

fn int4(
    rows: usize,
    columns: usize,
    (group, zero): (Group, ZeroKind),
    rounding: &Rounding,
    read_row: impl Fn(usize, &mut [f32]) -> Result<()> + Sync,
) -> Result<HostMatrix<'static>> {
    let (width, groups, row_bytes) = (group.columns(columns), group.count(columns), Int4::row_bytes(columns));
    let mut codes = vec![0u8; rows * row_bytes];
    let mut grids = vec![Grid::Symmetric(f16::ZERO); rows * groups];
    // A small matrix should still be enough for all cores.
    let tile = rows.div_ceil(rayon::current_num_threads()).min(TILE);
    let tiles = codes.par_chunks_mut(tile * row_bytes).zip(grids.par_chunks_mut(tile * groups));
    tiles.enumerate().try_for_each(|(index, (codes, grids))| {
        let rows = grids.len() / groups;
        let mut weights = vec![0.0; rows * columns];
        for (row, weights) in weights.chunks_mut(columns).enumerate() {
            read_row(index * tile + row, weights)?;
        }
        let importance = match rounding {
            Rounding::Gptq(gptq) => gptq.importance(),
            Rounding::Search(importance) => importance,
        };
        choose(&weights, importance, (width, zero), grids);
        let mut raw = vec![0u8; rows * columns];
        match rounding {
            Rounding::Gptq(gptq) => gptq.round(&mut weights, width, grids, &mut raw),
            Rounding::Search(_) => round(&weights, columns, width, grids, &mut raw),
        }
        raw.chunks(columns).zip(codes.chunks_mut(row_bytes)).for_each(|(raw, codes)| pack(raw, codes));
        Ok::<(), Error>(())
    })?;
    let scale = |grid: &Grid| match *grid {
        Grid::Symmetric(scale) | Grid::Min(scale, _) => scale,
    };
    let minimum = |grid: &Grid| match *grid {
        Grid::Symmetric(_) => f16::ZERO,
        Grid::Min(_, minimum) => minimum,
    };
    let zero = match zero {
        ZeroKind::Min => Zero::Min(grids.iter().map(minimum).collect::<Vec<_>>().into()),
        _ => Zero::Symmetric,
    };
    let scales: Vec<_> = grids.iter().map(scale).collect();
    Ok(HostMatrix::new(rows, columns, Codes::Int4(Int4::new(group, codes, scales, zero)))?)
}

/// The grids of whole rows, as the search finds them.
fn choose(weights: &[f32], importance: &[f32], (width, zero): (usize, ZeroKind), grids: &mut [Grid]) {
    let columns = importance.len();
    for (weights, grids) in weights.chunks(columns).zip(grids.chunks_mut(columns.div_ceil(width))) {
        for ((weights, importance), grid) in weights.chunks(width).zip(importance.chunks(width)).zip(grids) {
            *grid = match zero {
                ZeroKind::Min => scale::search_min(weights, importance),
                _ => Grid::Symmetric(scale::search(weights, importance)),
            };
        }
    }
}

/// Raw codes 0..=15 of whole rows: the nearest ones.
fn round(weights: &[f32], columns: usize, width: usize, grids: &[Grid], raw: &mut [u8]) {
    let rows = weights.chunks(columns).zip(raw.chunks_mut(columns)).zip(grids.chunks(columns.div_ceil(width)));
    for ((weights, raw), grids) in rows {
        for ((weights, raw), grid) in weights.chunks(width).zip(raw.chunks_mut(width)).zip(grids) {
            let inverse = grid.inverse();
            raw.iter_mut().zip(weights).for_each(|(raw, &weight)| *raw = grid.round(weight, inverse).0 as u8);
        }
    }
}

/// Two codes to a byte, the even column in the low nibble.
fn pack(raw: &[u8], out: &mut [u8]) {
    for (out, pair) in out.iter_mut().zip(raw.chunks(2)) {
        *out = pair[0] | pair.get(1).map_or(0, |high| high << 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns).map(|i| ((i * 7919 + i * i % 101) % 1000) as f32 / 500.0 - 1.0).collect()
    }

    fn run(rows: usize, columns: usize, name: &str, method: Method, inputs: Option<Inputs>) -> HostMatrix<'static> {
        let values = weights(rows, columns);
        quantize(rows, columns, name.parse().unwrap(), method, inputs, |row, out| {
            out.copy_from_slice(&values[row * columns..][..columns]);
            Ok(())
        })
        .unwrap()
    }

    /// `Σ importance (w - ŵ)²`.
    fn error(matrix: &HostMatrix<'_>, importance: &[f32]) -> f64 {
        let (rows, columns) = (matrix.rows(), matrix.columns());
        let values = weights(rows, columns);
        let mut out = vec![0.0; columns];
        let mut sum = 0.0;
        for row in 0..rows {
            matrix.dequantize_row(row, &mut out);
            for ((value, back), importance) in values[row * columns..].iter().zip(&out).zip(importance) {
                sum += f64::from(importance * (value - back) * (value - back));
            }
        }
        sum
    }

    #[test]
    fn each_method_beats_the_one_before_where_it_looks() {
        // Odd columns, short groups, rows that fill no tile.
        for (rows, columns) in [(5, 33), (70, 96), (1, 300)] {
            let mut inputs = Inputs::new(columns, true);
            let x: Vec<f32> = (0..4 * columns).map(|i| if i % columns % 5 == 0 { 4.0 } else { 0.5 }).collect();
            inputs.add(&x);
            let importance = inputs.importance();
            let plain = run(rows, columns, "int4-g32", Method::Nearest, None);
            let searched = run(rows, columns, "int4-g32", Method::Search, None);
            let weighted = run(rows, columns, "int4-g32", Method::Search, Some(inputs));
            let ones = vec![1.0; columns];
            assert!(error(&searched, &ones) <= error(&plain, &ones));
            assert!(error(&weighted, &importance) < error(&searched, &importance));
            assert_eq!(weighted.format(), plain.format());
        }
    }

    #[test]
    fn a_minimum_loses_less_than_none() {
        for (rows, columns) in [(5, 33), (70, 96), (1, 300)] {
            let ones = vec![1.0; columns];
            let plain = run(rows, columns, "int4-g32-min", Method::Nearest, None);
            let searched = run(rows, columns, "int4-g32-min", Method::Search, None);
            let symmetric = run(rows, columns, "int4-g32", Method::Search, None);
            assert_eq!((searched.format(), plain.format()), ("int4-g32-min".parse().unwrap(), searched.format()));
            assert!(error(&searched, &ones) <= error(&plain, &ones));
            assert!(error(&searched, &ones) < error(&symmetric, &ones));
            let mut inputs = Inputs::new(columns, true);
            inputs.add(&(0..4 * columns).map(|i| if i % columns % 5 == 0 { 4.0 } else { 0.5 }).collect::<Vec<_>>());
            let importance = inputs.importance();
            let weighted = run(rows, columns, "int4-g32-min", Method::Search, Some(inputs));
            assert!(error(&weighted, &importance) < error(&searched, &importance));
        }
    }

    #[test]
    fn other_formats_are_made_as_on_loading() {
        for name in ["int8", "int8-row", "f16"] {
            assert_eq!(run(3, 40, name, Method::Gptq, None), run(3, 40, name, Method::Nearest, None));
        }
    }

    #[test]
    fn a_reader_error_comes_out() {
        let read = |row: usize, _: &mut [f32]| match row {
            7 => Err(Error::Request("row 7".into())),
            _ => Ok(()),
        };
        let found = quantize(9, 4, "int4-row".parse().unwrap(), Method::Search, None, read);
        assert_eq!(found.unwrap_err().to_string(), "row 7");
    }

    #[test]
    fn methods_have_names() {
        for name in Method::NAMES {
            name.parse::<Method>().unwrap();
        }
        let problem = "awq".parse::<Method>().unwrap_err().to_string();
        assert_eq!(problem, "'awq' is no method: it is one of rtn, search, gptq");
    }
}
