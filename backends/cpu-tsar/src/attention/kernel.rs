//! One chunk of positions for one group of query heads, and the merging of such partial results.

// Lanes are gone over by index: what is called in a closure would be compiled without the instruction set.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use pulp::NullaryFnOnce;

use super::CHUNK;
use crate::isa::Isa;
use crate::kv::Vectors;
use crate::ops::math;
use crate::simd::{Kernel, LANES, Simd};

/// Positions of values that a step of one row goes over at a time: with 128 columns 4 KB of f16, which stay in the nearest cache
/// while strip after strip of their columns is added up.
const TILE: usize = 16;

/// From one head's scores to the next: a cache line more than a chunk has, so that equal positions of some heads do not all fall
/// into the same set of the nearest cache.
pub(super) const SCORES: usize = CHUNK + 16;

/// Vectors of widened numbers that are used together.
const PAIR: usize = 2;

/// Numbers in the memory that keys or values are widened in: two blocks of keys, or two vectors of each of a chunk's values.
pub(super) fn widened_len(stride: usize) -> usize {
    PAIR * LANES * stride.max(CHUNK)
}

type Lanes = [f32; LANES];

/// The partial results of some rows over one chunk of positions.
pub(super) struct Chunk<'a> {
    /// `[blocks, dim, LANES]`: blocks of positions, as many as the longest of `lens` takes.
    pub(super) keys: Vectors<'a>,
    /// `[positions, stride]`, as many as the longest of `lens`.
    pub(super) values: Vectors<'a>,
    /// The keys that the same worker goes over next, which are asked for in the meantime.
    pub(super) next: Option<Vectors<'a>>,
    /// Whether this chunk's keys were asked for so.
    pub(super) asked: bool,
    /// For each row, how many of the positions it sees; at most [`CHUNK`].
    pub(super) lens: &'a [usize],
    /// Length of a vector.
    pub(super) dim: usize,
    /// The same padded to whole lanes.
    pub(super) stride: usize,
    /// Query heads of a row.
    pub(super) group: usize,
    /// `[rows, group, stride]`, scaled.
    pub(super) queries: &'a [f32],
    /// Working memory, `[rows, group, SCORES]`.
    pub(super) scores: &'a mut [f32],
    /// Working memory of [`widened_len`].
    pub(super) widened: &'a mut [f32],
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

    /// Heads if they are of one row: then there may be so few that a vector is best widened where it is used.
    #[inline(always)]
    fn heads_of_one_row(&self) -> usize {
        if self.lens.len() == 1 { self.group } else { 0 }
    }

    /// How far ahead keys are asked for because nobody asked for them before.
    #[inline(always)]
    fn near(&self) -> usize {
        if self.asked { 0 } else { NEAR }
    }

    /// `scores[h][p] = queries[h] · keys[p]`, whole blocks of positions, whatever the last has beyond those that are seen.
    #[inline(always)]
    fn score<C: Cell>(&mut self, simd: impl Simd, keys: &[C]) {
        let keys = &lanes(keys)[..self.longest().div_ceil(LANES) * self.dim];
        match self.heads_of_one_row() {
            1 => self.score_once::<_, C, 1, 8>(simd, keys),
            2 => self.score_once::<_, C, 2, 4>(simd, keys),
            3 => self.score_once::<_, C, 3, 4>(simd, keys),
            4 => self.score_once::<_, C, 4, 2>(simd, keys),
            6 => self.score_once::<_, C, 6, 2>(simd, keys),
            _ => self.score_widened(simd, keys),
        }
    }

    /// [`Chunk::score`] of all `G` heads: a key is widened where it is used.
    #[inline(always)]
    fn score_once<S: Simd, C: Cell, const G: usize, const P: usize>(&mut self, simd: S, keys: &[[C; LANES]]) {
        let (mut at, mut block) = (0, P * self.dim);
        let (values, near) = (Coming::of(Some(self.values)), self.near());
        while at < keys.len() {
            let scores = &mut self.scores[at / self.dim * LANES..];
            if at + block > keys.len() {
                block = self.dim;
            }
            let (coming, keys) = (values.during(&keys[..at], near), &keys[at..at + block]);
            match block == P * self.dim {
                true => dots::<S, C, G, P>(simd, self.queries, self.stride, keys, coming, scores),
                false => dots::<S, C, G, 1>(simd, self.queries, self.stride, keys, coming, scores),
            }
            at += block;
        }
    }

    /// [`Chunk::score`] of many heads: keys are widened once for all of them.
    #[inline(always)]
    fn score_widened<C: Cell>(&mut self, simd: impl Simd, keys: &[[C; LANES]]) {
        let (dim, stride) = (self.dim, self.stride);
        let (values, near) = (Coming::of(Some(self.values)), self.near());
        let widened = &mut self.widened[..PAIR * LANES * dim];
        for (pair, now) in keys.chunks(PAIR * dim).enumerate() {
            let coming = values.during(&keys[..pair * PAIR * dim], near);
            // Of an odd last block the second is whatever was there: nobody sees its positions.
            for (i, (to, from)) in lanes_mut(widened).iter_mut().zip(now).enumerate() {
                if i % C::IN_LINE == 0 {
                    coming.ask(simd, i / C::IN_LINE);
                    coming.ask_near(simd, from);
                }
                simd.store(C::load(simd, from), to);
            }
            let (start, keys) = (pair * PAIR * LANES, lanes(widened));
            let mut runs = Runs::new(self.lens, self.group, start);
            while let Some((h, together, _)) = runs.next() {
                let (queries, scores) = (&self.queries[h * stride..], &mut self.scores[h * SCORES + start..]);
                match together {
                    6 => dots::<_, f32, 6, PAIR>(simd, queries, stride, keys, Coming::NOTHING, scores),
                    5 => dots::<_, f32, 5, PAIR>(simd, queries, stride, keys, Coming::NOTHING, scores),
                    4 => dots::<_, f32, 4, PAIR>(simd, queries, stride, keys, Coming::NOTHING, scores),
                    3 => dots::<_, f32, 3, PAIR>(simd, queries, stride, keys, Coming::NOTHING, scores),
                    2 => dots::<_, f32, 2, PAIR>(simd, queries, stride, keys, Coming::NOTHING, scores),
                    _ => dots::<_, f32, 1, PAIR>(simd, queries, stride, keys, Coming::NOTHING, scores),
                }
            }
        }
    }

    /// `scores[h][p] *= scales[p]`.
    #[inline(always)]
    fn scale(&mut self, scales: &[f32]) {
        let heads = self.lens.len() * self.group;
        for (h, scores) in self.scores.chunks_exact_mut(SCORES).take(heads).enumerate() {
            let scores = &mut scores[..self.lens[h / self.group]];
            scores.iter_mut().zip(scales).for_each(|(score, scale)| *score *= scale);
        }
    }

    /// Turns scores into weights `e^(score - highest)`; the highest and the weights' sum go to the result.
    #[inline(always)]
    fn softmax(&mut self) {
        let heads = self.lens.len() * self.group;
        for (h, scores) in self.scores.chunks_exact_mut(SCORES).take(heads).enumerate() {
            let scores = &mut scores[..self.lens[h / self.group]];
            let highest = max(scores);
            for score in &mut *scores {
                *score = math::exp(*score - highest);
            }
            self.partial.highest[h] = highest;
            self.partial.total[h] = math::sum(scores, |weight| weight) as f32;
        }
    }

    /// `values[h] = Σ scores[h][p] · values[p]`, in the order of positions.
    #[inline(always)]
    fn weigh<C: Cell>(&mut self, simd: impl Simd, values: &[C]) {
        self.partial.values.fill(0.0);
        match self.heads_of_one_row() {
            1 => self.weigh_once::<_, C, 1, 8>(simd, values),
            2 => self.weigh_once::<_, C, 2, 4>(simd, values),
            3 => self.weigh_once::<_, C, 3, 4>(simd, values),
            4 => self.weigh_once::<_, C, 4, 2>(simd, values),
            6 => self.weigh_once::<_, C, 6, 2>(simd, values),
            _ => self.weigh_widened(simd, values),
        }
    }

    /// [`Chunk::weigh`] of a row of `G` heads: a value is widened where it is used.
    #[inline(always)]
    fn weigh_once<S: Simd, C: Cell, const G: usize, const N: usize>(&mut self, simd: S, values: &[C]) {
        let (stride, next) = (self.stride, Coming::of(self.next));
        let values = &values[..self.lens[0] * stride];
        for (tile, part) in values.chunks(TILE * stride).enumerate() {
            let (weights, before) = (&self.scores[tile * TILE..], &values[..tile * TILE * stride]);
            weighted_sums::<S, C, G, N>(simd, weights, part, stride, next.during(before, 0), self.partial.values);
        }
    }

    /// [`Chunk::weigh`] of many heads: strip after strip of columns is widened once for all of them.
    #[inline(always)]
    fn weigh_widened<S: Simd, C: Cell>(&mut self, simd: S, values: &[C]) {
        for at in (0..self.stride).step_by(PAIR * LANES) {
            match self.stride - at {
                LANES => self.weigh_strip::<S, C, 1>(simd, values, at),
                _ => self.weigh_strip::<S, C, PAIR>(simd, values, at),
            }
        }
    }

    /// [`Chunk::weigh_widened`] of `N` times [`LANES`] columns from `at` on.
    #[inline(always)]
    fn weigh_strip<S: Simd, C: Cell, const N: usize>(&mut self, simd: S, values: &[C], at: usize) {
        let (stride, longest) = (self.stride, self.longest());
        // As many lines as the strip has, whatever lines its parts are in.
        let (coming, per_line) = (Coming::of(self.next).during(&values[..at * longest], 0), (C::IN_LINE / N).max(1));
        let strip = &mut lanes_mut(self.widened).as_chunks_mut::<N>().0[..longest];
        for (p, (to, values)) in strip.iter_mut().zip(values.chunks_exact(stride)).enumerate() {
            let from: &[[C; LANES]; N] = array(&values[at..]);
            if p % per_line == 0 {
                coming.ask(simd, p / per_line);
            }
            for n in 0..N {
                simd.store(C::load(simd, &from[n]), &mut to[n]);
            }
        }
        let strip = &*strip;
        let mut runs = Runs::new(self.lens, self.group, 0);
        while let Some((h, together, lens)) = runs.next() {
            let (weights, sums) = (&self.scores[h * SCORES..], &mut self.partial.values[h * stride + at..]);
            match together {
                6 => strip_sums::<S, 6, N>(simd, weights, lens, strip, stride, sums),
                5 => strip_sums::<S, 5, N>(simd, weights, lens, strip, stride, sums),
                4 => strip_sums::<S, 4, N>(simd, weights, lens, strip, stride, sums),
                3 => strip_sums::<S, 3, N>(simd, weights, lens, strip, stride, sums),
                2 => strip_sums::<S, 2, N>(simd, weights, lens, strip, stride, sums),
                _ => strip_sums::<S, 1, N>(simd, weights, lens, strip, stride, sums),
            }
        }
    }
}

