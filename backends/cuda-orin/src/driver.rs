//! What the backend needs of a device: memory, copies, launches, and lists of launches that are run again.
//!
//! Two things can do that: a GPU through the CUDA driver ([`cuda`]), and where the feature `emulate` is compiled in, the
//! same kernels compiled for the host ([`emulated`]). Everything above this file knows neither.

#[allow(unsafe_code)] // The CUDA driver is a C library: each call has its reason.
mod cuda;
#[cfg(feature = "emulate")]
#[allow(unsafe_code)] // Device memory is this program's, by its address.
mod emulated;

mod paper;

use std::sync::Arc;

use trine_backend::Result;
use trine_kernels::{Kernel as Source, Launch as Extent};

use crate::options::Options;

/// The lowest compute capability that the kernels are written for: integer tensor cores and asynchronous copies.
pub(crate) const LOWEST: u32 = 80;
/// Programmatic dependent launch came with this compute capability.
const OVERLAPS: u32 = 90;

/// What a device says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Its own name.
    pub(crate) name: String,
    /// Compute capability: 87 is 8.7.
    pub(crate) capability: u32,
    /// Streaming multiprocessors.
    pub(crate) multiprocessors: u32,
    /// Bytes of its memory.
    pub(crate) memory: u64,
    /// Whether its memory is the host's.
    pub(crate) unified: bool,
    /// Bytes of the second-level cache.
    pub(crate) cache: u64,
    /// Highest CUDA version of the driver: 12060 is 12.6.
    pub(crate) driver: u32,
    /// Whether it is a program that imitates a GPU.
    pub(crate) emulated: bool,
    /// Whether launches are to go one by one.
    pub(crate) serial: bool,
}

impl Facts {
    /// Whether a launch can start while the one before it ends.
    pub(crate) fn overlaps(&self) -> bool {
        self.capability >= OVERLAPS && !self.emulated && !self.serial
    }
}

/// A function on the device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kernel {
    /// Its name in the program.
    pub(crate) name: &'static str,
    /// The driver's handle.
    handle: usize,
}

impl Kernel {
    pub(crate) fn new(name: &'static str, handle: usize) -> Kernel {
        Kernel { name, handle }
    }
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) extent: Extent,
    /// The kernel's one parameter, a struct.
    pub(crate) arguments: Vec<u64>,
    /// What it does, for people.
    pub(crate) label: String,
    /// Bytes that it can't do without reading.
    pub(crate) bytes: u64,
}

/// Bytes that come to the host after a sequence's launches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Transfer {
    pub(crate) host: usize,
    pub(crate) device: u64,
    pub(crate) bytes: usize,
}

/// What is run again: launches, and maybe a copy to the host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sequence {
    pub(crate) launches: Vec<Launch>,
    pub(crate) fetch: Option<Transfer>,
}

/// A sequence that is ready to run.
pub(crate) trait Prepared: Send {
    /// Starts it, after everything that was started before.
    fn run(&self) -> Result<()>;
}

/// A device.
pub(crate) trait Driver: Send + Sync {
    fn facts(&self) -> &Facts;
    /// What compiles the kernels, and its version.
    fn compiler(&self) -> String;
    /// Bytes that are free now.
    fn free(&self) -> Result<u64>;
    /// An address of at least `bytes`, aligned to 256.
    fn allocate(&self, bytes: u64) -> Result<u64>;
    /// Gives it back. What was started before has ended by then.
    fn release(&self, address: u64);
    /// Host memory of `bytes` that the device reads and writes at the same address, zeroed.
    fn allocate_host(&self, bytes: usize) -> Result<usize>;
    /// Gives it back.
    fn release_host(&self, address: usize);
    fn zero(&self, address: u64, bytes: u64) -> Result<()>;
    /// Copies to the device; `bytes` are free when it returns.
    fn send(&self, address: u64, bytes: &[u8]) -> Result<()>;
    /// Compiles a kernel, or finds it compiled.
    fn kernel(&self, source: &Source) -> Result<Kernel>;
    /// Starts a sequence that is not expected to come again.
    fn start(&self, sequence: &Sequence) -> Result<()>;
    /// Makes a sequence ready; `overlap` lets each launch start while the one before ends, where the device can.
    fn prepare(self: Arc<Self>, sequence: &Sequence, overlap: bool) -> Result<Box<dyn Prepared>>;
    /// Runs a sequence one launch at a time and returns what each took, in nanoseconds.
    fn time(&self, sequence: &Sequence) -> Result<Vec<f64>>;
    /// Waits until everything that was started has ended.
    fn wait(&self) -> Result<()>;
}

/// Opens the device.
pub(crate) fn open(options: &Options) -> Result<Arc<dyn Driver>> {
    if let Some(elsewhere) = &options.elsewhere {
        return Ok(Arc::new(paper::Paper::open(elsewhere)?));
    }
    if options.emulate {
        return emulation();
    }
    Ok(Arc::new(cuda::Cuda::open(options.device.as_deref(), options.serial)?))
}

#[cfg(feature = "emulate")]
fn emulation() -> Result<Arc<dyn Driver>> {
    Ok(Arc::new(emulated::Emulated::open()?))
}

#[cfg(not(feature = "emulate"))]
fn emulation() -> Result<Arc<dyn Driver>> {
    Err(trine_backend::Error::Unsupported(
        "this build has no emulation of CUDA: it is for tests, with the feature `emulate`".into(),
    ))
}
