//! Trine runs large language models on small machines: one model graph and one decode loop, on a backend
//! that is chosen when the program is built.
//!
//! Data goes one way: [`files`] reads a model, [`model`] brings it to a device and records its forward
//! pass, [`engine`] takes steps, [`session`] prefills and decodes, [`sample`] picks tokens, [`tokens`] makes
//! text of them, [`generation`] puts these together, [`server`] does so for many at once, and [`cli`] is the program
//! around it.

pub mod backend;
pub mod cli;
pub mod compare;
pub mod energy;
pub mod engine;
pub mod error;
pub mod eval;
pub mod files;
pub mod formats;
pub mod generation;
pub mod hub;
pub mod memory;
pub mod model;
pub mod project;
pub mod quantize;
mod random;
pub mod sample;
pub mod server;
pub mod session;
pub mod shapes;
pub mod stop;
pub mod tokens;
pub mod tsar_model;

pub use error::{Error, Result};
pub use eval::perplexity;
