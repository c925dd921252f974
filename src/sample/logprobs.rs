//! Log-probabilities of tokens, for callers that show how sure the model was.

use crate::{Error, Result};

use super::filter;

/// How probable a token was under the model, and which tokens were the most probable.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token asked for.
    pub token: u32,
    /// Natural logarithm of its probability: 0 or less; `-inf` where its logit is NaN or -inf.
    pub logprob: f64,
    /// The most probable tokens and their log-probabilities, best first, ties by id.
    pub top: Vec<(u32, f64)>,
}

/// Log-softmax in f64 of `token` and of the `n` best tokens under `logits` (`[vocab]`), as the model gave them: no
/// bias, penalty, filter or temperature. Fewer than `n` where fewer tokens are possible.
///
/// The logarithm is the platform's own, so the last digits are no part of what a seed promises.
///
/// # Errors
/// [`Error::Request`] for a token outside the row and for a row of nothing but NaN and -inf.
pub fn token_logprobs(logits: &[f32], token: u32, n: usize) -> Result<TokenLogprobs> {
    let Some(&logit) = logits.get(token as usize) else {
        return Err(Error::Request(format!("token {token} has no logit: there are {}", logits.len())));
    };
    let mut candidates = Vec::new();
    let best = filter::list_top_k(&mut candidates, logits, 0).ok_or_else(|| super::nothing_possible(logits))?;
    let max = best.logit;
    let total: f64 = candidates.iter().map(|candidate| candidate.weight(max, 1.0)).sum();
    let logprob = |logit: f32| {
        // Apart, as +inf less itself is NaN.
        let below = if logit == max { 0.0 } else { f64::from(logit) - f64::from(max) };
        below - total.ln()
    };
    filter::keep_best(&mut candidates, n);
    let top = candidates.iter().map(|candidate| (candidate.id, logprob(candidate.logit))).collect();
    let logprob = if logit.is_nan() { f64::NEG_INFINITY } else { logprob(logit) };
    Ok(TokenLogprobs { token, logprob, top })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_probabilities() {
        // Probabilities 1/8, 4/8, 1/8, 2/8.
        let ln2 = std::f32::consts::LN_2;
        let logits = [5.0, 5.0 + 2.0 * ln2, 5.0, 5.0 + ln2];
        let got = token_logprobs(&logits, 2, 3).unwrap();
        assert_eq!(got.token, 2);
        assert!((got.logprob.exp() - 0.125).abs() < 1e-6);
        assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 0]);
        for ((_, logprob), p) in got.top.iter().zip([0.5, 0.25, 0.125]) {
            assert!((logprob.exp() - p).abs() < 1e-6);
        }
        assert_eq!(got.top[2].1, got.logprob);
    }

    #[test]
    fn all_of_a_row_sums_to_one() {
        let logits: Vec<f32> = (0..1000).map(|i| (i * 7919 % 1000) as f32 * 0.02).collect();
        let got = token_logprobs(&logits, 0, usize::MAX).unwrap();
        assert_eq!(got.top.len(), 1000);
        assert!(got.top.is_sorted_by(|a, b| a.1 >= b.1));
        assert!((got.top.iter().map(|t| t.1.exp()).sum::<f64>() - 1.0).abs() < 1e-12);
        assert!(token_logprobs(&logits, 0, 0).unwrap().top.is_empty());
    }

    #[test]
    fn broken_rows() {
        let logits = [f32::NAN, 1.0, f32::NEG_INFINITY, 1.0];
        let got = token_logprobs(&logits, 0, 9).unwrap();
        assert_eq!(got.logprob, f64::NEG_INFINITY);
        assert_eq!(got.top, [(1, -(2f64.ln())), (3, -(2f64.ln()))]);
        assert_eq!(token_logprobs(&logits, 2, 0).unwrap().logprob, f64::NEG_INFINITY);
        assert_eq!(token_logprobs(&[f32::INFINITY, 3.0], 0, 0).unwrap().logprob, 0.0);
        assert!(token_logprobs(&logits, 4, 1).unwrap_err().to_string().contains("token 4"));
        assert!(token_logprobs(&[f32::NAN; 3], 0, 1).unwrap_err().to_string().contains("3 are NaN"));
        assert!(token_logprobs(&[], 0, 1).is_err());
    }
}
