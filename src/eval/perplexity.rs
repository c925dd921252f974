//! Perplexity: how well a model predicts a text.

use trine_backend::Backend;

use super::statistics::Sum;
use super::{Against, Windows, measure};
use crate::Result;
use crate::engine::Engine;

pub use super::outputs;

/// The outcome over all windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// Tokens that were predicted.
    pub targets: usize,
    /// Mean negative log-likelihood of a target, in nats.
    pub mean: f64,
    /// Standard error of `mean`, taking targets as independent.
    pub deviation: f64,
}

impl Perplexity {
    pub(super) fn of(losses: &Sum) -> Self {
        let mean = losses.mean();
        Perplexity { targets: losses.count(), mean: mean.value, deviation: mean.error }
    }

    /// `exp(mean)`.
    pub fn value(&self) -> f64 {
        self.mean.exp()
    }

    /// Standard error of the perplexity.
    pub fn error(&self) -> f64 {
        self.value() * self.deviation
    }
}

/// Measures `ids` in `windows`; a number is a window without overlap. `progress` is told the windows done and all windows,
/// and the sum so far.
///
/// # Errors
/// The text is shorter than one window, the window is longer than the context, logits are not finite, or
/// the device fails.
pub fn perplexity<B: Backend>(
    engine: &mut Engine<B>,
    ids: &[u32],
    windows: impl Into<Windows>,
    progress: impl FnMut(usize, usize, &Perplexity),
) -> Result<Perplexity> {
    Ok(measure(engine, Against::Nothing, None, ids, &windows.into(), progress)?.perplexity)
}
