//! The scale of a group of INT4 codes: a search for the smallest weighted squared error.
//!
//! The error of a weight matters as much as the input that it is multiplied with is large: with independent inputs, the
//! expected squared error of an output is `Σ mean(x²) (w - ŵ)²`. So the search minimises that sum, with weights of 1
//! where nothing is known of the inputs. For given codes the best scale follows by least squares; the codes follow from
//! a start scale, of which a grid is tried: the largest weight may lie on a code from 5.5 to 9.5 (it clips), of either
//! sign, since codes go from -8 to 7.

use half::f16;

/// The codes' range.
const LOWEST: f32 = -8.0;
const HIGHEST: f32 = 7.0;
/// Codes that the largest weight is tried on: 22 to 38 quarters, 5.5 to 9.5.
const GRID: std::ops::RangeInclusive<u8> = 22..=38;
/// Adding and subtracting 1.5 · 2^23 rounds a small f32 to the nearest integer, halves to even, in two instructions on
/// any CPU.
const ROUNDER: f32 = 12_582_912.0;

/// The code, from -8 to 7, of a weight divided by the scale.
#[inline]
pub(super) fn code(quotient: f32) -> f32 {
    (quotient.clamp(LOWEST, HIGHEST) + ROUNDER) - ROUNDER
}

/// One over the scale, or 0 for a group of zeros.
#[inline]
pub(super) fn invert(scale: f16) -> f32 {
    if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() }
}

/// `Σ importance (w - ŵ)²` of a group that is rounded to the nearest codes of `scale`.
pub(super) fn error(values: &[f32], importance: &[f32], scale: f16) -> f64 {
    let (inverse, scale) = (invert(scale), scale.to_f32());
    let mut sum = 0.0;
    for (value, importance) in values.iter().zip(importance) {
        let difference = value - code(value * inverse) * scale;
        sum += importance * difference * difference;
    }
    f64::from(sum)
}

/// The scale that least squares gives the codes chosen with `inverse`, and the error that it takes away from
/// `Σ importance w²`; `None` if all codes are 0 or nothing matters.
fn fit(values: &[f32], importance: &[f32], inverse: f32) -> Option<(f32, f32)> {
    let (mut product, mut square) = (0.0f32, 0.0f32);
    for (value, importance) in values.iter().zip(importance) {
        let code = code(value * inverse);
        product += importance * value * code;
        square += importance * code * code;
    }
    (square > 0.0).then(|| (product / square, product * product / square))
}

/// The nearest f16, kept finite.
fn to_f16(scale: f32) -> f16 {
    f16::from_f32(scale.clamp(-65504.0, 65504.0))
}

/// The f16 scale for rounding to the nearest code: the best of the two classic ones (the largest weight on -8, or on
/// ±7), each refined by least squares, with all weights alike. The search starts from it and so is never worse.
pub(super) fn nearest(values: &[f32]) -> f16 {
    let ones = [1.0; 128];
    let largest = largest(values);
    let error = |scale: f16| values.chunks(128).map(|values| error(values, &ones, scale)).sum::<f64>();
    let mut best = (f64::INFINITY, f16::ZERO);
    for start in [largest / LOWEST, largest / HIGHEST] {
        let first = to_f16(start);
        let fitted = {
            let inverse = invert(first);
            let (mut product, mut square) = (0.0f32, 0.0f32);
            for value in values {
                let code = code(value * inverse);
                product += value * code;
                square += code * code;
            }
            if square > 0.0 { product / square } else { start }
        };
        for scale in [first, to_f16(fitted)] {
            let error = error(scale);
            if error < best.0 {
                best = (error, scale);
            }
        }
    }
    best.1
}

/// The f16 scale with the smallest weighted error that the search finds; `importance` has a weight of at least 0 for
/// each value.
pub(super) fn search(values: &[f32], importance: &[f32]) -> f16 {
    let largest = largest(values);
    if largest == 0.0 {
        return f16::ZERO;
    }
    let mut best_fit = (0.0f32, 0.0f32);
    for quarters in GRID {
        for sign in [1.0, -1.0] {
            let inverse = sign * f32::from(quarters) * 0.25 / largest;
            if let Some((scale, gain)) = fit(values, importance, inverse)
                && gain > best_fit.1
            {
                best_fit = (scale, gain);
            }
        }
    }
    let mut best = nearest(values);
    let mut smallest = error(values, importance, best);
    // Codes for the fitted scale, a scale for those codes: each round can only help, and rounding to f16 may undo it.
    let mut scale = best_fit.0;
    for _ in 0..3 {
        let candidate = to_f16(scale);
        let error = error(values, importance, candidate);
        if error < smallest {
            (best, smallest) = (candidate, error);
        }
        match fit(values, importance, invert(candidate)) {
            Some((refined, _)) => scale = refined,
            None => break,
        }
    }
    best
}

