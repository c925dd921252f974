//! Causal attention over the KV cache.
//!
//! The positions of a sequence are cut into chunks of [`CHUNK`], always at the same places. A chunk gives
//! each query head of a group a partial result: the highest score, the sum of `e^(score - highest)` and the
//! values weighted with those (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
//! Partial results are merged in the order of positions, whoever computed them, so the result does not
//! depend on the number of threads or rows. With few rows the chunks are spread over the workers
//! (flash-decoding: Dao et al., 2023), with many rows whole heads are.
//!
//! The query heads of a group are computed together: each key and value is read and widened once for all.

mod kernel;

use trine_backend::{Heads, Row};

use crate::isa::Isa;
use crate::kv::Kv;
use crate::pool::Pool;
use crate::simd::LANES;
use kernel::{Chunk, finish, merge};

/// Positions of a chunk: a few µs of work, so that a fork is worth it and a context splits well.
const CHUNK: usize = 256;

/// Whole heads are given to workers if there are so many for each of them; with fewer, the last worker to
/// finish would keep the others waiting, and chunks are given out instead.
const HEADS_PER_WORKER: usize = 4;

/// Multiply-adds below which the caller works alone: some 3 µs.
const SERIAL_LIMIT: usize = 64 * 1024;

/// Working memory, sized for the context by the first call for a model (its first step), and not after.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    workers: Vec<Worker>,
    /// Partial results, `[row, kv head, chunk]`.
    partials: Vec<f32>,
}

/// One worker's own.
#[derive(Debug, Default)]
struct Worker {
    /// Scaled queries of a group, padded: `[group, stride]`.
    queries: Vec<f32>,
    /// Scores, then weights: `[group, CHUNK]`.
    scores: Vec<f32>,
    /// Widened vectors.
    tile: Vec<f32>,
    /// The partial result of one chunk, and that of all before it.
    chunk: Vec<f32>,
    head: Vec<f32>,
}

/// Length of a partial result: `[values: group x stride | highest: group | total: group]`.
fn partial_len(heads: Heads) -> usize {
    heads.group() * (heads.dim.next_multiple_of(LANES) + 2)
}

impl Scratch {
    fn fit(&mut self, threads: usize, heads: Heads, context: usize) {
        self.workers.resize_with(threads, Worker::default);
        let (stride, partial) = (heads.dim.next_multiple_of(LANES), partial_len(heads));
        for worker in &mut self.workers {
            grow(&mut worker.queries, heads.group() * stride);
            grow(&mut worker.scores, heads.group() * CHUNK);
            grow(&mut worker.tile, kernel::TILE * stride);
            grow(&mut worker.chunk, partial);
            grow(&mut worker.head, partial);
        }
        grow(&mut self.partials, HEADS_PER_WORKER * threads * context.div_ceil(CHUNK) * partial);
    }
}

/// Afresh, so that the system gives zeros that take no memory until they are used.
fn grow(buffer: &mut Vec<f32>, len: usize) {
    if buffer.len() < len {
        *buffer = vec![0.0; len];
    }
}

/// A call of attention: what all of its work items have in common.
struct Call<'a> {
    isa: Isa,
    rows: &'a [Row],
    qkv: &'a [f32],
    kv: &'a Kv,
    layer: usize,
    heads: Heads,
}

/// `out[r]` (`[heads, dim]`) is the attention of row `r`'s query heads over positions `0..=position` of its
/// sequence; `qkv` is `[rows, fused width]`.
#[allow(clippy::too_many_arguments)] // The op's own seven, and where to run it.
pub(crate) fn attend(
    pool: &Pool,
    isa: Isa,
    scratch: &mut Scratch,
    rows: &[Row],
    out: &mut [f32],
    qkv: &[f32],
    kv: &Kv,
    layer: usize,
    heads: Heads,
) {
    kv.expect(heads);
    assert_eq!((out.len(), qkv.len()), (rows.len() * heads.query_width(), rows.len() * heads.fused_width()));
    let call = Call { isa, rows, qkv, kv, layer, heads };
    scratch.fit(pool.threads(), heads, kv.shape().context);
    let width = heads.group() * heads.dim;
    let pairs = rows.len() * heads.kv;
    let work = rows.iter().map(|row| row.position as usize + 1).sum::<usize>() * heads.query_width() * 2;
    let chunks = rows.iter().map(chunks_of).max().unwrap_or(0);
    if pool.threads() == 1 || work < SERIAL_LIMIT {
        let worker = &mut scratch.workers[0];
        out.chunks_exact_mut(width).enumerate().for_each(|(pair, out)| call.whole_head(pair, out, worker));
    } else if chunks == 1 || pairs >= HEADS_PER_WORKER * pool.threads() {
        pool.each(out, width, &mut scratch.workers, |pair, out, worker| call.whole_head(pair, out, worker));
    } else {
        let partial = partial_len(heads);
        let partials = &mut scratch.partials[..pairs * chunks * partial];
        pool.each(partials, partial, &mut scratch.workers, |item, partial, worker| {
            call.one_chunk(item / chunks, item % chunks, partial, worker);
        });
        let partials = &*partials;
        pool.each(out, width, &mut scratch.workers, |pair, out, worker| {
            let partials = partials[pair * chunks * partial..].chunks_exact(partial);
            call.merge_chunks(pair, partials, out, worker);
        });
    }
}

