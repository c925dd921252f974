//! The one place that names features: which backends there are, which of them the program runs on, and what else it
//! can do.
//!
//! Another backend is its feature in Cargo.toml and, here, a branch in the choice of [`Active`] (a faster device
//! first: the default must come last, or asking for another one would silently change nothing), its [`Compiled`]
//! and a line each in [`COMPILED`], [`on`] and [`each_backend!`](crate::each_backend).

use std::path::Path;

use trine_backend::Backend;
use trine_backend::oracle::Oracle;

use crate::{Error, Result};

#[cfg(feature = "cpu-tsar")]
pub use trine_cpu_tsar::CpuTsar;
#[cfg(feature = "cuda-orin")]
pub use trine_cuda_orin::CudaOrin;
#[cfg(feature = "wgpu")]
pub use trine_wgpu::Wgpu;

use crate::hub;

cfg_if::cfg_if! {
    if #[cfg(feature = "cuda-orin")] {
        /// The backend that the program runs on.
        pub type Active = CudaOrin;
    } else if #[cfg(feature = "wgpu")] {
        /// The backend that the program runs on.
        pub type Active = Wgpu;
    } else if #[cfg(feature = "cpu-tsar")] {
        /// The backend that the program runs on.
        pub type Active = CpuTsar;
    } else {
        compile_error!("trine needs a backend: build it with --features cpu-tsar, wgpu or cuda-orin");
    }
}

/// The names of the backends that were compiled in, the active one first.
pub const COMPILED: &[&str] = &[
    #[cfg(feature = "cuda-orin")]
    CudaOrin::NAME,
    #[cfg(feature = "wgpu")]
    Wgpu::NAME,
    #[cfg(feature = "cpu-tsar")]
    CpuTsar::NAME,
];

/// What a user can set of a device, whatever the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// CPU threads; the backend's own choice without it.
    pub threads: Option<usize>,
    /// CPU threads for steps of many tokens; as many as `threads` without it.
    pub threads_batch: Option<usize>,
    /// Instruction set to use rather than the best one found, by its name in `trine doctor`.
    pub isa: Option<String>,
    /// Kernel to multiply with rather than the best one, by its name in `trine doctor --kernels`.
    pub kernel: Option<String>,
    /// Which of several devices: its number, or a part of its name.
    pub device: Option<String>,
}

/// Which [`Settings`] mean something to a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Numbers of threads and the instruction set.
    pub cpu: bool,
    /// The kernel to multiply with.
    pub kernel: bool,
    /// The choice of a device.
    pub device: bool,
}

impl Settings {
    /// Refuses a setting that means nothing to the backends named `names`, which take `takes`.
    ///
    /// # Errors
    /// [`Error::Usage`] with the first such setting.
    pub fn check(&self, takes: Takes, names: &str) -> Result<()> {
        let cpu = [
            ("--threads", self.threads.is_some()),
            ("--threads-batch", self.threads_batch.is_some()),
            ("--isa", self.isa.is_some()),
        ];
        let given = cpu.into_iter().map(|(flag, given)| (flag, given && !takes.cpu));
        let kernel = ("--kernel", self.kernel.is_some() && !takes.kernel);
        let device = ("--device", self.device.is_some() && !takes.device);
        match given.chain([kernel, device]).find(|(_, wrong)| *wrong) {
            Some((flag, _)) => Err(Error::Usage(format!("{flag} means nothing to {names}: leave it out"))),
            None => Ok(()),
        }
    }
}

/// A backend that users can choose by its name and set up with [`Settings`].
pub trait Compiled: Backend {
    /// The settings that it looks at.
    const TAKES: Takes;

    /// Options that open a device which is not here, for its kernels alone: what steps ask for is compiled into `folder`.
    ///
    /// # Errors
    /// [`Error::Usage`] if nothing of the backend depends on the device in that way, or `device` is none.
    fn elsewhere(device: &str, folder: &Path) -> Result<Self::Options> {
        let _ = (device, folder);
        Err(Error::Usage(format!("{} compiles no kernels beforehand: cuda-orin does", Self::NAME)))
    }

    /// Its options; settings that it does not take are ignored.
    ///
    /// # Errors
    /// [`Error::Usage`] if a setting names something that does not exist.
    fn options(settings: &Settings) -> Result<Self::Options>;
}

#[cfg(feature = "cpu-tsar")]
impl Compiled for CpuTsar {
    const TAKES: Takes = Takes { cpu: true, kernel: true, device: false };

    fn options(settings: &Settings) -> Result<Self::Options> {
        let usage = |error: trine_backend::Error| Error::Usage(error.to_string());
        let options = trine_cpu_tsar::Options {
            threads: settings.threads,
            threads_batch: settings.threads_batch,
            isa: settings.isa.as_deref().map(str::parse).transpose().map_err(usage)?,
            kernel: settings.kernel.clone(),
        };
        options.check().map_err(usage)?;
        Ok(options)
    }
}

#[cfg(feature = "cuda-orin")]
impl Compiled for CudaOrin {
    const TAKES: Takes = Takes { cpu: false, kernel: true, device: true };