/// What the codes of a group stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Grid {
    /// `w = s · (u - 8)`.
    Symmetric(f16),
    /// `w = s · u + m`: scale and minimum.
    Min(f16, f16),
}

impl Grid {
    /// The code u in 0..=15 nearest to `value`, as a float, and the weight that it stands for.
    #[inline]
    pub(super) fn round(self, value: f32, inverse: f32) -> (f32, f32) {
        match self {
            Grid::Symmetric(scale) => {
                let code = code(value * inverse);
                (code + 8.0, code * scale.to_f32())
            }
            Grid::Min(scale, minimum) => {
                let minimum = minimum.to_f32();
                let code = unsigned((value - minimum) * inverse);
                (code, code * scale.to_f32() + minimum)
            }
        }
    }

    /// One over the scale, or 0 for a scale of 0.
    pub(super) fn inverse(self) -> f32 {
        let (Grid::Symmetric(scale) | Grid::Min(scale, _)) = self;
        invert(scale)
    }

    /// `Σ importance (w - ŵ)²` of a group.
    fn error(self, values: &[f32], importance: &[f32]) -> f64 {
        let inverse = self.inverse();
        let mut sum = 0.0f64;
        for (&value, &importance) in values.iter().zip(importance) {
            let difference = value - self.round(value, inverse).1;
            sum += f64::from(importance * difference * difference);
        }
        sum
    }
}

/// The code u in 0..=15 of a weight less the minimum, divided by the scale.
#[inline]
fn unsigned(quotient: f32) -> f32 {
    (quotient.clamp(0.0, 15.0) + ROUNDER) - ROUNDER
}

/// The scale and the minimum that least squares gives the codes of a start grid, in f16; `None` if they are all the same, or
/// if nothing matters.
fn fit_min(values: &[f32], importance: &[f32], inverse: f32, minimum: f32) -> Option<Grid> {
    let [mut weight, mut codes, mut squares, mut sum, mut products] = [0.0f32; 5];
    for (&value, &importance) in values.iter().zip(importance) {
        let code = unsigned((value - minimum) * inverse);
        weight += importance;
        codes += importance * code;
        squares += importance * code * code;
        sum += importance * value;
        products += importance * value * code;
    }
    let determinant = weight * squares - codes * codes;
    let scale = (weight * products - codes * sum) / determinant;
    let minimum = (sum - scale * codes) / weight;
    (determinant > 0.0 && weight > 0.0 && scale.is_finite() && minimum.is_finite())
        .then(|| Grid::Min(to_f16(scale), to_f16(minimum)))
}

/// The scale and minimum with the smallest weighted error that the search finds. Starts are grids that go beyond the
/// smallest and the largest weight, or clip them; each is refined by least squares.
pub(super) fn search_min(values: &[f32], importance: &[f32]) -> Grid {
    /// Codes between the smallest and the largest weight: 13 to 17, in halves.
    const SPANS: std::ops::RangeInclusive<u8> = 26..=34;
    let lowest = values.iter().copied().fold(f32::INFINITY, f32::min);
    let highest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Each by itself, as their difference may be beyond all floats.
    let mut best = Grid::Min(to_f16(highest / 15.0 - lowest / 15.0), to_f16(lowest));
    let mut smallest = best.error(values, importance);
    let range = highest - lowest;
    if range == 0.0 || !range.is_finite() {
        return best;
    }
    for halves in SPANS {
        let span = 0.5 * f32::from(halves);
        // What is beyond the codes, or lacking, is shared by both ends.
        let mut minimum = lowest - (15.0 - span) * 0.5 * range / span;
        let mut inverse = span / range;
        for _ in 0..3 {
            let Some(grid) = fit_min(values, importance, inverse, minimum) else { break };
            let error = grid.error(values, importance);
            if error < smallest {
                (best, smallest) = (grid, error);
            }
            let Grid::Min(_, refined) = grid else { break };
            (inverse, minimum) = (grid.inverse(), refined.to_f32());
        }
    }
    best
}

