//! Matrix products: activations are quantised once, then every thread computes its own rows.

mod published;

use std::ops::Range;

use trine_backend::{Activation, HostMatrix, Result};

use crate::activations::{Scratch, Tokens};
use crate::isa::Isa;
use crate::kernels::{
    HalfBlock, Job, KernelInfo, Kernels, LANES, MAX_OUTPUTS, Outputs, Run, Selection, Sweep, Workspace, Workspaces,
};
use crate::memory::Stream;
use crate::pool::{DisjointMut, Pool, chunk};
use crate::shares::Shares;
use crate::weights::{TILE, Weight};

/// Bytes of weights, once for each token, below which the fork costs more than it saves: the kernels go
/// through some 15 bytes in a nanosecond, and to fork and join takes about one microsecond.
const FORK: usize = 1 << 15;

/// Bytes of activations that stay in a core's L2 cache (256 KiB on the smallest) while the tiles of the
/// matrix go past them.
const CACHED: usize = 128 << 10;

/// Pieces of a worker's share of a product of many tokens.
const PARTS: usize = 4;

/// Tokens from which on they are many: they take up more of a cache than a piece of the weights does.
const MANY: usize = 16;

/// Bytes of weights in a piece of a worker's share if the tokens are few: some microseconds, for which the others may have to
/// wait in the end, and a hundred times what it costs to take it.
const PIECE: usize = 16 << 10;

/// Tiles below which a sweep is not cut for more parts: the tables cost as much as some 80 rows.
const LEAST_SWEEP: usize = 64;

/// Tiles of a sweep whose outputs are stored together: 256 bytes of each token's, and 8 KB in all.
const STORED: usize = 8;

/// `out = W · x` for each of `rows` tokens: `x` is `[rows, columns of W]`, `out` is `[rows, rows of W]`.
/// The outputs do not depend on the number of threads, nor a token's on the other tokens.
///
/// # Panics
/// If the lengths do not fit.
pub(crate) fn linear(
    pool: &Pool,
    isa: Isa,
    scratch: &mut Scratch,
    weight: &Weight,
    x: &[f32],
    rows: usize,
    out: &mut [f32],
) {
    assert_eq!((x.len(), out.len()), (rows * weight.columns(), rows * weight.rows()));
    let (quantized, rooms) = scratch.quantize(pool, isa, weight.activation(), x, weight.columns());
    let tokens = quantized.tokens();
    let kernels = weight.kernels();
    if let (Some(variant), Some(layout)) = (kernels.published(), weight.published()) {
        return published::linear(pool, variant, weight, layout, tokens, rooms, out);
    }
    let workers = if rows * weight.tiles().len() >= FORK { pool.threads() } else { 1 };
    let (tiles, sweep) = (weight.rows().div_ceil(TILE), kernels.sweep(rows));
    let swept = sweep.map_or(0, |(_, swept)| swept);
    let Workspaces { workers: rooms, halves, shares: [sweeps, rest] } = rooms;
    if sweep.is_some() && rooms.len() < workers {
        rooms.resize_with(workers, Workspace::default);
    }
    let halves = match sweep {
        Some((kernel, swept)) => turned(pool, workers, kernel, tokens.slice(0, swept), halves),
        None => &[],
    };
    let rooms = DisjointMut::new(rooms);
    let product = Product { weight, kernels, tokens, halves, out: DisjointMut::new(out) };
    let cut = sweep.map(|(kernel, swept)| Cut::new(kernel, tiles, swept, workers));
    let streams = Streams { tiles, count: kernels.tile(tiles, (rows - swept).max(1)).tiles, apart: rows < MANY };
    let (columns, piece) = (streams.columns(), streams.piece(weight.layout().tile_bytes, rows, workers));
    // One share for all: workers that go over the same tiles at the same time find them in the cache that they share.
    let sweeps = Shares::new(sweeps, 1, cut.as_ref().map_or(0, Cut::parts));
    let rest = Shares::new(rest, workers, if swept < rows { columns.div_ceil(piece) } else { 0 });
    let work = |worker: usize| {
        if let Some(cut) = &cut {
            #[allow(unsafe_code)]
            // SAFETY: each worker number is given out once, so nobody else has its room.
            let room = &mut unsafe { rooms.range(worker..worker + 1) }[0];
            while let Some(part) = sweeps.take(0) {
                product.sweep(cut, part, room);
            }
        }
        while let Some(at) = rest.take(worker) {
            product.columns(streams, at * piece..((at + 1) * piece).min(columns), swept..rows);
        }
    };
    if workers > 1 { pool.run(&work) } else { work(0) }
}