/// Chunks that a row's attention goes over.
fn chunks_of(row: &Row) -> usize {
    row.position as usize / CHUNK + 1
}

impl Call<'_> {
    /// All chunks of a (row, kv head) pair, into its part of the output.
    fn whole_head(&self, pair: usize, out: &mut [f32], worker: &mut Worker) {
        let partial = partial_len(self.heads);
        self.load_queries(pair, worker);
        for chunk in 0..chunks_of(&self.rows[pair / self.heads.kv]) {
            let Worker { queries, scores, tile, chunk: part, head } = worker;
            let into = if chunk == 0 { &mut head[..partial] } else { &mut part[..partial] };
            self.compute(pair, chunk, queries, scores, tile, into);
            if chunk > 0 {
                merge(self.isa, self.heads, &mut head[..partial], &part[..partial]);
            }
        }
        finish(self.isa, self.heads, &worker.head[..partial], out);
    }

    /// One chunk of a pair, if its row reaches so far.
    fn one_chunk(&self, pair: usize, chunk: usize, partial: &mut [f32], worker: &mut Worker) {
        if chunk < chunks_of(&self.rows[pair / self.heads.kv]) {
            self.load_queries(pair, worker);
            let Worker { queries, scores, tile, .. } = worker;
            self.compute(pair, chunk, queries, scores, tile, partial);
        }
    }

    /// The output of a pair from its chunks' partial results.
    fn merge_chunks<'p>(
        &self,
        pair: usize,
        mut partials: impl Iterator<Item = &'p [f32]>,
        out: &mut [f32],
        worker: &mut Worker,
    ) {
        let head = &mut worker.head[..partial_len(self.heads)];
        for chunk in 0..chunks_of(&self.rows[pair / self.heads.kv]) {
            let part = partials.next().expect("a partial result for each chunk");
            match chunk {
                0 => head.copy_from_slice(part),
                _ => merge(self.isa, self.heads, head, part),
            }
        }
        finish(self.isa, self.heads, head, out);
    }

    /// Copies a pair's queries, times `1 / sqrt(dim)`, to padded vectors.
    fn load_queries(&self, pair: usize, worker: &mut Worker) {
        let Heads { kv, dim, .. } = self.heads;
        let (row, head, group) = (pair / kv, pair % kv, self.heads.group());
        let scale = (1.0 / (dim as f64).sqrt()) as f32;
        let from = &self.qkv[row * self.heads.fused_width() + head * group * dim..][..group * dim];
        let stride = self.kv.stride();
        for (to, from) in worker.queries.chunks_exact_mut(stride).zip(from.chunks_exact(dim)) {
            to[..dim].iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
            to[dim..].fill(0.0);
        }
    }

    fn compute(
        &self,
        pair: usize,
        chunk: usize,
        queries: &[f32],
        scores: &mut [f32],
        tile: &mut [f32],
        partial: &mut [f32],
    ) {
        let (row, head) = (self.rows[pair / self.heads.kv], pair % self.heads.kv);
        let positions = chunk * CHUNK..(row.position as usize + 1).min((chunk + 1) * CHUNK);
        let len = positions.len();
        let [keys, values] = self.kv.vectors(self.layer, row.sequence, head, positions);
        let stride = self.kv.stride();
        self.isa.run(Chunk { keys, values, len, stride, group: self.heads.group(), queries, scores, tile, partial });
    }
}
