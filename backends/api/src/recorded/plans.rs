//! Plans that are kept.

use std::sync::Arc;

use crate::Row;

/// What a plan depends on beside the ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of the step.
    pub rows: usize,
    /// Rows that [`Backend::select_outputs`](crate::Backend::select_outputs) keeps.
    pub outputs: usize,
    /// Chunks of attention that the longest sequence may need, a power of two.
    pub chunks: usize,
}

impl Shape {
    /// The shape of a step, with `chunk` positions to a chunk of attention.
    pub fn new(rows: &[Row], chunk: usize) -> Shape {
        let longest = rows.iter().map(|row| row.position as usize + 1).max().unwrap_or(1);
        Shape {
            rows: rows.len(),
            outputs: rows.iter().filter(|row| row.output).count(),
            chunks: longest.div_ceil(chunk).next_power_of_two(),
        }
    }
}

/// The plans that were used last, by the ops and the shape that they are for. An `Op` is one of a backend's, a `Plan` whatever it
/// made of them.
#[derive(Debug)]
pub struct Plans<Op, Plan> {
    most: usize,
    /// The latest last.
    kept: Vec<(Arc<[Op]>, Shape, Plan)>,
}

impl<Op: PartialEq, Plan> Plans<Op, Plan> {
    /// None yet; room for `most`, which is one at least.
    pub fn new(most: usize) -> Self {
        Plans { most: most.max(1), kept: Vec::new() }
    }

    /// The plan for these ops, if there is one: now the latest.
    pub fn find(&mut self, ops: &Arc<[Op]>, shape: Shape) -> Option<&mut Plan> {
        let same = |kept: &Arc<[Op]>| Arc::ptr_eq(kept, ops) || kept == ops;
        let at = self.kept.iter().rposition(|(kept, of, _)| *of == shape && same(kept))?;
        let found = self.kept.remove(at);
        self.kept.push(found);
        self.latest()
    }

    /// Keeps a new one, and lets go of the one that was used the longest ago where there is no room for both.
    pub fn keep(&mut self, ops: Arc<[Op]>, shape: Shape, plan: Plan) {
        if self.kept.len() == self.most {
            self.kept.remove(0);
        }
        self.kept.push((ops, shape, plan));
    }

    /// The one that was kept or found last.
    pub fn latest(&mut self) -> Option<&mut Plan> {
        self.kept.last_mut().map(|(_, _, plan)| plan)
    }

    /// Lets go of all of them.
    pub fn forget(&mut self) {
        self.kept.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Shape = Shape { rows: 1, outputs: 1, chunks: 1 };

    #[test]
    fn a_plan_is_for_its_ops_and_its_shape() {
        let mut plans = Plans::new(4);
        let list = |last| -> Arc<[u8]> { Arc::new([1, last]) };
        let (ops, other) = (list(2), list(3));
        plans.keep(Arc::clone(&ops), ONE, "one");
        plans.keep(Arc::clone(&ops), Shape { rows: 2, ..ONE }, "two");
        plans.keep(other, ONE, "other");
        assert_eq!(plans.find(&ops, ONE), Some(&mut "one"));
        // Ops that are equal do, though they were recorded anew.
        assert_eq!(plans.find(&list(3), ONE), Some(&mut "other"));
        for shape in [Shape { outputs: 0, ..ONE }, Shape { chunks: 2, ..ONE }] {
            assert_eq!(plans.find(&ops, shape), None);
        }
        plans.forget();
        assert!(plans.find(&ops, ONE).is_none() && plans.latest().is_none());
    }

    #[test]
    fn what_was_used_the_longest_ago_makes_room() {
        let mut plans = Plans::new(2);
        let ops = |number: u8| -> Arc<[u8]> { Arc::new([number]) };
        plans.keep(ops(1), ONE, 1);
        plans.keep(ops(2), ONE, 2);
        assert_eq!((plans.find(&ops(1), ONE).copied(), plans.latest().copied()), (Some(1), Some(1)));
        plans.keep(ops(3), ONE, 3);
        assert_eq!([1, 2, 3].map(|number| plans.find(&ops(number), ONE).is_some()), [true, false, true]);
    }

    #[test]
    fn a_shape_has_chunks_for_the_longest_sequence() {
        let row = |position, output| Row { token: 0, sequence: 0, position, output };
        assert_eq!(Shape::new(&[row(0, true)], 64), ONE);
        assert_eq!(Shape::new(&[row(63, false), row(7, true)], 64), Shape { rows: 2, outputs: 1, chunks: 1 });
        assert_eq!(Shape::new(&[row(64, false)], 64).chunks, 2);
        assert_eq!(Shape::new(&[row(130, false)], 64).chunks, 4);
        assert_eq!(Shape::new(&[], 64), Shape { rows: 0, outputs: 0, chunks: 1 });
    }
}
