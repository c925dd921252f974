//! How a text is cut up.

use std::ops::Range;

use crate::{Error, Result};

/// Windows begin at tokens 0, `stride`, 2 `stride` and so on; what is left after the last whole window is not used.
///
/// Inputs of the window at k are tokens `k..k + window`, targets are the tokens after each. A target is scored once, in the
/// first window that has it, and not at all where it is among the first `skip` of a window: a model has little to go by
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Tokens of a window.
    pub window: usize,
    /// Tokens from the beginning of one window to that of the next, at most `window`.
    pub stride: usize,
    /// Targets at the beginning of each window that only give context.
    pub skip: usize,
}

impl From<usize> for Windows {
    /// Windows of so many tokens without overlap.
    fn from(window: usize) -> Self {
        Windows { window, stride: window, skip: 0 }
    }
}

impl Windows {
    /// How many windows a text of `tokens` tokens has.
    ///
    /// # Errors
    /// None; or a window does not fit `context`; or a stride or skip makes no sense.
    pub fn check(&self, tokens: usize, context: usize) -> Result<usize> {
        let Windows { window, stride, skip } = *self;
        if window == 0 || window > context {
            return Err(Error::Usage(format!("windows of {window} tokens do not fit a context of {context}")));
        }
        if stride == 0 || stride > window {
            return Err(Error::Usage(format!(
                "a stride of {stride} tokens is not between 1 and the window's {window}"
            )));
        }
        if skip >= window {
            return Err(Error::Usage(format!("{skip} skipped targets leave none of a window of {window}")));
        }
        match self.count(tokens) {
            0 => Err(Error::Usage(format!(
                "the text has {tokens} tokens and one window needs {}: use a longer text or a smaller window",
                window.saturating_add(1)
            ))),
            count => Ok(count),
        }
    }

    /// How many windows a text of `tokens` tokens has.
    pub fn count(&self, tokens: usize) -> usize {
        match tokens.checked_sub(self.window.saturating_add(1)) {
            Some(rest) => rest / self.stride.max(1) + 1,
            None => 0,
        }
    }

    /// How many targets of a text of `tokens` tokens are scored.
    pub fn targets(&self, tokens: usize) -> usize {
        let of = |number| self.window.saturating_sub(self.first(number));
        match self.count(tokens) {
            0 => 0,
            count => of(0).saturating_add((count - 1).saturating_mul(of(1))),
        }
    }

    /// Inputs of window `number`, and its first target that is scored.
    pub(super) fn nth(&self, number: usize) -> (Range<usize>, usize) {
        let start = number * self.stride;
        (start..start + self.window, self.first(number))
    }

    fn first(&self, number: usize) -> usize {
        let overlap = if number == 0 { 0 } else { self.window.saturating_sub(self.stride) };
        overlap.max(self.skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_overlap_each_target_but_the_rest_is_scored() {
        let windows = Windows::from(16);
        assert_eq!(windows.check(17, 16).unwrap(), 1);
        assert_eq!(windows.check(48, 16).unwrap(), 2);
        assert_eq!(windows.check(49, 16).unwrap(), 3);
        assert_eq!(windows.targets(49), 48);
        assert_eq!(windows.nth(2), (32..48, 0));
    }

    #[test]
    fn with_overlap_no_target_is_scored_twice() {
        for (window, stride, skip) in [(16, 4, 0), (16, 5, 0), (16, 16, 8), (16, 12, 8), (16, 2, 15), (1, 1, 0)] {
            let windows = Windows { window, stride, skip };
            for tokens in window + 1..window + 60 {
                let count = windows.check(tokens, window).unwrap();
                let mut seen = vec![0; tokens];
                for number in 0..count {
                    let (range, first) = windows.nth(number);
                    assert_eq!(range.len(), window);
                    (range.start + first..range.end).for_each(|input| seen[input + 1] += 1);
                }
                assert!(seen.iter().all(|&times| times <= 1), "{windows:?}, {tokens}");
                assert_eq!(seen.iter().sum::<usize>(), windows.targets(tokens));
                // Another window would not have fitted.
                assert!(count * stride + window + 1 > tokens);
            }
        }
        let all = Windows { window: 16, stride: 4, skip: 0 };
        assert_eq!(all.targets(25), 24, "with a stride nothing is left out in between");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let check = |window, stride, skip, tokens| Windows { window, stride, skip }.check(tokens, 100);
        let line = |result: Result<usize>| result.unwrap_err().to_string();
        assert!(line(check(0, 1, 0, 50)).contains("context of 100"));
        assert!(line(check(101, 1, 0, 500)).contains("windows of 101 tokens do not fit"));
        assert!(line(check(10, 0, 0, 50)).contains("stride of 0"));
        assert!(line(check(10, 11, 0, 50)).contains("stride of 11"));
        assert!(line(check(10, 10, 10, 50)).contains("10 skipped"));
        assert!(line(check(10, 10, 0, 10)).contains("has 10 tokens and one window needs 11"));
        assert_eq!(Windows::from(usize::MAX).count(5), 0);
    }
}
