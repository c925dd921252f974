//! `trine run`: one text, or a chat.

use std::io::{self, IsTerminal};
use std::path::Path;

use trine_backend::Backend;

use super::args::{LimitArgs, PromptArgs, RunArgs, SamplingArgs, Verbosity};
use super::chat::Chat;
use super::{Exit, interrupt, output, progress};
use crate::engine::EngineOptions;
use crate::files::ModelFiles;
use crate::generation::{TextOptions, TextOutcome, default_sampling, generate};
use crate::model::SamplingDefaults;
use crate::sample::{SamplerOptions, random_seed};
use crate::session::{End, Session, check_prompt};
use crate::tokens::{ChatTemplate, Message, Special, Tokenizer};
use crate::{Error, Result};

/// Runs the subcommand.
pub(super) fn run<B: Backend>(args: &RunArgs, device: &B::Options, verbosity: Verbosity) -> Result<Exit> {
    let prompt = prompt(&args.prompt)?;
    let files = args.model.open()?;
    let tokenizer = files.require_tokenizer()?;
    let template = template(args, &files)?;
    if prompt.is_none() && (template.is_none() || !io::stdout().is_terminal()) {
        return Err(nothing_to_say(template.is_some()));
    }
    let options = text_options(&args.limits, &args.sampling, &files.config.sampling, template.is_none());
    options.sampling.validate()?;
    let ids =
        prompt.as_deref().map(|prompt| encode(prompt, args.system.as_deref(), template, tokenizer)).transpose()?;

    let engine_options =
        EngineOptions { context: args.sizes.ctx_size, batch: args.sizes.batch_size, ..args.formats.engine() };
    if let Some(ids) = &ids {
        check_prompt(ids, engine_options.context_of(&files.config)?, &files.config)?;
    }
    let mut session = Session::new(progress::load::<B>(device, &files, &engine_options, verbosity)?);
    verbosity.detail(|| describe(&options.sampling));
    interrupt::catch()?;
    match (ids, template) {
        (Some(ids), _) => {
            let echo = prompt.filter(|_| template.is_none() && io::stdout().is_terminal());
            one_text(&mut session, tokenizer, &ids, &options, echo.as_deref(), verbosity)
        }
        (None, Some(template)) => {
            Chat::new(session, tokenizer, template, options, args.system.as_deref(), verbosity).run()
        }
        (None, None) => Err(nothing_to_say(false)),
    }
}

/// The prompt from where it is given; `None` where a terminal is all that there is.
fn prompt(args: &PromptArgs) -> Result<Option<String>> {
    let text = match (args.text.as_ref().or(args.option.as_ref()), &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => without_newline(output::read_text(Some(Path::new(file)))?),
        (None, None) if !io::stdin().is_terminal() => without_newline(output::read_text(None)?),
        (None, None) => return Ok(None),
    };
    if text.is_empty() {
        return Err(Error::Usage("the prompt is empty: give one as argument, with -p, with -f or on stdin".into()));
    }
    Ok(Some(text))
}

/// Editors and `echo` end a text with a newline that nobody means.
fn without_newline(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// The model's chat template, where it is to be used.
fn template<'a>(args: &RunArgs, files: &'a ModelFiles) -> Result<Option<&'a ChatTemplate>> {
    if args.no_chat {
        return Ok(None);
    }
    if files.chat.is_none() && (args.chat || args.system.is_some()) {
        let flag = if args.chat { "--chat" } else { "--system" };
        let path = files.path.display();
        return Err(Error::Usage(format!("{flag}: {path} has no chat template; without it the prompt is continued")));
    }
    Ok(files.chat.as_ref())
}

fn nothing_to_say(can_chat: bool) -> Error {
    Error::Usage(if can_chat {
        "a chat needs a terminal: give a prompt as argument, with -p, with -f or on stdin".into()
    } else {
        "the model has no chat template: give a prompt to continue as argument, with -p, with -f or on stdin".into()
    })
}

