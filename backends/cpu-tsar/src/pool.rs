//! The thread pool: fork-join for work of a few microseconds.
//!
//! A model forks and joins over a hundred times per token, so the workers spin for a while between runs
//! and only then sleep. A run takes no lock and allocates nothing unless somebody sleeps or panics.
//!
//! A run has one part per worker. Each worker takes its own part (whose data its caches may still hold), then
//! whatever part nobody has begun. So a run never waits for a worker that the system has not let run: on a
//! busy machine, where waking one takes milliseconds, the others do its part.
#![allow(unsafe_code)] // Lends a task to the workers for the length of one run, and slices in disjoint parts.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

use trine_backend::{Error, Result};

use crate::shares::{Left, Shares};

/// Turns of the waiting loop before a thread sleeps: some 0.1 to 0.5 ms, longer than any serial op
/// between two runs, shorter than what a user would notice as a busy core.
const SPINS: usize = 10_000;

/// More threads than any machine that this engine is for has cores.
const MAX_THREADS: usize = 512;

type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// A fixed set of threads that run one task at a time; the thread that calls [`Pool::run`] is one of them.
///
/// It is not `Sync`: runs can neither overlap nor nest (a task that captures the pool does not compile).
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    not_sync: PhantomData<Cell<()>>,
}

/// What the caller and the workers share. The atomics that they wait on are in cache lines of their own.
#[derive(Debug)]
struct Shared {
    /// Number of runs begun; the workers wait for it to change.
    run: CacheLine<AtomicUsize>,
    /// For each part the last run in which somebody took it.
    taken: Vec<CacheLine<AtomicUsize>>,
    /// Parts of the current run that are not finished; the caller waits for 0.
    pending: CacheLine<AtomicUsize>,
    /// The current run's task: points to a `Task` in the frame of [`Pool::run`].
    task: AtomicPtr<()>,
    /// Set when the pool is dropped.
    stop: AtomicBool,
    /// For each worker but the caller: whether it sleeps or is about to.
    asleep: Vec<CacheLine<AtomicBool>>,
    /// Whether the caller sleeps or is about to, and who it is.
    caller_asleep: AtomicBool,
    caller: Mutex<Option<Thread>>,
    /// The first panic of the current run.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What is in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))] // Two lines of 64: adjacent ones are fetched together.
pub(crate) struct CacheLine<T>(pub(crate) T);

impl Pool {
    /// A pool of `threads` workers, the caller included.
    ///
    /// Errors for no threads, for absurdly many, and if the system can't start one.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(Error::Invalid(format!("{threads} threads: the number must be in 1..={MAX_THREADS}")));
        }
        let shared = Arc::new(Shared {
            run: CacheLine::default(),
            taken: (0..threads).map(|_| CacheLine::default()).collect(),
            pending: CacheLine::default(),
            task: AtomicPtr::default(),
            stop: AtomicBool::new(false),
            asleep: (1..threads).map(|_| CacheLine::default()).collect(),
            caller_asleep: AtomicBool::new(false),
            caller: Mutex::default(),
            panic: Mutex::default(),
        });
        let mut pool = Pool { shared, workers: Vec::with_capacity(threads - 1), not_sync: PhantomData };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new().name(format!("cpu-tsar {worker}"));
            // On an error the drop of `pool` ends the workers that have been started.
            let handle = thread.spawn(move || shared.live(worker)).map_err(|error| {
                Error::Device(format!("can't start thread {worker} of {threads}: {error}; use fewer threads"))
            })?;
            pool.workers.push(handle);
        }
        Ok(pool)
    }

    /// Number of workers, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(part)` once for each part in `0..threads`, at the same time as far as the threads get to
    /// run, and returns when all calls have. A thread may be given several parts.
    ///
    /// # Panics
    /// With the first panic of a part, after all have finished.
    pub(crate) fn run(&self, task: Task<'_>) {
        if self.workers.is_empty() {
            return task(0);
        }
        let run = self.shared.start(&task, &self.workers);
        self.shared.work(run, 0);
        self.shared.join();
        let payload = self.shared.take_panic();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Splits `data` into one part per worker, each a multiple of `unit` items but for the last, and calls
    /// `task(start of the part, part)` for each part that is not empty.
    pub(crate) fn split<T: Send>(&self, data: &mut [T], unit: usize, task: impl Fn(usize, &mut [T]) + Sync) {
        let (items, workers) = (data.len(), self.threads());
        let data = DisjointMut::new(data);
        self.run(&|worker| {
            let range = chunk(items, workers, worker, unit);
            if !range.is_empty() {
                // SAFETY: `chunk` gives the workers ranges that do not overlap, and each worker takes
                // its own once.
                task(range.start, unsafe { data.range(range.clone()) });
            }
        });
    }

    /// [`Pool::split`] of two slices of the same length at the same places.
    pub(crate) fn split_two<T: Send>(
        &self,
        first: &mut [T],
        second: &mut [T],
        unit: usize,
        task: impl Fn(usize, &mut [T], &mut [T]) + Sync,
    ) {
        assert_eq!(first.len(), second.len());
        let (items, workers) = (first.len(), self.threads());
        let (first, second) = (DisjointMut::new(first), DisjointMut::new(second));
        self.run(&|worker| {
            let range = chunk(items, workers, worker, unit);
            if !range.is_empty() {
                // SAFETY: `chunk` gives the workers ranges that do not overlap, and each worker takes
                // its own once.
                let parts = unsafe { (first.range(range.clone()), second.range(range.clone())) };
                task(range.start, parts.0, parts.1);
            }
        });
    }

    /// Calls `task(index, part, state)` for each `unit` items of `data`, on whichever worker is free, with that
    /// worker's own of the `states`: for parts whose costs differ.
    pub(crate) fn each<T: Send, S: Send>(
        &self,
        data: &mut [T],
        unit: usize,
        states: &mut [S],
        task: impl Fn(usize, &mut [T], &mut S) + Sync,
    ) {
        let (parts, next) = (data.len() / unit, CacheLine(AtomicUsize::new(0)));
        let take = |_| Some(next.0.fetch_add(1, Ordering::Relaxed)).filter(|&index| index < parts);
        self.each_taken(take, data, unit, states, task);
    }

    /// [`Pool::each`] for parts that are best done in their order: a worker takes those of its own share one after the other. Shares
    /// are cut by what the parts cost.
    pub(crate) fn each_by_cost<T: Send, S: Send>(
        &self,
        shares: &mut Vec<Left>,
        cost: impl Fn(usize) -> usize,
        data: &mut [T],
        unit: usize,
        states: &mut [S],
        task: impl Fn(usize, &mut [T], &mut S) + Sync,
    ) {
        let shares = Shares::by_cost(shares, self.threads(), (0..data.len() / unit).map(&cost));
        self.each_taken(|worker| shares.take(worker), data, unit, states, task);
    }

    /// Calls `task` for the parts that `take` gives each worker until it gives none: each part to one worker, once.
    fn each_taken<T: Send, S: Send>(
        &self,
        take: impl Fn(usize) -> Option<usize> + Sync,
        data: &mut [T],
        unit: usize,
        states: &mut [S],
        task: impl Fn(usize, &mut [T], &mut S) + Sync,
    ) {
        assert!(unit > 0 && data.len().is_multiple_of(unit) && states.len() >= self.threads());
        let (data, states) = (DisjointMut::new(data), DisjointMut::new(states));
        self.run(&|worker| {
            // SAFETY: each part of the run takes the state of its own number, once.
            let state = &mut unsafe { states.range(worker..worker + 1) }[0];
            while let Some(index) = take(worker) {
                // SAFETY: each index is taken by one worker, and the parts do not overlap.
                task(index, unsafe { data.range(index * unit..(index + 1) * unit) }, state);
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.announce(&self.workers);
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks: there is none to pass on.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Publishes a task and wakes the workers; returns the run's number. `task` must stay where it is until
    /// [`Shared::join`].
    fn start(&self, task: &Task<'_>, workers: &[JoinHandle<()>]) -> usize {
        self.task.store(std::ptr::from_ref(task).cast::<()>().cast_mut(), Ordering::Relaxed);
        self.pending.0.store(self.taken.len(), Ordering::Relaxed);
        self.announce(workers)
    }

    /// Begins a run. Sequential consistency between `run` and `asleep`: either this sees that a worker
    /// falls asleep, or that worker sees the run.
    fn announce(&self, workers: &[JoinHandle<()>]) -> usize {
        let run = self.run.0.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        for (asleep, worker) in self.asleep.iter().zip(workers) {
            if asleep.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        run
    }

    /// A worker's life.
    fn live(&self, worker: usize) {
        let asleep = &self.asleep[worker - 1].0;
        let mut last = 0;
        loop {
            wait(|| self.run.0.load(Ordering::SeqCst) != last, || asleep.store(true, Ordering::SeqCst));
            asleep.store(false, Ordering::Relaxed);
            last = self.run.0.load(Ordering::SeqCst);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.work(last, worker);
        }
    }

    /// Does the parts of `run` that nobody has taken, the worker's own first.
    fn work(&self, run: usize, worker: usize) {
        let parts = self.taken.len();
        for part in (worker..parts).chain(0..worker) {
            if !self.take(run, part) {
                continue;
            }
            let task = self.task.load(Ordering::Relaxed).cast::<Task<'_>>();
            // SAFETY: `Pool::run` stored a pointer to its `task` before it began this run (reading the run's
            // number synchronised with that), and it neither returns nor unwinds before the part that was
            // taken above is finished below.
            let task = unsafe { *task };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(part))) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            }
            self.finish();
        }
    }

    /// Whether the part is the caller's to do. A run ends only when all its parts have been taken, so a worker
    /// that comes late, with the number of a run that is over, finds each of them taken then or since.
    fn take(&self, run: usize, part: usize) -> bool {
        let taken = &self.taken[part].0;
        // Looking before exchanging keeps the cache line shared while there is nothing to take.
        let before = run.wrapping_sub(1);
        taken.load(Ordering::Relaxed) == before
            && taken.compare_exchange(before, run, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The end of a part. The last of them wakes the caller.
    fn finish(&self) {
        if self.pending.0.fetch_sub(1, Ordering::SeqCst) == 1 && self.caller_asleep.load(Ordering::SeqCst) {
            // The name stays in its place: a worker that is late here may see that the caller sleeps in the
            // next run, wakes it in vain, and must leave it to be woken again.
            let caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
            caller.as_ref().inspect(|caller| caller.unpark());
        }
    }

    /// Waits until every part is finished.
    fn join(&self) {
        let fall_asleep = || {
            *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
            self.caller_asleep.store(true, Ordering::SeqCst);
        };
        wait(|| self.pending.0.load(Ordering::SeqCst) == 0, fall_asleep);
        self.caller_asleep.store(false, Ordering::Relaxed);
    }

    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Spins until `done`; after [`SPINS`] turns calls `fall_asleep`, which tells whoever makes `done` true to
/// unpark this thread, and parks.
fn wait(done: impl Fn() -> bool, fall_asleep: impl FnOnce()) {
    for _ in 0..SPINS {
        if done() {
            return;
        }
        std::hint::spin_loop();
    }
    fall_asleep();
    while !done() {
        thread::park();
    }
}

/// The part of `items` that is `worker`'s: parts are in order, differ by at most one `multiple`, and
/// start at a multiple of `multiple`; the last ones may be empty.
pub(crate) fn chunk(items: usize, workers: usize, worker: usize, multiple: usize) -> Range<usize> {
    let units = items.div_ceil(multiple);
    let bound = |worker: usize| {
        let (each, rest) = (units / workers, units % workers);
        ((each * worker + rest.min(worker)) * multiple).min(items)
    };
    bound(worker)..bound(worker + 1)
}

/// A slice that several workers may take parts of at the same time.
pub(crate) struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    lent: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for `&mut [T]`; all that sharing it adds is that other threads can take `&mut` parts,
// which moves values of `T` between threads.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    /// Borrows `data` for as long as parts may be taken.
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        DisjointMut { start: data.as_mut_ptr(), len: data.len(), lent: PhantomData }
    }

    /// The items of `range`.
    ///
    /// # Panics
    /// If the range is not within the slice.
    ///
    /// # Safety
    /// Ranges that are held at the same time, by whatever thread, must not overlap.
    #[allow(clippy::mut_from_ref)] // That is its purpose; the contract above makes it sound.
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} items", self.len);
        // SAFETY: the range lies within the slice that is borrowed for 'a, and by this function's contract
        // nobody else holds a part of it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_worker_runs_once_per_run() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            let counts: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            let runs = if threads > 2 { 200 } else { 10_000 };
            for run in 1..=runs {
                pool.run(&|worker| {
                    counts[worker].fetch_add(1, Ordering::Relaxed);
                });
                // All are done, and visible, when `run` returns.
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == run));
            }
        }
    }

    #[test]
    fn a_part_whose_worker_does_not_come_is_done_by_others() {
        let pool = Pool::new(3).unwrap();
        // Part 1 holds its thread until part 2 is done, on whatever threads there are.
        let done = AtomicBool::new(false);
        for _ in 0..100 {
            done.store(false, Ordering::Relaxed);
            pool.run(&|part| match part {
                1 => {
                    while !done.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                }
                2 => done.store(true, Ordering::Relaxed),
                _ => {}
            });
        }
        // A worker that is still busy with the end of the last run does not hold up the next.
        let before = std::thread::current().id();
        let by_caller = AtomicUsize::new(0);
        for _ in 0..1000 {
            pool.run(&|_| {
                by_caller.fetch_add(usize::from(thread::current().id() == before), Ordering::Relaxed);
            });
        }
        assert!(by_caller.into_inner() >= 1000, "the caller has its own part in each run");
    }

    #[test]
    fn sleeping_workers_and_callers_wake() {
        let pool = Pool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(20)); // Longer than the workers spin.
            pool.run(&|worker| {
                if worker > 0 {
                    thread::sleep(Duration::from_millis(20)); // Longer than the caller spins.
                }
                sum.fetch_add(worker, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 9);
    }

    #[test]
    fn panics_reach_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..3 {
            let message = format!("worker {bad} failed");
            let task = |worker| {
                if worker == bad {
                    resume_unwind(Box::new(message.clone()));
                }
            };
            let payload = catch_unwind(AssertUnwindSafe(|| pool.run(&task))).unwrap_err();
            assert_eq!(payload.downcast_ref::<String>(), Some(&message));
        }
        let all = |_| resume_unwind(Box::new(7));
        assert!(catch_unwind(AssertUnwindSafe(|| pool.run(&all))).is_err());
        let count = AtomicUsize::new(0);
        pool.run(&|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 3);
    }

    #[test]
    fn dropping_joins_workers_that_spin_or_sleep() {
        for pause in [0, 30] {
            let pool = Pool::new(4).unwrap();
            pool.run(&|_| {});
            thread::sleep(Duration::from_millis(pause));
            let shared = Arc::downgrade(&pool.shared);
            drop(pool);
            assert!(shared.upgrade().is_none(), "a worker still holds the pool");
        }
    }

    #[test]
    fn a_pool_moves_between_threads() {
        let pool = Pool::new(2).unwrap();
        pool.run(&|_| {});
        let pool = thread::spawn(move || {
            pool.run(&|_| thread::sleep(Duration::from_millis(5)));
            pool
        });
        pool.join().unwrap().run(&|_| {});
    }

    #[test]
    fn thread_counts_out_of_range_are_errors() {
        for threads in [0, MAX_THREADS + 1, usize::MAX] {
            let error = Pool::new(threads).unwrap_err();
            assert!(error.to_string().contains("must be in 1..=512"), "{error}");
        }
    }

    #[test]
    fn chunks_cover_all_items_once() {
        for items in [0, 1, 7, 8, 9, 63, 64, 1000] {
            for workers in 1..9 {
                for multiple in [1, 8, 32] {
                    let mut next = 0;
                    for worker in 0..workers {
                        let range = chunk(items, workers, worker, multiple);
                        assert_eq!(range.start, next);
                        assert!(range.start == items || range.start.is_multiple_of(multiple));
                        assert!(range.len() <= items.div_ceil(multiple).div_ceil(workers) * multiple);
                        next = range.end;
                    }
                    assert_eq!(next, items);
                }
            }
        }
        assert_eq!(chunk(usize::MAX, 2, 1, 1).end, usize::MAX);
    }

    #[test]
    fn split_hands_out_the_whole_slice() {
        let pool = Pool::new(3).unwrap();
        let mut data = vec![0usize; 50];
        pool.split(&mut data, 8, |start, part| {
            assert!(start.is_multiple_of(8));
            part.iter_mut().enumerate().for_each(|(i, value)| *value += start + i);
        });
        assert!(data.iter().enumerate().all(|(i, &value)| i == value));
    }

    #[test]
    fn two_slices_are_split_alike() {
        let pool = Pool::new(3).unwrap();
        let (mut first, mut second) = (vec![0; 50], (0..50).collect::<Vec<_>>());
        pool.split_two(&mut first, &mut second, 8, |start, first, second| {
            assert_eq!((first.len(), second[0]), (second.len(), start));
            first.swap_with_slice(second);
        });
        assert!(first.iter().enumerate().all(|(i, &value)| i == value));
        assert_eq!(second, [0; 50]);
    }

    #[test]
    fn each_part_is_done_once() {
        let pool = Pool::new(3).unwrap();
        let (mut data, mut done) = (vec![0; 5 * 40], [0; 3]);
        pool.each(&mut data, 5, &mut done, |index, part, done| {
            assert_eq!(part.len(), 5);
            part.iter_mut().for_each(|value| *value += index);
            *done += 1;
        });
        assert!(data.iter().enumerate().all(|(i, &value)| i / 5 == value));
        assert_eq!(done.iter().sum::<usize>(), 40);
        pool.each(&mut [], 1, &mut done, |_, _: &mut [u8], _| unreachable!());
    }

    #[test]
    #[should_panic(expected = "3..6 of 5 items")]
    fn parts_are_bounds_checked() {
        let mut data = [0; 5];
        // SAFETY: one part only.
        unsafe { DisjointMut::new(&mut data).range(3..6) };
    }
}
