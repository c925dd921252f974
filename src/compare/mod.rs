//! The same prompt on several backends: how far apart are logits, greedy tokens, and the result of every op?
//!
//! Every backend is compared with the first one, in three ways:
//!
//! - the logits of the prompt, each backend running as it does for a user;
//! - greedy tokens after it, up to the first that differs, and how close the two candidates were;
//! - every op of the prompt's first tokens, run one by one by a [`Recorder`]: its *own* difference, where all inputs
//!   are the first backend's, and the *drift*, where each backend goes on from its own results.
//!
//! An op that is wrong stands out by its own difference, in every layer and before anything that follows from it.

mod ops;
mod recorder;

use std::sync::Arc;

use trine_backend::{Backend, DeviceInfo, Row};

use crate::backend::{self, Compiled, Job, Settings};
use crate::engine::{Engine, EngineOptions};
use crate::files::ModelFiles;
use crate::perplexity::outputs;
use crate::session::check_prompt;
use crate::{Error, Result};

pub use ops::{Difference, OpDifference, Part};
pub use recorder::{Buf, Mode, Options, Recorded, Recorder, Tap, locked};

/// Tokens of the prompt whose ops are looked at: all their results are kept, some 10 MB a token for a model of 7 B.
pub const TRACED: usize = 16;

/// Candidates of each greedy step that are kept of the first backend.
const CANDIDATES: usize = 64;

/// What is run on each backend.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The model.
    pub files: &'a ModelFiles,
    /// Formats of weights and KV cache; sizes are those that the request needs.
    pub options: EngineOptions,
    /// What is set of the devices: each backend takes what it knows.
    pub settings: &'a Settings,
    /// The prompt.
    pub prompt: &'a [u32],
    /// Tokens to decode greedily, at most as many as the context has room for.
    pub generate: usize,
}

/// A backend that ran the request.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its name.
    pub name: &'static str,
    /// What it ran on.
    pub device: DeviceInfo,
}

/// What a backend made otherwise than the first one.
#[derive(Clone, Debug)]
pub struct Differences {
    /// The backend.
    pub side: Side,
    /// In the logits of the prompt's last tokens.
    pub logits: LogitDifference,
    /// In greedy decoding.
    pub greedy: Greedy,
    /// In each op, in the order of the graph.
    pub ops: Vec<OpDifference>,
}

/// How far apart logits are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitDifference {
    /// Tokens of the prompt whose logits were compared: as many of the last as 64 MiB hold.
    pub positions: usize,
    /// The size of the differences.
    pub difference: Difference,
    /// Where in the prompt the largest is.
    pub position: usize,
    /// The token id of that logit.
    pub token: u32,
}

/// How far greedy decoding went the same way.
#[derive(Clone, Debug, PartialEq)]
pub struct Greedy {
    /// Tokens that are the same.
    pub same: usize,
    /// The first that is not.
    pub fork: Option<Fork>,
}

/// The first greedy token that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Fork {
    /// The first backend's choice.
    pub first: u32,
    /// The other backend's.
    pub other: u32,
    /// How much larger the first backend's logit of its choice is than that of the other's; at least so much if the
    /// other's is none of its likeliest.
    pub gap_first: f32,
    /// How much larger the other backend's logit of its own choice is than that of the first's.
    pub gap_other: f32,
}

/// All backends against the first.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The first backend.
    pub first: Side,
    /// The others.
    pub others: Vec<Differences>,
}

/// Runs the request on the backends of these names and compares all others with the first. `progress` is told each
/// name before it runs.
///
/// # Errors
/// [`Error::Usage`] for fewer than two backends and names that this build does not have; whatever fails on a
/// backend, with its name.
pub fn compare(request: &Request<'_>, names: &[String], mut progress: impl FnMut(&str)) -> Result<Comparison> {
    let [first, others @ ..] = names else { return Err(too_few()) };
    if others.is_empty() {
        return Err(too_few());
    }
    for name in names {
        backend::on(name, Known)?;
    }
    let context = request.options.context_of(&request.files.config)?;
    check_prompt(request.prompt, context, &request.files.config)?;
    let mut run = |name: &String, leader: Option<&Run>| {
        progress(name);
        let run = backend::on(name, Measure { request, leader })?;
        run.map_err(|error| on_backend(name, error))
    };
    let first = run(first, None)?;
    let others =
        others.iter().map(|name| Ok(first.differences(run(name, Some(&first))?, request))).collect::<Result<_>>()?;
    Ok(Comparison { first: first.side, others })
}

