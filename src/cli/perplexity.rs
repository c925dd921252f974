//! `trine perplexity`: how well a model predicts a text.

use serde_json::json;
use trine_backend::Backend;

use super::Exit;
use super::args::{PerplexityArgs, PerplexityOutput, Verbosity};
use super::output::{print_json, print_line, read_text};
use super::progress::{self, Progress};
use crate::Result;
use crate::engine::EngineOptions;
use crate::perplexity::{outputs, perplexity};
use crate::tokens::Special;

/// Runs the subcommand.
pub(super) fn run<B: Backend>(args: &PerplexityArgs, device: &B::Options, verbosity: Verbosity) -> Result<Exit> {
    let files = args.model.open()?;
    let tokenizer = files.require_tokenizer()?;
    let mut text = read_text(args.file.as_deref())?;
    if let Some((end, _)) = args.chars.and_then(|chars| text.char_indices().nth(chars)) {
        text.truncate(end);
    }
    let ids = tokenizer.encode(&text, Special::PROMPT)?;
    let options =
        EngineOptions { context: Some(args.ctx_size), outputs: outputs(files.config.vocab), ..args.formats.engine() };
    let mut engine = progress::load::<B>(device, &files, &options, verbosity)?;
    let mut progress = Progress::new("measuring", (ids.len().saturating_sub(1) / args.ctx_size) as u64, verbosity);
    let result = perplexity(&mut engine, &ids, args.ctx_size, |_, _, result| {
        progress.advance(1, |done, all| format!("{done} of {all} windows, perplexity {:.3}", result.value()));
    })?;
    drop(progress);
    match args.output {
        PerplexityOutput::Text => print_line(&format!(
            "perplexity {:.3} ± {:.3} ({} targets, windows of {}, {} tokens in the text)",
            result.value(),
            result.error(),
            result.targets,
            args.ctx_size,
            ids.len()
        ))?,
        PerplexityOutput::Json => print_json(&json!({
            "perplexity": result.value(),
            "error": result.error(),
            "mean_negative_log_likelihood": result.mean,
            "targets": result.targets,
            "window": args.ctx_size,
            "tokens": ids.len(),
            "weights": engine.plan().body_format.to_string(),
            "head": engine.plan().head_format.to_string(),
            "kv": args.formats.kv.name(),
        }))?,
    }
    Ok(Exit::Success)
}
