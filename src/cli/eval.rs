//! `trine eval`: how far a model, or a number format, is from another one.

use serde_json::{Value, json};
use trine_backend::Backend;

use super::Exit;
use super::args::{EvalArgs, EvalOutput, FormatArgs, ModelArgs, Verbosity};
use super::output::{print, print_json};
use super::perplexity::{Measuring, describe, read, same_tokens};
use super::progress;
use crate::Result;
use crate::engine::{Engine, EngineOptions};
use crate::eval::perplexity::Perplexity;
use crate::eval::{
    Against, Comparison, Description, Estimate, Outcome, SavedLogits, Windows, Writer, hash, measure, outputs,
};
use crate::files::ModelFiles;
use crate::tokens::Special;

/// Runs the subcommand.
///
/// # Errors
/// As [`measure`]; the models' tokens differ; a model or a file can't be read.
pub(super) fn run<B: Backend>(args: &EvalArgs, device: &B::Options, verbosity: Verbosity) -> Result<Exit> {
    let files = args.model.open()?;
    let text = read(&args.text)?;
    let ids = files.require_tokenizer()?.encode(&text, Special::PROMPT)?;
    let windows = args.text.windows();
    windows.check(ids.len(), options(&args.formats, &files, &windows).context_of(&files.config)?)?;
    // What may be refused comes before what takes time.
    let mut saved = args.against_logits.as_deref().map(SavedLogits::open).transpose()?;
    saved.iter().try_for_each(|saved| saved.check(&ids, &windows, files.config.vocab))?;
    let other = args.other();
    let other_files = match &other {
        Some((model, _)) if args.against.is_some() => Some(model.open()?),
        _ => None,
    };
    if let Some(other) = &other_files {
        same_tokens(&ids, other, &text)?;
    }

    let load = |files: &ModelFiles, formats: &FormatArgs| {
        progress::load::<B>(device, files, &options(formats, files, &windows), verbosity)
    };
    let mut engine = load(&files, &args.formats)?;
    let mut other_engine =
        other.as_ref().map(|(_, formats)| load(other_files.as_ref().unwrap_or(&files), formats)).transpose()?;
    let side = Side::new(&args.model, &args.formats, &engine);
    let description = || {
        let (tokens, vocab) = (ids.len(), files.config.vocab);
        Description { model: side.to_string(), vocab, tokens, hash: hash(&ids), windows }
    };
    let mut writer = args.save_logits.as_deref().map(|path| Writer::create(path, &description())).transpose()?;
    let reference = match (&other, &other_engine, &saved) {
        (Some((model, formats)), Some(engine), _) => Some(Side::new(model, formats, engine)),
        (.., Some(saved)) => Some(Side { model: saved.description().model.clone(), formats: None }),
        _ => None,
    };
    let against = match (&mut other_engine, &mut saved) {
        (Some(engine), _) => Against::Model(engine),
        (_, Some(saved)) => Against::Saved(saved),
        _ => Against::Nothing,
    };
    let mut progress = Measuring::new(&windows, ids.len(), verbosity);
    let outcome =
        measure(&mut engine, against, writer.as_mut(), &ids, &windows, |_, _, so_far| progress.advance(so_far))?;
    drop(progress);
    writer.map_or(Ok(()), Writer::finish)?;
    let report = Report { side, reference, outcome, windows, tokens: ids.len() };
    match args.output {
        EvalOutput::Md => print(&report.markdown())?,
        EvalOutput::Json => print_json(&report.json())?,
    }
    Ok(Exit::Success)
}

fn options(formats: &FormatArgs, files: &ModelFiles, windows: &Windows) -> EngineOptions {
    EngineOptions { context: Some(windows.window), outputs: outputs(files.config.vocab), ..formats.engine() }
}

/// A model as it is shown.
struct Side {
    model: String,
    /// Weights, head and KV cache; not known apart for saved logits.
    formats: Option<[String; 3]>,
}

