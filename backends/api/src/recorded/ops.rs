//! The ops of a step as they come.

use std::sync::Arc;

use super::Op;

/// The ops of a step as they come. Most steps are the step before with other rows: as long as the ops are those of the last
/// one they are compared and nothing is built.
#[derive(Debug)]
pub struct Ops<Buf, Weight, Kv> {
    /// Those of the step before.
    known: Arc<[Op<Buf, Weight, Kv>]>,
    /// How many of them have come again.
    same: usize,
    /// All ops of the step, from the first one on that differs.
    differing: Option<Vec<Op<Buf, Weight, Kv>>>,
}

impl<Buf, Weight, Kv> Default for Ops<Buf, Weight, Kv> {
    fn default() -> Self {
        Ops { known: Arc::new([]), same: 0, differing: None }
    }
}

impl<Buf: Clone + PartialEq, Weight: Clone + PartialEq, Kv: Clone + PartialEq> Ops<Buf, Weight, Kv> {
    /// Begins a step.
    pub fn begin(&mut self) {
        self.same = 0;
        self.differing = None;
    }

    /// The next op.
    pub fn next(&mut self, op: Op<&Buf, &Weight, &Kv>) {
        let same = |known: &Op<Buf, Weight, Kv>| known.map(|buf| buf, |weight| weight, |kv| kv) == op;
        let owned = || op.map(|&buf| buf.clone(), |&weight| weight.clone(), |&kv| kv.clone());
        match &mut self.differing {
            Some(ops) => ops.push(owned()),
            None if self.known.get(self.same).is_some_and(same) => self.same += 1,
            None => {
                let mut ops = self.known[..self.same].to_vec();
                ops.push(owned());
                self.differing = Some(ops);
            }
        }
    }

    /// All ops of the step, which are known from now on: the same list as the last one, where they are the same.
    pub fn end(&mut self) -> Arc<[Op<Buf, Weight, Kv>]> {
        if self.differing.is_some() || self.same < self.known.len() {
            let ops = self.differing.take().unwrap_or_else(|| self.known[..self.same].to_vec());
            self.known = ops.into();
        }
        Arc::clone(&self.known)
    }

    /// Lets go of them, and of what they hold.
    pub fn forget(&mut self) {
        *self = Ops::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Numbered = Ops<u32, u32, u32>;

    /// A step of so many additions, whose last one adds `last`.
    fn step(ops: &mut Numbered, count: u32, last: u32) -> Arc<[Op<u32, u32, u32>]> {
        ops.begin();
        for x in 0..count {
            ops.next(Op::Add { x: &x, y: if x + 1 == count { &last } else { &100 } });
        }
        ops.end()
    }

    fn wanted(count: u32, last: u32) -> Vec<Op<u32, u32, u32>> {
        (0..count).map(|x| Op::Add { x, y: if x + 1 == count { last } else { 100 } }).collect()
    }

    #[test]
    fn a_step_that_comes_again_is_the_same_list() {
        let mut ops = Numbered::default();
        let first = step(&mut ops, 5, 7);
        assert_eq!(*first, *wanted(5, 7));
        assert!(Arc::ptr_eq(&first, &step(&mut ops, 5, 7)));
    }

    #[test]
    fn a_step_that_differs_is_what_was_asked_for() {
        let mut ops = Numbered::default();
        for (count, last) in [(5, 7), (5, 8), (3, 100), (3, 9), (6, 9), (0, 0), (4, 9)] {
            assert_eq!(*step(&mut ops, count, last), *wanted(count, last), "{count} additions, the last of {last}");
        }
    }

    #[test]
    fn what_is_forgotten_is_let_go() {
        let mut ops = Ops::<Arc<u32>, (), ()>::default();
        let (x, y) = (Arc::new(1), Arc::new(2));
        ops.begin();
        ops.next(Op::Add { x: &x, y: &y });
        drop(ops.end());
        assert_eq!(Arc::strong_count(&x), 2);
        ops.forget();
        assert_eq!((Arc::strong_count(&x), ops.end().len()), (1, 0));
    }
}
