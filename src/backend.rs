//! The one place that names features: it picks the backend that this program runs on, and what else it can do.
//!
//! Another backend is its feature in Cargo.toml, a branch in the choice below (a faster device first: the
//! default must come last, or asking for another one would silently change nothing), a line in
//! [`COMPILED`] and what of [`Settings`] it takes.

use trine_backend::{Backend, Result};

use crate::hub;

cfg_if::cfg_if! {
    if #[cfg(feature = "cpu-tsar")] {
        /// The backend that the program runs on.
        pub type Active = trine_cpu_tsar::CpuTsar;
    } else {
        compile_error!("trine needs a backend: build it with --features cpu-tsar");
    }
}

/// The names of the backends that were compiled in.
pub const COMPILED: &[&str] = &[
    #[cfg(feature = "cpu-tsar")]
    "cpu-tsar",
];

/// What a user can set of a device, whatever the backend.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// CPU threads; the backend's own choice without it.
    pub threads: Option<usize>,
    /// Instruction set to use rather than the best one found, by its name in `trine doctor`.
    pub isa: Option<String>,
}

/// The active backend's options.
///
/// # Errors
/// A setting names something that this build or machine does not have.
pub fn options(settings: &Settings) -> Result<<Active as Backend>::Options> {
    #[cfg(feature = "cpu-tsar")]
    {
        let isa = settings.isa.as_deref().map(str::parse).transpose()?;
        Ok(trine_cpu_tsar::Options { threads: settings.threads, isa })
    }
}

/// Whether this program can download models: it was built with the feature `pull`.
pub const CAN_PULL: bool = cfg!(feature = "pull");

/// Downloads those files of a model on the hub that `choose` picks into the cache. False where `progress` stopped it.
///
/// # Errors
/// This program was built without the feature `pull`, or the download fails.
pub fn pull(
    settings: &hub::Settings,
    reference: &hub::Reference,
    choose: &mut hub::Choose<'_>,
    progress: &mut hub::Progress<'_>,
) -> crate::Result<bool> {
    #[cfg(feature = "pull")]
    {
        let usual = trine_hub::Options::new(&settings.endpoint);
        let options = trine_hub::Options {
            token: settings.token.clone(),
            authorities: settings.authorities.clone(),
            patience: settings.patience.unwrap_or(usual.patience),
            ..usual
        };
        let folder = settings.cache.join(reference.folder());
        trine_hub::Client::new(&options)?.pull(&reference.repo, &reference.revision, &folder, choose, progress)
    }
    #[cfg(not(feature = "pull"))]
    {
        let _ = (settings, choose, progress);
        Err(crate::Error::Request(format!(
            "{reference} can't be downloaded: this program was built without a network client, get one with \
             `cargo install --path . --features pull`"
        )))
    }
}

#[cfg(feature = "pull")]
impl From<trine_hub::Error> for crate::Error {
    fn from(error: trine_hub::Error) -> Self {
        crate::Error::Request(error.to_string())
    }
}
