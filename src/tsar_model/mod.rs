//! What T-SAR's instructions would do in hardware, counted against an engine that keeps its tables in memory.
//!
//! T-SAR (arXiv 2511.13676) proposes two instructions for ternary matrix products. `TLUT_c×s` makes the tables of s
//! blocks of c activations in registers, a dense and a sparse one of 2^c entries each: a ternary w is w_D - w_S, with
//! w_D in {-1, +1} and w_S in {0, 1}. `TGEMV_k×m` with k = c·s looks m outputs up in them and accumulates int16 sums.
//! The bitnet.cpp engine TL-2, the baseline, looks three weights at a time up in tables that lie in memory.
//!
//! Nothing here runs a model or needs a backend: it is arithmetic on the ternary matrices' shapes ([`Shapes`]) and the
//! number of tokens ([`Phase`]), for each engine ([`Engine`]). Not counted are the output head, the embedding, the norms
//! and attention itself, none of which is ternary. An access is a request of the core, wherever it is served; every
//! token reads all the weights anew, in prefill too, as in the dataflows that the paper describes.
//!
//! Each number says where it comes from ([`Source`]):
//! - *derived*: follows from the shapes and an engine's loops with no parameter to choose. TL-2's table requests,
//!   Σ M·⌈K/3⌉ per token, and all of T-SAR's counts. The loops, and with them the counts, are reconstructed from the
//!   paper's figures, and how near they come to what is published tells how well. TL-2's bytes and micro-ops take the
//!   sizes of its operands and the cost of a lookup for granted.
//! - *fitted*: TL-2's requests for anything but tables, with a coefficient that was chosen so that the total for
//!   BitNet-2B-4T is the published one. Each coefficient has one datum behind it and predicts nothing about others.
//! - *published*: rests on a figure reported for T-SAR.

mod counts;
mod engine;
mod published;
mod report;
mod shapes;
#[cfg(test)]
mod tests;

pub use counts::{Counts, Stream, Traffic};
pub use engine::{Dataflow, Encoding, Engine, Phase};
pub use published::{Published, Source};
pub use report::{Figure, Number, Report};
pub use shapes::{Matrix, Shapes};
