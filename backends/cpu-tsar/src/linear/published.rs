//! Products with weights in the layout that T-SAR's authors published.

use std::ops::Range;

use super::FORK;
use crate::activations::Tokens;
use crate::kernels::tsar::{self, Job, MOST_TILES, OUTPUTS};
use crate::kernels::{Room, Workspace, Workspaces};
use crate::pool::{DisjointMut, Pool, chunk};
use crate::weights::{Published, Weight};

/// [`super::linear`] for such weights: each thread takes rows, and goes through them once for each token.
pub(super) fn linear(
    pool: &Pool,
    variant: tsar::Variant,
    weight: &Weight,
    layout: &Published,
    tokens: Tokens<'_>,
    rooms: &mut Workspaces,
    out: &mut [f32],
) {
    let workers = pool.threads();
    if rooms.workers.len() < workers {
        // By the first step, and not after.
        rooms.workers.resize_with(workers, Workspace::default);
    }
    let product = Product { variant, weight, layout, tokens, out: DisjointMut::new(out) };
    let rooms = DisjointMut::new(&mut rooms.workers);
    let work = |workers: usize, worker: usize| {
        #[allow(unsafe_code)]
        // SAFETY: each worker number is given out once, so nobody else has its room.
        let room = &mut unsafe { rooms.range(worker..worker + 1) }[0].room;
        let tiles = chunk(layout.row_tiles(), workers, worker, 1);
        for first in tiles.clone().step_by(MOST_TILES) {
            let part = first..(first + MOST_TILES).min(tiles.end);
            (0..tokens.len()).for_each(|token| product.part(token, part.clone(), room));
        }
    };
    if workers > 1 && tokens.len() * weight.tiles().len() >= FORK {
        pool.run(&|worker| work(workers, worker));
    } else {
        work(1, 0);
    }
}

struct Product<'a> {
    variant: tsar::Variant,
    weight: &'a Weight,
    layout: &'a Published,
    tokens: Tokens<'a>,
    /// `[tokens, rows]`.
    out: DisjointMut<'a, f32>,
}

impl Product<'_> {
    /// Some rows of one token's outputs.
    fn part(&self, number: usize, tiles: Range<usize>, room: &mut Room) {
        let (bytes, token) = (self.weight.tiles(), self.tokens.token(number));
        let job = Job { layout: self.layout, bytes, activations: bytemuck::cast_slice(token.codes) };
        (self.variant.run)(&job, tiles.clone(), room);
        let rows = tiles.start * OUTPUTS..(tiles.end * OUTPUTS).min(self.weight.rows());
        let start = number * self.weight.rows();
        #[allow(unsafe_code)]
        // SAFETY: a tile is given to one thread, so nobody else holds these rows.
        let out = unsafe { self.out.range(start + rows.start..start + rows.end) };
        for (tile, out) in out.chunks_mut(OUTPUTS).enumerate() {
            let first = rows.start + tile * OUTPUTS;
            for (at, (out, sum)) in out.iter_mut().zip(tsar::sums(room, tile).as_flattened()).enumerate() {
                *out = *sum as f32 * (self.layout.scale(bytes, first + at) * token.scales[0]);
            }
        }
    }
}
