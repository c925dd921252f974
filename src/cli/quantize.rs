//! `trine quantize`: makes a model small.

use std::time::Instant;

use trine_backend::Backend;

use super::args::{QuantizeArgs, Verbosity};
use super::output::read_text;
use super::progress::Progress;
use super::{Exit, interrupt};
use crate::files::ModelFiles;
use crate::memory::{self, human};
use crate::model::Formats;
use crate::quantize::{Options, quantize};
use crate::tokens::Special;
use crate::{Error, Result};

/// Parts of the work that the bar tells apart.
const STEPS: u64 = 10_000;

/// Runs the subcommand.
pub(super) fn run<B: Backend>(args: &QuantizeArgs, device: &B::Options, verbosity: Verbosity) -> Result<Exit> {
    let files = match args.input.to_str() {
        Some("demo") => ModelFiles::demo()?,
        _ => ModelFiles::open(&args.input)?,
    };
    let calibration = args.calibrate.as_deref().map(|path| {
        let mut ids = files.require_tokenizer()?.encode(&read_text(Some(path))?, Special::PROMPT)?;
        ids.truncate(args.calibrate_tokens.get());
        Ok::<_, Error>(ids)
    });
    let options = Options {
        formats: Formats { body: args.to, head: args.head, ..Formats::default() },
        method: args.method,
        calibration: calibration.transpose()?,
    };
    interrupt::catch()?;
    let start = Instant::now();
    let mut progress = Progress::new("quantising", STEPS, verbosity);
    let mut told = 0;
    let report = quantize::<B>(device, &files, &args.output, &options, &mut |status| {
        let at = (status.done * STEPS as f64) as u64;
        progress.advance(at.saturating_sub(told), |_, _| format!("layer {} of {}", status.layer, status.layers));
        told = told.max(at);
        !interrupt::requested()
    })?;
    drop(progress);
    let text = match report.tokens {
        0 => String::new(),
        tokens => format!(", {tokens} tokens of calibration"),
    };
    verbosity.remark(&format!(
        "{}: weights {}, head {}, {} from {}{text}",
        args.output.display(),
        report.body,
        report.head,
        human(report.bytes),
        human(files.checkpoint.total_bytes())
    ));
    verbosity.detail(|| {
        let peak = memory::peak().map_or(String::new(), |peak| format!(", peak memory {}", human(peak)));
        format!("took {:.1} s{peak}", start.elapsed().as_secs_f64())
    });
    Ok(Exit::Success)
}
