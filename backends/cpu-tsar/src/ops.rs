//! The small ops: everything but matrix products and attention.
//!
//! They are plain Rust over fixed numbers of lanes that the compiler vectorises, without fused
//! multiply-add, and every reduction has one order. So an op gives the same bits on every instruction set,
//! number of threads and number of rows.

pub(crate) mod elementwise;
pub(crate) mod gate;
pub(crate) mod math;
pub(crate) mod norm;
pub(crate) mod rope;

use std::ops::Range;

use crate::pool::Pool;

/// Simple operations on a value (a load, a multiplication or two, a store) below which the caller works
/// alone: some 2 µs of them, where waking into a run and joining it takes 0.5 to 1 µs at best.
const SERIAL_LIMIT: usize = 16 * 1024;

/// Values that workers' parts of a row start at a multiple of: no cache line is written by two of them.
const SPLIT: usize = 64;

/// Calls `task(start of the part, part)` for parts of `data` that start at multiples of `unit`: one part per
/// worker if `data`, at `cost` simple operations a value, is worth it.
pub(crate) fn split(pool: &Pool, data: &mut [f32], unit: usize, cost: usize, task: impl Fn(usize, &mut [f32]) + Sync) {
    match data.len() * cost < SERIAL_LIMIT {
        true => task(0, data),
        false => pool.split(data, unit, task),
    }
}

/// The rows of width `columns` that `len` values from `start` on lie in: each row and the columns of it.
fn segments(start: usize, len: usize, columns: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = start + len;
    (start / columns..end.div_ceil(columns)).map(move |row| {
        let first = row * columns;
        (row, start.max(first) - first..end.min(first + columns) - first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_follow_rows() {
        let of = |start, len, columns| segments(start, len, columns).collect::<Vec<_>>();
        assert_eq!(of(0, 10, 5), [(0, 0..5), (1, 0..5)]);
        assert_eq!(of(3, 6, 5), [(0, 3..5), (1, 0..4)]);
        assert_eq!(of(6, 2, 5), [(1, 1..3)]);
        assert_eq!(of(6, 0, 5), [(1, 1..1)]);
    }
}
