//! Causal attention over the KV cache.
//!
//! The positions of a sequence are cut into chunks of [`CHUNK`], always at the same places. A chunk gives
//! each query head of a group a partial result: the highest score, the sum of `e^(score - highest)` and the
//! values weighted with those (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
//! Partial results are merged in the order of positions, whoever computed them, so the result does not
//! depend on the number of threads or rows. With few rows the chunks are spread over the workers
//! (flash-decoding: Dao et al., 2023), with many rows whole heads are.
//!
//! The query heads of a group are computed together, and in prefill those of some rows that follow each other: each
//! key and value is read and widened once for all of them.

mod kernel;

use std::ops::Range;

use trine_backend::{Heads, Row};

use crate::isa::Isa;
use crate::kv::{CHUNK, Kv, Vectors};
use crate::memory::Aligned;
use crate::pool::{DisjointMut, Pool};
use crate::shares::Left;
use crate::simd::LANES;
use kernel::{Chunk, Partial, finish, merge};

/// Whole heads are given to workers if there are so many for each of them; with fewer, the last worker to
/// finish would keep the others waiting, and chunks are given out instead.
const HEADS_PER_WORKER: usize = 4;

/// Query heads that are computed together at most, unless one row has more: their scores of a chunk take 36 KB.
const BLOCK_HEADS: usize = 36;

/// Multiply-adds below which the caller works alone: some 3 µs.
const SERIAL_LIMIT: usize = 64 * 1024;

/// Working memory, sized for the context by the first call for a model (its first step), and not after.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    workers: Vec<Worker>,
    /// Partial results, `[row, chunk, kv head]`.
    partials: Aligned<f32>,
    shares: Vec<Left>,
}

/// One worker's own.
#[derive(Debug, Default)]
struct Worker {
    /// Scaled queries of a block, padded: `[rows, group, stride]`.
    queries: Aligned<f32>,
    /// Scores, then weights: `[rows, group, SCORES]`.
    scores: Aligned<f32>,
    /// Positions of a chunk that each row sees.
    lens: Vec<usize>,
    /// Widened keys or values.
    widened: Aligned<f32>,
    /// The partial results of one chunk, and those of all before it.
    chunk: Aligned<f32>,
    head: Aligned<f32>,
    /// Where the keys are that were asked for last.
    asked: usize,
}

/// A chunk of a row's positions for one key/value head.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    chunk: usize,
    head: usize,
}

/// Length of the partial results of a row: `[values: group x stride | highest: group | total: group]`.
fn partial_len(heads: Heads) -> usize {
    heads.group() * (heads.dim.next_multiple_of(LANES) + 2)
}

/// Rows that are computed together at most.
fn block_rows(heads: Heads) -> usize {
    (BLOCK_HEADS / heads.group()).max(1)
}

impl Scratch {
    fn fit(&mut self, threads: usize, heads: Heads, context: usize) {
        // Steps of one row and of more may have different numbers of threads: what is there is kept.
        if self.workers.len() < threads {
            self.workers.resize_with(threads, Worker::default);
        }
        let (stride, partial) = (heads.dim.next_multiple_of(LANES), partial_len(heads));
        let rows = block_rows(heads);
        for worker in &mut self.workers[..threads] {
            grow(&mut worker.queries, rows * heads.group() * stride);
            grow(&mut worker.scores, rows * heads.group() * kernel::SCORES);
            worker.lens.reserve(rows);
            grow(&mut worker.widened, kernel::widened_len(stride));
            grow(&mut worker.chunk, rows * partial);
            grow(&mut worker.head, rows * partial);
        }
        let pairs = (HEADS_PER_WORKER * threads).max(heads.kv);
        grow(&mut self.partials, pairs * context.div_ceil(CHUNK) * partial);
    }
}

