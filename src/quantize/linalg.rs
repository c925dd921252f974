//! Dense linear algebra for GPTQ: a Gram matrix, and the inverse of its upper factor.
//!
//! Sizes are a layer's inputs, some thousands: blocks keep the work in the cache, rows go to all cores.

use rayon::prelude::*;

/// Columns of a block of the factorisation.
const BLOCK: usize = 64;

/// `gram += xᵀ · x` in the upper triangle of `gram` of `[n, n]`; `x` holds rows of `width` values, of which those from
/// `first` to `first + n` are meant.
pub(super) fn add_gram(gram: &mut [f32], n: usize, x: &[f32], width: usize, first: usize) {
    // A stripe of rows at a time stays in the cache while all columns go over it.
    for x in x.chunks(64 * width) {
        gram.par_chunks_mut(n).enumerate().for_each(|(i, out)| {
            let out = &mut out[i..];
            // Four rows at once: a sum is loaded and stored for four products.
            for rows in x.chunks(4 * width) {
                let row = |index: usize| rows.get(index * width + first + i..index * width + first + n);
                match [row(0), row(1), row(2), row(3)] {
                    [Some(a), Some(b), Some(c), Some(d)] => {
                        for ((((out, x), y), z), w) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                            *out += (a[0] * x + b[0] * y) + (c[0] * z + d[0] * w);
                        }
                    }
                    rest => {
                        for row in rest.into_iter().flatten() {
                            out.iter_mut().zip(row).for_each(|(out, x)| *out += row[0] * x);
                        }
                    }
                }
            }
        });
    }
}

/// A square matrix is not positive definite, so that it has no factor: not even with the damping.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotPositive;

/// Of a symmetric positive definite `a` of `[n, n]`, of which only the upper triangle is read: the upper triangular `r` with `a⁻¹ = rᵀ · r`, in place; below
/// the diagonal are zeros.
///
/// With `a = u · uᵀ`, `u` upper triangular, `a⁻¹ = u⁻ᵀ · u⁻¹`, so `r = u⁻¹`. `u` is the Cholesky factor taken from the
/// last row to the first.
pub(super) fn inverse_factor(a: &mut [f64], n: usize) -> Result<(), NotPositive> {
    factor(a, n)?;
    invert_upper(a, n);
    Ok(())
}

/// `a = u · uᵀ` by blocks of rows from the last to the first, in place in the upper triangle.
fn factor(a: &mut [f64], n: usize) -> Result<(), NotPositive> {
    let mut end = n;
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        factor_block(a, n, start, end)?;
        let (above, block) = a.split_at_mut(start * n);
        // u[i][start..end] of the rows above: solve against the block's factor, from its last column to its first.
        above.par_chunks_mut(n).for_each(|row| {
            for j in (start..end).rev() {
                let factor = &block[(j - start) * n..][..n];
                row[j] /= factor[j];
                let value = row[j];
                // What column j of u contributes to the columns before it in this block: u[k][j], k < j.
                for k in start..j {
                    row[k] -= value * block[(k - start) * n + j];
                }
            }
        });
        subtract_block(above, n, start, end);
        end = start;
    }
    for i in 0..n {
        a[i * n..i * n + i].fill(0.0);
    }
    Ok(())
}

/// The factor of the diagonal block `[start..end]`, whose later columns are subtracted already.
fn factor_block(a: &mut [f64], n: usize, start: usize, end: usize) -> Result<(), NotPositive> {
    for j in (start..end).rev() {
        let pivot = a[j * n + j];
        if !(pivot > 0.0 && pivot.is_finite()) {
            return Err(NotPositive);
        }
        let root = pivot.sqrt();
        a[j * n + j] = root;
        for i in start..j {
            a[i * n + j] /= root;
        }
        for i in start..j {
            let value = a[i * n + j];
            for k in i..j {
                a[i * n + k] -= value * a[k * n + j];
            }
        }
    }
    Ok(())
}

