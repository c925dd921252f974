//! GPTQ: rounding errors are made up for by the weights that are not rounded yet.
//!
//! Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
//! <https://arxiv.org/abs/2210.17323>. With inputs `x` of Gram matrix `H = Σ x xᵀ`, rounding column `i` of a row by the
//! error `e` changes the row's outputs least if the columns `k` behind it move by `-e · r[i][k] / r[i][i]`, where `r` is
//! the upper factor of `H⁻¹`. Columns are taken by falling input size (what matters most is rounded first, while
//! everything can still make up for it), with the scales of the groups fixed before, so that the codes stay in the
//! groups' order and no index of columns has to be stored.

use super::inputs::{Gram, Inputs};
use super::linalg::{self, NotPositive};
use super::scale::Grid;

/// Columns whose errors are passed on together.
const BLOCK: usize = 128;
/// Columns that a block's errors are added to at a time: a part of `r` that stays in the cache while all rows use it.
const STRIPE: usize = 512;
/// Part of the mean of `H`'s diagonal that is added to it.
const DAMPING: f64 = 0.01;

/// What the rows of a matrix are rounded with.
pub(super) struct Gptq {
    importance: Vec<f32>,
    factors: Vec<Factor>,
}

/// Columns whose errors are passed on to each other.
struct Factor {
    /// Columns of the matrix in the order in which they are rounded.
    order: Vec<usize>,
    /// `[n, n]` upper triangular, in that order; each row divided by its diagonal.
    r: Vec<f32>,
}

impl Gptq {
    /// Factorises what calibration has seen; `inputs` must have products.
    pub(super) fn new(inputs: Inputs) -> Self {
        let importance = inputs.importance();
        let factors = inputs.into_grams().into_iter().map(Factor::new).collect();
        Gptq { importance, factors }
    }

    /// How much each column matters.
    pub(super) fn importance(&self) -> &[f32] {
        &self.importance
    }

    /// Rounds rows of weights (which are changed on the way) to the codes of `grids`, `[rows, groups]` of `width` columns:
    /// raw codes 0..=15 to `codes` of `[rows, columns]`.
    pub(super) fn round(&self, weights: &mut [f32], width: usize, grids: &[Grid], codes: &mut [u8]) {
        let columns = self.importance.len();
        let groups = columns.div_ceil(width);
        let inverses: Vec<f32> = grids.iter().map(|grid| grid.inverse()).collect();
        let grid = |row: usize, column: usize| {
            let at = row * groups + column / width;
            (grids[at], inverses[at])
        };
        let rows = weights.len() / columns;
        for factor in &self.factors {
            let n = factor.order.len();
            // In the order of rounding, so that what follows walks through memory.
            let mut sorted = vec![0.0; rows * n];
            for (weights, sorted) in weights.chunks(columns).zip(sorted.chunks_mut(n)) {
                sorted.iter_mut().zip(&factor.order).for_each(|(out, &column)| *out = weights[column]);
            }
            factor.round(&mut sorted, rows, grid, codes, columns);
        }
    }
}

impl Factor {
    fn new(gram: Gram) -> Self {
        let (n, first) = (gram.size, gram.first);
        let mut order: Vec<usize> = (0..n).collect();
        // A stable sort: equal inputs, as in a text that never used them, stay in their order.
        order.sort_by(|&a, &b| gram.products[b * n + b].total_cmp(&gram.products[a * n + a]));
        let mean = (0..n).map(|i| f64::from(gram.products[i * n + i])).sum::<f64>() / n as f64;
        let mean = if mean > 0.0 { mean } else { 1.0 };
        let mut damping = DAMPING;
        loop {
            let mut matrix = permuted(&gram, &order);
            (0..n).for_each(|i| matrix[i * n + i] += damping * mean);
            match linalg::inverse_factor(&mut matrix, n) {
                Ok(()) => {
                    let r =
                        matrix.chunks(n).enumerate().flat_map(|(i, row)| row.iter().map(move |x| (x / row[i]) as f32));
                    return Factor { order: order.iter().map(|&column| first + column).collect(), r: r.collect() };
                }
                // More damping makes any Gram matrix positive; one with NaN has no use.
                Err(NotPositive) if damping < 1e6 => damping *= 10.0,
                Err(NotPositive) => {
                    let identity = (0..n * n).map(|at| if at / n == at % n { 1.0 } else { 0.0 }).collect();
                    return Factor { order: (first..first + n).collect(), r: identity };
                }
            }
        }
    }

    /// `sorted`: the rows' weights in this factor's order; `grid`: that of a row and column, and its inverse scale.
    fn round(
        &self,
        sorted: &mut [f32],
        rows: usize,
        grid: impl Fn(usize, usize) -> (Grid, f32),
        codes: &mut [u8],
        columns: usize,
    ) {
        let n = self.order.len();
        let mut errors = vec![0.0; rows * BLOCK];
        for start in (0..n).step_by(BLOCK) {
            let end = n.min(start + BLOCK);
            for (row, (weights, errors)) in sorted.chunks_mut(n).zip(errors.chunks_mut(BLOCK)).enumerate() {
                for i in start..end {
                    let column = self.order[i];
                    let (grid, inverse) = grid(row, column);
                    let (code, rounded) = grid.round(weights[i], inverse);
                    codes[row * columns + column] = code as u8;
                    let error = weights[i] - rounded;
                    errors[i - start] = error;
                    let r = &self.r[i * n + i + 1..i * n + end];
                    weights[i + 1..end].iter_mut().zip(r).for_each(|(weight, r)| *weight -= error * r);
                }
            }
            for stripe in (end..n).step_by(STRIPE) {
                let stripe = stripe..n.min(stripe + STRIPE);
                for (weights, errors) in sorted.chunks_mut(n).zip(errors.chunks(BLOCK)) {
                    let weights = &mut weights[stripe.clone()];
                    for (i, &error) in (start..end).zip(errors) {
                        let r = &self.r[i * n..][stripe.clone()];
                        weights.iter_mut().zip(r).for_each(|(weight, r)| *weight -= error * r);
                    }
                }
            }
        }
    }
}

