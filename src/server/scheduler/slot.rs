//! One sequence of the KV cache and the text that is written with it.

use std::time::Instant;

use tokio::sync::mpsc::error::TrySendError;

use super::super::job::{Event, Failure, Job, Outcome, Piece};
use super::super::metrics::Metrics;
use crate::Result;
use crate::sample::{TokenLogprobs, token_logprobs};
use crate::session::End;

/// A place for a text.
pub(super) struct Slot {
    /// Tokens whose keys and values are in the cache, at positions 0, 1, …
    cached: Vec<u32>,
    /// When it was last given away.
    pub(super) used: u64,
    run: Option<Run>,
}

/// A text that is being written.
struct Run {
    job: Job,
    /// The token drawn last, which is to be run.
    next: Option<u32>,
    /// Prompt tokens that were in the cache.
    kept: usize,
    /// What the reader has no room for yet. The text pauses meanwhile.
    unsent: Option<Event>,
    /// Tokens whose text is not complete, for readers who want tokens.
    pending: Vec<TokenLogprobs>,
    last_token: Option<Instant>,
}

/// What a token is drawn from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// All logits.
    Logits(&'a [f32]),
    /// Nothing: the token with the largest logit is known, and [`Slot::takes_the_largest`].
    Largest(u32),
}

/// What came of a draw.
pub(super) enum Drawn {
    GoesOn,
    Ends(End),
}

impl Slot {
    /// An empty slot of `context` positions.
    pub(super) fn new(context: usize) -> Self {
        Slot { cached: Vec::with_capacity(context), used: 0, run: None }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.run.is_some()
    }

    #[cfg(test)]
    pub(super) fn cached(&self) -> &[u32] {
        &self.cached
    }

    /// Tokens that the cache and `prompt` begin with.
    pub(super) fn common(&self, prompt: &[u32]) -> usize {
        self.cached.iter().zip(prompt).take_while(|(a, b)| a == b).count()
    }

    /// Begins a job, with what the cache has of its prompt. The last token of a prompt always runs, for its logits.
    pub(super) fn admit(&mut self, job: Job, clock: u64, metrics: &Metrics) {
        let kept = self.common(&job.prompt).min(job.prompt.len() - 1);
        self.cached.truncate(kept);
        self.used = clock;
        metrics.admit(&job, kept);
        let mut run = Run { job, next: None, kept, unsent: None, pending: Vec::new(), last_token: None };
        run.send(Event::Started);
        self.run = Some(run);
    }

    /// Ends the text if nobody reads it or its time is over; otherwise hands out what waited for its reader.
    pub(super) fn sweep(&mut self, now: Instant, out_of_time: bool, metrics: &Metrics) {
        let Some(run) = &mut self.run else { return };
        if let Some(event) = run.unsent.take() {
            run.send(event);
        }
        if run.job.is_abandoned() {
            metrics.abandon();
            self.run = None;
        } else if out_of_time || run.job.is_late(now) {
            self.finish(End::Interrupted, metrics);
        }
    }

    /// The token that this slot decodes in the next step, if it does.
    pub(super) fn token_to_run(&mut self) -> Option<u32> {
        let run = self.run.as_mut().filter(|run| run.unsent.is_none())?;
        run.next.take()
    }

    /// The part of the prompt that is not in the cache.
    pub(super) fn unread(&self) -> &[u32] {
        self.run.as_ref().and_then(|run| run.job.prompt.get(self.cached.len()..)).unwrap_or_default()
    }

    /// Position of the next row.
    pub(super) fn position(&self) -> u32 {
        self.cached.len() as u32
    }

    /// `token` is in the cache now.
    pub(super) fn ran(&mut self, token: u32) {
        self.cached.push(token);
    }

    /// Nothing is in the cache.
    pub(super) fn forget(&mut self) {
        self.cached.clear();
    }

    /// Whether the token with the largest logit is the next one, and nobody asks for logits.
    pub(super) fn takes_the_largest(&self) -> bool {
        let takes =
            |job: &Job| job.sampler.options().takes_the_largest() && job.grammar.is_none() && job.logprobs.is_none();
        self.run.as_ref().is_some_and(|run| takes(&run.job))
    }

    /// Draws the next token from `source` and hands out the text that it completes.
    pub(super) fn draw(
        &mut self,
        source: Source<'_>,
        masked: &mut [f32],
        eos: &[u32],
        context: usize,
        metrics: &Metrics,
    ) -> Result<Drawn> {
        let Some(run) = &mut self.run else { return Ok(Drawn::GoesOn) };
        run.time(metrics);
        let job = &mut run.job;
        let drawn = match (source, &mut job.grammar) {
            (Source::Largest(token), _) => job.course.accept(&mut job.sampler, token, eos),
            (Source::Logits(logits), Some(grammar)) => {
                grammar.mask(logits, masked)?;
                job.course.draw(&mut job.sampler, masked, eos)?
            }
            (Source::Logits(logits), None) => job.course.draw(&mut job.sampler, logits, eos)?,
        };
        let Some(token) = drawn else {
            return Ok(Drawn::Ends(End::EndToken));
        };
        let complete = match &mut job.grammar {
            Some(grammar) => grammar.accept(token)?,
            None => false,
        };
        if let (Some(count), Source::Logits(logits)) = (job.logprobs, source) {
            run.pending.push(token_logprobs(logits, token, count)?);
        }
        let step = job.stream.push(token);
        if step.text.is_empty() {
            // The tokens of a stop string are no part of the text.
            if step.stop.is_some() {
                run.pending.clear();
            }
        } else {
            let piece = Piece { text: step.text, logprobs: std::mem::take(&mut run.pending) };
            run.send(Event::Piece(piece));
        }
        if step.stop.is_some() {
            return Ok(Drawn::Ends(End::Stopped));
        }
        if complete {
            return Ok(Drawn::Ends(End::EndToken));
        }
        run.next = Some(token);
        Ok(run.job.course.end(self.cached.len(), context).map_or(Drawn::GoesOn, Drawn::Ends))
    }

    /// Ends the text and frees the slot. What it wrote stays in the cache.
    pub(super) fn finish(&mut self, end: End, metrics: &Metrics) {
        let Some(run) = self.run.take() else { return };
        let mut rest = match run.unsent {
            Some(Event::Piece(piece)) => piece,
            _ => Piece::default(),
        };
        rest.text += &run.job.stream.finish(end != End::Interrupted);
        rest.logprobs.extend(run.pending);
        let outcome = Outcome {
            end,
            rest,
            prompt_tokens: run.job.prompt.len(),
            cached_tokens: run.kept,
            tokens: run.job.course.produced(),
        };
        metrics.request.observe(run.job.arrived.elapsed());
        // Nobody may be left to read it.
        let _ = run.job.done.send(Ok(outcome));
    }

    /// Gives the text up.
    pub(super) fn fail(&mut self, failure: Failure, metrics: &Metrics) {
        if let Some(run) = self.run.take() {
            metrics.fail();
            let _ = run.job.done.send(Err(failure));
        }
    }
}

impl Run {
    /// Hands an event to the reader, or keeps it until there is room. Only one is ever kept: the text pauses then.
    fn send(&mut self, event: Event) {
        if let Err(TrySendError::Full(event)) = self.job.events.try_send(event) {
            self.unsent = Some(event);
        }
    }

    /// Takes note of when tokens come.
    fn time(&mut self, metrics: &Metrics) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            Some(before) => metrics.between_tokens.observe(now - before),
            None => metrics.first_token.observe(now - self.job.arrived),
        }
    }
}