/// How far ahead the keys are asked for that nobody asked for before, in bytes.
const NEAR: usize = 4 << 10;

/// What is asked for while something else is computed: with few heads keys and values come from memory once for each step, and computing
/// takes as long as reading. So a chunk's values come while its scores are computed, and the keys that are next while its values are
/// added up, from two places in turn: the CPU itself goes on asking behind each of them.
#[derive(Clone, Copy)]
struct Coming {
    /// The first line of the first half that is not asked for yet.
    at: *const u8,
    /// From there to the second half's; 0 if nothing is asked for.
    half: usize,
    /// How far ahead of the keys that are computed others are asked for too, unless that is 0.
    near: usize,
}

impl Coming {
    const NOTHING: Self = Coming { at: std::ptr::null(), half: 0, near: 0 };

    #[inline(always)]
    fn of(vectors: Option<Vectors<'_>>) -> Self {
        let bytes = vectors.map_or(&[][..], Vectors::bytes);
        Coming { at: bytes.as_ptr(), half: bytes.len() / 2 / LINE * LINE, near: 0 }
    }

    /// What is to be asked for after so much was computed: as much of what comes.
    #[inline(always)]
    fn during<C>(self, before: &[C], near: usize) -> Self {
        let asked = size_of_val(before) / 2;
        let half = if asked < self.half { self.half } else { 0 };
        Coming { at: self.at.wrapping_add(asked), half, near }
    }

