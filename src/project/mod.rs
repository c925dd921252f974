//! How fast a GPU's decode kernels would be on a Jetson Orin that is not at hand.
//!
//! A token is a list of launches ([`Kernel`]), each described by what its structure says: blocks and how many of them a
//! multiprocessor holds at once, bytes of a block from memory, instructions (counted in the machine code that NVRTC makes
//! for sm_87), and the chain of things that a block waits for one after the other. The multiprocessor is a closed queueing
//! network (`queue.rs`): its resident blocks wait for their own chains side by side and queue for two things that they
//! share, memory and instruction slots. So a kernel comes out bound by whichever is scarce, or by latency where there is too
//! little in flight to fill either, without being told which.
//!
//! A [`Device`] gives multiprocessors, clock and the memory's peak bandwidth by its data sheet. What no data sheet says is
//! assumed ([`Assumptions`]), in three grades: the share of the peak that streams reach, the latency of memory, and what a launch
//! costs. The grades give the error bars.
//!
//! The test of the method is another engine, [`Engine::Seed`], whose figures on an AGX Orin were published: its kernels for 1, 2
//! and 4 rows a block must come out within 15 %. They were not used to choose any number here. Its kernel for 8 rows was never
//! published, and its figure is not explained.

mod device;
mod engine;
mod kernel;
mod model;
mod queue;
mod report;
mod seed;
#[cfg(test)]
mod tests;
mod trine;

pub use device::{Assumptions, Device};
pub use engine::Engine;
pub use kernel::{Bound, Chain, Kernel, Time};
pub use model::Model;
pub use report::{Line, Projection};
