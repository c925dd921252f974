//! A model: its configuration, its weights on a device, and its forward pass.

pub mod config;
pub(crate) mod forward;
pub(crate) mod layout;
pub(crate) mod load;
mod plan;
pub(crate) mod rope;
mod weights;

pub use config::*;
pub use forward::{Activations, forward};
pub use load::{Formats, load};
pub use plan::{Extent, Plan, Product, products};
pub use weights::{Layer, Linear, Weights};