impl Side {
    fn new<B: Backend>(model: &ModelArgs, formats: &FormatArgs, engine: &Engine<B>) -> Self {
        let plan = engine.plan();
        let formats = [plan.body_format.to_string(), plan.head_format.to_string(), formats.kv.name().to_owned()];
        Side { model: model.name(), formats: Some(formats) }
    }

    fn json(&self, perplexity: &Perplexity) -> Value {
        let format = |n: usize| self.formats.as_ref().map(|formats| &formats[n]);
        json!({
            "model": self.model,
            "weights": format(0),
            "head": format(1),
            "kv": format(2),
            "perplexity": perplexity.value(),
            "error": perplexity.error(),
            "mean_negative_log_likelihood": perplexity.mean,
        })
    }

    fn row(&self, perplexity: &Perplexity) -> String {
        let model = self.model.replace('|', "\\|");
        let formats = self.formats.as_ref().map_or_else(|| " | | ".into(), |formats| formats.join(" | "));
        format!("| {model} | {formats} | {:.4} ± {:.4} |\n", perplexity.value(), perplexity.error())
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.model)?;
        match &self.formats {
            Some([weights, head, kv]) => write!(f, " (saved: weights {weights}, head {head}, KV {kv})"),
            None => Ok(()),
        }
    }
}

struct Report {
    side: Side,
    reference: Option<Side>,
    outcome: Outcome,
    windows: Windows,
    tokens: usize,
}

impl Report {
    fn compared(&self) -> Option<(&Side, &Comparison)> {
        self.reference.as_ref().zip(self.outcome.comparison.as_ref())
    }

    fn json(&self) -> Value {
        let estimate = |one: Estimate| json!({ "value": one.value, "error": one.error });
        let comparison = self.compared().map(|(_, found)| {
            json!({
                "perplexity_ratio": estimate(found.ratio()),
                "mean_negative_log_likelihood_difference": estimate(found.difference),
                "kl_divergence": {
                    "mean": found.divergence.value,
                    "error": found.divergence.error,
                    "median": found.divergence_median,
                    "p99": found.divergence_99,
                    "max": found.divergence_most,
                },
                "top1_agreement": estimate(found.agreement),
            })
        });
        json!({
            "tokens": self.tokens,
            "targets": self.outcome.perplexity.targets,
            "window": self.windows.window,
            "stride": self.windows.stride,
            "skip": self.windows.skip,
            "model": self.side.json(&self.outcome.perplexity),
            "against": self.compared().map(|(side, found)| side.json(&found.perplexity)),
            "comparison": comparison,
        })
    }

    fn markdown(&self) -> String {
        let mut text = "| model | weights | head | KV | perplexity |\n|---|---|---|---|---:|\n".to_owned();
        text += &self.side.row(&self.outcome.perplexity);
        if let Some((side, found)) = self.compared() {
            text += &side.row(&found.perplexity);
            text += "\n| the first beside the second | |\n|---|---:|\n";
            let (ratio, share) = (found.ratio(), found.agreement);
            let divergence = found.divergence;
            for (name, value) in [
                ("perplexity, ratio", format!("{:.5} ± {:.5}", ratio.value, ratio.error)),
                ("KL divergence, mean", format!("{:.6} ± {:.6}", divergence.value, divergence.error)),
                ("KL divergence, median", format!("{:.6}", found.divergence_median)),
                ("KL divergence, 99 %", format!("{:.6}", found.divergence_99)),
                ("KL divergence, maximum", format!("{:.6}", found.divergence_most)),
                ("same likeliest token", format!("{:.2} ± {:.2} %", 100.0 * share.value, 100.0 * share.error)),
            ] {
                text += &format!("| {name} | {value} |\n");
            }
        }
        let (targets, windows) = (self.outcome.perplexity.targets, describe(&self.windows));
        text + &format!("\n{targets} targets, {windows}, {} tokens in the text.\n", self.tokens)
    }
}
