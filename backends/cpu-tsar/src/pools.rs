//! The threads of the two phases: decoding waits for memory and prefill for the vector units, so the best
//! numbers of threads may differ.

use trine_backend::Result;

use crate::pool::Pool;

/// A pool for steps of one row, and one for steps of more where that has another number of threads. Workers of
/// the pool that is not used sleep.
#[derive(Debug)]
pub(crate) struct Pools {
    single: Pool,
    batch: Option<Pool>,
    /// Whether the step has more than one row.
    batched: bool,
}

impl Pools {
    /// Starts the threads for steps of one row, and for steps of more.
    ///
    /// Errors for no threads, for absurdly many, and if the system can't start one.
    pub(crate) fn new((single, batch): (usize, usize)) -> Result<Self> {
        let batch = (batch != single).then(|| Pool::new(batch)).transpose()?;
        Ok(Pools { single: Pool::new(single)?, batch, batched: false })
    }

    /// Makes ready for a step of `rows` rows.
    pub(crate) fn choose(&mut self, rows: usize) {
        self.batched = rows > 1;
    }

    /// The pool of the step.
    pub(crate) fn chosen(&self) -> &Pool {
        self.batch.as_ref().filter(|_| self.batched).unwrap_or(&self.single)
    }

    /// The pool with the most threads: for work outside of steps.
    pub(crate) fn largest(&self) -> &Pool {
        self.batch.as_ref().filter(|batch| batch.threads() > self.single.threads()).unwrap_or(&self.single)
    }

    /// Threads for steps of one row, and of more.
    pub(crate) fn threads(&self) -> (usize, usize) {
        (self.single.threads(), self.batch.as_ref().unwrap_or(&self.single).threads())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_gets_the_threads_of_its_phase() {
        for (single, batch) in [(1, 3), (3, 1), (2, 2)] {
            let mut pools = Pools::new((single, batch)).unwrap();
            assert_eq!(pools.threads(), (single, batch));
            assert_eq!(pools.largest().threads(), single.max(batch));
            for (rows, threads) in [(1, single), (2, batch), (512, batch), (1, single)] {
                pools.choose(rows);
                assert_eq!(pools.chosen().threads(), threads, "{rows} rows with {single} and {batch} threads");
            }
        }
        assert!(Pools::new((1, 0)).is_err() && Pools::new((0, 1)).is_err());
    }
}
