//! What calibration learns of a matrix: how large its inputs are, and how they go together.

use super::linalg;

/// Inputs whose products are kept at most: the Gram matrix of more (a down projection of 18944 inputs would take
/// 1.4 GB) is cut into blocks on its diagonal, and products across blocks are taken for zero.
const LARGEST_GRAM: usize = 8192;

/// Sums over the tokens of the calibration text.
#[derive(Debug)]
pub(super) struct Inputs {
    columns: usize,
    /// `Σ x²` of each column.
    squares: Vec<f64>,
    grams: Vec<Gram>,
}

/// `Σ x · xᵀ` of some columns that lie side by side.
#[derive(Debug)]
pub(super) struct Gram {
    /// The first of them.
    pub(super) first: usize,
    /// How many.
    pub(super) size: usize,
    /// `[size, size]`; the upper triangle counts.
    pub(super) products: Vec<f32>,
}

impl Inputs {
    /// Nothing seen so far. With `products` the Gram matrices are summed too.
    pub(super) fn new(columns: usize, products: bool) -> Self {
        let blocks = columns.div_ceil(LARGEST_GRAM);
        // Multiples of 128, so that no group of columns is cut.
        let size = columns.div_ceil(blocks).next_multiple_of(128);
        let grams = (0..columns).step_by(size).map(|first| {
            let size = size.min(columns - first);
            Gram { first, size, products: vec![0.0; size * size] }
        });
        let grams = if products { grams.collect() } else { Vec::new() };
        Inputs { columns, squares: vec![0.0; columns], grams }
    }

    /// Columns of the matrix.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Adds inputs of `[tokens, columns]`.
    pub(super) fn add(&mut self, x: &[f32]) {
        for row in x.chunks_exact(self.columns) {
            self.squares.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(x * x));
        }
        for gram in &mut self.grams {
            linalg::add_gram(&mut gram.products, gram.size, x, self.columns, gram.first);
        }
    }

    /// How much an error of each column's weights matters: the mean of `x²`, and a hundredth of the mean over all
    /// columns for those that the text happened not to use.
    pub(super) fn importance(&self) -> Vec<f32> {
        let mean = self.squares.iter().sum::<f64>() / self.columns as f64;
        if mean <= 0.0 {
            return vec![1.0; self.columns];
        }
        // In units of the mean: sums of it over a row stay far inside f32.
        self.squares.iter().map(|square| (square / mean + 0.01) as f32).collect()
    }

    /// The Gram matrices, handed out to be factorised in their place.
    pub(super) fn into_grams(self) -> Vec<Gram> {
        self.grams
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn importance_is_the_mean_square_in_units_of_its_mean() {
        let mut inputs = Inputs::new(2, true);
        inputs.add(&[1.0, -3.0]);
        inputs.add(&[1.0, 3.0, -1.0, 3.0]);
        let importance = inputs.importance();
        assert!((importance[0] - (1.0 / 5.0 + 0.01)).abs() < 1e-6 && (importance[1] - (9.0 / 5.0 + 0.01)).abs() < 1e-6);
        let [gram] = &inputs.into_grams()[..] else { panic!() };
        assert_eq!((gram.products[0], gram.products[1], gram.products[3]), (3.0, -3.0, 27.0));
        assert_eq!(Inputs::new(3, false).importance(), [1.0; 3]);
    }

    #[test]
    fn many_columns_are_cut_between_groups() {
        let inputs = Inputs::new(18_944, true);
        let sizes: Vec<_> = inputs.grams.iter().map(|gram| (gram.first, gram.size)).collect();
        assert_eq!(sizes, [(0, 6400), (6400, 6400), (12_800, 6144)]);
    }
}
