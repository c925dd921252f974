//! TLUT and TGEMV as functions over registers, with the operands of the article's figures 6b and 6c.
//!
//! Where the figures leave a choice: the first column of a block is the highest bit of an index (their order of entries,
//! -a1-a2, -a1+a2, a1-a2, a1+a2, says so), and blocks begin at the lowest bits of a weight word.

// Registers go by index, and iterators would bring closures (see `avx2`).
#![allow(clippy::needless_range_loop)]

use super::{OUTPUTS, Registers};

/// A TLUT with the TGEMV that reads its tables.
pub(super) trait Instructions {
    /// Columns that they take at once.
    const COLUMNS: usize;
    /// Bytes of a tile: 2 bits for each column and output.
    const TILE_BYTES: usize = Self::COLUMNS * OUTPUTS / 4;
    /// The registers that TLUT fills.
    type Tables<R: Registers>: Copy;

    /// TLUT of [`Self::COLUMNS`] activations.
    fn tables<R: Registers>(r: R, activations: &[i8]) -> Self::Tables<R>;
    /// TGEMV: `sums` and the products of a tile of weights.
    fn multiply<R: Registers>(r: R, sums: R::Words, tables: &Self::Tables<R>, tile: &[u8]) -> R::Words;
}

/// TLUT_2x4 and TGEMV_8x16.
pub(super) struct TwoByFour;

impl Instructions for TwoByFour {
    const COLUMNS: usize = 8;
    type Tables<R: Registers> = [R::Words; 2];

    #[inline(always)]
    fn tables<R: Registers>(r: R, activations: &[i8]) -> [R::Words; 2] {
        tlut_2x4(r, *activations.first_chunk().expect("codes are padded to whole blocks"))
    }

    #[inline(always)]
    fn multiply<R: Registers>(r: R, sums: R::Words, tables: &[R::Words; 2], tile: &[u8]) -> R::Words {
        tgemv_8x16(r, sums, tables, r.load(tile.first_chunk().expect("tiles are whole")))
    }
}

/// TLUT_4x4 and TGEMV_16x16.
pub(super) struct FourByFour;

impl Instructions for FourByFour {
    const COLUMNS: usize = 16;
    type Tables<R: Registers> = [R::Words; 8];

    #[inline(always)]
    fn tables<R: Registers>(r: R, activations: &[i8]) -> [R::Words; 8] {
        tlut_4x4(r, *activations.first_chunk().expect("codes are padded to whole blocks"))
    }

    #[inline(always)]
    fn multiply<R: Registers>(r: R, sums: R::Words, tables: &[R::Words; 8], tile: &[u8]) -> R::Words {
        let registers = tile.as_chunks::<32>().0;
        tgemv_16x16(r, sums, tables, [r.load(&registers[0]), r.load(&registers[1])])
    }
}

/// TLUT_2x4: from 8 activations the tables of 4 blocks of 2, two blocks to a register. A block has 8 words: dense
/// `-a1-a2, -a1+a2, a1-a2, a1+a2`, sparse `0, a2, a1, a1+a2`.
#[inline(always)]
pub(super) fn tlut_2x4<R: Registers>(r: R, activations: [i8; 8]) -> [R::Words; 2] {
    let a = r.widen(activations);
    let mut tables = [a; 2];
    for register in 0..2 {
        let first = r.lookup_8::<false>(a, r.words(const { [pairs(0, 0), pairs(1, 0)] }[register]));
        let second = r.lookup_8::<false>(a, r.words(const { [pairs(0, 1), pairs(1, 1)] }[register]));
        let signs = const { [signs_2(1), signs_2(0)] };
        tables[register] = r.add(r.sign(first, r.words(signs[0])), r.sign(second, r.words(signs[1])));
    }
    tables
}

/// Where the activation `at` of each entry's block is, for the blocks of a register of TLUT_2x4.
const fn pairs(register: usize, at: usize) -> [i16; OUTPUTS] {
    let mut places = [0; OUTPUTS];
    let mut lane = 0;
    while lane < OUTPUTS {
        places[lane] = (2 * (2 * register + lane / 8) + at) as i16;
        lane += 1;
    }
    places
}

/// The signs under which the activation with this bit of the index goes into the entries of two blocks of TLUT_2x4.
const fn signs_2(bit: usize) -> [i16; OUTPUTS] {
    let mut signs = [0; OUTPUTS];
    let mut lane = 0;
    while lane < OUTPUTS {
        let (dense, set) = (lane % 8 < 4, lane >> bit & 1 == 1);
        signs[lane] = if set { 1 } else { -(dense as i16) };
        lane += 1;
    }
    signs
}

