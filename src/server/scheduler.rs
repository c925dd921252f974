//! Continuous batching: several texts share each step of one model.
//!
//! Each text has a slot, which is one sequence of the KV cache. A step has one row for each slot that decodes, and fills up
//! with pieces of prompts, shared among the slots that still read theirs: so a long prompt never stops the other
//! texts. Rows do not influence each other (see the integer contract in ARCHITECTURE.md), so that a text is the same
//! whatever else is in the step, and the same as that of a [`Session`](crate::session::Session).
//!
//! The idea of scheduling by iterations: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative
//! Models", OSDI 2022.

mod pace;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use trine_backend::{Backend, Row};

use super::job::{Failure, Job};
use super::metrics::Metrics;
use super::queue::Queue;
use crate::engine::Engine;
use crate::{Error, Result};
use pace::Pace;
use slot::{Drawn, Slot, Source};

/// How long the scheduler sleeps when all of its texts wait for their readers.
const READER_POLL: Duration = Duration::from_millis(5);

/// The model's texts, step by step. It runs on a thread of its own.
pub struct Scheduler<B: Backend> {
    engine: Engine<B>,
    queue: Arc<Queue>,
    metrics: Arc<Metrics>,
    slots: Vec<Slot>,
    pace: Pace,
    /// Counts admissions, for the age of what is in a slot.
    clock: u64,
    /// Rows of the step that is being put together.
    rows: Vec<Row>,
    /// The slot of each row whose logits are read, in order.
    readers: Vec<usize>,
    /// Where no reader needs more, the most probable token of each; otherwise none.
    largest: Vec<Option<u32>>,
    /// `[readers, vocab]`.
    logits: Vec<f32>,
    /// `[vocab]`: the logits that a grammar leaves.
    masked: Vec<f32>,
}

