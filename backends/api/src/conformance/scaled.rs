//! Products with arbitrary scales, and dense ones, within a bound.
//!
//! A product is a sum of `n` columns whose terms are rounded once or twice each and added in an order of
//! the backend's choice. Rounding errors of a sum of `n` terms behave like independent ones, so they grow
//! with `sqrt(n)` (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019):
//! `|y - y_ref| <= (4 + 2 sqrt(n)) · 2^-24 · Σ|terms|`. The 4 covers the scales' and the result's own
//! rounding. A wrong activation code is about 1e5 times as large as one rounding and shows.

use super::check::{Checker, Failure, ROUNDING, Report};
use super::data::{DENSE, Random, activations, integer_formats, random_matrix};
use super::products::{Product, multiply};
use crate::activation::{BLOCK, quantize};
use crate::oracle::Oracle;
use crate::{Activation, Backend, Codes, HostMatrix, Zero};

/// Rows, columns, batch.
const SHAPES: [(usize, usize, usize); 6] =
    [(5, 70, 3), (3, 1, 1), (33, 257, 16), (33, 640, 8), (12, 1280, 1), (7, 6912, 7)];

/// `linear` on real-valued inputs stays within the bound of float rounding.
pub fn scaled_products<B: Backend>(options: &B::Options) -> Result<Report, Failure> {
    let products = cases();
    let got = multiply::<B>(options, &products)?;
    let mut checker = Checker::default();
    for (product, got) in products.iter().zip(&got) {
        let want = &multiply::<Oracle>(&(), std::slice::from_ref(product))?[0];
        let terms = term_sums(product);
        let bound = (4.0 + 2.0 * (product.matrix.columns() as f64).sqrt()) * ROUNDING;
        // The row past the last is untouched: no error is allowed there.
        checker.within(product.case(), got, want, |at| bound * terms.get(at).copied().unwrap_or(0.0))?;
    }
    Ok(checker.report)
}

fn cases() -> Vec<Product> {
    let mut random = Random::new(2);
    let mut products = Vec::new();
    for format in DENSE.into_iter().chain(integer_formats()) {
        for &activation in activations(format) {
            let matrix = |random: &mut Random, rows, columns| {
                let matrix = random_matrix(random, format, rows, columns);
                matrix.with_activation(activation).expect("a combination from the list")
            };
            for (at, (rows, columns, batch)) in SHAPES.into_iter().enumerate() {
                let weight = matrix(&mut random, rows, columns);
                let x = (0..batch).flat_map(|token| activations_of(&mut random, columns, token + 3 * at)).collect();
                products.push(Product::new(weight, x, "floats"));
            }
            let mut x = random.floats(5 * 100, 1.0);
            x[100 + 37] = f32::NAN;
            x[3 * 100 + 99] = f32::INFINITY;
            products.push(Product::new(matrix(&mut random, 6, 100), x, "rows 1 and 3 not finite"));
        }
    }
    products
}

/// One token's activations.
fn activations_of(random: &mut Random, columns: usize, pattern: usize) -> Vec<f32> {
    let outlier = random.below(columns);
    (0..columns)
        .map(|column| match pattern % 7 {
            0 => random.signed(),
            1 if column == outlier => 1e4,
            1 => random.signed(),
            // Whole spans of zeros between others.
            2 => random.signed() * [0.0, 3.0][column / BLOCK % 2],
            3 => random.magnitude(1e-6, 1e4),
            4 => 0.0,
            5 => 1e-6 * random.signed(),
            _ => 1e4 * random.signed(),
        })
        .collect()
}

/// `Σ|terms|` of each output, `[batch, rows]`.
fn term_sums(product: &Product) -> Vec<f64> {
    let (matrix, columns) = (&product.matrix, product.matrix.columns());
    let weights: Vec<Vec<f32>> = (0..matrix.rows()).map(|row| weight_terms(matrix, row)).collect();
    let mut sums = Vec::with_capacity(product.batch * matrix.rows());
    for x in product.x.chunks(columns) {
        let x = quantized(x, matrix.activation());
        let sum = |weights: &Vec<f32>| -> f64 { weights.iter().zip(&x).map(|(&w, &x)| f64::from(w * x)).sum() };
        sums.extend(weights.iter().map(sum));
    }
    sums
}

/// The magnitude of each weight; with a minimum, of its two parts.
fn weight_terms(matrix: &HostMatrix<'_>, row: usize) -> Vec<f32> {
    let mut weights = vec![0.0; matrix.columns()];
    matrix.dequantize_row(row, &mut weights);
    let Codes::Int4(int4) = matrix.codes() else { return weights.iter().map(|w| w.abs()).collect() };
    let Zero::Min(minima) = int4.zero() else { return weights.iter().map(|w| w.abs()).collect() };
    let (width, groups) = (int4.group().columns(weights.len()), int4.group().count(weights.len()));
    let minimum = |column: usize| minima[row * groups + column / width].to_f32();
    weights.iter().enumerate().map(|(at, w)| (w - minimum(at)).abs() + minimum(at).abs()).collect()
}

/// The magnitudes of the activations that are multiplied.
fn quantized(x: &[f32], activation: Activation) -> Vec<f32> {
    if activation == Activation::Float {
        return x.iter().map(|x| x.abs()).collect();
    }
    let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; x.len().div_ceil(BLOCK)]);
    quantize(x, activation, &mut codes, &mut scales);
    codes.iter().enumerate().map(|(at, &code)| f32::from(code).abs() * scales[at / BLOCK]).collect()
}
