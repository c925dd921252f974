//! Device memory in chunks: a model has hundreds of matrices and vectors, and the driver hands out memory in large pages.

use std::sync::{Arc, Mutex};

use trine_backend::{Error, Result};

use crate::driver::Driver;

/// Bytes that are asked of the driver at a time.
const CHUNK: u64 = 32 << 20;
/// Larger requests than this part of a chunk are asked for by themselves: what is left of a chunk stays small.
const PART: u64 = 8;
/// Every piece begins at a multiple of this, as the driver's own pieces do.
const ALIGNMENT: u64 = 256;

/// Where memory comes from.
#[derive(Clone)]
pub(crate) struct Memory {
    driver: Arc<dyn Driver>,
    /// Bytes of a chunk; 0 gives each piece one, so that a checker sees where it ends.
    chunk: u64,
    open: Arc<Mutex<Option<Open>>>,
}

/// The chunk that small pieces are cut from, and how much of it is taken.
type Open = (Arc<Chunk>, u64);

/// Bytes on the device.
#[derive(Debug)]
pub(crate) struct Piece {
    chunk: Arc<Chunk>,
    offset: u64,
    bytes: u64,
}

/// What was asked of the driver; given back with the last piece of it.
struct Chunk {
    driver: Arc<dyn Driver>,
    address: u64,
    bytes: u64,
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.driver.release(self.address);
    }
}

impl Memory {
    pub(crate) fn new(driver: Arc<dyn Driver>, chunked: bool) -> Memory {
        Memory { driver, chunk: if chunked { CHUNK } else { 0 }, open: Arc::default() }
    }

    /// A piece of `bytes`, whatever they hold; `what` says in an error what it was for.
    pub(crate) fn piece(&self, what: &str, bytes: u64) -> Result<Piece> {
        let taken = bytes.max(1).checked_next_multiple_of(ALIGNMENT);
        let Some(taken) = taken else {
            return Err(Error::OutOfMemory(format!("{what} would take {bytes} bytes")));
        };
        let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((chunk, used)) = open.as_mut()
            && chunk.bytes - *used >= taken
        {
            let offset = std::mem::replace(used, *used + taken);
            return Ok(Piece { chunk: Arc::clone(chunk), offset, bytes });
        }
        let size = if taken > self.chunk / PART { taken } else { self.chunk };
        let address = self.driver.allocate(size).map_err(|error| self.explain(error, what, bytes))?;
        let chunk = Arc::new(Chunk { driver: Arc::clone(&self.driver), address, bytes: size });
        if size == self.chunk {
            *open = Some((Arc::clone(&chunk), taken));
        }
        Ok(Piece { chunk, offset: 0, bytes })
    }

    /// A piece of zeros.
    pub(crate) fn zeros(&self, what: &str, bytes: u64) -> Result<Piece> {
        let piece = self.piece(what, bytes)?;
        self.driver.zero(piece.address(), bytes)?;
        Ok(piece)
    }

    fn explain(&self, error: Error, what: &str, bytes: u64) -> Error {
        match error {
            Error::OutOfMemory(_) => {
                let free = self.driver.free().map_or_else(|_| "less".into(), |free| format!("{} MiB", free >> 20));
                let name = &self.driver.facts().name;
                Error::OutOfMemory(format!(
                    "{what}: {} MiB do not fit, {free} of {name}'s memory is free; try a smaller --weights format or -c",
                    bytes.div_ceil(1 << 20)
                ))
            }
            other => other,
        }
    }
}

impl Piece {
    pub(crate) fn address(&self) -> u64 {
        self.chunk.address + self.offset
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies `data` to `offset` bytes from its start.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        assert!(offset + data.len() as u64 <= self.bytes, "a copy past the end of a piece");
        self.chunk.driver.send(self.address() + offset, data)
    }
}

/// Host memory that the device copies from and to by itself.
pub(crate) struct HostBytes {
    driver: Arc<dyn Driver>,
    address: usize,
    bytes: usize,
}

impl HostBytes {
    pub(crate) fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<HostBytes> {
        let address = driver.allocate_host(bytes)?;
        Ok(HostBytes { driver: Arc::clone(driver), address, bytes })
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// What it holds. The caller has waited for the device.
    #[allow(unsafe_code)] // The driver hands out host memory by its address.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes` bytes at this address are ours until we are dropped, and initialised; the device has no copy
        // under way, as each reader waits for it first.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }

    /// The same, to be written.
    #[allow(unsafe_code)] // As above.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; nobody else has a reference.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.bytes) }
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        self.driver.release_host(self.address);
    }
}
