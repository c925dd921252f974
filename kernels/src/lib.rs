//! Trine's CUDA kernels: their sources (`cuda/`), their launch interface, and what compiles them when a program runs.
//!
//! A [`Kernel`] is a file with its choices made; its entry point is named as the file and takes one struct of [`args`] by
//! value. [`Compiler`] makes machine code of it with NVRTC and keeps that on disk. With the feature `emulate` the host's
//! C++ compiler makes a library of it that `emulate` runs, block after block.

pub mod args;
mod cache;
mod choices;
#[cfg(feature = "emulate")]
#[allow(unsafe_code)] // Libraries that were compiled a moment ago: each call has its reason.
pub mod emulate;
mod kernel;
#[allow(unsafe_code)] // NVRTC is a C library: each call has its reason.
mod nvrtc;
mod pack;
mod source;

pub use cache::Cache;
pub use choices::{Epilogue, Gemv, Quantize};
pub use kernel::{Kernel, Launch};
pub use nvrtc::Compiler;
pub use pack::{LANES, Plane, Planes, TILE, TOKENS, UNIT, is_integer, pitch, place, segment, slots};
