//! Trine on CPUs.

mod activations;
mod attention;
mod backend;
mod isa;
mod kv;
mod linear;
mod memory;
mod ops;
mod pool;
mod simd;
mod topology;
mod weights;

pub use backend::CpuTsar;
pub use isa::{Isa, Options};
pub use kv::Kv;
pub use memory::Buf;
pub use weights::Weight;
