//! A device that is not here: it compiles the kernels that steps ask for into a folder, and runs none.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use trine_backend::{Error, Result};
use trine_kernels::{Cache, Compiler, Kernel as Source};

use super::{Driver, Facts, Kernel, Prepared, Sequence};
use crate::options::Elsewhere;

/// Addresses begin at multiples of this.
const ALIGNMENT: u64 = 256;

/// A device by its compute capability alone.
pub(crate) struct Paper {
    facts: Facts,
    compiler: Compiler,
    folder: PathBuf,
    next: AtomicU64,
    /// What the host reads and writes, by its address.
    host: Mutex<HashMap<usize, Box<[u8]>>>,
}

impl Paper {
    pub(crate) fn open(elsewhere: &Elsewhere) -> Result<Paper> {
        let Elsewhere { capability, folder } = elsewhere.clone();
        let facts = Facts {
            name: format!("a GPU of compute capability {}.{} elsewhere", capability / 10, capability % 10),
            capability,
            multiprocessors: 16,
            memory: 1 << 40,
            unified: false,
            cache: 0,
            driver: 0,
            emulated: false,
            serial: false,
        };
        let failed = |error| Error::Invalid(format!("{}: {error}", folder.display()));
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let compiler = Compiler::open(Cache::of_user())?;
        Ok(Paper { facts, compiler, folder, next: AtomicU64::new(ALIGNMENT), host: Mutex::default() })
    }

    fn write(&self, source: &Source) -> Result<()> {
        let path = self.folder.join(Compiler::ready_name(source, self.facts.capability));
        if path.exists() {
            return Ok(());
        }
        let code = self.compiler.machine_code(source, self.facts.capability)?;
        // Whoever reads the folder meanwhile sees all of a file or nothing.
        let part = path.with_extension("part");
        let written = std::fs::write(&part, code).and_then(|()| std::fs::rename(&part, &path));
        written.map_err(|error| Error::Invalid(format!("{}: {error}", path.display())))
    }
}

impl Driver for Paper {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn compiler(&self) -> String {
        self.compiler.name()
    }

    fn free(&self) -> Result<u64> {
        Ok(self.facts.memory)
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        let bytes = bytes.checked_next_multiple_of(ALIGNMENT).filter(|&bytes| bytes <= self.facts.memory);
        let bytes = bytes.ok_or_else(|| Error::OutOfMemory("more than there is".into()))?;
        Ok(self.next.fetch_add(bytes, Ordering::Relaxed))
    }

    fn release(&self, _: u64) {}

    fn allocate_host(&self, bytes: usize) -> Result<usize> {
        let mut memory = vec![0u8; bytes.max(1)].into_boxed_slice();
        let address = memory.as_mut_ptr() as usize;
        self.host.lock().unwrap_or_else(PoisonError::into_inner).insert(address, memory);
        Ok(address)
    }

    fn release_host(&self, address: usize) {
        self.host.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    }

    fn zero(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn send(&self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn kernel(&self, source: &Source) -> Result<Kernel> {
        // Which of them a device takes depends on how many multiprocessors it has.
        source.tiles().iter().try_for_each(|source| self.write(source))?;
        Ok(Kernel::new(source.file, 0))
    }

    fn start(&self, _: &Sequence) -> Result<()> {
        Ok(())
    }

    fn prepare(self: Arc<Self>, _: &Sequence, _: bool) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(Nothing))
    }

    fn time(&self, _: &Sequence) -> Result<Vec<f64>> {
        Err(Error::Unsupported("a device that is elsewhere runs nothing that could be timed".into()))
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }
}

/// What stands for a graph.
struct Nothing;

impl Prepared for Nothing {
    fn run(&self) -> Result<()> {
        Ok(())
    }
}
