//! Progress bars on stderr.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trine_backend::Backend;

use super::args::Verbosity;
use crate::Result;
use crate::engine::{Engine, EngineOptions};
use crate::files::ModelFiles;
use crate::memory::{self, human};

/// What takes no longer than this is done before anybody reads a bar.
const PATIENCE: Duration = Duration::from_millis(500);

/// A bar that shows itself when the work takes long enough, on a terminal.
pub(super) struct Progress {
    label: &'static str,
    total: u64,
    done: u64,
    start: Instant,
    visible: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar for `total` units of work.
    pub(super) fn new(label: &'static str, total: u64, verbosity: Verbosity) -> Self {
        Progress { label, total, done: 0, start: Instant::now(), visible: verbosity.shows_progress(), bar: None }
    }

    /// `units` more are done; `message` says how it stands.
    pub(super) fn advance(&mut self, units: u64, message: impl FnOnce(u64, u64) -> String) {
        self.done += units;
        if !self.visible || (self.bar.is_none() && self.start.elapsed() < PATIENCE) {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{prefix} [{bar:30}] {msg}").expect("the template is sound");
            ProgressBar::with_draw_target(Some(self.total), ProgressDrawTarget::stderr())
                .with_style(style.progress_chars("=> "))
                .with_prefix(self.label)
        });
        bar.set_message(message(self.done, self.total));
        bar.set_position(self.done);
    }

    /// `done` of `total` bytes are there, of which neither was known before.
    pub(super) fn set_bytes(&mut self, done: u64, total: u64) {
        if self.total != total {
            self.total = total;
            self.bar.iter().for_each(|bar| bar.set_length(total));
        }
        self.done = done;
        self.advance_bytes(0);
    }

    /// As [`Progress::advance`], in bytes.
    pub(super) fn advance_bytes(&mut self, bytes: u64) {
        self.advance(bytes, |done, total| format!("{} of {}", human(done), human(total)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Brings a model to a device, under a progress bar.
pub(super) fn load<B: Backend>(
    device: &B::Options,
    files: &ModelFiles,
    options: &EngineOptions,
    verbosity: Verbosity,
) -> Result<Engine<B>> {
    let mut progress = Progress::new("loading", files.checkpoint.total_bytes(), verbosity);
    let start = Instant::now();
    let engine = Engine::<B>::load(device, files, options, &mut |bytes| progress.advance_bytes(bytes))?;
    drop(progress);
    engine.plan().requantised.iter().for_each(|line| verbosity.remark(line));
    verbosity.detail(|| {
        let (plan, info) = (engine.plan(), engine.backend().info());
        let facts: String = info.facts.iter().map(|(name, fact)| format!(", {name} {fact}")).collect();
        let peak = memory::peak().map_or(String::new(), |peak| format!(", peak memory {}", human(peak)));
        format!(
            "backend {} on {}{facts}\nmodel {}: weights {}, head {}, context {}, {} in all, loaded in {:.2} s{peak}",
            B::NAME,
            info.name,
            files.path.display(),
            plan.body_format,
            plan.head_format,
            engine.extent().kv.context,
            human(plan.total()),
            start.elapsed().as_secs_f64()
        )
    });
    Ok(engine)
}
