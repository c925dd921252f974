//! What a user can set, and the ranges that are accepted.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::{Error, Result};

/// The longest window that the penalties look back on: more than any model's context, and 4 MiB at most.
pub const MAX_REPEAT_LAST_N: usize = 1 << 20;

/// A seed from the system's random numbers, which every hash table is keyed with.
pub fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// How a token is chosen. The default is what llama.cpp's users expect: temperature 0.8, top-k 40, top-p 0.95,
/// min-p 0.05 and no penalties.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits before the draw, 0 or more; 0 = greedy: always the most probable token.
    pub temperature: f32,
    /// Keep the `top_k` most probable tokens; 0 = off.
    pub top_k: usize,
    /// Keep the most probable tokens that together reach this probability, 0 to 1; 1 = off.
    pub top_p: f32,
    /// Keep the tokens at least this fraction as probable as the most probable one, 0 to 1; 0 = off.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of the tokens in the window, above 0; 1 = off.
    pub repeat_penalty: f32,
    /// Length of the penalties' window in tokens; 0 = no penalties.
    pub repeat_last_n: usize,
    /// Subtracted from the logits of the tokens in the window, -100 to 100; 0 = off.
    pub presence_penalty: f32,
    /// Subtracted once for each time that the token is in the window, -100 to 100; 0 = off.
    pub frequency_penalty: f32,
    /// Added to the logits of the tokens named (a token named twice gets both); `-inf` bans a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Start of the random numbers. A program that wants a new text on each run brings a new seed.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplerOptions {
    /// Checks each field against its range.
    ///
    /// # Errors
    /// [`Error::Usage`] that names the first field out of its range, its value and the range.
    pub fn validate(&self) -> Result<()> {
        let unit = |x: f32| (0.0..=1.0).contains(&x);
        let hundred = |x: f32| (-100.0..=100.0).contains(&x);
        let temperature = self.temperature;
        check("temp", temperature, temperature >= 0.0 && temperature.is_finite(), "a number from 0 up (0 = greedy)")?;
        check("top-p", self.top_p, unit(self.top_p), "a number from 0 to 1 (1 = off)")?;
        check("min-p", self.min_p, unit(self.min_p), "a number from 0 to 1 (0 = off)")?;
        let repeat = self.repeat_penalty;
        check("repeat-penalty", repeat, repeat > 0.0 && repeat.is_finite(), "a number above 0 (1 = off)")?;
        let last_n = self.repeat_last_n;
        check("repeat-last-n", last_n, last_n <= MAX_REPEAT_LAST_N, "a count from 0 to 1048576 (0 = no penalties)")?;
        let [presence, frequency] = [self.presence_penalty, self.frequency_penalty];
        check("presence-penalty", presence, hundred(presence), "a number from -100 to 100 (0 = off)")?;
        check("frequency-penalty", frequency, hundred(frequency), "a number from -100 to 100 (0 = off)")?;
        for &(token, bias) in &self.logit_bias {
            let ok = bias.is_finite() || bias == f32::NEG_INFINITY;
            check(&format!("logit-bias of token {token}:"), bias, ok, "a finite number, or -inf to ban the token")?;
        }
        Ok(())
    }

    /// How many of the best tokens to look at: 1 for greedy, else top-k; 0 = all.
    pub(super) fn candidates(&self) -> usize {
        if self.temperature == 0.0 { 1 } else { self.top_k }
    }

    /// Whether the token with the largest logit is always the one: greedy, and nothing changes a logit.
    pub fn takes_the_largest(&self) -> bool {
        self.temperature == 0.0 && self.logit_bias.is_empty() && !self.penalises()
    }

    /// Whether any of the three penalties changes a logit.
    pub(super) fn penalises(&self) -> bool {
        let off = self.repeat_penalty == 1.0 && self.presence_penalty == 0.0 && self.frequency_penalty == 0.0;
        self.repeat_last_n > 0 && !off
    }
}

fn check(name: &str, value: impl std::fmt::Display, ok: bool, range: &str) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::Usage(format!("{name} {value} is out of range: use {range}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed(), random_seed());
    }

    fn refusal(change: impl Fn(&mut SamplerOptions)) -> String {
        let mut options = SamplerOptions::default();
        change(&mut options);
        let error = options.validate().unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[test]
    fn the_default_and_the_ends_of_the_ranges_are_accepted() {
        SamplerOptions::default().validate().unwrap();
        for end in [0.0, 1.0] {
            SamplerOptions { top_p: end, min_p: end, temperature: end, ..Default::default() }.validate().unwrap();
        }
        let ends = SamplerOptions {
            temperature: f32::MAX,
            repeat_penalty: f32::MIN_POSITIVE,
            repeat_last_n: MAX_REPEAT_LAST_N,
            presence_penalty: -100.0,
            frequency_penalty: 100.0,
            logit_bias: vec![(3, f32::NEG_INFINITY), (3, f32::MAX)],
            top_k: usize::MAX,
            ..Default::default()
        };
        ends.validate().unwrap();
    }

    #[test]
    fn each_field_is_refused_by_name() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1000.0] {
            for (name, set) in FIELDS {
                let line = refusal(|options| *set(options) = bad);
                assert!(line.starts_with(&format!("{name} {bad} is out of range: use a number ")), "{line}");
                assert!(!line.contains('\n'), "{line}");
            }
        }
        assert_eq!(refusal(|o| o.top_p = 1.5), "top-p 1.5 is out of range: use a number from 0 to 1 (1 = off)");
        assert!(refusal(|o| o.min_p = 1.001).starts_with("min-p 1.001 "));
        assert!(refusal(|o| o.repeat_penalty = 0.0).starts_with("repeat-penalty 0 "));
        let line = refusal(|o| o.repeat_last_n = usize::MAX);
        assert!(
            line.contains(&format!("repeat-last-n {}", usize::MAX)) && line.contains(&MAX_REPEAT_LAST_N.to_string())
        );
        for bad in [f32::NAN, f32::INFINITY] {
            let line = refusal(|o| o.logit_bias = vec![(1, 0.5), (7, bad)]);
            assert!(line.starts_with(&format!("logit-bias of token 7: {bad} ")), "{line}");
        }
    }

    type Field = fn(&mut SamplerOptions) -> &mut f32;
    const FIELDS: [(&str, Field); 6] = [
        ("temp", |o| &mut o.temperature),
        ("top-p", |o| &mut o.top_p),
        ("min-p", |o| &mut o.min_p),
        ("repeat-penalty", |o| &mut o.repeat_penalty),
        ("presence-penalty", |o| &mut o.presence_penalty),
        ("frequency-penalty", |o| &mut o.frequency_penalty),
    ];
}
