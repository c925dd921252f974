//! Matrix products: activations are quantised once, then every thread computes its own rows.

use std::ops::Range;

use trine_backend::{Activation, HostMatrix, Result};

use crate::activations::{Scratch, Tokens};
use crate::isa::Isa;
use crate::kernels::{self, Family, Job, KernelInfo, MAX_OUTPUTS, Outputs};
use crate::pool::{DisjointMut, Pool, chunk};
use crate::weights::{TILE, Weight};

/// Bytes of weights, once for each token, below which the fork costs more than it saves: the kernels go
/// through some 15 bytes in a nanosecond, and to fork and join takes about one microsecond.
const FORK: usize = 1 << 15;

/// Bytes of activations that stay in a core's L2 cache (256 KiB on the smallest) while the tiles of the
/// matrix go past them.
const CACHED: usize = 128 << 10;

/// Tiles that a thread's share is a multiple of: what the kernels take at once.
const SHARE: usize = 2;

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
    let tokens = scratch.quantize(pool, isa, weight.activation(), x, weight.columns());
    let product = Product {
        weight,
        kernels: kernels::kernels(isa, Family::from(weight.layout().format)),
        tokens,
        out: DisjointMut::new(out),
    };
    let (tiles, workers) = (weight.rows().div_ceil(TILE), pool.threads());
    if workers > 1 && rows * weight.tiles().len() >= FORK {
        pool.run(&|worker| product.tiles(chunk(tiles, workers, worker, SHARE)));
    } else {
        product.tiles(0..tiles);
    }
}

/// A product that several threads work on.
struct Product<'a> {
    weight: &'a Weight,
    kernels: &'static [KernelInfo],
    tokens: Tokens<'a>,
    /// `[tokens, rows]`.
    out: DisjointMut<'a, f32>,
}

impl Product<'_> {
    /// Computes the rows of some tiles for all tokens. A tile may be given to one thread only.
    fn tiles(&self, tiles: Range<usize>) {
        let bytes = match self.weight.activation() {
            Activation::Float => size_of::<f32>() * self.weight.columns(),
            Activation::Token | Activation::Block => self.weight.columns(),
        };
        let most = (CACHED / bytes).clamp(MAX_OUTPUTS, 128) / MAX_OUTPUTS * MAX_OUTPUTS;
        let count = self.tokens.len();
        for first in (0..count).step_by(most) {
            self.some_tokens(tiles.clone(), first..(first + most).min(count));
        }
    }

    /// Computes the rows of some tiles for tokens that fit in the cache together; a few tiles stay in the L1
    /// cache while the tokens go past them.
    fn some_tokens(&self, tiles: Range<usize>, tokens: Range<usize>) {
        for first in tiles.clone().step_by(SHARE) {
            let end = (first + SHARE).min(tiles.end);
            let mut token = tokens.start;
            while token < tokens.end {
                let count = self.kernel(end - first, tokens.end - token).tokens;
                let mut tile = first;
                while tile < end {
                    let kernel = self.kernel(end - tile, count);
                    self.job(kernel, tile, token);
                    tile += kernel.tiles;
                }
                token += count;
            }
        }
    }

    /// The first kernel that is not larger than what is left.
    fn kernel(&self, tiles: usize, tokens: usize) -> &'static KernelInfo {
        let fits = |kernel: &&KernelInfo| kernel.tiles <= tiles && kernel.tokens <= tokens;
        self.kernels.iter().find(fits).expect("the last kernel takes one tile and one token")
    }

    /// Runs a kernel and copies the outputs of rows that exist to their places.
    fn job(&self, kernel: &KernelInfo, tile: usize, token: usize) {
        let layout = self.weight.layout();
        let tiles = &self.weight.tiles()[tile * layout.tile_bytes..][..kernel.tiles * layout.tile_bytes];
        let mut outputs = [Outputs::default(); MAX_OUTPUTS];
        let outputs = &mut outputs[..kernel.tiles * kernel.tokens];
        kernel.run(&Job { layout, tiles, tokens: self.tokens.slice(token, kernel.tokens) }, outputs);
        for (tile, outputs) in (tile..).zip(outputs.chunks_exact(kernel.tokens)) {
            let rows = tile * TILE..((tile + 1) * TILE).min(self.weight.rows());
            for (token, outputs) in (token..).zip(outputs) {
                let start = token * self.weight.rows();
                #[allow(unsafe_code)]
                // SAFETY: a tile is given to one thread, so nobody else holds these rows of any token.
                let out = unsafe { self.out.range(start + rows.start..start + rows.end) };
                out.copy_from_slice(&outputs[..rows.len()]);
            }
        }
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
        let pool = Pool::new(threads)?;
        let weight = Weight::prepare(matrix, isa, &pool)?;
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
        kernels::kernels(self.isa, Family::from(self.weight.layout().format))
    }
}

#[cfg(test)]
mod tests;
