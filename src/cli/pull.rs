//! `trine pull`: models from the Hugging Face hub.

use super::args::{PullArgs, Verbosity};
use super::output::print_line;
use super::progress::Progress;
use super::{Exit, interrupt};
use crate::backend;
use crate::hub::{Reference, Settings, choose, find};
use crate::{Error, Result};

/// Runs the subcommand.
///
/// # Errors
/// The name is none, this program has no network client, or the download fails.
pub(super) fn run(args: &PullArgs, verbosity: Verbosity) -> Result<Exit> {
    let reference = Reference::parse(&args.model).ok_or_else(|| {
        let problem = "is no model on the hub: give OWNER/NAME, OWNER/NAME:FILE or a format as OWNER/NAME:Q4_K_M";
        Error::Usage(format!("'{}' {problem}", args.model))
    })?;
    let settings = Settings::from_env()?;
    if !settings.offline && !download(&settings, &reference, verbosity)? {
        return Ok(Exit::Interrupted);
    }
    print_line(&find(&settings.cache, &reference)?.display().to_string())?;
    Ok(Exit::Success)
}

/// Whether it came to its end; an interrupt leaves what is there for the next time.
fn download(settings: &Settings, reference: &Reference, verbosity: Verbosity) -> Result<bool> {
    interrupt::catch()?;
    let mut progress = Progress::new("downloading", 0, verbosity);
    let mut pick = |names: &[&str]| {
        let choice = choose(names, reference.choice.as_deref());
        let files = choice.map_err(|problem| Error::file(reference.to_string(), problem))?.files();
        verbosity.detail(|| format!("files of {}: {}", reference.repo, files.join(", ")));
        Ok(files)
    };
    backend::pull(settings, reference, &mut pick, &mut |done, total| {
        progress.set_bytes(done, total);
        !interrupt::requested()
    })
}
