//! The conformance suite.

use std::sync::OnceLock;

use trine_backend::Backend;
use trine_backend::conformance::{self, Topic};

use crate::{CudaOrin, Options, RowsPerThread};

/// The options of the device that there is. Without one tests say that they are skipped, unless `TRINE_REQUIRE` lists
/// cuda-orin.
pub(super) fn device() -> Option<Options> {
    static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
    let options = Options::from_environment();
    match FOUND.get_or_init(|| CudaOrin::open(&options).map(drop).map_err(|error| error.to_string())) {
        Ok(()) => Some(options),
        Err(error) => {
            let required = std::env::var("TRINE_REQUIRE").unwrap_or_default();
            let is_required = required.split(',').any(|name| name == CudaOrin::NAME);
            assert!(!is_required, "TRINE_REQUIRE lists {}: {error}", CudaOrin::NAME);
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn check(topic: Topic<CudaOrin>, rows: Option<RowsPerThread>) {
    let Some(options) = device() else { return };
    match topic(&Options { rows, ..options }) {
        Ok(report) => assert!(report.values > 0),
        Err(failure) => panic!("{failure}"),
    }
}

macro_rules! topics {
    ($rows:expr, $($topic:ident)+) => {
        $(
            #[test]
            fn $topic() {
                check(conformance::$topic::<CudaOrin>, $rows);
            }
        )+
    };
}

mod as_it_is {
    use super::*;
    topics!(
        None,
        prepared_weights integer_products scaled_products float_ops attention batch_invariance tiny_models
    );
}

/// Fewer and more rows per thread than the default, where that makes a difference.
mod one_row {
    use super::*;
    topics!(Some(RowsPerThread::O1), scaled_products);
}

mod eight_rows {
    use super::*;
    topics!(Some(RowsPerThread::O8), scaled_products);
}