/// The order that kernels go over tiles in. A matrix is read as so many streams side by side, each from a place of its own on, as
/// a kernel takes tiles at once: a CPU looks ahead in each of them, and has more of memory under way than with one. With many
/// tokens, where memory has time, the tiles follow each other, so that each token's outputs fill cache lines.
#[derive(Clone, Copy, Debug)]
struct Streams {
    /// All tiles.
    tiles: usize,
    /// Streams.
    count: usize,
    /// Whether each begins at a place of its own; else the tiles of a column follow each other.
    apart: bool,
}

impl Streams {
    /// Columns: one tile of each stream, and in the last the tiles that are left over, if there are any.
    fn columns(self) -> usize {
        self.tiles.div_ceil(self.count)
    }

    /// The first tile of a column, how far its tiles are apart, and how many they are.
    fn column(self, column: usize) -> [usize; 3] {
        let long = self.tiles / self.count;
        match column < long {
            true if self.apart => [column, long, self.count],
            true => [self.count * column, 1, self.count],
            false => [self.count * long, 1, self.tiles % self.count],
        }
    }

    /// Columns in a piece of a worker's share.
    fn piece(self, tile_bytes: usize, tokens: usize, workers: usize) -> usize {
        let piece = match tokens {
            _ if workers == 1 => self.columns(),
            ..MANY => PIECE / (self.count * tile_bytes),
            _ => self.columns().div_ceil(PARTS * workers),
        };
        piece.max(1)
    }
}

/// The activations as the sweep turns them, `[group of tokens][half block]`; nothing where it takes them as they are.
fn turned<'a>(
    pool: &Pool,
    workers: usize,
    kernel: &KernelInfo,
    tokens: Tokens<'_>,
    halves: &'a mut Vec<HalfBlock>,
) -> &'a [HalfBlock] {
    let Run::Sweep(Sweep { turn: Some(turn), .. }) = kernel.run else { return &[] };
    let (groups, blocks) = (tokens.len().div_ceil(kernel.tokens), tokens.blocks());
    if halves.len() < 2 * groups * blocks {
        halves.resize_with(2 * groups * blocks, HalfBlock::default);
    }
    let halves = &mut halves[..2 * groups * blocks];
    let work = |at: usize, halves: &mut [[HalfBlock; 2]]| {
        for (at, halves) in (at..).zip(halves) {
            let first = at / blocks * kernel.tokens;
            turn(&tokens.slice(first, kernel.tokens.min(tokens.len() - first)), at % blocks, halves);
        }
    };
    let (parts, _) = halves.as_chunks_mut();
    if workers > 1 {
        pool.split(parts, 1, work)
    } else {
        work(0, parts)
    }
    halves
}

/// How a sweep is cut: groups of tokens times groups of tiles.
struct Cut<'a> {
    kernel: &'a KernelInfo,
    tiles: usize,
    tokens: usize,
    /// Groups of tokens, and of tiles.
    groups: [usize; 2],
}

impl<'a> Cut<'a> {
    /// Every worker should have some parts, unless the tables of small ones would cost more than they save.
    fn new(kernel: &'a KernelInfo, tiles: usize, tokens: usize, workers: usize) -> Self {
        let groups = tokens.div_ceil(kernel.tokens);
        let wanted = (PARTS * workers).div_ceil(groups).min(tiles / LEAST_SWEEP);
        Cut { kernel, tiles, tokens, groups: [groups, tiles.div_ceil(kernel.tiles).max(wanted).max(1)] }
    }

    fn parts(&self) -> usize {
        self.groups[0] * self.groups[1]
    }

