//! Distributions over tokens, out of logits.

/// What one model makes of one target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scored {
    /// Negative log-likelihood of the target, in nats.
    pub(super) loss: f64,
    /// The likeliest token, the first of equals.
    pub(super) top: u32,
}

/// Loss and likeliest token under `logits`, `[vocab]`.
pub(super) fn score(logits: &[f32], target: u32) -> Scored {
    let (top, total) = log_sum(logits);
    Scored { loss: total - f64::from(logits[target as usize]), top }
}

/// As [`score`] for both, and the Kullback-Leibler divergence in nats of the distribution under `logits` from that under
/// `reference`: the sum of `p · (ln p - ln q)` with p from `reference` and q from `logits`.
pub(super) fn compare(logits: &[f32], reference: &[f32], target: u32) -> (Scored, Scored, f64) {
    let ((top, total), (reference_top, reference_total)) = (log_sum(logits), log_sum(reference));
    let divergence: f64 = logits
        .iter()
        .zip(reference)
        .map(|(&q, &p)| {
            let (ln_p, ln_q) = (f64::from(p) - reference_total, f64::from(q) - total);
            let p = ln_p.exp();
            // What is impossible adds nothing, however improbable the other finds it.
            if p == 0.0 { 0.0 } else { p * (ln_p - ln_q) }
        })
        .sum();
    let target = target as usize;
    let scored = Scored { loss: total - f64::from(logits[target]), top };
    let reference = Scored { loss: reference_total - f64::from(reference[target]), top: reference_top };
    // It is no less than 0 but for rounding. NaN stays NaN.
    (scored, reference, if divergence < 0.0 { 0.0 } else { divergence })
}

/// The place of the first of the highest logits, and `ln Σ exp(logit)`; the sum is NaN where a logit is NaN or +inf.
fn log_sum(logits: &[f32]) -> (u32, f64) {
    let mut top = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[top] {
            top = id;
        }
    }
    let highest = f64::from(logits[top]);
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - highest).exp()).sum();
    (top as u32, highest + sum.ln())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn loss_is_the_negative_log_probability() {
        let loss = |logits: &[f32], target| score(logits, target).loss;
        assert!((loss(&[0.0; 4], 2) - 4.0f64.ln()).abs() < 1e-12);
        assert!((loss(&[1000.0, 0.0], 0)).abs() < 1e-12);
        assert!((loss(&[1000.0, 0.0], 1) - 1000.0).abs() < 1e-9);
        assert!(loss(&[f32::NAN, 0.0], 1).is_nan());
        assert!(loss(&[0.0, f32::NAN], 0).is_nan());
        assert!(!loss(&[f32::INFINITY, 0.0], 1).is_finite());
        assert_eq!(score(&[1.0, 3.0, 3.0, 2.0], 0).top, 1);
    }

    #[test]
    fn divergence_of_known_distributions() {
        let logits = |p: &[f32]| p.iter().map(|p| p.ln()).collect::<Vec<_>>();
        let divergence = |q: &[f32], p: &[f32]| compare(&logits(q), &logits(p), 0).2;
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} is not {b}");
        close(divergence(&[0.25, 0.75], &[0.5, 0.5]), 0.5 * 2f64.ln() + 0.5 * (2f64 / 3.0).ln());
        close(divergence(&[0.5, 0.5], &[0.25, 0.75]), 0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln());
        // A token that the reference never gives adds nothing; one that the model never gives is infinitely far.
        close(divergence(&[0.5, 0.5], &[1.0, 0.0]), 2f64.ln());
        assert_eq!(divergence(&[1.0, 0.0], &[0.5, 0.5]), f64::INFINITY);
        // 1000 equally likely tokens against one that has half of it.
        let mut peaked = vec![0.5 / 999.0; 1000];
        peaked[7] = 0.5;
        let even = [0.001f32; 1000];
        close(divergence(&peaked, &even), -0.999 * (1000.0f64 / 999.0 * 0.5).ln() - 0.001 * 500f64.ln());
    }

    proptest! {
        #[test]
        fn divergence_is_positive_and_zero_for_the_same(
            rows in prop::collection::vec((-50f32..50.0, -50f32..50.0), 1..200), shift in -100f32..100.0,
        ) {
            let (a, b): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            let (scored, reference, divergence) = compare(&a, &b, 0);
            prop_assert!(divergence >= 0.0 && divergence.is_finite());
            prop_assert_eq!(scored, score(&a, 0));
            prop_assert_eq!(reference, score(&b, 0));
            prop_assert_eq!(compare(&a, &a, 0).2, 0.0);
            // A shift of all logits changes nothing but rounding.
            let shifted: Vec<_> = a.iter().map(|x| x + shift).collect();
            prop_assert!(compare(&shifted, &a, 0).2 < 1e-4);
        }
    }
}
