//! The activations of a matrix product: quantised once, read by every row of the matrix.

use bytemuck::allocation::try_zeroed_vec;
use trine_backend::activation::{self, BLOCK};
use trine_backend::{Activation, Error, Result};

use crate::isa::Isa;
use crate::kernels::{self, Workspaces};
use crate::pool::{DisjointMut, Pool, chunk};

/// 32 codes of i8, four to a dword, the first in memory first: what a kernel broadcasts.
pub(crate) type CodeBlock = [i32; BLOCK / 4];

/// Columns of all tokens below which the fork costs more than it saves: quantising so many takes some 4 µs.
const FORK: usize = 1 << 13;

/// Room for the quantised rows of the widest product of a step.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// `[rows, blocks]`; columns past the last are 0.
    codes: Vec<CodeBlock>,
    /// `[rows, blocks]`, all of a row equal under [`Activation::Token`].
    scales: Vec<f32>,
    /// `[rows, blocks]`: sums of the codes.
    sums: Vec<i32>,
    /// `[rows, blocks]`: see [`centre`].
    centres: Vec<i32>,
    /// `[rows]`: sums of the codes.
    totals: Vec<i32>,
    /// What a product of many tokens works in.
    rooms: Workspaces,
}

impl Scratch {
    /// Makes room for `rows` tokens of `columns` activations, and keeps the room that there is. Called at
    /// load for each buffer that may be multiplied with a matrix.
    ///
    /// Errors if the system has no memory for it.
    pub(crate) fn reserve(&mut self, rows: usize, columns: usize) -> Result<()> {
        let none = || Error::OutOfMemory(format!("no memory for the codes of {rows} x {columns} activations"));
        let blocks = rows.checked_mul(columns.div_ceil(BLOCK)).ok_or_else(none)?;
        let grown = grow(&mut self.codes, blocks)
            .and_then(|()| grow(&mut self.scales, blocks))
            .and_then(|()| grow(&mut self.sums, blocks))
            .and_then(|()| grow(&mut self.centres, blocks))
            .and_then(|()| grow(&mut self.totals, rows));
        grown.ok_or_else(none)
    }

    /// Quantises `x` `[rows, columns]` as `activation` says; under [`Activation::Float`] the tokens have
    /// their floats alone. Beside them comes what products work in.
    ///
    /// # Panics
    /// If the rows were not reserved and there is no memory for them now.
    pub(crate) fn quantize<'a>(
        &'a mut self,
        pool: &Pool,
        isa: Isa,
        activation: Activation,
        x: &'a [f32],
        columns: usize,
    ) -> (Quantized<'a>, &'a mut Workspaces) {
        let (rows, blocks) = (x.len() / columns, columns.div_ceil(BLOCK));
        if activation == Activation::Float {
            let none = Quantized { x, columns, blocks, codes: &[], scales: &[], sums: &[], centres: &[], totals: &[] };
            return (none, &mut self.rooms);
        }
        self.reserve(rows, columns).expect("the activations were reserved at load");
        let quantize = kernels::quantize(isa);
        let workers = pool.threads();
        let (codes, scales) = (&mut self.codes[..rows * blocks], &mut self.scales[..rows * blocks]);
        let (sums, totals) = (&mut self.sums[..rows * blocks], &mut self.totals[..rows]);
        let centres = DisjointMut::new(&mut self.centres[..rows * blocks]);
        let parts =
            (DisjointMut::new(codes), DisjointMut::new(scales), DisjointMut::new(sums), DisjointMut::new(totals));
        let work = |workers: usize, worker: usize| {
            for row in chunk(rows, workers, worker, 1) {
                let span = row * blocks..(row + 1) * blocks;
                #[allow(unsafe_code)]
                // SAFETY: `chunk` gives each row to one worker, and rows do not overlap.
                let (codes, scales, sums, centres, total) = unsafe {
                    let (codes, scales) = (parts.0.range(span.clone()), parts.1.range(span.clone()));
                    (codes, scales, parts.2.range(span.clone()), centres.range(span), parts.3.range(row..row + 1))
                };
                quantize(&x[row * columns..][..columns], activation, codes, scales, sums);
                centres.iter_mut().zip(&*sums).for_each(|(to, &sum)| *to = centre(sum));
                total[0] = sums.iter().sum();
            }
        };
        if pool.threads() > 1 && rows > 1 && x.len() >= FORK {
            pool.run(&|worker| work(workers, worker));
        } else {
            work(1, 0);
        }
        let (codes, scales) = (&self.codes[..rows * blocks], &self.scales[..rows * blocks]);
        let (sums, centres) = (&self.sums[..rows * blocks], &self.centres[..rows * blocks]);
        (Quantized { x, columns, blocks, codes, scales, sums, centres, totals: &self.totals[..rows] }, &mut self.rooms)
    }
}

