//! Memory that starts on a cache line.

use std::ops::{Deref, DerefMut};

use bytemuck::Zeroable;
use trine_backend::Result;

use super::zeros;

/// Bytes of a cache line, and of the widest vector that any kernel loads. A vector that lies across two lines costs two loads.
const ALIGNMENT: usize = 64;

/// Values of which the first lies at an address that is a multiple of 64.
#[derive(Debug)]
pub(crate) struct Aligned<T> {
    /// Never grows, so that its values stay where they are.
    memory: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Zeroable> Aligned<T> {
    /// Zeros: see [`zeros`].
    ///
    /// Errors if the system has no memory for them.
    pub(crate) fn zeroed(len: usize, what: &str) -> Result<Self> {
        let padding = ALIGNMENT / size_of::<T>();
        let memory: Vec<T> = zeros(len.saturating_add(padding), what)?;
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(padding);
        Ok(Aligned { memory, start, len })
    }

    /// Asks the system to back memory that was not touched yet by pages of 2 MB where it can: what goes through all of it looks
    /// up an address for every 4 KB with small ones. Nothing depends on it being granted.
    pub(crate) fn ask_for_huge_pages(&mut self) {
        #[cfg(target_os = "linux")]
        {
            const PAGE: usize = 4096;
            let (start, bytes) = (self.memory.as_mut_ptr().cast::<u8>(), size_of_val(&*self.memory));
            let first = start.align_offset(PAGE).min(bytes);
            let whole = (bytes - first) / PAGE * PAGE;
            #[allow(unsafe_code)]
            // SAFETY: the range is whole pages of memory that is ours; the advice changes no bytes.
            unsafe {
                libc::madvise(start.add(first).cast(), whole, libc::MADV_HUGEPAGE);
            }
        }
    }
}

impl<T> Default for Aligned<T> {
    /// Nothing.
    fn default() -> Self {
        Aligned { memory: Vec::new(), start: 0, len: 0 }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[self.start..][..self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::Error;

    use super::*;

    fn starts_on_a_cache_line<T: Zeroable + Copy + PartialEq + std::fmt::Debug>(one: T) {
        for len in [0, 1, 63, 64, 1000, 100_000] {
            let mut values = Aligned::<T>::zeroed(len, "a test").unwrap();
            values.ask_for_huge_pages();
            assert_eq!(*values, vec![T::zeroed(); len]);
            assert!(values.as_ptr().addr().is_multiple_of(ALIGNMENT));
            values.fill(one);
            assert_eq!(*values, vec![one; len]);
        }
    }

    #[test]
    fn values_of_any_size_start_on_a_cache_line() {
        starts_on_a_cache_line(7u8);
        starts_on_a_cache_line(7u16);
        starts_on_a_cache_line(7.0f32);
        assert!(Aligned::<f32>::default().is_empty());
    }

    #[test]
    fn too_much_is_an_error() {
        for len in [usize::MAX, usize::MAX / 2, usize::MAX / 4] {
            let error = Aligned::<f32>::zeroed(len, "a test").unwrap_err();
            assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
        }
    }
}