/// `a[i][k] -= Σ_j u[i][j] · u[k][j]` over the block's columns `j`, for the rows `i <= k` above it.
fn subtract_block(above: &mut [f64], n: usize, start: usize, end: usize) {
    let width = end - start;
    let mut columns = vec![0.0; start * width];
    for (row, out) in above.chunks(n).zip(columns.chunks_mut(width)) {
        out.copy_from_slice(&row[start..end]);
    }
    above.par_chunks_mut(n).enumerate().for_each(|(i, row)| {
        let own = &columns[i * width..][..width];
        for (k, other) in columns.chunks_exact(width).enumerate().skip(i) {
            row[k] -= dot(own, other);
        }
    });
}

/// The inverse of an upper triangular matrix, in place: rows from the last to the first.
fn invert_upper(u: &mut [f64], n: usize) {
    for i in (0..n).rev() {
        let (above, below) = u.split_at_mut((i + 1) * n);
        let row = &mut above[i * n..];
        let inverse = 1.0 / row[i];
        let own: Vec<f64> = row[i + 1..].to_vec();
        // r[i][j] = -(Σ_k u[i][k] r[k][j]) / u[i][i] over k in i+1..=j; a part of the columns for each core.
        let tail = &mut row[i + 1..];
        tail.fill(0.0);
        let part = tail.len().div_ceil(rayon::current_num_threads()).max(256);
        tail.par_chunks_mut(part).enumerate().for_each(|(index, out)| {
            let first = index * part;
            for (k, factor) in own.iter().enumerate().take(first + out.len()) {
                let line = &below[k * n + i + 1 + first..][..out.len()];
                let skip = k.saturating_sub(first);
                out[skip..].iter_mut().zip(&line[skip..]).for_each(|(out, value)| *out -= factor * value);
            }
            out.iter_mut().for_each(|out| *out *= inverse);
        });
        row[i] = inverse;
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Several sums, so that the compiler may use the whole vector unit.
    let mut sums = [0.0; 8];
    let (a_blocks, a_rest) = a.as_chunks::<8>();
    let (b_blocks, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in -1..1 without a pattern.
    fn noise(count: usize) -> Vec<f32> {
        let mut state = 12345u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn a_gram_matrix_is_the_sum_of_products() {
        let (rows, width) = (150, 9);
        let x = noise(rows * width);
        for (first, n) in [(0, 9), (2, 7), (8, 1)] {
            let mut gram = vec![1.0; n * n];
            add_gram(&mut gram, n, &x, width, first);
            for i in 0..n {
                for j in i..n {
                    let product = |row: usize| x[row * width + first + i] * x[row * width + first + j];
                    let expected: f32 = 1.0 + (0..rows).map(product).sum::<f32>();
                    assert!((gram[i * n + j] - expected).abs() < 1e-4, "{i} {j}");
                }
            }
        }
    }

    #[test]
    fn the_factor_makes_the_inverse() {
        // One column, less than a block, a block exactly, several and a rest; more than one part of the inversion.
        for n in [1, 5, 64, 65, 200, 600] {
            let x = noise(2 * n * n);
            let mut gram = vec![0.0; n * n];
            add_gram(&mut gram, n, &x, n, 0);
            let mut r: Vec<f64> = gram.iter().map(|&value| f64::from(value)).collect();
            let a: Vec<f64> = (0..n * n).map(|at| r[(at / n).min(at % n) * n + (at / n).max(at % n)]).collect();
            inverse_factor(&mut r, n).unwrap();
            for i in 0..n {
                assert!(r[i * n + i] > 0.0 && r[i * n..i * n + i].iter().all(|&below| below == 0.0));
            }
            // a · rᵀ · r must be the identity; some rows are enough.
            for i in (0..n).step_by(n.div_ceil(7)) {
                let first: Vec<f64> = (0..n).map(|k| (k..n).map(|j| a[i * n + j] * r[k * n + j]).sum()).collect();
                for j in 0..n {
                    let entry: f64 = (0..=j).map(|k| first[k] * r[k * n + j]).sum();
                    let expected = if i == j { 1.0 } else { 0.0 };
                    assert!((entry - expected).abs() < 1e-6, "n {n}: [{i}, {j}] is {entry}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_factor_is_told() {
        assert_eq!(inverse_factor(&mut [1.0, 2.0, 2.0, 1.0], 2), Err(NotPositive));
        assert_eq!(inverse_factor(&mut [0.0], 1), Err(NotPositive));
        assert_eq!(inverse_factor(&mut [f64::NAN], 1), Err(NotPositive));
    }
}