fn too_few() -> Error {
    let names = backend::COMPILED.join(", ");
    Error::Usage(format!("--backends: two are needed to compare; this build has {names}, oracle"))
}

/// The same error, saying where it happened. Wrong calls stay what they are.
fn on_backend(name: &str, error: Error) -> Error {
    match error {
        Error::Usage(line) => Error::Usage(line),
        error => Error::Request(format!("{name}: {error}")),
    }
}

/// Nothing: for the error that unknown names give.
struct Known;

impl Job for Known {
    type Output = ();

    fn run<B: Compiled>(self) {}
}

/// What one backend made of the request.
struct Run {
    side: Side,
    /// `[outputs, vocab]`: logits of the prompt's last tokens.
    logits: Vec<f32>,
    steps: Vec<GreedyStep>,
    /// Results of every op, from the backend's own inputs.
    drift: Arc<Vec<Recorded>>,
    /// The same, from the first backend's inputs; empty for the first.
    own: Vec<Recorded>,
}

/// A greedy token and what might have come in its place.
struct GreedyStep {
    /// The likeliest tokens with their logits, the chosen one first.
    candidates: Vec<(u32, f32)>,
    /// The logit of the first backend's token.
    of_first: Option<f32>,
}

struct Measure<'a> {
    request: &'a Request<'a>,
    leader: Option<&'a Run>,
}

impl Job for Measure<'_> {
    type Output = Result<Run>;

    fn run<B: Compiled>(self) -> Result<Run> {
        let options = B::options(self.request.settings)?;
        let (side, logits, steps) = self.as_a_user::<B>(&options)?;
        let (drift, own) = self.op_by_op::<B>(&options)?;
        Ok(Run { side, logits, steps, drift: Arc::new(drift), own })
    }
}

impl Measure<'_> {
    /// Prefill and greedy decoding, as `trine run` does them.
    fn as_a_user<B: Backend>(&self, device: &B::Options) -> Result<(Side, Vec<f32>, Vec<GreedyStep>)> {
        let Request { files, prompt, generate, options, .. } = *self.request;
        let (vocab, tokens) = (files.config.vocab, prompt.len());
        let context =
            options.context_of(&files.config)?.min(tokens.saturating_add(generate).saturating_sub(1).max(tokens));
        let outputs = outputs(vocab).min(tokens);
        let options = EngineOptions { context: Some(context), batch: tokens, outputs, ..options };
        let mut engine = Engine::<B>::load(device, files, &options, &mut |_| {})?;
        let side = Side { name: B::NAME, device: engine.backend().info() };

        let output = |position: usize| position + outputs >= tokens;
        engine.step(&rows(prompt, 0, output))?;
        let mut logits = vec![0.0; outputs * vocab];
        engine.read_logits(&mut logits)?;

        let mut last = logits[logits.len() - vocab..].to_vec();
        let mut steps: Vec<GreedyStep> = Vec::new();
        for position in tokens..tokens.saturating_add(generate) {
            let first = self.leader.and_then(|leader| leader.steps.get(steps.len()));
            let step = GreedyStep::new(&last, first);
            let token = step.token();
            steps.push(step);
            // Tokens after a fork can't be compared, and the token after the last place needs none.
            if position >= context || first.is_some_and(|first| first.token() != token) {
                break;
            }
            engine.step(&rows(&[token], position, |_| true))?;
            engine.read_logits(&mut last)?;
        }
        Ok((side, logits, steps))
    }

    /// Every op of the prompt's first tokens: from the backend's own inputs, then from the leader's.
    fn op_by_op<B: Backend>(&self, device: &B::Options) -> Result<(Vec<Recorded>, Vec<Recorded>)> {
        let Request { files, prompt, options, .. } = *self.request;
        let prompt = &prompt[..prompt.len().min(TRACED)];
        let size = prompt.len();
        let options = EngineOptions { context: Some(size), batch: size, outputs: size, ..options };
        let device = recorder::Options { inner: device.clone(), tap: Tap::default() };
        let mut engine = Engine::<Recorder<B>>::load(&device, files, &options, &mut |_| {})?;
        let mut record = |mode: Mode| -> Result<Vec<Recorded>> {
            *locked(&device.tap) = mode;
            engine.step(&rows(prompt, 0, |_| true))?;
            Ok(match std::mem::take(&mut *locked(&device.tap)) {
                Mode::Off => Vec::new(),
                Mode::Record(own) | Mode::Follow { own, .. } => own,
            })
        };
        let drift = record(Mode::Record(Vec::new()))?;
        let own = match self.leader {
            None => Vec::new(),
            Some(leader) => record(Mode::Follow { leader: Arc::clone(&leader.drift), own: Vec::new() })?,
        };
        Ok((drift, own))
    }
}

