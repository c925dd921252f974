//! The conformance suite: what every backend must pass.
//!
//! Each topic runs a backend against the scalar [`Oracle`](crate::oracle::Oracle) (or against itself,
//! where two ways to one result must agree bit for bit) and returns how much it compared, or the first
//! thing that is wrong: the op, the case and both values.
//!
//! Inputs come from a fixed generator, so a failure repeats. Bounds are stated where they are used; `u`
//! is 2^-24, the error of one f32 rounding.
//!
//! ```
//! # use trine_backend::{conformance, oracle::Oracle};
//! let report = conformance::prepared_weights::<Oracle>(&()).unwrap();
//! assert!(report.values > 10_000);
//! ```

mod attention;
mod batches;
mod check;
mod data;
mod device;
mod float_ops;
mod integers;
mod model;
mod models;
mod prepare;
mod products;
mod scaled;

use crate::Backend;

pub use attention::attention;
pub use batches::batch_invariance;
pub use check::{Failure, Report};
pub use float_ops::float_ops;
pub use integers::integer_products;
pub use models::tiny_models;
pub use prepare::prepared_weights;
pub use scaled::scaled_products;

/// One topic of the suite.
pub type Topic<B> = fn(&<B as Backend>::Options) -> Result<Report, Failure>;

/// Every topic with its name, the simplest first.
pub fn topics<B: Backend>() -> [(&'static str, Topic<B>); 7] {
    [
        ("prepared_weights", prepared_weights::<B>),
        ("integer_products", integer_products::<B>),
        ("scaled_products", scaled_products::<B>),
        ("float_ops", float_ops::<B>),
        ("attention", attention::<B>),
        ("batch_invariance", batch_invariance::<B>),
        ("tiny_models", tiny_models::<B>),
    ]
}

/// Runs every topic on a backend opened with `options`; stops at the first failure.
pub fn run<B: Backend>(options: &B::Options) -> Result<Report, Failure> {
    let mut report = Report::default();
    for (_, topic) in topics::<B>() {
        report += topic(options)?;
    }
    Ok(report)
}

/// [`run`] for tests.
///
/// # Panics
/// With the failure, if the backend does not conform.
pub fn assert_conforms<B: Backend>(options: &B::Options) {
    if let Err(failure) = run::<B>(options) {
        panic!("{} does not conform: {failure}", B::NAME);
    }
}

/// One `#[test]` per topic: `conformance_tests!(MyBackend, MyOptions::default());`.
#[macro_export]
macro_rules! conformance_tests {
    ($backend:ty, $options:expr) => {
        $crate::conformance_tests!(
            @ $backend, $options, prepared_weights integer_products scaled_products float_ops attention
            batch_invariance tiny_models
        );
    };
    (@ $backend:ty, $options:expr, $($topic:ident)+) => {
        $(
            #[test]
            fn $topic() {
                if let Err(failure) = $crate::conformance::$topic::<$backend>(&$options) {
                    panic!("{failure}");
                }
            }
        )+
    };
}
