//! How well a model predicts a text, and how far it is from another one.
//!
//! A text is cut into [`Windows`]; each is run from an empty sequence, and its targets are scored with the logits before
//! them: [`measure`]. With a second model, or with logits that were saved, each target's two distributions are compared.

mod distribution;
pub mod perplexity;
mod runner;
mod saved;
mod statistics;
mod windows;

use rayon::prelude::*;
use trine_backend::Backend;

use crate::engine::Engine;
use crate::{Error, Result};
use distribution::{Scored, compare, score};
use runner::Runner;
use statistics::Sum;

pub use saved::{Description, SavedLogits, Writer, hash};
pub use statistics::{Estimate, quantile};
pub use windows::Windows;

use perplexity::Perplexity;

/// Rows of logits that a step should have room for, so that they take no more than 64 MiB.
pub fn outputs(vocab: usize) -> usize {
    ((64 << 20) / (4 * vocab)).clamp(1, 512)
}

/// What a model is compared with.
pub enum Against<'a, B: Backend> {
    /// Nothing.
    Nothing,
    /// Another model with the same tokens, on a device at the same time.
    Model(&'a mut Engine<B>),
    /// Logits that another model gave for the same text.
    Saved(&'a mut SavedLogits),
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Of the model.
    pub perplexity: Perplexity,
    /// How it compares, where there was something to compare with.
    pub comparison: Option<Comparison>,
}

/// A model beside another one, the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Of the reference.
    pub perplexity: Perplexity,
    /// Mean over targets of the model's negative log-likelihood less the reference's, in nats: the logarithm of the
    /// quotient of perplexities. Both see the same targets, so its error is far below those of the perplexities.
    pub difference: Estimate,
    /// Kullback-Leibler divergence of the model's distribution from the reference's, in nats: mean over targets.
    pub divergence: Estimate,
    /// Its median.
    pub divergence_median: f64,
    /// What 99 % of the targets are not above.
    pub divergence_99: f64,
    /// Its maximum.
    pub divergence_most: f64,
    /// Share of the targets for which both find the same token the likeliest.
    pub agreement: Estimate,
}

impl Comparison {
    /// The model's perplexity divided by the reference's.
    pub fn ratio(&self) -> Estimate {
        let value = self.difference.value.exp();
        Estimate { value, error: value * self.difference.error }
    }
}

/// Measures `engine` on the text of `ids`, beside `against`, and writes its logits to `save`. `progress` is told the windows
/// done, all windows, and the perplexity so far.
///
/// # Errors
/// The text is shorter than one window, a window is longer than a context, the vocabularies differ, logits are not
/// finite, saved logits are of another text or damaged, they can't be written, or a device fails.
pub fn measure<B: Backend>(
    engine: &mut Engine<B>,
    mut against: Against<'_, B>,
    mut save: Option<&mut Writer>,
    ids: &[u32],
    windows: &Windows,
    mut progress: impl FnMut(usize, usize, &Perplexity),
) -> Result<Outcome> {
    let count = windows.check(ids.len(), engine.extent().kv.context)?;
    let vocab = engine.config().vocab;
    let mut step = engine.extent().outputs.min(engine.extent().rows);
    if let Against::Model(other) = &against {
        windows.check(ids.len(), other.extent().kv.context)?;
        check_vocabulary(vocab, other.config().vocab)?;
        step = step.min(other.extent().outputs).min(other.extent().rows);
    }
    if let Against::Saved(saved) = &against {
        saved.check(ids, windows, vocab)?;
    }
    let mut runner = Runner::new(vocab, step);
    let mut other = Runner::new(if matches!(against, Against::Nothing) { 0 } else { vocab }, step);
    let mut totals = Totals::default();
    for number in 0..count {
        let (range, first) = windows.nth(number);
        let ids = &ids[range.start..=range.end];
        for chunk in runner::chunks(ids.len() - 1, first, step) {
            let targets = chunk.output.then(|| &ids[chunk.positions.start + 1..=chunk.positions.end]);
            let logits = runner.run(engine, ids, &chunk)?;
            let reference = match &mut against {
                Against::Nothing => None,
                Against::Model(engine) => Some((other.run(engine, ids, &chunk)?, Vec::new())),
                Against::Saved(saved) if chunk.output => Some(other.fill(&chunk, |rows| saved.read(rows))?),
                Against::Saved(_) => None,
            };
            let Some(targets) = targets else { continue };
            if let Some(writer) = &mut save {
                writer.write(logits, targets)?;
            }
            totals.add(logits, reference, targets)?;
        }
        progress(number + 1, count, &totals.perplexity());
    }
    Ok(totals.outcome(!matches!(against, Against::Nothing)))
}

