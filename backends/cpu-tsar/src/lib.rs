//! Trine on CPUs.

mod activations;
mod attention;
mod backend;
mod isa;
mod kernels;
mod kv;
mod linear;
mod memory;
mod ops;
mod pool;
mod pools;
mod shares;
mod simd;
mod topology;
mod weights;

pub use backend::CpuTsar;
pub use isa::{Isa, Options};
pub use kernels::{Family, KernelInfo};
pub use kv::Kv;
pub use linear::Multiplier;
pub use memory::Buf;
pub use weights::Weight;
