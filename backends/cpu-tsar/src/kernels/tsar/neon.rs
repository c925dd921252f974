//! On NEON: a register of 16 lanes is two, and `tbl` looks up in 8 words at once.

use std::ops::Range;

use super::instructions::{FourByFour, Instructions, TwoByFour};
use super::{Job, OUTPUTS, Registers, dataflows, variants};
use crate::kernels::neon::lanes::{I16, Lanes};
use crate::kernels::{KernelInfo, Room};

pub(super) static KERNELS: [KernelInfo; super::VARIANTS] = variants!(Neon, run, [80.0, 60.0, 90.0, 50.0]);

fn run<I: Instructions, const AP: bool>(job: &Job<'_>, tiles: Range<usize>, room: &mut Room) {
    let neon = Neon(Lanes::new());
    if AP {
        dataflows::activation_persistent::<_, I>(neon, job, tiles, room);
    } else {
        dataflows::output_persistent::<_, I>(neon, job, tiles, room);
    }
}

/// Two registers as one.
#[derive(Clone, Copy)]
pub(super) struct Neon(pub(super) Lanes);

impl Neon {
    /// The bytes of the words with these numbers, as a word's two byte numbers.
    #[inline(always)]
    fn bytes(self, index: I16) -> I16 {
        self.0.add(self.0.multiply(index, self.0.splat(0x0202)), self.0.splat(0x0100))
    }
}

impl Registers for Neon {
    type Words = [I16; 2];

    #[inline(always)]
    fn words(self, lanes: [i16; OUTPUTS]) -> [I16; 2] {
        let halves = lanes.as_chunks::<8>().0;
        [self.0.words(halves[0]), self.0.words(halves[1])]
    }

    #[inline(always)]
    fn sums(self, lanes: &[i16; OUTPUTS]) -> Self::Words {
        self.words(*lanes)
    }

    #[inline(always)]
    fn store(self, words: Self::Words, to: &mut [i16; OUTPUTS]) {
        to[..8].copy_from_slice(&self.0.array(words[0]));
        to[8..].copy_from_slice(&self.0.array(words[1]));
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 2 * OUTPUTS]) -> [I16; 2] {
        let mut lanes = [0; OUTPUTS];
        for (lane, &bytes) in lanes.iter_mut().zip(bytes.as_chunks().0) {
            *lane = i16::from_le_bytes(bytes);
        }
        self.words(lanes)
    }

    #[inline(always)]
    fn widen(self, bytes: [i8; 8]) -> [I16; 2] {
        [self.0.widen(bytes); 2]
    }

    #[inline(always)]
    fn add(self, a: [I16; 2], b: [I16; 2]) -> [I16; 2] {
        [self.0.add(a[0], b[0]), self.0.add(a[1], b[1])]
    }

    #[inline(always)]
    fn sub(self, a: [I16; 2], b: [I16; 2]) -> [I16; 2] {
        [self.0.subtract(a[0], b[0]), self.0.subtract(a[1], b[1])]
    }

    #[inline(always)]
    fn sign(self, a: [I16; 2], sign: [I16; 2]) -> [I16; 2] {
        [self.0.multiply(a[0], sign[0]), self.0.multiply(a[1], sign[1])]
    }

    #[inline(always)]
    fn field<const SHIFT: i32>(self, words: [I16; 2], mask: i16) -> [I16; 2] {
        [self.0.word_field::<SHIFT>(words[0], mask), self.0.word_field::<SHIFT>(words[1], mask)]
    }

    #[inline(always)]
    fn lookup_8<const UPPER: bool>(self, table: [I16; 2], index: [I16; 2]) -> [I16; 2] {
        let table = table[usize::from(UPPER)];
        [self.0.shuffle(table, self.bytes(index[0])), self.0.shuffle(table, self.bytes(index[1]))]
    }

    #[inline(always)]
    fn lookup_16(self, table: [I16; 2], index: [I16; 2]) -> [I16; 2] {
        let mut found = index;
        for half in 0..2 {
            // Byte numbers from 16 on give 0, so one of the two look-ups does.
            let low = self.bytes(index[half]);
            let high = self.0.exclusive_or(low, self.0.splat(0x1010));
            found[half] = self.0.exclusive_or(self.0.shuffle(table[0], low), self.0.shuffle(table[1], high));
        }
        found
    }
}
