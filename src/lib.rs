//! Trine runs large language models on small machines: one model graph and one decode loop, on a backend
//! that is chosen when the program is built.
//!
//! Data goes one way: [`files`] reads a model, [`model`] brings it to a device and records its forward
//! pass, [`engine`] takes steps, [`session`] prefills and decodes, [`sample`] picks tokens, [`tokens`] makes
//! text of them.

pub mod backend;
pub mod engine;
pub mod error;
pub mod files;
pub mod formats;
pub mod memory;
pub mod model;
pub mod perplexity;
pub mod sample;
pub mod session;
pub mod stop;
pub mod tokens;

pub use error::{Error, Result};
