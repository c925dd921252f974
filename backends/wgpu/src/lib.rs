//! Trine's GPU backend: Vulkan, Metal and DX12 through wgpu, with the plain WGSL of `trine-shaders`.
//!
//! A step's ops are collected, then planned: each op becomes one dispatch or a few, and neighbours that can
//! share one do (`plan.rs`). A plan is kept with its pipelines and bind groups; a later step with the same ops
//! and as many rows runs it again, and its commands are encoded while the device is at work on the step
//! before (`recording.rs`). Tokens and positions are in a buffer that each step writes.
#![forbid(unsafe_code)]

mod adapters;
mod backend;
mod buffers;
mod device;
mod kv;
mod op;
mod pipelines;
mod plan;
mod profile;
mod recording;
mod weights;

#[cfg(test)]
mod tests;

pub use adapters::{AdapterFacts, Options, adapters};
pub use backend::Wgpu;
pub use buffers::Buffer;
pub use kv::Cache;
pub use profile::OpTime;
pub use weights::Matrix;
