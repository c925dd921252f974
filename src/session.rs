//! A session: one sequence on an engine, its prefill and its decode loop.

use std::ops::ControlFlow;

use trine_backend::{Backend, Row};

use crate::engine::Engine;
use crate::model::Config;
use crate::sample::Sampler;
use crate::{Error, Result};

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model produced one of its end tokens.
    EndToken,
    /// A stop string was met, or the caller had enough.
    Stopped,
    /// As many tokens as were asked for.
    Limit,
    /// The context is full.
    ContextFull,
    /// The caller interrupted it.
    Interrupted,
}

/// How a generation goes on and when it ends: the same for the one sequence of a [`Session`] and for the many of a
/// server.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    limit: Option<usize>,
    ignore_end: bool,
    produced: usize,
}

impl Course {
    /// At most `limit` tokens; `ignore_end` treats end tokens as any other.
    pub fn new(limit: Option<usize>, ignore_end: bool) -> Self {
        Course { limit, ignore_end, produced: 0 }
    }

    /// Tokens produced so far, end tokens left out.
    pub fn produced(&self) -> usize {
        self.produced
    }

    /// As many tokens are out as were asked for.
    pub fn is_complete(&self) -> bool {
        self.limit == Some(self.produced)
    }

    /// Draws the next token from `logits` (`[vocab]`) and accepts it; `None` where it is one of the end tokens `eos`.
    ///
    /// # Errors
    /// The logits are unusable.
    pub fn draw(&mut self, sampler: &mut Sampler, logits: &[f32], eos: &[u32]) -> Result<Option<u32>> {
        let token = sampler.sample(logits)?;
        Ok(self.accept(sampler, token, eos))
    }

    /// Accepts a token that was drawn; `None` where it is one of the end tokens `eos`.
    pub(crate) fn accept(&mut self, sampler: &mut Sampler, token: u32, eos: &[u32]) -> Option<u32> {
        if !self.ignore_end && eos.contains(&token) {
            return None;
        }
        sampler.accept(token);
        self.produced += 1;
        Some(token)
    }

    /// Why the token drawn last is not run: `used` of the `context` positions are taken.
    pub fn end(&self, used: usize, context: usize) -> Option<End> {
        match () {
            () if self.is_complete() => Some(End::Limit),
            () if used == context => Some(End::ContextFull),
            () => None,
        }
    }
}

/// Where the logits after the last token of the cache are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logits {
    /// Nowhere: the last token's were not asked for, or the cache was cut.
    Unknown,
    /// On the device alone.
    OnDevice,
    /// In the session.
    Here,
}

/// One sequence: the tokens whose keys and values are in the cache, and the logits after the last of them.
pub struct Session<B: Backend> {
    engine: Engine<B>,
    /// Tokens at positions 0, 1, … of the cache.
    tokens: Vec<u32>,
    /// Where the logits that belong to the last of `tokens` are.
    latest: Logits,
    /// `[vocab]`.
    logits: Vec<f32>,
    /// Rows of the step that is being put together.
    rows: Vec<Row>,
}

/// Whether a prompt can be prefilled: also worth asking before a large model is loaded.
///
/// # Errors
/// It is empty, or longer than the context.
pub fn check_prompt(prompt: &[u32], context: usize, config: &Config) -> Result<()> {
    if prompt.is_empty() {
        return Err(Error::Usage("the prompt has no tokens".into()));
    }
    if prompt.len() > context {
        return Err(Error::Request(format!(
            "the prompt has {} tokens and the context {context}: shorten it or raise -c (the model has {} positions)",
            prompt.len(),
            config.context
        )));
    }
    Ok(())
}