/// Afresh, so that the system gives zeros that take no memory until they are used.
fn grow(buffer: &mut Aligned<f32>, len: usize) {
    if buffer.len() < len {
        *buffer = Aligned::zeroed(len, "attention").expect("it is little beside the KV cache");
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
    /// Rows that are computed together at most.
    block: usize,
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
    scratch.fit(pool.threads(), heads, kv.shape().context);
    let width = heads.group() * heads.dim;
    let pairs = rows.len() * heads.kv;
    let work = rows.iter().map(|row| row.position as usize + 1).sum::<usize>() * heads.query_width() * 2;
    let chunks = rows.iter().map(chunks_of).max().unwrap_or(0);
    // Blocks small enough that there are some for every worker.
    let wanted = HEADS_PER_WORKER * pool.threads();
    let block = (pairs / wanted).clamp(1, block_rows(heads));
    let call = Call { isa, rows, qkv, kv, layer, heads, block };
    // Of one row also on one thread: all heads of a chunk lie together.
    let by_chunk = chunks > 1 && (rows.len() == 1 || pool.threads() > 1 && pairs < wanted);
    if work < SERIAL_LIMIT || pool.threads() == 1 && !by_chunk {
        let call = Call { block: block_rows(heads), ..call };
        let worker = &mut scratch.workers[0];
        let out = DisjointMut::new(out);
        for block in call.blocks() {
            (0..heads.kv).for_each(|head| call.whole_block(&block, head, &out, worker));
        }
    } else if !by_chunk {
        let out = DisjointMut::new(out);
        let blocks = call.blocks().count();
        // Blocks of no size: all that is wanted is each number once.
        let mut items = vec![(); blocks * heads.kv];
        pool.each(&mut items, 1, &mut scratch.workers, |item, _, worker| {
            // Those that see most come first: a long one at the end would keep everybody waiting.
            let block = call.blocks().nth(blocks - 1 - item / heads.kv).expect("the blocks were counted");
            call.whole_block(&block, item % heads.kv, &out, worker);
        });
    } else {
        let partial = partial_len(heads);
        let partials = &mut scratch.partials[..pairs * chunks * partial];
        let Scratch { workers, shares, .. } = scratch;
        let positions = |item| call.place(chunks, item).map_or(0, |place| call.positions(place).len());
        pool.each_by_cost(shares, positions, partials, partial, workers, |item, partial, worker| {
            call.one_chunk(chunks, item, partial, worker);
        });
        let partials = &*partials;
        pool.each(out, width, &mut scratch.workers, |pair, out, worker| {
            let (row, head) = (pair / heads.kv, pair % heads.kv);
            let partials = partials[row * chunks * heads.kv * partial..].chunks_exact(partial);
            call.merge_chunks(pair, partials.skip(head).step_by(heads.kv), out, worker);
        });
    }
}

/// Chunks that a row's attention goes over.
fn chunks_of(row: &Row) -> usize {
    row.position as usize / CHUNK + 1
}

impl Call<'_> {
    /// Rows that are computed together: neighbours of one sequence.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let sequence = self.rows.get(start)?.sequence;
            let same = self.rows[start..].iter().take(self.block).take_while(|row| row.sequence == sequence).count();
            let block = start..start + same;
            start = block.end;
            Some(block)
        })
    }

    /// All chunks of some rows for one key/value head, into their parts of the output. Nobody else may be given
    /// them.
    fn whole_block(&self, rows: &Range<usize>, head: usize, out: &DisjointMut<'_, f32>, worker: &mut Worker) {
        let (group, dim) = (self.heads.group(), self.heads.dim);
        let (heads, len) = (rows.len() * group, rows.len() * partial_len(self.heads));
        let Worker { queries, scores, lens, widened, chunk: part, head: all, asked } = worker;
        self.load_queries(rows, head, queries);
        let mut all = Partial::of(&mut all[..len], heads);
        let chunks = self.rows[rows.clone()].iter().map(chunks_of).max().unwrap_or(0);
        let row = rows.clone().max_by_key(|&row| self.rows[row].position).unwrap_or(rows.start);
        for chunk in 0..chunks {
            self.see(rows, chunk, lens);
            let place = Place { row, chunk, head };
            let next = (chunk + 1 < chunks).then_some(Place { chunk: chunk + 1, ..place });
            if chunk == 0 {
                self.compute(place, next, queries, scores, lens, widened, asked, all.heads(0, heads));
                continue;
            }
            let mut part = Partial::of(&mut part[..len], heads);
            self.compute(place, next, queries, scores, lens, widened, asked, part.heads(0, heads));
            for (row, _) in lens.iter().enumerate().filter(|&(_, &len)| len > 0) {
                merge(self.isa, all.heads(row * group, group), part.heads(row * group, group).shared());
            }
        }
        for (at, row) in rows.clone().enumerate() {
            let start = (row * self.heads.kv + head) * group * dim;
            #[allow(unsafe_code)]
            // SAFETY: rows and heads are given to one worker, and their outputs do not overlap.
            let out = unsafe { out.range(start..start + group * dim) };
            finish(self.isa, dim, all.heads(at * group, group).shared(), out);
        }
    }

    /// Chunk number `item` of those of [`Call::place`], if its row reaches so far.
    fn one_chunk(&self, chunks: usize, item: usize, partial: &mut [f32], worker: &mut Worker) {
        if let Some(place) = self.place(chunks, item) {
            let Worker { queries, scores, lens, widened, asked, .. } = worker;
            let row = place.row..place.row + 1;
            self.load_queries(&row, place.head, queries);
            self.see(&row, place.chunk, lens);
            let (next, partial) = (self.place(chunks, item + 1), Partial::of(partial, self.heads.group()));
            self.compute(place, next, queries, scores, lens, widened, asked, partial);
        }
    }

    /// Chunks of rows that have up to `chunks`, one by one in the order in which they lie in memory.
    fn place(&self, chunks: usize, item: usize) -> Option<Place> {
        let (at, head) = (item / self.heads.kv, item % self.heads.kv);
        let (row, chunk) = (at / chunks, at % chunks);
        (chunk < chunks_of(self.rows.get(row)?)).then_some(Place { row, chunk, head })
    }

    /// The output of a pair from its chunks' partial results.
    fn merge_chunks<'p>(
        &self,
        pair: usize,
        mut partials: impl Iterator<Item = &'p [f32]>,
        out: &mut [f32],
        worker: &mut Worker,
    ) {
        let group = self.heads.group();
        let all = &mut worker.head[..partial_len(self.heads)];
        for chunk in 0..chunks_of(&self.rows[pair / self.heads.kv]) {
            let part = partials.next().expect("a partial result for each chunk");
            match chunk {
                0 => all.copy_from_slice(part),
                _ => merge(self.isa, Partial::of(all, group), Partial::read(part, group)),
            }
        }
        finish(self.isa, self.heads.dim, Partial::read(all, group), out);
    }

    /// Copies the queries of rows and a group, times `1 / sqrt(dim)`, to padded vectors.
    fn load_queries(&self, rows: &Range<usize>, head: usize, queries: &mut [f32]) {
        let Heads { dim, .. } = self.heads;
        let (group, stride) = (self.heads.group(), self.kv.stride());
        let scale = (1.0 / (dim as f64).sqrt()) as f32;
        for (row, queries) in rows.clone().zip(queries.chunks_exact_mut(group * stride)) {
            let from = &self.qkv[row * self.heads.fused_width() + head * group * dim..][..group * dim];
            for (to, from) in queries.chunks_exact_mut(stride).zip(from.chunks_exact(dim)) {
                to[..dim].iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
                to[dim..].fill(0.0);
            }
        }
    }

    /// How many positions of a chunk each row sees.
    fn see(&self, rows: &Range<usize>, chunk: usize, lens: &mut Vec<usize>) {
        lens.clear();
        let ends = self.rows[rows.clone()].iter().map(|row| row.position as usize + 1);
        lens.extend(ends.map(|end| end.saturating_sub(chunk * CHUNK).min(CHUNK)));
    }

    /// Positions that the row sees there.
    fn positions(&self, Place { row, chunk, .. }: Place) -> Range<usize> {
        chunk * CHUNK..((chunk + 1) * CHUNK).min(self.rows[row].position as usize + 1)
    }

    /// Their keys and values.
    fn vectors(&self, place: Place) -> [Vectors<'_>; 2] {
        self.kv.vectors(self.layer, self.rows[place.row].sequence, place.head, self.positions(place))
    }

    /// One chunk of some rows, of which the place's sees most; `next` is where this worker goes on, if that is known.
    #[allow(clippy::too_many_arguments)] // A worker's memory is lent part by part.
    fn compute(
        &self,
        place: Place,
        next: Option<Place>,
        queries: &[f32],
        scores: &mut [f32],
        lens: &[usize],
        widened: &mut [f32],
        asked: &mut usize,
        partial: Partial<&mut [f32]>,
    ) {
        let [keys, values] = self.vectors(place);
        let next = next.map(|place| self.vectors(place)[0]);
        let address = |keys: Vectors<'_>| keys.bytes().as_ptr().addr();
        let was = std::mem::replace(asked, next.map_or(0, address)) == address(keys);
        let (stride, Heads { dim, .. }, group) = (self.kv.stride(), self.heads, self.heads.group());
        self.isa.run(Chunk {
            keys,
            values,
            next,
            asked: was,
            lens,
            dim,
            stride,
            group,
            queries,
            scores,
            widened,
            partial,
        });
    }
}