    fn options(settings: &Settings) -> Result<Self::Options> {
        let usage = |error: trine_backend::Error| Error::Usage(error.to_string());
        let options = trine_cuda_orin::Options::from_environment();
        let rows = settings.kernel.as_deref().map(str::parse).transpose().map_err(usage)?;
        Ok(trine_cuda_orin::Options { device: settings.device.clone(), rows, ..options })
    }

    fn elsewhere(device: &str, folder: &Path) -> Result<Self::Options> {
        let device =
            trine_cuda_orin::Elsewhere::new(device, folder).map_err(|error| Error::Usage(error.to_string()))?;
        Ok(trine_cuda_orin::Options { elsewhere: Some(device), ..trine_cuda_orin::Options::default() })
    }
}

#[cfg(feature = "wgpu")]
impl Compiled for Wgpu {
    const TAKES: Takes = Takes { cpu: false, kernel: false, device: true };

    fn options(settings: &Settings) -> Result<Self::Options> {
        Ok(trine_wgpu::Options { device: settings.device.clone(), ..trine_wgpu::Options::default() })
    }
}

/// Not for use, but always there to compare with.
impl Compiled for Oracle {
    const TAKES: Takes = Takes { cpu: false, kernel: false, device: false };

    fn options(_: &Settings) -> Result<()> {
        Ok(())
    }
}

/// Something to do on a backend, whichever it is.
pub trait Job {
    /// What comes out of it.
    type Output;

    /// Does it.
    fn run<B: Compiled>(self) -> Self::Output;
}

/// Does `job` on the backend of this name: one of [`COMPILED`], or the scalar `oracle`.
///
/// # Errors
/// [`Error::Usage`] if there is none; the line names those that there are.
pub fn on<J: Job>(name: &str, job: J) -> Result<J::Output> {
    match name {
        #[cfg(feature = "cuda-orin")]
        CudaOrin::NAME => Ok(job.run::<CudaOrin>()),
        #[cfg(feature = "wgpu")]
        Wgpu::NAME => Ok(job.run::<Wgpu>()),
        #[cfg(feature = "cpu-tsar")]
        CpuTsar::NAME => Ok(job.run::<CpuTsar>()),
        Oracle::NAME => Ok(job.run::<Oracle>()),
        _ => Err(Error::Usage(format!(
            "'{name}' is no backend of this build: it has {}, {}",
            COMPILED.join(", "),
            Oracle::NAME
        ))),
    }
}

/// Expands to `callback!(module_name, Type);` for each backend that was compiled in: what is generated differs in
/// names and types alone. For this package and its tests, whose features it looks at.
#[macro_export]
macro_rules! each_backend {
    ($callback:ident) => {
        #[cfg(feature = "cuda-orin")]
        $callback!(cuda_orin, $crate::backend::CudaOrin);
        #[cfg(feature = "wgpu")]
        $callback!(wgpu, $crate::backend::Wgpu);
        #[cfg(feature = "cpu-tsar")]
        $callback!(cpu_tsar, $crate::backend::CpuTsar);
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Name;

    impl Job for Name {
        type Output = &'static str;

        fn run<B: Compiled>(self) -> &'static str {
            B::NAME
        }
    }

    #[test]
    fn backends_are_found_by_name() {
        assert_eq!(COMPILED[0], Active::NAME);
        for name in COMPILED.iter().chain([&"oracle"]) {
            assert_eq!(on(name, Name).unwrap(), *name);
        }
        let line = on("cuda", Name).unwrap_err().to_string();
        assert!(
            line.starts_with("'cuda' is no backend of this build: it has ") && line.ends_with(", oracle"),
            "{line}"
        );
    }

    #[test]
    fn each_compiled_backend_is_expanded() {
        let mut names = Vec::new();
        macro_rules! push {
            ($module:ident, $backend:ty) => {
                names.push((stringify!($module), <$backend>::NAME));
            };
        }
        crate::each_backend!(push);
        assert!(names.iter().all(|(module, name)| *module == name.replace('-', "_")), "{names:?}");
        let names: Vec<_> = names.iter().map(|(_, name)| *name).collect();
        assert_eq!(names, COMPILED);
    }

    #[test]
    fn settings_that_mean_nothing_are_refused() {
        let threads = Settings { threads_batch: Some(2), ..Settings::default() };
        let device = Settings { device: Some("1".into()), ..Settings::default() };
        let cpu = Takes { cpu: true, kernel: true, device: false };
        let gpu = Takes { cpu: false, kernel: false, device: true };
        assert!(threads.check(cpu, "x").is_ok() && device.check(gpu, "x").is_ok());
        assert!(Settings::default().check(Takes::default(), "x").is_ok());
        let line = threads.check(gpu, "some-gpu").unwrap_err().to_string();
        assert_eq!(line, "--threads-batch means nothing to some-gpu: leave it out");
        assert!(device.check(cpu, "x").unwrap_err().to_string().starts_with("--device "));
        let kernel = Settings { kernel: Some("o4".into()), ..Settings::default() };
        assert!(kernel.check(cpu, "x").is_ok());
        assert!(kernel.check(gpu, "x").unwrap_err().to_string().starts_with("--kernel "));
    }
}
