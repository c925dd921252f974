//! Trine's CUDA backend, made for Jetson Orin and good on larger GPUs: INT4 weights times INT8 activations at the memory's
//! speed, with the kernels of `trine-kernels`.
//!
//! A step's ops are collected, then fused with their neighbours (`fuse.rs`) and planned as launches (`plan.rs`). A plan that
//! comes again is a CUDA graph (`recording.rs`): one launch for a token. Tokens and positions are in a buffer that each step
//! writes. The driver and NVRTC are looked for when the program runs, so that it builds and starts on machines without CUDA.

mod backend;
mod buffers;
mod driver;
mod explain;
mod fuse;
mod kv;
mod memory;
mod op;
mod options;
mod plan;
mod recording;
mod weights;

#[cfg(test)]
mod tests;

pub use backend::CudaOrin;
pub use buffers::Buffer;
pub use kv::Cache;
pub use options::{Elsewhere, Options, RowsPerThread};
pub use weights::Matrix;