/// The upper triangle of the Gram matrix with rows and columns in another order.
fn permuted(gram: &Gram, order: &[usize]) -> Vec<f64> {
    let n = gram.size;
    let mut out = vec![0.0; n * n];
    for (i, out) in out.chunks_mut(n).enumerate() {
        for j in i..n {
            let (a, b) = (order[i].min(order[j]), order[i].max(order[j]));
            out[j] = f64::from(gram.products[a * n + b]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::scale;
    use super::*;

    /// Numbers in -1..1 without a pattern.
    fn noise(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Inputs of which each is mostly the one before it, with some columns larger than others.
    fn correlated(tokens: usize, columns: usize) -> Vec<f32> {
        let mut x = noise(tokens * columns, 7);
        for row in x.chunks_mut(columns) {
            for i in 1..columns {
                row[i] = 0.9 * row[i - 1] + 0.3 * row[i];
            }
            row.iter_mut().enumerate().for_each(|(i, x)| *x *= if i % 11 == 0 { 3.0 } else { 1.0 });
        }
        x
    }

    fn rounded(gptq: &Gptq, weights: &[f32], columns: usize, width: usize, minima: bool) -> Vec<f32> {
        let groups = columns.div_ceil(width);
        let grids: Vec<Grid> = weights
            .chunks(columns)
            .flat_map(|row| row.chunks(width).zip(gptq.importance().chunks(width)))
            .map(|(weights, importance)| match minima {
                true => scale::search_min(weights, importance),
                false => Grid::Symmetric(scale::search(weights, importance)),
            })
            .collect();
        let mut codes = vec![0; weights.len()];
        gptq.round(&mut weights.to_vec(), width, &grids, &mut codes);
        let value = |(at, &code): (usize, &u8)| {
            let (row, column) = (at / columns, at % columns);
            match grids[row * groups + column / width] {
                Grid::Symmetric(scale) => scale.to_f32() * (f32::from(code) - 8.0),
                Grid::Min(scale, minimum) => scale.to_f32() * f32::from(code) + minimum.to_f32(),
            }
        };
        assert!(codes.iter().all(|&code| code <= 15));
        codes.iter().enumerate().map(value).collect()
    }

    /// `Σ ((w - ŵ) · x)²` over tokens and rows.
    fn output_error(weights: &[f32], rounded: &[f32], x: &[f32], columns: usize) -> f64 {
        let mut sum = 0.0;
        for x in x.chunks(columns) {
            for (weights, rounded) in weights.chunks(columns).zip(rounded.chunks(columns)) {
                let error: f32 = weights.iter().zip(rounded).zip(x).map(|((w, r), x)| (w - r) * x).sum();
                sum += f64::from(error * error);
            }
        }
        sum
    }

    #[test]
    fn correlated_inputs_lose_far_less_than_by_rounding() {
        // A short last group, and more than one block of columns.
        for (columns, width) in [(300, 32), (64, 64), (200, 200)] {
            let (weights, x) = (noise(20 * columns, 3), correlated(2000, columns));
            let mut inputs = Inputs::new(columns, true);
            inputs.add(&x);
            let gptq = Gptq::new(inputs);
            let ours = output_error(&weights, &rounded(&gptq, &weights, columns, width, false), &x, columns);
            let with_minima = output_error(&weights, &rounded(&gptq, &weights, columns, width, true), &x, columns);
            let nearest: Vec<f32> = weights
                .chunks(columns)
                .flat_map(|row| row.chunks(width))
                .flat_map(|group| {
                    let scale = scale::nearest(group);
                    group.iter().map(move |w| scale::code(w * scale::invert(scale)) * scale.to_f32())
                })
                .collect();
            let plain = output_error(&weights, &nearest, &x, columns);
            assert!(ours < 0.5 * plain, "{columns} columns: {ours} against {plain}");
            assert!(with_minima < 0.5 * plain, "{columns} columns: {with_minima} against {plain}");
        }
    }

    #[test]
    fn without_correlation_it_is_rounding() {
        let columns = 64;
        let weights = noise(4 * columns, 5);
        let mut inputs = Inputs::new(columns, true);
        for column in 0..columns {
            let mut x = vec![0.0; columns];
            x[column] = 1.0;
            inputs.add(&x);
        }
        let importance = inputs.importance();
        let ours = rounded(&Gptq::new(inputs), &weights, columns, 32, false);
        for (ours, (weights, importance)) in ours.chunks(32).zip(weights.chunks(32).zip(importance.chunks(32).cycle()))
        {
            let scale = scale::search(weights, importance);
            let expected: Vec<f32> =
                weights.iter().map(|w| scale::code(w * scale::invert(scale)) * scale.to_f32()).collect();
            assert_eq!(ours, expected);
        }
    }

    #[test]
    fn inputs_that_say_nothing_still_round() {
        let weights = noise(96, 9);
        for x in [vec![0.0; 96], vec![f32::NAN; 96], vec![1.0; 96]] {
            let mut inputs = Inputs::new(96, true);
            inputs.add(&x);
            let ours = rounded(&Gptq::new(inputs), &weights, 96, 32, false);
            let worst = weights.iter().zip(&ours).map(|(w, r)| (w - r).abs()).fold(0.0, f32::max);
            assert!(worst < 1.0, "{worst}");
        }
    }
}
