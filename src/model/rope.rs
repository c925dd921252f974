//! Rotary position embedding: the table of cosines and sines, with the scalings that models ask for.

use std::f64::consts::TAU;

use super::{Config, RopeScaling};

/// `[context, head_dim]`, row `p` being `cos(p · f_i) | sin(p · f_i)` for the `head_dim / 2` frequencies.
/// Computed in f64 so that far positions keep their angle.
pub(crate) fn table(config: &Config, context: usize) -> Vec<f32> {
    let half = config.heads.dim / 2;
    let frequencies = frequencies(config);
    let amplitude = match config.rope.scaling {
        RopeScaling::Yarn { attention_factor, .. } => attention_factor,
        _ => 1.0,
    };
    let mut table = vec![0.0f32; context * 2 * half];
    for (position, row) in table.chunks_mut(2 * half).enumerate() {
        let (cos, sin) = row.split_at_mut(half);
        for (i, frequency) in frequencies.iter().enumerate() {
            let angle = position as f64 * frequency;
            cos[i] = (amplitude * angle.cos()) as f32;
            sin[i] = (amplitude * angle.sin()) as f32;
        }
    }
    table
}

/// `base^(-2i / head_dim)` radians per position for pair `i`, scaled.
fn frequencies(config: &Config) -> Vec<f64> {
    let (dim, base) = (config.heads.dim, config.rope.base);
    let frequency = |i: usize| base.powf(-2.0 * i as f64 / dim as f64);
    (0..dim / 2).map(|i| scale(i, frequency(i), dim, base, &config.rope.scaling)).collect()
}

fn scale(pair: usize, frequency: f64, dim: usize, base: f64, scaling: &RopeScaling) -> f64 {
    match *scaling {
        RopeScaling::None => frequency,
        RopeScaling::Factors { ref divisors } => frequency / f64::from(divisors[pair]),
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low, high, original_context } => {
            let turns = original_context as f64 * frequency / TAU;
            blend(frequency, factor, (turns - low) / (high - low))
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, truncate, .. } => {
            // The pair (a real number) that makes `turns` turns in the original context.
            let pair_of = |turns: f64| dim as f64 * (original_context as f64 / (turns * TAU)).ln() / (2.0 * base.ln());
            let (mut fast, mut slow) = (pair_of(beta_fast), pair_of(beta_slow));
            if truncate {
                (fast, slow) = (fast.floor(), slow.ceil());
            }
            let (fast, slow) = (fast.max(0.0), slow.min(dim as f64 - 1.0));
            // A width of 0 would divide by zero.
            let width = if slow == fast { 0.001 } else { slow - fast };
            blend(frequency, factor, 1.0 - (pair as f64 - fast) / width)
        }
    }
}

/// `kept` (clamped to 0..=1) of the frequency as it is, the rest of it divided by `factor`.
fn blend(frequency: f64, factor: f64, kept: f64) -> f64 {
    let kept = kept.clamp(0.0, 1.0);
    (1.0 - kept) * frequency / factor + kept * frequency
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 8192 };
        let scaled = |frequency| scale(0, frequency, 128, 5e5, &scaling);
        // Wavelength 8192 / 4 and shorter: kept. 8192 and longer: an eighth of the frequency.
        assert_eq!(scaled(TAU / 100.0), TAU / 100.0);
        assert_eq!(scaled(TAU / 20_000.0), TAU / 160_000.0);
        // Half-way between in turns (2.5 of 1..4): the mean of both.
        let middle = 2.5 * TAU / 8192.0;
        assert!((scaled(middle) - middle * (0.5 + 0.5 / 8.0)).abs() < 1e-12);
        assert_eq!(scale(0, 1.0, 128, 1e4, &RopeScaling::Linear { factor: 4.0 }), 0.25);
    }

    #[test]
    fn yarn_keeps_the_first_pairs_and_stretches_the_last() {
        let (dim, base) = (128, 1e6f64);
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 32768,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.0,
            truncate: true,
        };
        let ratio = |pair: usize| {
            let frequency = base.powf(-2.0 * pair as f64 / dim as f64);
            scale(pair, frequency, dim, base, &scaling) / frequency
        };
        // 128 ln(32768 / (32 · 2π)) / (2 ln 1e6) = 23.6 and 128 ln(32768 / 2π) / (2 ln 1e6) = 39.7.
        assert_eq!((ratio(0), ratio(23)), (1.0, 1.0));
        assert_eq!((ratio(40), ratio(63)), (0.25, 0.25));
        let expected = 0.25 + 0.75 * (1.0 - (31.0 - 23.0) / (40.0 - 23.0));
        assert!((ratio(31) - expected).abs() < 1e-12);
    }
}
