//! Which kernels multiply with a matrix, in words.

use trine_backend::{Choice, Format};
use trine_kernels::{Epilogue, TOKENS, segment};

use crate::driver::Facts;
use crate::fuse::{MOST_FEW_ROWS, MOST_NORMED_COLUMNS};
use crate::options::RowsPerThread;
use crate::plan::{tile, tile_of_many};

/// The kernels for `tokens` rows times a matrix `[rows, columns]`: of one row there are two, with the norm before it and without.
pub(crate) fn explain(
    (rows, columns): (usize, usize),
    format: Format,
    tokens: usize,
    asked: Option<RowsPerThread>,
    facts: &Facts,
) -> Vec<Choice> {
    let choice = |kernel: String, layout: &str, reason: String| Choice {
        kernel,
        layout: layout.into(),
        tokens,
        cycles: None,
        reason,
    };
    if format.is_dense() {
        return vec![choice("dense".into(), "rows", "floats, 8 rows by 8 tokens to a block".into())];
    }
    let layout = "tiles of 8 rows";
    if tokens > MOST_FEW_ROWS {
        let tile = tile_of_many(rows, tokens, facts.multiprocessors as usize);
        let blocks = rows.div_ceil(tile as usize) * tokens.div_ceil(TOKENS);
        let reason = format!("more than {MOST_FEW_ROWS} tokens: tensor cores, {blocks} blocks of {tile} rows");
        return vec![choice(format!("gemm {tile}x{TOKENS}"), layout, reason)];
    }
    let most = tokens.next_power_of_two() as u32;
    let normed = tokens == 1 && columns <= MOST_NORMED_COLUMNS;
    [Some(false), normed.then_some(true)]
        .into_iter()
        .flatten()
        .map(|norm| {
            let shape = (rows, segment(columns));
            let (shared, threads) = tile(shape, (most, norm, Epilogue::Store), asked, facts.overlaps());
            let what =
                if norm { "after a norm, which it makes itself" } else { "reads the weights once for all tokens" };
            let why = match asked {
                Some(_) => "as asked",
                None => "fastest where it was measured",
            };
            let kernel = format!("gemv o{shared}{}", if norm { " norm" } else { "" });
            choice(kernel, layout, format!("{what}; {shared} rows share activations, {threads} threads, {why}"))
        })
        .collect()
}
