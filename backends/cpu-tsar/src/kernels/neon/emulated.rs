//! Lane by lane what the NEON instructions do; int16 sums must not overflow, so here they panic if they do.

/// Sixteen bytes.
pub(super) type I8 = [i8; 16];
/// Eight int16.
pub(in crate::kernels) type I16 = [i16; 8];
/// Four int32.
pub(super) type I32 = [i32; 4];

#[derive(Clone, Copy)]
pub(in crate::kernels) struct Lanes;

impl Lanes {
    pub(in crate::kernels) fn new() -> Self {
        Lanes
    }

    pub(super) fn zero(self) -> I16 {
        [0; 8]
    }

    pub(super) fn zero32(self) -> I32 {
        [0; 4]
    }

    pub(super) fn broadcast(self, activations: i32) -> I8 {
        bytemuck::cast([activations; 4])
    }

    pub(super) fn signed(self, codes: &[u8; 16]) -> I8 {
        codes.map(|code| code as i8)
    }

    pub(super) fn field<const SHIFT: i32>(self, codes: &[u8; 16], mask: u8) -> I8 {
        codes.map(|code| (code >> SHIFT & mask) as i8)
    }

    pub(super) fn multiply_add_low(self, sums: I16, a: I8, b: I8) -> I16 {
        std::array::from_fn(|i| add(sums[i], i16::from(a[i]) * i16::from(b[i])))
    }

    pub(super) fn multiply_add_high(self, sums: I16, a: I8, b: I8) -> I16 {
        std::array::from_fn(|i| add(sums[i], i16::from(a[8 + i]) * i16::from(b[8 + i])))
    }

    pub(super) fn add_pairs(self, sums: I32, pairs: I16) -> I32 {
        std::array::from_fn(|i| sums[i] + i32::from(pairs[2 * i]) + i32::from(pairs[2 * i + 1]))
    }

    pub(super) fn add_across(self, a: I32, b: I32) -> [i32; 4] {
        [a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3]]
    }

    pub(super) fn dot(self, sums: I32, a: I8, b: I8) -> I32 {
        std::array::from_fn(|i| sums[i] + (4 * i..4 * i + 4).map(|at| i32::from(a[at]) * i32::from(b[at])).sum::<i32>())
    }

    pub(super) fn rows(self, sums: [I32; 2]) -> [i32; 8] {
        bytemuck::cast(sums)
    }

    pub(in crate::kernels) fn words(self, words: [i16; 8]) -> I16 {
        words
    }

    pub(in crate::kernels) fn array(self, words: I16) -> [i16; 8] {
        words
    }

    pub(in crate::kernels) fn splat(self, word: i16) -> I16 {
        [word; 8]
    }

    pub(in crate::kernels) fn widen(self, bytes: [i8; 8]) -> I16 {
        bytes.map(i16::from)
    }

    pub(in crate::kernels) fn add(self, a: I16, b: I16) -> I16 {
        std::array::from_fn(|i| add(a[i], b[i]))
    }

    pub(in crate::kernels) fn subtract(self, a: I16, b: I16) -> I16 {
        std::array::from_fn(|i| a[i].checked_sub(b[i]).expect("an int16 difference overflowed"))
    }

    pub(in crate::kernels) fn multiply(self, a: I16, b: I16) -> I16 {
        std::array::from_fn(|i| a[i].checked_mul(b[i]).expect("an int16 product overflowed"))
    }

    pub(in crate::kernels) fn exclusive_or(self, a: I16, b: I16) -> I16 {
        std::array::from_fn(|i| a[i] ^ b[i])
    }

    pub(in crate::kernels) fn word_field<const SHIFT: i32>(self, words: I16, mask: i16) -> I16 {
        words.map(|word| word >> SHIFT & mask)
    }

    pub(in crate::kernels) fn shuffle(self, table: I16, bytes: I16) -> I16 {
        let (table, bytes): ([u8; 16], [u8; 16]) = (bytemuck::cast(table), bytemuck::cast(bytes));
        bytemuck::cast(bytes.map(|byte| table.get(usize::from(byte)).copied().unwrap_or(0)))
    }
}

fn add(a: i16, b: i16) -> i16 {
    a.checked_add(b).expect("an int16 sum overflowed")
}
