//! Means with their errors, and quantiles.

/// A mean and its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub value: f64,
    /// Its standard error, taking the values as independent; 0 for a single value.
    pub error: f64,
}

/// A running mean and variance (B. P. Welford, Technometrics 4, 1962), exact where values are large and alike.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    count: usize,
    mean: f64,
    squares: f64,
}

impl Sum {
    pub(super) fn add(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn mean(&self) -> Estimate {
        let n = self.count as f64;
        let error = if self.count > 1 { (self.squares / (n - 1.0) / n).sqrt() } else { 0.0 };
        Estimate { value: self.mean, error }
    }
}

/// The quantile of `sorted` at `share` in 0..=1, linear between neighbours; NaN where there is none.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = sorted[place.floor() as usize];
    let above = sorted[place.ceil() as usize];
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(values: &[f64]) -> Estimate {
        let mut sum = Sum::default();
        values.iter().for_each(|&value| sum.add(value));
        sum.mean()
    }

    #[test]
    fn known_means() {
        let one = mean(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(one.value, 5.0);
        assert!((one.error - (32.0f64 / 7.0 / 8.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean(&[3.0]), Estimate { value: 3.0, error: 0.0 });
        // Differences far below the values.
        let large = mean(&[1e9, 1e9 + 1.0, 1e9 + 2.0]);
        assert!((large.error - (1.0f64 / 3.0).sqrt()).abs() < 1e-9);
        // A share: the error of a binomial, with n - 1.
        let share = mean(&[1.0, 1.0, 1.0, 0.0]);
        assert!((share.value - 0.75).abs() < 1e-12 && (share.error - (0.75f64 * 0.25 / 3.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn known_quantiles() {
        let values = [1.0, 2.0, 3.0, 10.0];
        assert_eq!([0.0, 0.5, 1.0].map(|share| quantile(&values, share)), [1.0, 2.5, 10.0]);
        assert!((quantile(&values, 0.99) - (3.0 + 7.0 * 0.97)).abs() < 1e-9);
        assert_eq!(quantile(&[4.0], 0.99), 4.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
