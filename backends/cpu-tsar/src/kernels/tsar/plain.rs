//! Lane by lane, for CPUs that have nothing better.

use std::ops::Range;

use super::instructions::{FourByFour, Instructions, TwoByFour};
use super::{Job, OUTPUTS, Registers, dataflows, variants};
use crate::kernels::{KernelInfo, Room};

pub(super) static KERNELS: [KernelInfo; super::VARIANTS] = variants!(Plain, run, [450.0, 270.0, 400.0, 160.0]);

fn run<I: Instructions, const AP: bool>(job: &Job<'_>, tiles: Range<usize>, room: &mut Room) {
    if AP {
        dataflows::activation_persistent::<_, I>(Plain, job, tiles, room);
    } else {
        dataflows::output_persistent::<_, I>(Plain, job, tiles, room);
    }
}

/// Registers as arrays.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Registers for Plain {
    type Words = [i16; OUTPUTS];

    fn words(self, lanes: [i16; OUTPUTS]) -> Self::Words {
        lanes
    }

    fn sums(self, lanes: &[i16; OUTPUTS]) -> Self::Words {
        *lanes
    }

    fn store(self, words: Self::Words, to: &mut [i16; OUTPUTS]) {
        *to = words;
    }

    fn load(self, bytes: &[u8; 2 * OUTPUTS]) -> Self::Words {
        std::array::from_fn(|lane| i16::from_le_bytes(bytes.as_chunks().0[lane]))
    }

    fn widen(self, bytes: [i8; 8]) -> Self::Words {
        std::array::from_fn(|lane| i16::from(bytes[lane % 8]))
    }

    fn add(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    fn sub(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|lane| a[lane] - b[lane])
    }

    fn sign(self, a: Self::Words, sign: Self::Words) -> Self::Words {
        std::array::from_fn(|lane| a[lane] * sign[lane])
    }

    fn field<const SHIFT: i32>(self, words: Self::Words, mask: i16) -> Self::Words {
        words.map(|word| word >> SHIFT & mask)
    }

    fn lookup_8<const UPPER: bool>(self, table: Self::Words, index: Self::Words) -> Self::Words {
        index.map(|index| table[8 * usize::from(UPPER) + index as usize % 8])
    }

    fn lookup_16(self, table: Self::Words, index: Self::Words) -> Self::Words {
        index.map(|index| table[index as usize % OUTPUTS])
    }
}