impl<B: Backend> Scheduler<B> {
    /// A scheduler with a slot for each of the engine's sequences. Everything that a step needs is allocated here.
    ///
    /// # Errors
    /// A step of the engine can't hold a row and an output for each sequence.
    pub fn new(engine: Engine<B>, queue: Arc<Queue>, metrics: Arc<Metrics>) -> Result<Self> {
        let (vocab, extent) = (engine.config().vocab, *engine.extent());
        let slots = extent.kv.sequences;
        if extent.rows < slots || extent.outputs < slots {
            let (rows, outputs) = (extent.rows, extent.outputs);
            return Err(Error::Usage(format!(
                "{slots} slots need steps of {slots} tokens and outputs: they have {rows} and {outputs}; raise -b"
            )));
        }
        metrics.slots.set(slots as u64);
        Ok(Scheduler {
            slots: (0..slots).map(|_| Slot::new(extent.kv.context)).collect(),
            pace: Pace::new(extent.rows),
            clock: 0,
            rows: Vec::with_capacity(extent.rows),
            readers: Vec::with_capacity(slots),
            largest: Vec::with_capacity(slots),
            logits: vec![0.0; slots * vocab],
            masked: vec![0.0; vocab],
            engine,
            queue,
            metrics,
        })
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine<B> {
        &self.engine
    }

    /// Works until the queue is stopped and all that runs has ended.
    pub fn run(mut self) {
        loop {
            match self.tick() {
                Tick::Stepped => {}
                Tick::ReadersLag => std::thread::sleep(READER_POLL),
                Tick::Idle if self.queue.stopping().is_some() => return,
                Tick::Idle => self.queue.wait(),
            }
        }
    }

    /// One round: ends what nobody waits for, fills free slots from the queue, and takes a step.
    pub fn tick(&mut self) -> Tick {
        self.sweep();
        self.admit();
        self.metrics.busy.set(self.slots.iter().filter(|slot| slot.is_busy()).count() as u64);
        self.metrics.waiting.set(self.queue.len() as u64);
        if self.slots.iter().all(|slot| !slot.is_busy()) {
            return Tick::Idle;
        }
        self.put_together();
        if self.rows.is_empty() {
            return Tick::ReadersLag;
        }
        let start = Instant::now();
        if let Err(error) = self.step() {
            self.break_down(&error);
            return Tick::Stepped;
        }
        self.pace.learn(self.rows.len(), start.elapsed());
        self.metrics.step(self.rows.len(), self.readers.len());
        for output in 0..self.readers.len() {
            self.take(output);
        }
        Tick::Stepped
    }

    /// Ends jobs whose readers have gone, whose time is over, or for which the server's stop has no more time.
    fn sweep(&mut self) {
        let now = Instant::now();
        let stopping = self.queue.stopping();
        for job in self.queue.take_unless(|job| stopping.is_none() && !job.is_abandoned() && !job.is_late(now)) {
            let failure = if stopping.is_some() { Failure::Stopping } else { Failure::Late };
            self.metrics.refuse(&job);
            // A reader that has gone wants no reason.
            let _ = job.done.send(Err(failure));
        }
        let out_of_time = stopping.is_some_and(|until| now >= until);
        for slot in &mut self.slots {
            slot.sweep(now, out_of_time, &self.metrics);
        }
    }

    /// Gives free slots to the jobs that have waited longest: to each the slot that has most of its prompt, and of those
    /// the one unused for longest.
    fn admit(&mut self) {
        while self.slots.iter().any(|slot| !slot.is_busy()) {
            let Some(job) = self.queue.pop() else { return };
            if let Err(failure) = self.check(&job) {
                let _ = job.done.send(Err(failure));
                continue;
            }
            let free = self.slots.iter_mut().filter(|slot| !slot.is_busy());
            let best = free.min_by_key(|slot| (std::cmp::Reverse(slot.common(&job.prompt)), slot.used));
            if let Some(slot) = best {
                self.clock += 1;
                slot.admit(job, self.clock, &self.metrics);
            }
        }
    }

    fn check(&self, job: &Job) -> std::result::Result<(), Failure> {
        let config = self.engine.config();
        crate::session::check_prompt(&job.prompt, self.engine.extent().kv.context, config)
            .map_err(|error| Failure::Impossible(error.to_string()))?;
        match job.prompt.iter().find(|&&token| token as usize >= config.vocab) {
            Some(token) => Err(Failure::Impossible(format!("token {token}: the model has {}", config.vocab))),
            None => Ok(()),
        }
    }

    /// The next step's rows: one for each slot that decodes, then pieces of prompts in fair shares.
    fn put_together(&mut self) {
        self.rows.clear();
        self.readers.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(token) = slot.token_to_run() {
                let (sequence, position) = (index as u32, slot.position());
                self.rows.push(Row { token, sequence, position, output: true });
                self.readers.push(index);
            }
        }
        let mut room = self.pace.prompt_rows(self.rows.len());
        let mut sharers = self.slots.iter().filter(|slot| !slot.unread().is_empty()).count();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let unread = slot.unread();
            if unread.is_empty() || room == 0 {
                continue;
            }
            let count = room.div_ceil(sharers).min(unread.len());
            let (first, ends) = (slot.position(), count == unread.len());
            self.rows.extend(unread[..count].iter().enumerate().map(|(i, &token)| Row {
                token,
                sequence: index as u32,
                position: first + i as u32,
                output: ends && i + 1 == count,
            }));
            if ends {
                self.readers.push(index);
            }
            (room, sharers) = (room - count, sharers - 1);
        }
    }

    fn step(&mut self) -> Result<()> {
        self.engine.step(&self.rows)?;
        for row in &self.rows {
            self.slots[row.sequence as usize].ran(row.token);
        }
        self.read()
    }

    /// Brings what the readers draw from: where the most probable tokens are enough, a device need not send all logits.
    fn read(&mut self) -> Result<()> {
        self.largest.clear();
        if self.readers.is_empty() {
            return Ok(());
        }
        if self.readers.iter().all(|&slot| self.slots[slot].takes_the_largest()) {
            self.largest.resize(self.readers.len(), None);
            self.engine.read_largest(&mut self.largest)?;
            if self.largest.iter().all(Option::is_some) {
                return Ok(());
            }
            // The sampler says what is wrong with logits that leave no token.
            self.largest.clear();
        }
        let vocab = self.engine.config().vocab;
        self.engine.read_logits(&mut self.logits[..self.readers.len() * vocab])
    }

    /// Draws the token that follows output number `output` of the step.
    fn take(&mut self, output: usize) {
        let (config, context) = (self.engine.config(), self.engine.extent().kv.context);
        let source = match self.largest.get(output) {
            Some(&Some(token)) => Source::Largest(token),
            _ => Source::Logits(&self.logits[output * config.vocab..][..config.vocab]),
        };
        let slot = &mut self.slots[self.readers[output]];
        match slot.draw(source, &mut self.masked, &config.eos, context, &self.metrics) {
            Ok(Drawn::GoesOn) => {}
            Ok(Drawn::Ends(end)) => slot.finish(end, &self.metrics),
            Err(error) => slot.fail(Failure::Impossible(error.to_string()), &self.metrics),
        }
    }

    /// The device failed: what is in the cache is not to be relied on.
    fn break_down(&mut self, error: &Error) {
        for slot in &mut self.slots {
            slot.fail(Failure::Broken(error.to_string()), &self.metrics);
            slot.forget();
        }
    }

    /// The tokens in each slot's cache, for tests.
    #[cfg(test)]
    fn cached(&self, slot: usize) -> &[u32] {
        self.slots[slot].cached()
    }
}

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// A step was taken.
    Stepped,
    /// There are texts, and all of them wait for their readers.
    ReadersLag,
    /// There is nothing to do.
    Idle,
}
