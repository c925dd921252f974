//! Trine on CPUs.

mod isa;
mod pool;
mod topology;

pub use isa::{Isa, Options};