    /// The tiles and the tokens of a part: groups of tokens go past the same tiles one after the other, so that a matrix
    /// comes from memory once.
    fn part(&self, part: usize) -> [Range<usize>; 2] {
        let first = part % self.groups[0] * self.kernel.tokens;
        let tokens = first..(first + self.kernel.tokens).min(self.tokens);
        [chunk(self.tiles, self.groups[1], part / self.groups[0], 1), tokens]
    }
}

/// A product that several threads work on.
struct Product<'a> {
    weight: &'a Weight,
    kernels: Kernels,
    tokens: Tokens<'a>,
    /// What [`turned`] made of the tokens.
    halves: &'a [HalfBlock],
    /// `[tokens, rows]`.
    out: DisjointMut<'a, f32>,
}

impl Product<'_> {
    /// Computes a part of a sweep and copies the outputs of rows and tokens that exist to their places.
    fn sweep(&self, cut: &Cut<'_>, part: usize, room: &mut Workspace) {
        let Run::Sweep(sweep) = cut.kernel.run else { unreachable!("chosen because it is a sweep") };
        let (layout, [tiles, tokens]) = (self.weight.layout(), cut.part(part));
        let bytes = &self.weight.tiles()[tiles.start * layout.tile_bytes..tiles.end * layout.tile_bytes];
        let halves = match sweep.turn {
            Some(_) => &self.halves[2 * tokens.start / cut.kernel.tokens * layout.blocks..][..2 * layout.blocks],
            None => &[],
        };
        let tokens_of = self.tokens.slice(tokens.start, tokens.len());
        let job = Job { layout, tiles: bytes, apart: layout.tile_bytes, tokens: tokens_of, halves, ahead: false };
        (sweep.sums)(&job, room);
        let mut outputs = [[Outputs::default(); LANES]; STORED];
        let stream = Stream::default();
        for token in (0..tokens.len()).step_by(LANES) {
            let tokens = tokens.start + token..tokens.end.min(tokens.start + token + LANES);
            for first in (0..tiles.len()).step_by(STORED) {
                let outputs = &mut outputs[..STORED.min(tiles.len() - first)];
                (sweep.outputs)(&job, room, [first, token], outputs);
                self.store_tiles(&stream, tiles.start + first, tokens.clone(), outputs);
            }
        }
    }

    /// Copies outputs `[tile][token]` to their places, token by token: a cache line is filled before another is begun.
    fn store_tiles(&self, stream: &Stream, first: usize, tokens: Range<usize>, outputs: &[[Outputs; LANES]]) {
        let rows = first * TILE..((first + outputs.len()) * TILE).min(self.weight.rows());
        for (at, token) in tokens.enumerate() {
            let start = token * self.weight.rows();
            #[allow(unsafe_code)]
            // SAFETY: a tile is given to one thread for a token, so nobody else holds these rows of it.
            let out = unsafe { self.out.range(start + rows.start..start + rows.end) };
            for (out, outputs) in out.chunks_mut(TILE).zip(outputs) {
                match out.try_into() {
                    Ok(out) => stream.store(out, &outputs[at].0),
                    Err(_) => put(out, &outputs[at]),
                }
            }
        }
    }

    /// Computes the rows of some columns of tiles for some tokens. A column may be given to one thread only.
    fn columns(&self, streams: Streams, columns: Range<usize>, tokens: Range<usize>) {
        let bytes = match self.weight.activation() {
            Activation::Float => size_of::<f32>() * self.weight.columns(),
            Activation::Token | Activation::Block => self.weight.columns(),
        };
        let most = (CACHED / bytes).clamp(MAX_OUTPUTS, 128) / MAX_OUTPUTS * MAX_OUTPUTS;
        let mut outputs = [Outputs::default(); MAX_OUTPUTS];
        for first in tokens.clone().step_by(most) {
            for column in columns.clone() {
                self.column(streams.column(column), first..(first + most).min(tokens.end), &mut outputs);
            }
        }
    }

    /// Computes the rows of a column of tiles for tokens that fit in the cache together. The tiles stay in the L1 cache while the
    /// tokens go past them.
    fn column(&self, [first, apart, count]: [usize; 3], tokens: Range<usize>, outputs: &mut [Outputs]) {
        let mut token = tokens.start;
        let mut largest = self.kernels.tile(count, tokens.len());
        while token < tokens.end {
            largest = self.kernels.still(largest, count, tokens.end - token);
            let (mut done, mut kernel) = (0, largest);
            while done < count {
                kernel = self.kernels.still(kernel, count - done, largest.tokens);
                self.job(kernel, [first + done * apart, apart], token, token == tokens.start, outputs);
                done += kernel.tiles;
            }
            token += largest.tokens;
        }
    }

    /// Runs a kernel on tiles so far apart, and copies the outputs of rows that exist to their places. `first` says that no tokens
    /// went past these tiles before; `outputs` is room for them.
    fn job(&self, kernel: &KernelInfo, [tile, apart]: [usize; 2], token: usize, first: bool, outputs: &mut [Outputs]) {
        let layout = self.weight.layout();
        let tiles = &self.weight.tiles()[tile * layout.tile_bytes..];
        let outputs = &mut outputs[..kernel.tiles * kernel.tokens];
        let Run::Tiles(run) = kernel.run else { unreachable!("sweeps are not chosen for single tiles") };
        let (apart_bytes, tokens) = (apart * layout.tile_bytes, self.tokens.slice(token, kernel.tokens));
        run(&Job { layout, tiles, apart: apart_bytes, tokens, halves: &[], ahead: first }, outputs);
        for (at, outputs) in outputs.chunks_exact(kernel.tokens).enumerate() {
            self.store(tile + at * apart, token, outputs);
        }
    }

    /// Copies a tile's outputs for the tokens from `token` on to their places.
    fn store(&self, tile: usize, token: usize, outputs: &[Outputs]) {
        let rows = tile * TILE..((tile + 1) * TILE).min(self.weight.rows());
        for (token, outputs) in (token..).zip(outputs) {
            let start = token * self.weight.rows();
            #[allow(unsafe_code)]
            // SAFETY: a tile is given to one thread for a token, so nobody else holds these rows of it.
            let out = unsafe { self.out.range(start + rows.start..start + rows.end) };
            put(out, outputs);
        }
    }
}

