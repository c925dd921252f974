//! One chunk of positions for one group of query heads, and the merging of such partial results.

// Lanes are gone over by index: what is called in a closure would be compiled without the instruction set.
#![allow(clippy::needless_range_loop)]

use pulp::NullaryFnOnce;

use super::CHUNK;
use crate::isa::Isa;
use crate::kv::Vectors;
use crate::ops::math;
use crate::simd::{Kernel, LANES, Simd};

/// Vectors that are widened at a time: with 128 columns 8 KB, which stay in the nearest cache.
pub(super) const TILE: usize = 16;

type Lanes = [f32; LANES];

/// The partial results of some rows over one chunk of positions.
pub(super) struct Chunk<'a> {
    /// `[positions, stride]`, as many as the longest of `lens`.
    pub(super) keys: Vectors<'a>,
    /// The same of values.
    pub(super) values: Vectors<'a>,
    /// For each row, how many of the positions it sees; at most [`CHUNK`].
    pub(super) lens: &'a [usize],
    /// Padded length of a vector.
    pub(super) stride: usize,
    /// Query heads of a row.
    pub(super) group: usize,
    /// `[rows, group, stride]`, scaled.
    pub(super) queries: &'a [f32],
    /// Working memory, `[rows, group, CHUNK]`.
    pub(super) scores: &'a mut [f32],
    /// Working memory, `[TILE, stride]`.
    pub(super) tile: &'a mut [f32],
    /// The results of `[rows, group]`.
    pub(super) partial: Partial<&'a mut [f32]>,
}

/// Partial results of some query heads.
pub(super) struct Partial<S> {
    /// `[heads, stride]`: sums of the values, weighted with `e^(score - highest)`.
    values: S,
    /// `[heads]`.
    highest: S,
    /// `[heads]`: sums of the weights.
    total: S,
}

impl<'a> Partial<&'a mut [f32]> {
    /// In memory of `heads * (stride + 2)`.
    pub(super) fn of(memory: &'a mut [f32], heads: usize) -> Self {
        let (values, sums) = memory.split_at_mut(memory.len() - 2 * heads);
        let (highest, total) = sums.split_at_mut(heads);
        Partial { values, highest, total }
    }

    /// The `count` heads from `first` on.
    pub(super) fn heads(&mut self, first: usize, count: usize) -> Partial<&mut [f32]> {
        let stride = self.values.len() / self.total.len();
        Partial {
            values: &mut self.values[first * stride..(first + count) * stride],
            highest: &mut self.highest[first..first + count],
            total: &mut self.total[first..first + count],
        }
    }

    /// To read only.
    pub(super) fn shared(&self) -> Partial<&[f32]> {
        Partial { values: self.values, highest: self.highest, total: self.total }
    }
}

impl<'a> Partial<&'a [f32]> {
    /// From memory of `heads * (stride + 2)`.
    pub(super) fn read(memory: &'a [f32], heads: usize) -> Self {
        let (values, sums) = memory.split_at(memory.len() - 2 * heads);
        let (highest, total) = sums.split_at(heads);
        Partial { values, highest, total }
    }
}

impl Kernel for Chunk<'_> {
    #[inline(always)]
    fn run(mut self, simd: impl Simd) {
        match self.keys {
            Vectors::F32(keys) => self.score(simd, keys),
            Vectors::F16(keys) => self.score(simd, keys),
            Vectors::Int8(keys, scales) => {
                self.score(simd, keys);
                self.scale(scales);
            }
        }
        self.softmax();
        match self.values {
            Vectors::F32(values) => self.weigh(simd, values),
            Vectors::F16(values) => self.weigh(simd, values),
            Vectors::Int8(values, scales) => {
                self.scale(scales);
                self.weigh(simd, values);
            }
        }
    }
}

