//! A model: its configuration, its weights on a device, and its forward pass.

pub mod config;
mod forward;
mod layout;
mod load;
mod plan;
mod rope;
mod weights;

pub use config::*;
pub use forward::{Activations, forward};
pub use load::{Formats, load};
pub use plan::{Extent, Plan, Product, products};
pub use weights::{Layer, Linear, Weights};