impl<B: Backend> Session<B> {
    /// An empty sequence. Everything that the decode loop needs is allocated here.
    pub fn new(engine: Engine<B>) -> Self {
        let (vocab, extent) = (engine.config().vocab, *engine.extent());
        Session {
            tokens: Vec::with_capacity(extent.kv.context),
            latest: Logits::Unknown,
            logits: vec![0.0; vocab],
            rows: Vec::with_capacity(extent.rows),
            engine,
        }
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine<B> {
        &self.engine
    }

    /// The engine below, to be asked what takes it time.
    pub fn engine_mut(&mut self) -> &mut Engine<B> {
        &mut self.engine
    }

    /// Positions of the sequence.
    pub fn context(&self) -> usize {
        self.engine.extent().kv.context
    }

    /// Tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Logits after the last token of the cache, `[vocab]`.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Forgets all but the first `length` tokens: later tokens overwrite their places.
    pub fn truncate(&mut self, length: usize) {
        if length < self.tokens.len() {
            self.tokens.truncate(length);
            self.latest = Logits::Unknown;
        }
    }

    /// Makes the cache hold exactly `prompt`, in steps of at most the engine's batch size; what it has in
    /// common with the beginning of the cache is kept. Returns how many tokens were computed.
    /// `keep_going` is asked before each step.
    ///
    /// # Errors
    /// The prompt is empty or longer than the context, or the device fails. Where `keep_going` said no,
    /// `None`: the steps done until then stay in the cache.
    pub fn prefill(&mut self, prompt: &[u32], mut keep_going: impl FnMut() -> bool) -> Result<Option<usize>> {
        check_prompt(prompt, self.context(), self.engine.config())?;
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        self.truncate(common);
        if self.tokens.len() == prompt.len() && self.latest == Logits::Unknown {
            // The last token runs again for its logits.
            self.truncate(prompt.len() - 1);
        }
        let start = self.tokens.len();
        while self.tokens.len() < prompt.len() {
            if !keep_going() {
                return Ok(None);
            }
            let done = self.tokens.len();
            let end = prompt.len().min(done + self.engine.extent().rows);
            self.step(&prompt[done..end], end == prompt.len())?;
        }
        self.read_logits()?;
        Ok(Some(prompt.len() - start))
    }

    /// Appends one token and computes the logits after it.
    ///
    /// # Errors
    /// The context is full, or the device fails.
    pub fn advance(&mut self, token: u32) -> Result<()> {
        self.append(token)?;
        self.read_logits()
    }

    /// Appends one token and finds the most probable one after it, which a device can do without sending the logits;
    /// [`Session::logits`] are those from before. `None` where no token is possible.
    ///
    /// # Errors
    /// The context is full, or the device fails.
    pub fn follow(&mut self, token: u32) -> Result<Option<u32>> {
        self.append(token)?;
        let mut next = [None];
        self.engine.read_largest(&mut next)?;
        Ok(next[0])
    }

    fn append(&mut self, token: u32) -> Result<()> {
        if self.tokens.len() == self.context() {
            return Err(Error::Request(format!("the context of {} tokens is full", self.context())));
        }
        self.step(&[token], true)
    }

    /// Brings the last step's logits to the host, if they are not there.
    fn read_logits(&mut self) -> Result<()> {
        if self.latest == Logits::OnDevice {
            self.engine.read_logits(&mut self.logits)?;
            self.latest = Logits::Here;
        }
        Ok(())
    }

    fn step(&mut self, tokens: &[u32], output: bool) -> Result<()> {
        let (first, last) = (self.tokens.len(), tokens.len() - 1);
        self.rows.clear();
        self.rows.extend(tokens.iter().enumerate().map(|(i, &token)| Row {
            token,
            sequence: 0,
            position: (first + i) as u32,
            output: output && i == last,
        }));
        self.latest = Logits::Unknown;
        self.engine.step(&self.rows)?;
        self.tokens.extend_from_slice(tokens);
        if output {
            self.latest = Logits::OnDevice;
        }
        Ok(())
    }

    /// The decode loop: draws a token from the logits, hands it to `on_token`, runs it, and so on, until the
    /// model ends, `limit` tokens are out, the context is full, or `on_token` breaks. End tokens are not
    /// handed out; `ignore_end` treats them as any other.
    ///
    /// # Errors
    /// There was no prefill, the logits are unusable, the device fails, or `on_token` does.
    pub fn generate(
        &mut self,
        sampler: &mut Sampler,
        limit: Option<usize>,
        ignore_end: bool,
        mut on_token: impl FnMut(u32) -> Result<ControlFlow<End>>,
    ) -> Result<End> {
        if self.latest != Logits::Here {
            return Err(Error::Request("nothing to continue: prefill a prompt first".into()));
        }
        let end = self.decode(sampler, Course::new(limit, ignore_end), &mut on_token);
        // Whoever goes on from here finds the logits in their place.
        let read = self.read_logits();
        let end = end?;
        read.map(|()| end)
    }

    fn decode(
        &mut self,
        sampler: &mut Sampler,
        mut course: Course,
        on_token: &mut impl FnMut(u32) -> Result<ControlFlow<End>>,
    ) -> Result<End> {
        if course.is_complete() {
            return Ok(End::Limit);
        }
        // The token that the device has chosen already.
        let mut chosen = None;
        loop {
            let drawn = match chosen.take() {
                Some(token) => course.accept(sampler, token, &self.engine.config().eos),
                None => {
                    // The sampler says what is wrong with logits that leave no token.
                    self.read_logits()?;
                    course.draw(sampler, &self.logits, &self.engine.config().eos)?
                }
            };
            let Some(token) = drawn else {
                return Ok(End::EndToken);
            };
            if let ControlFlow::Break(end) = on_token(token)? {
                return Ok(end);
            }
            if let Some(end) = course.end(self.tokens.len(), self.context()) {
                return Ok(end);
            }
            if sampler.options().takes_the_largest() {
                chosen = self.follow(token)?;
            } else {
                self.advance(token)?;
            }
        }
    }
}
