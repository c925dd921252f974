//! How much of a prompt goes into a step that other texts wait for.

use std::time::Duration;

/// What reading a prompt may add to a step in which others decode: a stream that stutters by this much still reads as one.
const DELAY: Duration = Duration::from_millis(100);

/// Prompt rows of a shared step as long as nothing is known, and the fewest.
const FIRST: usize = 32;
const FEWEST: usize = 8;

/// Steps of fewer rows say little about rows: reading the weights takes most of their time.
const TELLING: usize = 8;

/// Learns what a row costs and chooses sizes of steps. Only the timing of texts depends on it, never a text.
pub(super) struct Pace {
    most: usize,
    /// Seconds for each row of a large step, averaged over the last ones.
    per_row: Option<f64>,
}

impl Pace {
    /// For steps of at most `most` rows.
    pub(super) fn new(most: usize) -> Self {
        Pace { most, per_row: None }
    }

    /// Takes note of a step.
    pub(super) fn learn(&mut self, rows: usize, time: Duration) {
        if rows >= TELLING {
            let now = time.as_secs_f64() / rows as f64;
            self.per_row = Some(self.per_row.map_or(now, |before| 0.75 * before + 0.25 * now));
        }
    }

    /// Rows for prompts in a step in which `decoding` rows are taken.
    pub(super) fn prompt_rows(&self, decoding: usize) -> usize {
        let room = self.most.saturating_sub(decoding);
        match (decoding, self.per_row) {
            (0, _) => room,
            (_, None) => room.min(FIRST),
            (_, Some(per_row)) => room.min(((DELAY.as_secs_f64() / per_row) as usize).max(FEWEST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_take_whole_steps_only_where_nobody_waits() {
        let mut pace = Pace::new(512);
        assert_eq!((pace.prompt_rows(0), pace.prompt_rows(1)), (512, FIRST));
        // A millisecond for each row.
        pace.learn(200, Duration::from_millis(200));
        assert_eq!((pace.prompt_rows(0), pace.prompt_rows(2)), (512, 100));
        // A small step says nothing.
        pace.learn(1, Duration::from_secs(9));
        assert_eq!(pace.prompt_rows(2), 100);
    }

    #[test]
    fn a_slow_device_still_gets_on_and_a_full_step_has_no_room() {
        let mut pace = Pace::new(64);
        pace.learn(64, Duration::from_secs(64));
        assert_eq!((pace.prompt_rows(1), pace.prompt_rows(60), pace.prompt_rows(64)), (FEWEST, 4, 0));
    }
}