/// Copies the outputs of the rows that exist.
fn put(out: &mut [f32], outputs: &Outputs) {
    match <&mut [f32; TILE]>::try_from(&mut *out) {
        Ok(out) => *out = outputs.0, // One vector, where a copy of any length would be a call.
        Err(_) => out.copy_from_slice(&outputs.0[..out.len()]),
    }
}

/// A matrix with all that is needed to multiply it outside of a model: for benchmarks.
#[derive(Debug)]
pub struct Multiplier {
    pool: Pool,
    isa: Isa,
    scratch: Scratch,
    weight: Weight,
}

impl Multiplier {
    /// Prepares a matrix for products on `threads` threads.
    ///
    /// Errors if the memory is not there or the threads can't be started.
    pub fn new(matrix: HostMatrix<'_>, isa: Isa, threads: usize) -> Result<Self> {
        Multiplier::with_kernel(matrix, isa, threads, None)
    }

    /// The same by a kernel of this name.
    ///
    /// Errors if there is none, and like [`Multiplier::new`].
    pub fn with_kernel(matrix: HostMatrix<'_>, isa: Isa, threads: usize, kernel: Option<&str>) -> Result<Self> {
        let pool = Pool::new(threads)?;
        let weight = Weight::prepare(matrix, &Selection::new(isa, kernel)?, &pool)?;
        Ok(Multiplier { pool, isa, scratch: Scratch::default(), weight })
    }

    /// `out[r] = W · x[r]`: `x` is `[tokens, columns]`, `out` is `[tokens, rows]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn multiply(&mut self, x: &[f32], out: &mut [f32]) {
        let rows = x.len() / self.weight.columns();
        linear(&self.pool, self.isa, &mut self.scratch, &self.weight, x, rows, out);
    }

    /// The kernels that its products choose from, the largest first.
    pub fn kernels(&self) -> &'static [KernelInfo] {
        self.weight.kernels().table
    }
}

#[cfg(test)]
mod tests;
