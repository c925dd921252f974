//! Each instruction against its definition, lane by lane, on every kind of register.

// Tables and their entries go by the same index.
#![allow(clippy::needless_range_loop)]

use super::instructions::{tgemv_8x16, tgemv_16x16, tlut_2x4, tlut_4x4};
use super::*;

/// What is checked on every kind of register.
trait Check {
    fn check<R: Registers>(&self, r: R, name: &str);

    fn everywhere(&self) {
        self.check(plain::Plain, "plain");
        self.check(neon::Neon(super::super::neon::lanes::Lanes::new()), "neon");
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = super::super::avx2::Simd::try_new() {
            self.check(simd, "avx2");
        }
    }
}

/// The lanes of a register.
fn lanes<R: Registers>(r: R, words: R::Words) -> [i16; OUTPUTS] {
    let mut lanes = [0; OUTPUTS];
    r.store(words, &mut lanes);
    lanes
}

/// A sequence of numbers that look random.
struct Random(u64);

impl Random {
    fn within(&mut self, most: i16) -> i16 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.0 >> 33) % (2 * u64::from(most.unsigned_abs()) + 1)) as i16).wrapping_sub(most)
    }

    fn code(&mut self) -> i8 {
        self.within(127) as i8
    }
}

/// Σ ±a: plus where the index has a 1, the first activation for the highest bit.
fn dense(activations: &[i8], index: usize) -> i16 {
    let sign = |at: usize| if index >> (activations.len() - 1 - at) & 1 == 1 { 1 } else { -1 };
    activations.iter().enumerate().map(|(at, &a)| sign(at) * i16::from(a)).sum()
}

/// Σ a where the index has a 1.
fn sparse(activations: &[i8], index: usize) -> i16 {
    let set = |at: usize| index >> (activations.len() - 1 - at) & 1 == 1;
    activations.iter().enumerate().filter(|(at, _)| set(*at)).map(|(_, &a)| i16::from(a)).sum()
}

#[test]
fn tlut_2x4_makes_the_published_tables() {
    struct Tables;
    impl Check for Tables {
        fn check<R: Registers>(&self, r: R, name: &str) {
            let entries = |a1: i16, a2: i16| [-a1 - a2, -a1 + a2, a1 - a2, a1 + a2, 0, a2, a1, a1 + a2];
            // Every pair of activations, four at a time.
            for first in -127..=127i8 {
                for second in (-127..=127i8).step_by(4) {
                    let activations: [i8; 8] =
                        std::array::from_fn(|at| if at % 2 == 0 { first } else { second.saturating_add(at as i8 / 2) });
                    let registers = tlut_2x4(r, activations).map(|register| lanes(r, register));
                    for (block, entry) in registers.as_flattened().as_chunks::<8>().0.iter().enumerate() {
                        let [a1, a2] = [activations[2 * block], activations[2 * block + 1]].map(i16::from);
                        assert_eq!(*entry, entries(a1, a2), "{name} block {block} of {activations:?}");
                    }
                }
            }
        }
    }
    Tables.everywhere();
}

#[test]
fn tlut_4x4_makes_the_published_tables() {
    struct Tables;
    impl Check for Tables {
        fn check<R: Registers>(&self, r: R, name: &str) {
            let mut random = Random(1);
            for case in 0..2000 {
                let activations: [i8; 16] = std::array::from_fn(|at| match case {
                    0 => 127,
                    1 => -127,
                    2 => [127, -127][at % 2],
                    // One at a time.
                    3..19 => i8::from(at == case - 3),
                    _ => random.code(),
                });
                let registers = tlut_4x4(r, activations).map(|register| lanes(r, register));
                for (block, tables) in registers.as_chunks::<2>().0.iter().enumerate() {
                    let a = &activations[4 * block..][..4];
                    for index in 0..16 {
                        let entries = (tables[0][index], tables[1][index]);
                        assert_eq!(entries, (dense(a, index), sparse(a, index)), "{name} {block} {index} {a:?}");
                    }
                }
            }
        }
    }
    Tables.everywhere();
}

#[test]
fn tgemv_8x16_adds_what_each_weight_word_names() {
    struct Words;
    impl Check for Words {
        fn check<R: Registers>(&self, r: R, name: &str) {
            let mut random = Random(2);
            // Every word; a table has no two entries alike.
            let tables: [[i16; 16]; 2] =
                std::array::from_fn(|t| std::array::from_fn(|e| (100 * t + 7 * e + e * e) as i16));
            let registers = tables.map(|table| r.words(table));
            for first in (0..=u16::MAX).step_by(16) {
                let words: [u16; 16] = std::array::from_fn(|lane| first + lane as u16);
                let start: [i16; 16] = std::array::from_fn(|_| random.within(30_000));
                let got = tgemv_8x16(r, r.words(start), &registers, r.words(words.map(|word| word as i16)));
                let expected: [i16; 16] = std::array::from_fn(|lane| {
                    (0..4).fold(start[lane], |sum, block| {
                        let nibble = usize::from(words[lane] >> (4 * block) & 15);
                        let table = &tables[block / 2][8 * (block % 2)..];
                        sum + table[nibble & 3] - table[4 + (nibble >> 2)]
                    })
                });
                assert_eq!(lanes(r, got), expected, "{name} {words:?}");
            }
        }
    }
    Words.everywhere();
}

#[test]
fn tgemv_16x16_adds_what_each_weight_word_names() {
    struct Words;
    impl Check for Words {
        fn check<R: Registers>(&self, r: R, name: &str) {
            let mut random = Random(3);
            let tables: [[i16; 16]; 8] =
                std::array::from_fn(|t| std::array::from_fn(|e| (50 * t + 3 * e + e * e) as i16));
            let registers = tables.map(|table| r.words(table));
            for first in (0..=u16::MAX).step_by(16) {
                // The second register has all words too, in another order.
                let low: [u16; 16] = std::array::from_fn(|lane| first + lane as u16);
                let high = low.map(|word| word.wrapping_mul(0x6487).rotate_left(5));
                let start: [i16; 16] = std::array::from_fn(|_| random.within(30_000));
                let weights = [low, high].map(|words| r.words(words.map(|word| word as i16)));
                let got = tgemv_16x16(r, r.words(start), &registers, weights);
                let expected: [i16; 16] = std::array::from_fn(|lane| {
                    (0..4).fold(start[lane], |sum, block| {
                        let word = [low, high][block / 2][lane] >> (8 * (block % 2));
                        let (dense, sparse) = (usize::from(word & 15), usize::from(word >> 4 & 15));
                        sum + tables[2 * block][dense] - tables[2 * block + 1][sparse]
                    })
                });
                assert_eq!(lanes(r, got), expected, "{name} {low:?} {high:?}");
            }
        }
    }
    Words.everywhere();
}

/// The article's example: of w = {+1, 0} the dense bits 1 1 give a1 + a2, the sparse bits 0 1 take a2 away, and a1 is left.
#[test]
fn the_worked_example() {
    struct Example;
    impl Check for Example {
        fn check<R: Registers>(&self, r: R, name: &str) {
            let tables = tlut_2x4(r, [-77, 127, 0, 0, 0, 0, 0, 0]);
            let (dense, sparse) = (0b11, 0b01);
            // The other blocks, of weights -1, meet activations of 0.
            let sums = tgemv_8x16(r, r.words([5; 16]), &tables, r.words([sparse << 2 | dense; 16]));
            assert_eq!(lanes(r, sums), [5 - 77; 16], "{name}");
        }
    }
    Example.everywhere();
}
