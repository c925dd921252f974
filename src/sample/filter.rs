//! The candidates for the next token, and the filters that thin them out.

use std::cmp::Ordering;

use super::math::exp;

/// A token that can still be drawn. Its logit is neither NaN nor -inf nor -0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

impl Candidate {
    /// Probability relative to that of a candidate with logit `max`, at `temperature`: e^((logit - max) / temperature).
    pub(super) fn weight(&self, max: f32, temperature: f32) -> f64 {
        // Apart, as +inf less itself is NaN.
        if self.logit == max {
            return 1.0;
        }
        exp((f64::from(self.logit) - f64::from(max)) / f64::from(temperature))
    }
}

/// Best first: the higher logit, and the lower id where logits tie. No two candidates compare as equal.
pub(super) fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Lists the tokens that `logits` leaves possible (not NaN, not -inf), by id; where there are more than `k` of them
/// and `k` isn't 0, only the `k` best, best first. Gives the best of them.
///
/// Top-k is from A. Fan et al., "Hierarchical Neural Story Generation", 2018 (arXiv:1805.04833). A few times `k`
/// candidates are gathered before the `k` best of them are kept; from then on a logit has to beat the last of those, so
/// that most of a row costs one comparison each.
pub(super) fn list_top_k(candidates: &mut Vec<Candidate>, logits: &[f32], k: usize) -> Option<Candidate> {
    candidates.clear();
    let gather = gathered(k);
    let mut bar = f32::NEG_INFINITY;
    let mut best: Option<Candidate> = None;
    for (id, &logit) in (0u32..).zip(logits) {
        // A tie with the bar loses: the ids before have it.
        if logit > bar {
            // Adding zero turns -0 into +0, so that the two tie.
            let candidate = Candidate { id, logit: logit + 0.0 };
            candidates.push(candidate);
            if best.is_none_or(|best| candidate.logit > best.logit) {
                best = Some(candidate);
            }
            if candidates.len() == gather {
                keep_best(candidates, k);
                bar = candidates[k - 1].logit;
            }
        }
    }
    // No more than k are either all there are, or just ranked.
    if k > 0 && candidates.len() > k {
        keep_best(candidates, k);
    }
    best
}

/// The most candidates that are held at once to find the `k` best of a row, `k` of 0 being all.
pub(super) fn gathered(k: usize) -> usize {
    if k == 0 { usize::MAX } else { k.saturating_mul(4).max(256) }
}

/// Keeps the `k` best, or all where there are fewer, best first: linear in the candidates, then k log k.
pub(super) fn keep_best(candidates: &mut Vec<Candidate>, k: usize) {
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, best_first);
    }
    candidates.truncate(k);
    candidates.sort_unstable_by(best_first);
}

/// Top-p, then min-p; `max` is the best logit.
///
/// Each keeps a beginning of the ranked candidates, so both keep the shorter of the two, whichever goes first. Min-p
/// needs no ranking and mostly leaves few, so it thins out what top-p has to rank; the probability mass that top-p
/// counts against is still that of all the candidates given.
pub(super) fn top_p_min_p(candidates: &mut Vec<Candidate>, max: f32, p: f32, min_p: f32) {
    if p >= 1.0 && min_p <= 0.0 {
        return;
    }
    let mut total = 0.0;
    // The weight of the best is 1, so the threshold of min-p needs no division by it.
    candidates.retain(|candidate| {
        let weight = candidate.weight(max, 1.0);
        total += weight;
        weight >= f64::from(min_p)
    });
    if p < 1.0 {
        top_p(candidates, max, f64::from(p) * total);
    }
}

/// Keeps the best candidates up to and with the one at which their weights sum up to `goal`, at least one.
///
/// A. Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019 (arXiv:1904.09751). The goal is mostly
/// reached within a few of many candidates, so they are ranked in growing pieces instead of all at once.
fn top_p(candidates: &mut Vec<Candidate>, max: f32, goal: f64) {
    let mut mass = 0.0;
    let mut piece = 64;
    let mut start = 0;
    while start < candidates.len() {
        let rest = &mut candidates[start..];
        let len = piece.min(rest.len());
        if len < rest.len() {
            rest.select_nth_unstable_by(len - 1, best_first);
        }
        rest[..len].sort_unstable_by(best_first);
        for (i, candidate) in rest[..len].iter().enumerate() {
            mass += candidate.weight(max, 1.0);
            if mass >= goal {
                candidates.truncate(start + i + 1);
                return;
            }
        }
        start += len;
        piece *= 4;
    }
}