fn check_vocabulary(vocab: usize, other: usize) -> Result<()> {
    if vocab == other {
        return Ok(());
    }
    Err(Error::Request(format!("the models have {vocab} and {other} tokens: only the same tokens can be compared")))
}

/// Sums over targets.
#[derive(Default)]
struct Totals {
    loss: Sum,
    reference: Sum,
    difference: Sum,
    divergence: Sum,
    agreement: Sum,
    divergences: Vec<f64>,
}

impl Totals {
    /// Logits before `targets`, `[targets, vocab]`; those of the reference too, with what is known of them beforehand.
    fn add(&mut self, logits: &[f32], reference: Option<(&[f32], Vec<Scored>)>, targets: &[u32]) -> Result<()> {
        let vocab = logits.len() / targets.len();
        let rows: Vec<(Scored, Option<(Scored, f64)>)> = match &reference {
            None => {
                let rows = logits.par_chunks(vocab).zip(targets);
                rows.map(|(logits, &target)| (score(logits, target), None)).collect()
            }
            Some((other, known)) => {
                let rows = logits.par_chunks(vocab).zip(other.par_chunks(vocab)).zip(targets).enumerate();
                rows.map(|(row, ((logits, other), &target))| {
                    let (scored, reference, divergence) = compare(logits, other, target);
                    (scored, Some((known.get(row).copied().unwrap_or(reference), divergence)))
                })
                .collect()
            }
        };
        for (scored, compared) in rows {
            let finite = scored.loss.is_finite()
                && compared.as_ref().is_none_or(|(other, divergence)| other.loss.is_finite() && divergence.is_finite());
            if !finite {
                return Err(Error::Request("the model's logits are not finite: its weights are damaged".into()));
            }
            self.loss.add(scored.loss);
            if let Some((other, divergence)) = compared {
                self.reference.add(other.loss);
                self.difference.add(scored.loss - other.loss);
                self.divergence.add(divergence);
                self.divergences.push(divergence);
                self.agreement.add(f64::from(u8::from(scored.top == other.top)));
            }
        }
        Ok(())
    }

    fn perplexity(&self) -> Perplexity {
        Perplexity::of(&self.loss)
    }

    fn outcome(mut self, compared: bool) -> Outcome {
        self.divergences.sort_unstable_by(f64::total_cmp);
        let comparison = compared.then(|| Comparison {
            perplexity: Perplexity::of(&self.reference),
            difference: self.difference.mean(),
            divergence: self.divergence.mean(),
            divergence_median: quantile(&self.divergences, 0.5),
            divergence_99: quantile(&self.divergences, 0.99),
            divergence_most: quantile(&self.divergences, 1.0),
            agreement: self.agreement.mean(),
        });
        Outcome { perplexity: self.perplexity(), comparison }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_known_distributions() {
        let ln = |p: f32| p.ln();
        // Two targets; the model has halves and quarters where the reference is even, then the same.
        let model = [ln(0.5), ln(0.25), ln(0.25), 1.0, 1.0, 1.0];
        let reference = [ln(0.25), ln(0.5), ln(0.25), 0.0, 0.0, 0.0];
        let mut totals = Totals::default();
        totals.add(&model, Some((&reference, Vec::new())), &[0, 2]).unwrap();
        let outcome = totals.outcome(true);
        let comparison = outcome.comparison.unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} is not {b}");
        close(outcome.perplexity.mean, (2f64.ln() + 3f64.ln()) / 2.0);
        close(comparison.perplexity.mean, (4f64.ln() + 3f64.ln()) / 2.0);
        close(comparison.difference.value, -(2f64.ln()) / 2.0);
        close(comparison.ratio().value, 0.5f64.sqrt());
        // 1/4 ln(1/2) + 1/2 ln 2 + 0 = ln 2 / 4.
        let divergence = 2f64.ln() / 4.0;
        close(comparison.divergence.value, divergence / 2.0);
        close(comparison.divergence.error, divergence / 2.0);
        close(comparison.divergence_median, divergence / 2.0);
        close(comparison.divergence_most, divergence);
        close(comparison.agreement.value, 0.5);
    }

    #[test]
    fn damaged_logits_are_refused() {
        let add = |logits: &[f32], other: &[f32]| Totals::default().add(logits, Some((other, Vec::new())), &[0]);
        assert!(add(&[0.0, 1.0], &[0.0, 1.0]).is_ok());
        for bad in [[f32::NAN, 0.0], [0.0, f32::INFINITY], [f32::NEG_INFINITY, 0.0]] {
            assert!(add(&bad, &[0.0, 1.0]).is_err() && add(&[0.0, 1.0], &bad).is_err(), "{bad:?}");
        }
    }
}