/// Makes room for `len` values where there is less, which are all zero then; `None` if there is no memory for it.
fn grow<T: bytemuck::Zeroable>(values: &mut Vec<T>, len: usize) -> Option<()> {
    if values.len() < len {
        *values = Vec::new();
        *values = try_zeroed_vec(len).ok()?;
    }
    Some(())
}

/// All tokens of a product.
#[derive(Debug)]
pub(crate) struct Quantized<'a> {
    /// The floats `[tokens, columns]`.
    x: &'a [f32],
    columns: usize,
    blocks: usize,
    codes: &'a [CodeBlock],
    scales: &'a [f32],
    sums: &'a [i32],
    centres: &'a [i32],
    totals: &'a [i32],
}

impl<'a> Quantized<'a> {
    /// Every one of them.
    pub(crate) fn tokens(&'a self) -> Tokens<'a> {
        Tokens { all: self, first: 0, len: self.x.len() / self.columns }
    }
}

/// A run of tokens as the kernels see them. Three words: a job on a tile takes about a microsecond, and is handed them anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'a> {
    all: &'a Quantized<'a>,
    first: usize,
    len: usize,
}

/// The activations of one token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    /// Codes of each block.
    pub(crate) codes: &'a [CodeBlock],
    /// Scale of each block.
    pub(crate) scales: &'a [f32],
    /// Sum of the codes of each block.
    pub(crate) sums: &'a [i32],
    /// [`centre`] of each block.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // What `vpmaddubsw` starts from.
    pub(crate) centres: &'a [i32],
    /// Sum of all codes.
    pub(crate) total: i32,
}

impl<'a> Tokens<'a> {
    /// Number of tokens.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Blocks of each token's activations.
    #[inline(always)]
    pub(crate) fn blocks(&self) -> usize {
        self.all.blocks
    }

    /// `count` tokens from the one at `first`.
    #[inline(always)]
    pub(crate) fn slice(&self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.len, "no such tokens");
        Tokens { all: self.all, first: self.first + first, len: count }
    }

    /// The quantised activations of one token.
    #[inline(always)]
    pub(crate) fn token(&self, token: usize) -> Token<'a> {
        Token {
            codes: self.codes(token),
            scales: self.blocks_of(self.all.scales, token),
            sums: self.blocks_of(self.all.sums, token),
            centres: self.blocks_of(self.all.centres, token),
            total: self.total(token),
        }
    }

    /// The codes of one token's blocks.
    #[inline(always)]
    pub(crate) fn codes(&self, token: usize) -> &'a [CodeBlock] {
        self.blocks_of(self.all.codes, token)
    }

    /// The sum of all codes of a token.
    #[inline(always)]
    pub(crate) fn total(&self, token: usize) -> i32 {
        self.all.totals[self.first + token]
    }

    /// The scale of a token that has one for all of its blocks.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // Other instruction sets take a token's parts together.
    pub(crate) fn scale(&self, token: usize) -> f32 {
        self.all.scales[(self.first + token) * self.all.blocks]
    }

    /// The float activations of one token.
    #[inline(always)]
    pub(crate) fn floats(&self, token: usize) -> &'a [f32] {
        &self.all.x[(self.first + token) * self.all.columns..][..self.all.columns]
    }

    /// One token's part of what there is for each block.
    #[inline(always)]
    fn blocks_of<T>(&self, all: &'a [T], token: usize) -> &'a [T] {
        &all[(self.first + token) * self.all.blocks..][..self.all.blocks]
    }
}

/// What the int16 pairs of a block's sums with codes 0..=15 start from, so that their sum is that with codes -8..=7:
/// -4 times the sum of the activations, in both halves of a dword. A half then holds 16 products with codes less 4, less
/// 4 times the other 16 activations: at most 127 · 16 · (11 + 4) = 30,480.
pub(crate) fn centre(sum: i32) -> i32 {
    let half = (-4 * sum) as u16;
    (u32::from(half) * 0x1_0001) as i32
}

/// Quantises one token by the definition in [`trine_backend::activation`]: `codes`, `scales` and `sums` of
/// each block.
pub(crate) fn quantize_plain(
    x: &[f32],
    activation: Activation,
    codes: &mut [CodeBlock],
    scales: &mut [f32],
    sums: &mut [i32],
) {
    let bytes: &mut [i8] = bytemuck::cast_slice_mut(codes);
    let (used, padding) = bytes.split_at_mut(x.len());
    activation::quantize(x, activation, used, scales);
    padding.fill(0);
    for (sum, codes) in sums.iter_mut().zip(bytes.chunks_exact(BLOCK)) {
        *sum = codes.iter().map(|&code| i32::from(code)).sum();
    }
}
