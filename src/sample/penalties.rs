//! Penalties on the tokens that a text has used of late.

use std::collections::VecDeque;

use super::SamplerOptions;

/// The window of the last tokens and what being in it costs.
#[derive(Debug, Clone)]
pub(super) struct Penalties {
    repeat: f32,
    presence: f32,
    frequency: f32,
    /// The last tokens, oldest first; never longer than `capacity`.
    window: VecDeque<u32>,
    capacity: usize,
    /// For each token of the vocabulary how often it is in the window; all zero outside `apply`.
    counts: Vec<u32>,
}

impl Penalties {
    /// Reserves the window and the counts, or nothing where the options ask for no penalty.
    pub(super) fn new(options: &SamplerOptions, vocab: usize) -> Self {
        let (capacity, counted) = if options.penalises() { (options.repeat_last_n, vocab) } else { (0, 0) };
        Self {
            repeat: options.repeat_penalty,
            presence: options.presence_penalty,
            frequency: options.frequency_penalty,
            window: VecDeque::with_capacity(capacity),
            capacity,
            counts: vec![0; counted],
        }
    }

    /// Puts `token` into the window and drops the oldest from a full one.
    pub(super) fn accept(&mut self, token: u32) {
        if token as usize >= self.counts.len() {
            return;
        }
        if self.window.len() == self.capacity {
            self.window.pop_front();
        }
        self.window.push_back(token);
    }

    /// Changes the logits of the tokens in the window, each token once, in time linear in the window.
    ///
    /// The repeat penalty is that of N. Keskar et al., "CTRL", 2019 (arXiv:1909.05858), with negative logits
    /// multiplied instead of divided, so that it always makes a token less likely; presence and frequency are the
    /// subtractions of OpenAI's API.
    pub(super) fn apply(&mut self, logits: &mut [f32]) {
        for &token in &self.window {
            self.counts[token as usize] += 1;
        }
        for &token in &self.window {
            let count = std::mem::take(&mut self.counts[token as usize]);
            if count > 0 {
                let logit = &mut logits[token as usize];
                *logit = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
                *logit -= count as f32 * self.frequency + self.presence;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalised(options: SamplerOptions, accepted: &[u32], logits: &[f32]) -> Vec<f32> {
        let mut penalties = Penalties::new(&options, logits.len());
        accepted.iter().for_each(|&token| penalties.accept(token));
        let mut first = logits.to_vec();
        penalties.apply(&mut first);
        let mut second = logits.to_vec();
        penalties.apply(&mut second);
        assert_eq!(first, second, "applying leaves the window as it was");
        first
    }

    #[test]
    fn repeat_divides_positive_and_multiplies_negative_logits_once() {
        let options = SamplerOptions { repeat_penalty: 2.0, ..Default::default() };
        let after = penalised(options, &[0, 1, 2, 0, 0], &[4.0, -4.0, 0.0, 4.0]);
        assert_eq!(after, [2.0, -8.0, 0.0, 4.0]);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let options = SamplerOptions { presence_penalty: 0.5, frequency_penalty: 0.25, ..Default::default() };
        assert_eq!(penalised(options, &[0, 2, 0, 0], &[1.0, 1.0, 1.0]), [-0.25, 1.0, 0.25]);
    }

    #[test]
    fn repeat_comes_before_presence() {
        let options = SamplerOptions { repeat_penalty: 2.0, presence_penalty: 1.0, ..Default::default() };
        assert_eq!(penalised(options, &[0], &[3.0]), [0.5]);
    }

    #[test]
    fn the_window_forgets_the_oldest() {
        let options = SamplerOptions { frequency_penalty: 1.0, repeat_last_n: 2, ..Default::default() };
        assert_eq!(penalised(options.clone(), &[0, 0, 0, 1], &[0.0, 0.0, 0.0]), [-1.0, -1.0, 0.0]);
        assert_eq!(penalised(options, &[0, 1, 2, 2], &[0.0, 0.0, 0.0]), [0.0, 0.0, -2.0]);
    }

    #[test]
    fn off_or_outside_the_vocabulary_changes_nothing() {
        let off = SamplerOptions::default();
        assert_eq!(penalised(off, &[0, 1], &[1.0, -1.0]), [1.0, -1.0]);
        let no_window = SamplerOptions { repeat_penalty: 2.0, repeat_last_n: 0, ..Default::default() };
        assert_eq!(penalised(no_window, &[0, 1], &[1.0, -1.0]), [1.0, -1.0]);
        let outside = SamplerOptions { repeat_penalty: 2.0, repeat_last_n: 1, ..Default::default() };
        assert_eq!(penalised(outside, &[0, 2, u32::MAX], &[1.0, -1.0]), [0.5, -1.0]);
    }
}