impl Chunk<'_> {
    /// Positions that any row sees.
    fn longest(&self) -> usize {
        self.lens.iter().copied().max().unwrap_or(0)
    }

    /// `scores[h][p] = queries[h] · keys[p]`.
    #[inline(always)]
    fn score<C: Cell>(&mut self, simd: impl Simd, keys: &[C]) {
        let stride = self.stride;
        let longest = self.longest();
        for start in (0..longest).step_by(TILE) {
            let tile = (longest - start).min(TILE);
            let keys = C::widen(&keys[start * stride..(start + tile) * stride], self.tile);
            for_heads(self.lens, self.group, start, |h, together, seen| {
                let (queries, keys) = (&self.queries[h * stride..], &keys[..seen * stride]);
                let scores = &mut self.scores[h * CHUNK + start..];
                match together {
                    4 => dots::<4>(simd, queries, keys, stride, scores),
                    2 => dots::<2>(simd, queries, keys, stride, scores),
                    _ => dots::<1>(simd, queries, keys, stride, scores),
                }
            });
        }
    }

    /// `scores[h][p] *= scales[p]`.
    #[inline(always)]
    fn scale(&mut self, scales: &[f32]) {
        let heads = self.lens.len() * self.group;
        for (h, scores) in self.scores.chunks_exact_mut(CHUNK).take(heads).enumerate() {
            let scores = &mut scores[..self.lens[h / self.group]];
            scores.iter_mut().zip(scales).for_each(|(score, scale)| *score *= scale);
        }
    }

    /// Turns scores into weights `e^(score - highest)`; the highest and the weights' sum go to the result.
    #[inline(always)]
    fn softmax(&mut self) {
        let heads = self.lens.len() * self.group;
        for (h, scores) in self.scores.chunks_exact_mut(CHUNK).take(heads).enumerate() {
            let scores = &mut scores[..self.lens[h / self.group]];
            let highest = max(scores);
            for score in &mut *scores {
                *score = math::exp(*score - highest);
            }
            self.partial.highest[h] = highest;
            self.partial.total[h] = math::sum(scores, |weight| weight) as f32;
        }
    }

    /// `values[h] = Σ scores[h][p] · values[p]`.
    #[inline(always)]
    fn weigh<C: Cell>(&mut self, simd: impl Simd, values: &[C]) {
        let stride = self.stride;
        let longest = self.longest();
        self.partial.values.fill(0.0);
        for start in (0..longest).step_by(TILE) {
            let tile = (longest - start).min(TILE);
            let values = C::widen(&values[start * stride..(start + tile) * stride], self.tile);
            for_heads(self.lens, self.group, start, |h, together, seen| {
                let (weights, values) = (&self.scores[h * CHUNK + start..], &values[..seen * stride]);
                let sums = &mut self.partial.values[h * stride..];
                match together {
                    4 => weighted_sums::<4>(simd, weights, values, stride, sums),
                    2 => weighted_sums::<2>(simd, weights, values, stride, sums),
                    _ => weighted_sums::<1>(simd, weights, values, stride, sums),
                }
            });
        }
    }
}

/// Calls `task(first head, 4, 2 or 1 heads, positions that they see)` until all heads of all rows that see any of the
/// [`TILE`] positions from `start` on have been covered. Rows that see equally many go together, so that groups of
/// any size fill the registers.
#[inline(always)]
fn for_heads(lens: &[usize], group: usize, start: usize, mut task: impl FnMut(usize, usize, usize)) {
    let seen = |row: usize| lens[row].saturating_sub(start).min(TILE);
    let mut row = 0;
    while row < lens.len() {
        let positions = seen(row);
        let first = row * group;
        row += 1;
        while row < lens.len() && seen(row) == positions {
            row += 1;
        }
        if positions == 0 {
            continue;
        }
        let mut head = first;
        while head < row * group {
            let together = match row * group - head {
                4.. => 4,
                2..=3 => 2,
                _ => 1,
            };
            task(head, together, positions);
            head += together;
        }
    }
}

