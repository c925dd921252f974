//! Comparisons, and what they say when they fail.

use std::fmt;
use std::ops::AddAssign;

use crate::Error;

/// Half the distance between 1 and the next f32: the largest relative error of one rounding.
pub(super) const ROUNDING: f64 = 1.0 / (1u64 << 24) as f64;

/// How much was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Results of one op in one case.
    pub cases: usize,
    /// Numbers in them.
    pub values: usize,
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.cases += other.cases;
        self.values += other.values;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values in {} cases", self.values, self.cases)
    }
}

/// The first thing that a backend got wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// A result is too far from the right one.
    #[error(
        "{op}, {case}: row {row}, column {column} is {got:?} instead of {want:?}{}",
        if *bound > 0.0 { format!(" (allowed: {bound:e})") } else { String::new() }
    )]
    Differs {
        /// The op.
        op: &'static str,
        /// Shape, format, activation, batch: whatever tells the case from the others.
        case: String,
        /// The first row that differs.
        row: usize,
        /// Its first column that differs.
        column: usize,
        /// The backend's value.
        got: f32,
        /// The right value.
        want: f32,
        /// The largest difference that would have passed; 0 where equality is asked.
        bound: f64,
    },
    /// The backend returned an error.
    #[error("{op}, {case}: {error}")]
    Refused {
        /// The call.
        op: &'static str,
        /// What it was called for.
        case: String,
        /// What it returned.
        error: Error,
    },
}

impl Failure {
    /// The op that failed.
    pub fn op(&self) -> &'static str {
        match self {
            Failure::Differs { op, .. } | Failure::Refused { op, .. } => op,
        }
    }
}

/// Turns a backend's error into a failure of `op`.
pub(super) fn refused(op: &'static str, case: impl Into<String>) -> impl FnOnce(Error) -> Failure {
    let case = case.into();
    move |error| Failure::Refused { op, case, error }
}

/// Compares results and counts them.
#[derive(Default)]
pub(super) struct Checker {
    pub(super) report: Report,
}

/// One result: rows of `columns` of op `op`.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) op: &'static str,
    pub(super) label: &'a str,
    pub(super) columns: usize,
}

impl Checker {
    /// The same numbers. Zeros of either sign are the same; so are all NaNs.
    pub(super) fn equal(&mut self, case: Case<'_>, got: &[f32], want: &[f32]) -> Result<(), Failure> {
        self.within(case, got, want, |_| 0.0)
    }

    /// The same bits, as two runs of one backend must give.
    pub(super) fn identical(&mut self, case: Case<'_>, got: &[f32], want: &[f32]) -> Result<(), Failure> {
        self.compare(case, got, want, |_| 0.0, |got, want, _| got.to_bits() == want.to_bits())
    }

    /// `|got - want| <= bound(index)`; a NaN is expected exactly where `want` has one.
    pub(super) fn within(
        &mut self,
        case: Case<'_>,
        got: &[f32],
        want: &[f32],
        bound: impl Fn(usize) -> f64,
    ) -> Result<(), Failure> {
        self.compare(case, got, want, bound, |got, want, bound| {
            let close = want.is_finite() && (f64::from(got) - f64::from(want)).abs() <= bound;
            got == want || (got.is_nan() && want.is_nan()) || close
        })
    }

    fn compare(
        &mut self,
        case: Case<'_>,
        got: &[f32],
        want: &[f32],
        bound: impl Fn(usize) -> f64,
        same: impl Fn(f32, f32, f64) -> bool,
    ) -> Result<(), Failure> {
        assert_eq!(got.len(), want.len(), "{}, {}: the suite compares unequal lengths", case.op, case.label);
        self.report += Report { cases: 1, values: got.len() };
        for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
            let bound = bound(at);
            if !same(got, want, bound) {
                let (row, column) = (at / case.columns, at % case.columns);
                return Err(Failure::Differs { op: case.op, case: case.label.into(), row, column, got, want, bound });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case<'static> = Case { op: "add", label: "2 rows of 3", columns: 3 };

    #[test]
    fn the_first_difference_is_named() {
        let want = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut got = want;
        got[4] = 5.5;
        got[5] = f32::NAN;
        let failure = Checker::default().equal(CASE, &got, &want).unwrap_err();
        assert_eq!(failure.to_string(), "add, 2 rows of 3: row 1, column 1 is 5.5 instead of 5.0");
        assert_eq!(failure.op(), "add");
        let failure = Checker::default().within(CASE, &got, &want, |_| 0.5).unwrap_err();
        assert_eq!(failure.to_string(), "add, 2 rows of 3: row 1, column 2 is NaN instead of 6.0 (allowed: 5e-1)");
    }

    #[test]
    fn zeros_and_nans_are_equal_but_not_identical() {
        let mut checker = Checker::default();
        checker.equal(CASE, &[0.0, f32::NAN, 1.0], &[-0.0, -f32::NAN, 1.0]).unwrap();
        checker.equal(CASE, &[1.0], &[f32::NAN]).unwrap_err();
        checker.identical(CASE, &[0.0], &[-0.0]).unwrap_err();
        checker.identical(CASE, &[1.0], &[1.0]).unwrap();
        assert_eq!(checker.report, Report { cases: 4, values: 6 });
    }
}
