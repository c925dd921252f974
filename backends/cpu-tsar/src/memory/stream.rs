//! Stores that go past the caches.

use std::marker::PhantomData;

/// Stores whole cache lines of a large output that others read later: memory is written without being read first, as it is for
/// stores that go through the caches, and nothing is driven out of these. What was stored can be relied on once it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The stores are ordered by the thread that made them.
    not_send: PhantomData<*const ()>,
}

impl Stream {
    /// Stores eight numbers; lines are whole when those that follow each other in memory are stored one after the other.
    #[inline(always)]
    pub(crate) fn store(&self, to: &mut [f32; 8], from: &[f32; 8]) {
        #[cfg(target_arch = "x86_64")]
        if to.as_ptr().cast::<std::arch::x86_64::__m128>().is_aligned() {
            let [low, high] = bytemuck::cast::<_, [[f32; 4]; 2]>(*from);
            #[allow(unsafe_code)]
            // SAFETY: both addresses are 16 bytes of `to`, and aligned; dropping the stream waits for the stores.
            unsafe {
                use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
                _mm_stream_ps(to.as_mut_ptr(), _mm_loadu_ps(low.as_ptr()));
                _mm_stream_ps(to[4..].as_mut_ptr(), _mm_loadu_ps(high.as_ptr()));
            }
            return;
        }
        *to = *from;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        // SAFETY: every x86-64 CPU has SSE.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_is_there() {
        let mut memory = [0.0; 64];
        // Aligned and not.
        for start in 0..16 {
            let expected: [f32; 48] = std::array::from_fn(|i| (100 * start + i) as f32);
            let stream = Stream::default();
            for (to, from) in memory[start..].as_chunks_mut().0.iter_mut().zip(expected.as_chunks().0) {
                stream.store(to, from);
            }
            drop(stream);
            assert_eq!(memory[start..start + 40], expected[..40]);
        }
    }
}