/// `scores[g · CHUNK + p] = queries[g] · keys[p]` for G heads: lane sums, then a tree.
#[inline(always)]
fn dots<const G: usize>(simd: impl Simd, queries: &[f32], keys: &[f32], stride: usize, scores: &mut [f32]) {
    let queries: [&[Lanes]; G] = std::array::from_fn(|g| lanes(&queries[g * stride..(g + 1) * stride]));
    let mut pairs = keys.chunks_exact(2 * stride);
    let mut p = 0;
    for pair in &mut pairs {
        let (first, second) = pair.split_at(stride);
        let sums = dots_of(simd, queries, [lanes(first), lanes(second)]);
        for g in 0..G {
            scores[g * CHUNK + p..][..2].copy_from_slice(&sums[g]);
        }
        p += 2;
    }
    if !pairs.remainder().is_empty() {
        let sums = dots_of(simd, queries, [lanes(pairs.remainder())]);
        for g in 0..G {
            scores[g * CHUNK + p] = sums[g][0];
        }
    }
}

/// The product of each query with each key.
#[inline(always)]
fn dots_of<S: Simd, const G: usize, const P: usize>(
    simd: S,
    queries: [&[Lanes]; G],
    keys: [&[Lanes]; P],
) -> [[f32; P]; G] {
    let len = queries[0].len();
    assert!(queries.iter().chain(&keys).all(|vector| vector.len() == len)); // No more checks in the loop.
    let mut sums = [[simd.splat(0.0); P]; G];
    for i in 0..len {
        let mut here = [simd.splat(0.0); P];
        for p in 0..P {
            here[p] = simd.load(&keys[p][i]);
        }
        for g in 0..G {
            let query = simd.load(&queries[g][i]);
            for p in 0..P {
                sums[g][p] = simd.add(sums[g][p], simd.mul(query, here[p]));
            }
        }
    }
    let mut dots = [[0.0; P]; G];
    for g in 0..G {
        for p in 0..P {
            dots[g][p] = simd.sum(sums[g][p]);
        }
    }
    dots
}

/// `sums[g · stride + i] += Σ weights[g · CHUNK + p] · values[p][i]` for G heads, in the order of positions.
#[inline(always)]
fn weighted_sums<const G: usize>(simd: impl Simd, weights: &[f32], values: &[f32], stride: usize, sums: &mut [f32]) {
    let whole = stride / (2 * LANES) * 2 * LANES;
    for at in (0..whole).step_by(2 * LANES) {
        weighted_lanes::<_, G, 2>(simd, weights, values, stride, at, sums);
    }
    if whole < stride {
        weighted_lanes::<_, G, 1>(simd, weights, values, stride, whole, sums);
    }
}

/// [`weighted_sums`] of `N` times [`LANES`] columns from `at` on.
#[inline(always)]
fn weighted_lanes<S: Simd, const G: usize, const N: usize>(
    simd: S,
    weights: &[f32],
    values: &[f32],
    stride: usize,
    at: usize,
    sums: &mut [f32],
) {
    let rows = values.len() / stride;
    let weights: [&[f32]; G] = std::array::from_fn(|g| &weights[g * CHUNK..][..rows]);
    let mut local = [[simd.splat(0.0); N]; G];
    for g in 0..G {
        let sums: &[Lanes; N] = array(&sums[g * stride + at..]);
        for n in 0..N {
            local[g][n] = simd.load(&sums[n]);
        }
    }
    for p in 0..rows {
        let from: &[Lanes; N] = array(&values[p * stride + at..]);
        let mut value = [simd.splat(0.0); N];
        for n in 0..N {
            value[n] = simd.load(&from[n]);
        }
        for g in 0..G {
            let weight = simd.splat(weights[g][p]);
            for n in 0..N {
                local[g][n] = simd.add(local[g][n], simd.mul(weight, value[n]));
            }
        }
    }
    for g in 0..G {
        let (sums, _) = sums[g * stride + at..][..N * LANES].as_chunks_mut();
        for n in 0..N {
            simd.store(local[g][n], &mut sums[n]);
        }
    }
}

#[inline(always)]
fn lanes(x: &[f32]) -> &[Lanes] {
    x.as_chunks().0
}

