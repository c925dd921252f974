//! An imitated device: its memory is the host's, its kernels are compiled by the host's C++ compiler.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use trine_backend::{Error, Result};
use trine_kernels::Kernel as Source;
use trine_kernels::emulate::{Emulator, Function};

use super::{Driver, Facts, Kernel, Prepared, Sequence, Transfer};

/// An imitated device. A launch has ended when it returns.
pub(crate) struct Emulated {
    emulator: Emulator,
    facts: Facts,
    /// Sizes of what is allocated.
    pieces: Mutex<HashMap<u64, usize>>,
    /// A kernel's handle is its place here.
    functions: Mutex<Vec<(Source, Function)>>,
}

impl Emulated {
    pub(crate) fn open() -> Result<Emulated> {
        let facts = Facts {
            name: "an imitated GPU".into(),
            capability: 87,
            // Few, so that blocks that go on to a second tile are tested.
            multiprocessors: 2,
            memory: 1 << 40,
            unified: true,
            cache: 0,
            driver: 0,
            emulated: true,
            serial: false,
        };
        let (pieces, functions) = (Mutex::default(), Mutex::default());
        Ok(Emulated { emulator: Emulator::open()?, facts, pieces, functions })
    }

    fn run(&self, sequence: &Sequence) -> Result<()> {
        for launch in &sequence.launches {
            let function = {
                let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
                functions.get(launch.kernel.handle).map(|(_, function)| function.clone())
            };
            let function = function.ok_or_else(|| Error::Device(format!("no kernel {}", launch.kernel.name)))?;
            // SAFETY: the planner gives each kernel its own arguments, with addresses of pieces that are held.
            unsafe { self.emulator.launch_words(&function, launch.extent, &launch.arguments) }?;
        }
        if let Some(Transfer { host, device, bytes }) = sequence.fetch {
            // SAFETY: the host's bytes are from `allocate_host`, the device's those of a piece that the sequence's owner
            // holds; they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(device as *const u8, host as *mut u8, bytes) };
        }
        Ok(())
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let left = self.pieces.get_mut().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(left.is_empty(), "{} pieces were not given back", left.len());
    }
}

impl Driver for Emulated {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn compiler(&self) -> String {
        self.emulator.compiler()
    }

    fn free(&self) -> Result<u64> {
        Ok(self.facts.memory)
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes as u64 <= self.facts.memory);
        let bytes = bytes.ok_or_else(|| Error::OutOfMemory("more than there is".into()))?;
        let address = self.emulator.alloc(bytes)?;
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).insert(address, bytes);
        Ok(address)
    }

    fn release(&self, address: u64) {
        if let Some(bytes) = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).remove(&address) {
            // SAFETY: it was allocated with this size, and is given back once.
            unsafe { self.emulator.free(address, bytes) };
        }
    }

    fn allocate_host(&self, bytes: usize) -> Result<usize> {
        let address = self.allocate(bytes as u64)?;
        self.zero(address, bytes as u64)?;
        Ok(address as usize)
    }

    fn release_host(&self, address: usize) {
        self.release(address as u64);
    }

    fn zero(&self, address: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller's piece has so many bytes.
        unsafe { std::ptr::write_bytes(address as *mut u8, 0, bytes as usize) };
        Ok(())
    }

    fn send(&self, address: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.emulator.write(address, bytes) };
        Ok(())
    }

    fn kernel(&self, source: &Source) -> Result<Kernel> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = functions.iter().position(|(loaded, _)| loaded == source) {
            return Ok(Kernel::new(source.file, at));
        }
        let function = self.emulator.load(source)?;
        functions.push((source.clone(), function));
        Ok(Kernel::new(source.file, functions.len() - 1))
    }

    fn start(&self, sequence: &Sequence) -> Result<()> {
        self.run(sequence)
    }

    fn prepare(self: Arc<Self>, sequence: &Sequence, _: bool) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(Again { device: self, sequence: sequence.clone() }))
    }

    fn time(&self, sequence: &Sequence) -> Result<Vec<f64>> {
        let mut times = Vec::with_capacity(sequence.launches.len());
        for launch in &sequence.launches {
            let start = std::time::Instant::now();
            self.run(&Sequence { launches: vec![launch.clone()], fetch: None })?;
            times.push(1e9 * start.elapsed().as_secs_f64());
        }
        self.run(&Sequence { launches: Vec::new(), fetch: sequence.fetch })?;
        Ok(times)
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }
}

/// What stands for a graph.
struct Again {
    device: Arc<Emulated>,
    sequence: Sequence,
}

impl Prepared for Again {
    fn run(&self) -> Result<()> {
        self.device.run(&self.sequence)
    }
}
