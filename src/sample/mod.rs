//! Sampling: from a row of logits to the next token.
//!
//! The order, that of llama.cpp's default chain for the samplers that there are here:
//!
//! 1. logit bias, added;
//! 2. penalties on the tokens in the window: repeat, then frequency and presence;
//! 3. top-k;
//! 4. top-p, over the probabilities of what top-k kept;
//! 5. min-p (Nguyen et al., "Turning Up the Heat", 2024, arXiv:2407.01082);
//! 6. temperature;
//! 7. the draw. At temperature 0 the best token after step 2 is taken and nothing is drawn.
//!
//! # A seed is a promise
//!
//! Options, seed and logits give the same tokens in every version, on every platform, for any number of threads. So
//! everything that a choice depends on is fixed here: the generator (`rng`), the exponential (`math`), plain
//! IEEE 754 arithmetic otherwise, sums in f64 in a set order (by id, or by rank once top-k or top-p has ranked), ties
//! that go to the lower id, and one random number for each token drawn. The test `golden` pins ids: it may be
//! added to, and never changed.

mod filter;
mod logprobs;
mod math;
mod options;
mod penalties;
mod rng;
#[cfg(test)]
mod tests;

pub use logprobs::{TokenLogprobs, token_logprobs};
pub use options::{MAX_REPEAT_LAST_N, SamplerOptions, random_seed};

use crate::{Error, Result};
use filter::Candidate;
use penalties::Penalties;
use rng::Rng;

/// Chooses tokens for one text: holds its random numbers and its penalty window.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplerOptions,
    penalties: Penalties,
    rng: Rng,
    vocab: usize,
    /// The logits after bias and penalties, `[vocab]`.
    logits: Vec<f32>,
    candidates: Vec<Candidate>,
    /// Running sum of the candidates' weights.
    sums: Vec<f64>,
}

impl Sampler {
    /// A sampler for rows of `vocab` logits. All memory that it will need is reserved here.
    ///
    /// # Errors
    /// [`Error::Usage`] for what [`SamplerOptions::validate`] refuses and for a bias on a token outside the
    /// vocabulary; [`Error::Request`] for a vocabulary that is empty or has more tokens than a `u32` can tell apart.
    pub fn new(options: SamplerOptions, vocab: usize) -> Result<Self> {
        options.validate()?;
        if vocab == 0 || u32::try_from(vocab).is_err() {
            return Err(Error::Request(format!(
                "a vocabulary of {vocab} tokens can't be sampled: use 1 to {}",
                u32::MAX
            )));
        }
        if let Some((token, _)) = options.logit_bias.iter().find(|(token, _)| *token as usize >= vocab) {
            let last = vocab - 1;
            return Err(Error::Usage(format!(
                "logit-bias of token {token}: no such token, use an id from 0 to {last}"
            )));
        }
        let k = options.candidates();
        let drawn = if k == 0 { vocab } else { k.min(vocab) };
        Ok(Self {
            penalties: Penalties::new(&options, vocab),
            rng: Rng::new(options.seed),
            vocab,
            logits: Vec::with_capacity(vocab),
            candidates: Vec::with_capacity(filter::gathered(k).min(vocab)),
            sums: Vec::with_capacity(drawn),
            options,
        })
    }

    /// The options that the sampler was made with.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Puts `token` into the penalty window. Call it for each token of the text: the prompt's and those sampled.
    /// A token outside the vocabulary is passed over.
    pub fn accept(&mut self, token: u32) {
        self.penalties.accept(token);
    }

    /// Chooses a token from `logits` (`[vocab]`). It isn't accepted yet: see [`Sampler::accept`]. Allocates nothing.
    ///
    /// A NaN logit is never chosen.
    ///
    /// # Errors
    /// [`Error::Request`] for a row of another length, and for one in which no token is possible, each being NaN or
    /// -inf. An error draws no random number.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        if logits.len() != self.vocab {
            let (got, vocab) = (logits.len(), self.vocab);
            return Err(Error::Request(format!("{got} logits to sample from: the vocabulary has {vocab} tokens")));
        }
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        for &(token, bias) in &self.options.logit_bias {
            self.logits[token as usize] += bias;
        }
        self.penalties.apply(&mut self.logits);
        let k = self.options.candidates();
        let Some(best) = filter::list_top_k(&mut self.candidates, &self.logits, k) else {
            return Err(nothing_possible(logits));
        };
        if self.options.temperature == 0.0 {
            return Ok(best.id);
        }
        filter::top_p_min_p(&mut self.candidates, best.logit, self.options.top_p, self.options.min_p);
        Ok(self.draw(best.logit))
    }

    /// Draws one of the candidates (at least one, the best having logit `max`) with probability proportional to its
    /// weight at the temperature.
    fn draw(&mut self, max: f32) -> u32 {
        // By id, so that the choice depends on which candidates are left and not on which filter left them.
        if !self.candidates.is_sorted_by_key(|candidate| candidate.id) {
            self.candidates.sort_unstable_by_key(|candidate| candidate.id);
        }
        self.sums.clear();
        let mut total = 0.0;
        for candidate in &self.candidates {
            total += candidate.weight(max, self.options.temperature);
            self.sums.push(total);
        }
        self.candidates[place(&self.sums, self.rng.uniform() * total)].id
    }
}

/// The first of the running `sums` (of weights, not all 0) above `target`, which is at most the last of them. A product
/// with the total can round up to it: then the last weight that adds to it is the one.
fn place(sums: &[f64], target: f64) -> usize {
    let total = sums.last().copied().unwrap_or(0.0);
    sums.partition_point(|&sum| sum <= target && sum < total)
}

fn nothing_possible(logits: &[f32]) -> Error {
    let nan = logits.iter().filter(|logit| logit.is_nan()).count();
    let lowest = logits.iter().filter(|logit| **logit == f32::NEG_INFINITY).count();
    let all = logits.len();
    if nan + lowest < all {
        return Error::Request(format!("logit-bias and penalties leave none of the {all} tokens possible: ban fewer"));
    }
    Error::Request(format!(
        "no token can be chosen: of the model's {all} logits {nan} are NaN and {lowest} are -inf; \
         check the model file, or try another backend"
    ))
}
