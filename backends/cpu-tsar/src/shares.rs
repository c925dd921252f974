//! Work that is handed out in pieces: everyone begins with a share of its own, and who is done helps the others.
//!
//! On cores that others use too equal shares do not take equal times. So a share is cut into pieces: its worker takes them
//! from the front, where one follows the other in memory and may still be in its cache from the step before, and who has
//! none left takes them from the ends of the others' shares.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::{CacheLine, chunk};

/// What is left of a worker's share: the first piece in the low half, and the one after the last in the high half.
#[derive(Debug, Default)]
pub(crate) struct Left(CacheLine<AtomicU64>);

impl Left {
    fn set(&mut self, pieces: Range<usize>) {
        let [start, end] = [pieces.start, pieces.end].map(|piece| u32::try_from(piece).expect("pieces are few"));
        *self.0.0.get_mut() = u64::from(start) | u64::from(end) << 32;
    }

    /// Takes the first piece, or the last.
    fn take(&self, first: bool) -> Option<usize> {
        // Nothing is passed on by it but the number: a run's begin and end order everything else.
        let taken = self.0.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            let (start, end) = (left as u32, (left >> 32) as u32);
            (start < end).then(|| if first { left + 1 } else { left - (1 << 32) })
        });
        taken.ok().map(|left| if first { left as u32 as usize } else { (left >> 32) as usize - 1 })
    }
}

/// The shares of a task's workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares<'a>(&'a [Left]);

impl<'a> Shares<'a> {
    /// Cuts pieces `0..pieces` into equal shares for `workers`. `memory` grows with the workers, and not after.
    pub(crate) fn new(memory: &'a mut Vec<Left>, workers: usize, pieces: usize) -> Self {
        let shares = of(memory, workers);
        for (worker, share) in shares.iter_mut().enumerate() {
            share.set(chunk(pieces, workers, worker, 1));
        }
        Shares(shares)
    }

    /// Cuts pieces of different `costs` into shares that cost as much as each other, as far as whole pieces can.
    pub(crate) fn by_cost(
        memory: &'a mut Vec<Left>,
        workers: usize,
        costs: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Self {
        let (total, pieces) = (costs.clone().sum::<usize>(), costs.len());
        let (shares, mut costs) = (of(memory, workers), costs.peekable());
        let (mut end, mut spent) = (0, 0);
        for (worker, share) in shares.iter_mut().enumerate() {
            let (start, limit) = (end, total * (worker + 1) / workers);
            // A piece is of the share that its middle is in.
            while let Some(cost) = costs.next_if(|cost| spent + cost / 2 < limit || worker + 1 == workers) {
                (end, spent) = (end + 1, spent + cost);
            }
            share.set(start..end);
        }
        debug_assert_eq!(end, pieces);
        Shares(shares)
    }

    /// A piece that nobody has taken: of the worker's own share, or else of the next one that has any.
    pub(crate) fn take(&self, worker: usize) -> Option<usize> {
        let (before, from) = self.0.split_at(worker);
        let (own, after) = from.split_first()?;
        own.take(true).or_else(|| after.iter().chain(before).find_map(|share| share.take(false)))
    }
}

/// The shares of so many workers, whatever they are.
fn of(memory: &mut Vec<Left>, workers: usize) -> &mut [Left] {
    if memory.len() < workers {
        memory.resize_with(workers, Left::default);
    }
    &mut memory[..workers]
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::pool::Pool;

    #[test]
    fn who_is_done_takes_from_the_ends_of_others() {
        let mut memory = Vec::new();
        let shares = Shares::new(&mut memory, 3, 8);
        assert_eq!([0; 4].map(|worker| shares.take(worker)), [Some(0), Some(1), Some(2), Some(5)]);
        assert_eq!([1, 2, 2, 2, 2].map(|worker| shares.take(worker)), [Some(3), Some(6), Some(7), Some(4), None]);
        // The same memory serves the next task, with whatever number of workers.
        let shares = Shares::new(&mut memory, 2, 3);
        assert_eq!([1, 1, 1, 1, 0].map(|worker| shares.take(worker)), [Some(2), Some(1), Some(0), None, None]);
        assert_eq!(Shares::new(&mut memory, 4, 0).take(3), None);
    }

    #[test]
    fn shares_cost_as_much_as_each_other() {
        let mut memory = Vec::new();
        let first = |costs: &[usize], workers: usize, memory: &mut Vec<Left>| -> Vec<Option<usize>> {
            let shares = Shares::by_cost(memory, workers, costs.iter().copied());
            (0..workers).map(|worker| shares.take(worker)).collect()
        };
        assert_eq!(first(&[4, 4, 4, 1, 1, 1, 1], 2, &mut memory), [Some(0), Some(2)]);
        assert_eq!(first(&[1, 1, 1, 1, 4, 4], 3, &mut memory), [Some(0), Some(4), Some(5)]);
        assert_eq!(first(&[9, 1, 1], 3, &mut memory), [Some(0), Some(2), Some(1)]);
        assert_eq!(first(&[0, 0, 5], 2, &mut memory), [Some(0), Some(2)]);
        assert_eq!(first(&[], 2, &mut memory), [None, None]);
        // All that a share has is taken, whatever it costs.
        for costs in [&[0; 5][..], &[3, 0, 0, 7, 1, 0]] {
            let shares = Shares::by_cost(&mut memory, 2, costs.iter().copied());
            let mut taken: Vec<usize> = std::iter::from_fn(|| shares.take(1)).collect();
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..costs.len()));
        }
    }

    #[test]
    fn every_piece_is_taken_once() {
        let pool = Pool::new(4).unwrap();
        let mut memory = Vec::new();
        for pieces in [0, 1, 3, 4, 5, 1000, 20_000] {
            let taken: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
            let shares = Shares::new(&mut memory, 4, pieces);
            pool.run(&|worker| {
                while let Some(piece) = shares.take(worker) {
                    taken[piece].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(taken.iter().all(|taken| taken.load(Ordering::Relaxed) == 1), "{pieces} pieces");
        }
    }
}