/// The prompt's ids: as a user's message where there is a template.
fn encode(
    prompt: &str,
    system: Option<&str>,
    template: Option<&ChatTemplate>,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>> {
    let Some(template) = template else {
        return tokenizer.encode(prompt, Special::PROMPT);
    };
    let system = system.map(|text| Message::new("system", text));
    let messages: Vec<_> = system.into_iter().chain([Message::new("user", prompt)]).collect();
    tokenizer.encode(&template.render(&messages, true, None)?, Special::TEMPLATE)
}

/// What is asked for on the command line, over what the model's makers say.
fn text_options(limits: &LimitArgs, sampling: &SamplingArgs, model: &SamplingDefaults, continues: bool) -> TextOptions {
    let default = default_sampling(model);
    TextOptions {
        limit: limits.n_predict.and_then(|limit| limit.0),
        stop: limits.stop.clone(),
        ignore_end: limits.ignore_eos,
        continues,
        sampling: SamplerOptions {
            temperature: sampling.temp.unwrap_or(default.temperature),
            top_k: sampling.top_k.unwrap_or(default.top_k),
            top_p: sampling.top_p.unwrap_or(default.top_p),
            min_p: sampling.min_p.unwrap_or(default.min_p),
            repeat_penalty: sampling.repeat_penalty.unwrap_or(default.repeat_penalty),
            repeat_last_n: sampling.repeat_last_n.unwrap_or(default.repeat_last_n),
            presence_penalty: sampling.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: sampling.frequency_penalty.unwrap_or(default.frequency_penalty),
            logit_bias: sampling.logit_bias.clone(),
            seed: sampling.seed.unwrap_or_else(random_seed),
        },
    }
}

fn describe(sampling: &SamplerOptions) -> String {
    format!(
        "seed {}, temp {}, top-k {}, top-p {}, min-p {}, repeat penalty {} over {} tokens",
        sampling.seed,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repeat_penalty,
        sampling.repeat_last_n
    )
}

/// Streams one text to stdout.
fn one_text<B: Backend>(
    session: &mut Session<B>,
    tokenizer: &Tokenizer,
    ids: &[u32],
    options: &TextOptions,
    echo: Option<&str>,
    verbosity: Verbosity,
) -> Result<Exit> {
    if let Some(prompt) = echo {
        output::print(prompt)?;
    }
    let outcome = generate(session, tokenizer, ids, options, interrupt::requested, output::print)?;
    if io::stdout().is_terminal() {
        output::print("\n")?;
    }
    if verbosity.shows_summary() {
        output::note(&summary(&outcome));
    }
    Ok(if outcome.end == End::Interrupted { Exit::Interrupted } else { Exit::Success })
}

/// One line on how a generation went.
pub(super) fn summary(outcome: &TextOutcome) -> String {
    let mut line = format!("[{} tokens", outcome.tokens);
    if let Some(speed) = outcome.decode_speed() {
        line += &format!(", {speed:.1} tok/s decode");
    }
    line += &format!(", {} prompt tokens", outcome.prompt_tokens);
    if outcome.computed < outcome.prompt_tokens {
        line += &format!(", {} of them new", outcome.computed);
    }
    if let Some(speed) = outcome.prefill_speed() {
        line += &format!(" at {speed:.0} tok/s");
    }
    let end = match outcome.end {
        End::EndToken => "end of text",
        End::Stopped => "stop text",
        End::Limit => "token limit",
        End::ContextFull => "context full",
        End::Interrupted => "interrupted",
    };
    line + &format!(", ended: {end}]")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_newline_is_left_out() {
        for (text, rest) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("\n", ""), ("a\r", "a\r")] {
            assert_eq!(without_newline(text.into()), rest, "{text:?}");
        }
    }

    #[test]
    fn flags_beat_the_models_defaults() {
        let limits = LimitArgs { n_predict: None, stop: vec!["x".into()], ignore_eos: true };
        let model = SamplingDefaults { temperature: Some(0.7), top_k: Some(5), ..SamplingDefaults::default() };
        let args = SamplingArgs { temp: Some(0.1), seed: Some(3), min_p: Some(0.0), ..SamplingArgs::default() };
        let options = text_options(&limits, &args, &model, true);
        let sampling = &options.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.min_p, sampling.seed), (0.1, 5, 0.0, 3));
        assert_eq!((options.limit, options.ignore_end, options.continues), (None, true, true));
    }

    #[test]
    fn the_summary_tells_speeds_and_end() {
        let outcome = TextOutcome {
            end: End::EndToken,
            tokens: 121,
            prompt_tokens: 512,
            computed: 512,
            prefill: Duration::from_millis(500),
            steps: 120,
            decode: Duration::from_secs(2),
        };
        let line = "[121 tokens, 60.0 tok/s decode, 512 prompt tokens at 1024 tok/s, ended: end of text]";
        assert_eq!(summary(&outcome), line);
        let cached = TextOutcome { computed: 12, end: End::Stopped, tokens: 0, steps: 0, ..outcome };
        assert_eq!(summary(&cached), "[0 tokens, 512 prompt tokens, 12 of them new at 24 tok/s, ended: stop text]");
    }
}
