//! Text generation: prompt ids in, text out, with everything between them in one place.
//!
//! ```text
//! ids --Session::prefill--> logits --Sampler--> id --Detokenizer--> text --StopStrings--> text that can be shown
//! ```

use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use trine_backend::Backend;

use crate::Result;
use crate::model::SamplingDefaults;
use crate::sample::{Sampler, SamplerOptions};
use crate::session::{End, Session};
use crate::stop::{Step, StopStrings};
use crate::tokens::{Detokenizer, Tokenizer};

/// How a model's makers sample, where they say so; [`SamplerOptions::default`] for the rest.
pub fn default_sampling(model: &SamplingDefaults) -> SamplerOptions {
    let base = SamplerOptions::default();
    SamplerOptions {
        temperature: match model.do_sample {
            Some(false) => 0.0,
            _ => model.temperature.unwrap_or(base.temperature),
        },
        top_k: model.top_k.map_or(base.top_k, |k| usize::try_from(k).unwrap_or(usize::MAX)),
        top_p: model.top_p.unwrap_or(base.top_p),
        repeat_penalty: model.repetition_penalty.unwrap_or(base.repeat_penalty),
        ..base
    }
}

/// Ids to the text that can be shown, up to the first stop string.
pub struct TextStream<T: Borrow<Tokenizer>> {
    detokenizer: Detokenizer<T>,
    stops: StopStrings,
}

impl<T: Borrow<Tokenizer>> TextStream<T> {
    /// A stream at the start of a text that ends with any of `stops`; special tokens have no text.
    ///
    /// # Errors
    /// A stop string is empty.
    pub fn new(tokenizer: T, stops: Vec<String>) -> Result<Self> {
        Ok(TextStream { detokenizer: Detokenizer::new(tokenizer, true), stops: StopStrings::new(stops)? })
    }

    /// Makes the text go on from that of `prompt`, which is not shown: the first token keeps the space before it, which
    /// tokenizers of SentencePiece's kind leave out at the start of a text.
    pub fn continue_from(&mut self, prompt: &[u32]) {
        for &token in prompt {
            self.detokenizer.push(token);
        }
    }

    /// Takes one id and returns the text that can be shown now, and whether a stop string was met.
    pub fn push(&mut self, token: u32) -> Step {
        self.stops.push(self.detokenizer.push(token))
    }

    /// Ends the text and returns the rest of it. A character whose last bytes never came is U+FFFD if `mark_broken`,
    /// and left out otherwise.
    pub fn finish(mut self, mark_broken: bool) -> String {
        let rest = if mark_broken { self.detokenizer.finish() } else { String::new() };
        let mut text = self.stops.push(&rest).text;
        text.push_str(&self.stops.finish());
        text
    }
}

/// What a generation is asked for.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// The most tokens to produce; without it until the model ends or the context is full.
    pub limit: Option<usize>,
    /// Texts that end it, none of which is shown.
    pub stop: Vec<String>,
    /// Whether end tokens are tokens as any other.
    pub ignore_end: bool,
    /// Whether the text goes on from the prompt's, rather than being a text of its own, as an answer is.
    pub continues: bool,
    /// How tokens are chosen.
    pub sampling: SamplerOptions,
}

/// How a generation went.
#[derive(Clone, Copy, Debug)]
pub struct TextOutcome {
    /// Why it ended.
    pub end: End,
    /// Tokens produced, end token left out.
    pub tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that had to be computed; the others were in the cache.
    pub computed: usize,
    /// Time that they took.
    pub prefill: Duration,
    /// Decoding steps taken: the last token is produced, but not run.
    pub steps: usize,
    /// Time that producing the tokens took.
    pub decode: Duration,
}

impl TextOutcome {
    /// Prompt tokens computed per second; `None` where there were none.
    pub fn prefill_speed(&self) -> Option<f64> {
        speed(self.computed, self.prefill)
    }

    /// Decoding steps per second; `None` where there were none.
    pub fn decode_speed(&self) -> Option<f64> {
        speed(self.steps, self.decode)
    }
}

fn speed(count: usize, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}

/// The sampler and the text of a generation that continues `prompt`, for a model of `vocab` tokens. The penalties' window
/// starts with the prompt.
///
/// # Errors
/// The options are out of range.
pub fn begin<T: Borrow<Tokenizer>>(
    tokenizer: T,
    prompt: &[u32],
    options: &TextOptions,
    vocab: usize,
) -> Result<(Sampler, TextStream<T>)> {
    let mut sampler = Sampler::new(options.sampling.clone(), vocab)?;
    let mut stream = TextStream::new(tokenizer, options.stop.clone())?;
    prompt.iter().for_each(|&token| sampler.accept(token));
    if options.continues {
        stream.continue_from(prompt);
    }
    Ok((sampler, stream))
}

