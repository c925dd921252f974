//! The kernels against the oracle, compiled for the host.
#![allow(unsafe_code)] // Addresses are handed to kernels: `device.rs` alone does it.

mod attention;
mod device;
mod floats;
mod matrices;
mod products;
