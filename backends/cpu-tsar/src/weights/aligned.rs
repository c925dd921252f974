//! Byte buffers that start on a cache line.

use trine_backend::{Error, Result};

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
        let mut memory: Vec<u8> = Vec::new();
        let reserved = len.checked_add(ALIGNMENT).is_some_and(|total| memory.try_reserve_exact(total).is_ok());
        if !reserved {
            return Err(Error::OutOfMemory(format!("no memory for a matrix of {len} bytes: use a smaller model")));
        }
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        memory.resize(start + len, 0);
        Ok(Aligned { memory, start, len })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
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