/// The rows of a step of `tokens` from position `first` of sequence 0 on.
fn rows(tokens: &[u32], first: usize, output: impl Fn(usize) -> bool) -> Vec<Row> {
    let row = |(i, &token): (usize, &u32)| {
        let position = first + i;
        Row { token, sequence: 0, position: position as u32, output: output(position) }
    };
    tokens.iter().enumerate().map(row).collect()
}

impl GreedyStep {
    /// The choice that `logits` lead to; `first` is the first backend's of the same step.
    fn new(logits: &[f32], first: Option<&GreedyStep>) -> Self {
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |id: &u32| logits[*id as usize];
        // The largest first; of equal ones the lower id, as the sampler does.
        let order = |a: &u32, b: &u32| logit(b).total_cmp(&logit(a)).then(a.cmp(b));
        if ids.len() > CANDIDATES {
            ids.select_nth_unstable_by(CANDIDATES - 1, order);
            ids.truncate(CANDIDATES);
        }
        ids.sort_unstable_by(order);
        let candidates = ids.iter().map(|id| (*id, logit(id))).collect();
        GreedyStep { candidates, of_first: first.map(|first| logit(&first.token())) }
    }

    fn token(&self) -> u32 {
        self.candidates[0].0
    }

    /// Its logit of `token`, or of the least likely candidate where the token is none of them.
    fn logit(&self, token: u32) -> f32 {
        let found = self.candidates.iter().find(|(id, _)| *id == token);
        found.or(self.candidates.last()).map_or(f32::NAN, |(_, logit)| *logit)
    }
}

impl Run {
    /// How `other` differs from this run.
    fn differences(&self, other: Run, request: &Request<'_>) -> Differences {
        Differences {
            logits: self.logit_difference(&other, request),
            greedy: self.greedy(&other),
            ops: ops::differences(&self.drift, &other.own, &other.drift, request.files.config.layers),
            side: other.side,
        }
    }

    fn logit_difference(&self, other: &Run, request: &Request<'_>) -> LogitDifference {
        let vocab = request.files.config.vocab;
        let positions = self.logits.len() / vocab;
        let difference = Difference::of(&self.logits, &other.logits);
        let position = request.prompt.len() - positions + difference.at / vocab;
        LogitDifference { positions, difference, position, token: (difference.at % vocab) as u32 }
    }

    fn greedy(&self, other: &Run) -> Greedy {
        let mut pairs = self.steps.iter().zip(&other.steps);
        let same = pairs.clone().take_while(|(a, b)| a.token() == b.token()).count();
        let fork = pairs.find(|(a, b)| a.token() != b.token()).map(|(a, b)| Fork {
            first: a.token(),
            other: b.token(),
            gap_first: a.candidates[0].1 - a.logit(b.token()),
            gap_other: b.candidates[0].1 - b.of_first.unwrap_or(f32::NAN),
        });
        Greedy { same, fork }
    }
}

#[cfg(test)]
mod tests;
