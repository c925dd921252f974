//! Deterministic inputs: a generator, matrices of every format, and steps.

use half::{bf16, f16};

use crate::{Activation, Codes, Format, Group, HostMatrix, Int4, Int8, Row, Ternary, Zero, ZeroKind};

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): the same
/// inputs on every machine.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0..bound.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Both ends included.
    pub(super) fn integer(&mut self, low: i32, high: i32) -> i32 {
        low + self.below((high - low + 1) as usize) as i32
    }

    /// 0.0..1.0 in steps of 2^-24.
    pub(super) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// -1.0..1.0.
    pub(super) fn signed(&mut self) -> f32 {
        2.0 * self.unit() - 1.0
    }

    /// Either sign, the magnitude's logarithm uniform.
    pub(super) fn magnitude(&mut self, low: f32, high: f32) -> f32 {
        self.sign() * low * (high / low).powf(self.unit())
    }

    pub(super) fn sign(&mut self) -> f32 {
        if self.next() >> 63 == 0 { 1.0 } else { -1.0 }
    }

    pub(super) fn floats(&mut self, count: usize, largest: f32) -> Vec<f32> {
        (0..count).map(|_| largest * self.signed()).collect()
    }
}

pub(super) const GROUPS: [Group; 4] = [Group::G32, Group::G64, Group::G128, Group::Row];
pub(super) const DENSE: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

/// Ternary, every INT4 and every INT8 format.
pub(super) fn integer_formats() -> Vec<Format> {
    let mut formats = vec![Format::Ternary];
    for zero in [ZeroKind::Symmetric, ZeroKind::Point, ZeroKind::Min] {
        formats.extend(GROUPS.map(|group| Format::Int4 { group, zero }));
    }
    formats.extend(GROUPS.map(|group| Format::Int8 { group }));
    formats
}

/// The activations that matrices of `format` can be multiplied with.
pub(super) fn activations(format: Format) -> &'static [Activation] {
    match format {
        Format::F32 | Format::F16 | Format::Bf16 => &[Activation::Float],
        Format::Ternary => &[Activation::Token],
        Format::Int4 { .. } | Format::Int8 { .. } => &[Activation::Block, Activation::Token],
    }
}

/// Codes and scales of a matrix before they are packed.
pub(super) struct Parts {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// What the format stores: t, u or q, `[rows, columns]`.
    pub(super) codes: Vec<i32>,
    /// `[rows, groups of a row]`; a ternary matrix has one group to a row.
    pub(super) scales: Vec<f32>,
    /// Zero points or minima, as long as `scales`; not looked at by formats without.
    pub(super) zeros: Vec<f32>,
}

impl Parts {
    /// # Panics
    /// If the parts do not fit the format: a fault of the suite.
    pub(super) fn pack(&self, format: Format) -> HostMatrix<'static> {
        let halves = |values: &[f32]| values.iter().map(|&value| f16::from_f32(value)).collect::<Vec<_>>();
        let codes = match format {
            Format::Ternary => {
                let codes = self.bytes(4, |code, at| ((code + 1) as u8) << (2 * at));
                Codes::Ternary(Ternary::new(codes, self.scales.clone()))
            }
            Format::Int4 { group, zero } => {
                let zero = match zero {
                    ZeroKind::Symmetric => Zero::Symmetric,
                    ZeroKind::Point => Zero::Point(self.zeros.iter().map(|&zero| zero as u8).collect()),
                    ZeroKind::Min => Zero::Min(halves(&self.zeros).into()),
                };
                let codes = self.bytes(2, |code, at| (code as u8) << (4 * at));
                Codes::Int4(Int4::new(group, codes, halves(&self.scales), zero))
            }
            Format::Int8 { group } => {
                let codes: Vec<i8> = self.codes.iter().map(|&code| code as i8).collect();
                Codes::Int8(Int8::new(group, codes, halves(&self.scales)))
            }
            Format::F32 | Format::F16 | Format::Bf16 => unreachable!("dense matrices have no codes"),
        };
        HostMatrix::new(self.rows, self.columns, codes).expect("the parts fit the format")
    }

    fn bytes(&self, per_byte: usize, place: impl Fn(i32, usize) -> u8) -> Vec<u8> {
        let pack = |codes: &[i32]| codes.iter().enumerate().fold(0, |byte, (at, &code)| byte | place(code, at));
        self.codes.chunks(self.columns).flat_map(|row| row.chunks(per_byte).map(pack)).collect()
    }
}

/// Groups of a row, for every format but the dense ones.
pub(super) fn groups(format: Format, columns: usize) -> usize {
    match format {
        Format::Int4 { group, .. } | Format::Int8 { group } => group.count(columns),
        _ => 1,
    }
}

/// The lowest and the highest code of a format.
pub(super) fn code_range(format: Format) -> (i32, i32) {
    match format {
        Format::Ternary => (-1, 1),
        Format::Int4 { .. } => (0, 15),
        _ => (-127, 127),
    }
}

/// A matrix of any format with random weights: every code is used, scales differ by up to `1 : 8`, and
/// weights stay below about 1 / 8.
pub(super) fn random_matrix(random: &mut Random, format: Format, rows: usize, columns: usize) -> HostMatrix<'static> {
    if format.is_dense() {
        return dense_matrix(format, columns, &random.floats(rows * columns, 0.125));
    }
    let (low, high) = code_range(format);
    let codes = (0..rows * columns).map(|_| random.integer(low, high)).collect();
    let count = rows * groups(format, columns);
    let step = 0.125 / high as f32;
    let scales = (0..count).map(|_| step * (1.0 + 7.0 * random.unit()) / 8.0).collect();
    let zeros = match format {
        Format::Int4 { zero: ZeroKind::Min, .. } => random.floats(count, 0.125),
        _ => (0..count).map(|_| random.integer(0, 16) as f32).collect(),
    };
    Parts { rows, columns, codes, scales, zeros }.pack(format)
}

/// A dense matrix of `[values.len() / columns, columns]`.
pub(super) fn dense_matrix(format: Format, columns: usize, values: &[f32]) -> HostMatrix<'static> {
    let codes = match format {
        Format::F16 => Codes::F16(values.iter().map(|&value| f16::from_f32(value)).collect()),
        Format::Bf16 => Codes::Bf16(values.iter().map(|&value| bf16::from_f32(value)).collect()),
        _ => Codes::F32(values.to_vec().into()),
    };
    HostMatrix::new(values.len() / columns, columns, codes).expect("a dense matrix of whole rows")
}

/// The rows of a step at positions 0.. of sequence 0, all with an output: for ops that ask no more.
pub(super) fn plain_rows(batch: usize) -> Vec<Row> {
    (0..batch as u32).map(|row| Row { token: row, sequence: 0, position: row, output: true }).collect()
}

/// A RoPE table of `[positions, dim]`: cosines, then sines (base 10000).
pub(super) fn rope_table(positions: usize, dim: usize) -> Vec<f32> {
    let half = dim / 2;
    let angle = |position: usize, i: usize| position as f64 * 1e4f64.powf(-(i as f64) / half as f64);
    let row = |position| {
        let cosines = (0..half).map(move |i| angle(position, i).cos() as f32);
        cosines.chain((0..half).map(move |i| angle(position, i).sin() as f32))
    };
    (0..positions).flat_map(row).collect()
}
