//! What the server asks of the scheduler, and what it gets back.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::grammar::Grammar;
use crate::generation::{TextOptions, TextStream, begin};
use crate::sample::{Sampler, TokenLogprobs};
use crate::session::{Course, End};
use crate::tokens::Tokenizer;
use crate::{Error, Result};

use std::sync::Arc;

/// Pieces of text that wait for a reader. A sequence whose reader lags behind so far pauses.
const PIECES: usize = 64;

/// A text to generate. Everything that can be refused has been checked before it is made.
pub struct Job {
    pub(super) prompt: Vec<u32>,
    pub(super) sampler: Sampler,
    pub(super) stream: TextStream<Arc<Tokenizer>>,
    pub(super) course: Course,
    /// How many of the likeliest tokens are told beside each token, if any.
    pub(super) logprobs: Option<usize>,
    /// What the text must match.
    pub(super) grammar: Option<Grammar>,
    /// After this it is ended, wherever it is.
    pub(super) deadline: Option<Instant>,
    pub(super) arrived: Instant,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) done: oneshot::Sender<std::result::Result<Outcome, Failure>>,
}

/// The reader's end of a [`Job`]. Dropping it cancels the job within one step.
pub struct Ticket {
    /// Ends when the outcome is known.
    pub events: mpsc::Receiver<Event>,
    /// The outcome.
    pub done: oneshot::Receiver<std::result::Result<Outcome, Failure>>,
}

impl Ticket {
    /// The outcome, once `events` has ended.
    ///
    /// # Errors
    /// The job failed, or its scheduler is gone.
    pub async fn outcome(&mut self) -> std::result::Result<Outcome, Failure> {
        (&mut self.done).await.unwrap_or_else(|_| Err(Failure::Broken("the scheduler has ended".into())))
    }
}

/// What can be asked for beyond [`TextOptions`].
#[derive(Default)]
pub struct JobOptions {
    /// How many of the likeliest tokens are told beside each token, if any.
    pub logprobs: Option<usize>,
    /// What the text must match.
    pub grammar: Option<Grammar>,
    /// The longest it may take, waiting included.
    pub timeout: Option<Duration>,
}

impl Job {
    /// A job that continues `prompt`, for a model of `vocab` tokens, and the end that reads it.
    ///
    /// # Errors
    /// The options are out of range. The prompt is checked when it is queued.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        prompt: Vec<u32>,
        text: &TextOptions,
        vocab: usize,
        options: JobOptions,
    ) -> Result<(Self, Ticket)> {
        if text.limit == Some(0) {
            return Err(Error::Usage("0 tokens to produce: ask for 1 or more".into()));
        }
        let (sampler, stream) = begin(tokenizer, &prompt, text, vocab)?;
        let (events, reader) = mpsc::channel(PIECES);
        let (done, outcome) = oneshot::channel();
        let arrived = Instant::now();
        let job = Job {
            prompt,
            sampler,
            stream,
            course: Course::new(text.limit, text.ignore_end),
            logprobs: options.logprobs,
            grammar: options.grammar,
            deadline: options.timeout.and_then(|timeout| arrived.checked_add(timeout)),
            arrived,
            events,
            done,
        };
        Ok((job, Ticket { events: reader, done: outcome }))
    }

    /// Nobody waits for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }
}

/// How a job goes on.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// It has a slot.
    Started,
    /// More text.
    Piece(Piece),
}

/// Text that is complete, and the tokens that it is made of where these were asked for.
#[derive(Debug, Default, PartialEq)]
pub struct Piece {
    /// The text.
    pub text: String,
    /// Its tokens.
    pub logprobs: Vec<TokenLogprobs>,
}

/// How a job went.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// Why it ended: [`End::Interrupted`] at its deadline and when the server stops.
    pub end: End,
    /// The last of the text.
    pub rest: Piece,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those that were in the cache already.
    pub cached_tokens: usize,
    /// Tokens produced, end token left out.
    pub tokens: usize,
}

/// Why a job has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server stops and takes no more work.
    Stopping,
    /// Its time was over before it got a slot.
    Late,
    /// The text can't go on: the reason, for the user.
    Impossible(String),
    /// The device or the scheduler failed.
    Broken(String),
}
