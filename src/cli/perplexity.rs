//! `trine perplexity`: how well a model predicts a text.

use serde_json::json;
use trine_backend::Backend;

use super::Exit;
use super::args::{PerplexityArgs, PerplexityOutput, TextArgs, Verbosity};
use super::output::{print, print_json, print_line, read_text};
use super::progress::{self, Progress};
use crate::Result;
use crate::engine::EngineOptions;
use crate::eval::Windows;
use crate::eval::perplexity::{Perplexity, outputs, perplexity};
use crate::files::ModelFiles;
use crate::tokens::Special;

/// Runs the subcommand.
pub(super) fn run<B: Backend>(args: &PerplexityArgs, device: &B::Options, verbosity: Verbosity) -> Result<Exit> {
    let files = args.model.open()?;
    let text = read(&args.text)?;
    let ids = files.require_tokenizer()?.encode(&text, Special::PROMPT)?;
    let windows = args.text.windows();
    let options =
        EngineOptions { context: Some(windows.window), outputs: outputs(files.config.vocab), ..args.formats.engine() };
    windows.check(ids.len(), options.context_of(&files.config)?)?;
    let mut engine = progress::load::<B>(device, &files, &options, verbosity)?;
    let mut progress = Measuring::new(&windows, ids.len(), verbosity);
    let result = perplexity(&mut engine, &ids, windows, |_, _, result| progress.advance(result))?;
    drop(progress);
    let (weights, head) = (engine.plan().body_format.to_string(), engine.plan().head_format.to_string());
    match args.output {
        PerplexityOutput::Text => print_line(&format!(
            "perplexity {:.3} ± {:.3} ({} targets, {}, {} tokens in the text)",
            result.value(),
            result.error(),
            result.targets,
            describe(&windows),
            ids.len()
        ))?,
        PerplexityOutput::Md => print(&format!(
            "| model | weights | head | KV | windows | targets | perplexity |\n|---|---|---|---|---|---:|---:|\n\
             | {} | {weights} | {head} | {} | {} | {} | {:.3} ± {:.3} |\n",
            args.model.name().replace('|', "\\|"),
            args.formats.kv.name(),
            describe(&windows),
            result.targets,
            result.value(),
            result.error(),
        ))?,
        PerplexityOutput::Json => print_json(&json!({
            "model": args.model.name(),
            "perplexity": result.value(),
            "error": result.error(),
            "mean_negative_log_likelihood": result.mean,
            "targets": result.targets,
            "window": windows.window,
            "stride": windows.stride,
            "skip": windows.skip,
            "tokens": ids.len(),
            "weights": weights,
            "head": head,
            "kv": args.formats.kv.name(),
        }))?,
    }
    Ok(Exit::Success)
}

/// The text to measure with.
pub(super) fn read(args: &TextArgs) -> Result<String> {
    let mut text = read_text(args.file.as_deref())?;
    if let Some((end, _)) = args.chars.and_then(|chars| text.char_indices().nth(chars)) {
        text.truncate(end);
    }
    Ok(text)
}

/// How a text is cut up, in words.
pub(super) fn describe(windows: &Windows) -> String {
    let mut text = format!("windows of {}", windows.window);
    if windows.stride != windows.window {
        text += &format!(" every {}", windows.stride);
    }
    if windows.skip > 0 {
        text += &format!(", the first {} of each left out", windows.skip);
    }
    text
}

/// A bar over windows.
pub(super) struct Measuring(Progress);

impl Measuring {
    /// For a text of so many tokens.
    pub(super) fn new(windows: &Windows, tokens: usize, verbosity: Verbosity) -> Self {
        Measuring(Progress::new("measuring", windows.count(tokens) as u64, verbosity))
    }

    /// One window more is done.
    pub(super) fn advance(&mut self, so_far: &Perplexity) {
        self.0.advance(1, |done, all| format!("{done} of {all} windows, perplexity {:.3}", so_far.value()));
    }
}

/// The tokens of `text` in a second model, which must be those of the first.
///
/// # Errors
/// They are not (says where they part).
pub(super) fn same_tokens(ids: &[u32], other: &ModelFiles, text: &str) -> Result<()> {
    let others = other.require_tokenizer()?.encode(text, Special::PROMPT)?;
    if others == ids {
        return Ok(());
    }
    let at = ids.iter().zip(&others).take_while(|(a, b)| a == b).count();
    Err(crate::Error::file(
        &other.path,
        format_args!("its tokenizer makes other tokens of the text, from token {at} on: only the same can be compared"),
    ))
}