    /// Asks for line number `line` of both halves in turn.
    #[inline(always)]
    fn ask(self, simd: impl Simd, line: usize) {
        if self.half > 0 {
            simd.prefetch(self.at.wrapping_add(line % 2 * self.half + line / 2 * LINE), LINE);
        }
    }

    /// Asks for what is `near` the key that is computed now.
    #[inline(always)]
    fn ask_near<T>(self, simd: impl Simd, now: &T) {
        if self.near > 0 {
            simd.prefetch(std::ptr::from_ref(now).cast::<u8>().wrapping_add(self.near), LINE);
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Heads that are computed together at most: with two vectors of each 12 sums, which hide a multiplication's latency, and 4
/// registers to spare.
const MOST: usize = 6;

/// The heads of all rows that see any positions from `start` on, in turn: the first, how many, and what number of positions each
/// of them sees. They may be of several rows, so that groups of any size fill the registers, and where their number is no multiple of
/// [`MOST`] runs are equally long: a single head's sums would wait for themselves.
struct Runs<'a> {
    lens: &'a [usize],
    group: usize,
    start: usize,
    /// The rows that are not begun, and the heads that are left of those that are.
    row: usize,
    heads: Range<usize>,
}

impl<'a> Runs<'a> {
    #[inline(always)]
    fn new(lens: &'a [usize], group: usize, start: usize) -> Self {
        Runs { lens, group, start, row: 0, heads: 0..0 }
    }

    /// Not an iterator, whose loop might be a closure's: see above.
    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize, [usize; MOST])> {
        while self.heads.is_empty() {
            if self.row == self.lens.len() {
                return None;
            }
            let first = self.row;
            while self.row < self.lens.len() && self.lens[self.row] > self.start {
                self.row += 1;
            }
            self.heads = first * self.group..self.row * self.group;
            self.row += usize::from(self.heads.is_empty());
        }
        let (head, left) = (self.heads.start, self.heads.len());
        let together = left.div_ceil(left.div_ceil(MOST));
        let mut lens = [0; MOST];
        for g in 0..together {
            lens[g] = self.lens[(head + g) / self.group] - self.start;
        }
        self.heads.start += together;
        Some((head, together, lens))
    }
}

/// `scores[g · SCORES + p] = queries[g] · keys[p]` for G heads and P blocks of positions, number after number of the vectors:
/// `queries` is `[G, stride]`, `keys` is `[P, dim, LANES]`. As much of what comes is asked for.
#[inline(always)]
fn dots<S: Simd, C: Cell, const G: usize, const P: usize>(
    simd: S,
    queries: &[f32],
    stride: usize,
    keys: &[[C; LANES]],
    coming: Coming,
    scores: &mut [f32],
) {
    let dim = keys.len() / P;
    let (mut query, mut key) = ([&[][..]; G], [&[][..]; P]);
    for g in 0..G {
        query[g] = &queries[g * stride..][..dim];
    }
    for p in 0..P {
        key[p] = &keys[p * dim..][..dim];
    }
    let mut sums = [[simd.splat(0.0); P]; G];
    for i in 0..dim {
        let mut here = [simd.splat(0.0); P];
        for p in 0..P {
            if i % C::IN_LINE == 0 {
                coming.ask(simd, i / C::IN_LINE * P + p);
                coming.ask_near(simd, &key[p][i]);
            }
            here[p] = C::load(simd, &key[p][i]);
        }
        for g in 0..G {
            let query = simd.splat(query[g][i]);
            for p in 0..P {
                sums[g][p] = simd.mul_add(query, here[p], sums[g][p]);
            }
        }
    }
    for g in 0..G {
        let (scores, _) = scores[g * SCORES..][..P * LANES].as_chunks_mut();
        for p in 0..P {
            simd.store(sums[g][p], &mut scores[p]);
        }
    }
}

/// `sums[g · stride + i] += Σ weights[g · SCORES + p] · values[p][i]` for G heads, in the order of up to [`TILE`] positions; N
/// times [`LANES`] columns at a time. As much of what comes is asked for.
#[inline(always)]
fn weighted_sums<S: Simd, C: Cell, const G: usize, const N: usize>(
    simd: S,
    weights: &[f32],
    values: &[C],
    stride: usize,
    coming: Coming,
    sums: &mut [f32],
) {
    let whole = stride / (N * LANES) * N * LANES;
    for at in (0..whole).step_by(N * LANES) {
        let lines = size_of_val(values) / LINE;
        for line in at * lines / stride..(at + N * LANES) * lines / stride {
            coming.ask(simd, line);
        }
        weighted_lanes::<S, C, G, N>(simd, weights, values, stride, at, sums);
    }
    for at in (whole..stride).step_by(LANES) {
        weighted_lanes::<S, C, G, 1>(simd, weights, values, stride, at, sums);
    }
}

/// [`weighted_sums`] of `N` times [`LANES`] columns from `at` on.
#[inline(always)]
fn weighted_lanes<S: Simd, C: Cell, const G: usize, const N: usize>(
    simd: S,
    weights: &[f32],
    values: &[C],
    stride: usize,
    at: usize,
    sums: &mut [f32],
) {
    let mut weight: [&[f32; TILE]; G] = [&[0.0; TILE]; G];
    let mut local = [[simd.splat(0.0); N]; G];
    for g in 0..G {
        weight[g] = weights[g * SCORES..].first_chunk().expect("a chunk is whole tiles");
        let sums: &[Lanes; N] = array(&sums[g * stride + at..]);
        for n in 0..N {
            local[g][n] = simd.load(&sums[n]);
        }
    }
    for (p, values) in values.chunks_exact(stride).take(TILE).enumerate() {
        let from: &[[C; LANES]; N] = array(&values[at..]);
        let mut value = [simd.splat(0.0); N];
        for n in 0..N {
            value[n] = C::load(simd, &from[n]);
        }
        for g in 0..G {
            let weight = simd.splat(weight[g][p]);
            for n in 0..N {
                local[g][n] = simd.mul_add(weight, value[n], local[g][n]);
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

/// `sums[g · stride + i] = Σ weights[g · SCORES + p] · strip[p][i]` for G heads, each over its own number of positions in their
/// order.
#[inline(always)]
fn strip_sums<S: Simd, const G: usize, const N: usize>(
    simd: S,
    weights: &[f32],
    lens: [usize; MOST],
    strip: &[[Lanes; N]],
    stride: usize,
    sums: &mut [f32],
) {
    let mut all = strip.len();
    for g in 0..G {
        all = all.min(lens[g]);
    }
    let (common, mut weight) = (&strip[..all], [&[][..]; G]);
    for g in 0..G {
        weight[g] = &weights[g * SCORES..][..all];
    }
    let mut local = [[simd.splat(0.0); N]; G];
    for p in 0..common.len() {
        let mut value = [simd.splat(0.0); N];
        for n in 0..N {
            value[n] = simd.load(&common[p][n]);
        }
        for g in 0..G {
            let weight = simd.splat(weight[g][p]);
            for n in 0..N {
                local[g][n] = simd.mul_add(weight, value[n], local[g][n]);
            }
        }
    }
    for g in 0..G {
        // Later rows see more.
        for p in all..lens[g] {
            let weight = simd.splat(weights[g * SCORES + p]);
            for n in 0..N {
                local[g][n] = simd.mul_add(weight, simd.load(&strip[p][n]), local[g][n]);
            }
        }
        let (sums, _) = sums[g * stride..][..N * LANES].as_chunks_mut();
        for n in 0..N {
            simd.store(local[g][n], &mut sums[n]);
        }
    }
}

#[inline(always)]
fn lanes<T>(x: &[T]) -> &[[T; LANES]] {
    x.as_chunks().0
}

#[inline(always)]
fn lanes_mut<T>(x: &mut [T]) -> &mut [[T; LANES]] {
    x.as_chunks_mut().0
}

/// The first `N` times [`LANES`] values.
#[inline(always)]
fn array<T, const N: usize>(x: &[T]) -> &[[T; LANES]; N] {
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
    /// Vectors in a cache line.
    const IN_LINE: usize = LINE / (LANES * size_of::<Self>());

    /// As floats.
    fn load<S: Simd>(simd: S, cells: &[Self; LANES]) -> S::F32s;
}

impl Cell for f32 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, cells: &[f32; LANES]) -> S::F32s {
        simd.load(cells)
    }
}

impl Cell for i8 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, codes: &[i8; LANES]) -> S::F32s {
        simd.convert(codes)
    }
}

/// The bits of f16.
impl Cell for u16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, bits: &[u16; LANES]) -> S::F32s {
        simd.widen(bits)
    }
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
    fn the_largest_is_found_anywhere() {
        for len in 1..40 {
            for at in 0..len {
                let mut x = vec![-3.0; len];
                x[at] = -1.0;
                assert_eq!(max(&x), -1.0);
            }
        }
    }

    #[test]
    fn runs_take_every_head_that_sees_something_once() {
        for (lens, group) in
            [(&[5, 6, 7, 8, 9][..], 4), (&[0, 0, 1, 2][..], 3), (&[17][..], 7), (&[0, 3, 0, 9, 9][..], 1)]
        {
            for start in [0, 2, 16] {
                let mut runs = Runs::new(lens, group, start);
                let (mut seen, mut before) = (vec![0; lens.len() * group], None);
                while let Some((first, together, run)) = runs.next() {
                    assert!(before.is_none_or(|before| before < first) && (1..=MOST).contains(&together));
                    seen[first..first + together].copy_from_slice(&run[..together]);
                    before = Some(first);
                }
                let expected = lens.iter().flat_map(|&len: &usize| vec![len.saturating_sub(start); group]);
                assert!(expected.eq(seen), "{lens:?} from {start}");
            }
        }
    }
}