/// The first `N` times [`LANES`] values.
#[inline(always)]
fn array<const N: usize>(x: &[f32]) -> &[Lanes; N] {
    lanes(x).first_chunk().expect("a vector is whole lanes")
}

/// The largest; NaN only if all are.
#[inline(always)]
fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for (lane, &x) in lanes.iter_mut().zip(x) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |largest, &x| largest.max(x))
}

/// A number that keys and values are stored in.
trait Cell: Copy {
    /// The same numbers as floats, in `tile` unless they are floats already.
    fn widen<'t>(cells: &'t [Self], tile: &'t mut [f32]) -> &'t [f32];
}

impl Cell for f32 {
    #[inline(always)]
    fn widen<'t>(cells: &'t [f32], _: &'t mut [f32]) -> &'t [f32] {
        cells
    }
}

impl Cell for i8 {
    #[inline(always)]
    fn widen<'t>(cells: &'t [i8], tile: &'t mut [f32]) -> &'t [f32] {
        let tile = &mut tile[..cells.len()];
        tile.iter_mut().zip(cells).for_each(|(to, &code)| *to = f32::from(code));
        tile
    }
}

/// The bits of f16.
impl Cell for u16 {
    #[inline(always)]
    fn widen<'t>(cells: &'t [u16], tile: &'t mut [f32]) -> &'t [f32] {
        let tile = &mut tile[..cells.len()];
        tile.iter_mut().zip(cells).for_each(|(to, &bits)| *to = widen_f16(bits));
        tile
    }
}

/// f16 to f32, exactly. The bits moved to f32's places are the number times 2^-112 (also for subnormals);
/// only infinity and NaN need their exponent replaced.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    const TWO_TO_112: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * TWO_TO_112).to_bits();
    let special = magnitude | 0x7f80_0000;
    let widened = if bits & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(widened | (bits & 0x8000) << 16)
}

/// Merges the partial results of the next chunk into those of the chunks before it.
pub(super) fn merge(isa: Isa, into: Partial<&mut [f32]>, next: Partial<&[f32]>) {
    isa.vectorize(Merge { into, next });
}

struct Merge<'a> {
    into: Partial<&'a mut [f32]>,
    next: Partial<&'a [f32]>,
}

impl NullaryFnOnce for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Merge { into, next } = self;
        let heads = next.total.len();
        let stride = next.values.len() / heads;
        for h in 0..heads {
            let (highest, next_highest) = (into.highest[h], next.highest[h]);
            let both = highest.max(next_highest);
            let (keep, add) = (math::exp(highest - both), math::exp(next_highest - both));
            into.highest[h] = both;
            into.total[h] = into.total[h] * keep + next.total[h] * add;
            let next = &next.values[h * stride..(h + 1) * stride];
            for (value, next) in into.values[h * stride..(h + 1) * stride].iter_mut().zip(next) {
                *value = *value * keep + next * add;
            }
        }
    }
}

/// Divides by the weights' sum: `out` is `[heads, dim]`.
pub(super) fn finish(isa: Isa, dim: usize, partial: Partial<&[f32]>, out: &mut [f32]) {
    isa.vectorize(Finish { dim, partial, out });
}

struct Finish<'a> {
    dim: usize,
    partial: Partial<&'a [f32]>,
    out: &'a mut [f32],
}

impl NullaryFnOnce for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Partial { values, total, .. } = self.partial;
        let stride = values.len() / total.len();
        for (h, (out, values)) in self.out.chunks_exact_mut(self.dim).zip(values.chunks_exact(stride)).enumerate() {
            let scale = 1.0 / total[h];
            out.iter_mut().zip(values).for_each(|(out, value)| *out = value * scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (got, expected) = (widen_f16(bits), half::f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn the_largest_is_found_anywhere() {
        for len in 1..40 {
            for at in 0..len {
                let mut x = vec![-3.0; len];
                x[at] = -1.0;
                assert_eq!(max(&x), -1.0);
            }
        }
    }
}