/// Continues `prompt` and hands the text to `on_text`, piece by piece as it becomes complete.
///
/// `interrupted` is asked before each prefill step and after each token; what is complete by then is handed out still.
///
/// # Errors
/// The options are out of range, the prompt is empty or longer than the context, the device fails, or `on_text` does.
pub fn generate<B: Backend>(
    session: &mut Session<B>,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &TextOptions,
    interrupted: impl Fn() -> bool,
    mut on_text: impl FnMut(&str) -> Result<()>,
) -> Result<TextOutcome> {
    let (mut sampler, mut stream) = begin(tokenizer, prompt, options, session.engine().config().vocab)?;

    let start = Instant::now();
    let computed = session.prefill(prompt, || !interrupted())?;
    let mut outcome = TextOutcome {
        end: End::Interrupted,
        tokens: 0,
        prompt_tokens: prompt.len(),
        computed: computed.unwrap_or(0),
        prefill: start.elapsed(),
        steps: 0,
        decode: Duration::ZERO,
    };
    if computed.is_none() {
        return Ok(outcome);
    }

    let start = Instant::now();
    outcome.end = session.generate(&mut sampler, options.limit, options.ignore_end, |token| {
        outcome.tokens += 1;
        let step = stream.push(token);
        if !step.text.is_empty() {
            on_text(&step.text)?;
        }
        Ok(match step.stop {
            Some(_) => ControlFlow::Break(End::Stopped),
            None if interrupted() => ControlFlow::Break(End::Interrupted),
            None => ControlFlow::Continue(()),
        })
    })?;
    outcome.decode = start.elapsed();
    outcome.steps = session.tokens().len() - prompt.len();
    let rest = stream.finish(outcome.end != End::Interrupted);
    if !rest.is_empty() {
        on_text(&rest)?;
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::ModelFiles;
    use crate::tokens::Special;

    /// The text of `ids` through a stream, and whether it met a stop string.
    fn stream(tokenizer: &Tokenizer, ids: &[u32], stops: &[&str], mark_broken: bool) -> (String, bool) {
        let stops = stops.iter().map(|stop| stop.to_string()).collect();
        let mut stream = TextStream::new(tokenizer, stops).unwrap();
        let (mut text, mut stopped) = (String::new(), false);
        for &id in ids {
            let step = stream.push(id);
            text.push_str(&step.text);
            stopped |= step.stop.is_some();
        }
        (text + &stream.finish(mark_broken), stopped)
    }

    #[test]
    fn a_stream_ends_before_the_stop_string() {
        let files = ModelFiles::demo().unwrap();
        let tokenizer = files.require_tokenizer().unwrap();
        let text = "Once upon a time there was a fox — a very small one.";
        let ids = tokenizer.encode(text, Special::TEXT).unwrap();
        assert_eq!(stream(tokenizer, &ids, &[], true), (text.to_owned(), false));
        assert_eq!(stream(tokenizer, &ids, &["a fo", "time th"], true), ("Once upon a ".to_owned(), true));
        // The beginning of a stop string that never came is text.
        assert_eq!(stream(tokenizer, &ids, &["one.\n"], true), (text.to_owned(), false));
    }

    #[test]
    fn a_broken_character_is_marked_or_left_out() {
        let files = ModelFiles::demo().unwrap();
        let tokenizer = files.require_tokenizer().unwrap();
        let mut ids = tokenizer.encode("a\u{1f98a}", Special::TEXT).unwrap();
        assert!(ids.len() > 2, "the character takes several tokens");
        ids.pop();
        assert_eq!(stream(tokenizer, &ids, &[], true).0, "a\u{fffd}");
        assert_eq!(stream(tokenizer, &ids, &[], false).0, "a");
    }

    #[test]
    fn what_the_makers_say_comes_first() {
        let model = SamplingDefaults { temperature: Some(0.7), top_p: Some(0.9), ..SamplingDefaults::default() };
        let options = default_sampling(&model);
        let base = SamplerOptions::default();
        assert_eq!(options, SamplerOptions { temperature: 0.7, top_p: 0.9, ..base.clone() });
        let model = SamplingDefaults { do_sample: Some(false), top_k: Some(u64::MAX), ..model };
        let options = default_sampling(&model);
        assert_eq!((options.temperature, options.top_k), (0.0, usize::MAX));
        assert_eq!(default_sampling(&SamplingDefaults::default()), base);
    }

    #[test]
    fn speeds_need_time_and_tokens() {
        assert_eq!(speed(10, Duration::from_millis(500)), Some(20.0));
        assert_eq!(speed(0, Duration::from_secs(1)), None);
        assert_eq!(speed(5, Duration::ZERO), None);
    }
}
