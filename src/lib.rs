//! Trine runs large language models on small machines.
#![warn(missing_docs)]

pub mod error;
pub mod formats;
pub mod model;
pub mod sample;
pub mod stop;
pub mod tokens;
pub use error::{Error, Result};
