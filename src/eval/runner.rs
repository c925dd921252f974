//! A window through a model, in steps.

use std::ops::Range;

use trine_backend::{Backend, Row};

use super::distribution::Scored;
use crate::Result;
use crate::engine::Engine;

/// A step: inputs of a window, and whether their logits are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) positions: Range<usize>,
    pub(super) output: bool,
}

/// Steps of at most `step` rows for a window of `window` inputs, of which those from `first` on are scored.
pub(super) fn chunks(window: usize, first: usize, step: usize) -> impl Iterator<Item = Chunk> {
    let part = move |range: Range<usize>, output| {
        let end = range.end;
        range.step_by(step).map(move |start| Chunk { positions: start..end.min(start + step), output })
    };
    part(0..first, false).chain(part(first..window, true))
}

/// Buffers for the steps of one model.
pub(super) struct Runner {
    rows: Vec<Row>,
    logits: Vec<f32>,
    vocab: usize,
}

impl Runner {
    pub(super) fn new(vocab: usize, step: usize) -> Self {
        Runner { rows: Vec::with_capacity(step), logits: vec![0.0; step * vocab], vocab }
    }

    /// Takes the step of a window of `ids`; the logits of its rows, `[rows, vocab]`, or none where they are not wanted.
    pub(super) fn run<B: Backend>(&mut self, engine: &mut Engine<B>, ids: &[u32], chunk: &Chunk) -> Result<&[f32]> {
        self.rows.clear();
        self.rows.extend(chunk.positions.clone().map(|position| Row {
            token: ids[position],
            sequence: 0,
            position: position as u32,
            output: chunk.output,
        }));
        engine.step(&self.rows)?;
        let rows = if chunk.output { chunk.positions.len() } else { 0 };
        let logits = &mut self.logits[..rows * self.vocab];
        if chunk.output {
            engine.read_logits(logits)?;
        }
        Ok(logits)
    }

    /// As [`Runner::run`], with logits that `read` knows from elsewhere, and what it knows of their rows.
    pub(super) fn fill(
        &mut self,
        chunk: &Chunk,
        read: impl FnOnce(&mut [f32]) -> Result<Vec<Scored>>,
    ) -> Result<(&[f32], Vec<Scored>)> {
        let logits = &mut self.logits[..chunk.positions.len() * self.vocab];
        let known = read(logits)?;
        Ok((logits, known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_the_window_in_order() {
        let all: Vec<_> = chunks(10, 4, 3).map(|chunk| (chunk.positions, chunk.output)).collect();
        assert_eq!(all, [(0..3, false), (3..4, false), (4..7, true), (7..10, true)]);
        assert!(chunks(3, 0, 8).map(|chunk| chunk.positions).eq(std::iter::once(0..3)));
    }
}