/// The value of largest magnitude, with its sign.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |best: f32, &value| if value.abs() > best.abs() { value } else { best })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_round_to_even_and_clip() {
        let quotients = [0.5, 1.5, 2.5, -0.5, -1.5, 7.4, 8.9, -8.4, -20.0, 0.0];
        assert_eq!(quotients.map(code), [0.0, 2.0, 2.0, 0.0, -2.0, 7.0, 7.0, -8.0, -8.0, 0.0]);
    }

    #[test]
    fn exact_grids_are_found() {
        // All sixteen codes, and their mirror image, have one scale without error.
        for scale in [0.25f32, -0.25, 3.0, 1e-4] {
            let scale = f16::from_f32(scale);
            let values: Vec<f32> = (-8..8).map(|code| code as f32 * scale.to_f32()).collect();
            assert_eq!(search(&values, &[1.0; 16]), scale);
        }
        assert_eq!(search(&[0.0; 8], &[1.0; 8]), f16::ZERO);
    }

    #[test]
    fn what_matters_is_kept_and_what_does_not_is_clipped() {
        let mut values = vec![0.1f32, -0.2, 0.3, 0.15, -0.05, 0.22, -0.31, 0.02];
        let mut importance = vec![1.0f32; 8];
        values.push(10.0);
        importance.push(1e-9);
        let scale = search(&values, &importance).to_f32().abs();
        // The grid starts from the largest weight; a scale for it would lose all the others.
        let lost: f32 = values[..8].iter().map(|value| value * value).sum();
        assert!(error(&values[..8], &importance[..8], f16::from_f32(scale)) <= f64::from(lost));
    }

    #[test]
    fn huge_and_tiny_weights_keep_a_finite_scale() {
        assert!(search(&[1e30, -1e30, 1e29], &[1.0; 3]).is_finite());
        assert!(search(&[1e-30, -1e-32, 0.0], &[1.0; 3]).is_finite());
        assert!(search(&[1.0, 2.0], &[0.0, 0.0]).is_finite());
    }

    #[test]
    fn exact_grids_with_a_minimum_are_found() {
        for (scale, minimum) in [(0.25f32, -1.0f32), (0.5, 3.0), (1e-3, 0.0)] {
            let grid = Grid::Min(f16::from_f32(scale), f16::from_f32(minimum));
            let values: Vec<f32> = (0..16).map(|code| f16::from_f32(scale).to_f32() * code as f32 + minimum).collect();
            assert_eq!(search_min(&values, &[1.0; 16]), grid);
        }
        // Nothing to choose: the minimum alone.
        assert_eq!(search_min(&[0.75; 8], &[1.0; 8]), Grid::Min(f16::ZERO, f16::from_f32(0.75)));
        for values in [[1e30, -1e30, 1e29], [3e38, -3e38, 0.0], [1e-30, -1e-32, 0.0]] {
            let Grid::Min(scale, minimum) = search_min(&values, &[1.0; 3]) else { panic!() };
            assert!(scale.is_finite() && minimum.is_finite());
        }
    }

    proptest! {
        #[test]
        fn a_minimum_is_never_worse_than_the_plain_grid(
            group in prop::collection::vec((-3.0f32..3.0, 0.0f32..10.0), 1..130),
        ) {
            let (values, importance): (Vec<f32>, Vec<f32>) = group.into_iter().unzip();
            let lowest = values.iter().copied().fold(f32::INFINITY, f32::min);
            let highest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let plain = Grid::Min(f16::from_f32(highest / 15.0 - lowest / 15.0), f16::from_f32(lowest));
            let found = search_min(&values, &importance);
            prop_assert!(found.error(&values, &importance) <= plain.error(&values, &importance));
        }

        #[test]
        fn the_search_is_never_worse_than_rounding(
            group in prop::collection::vec((-3.0f32..3.0, 0.0f32..10.0), 1..130),
        ) {
            let (values, importance): (Vec<f32>, Vec<f32>) = group.into_iter().unzip();
            let (found, plain) = (search(&values, &importance), nearest(&values));
            prop_assert!(error(&values, &importance, found) <= error(&values, &importance, plain));
        }

        #[test]
        fn plain_rounding_is_what_loading_does(values in prop::collection::vec(-3.0f32..3.0, 1..200)) {
            use trine_backend::{Codes, Error, Format, Group, HostMatrix, ZeroKind};
            let format = Format::Int4 { group: Group::Row, zero: ZeroKind::Symmetric };
            let matrix = HostMatrix::quantize::<Error>(1, values.len(), format, |_, out| {
                out.copy_from_slice(&values);
                Ok(())
            }).unwrap();
            let Codes::Int4(int4) = matrix.codes() else { panic!() };
            let (ours, theirs) = (nearest(&values), int4.scales()[0]);
            // Sums are rounded in another order, so that a tie may fall the other way.
            let ones = vec![1.0; values.len()];
            let (ours, theirs) = (error(&values, &ones, ours), error(&values, &ones, theirs));
            prop_assert!((ours - theirs).abs() <= 1e-3 * theirs.max(1e-6));
        }
    }
}