/// TGEMV_8x16: adds 8 columns of 16 outputs. A lane of `weights` has for each block 2 dense and above them 2 sparse bits.
#[inline(always)]
pub(super) fn tgemv_8x16<R: Registers>(r: R, sums: R::Words, tables: &[R::Words; 2], weights: R::Words) -> R::Words {
    let sums = block_2::<R, 0, 2, false>(r, sums, tables[0], weights);
    let sums = block_2::<R, 4, 6, true>(r, sums, tables[0], weights);
    let sums = block_2::<R, 8, 10, false>(r, sums, tables[1], weights);
    block_2::<R, 12, 14, true>(r, sums, tables[1], weights)
}

/// Adds the dense and takes the sparse entry of a block whose bits begin at `DENSE` and `SPARSE`.
#[inline(always)]
fn block_2<R: Registers, const DENSE: i32, const SPARSE: i32, const UPPER: bool>(
    r: R,
    sums: R::Words,
    table: R::Words,
    weights: R::Words,
) -> R::Words {
    let dense = r.lookup_8::<UPPER>(table, r.field::<DENSE>(weights, 3));
    // The sparse entries follow the four dense ones.
    let sparse = r.add(r.field::<SPARSE>(weights, 3), r.words([4; OUTPUTS]));
    r.sub(r.add(sums, dense), r.lookup_8::<UPPER>(table, sparse))
}

/// TLUT_4x4: from 16 activations the tables of 4 blocks of 4, a register of 16 dense and one of 16 sparse entries for
/// each block.
#[inline(always)]
pub(super) fn tlut_4x4<R: Registers>(r: R, activations: [i8; 16]) -> [R::Words; 8] {
    let halves = activations.as_chunks::<8>().0;
    let halves = [r.widen(halves[0]), r.widen(halves[1])];
    let [dense_0, sparse_0] = block_tables::<R, 0>(r, halves[0]);
    let [dense_1, sparse_1] = block_tables::<R, 4>(r, halves[0]);
    let [dense_2, sparse_2] = block_tables::<R, 0>(r, halves[1]);
    let [dense_3, sparse_3] = block_tables::<R, 4>(r, halves[1]);
    [dense_0, sparse_0, dense_1, sparse_1, dense_2, sparse_2, dense_3, sparse_3]
}

/// The dense and the sparse table of the four activations from number `FIRST` on.
#[inline(always)]
fn block_tables<R: Registers, const FIRST: i16>(r: R, activations: R::Words) -> [R::Words; 2] {
    let dense = const { [signs_4(3, -1), signs_4(2, -1), signs_4(1, -1), signs_4(0, -1)] };
    let sparse = const { [signs_4(3, 0), signs_4(2, 0), signs_4(1, 0), signs_4(0, 0)] };
    let mut tables = [r.words([0; OUTPUTS]); 2];
    for at in 0..4 {
        let a = r.lookup_8::<false>(activations, r.words([FIRST + at as i16; OUTPUTS]));
        tables[0] = r.add(tables[0], r.sign(a, r.words(dense[at])));
        tables[1] = r.add(tables[1], r.sign(a, r.words(sparse[at])));
    }
    tables
}

/// 1 in the entries whose index has this bit, `otherwise` in the others.
const fn signs_4(bit: usize, otherwise: i16) -> [i16; OUTPUTS] {
    let mut signs = [otherwise; OUTPUTS];
    let mut lane = 0;
    while lane < OUTPUTS {
        if lane >> bit & 1 == 1 {
            signs[lane] = 1;
        }
        lane += 1;
    }
    signs
}

/// TGEMV_16x16: adds 16 columns of 16 outputs. A lane of a weight register has for each of two blocks 4 dense and above
/// them 4 sparse bits.
#[inline(always)]
pub(super) fn tgemv_16x16<R: Registers>(
    r: R,
    mut sums: R::Words,
    tables: &[R::Words; 8],
    weights: [R::Words; 2],
) -> R::Words {
    for half in 0..2 {
        let (tables, weights) = (&tables[4 * half..], weights[half]);
        let dense = r.lookup_16(tables[0], r.field::<0>(weights, 15));
        let sparse = r.lookup_16(tables[1], r.field::<4>(weights, 15));
        sums = r.sub(r.add(sums, dense), sparse);
        let dense = r.lookup_16(tables[2], r.field::<8>(weights, 15));
        let sparse = r.lookup_16(tables[3], r.field::<12>(weights, 15));
        sums = r.sub(r.add(sums, dense), sparse);
    }
    sums
}
