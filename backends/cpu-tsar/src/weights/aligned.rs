//! Byte buffers that start on a cache line.

use trine_backend::{Error, Result};

use crate::memory;

/// Bytes of a cache line, and of the widest vector that any kernel loads.
const ALIGNMENT: usize = 64;

/// Zeroed bytes at an address that is a multiple of 64.
#[derive(Debug)]
pub(super) struct Aligned {
    /// Never grows, so that its bytes stay where they are.
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Errors if the system has no memory for `len` bytes.
    pub(super) fn zeroed(len: usize) -> Result<Self> {
        let problem = || Error::OutOfMemory(format!("no memory for a matrix of {len} bytes: use a smaller model"));
        let total = len.checked_add(ALIGNMENT).ok_or_else(problem)?;
        // Zeros that the system gives: each page is made when a thread writes to it, not by this one.
        let mut memory = memory::zeros(total, "a matrix").map_err(|_| problem())?;
        ask_for_huge_pages(&mut memory);
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Ok(Aligned { memory, start, len })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// Asks the system to back memory that was not touched yet by pages of 2 MB where it can: a product goes through all of a
/// matrix, and with small pages the CPU looks up an address for every 4 KB of it. Nothing depends on it being granted.
fn ask_for_huge_pages(memory: &mut [u8]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let first = memory.as_ptr().align_offset(PAGE).min(memory.len());
        let whole = (memory.len() - first) / PAGE * PAGE;
        let start = memory[first..].as_mut_ptr();
        #[allow(unsafe_code)]
        // SAFETY: the range is whole pages of memory that is ours; the advice changes no bytes.
        unsafe {
            libc::madvise(start.cast(), whole, libc::MADV_HUGEPAGE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_cache_line() {
        for len in [0, 1, 63, 64, 1000] {
            let mut buffer = Aligned::zeroed(len).unwrap();
            assert_eq!(buffer.bytes(), vec![0; len]);
            assert!(buffer.bytes().as_ptr().addr().is_multiple_of(ALIGNMENT));
            buffer.bytes_mut().fill(7);
            assert_eq!(buffer.bytes(), vec![7; len]);
        }
    }

    #[test]
    fn too_much_is_an_error() {
        for len in [usize::MAX, usize::MAX / 2] {
            let error = Aligned::zeroed(len).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
        }
    }
}
