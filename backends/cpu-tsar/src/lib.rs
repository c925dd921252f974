//! Trine on CPUs.

mod activations;
mod isa;
mod kernels;
mod linear;
mod pool;
mod topology;
mod weights;

pub use isa::{Isa, Options};
pub use kernels::{Family, KernelInfo};
pub use linear::Multiplier;
