//! Perplexity: how well a model predicts a text.

use trine_backend::{Backend, Row};

use crate::engine::Engine;
use crate::{Error, Result};

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
    /// `exp(mean)`.
    pub fn value(&self) -> f64 {
        self.mean.exp()
    }

    /// Standard error of the perplexity.
    pub fn error(&self) -> f64 {
        self.value() * self.deviation
    }
}

/// Rows of logits that a step should have room for, so that they take no more than 64 MiB.
pub fn outputs(vocab: usize) -> usize {
    ((64 << 20) / (4 * vocab)).clamp(1, 512)
}

/// Measures `ids` in windows of `window` tokens without overlap: inputs `ids[k..k + window]`, targets
/// `ids[k + 1..k + window + 1]`; what is left after the last whole window is not used. `progress` is told
/// the windows done and all windows, and the sum so far.
///
/// # Errors
/// The text is shorter than one window, the window is longer than the context, logits are not finite, or
/// the device fails.
pub fn perplexity<B: Backend>(
    engine: &mut Engine<B>,
    ids: &[u32],
    window: usize,
    mut progress: impl FnMut(usize, usize, &Perplexity),
) -> Result<Perplexity> {
    let context = engine.extent().kv.context;
    if window == 0 || window > context {
        return Err(Error::Usage(format!("windows of {window} tokens do not fit a context of {context}")));
    }
    let windows = ids.len().saturating_sub(1) / window;
    if windows == 0 {
        return Err(Error::Usage(format!(
            "the text has {} tokens and one window needs {}: use a longer text or a smaller -c",
            ids.len(),
            window + 1
        )));
    }
    let mut scorer = Scorer::new(engine);
    for done in 0..windows {
        let start = done * window;
        scorer.window(engine, &ids[start..start + window + 1])?;
        progress(done + 1, windows, &scorer.result());
    }
    Ok(scorer.result())
}

/// Sums over targets, with buffers for a step.
struct Scorer {
    rows: Vec<Row>,
    logits: Vec<f32>,
    vocab: usize,
    step: usize,
    targets: usize,
    sum: f64,
    squares: f64,
}

impl Scorer {
    fn new<B: Backend>(engine: &Engine<B>) -> Self {
        let (vocab, step) = (engine.config().vocab, engine.extent().outputs);
        Scorer {
            rows: Vec::with_capacity(step),
            logits: vec![0.0; step * vocab],
            vocab,
            step,
            targets: 0,
            sum: 0.0,
            squares: 0.0,
        }
    }

    /// One window from an empty sequence; `ids` holds one more token than the window.
    fn window<B: Backend>(&mut self, engine: &mut Engine<B>, ids: &[u32]) -> Result<()> {
        let inputs = ids.len() - 1;
        for start in (0..inputs).step_by(self.step) {
            let end = inputs.min(start + self.step);
            self.rows.clear();
            self.rows.extend((start..end).map(|position| Row {
                token: ids[position],
                sequence: 0,
                position: position as u32,
                output: true,
            }));
            engine.step(&self.rows)?;
            let logits = &mut self.logits[..(end - start) * self.vocab];
            engine.read_logits(logits)?;
            for (logits, &target) in logits.chunks(self.vocab).zip(&ids[start + 1..]) {
                let loss = loss(logits, target as usize);
                if !loss.is_finite() {
                    return Err(Error::Request("the model's logits are not finite: its weights are damaged".into()));
                }
                self.targets += 1;
                self.sum += loss;
                self.squares += loss * loss;
            }
        }
        Ok(())
    }

    fn result(&self) -> Perplexity {
        let n = self.targets as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        Perplexity { targets: self.targets, mean, deviation: (variance / n).sqrt() }
    }
}

/// `-ln softmax(logits)[target]`, in f64.
fn loss(logits: &[f32], target: usize) -> f64 {
    let highest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - highest).exp()).sum();
    highest + sum.ln() - f64::from(logits[target])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_the_negative_log_probability() {
        assert!((loss(&[0.0; 4], 2) - 4.0f64.ln()).abs() < 1e-12);
        assert!((loss(&[1000.0, 0.0], 0)).abs() < 1e-12);
        assert!((loss(&[1000.0, 0.0], 1) - 1000.0).abs() < 1e-9);
        assert!(loss(&[f32::NAN, 0.0], 1).is_nan());
    }
}
