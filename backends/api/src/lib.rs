//! What every Trine backend shares: the backend trait, the number formats with their packers, the
//! scalar oracle and the conformance suite.
#![forbid(unsafe_code)]

mod error;

pub use error::{Error, Result};
