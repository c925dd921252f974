//! The one place that names backend features: it picks the backend that this program runs on.
//!
//! Another backend is its feature in Cargo.toml, a branch in the choice below (a faster device first: the
//! default must come last, or asking for another one would silently change nothing), a line in
//! [`COMPILED`] and what of [`Settings`] it takes.

use trine_backend::{Backend, Result};

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
    /// Kernel to multiply with rather than the best one, by its name in `trine doctor --kernels`.
    pub kernel: Option<String>,
}

/// The active backend's options.
///
/// # Errors
/// A setting names something that this build or machine does not have.
pub fn options(settings: &Settings) -> Result<<Active as Backend>::Options> {
    #[cfg(feature = "cpu-tsar")]
    {
        let isa = settings.isa.as_deref().map(str::parse).transpose()?;
        let options = trine_cpu_tsar::Options { threads: settings.threads, isa, kernel: settings.kernel.clone() };
        options.check()?;
        Ok(options)
    }
}
