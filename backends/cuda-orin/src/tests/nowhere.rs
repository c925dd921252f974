//! A device that is nowhere: it counts memory and compiles nothing, so that plans can be looked at without one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use trine_backend::{Error, Result};
use trine_kernels::Kernel as Source;

use crate::driver::{Driver, Facts, Kernel, Prepared, Sequence};

/// Memory of the device.
pub(super) const MEMORY: u64 = 1 << 30;

pub(super) struct Nowhere {
    facts: Facts,
    /// Addresses and sizes of what is allocated.
    pub(super) pieces: Mutex<BTreeMap<u64, u64>>,
}

impl Nowhere {
    pub(super) fn new() -> Arc<Nowhere> {
        let facts = Facts {
            name: "nowhere".into(),
            capability: 87,
            multiprocessors: 16,
            memory: MEMORY,
            unified: true,
            cache: 4 << 20,
            driver: 12060,
            emulated: false,
            serial: false,
        };
        Arc::new(Nowhere { facts, pieces: Mutex::default() })
    }

    pub(super) fn taken(&self) -> u64 {
        self.pieces.lock().unwrap().values().sum()
    }
}

impl Driver for Nowhere {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn compiler(&self) -> String {
        "none".into()
    }

    fn free(&self) -> Result<u64> {
        Ok(MEMORY - self.taken())
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        if bytes > self.free()? {
            return Err(Error::OutOfMemory("full".into()));
        }
        let mut pieces = self.pieces.lock().unwrap();
        let end = pieces.last_key_value().map_or(1 << 20, |(address, bytes)| address + bytes);
        let address = end.next_multiple_of(1 << 20);
        pieces.insert(address, bytes);
        Ok(address)
    }

    fn release(&self, address: u64) {
        self.pieces.lock().unwrap().remove(&address).expect("a piece that was allocated");
    }

    fn allocate_host(&self, _: usize) -> Result<usize> {
        Err(Error::Unsupported("no host memory here".into()))
    }

    fn release_host(&self, _: usize) {}

    fn zero(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn send(&self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn kernel(&self, source: &Source) -> Result<Kernel> {
        Ok(Kernel::new(source.file, 0))
    }

    fn start(&self, _: &Sequence) -> Result<()> {
        Ok(())
    }

    fn prepare(self: Arc<Self>, _: &Sequence, _: bool) -> Result<Box<dyn Prepared>> {
        Err(Error::Unsupported("no graphs here".into()))
    }

    fn time(&self, _: &Sequence) -> Result<Vec<f64>> {
        Ok(Vec::new())
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }
}
