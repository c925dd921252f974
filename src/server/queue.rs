//! The jobs that wait for a slot: filled by connections, emptied by the scheduler's thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::job::Job;

/// A line of limited length.
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

struct State {
    waiting: VecDeque<Job>,
    /// Set once the server stops: until then running jobs may finish.
    stop: Option<Instant>,
}

/// Why a job isn't taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// So many jobs wait already.
    Full(usize),
    /// The server stops.
    Stopping,
}

impl Queue {
    /// A line in which `limit` jobs can wait.
    pub fn new(limit: usize) -> Self {
        let waiting = VecDeque::with_capacity(limit.min(1024));
        Queue { state: Mutex::new(State { waiting, stop: None }), changed: Condvar::new(), limit }
    }

    /// Puts a job at the end of the line.
    ///
    /// # Errors
    /// The line is full of jobs that somebody waits for, or the server stops.
    pub fn push(&self, job: Job) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.stop.is_some() {
            return Err(Refusal::Stopping);
        }
        if state.waiting.len() >= self.limit {
            state.waiting.retain(|job| !job.is_abandoned());
            if state.waiting.len() >= self.limit {
                return Err(Refusal::Full(state.waiting.len()));
            }
        }
        state.waiting.push_back(job);
        self.changed.notify_one();
        Ok(())
    }

    /// The first of the line.
    pub(super) fn pop(&self) -> Option<Job> {
        self.lock().waiting.pop_front()
    }

    /// Jobs in the line.
    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// From now on nothing is taken; what runs may go on for `grace`.
    pub fn stop(&self, grace: Duration) {
        let now = Instant::now();
        self.lock().stop.get_or_insert(now.checked_add(grace).unwrap_or(now));
        self.changed.notify_all();
    }

    /// Until when running jobs may go on, where the server stops.
    pub(super) fn stopping(&self) -> Option<Instant> {
        self.lock().stop
    }

    /// Waits for a job, or for the server to stop.
    pub(super) fn wait(&self) {
        let state = self.lock();
        drop(self.changed.wait_while(state, |state| state.waiting.is_empty() && state.stop.is_none()));
    }

    /// The jobs of which `wanted` says no.
    pub(super) fn take_unless(&self, wanted: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut state = self.lock();
        if state.waiting.iter().all(&wanted) {
            return Vec::new();
        }
        let (kept, taken) = state.waiting.drain(..).partition(wanted);
        state.waiting = kept;
        Vec::from(taken)
    }

    /// A panic while the lock is held leaves the line as it is: each change is one call.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
