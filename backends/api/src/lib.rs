//! What every Trine backend shares: the [`Backend`] trait, the number formats with their packers, the
//! scalar oracle and the conformance suite.
#![forbid(unsafe_code)]

pub mod activation;
mod backend;
pub mod conformance;
mod devices;
mod error;
mod format;
mod matrix;
pub mod oracle;
pub mod recorded;
pub mod shape_bench;

pub use activation::Activation;
pub use backend::{Backend, Choice, DeviceInfo, Gate, Heads, KernelTime, KvFormat, KvShape, Limits, Row, largest};
pub use devices::find_device;
pub use error::{Error, Result};
pub use format::{Format, Group, ZeroKind};
pub use matrix::{CodedRow, Codes, HostMatrix, Int4, Int8, RowBuffer, Ternary, Zero, ZeroRow};
