//! Filling a matrix row by row, on all cores where that pays.

use rayon::prelude::*;

/// Weights below which rows are written by the thread that asks: waking others takes as long as writing some 100,000
/// ternary weights, and a small model has many small matrices.
const FORK: usize = 1 << 21;

/// Calls `write` for each of the `rows` with its share of each of the fields, which have as many items for each row, and a
/// scratch of the thread.
///
/// # Errors
/// What `write` returns: of several errors any.
pub(super) fn fill_rows<A: Send, B: Send, C: Send, S, E: Send>(
    rows: usize,
    columns: usize,
    fields: (&mut [A], &mut [B], &mut [C]),
    scratch: impl Fn() -> S + Sync + Send,
    write: impl Fn(&mut S, usize, &mut [A], &mut [B], &mut [C]) -> Result<(), E> + Sync + Send,
) -> Result<(), E> {
    let (a, b, c) = fields;
    let [first, second, third] = [a.len(), b.len(), c.len()].map(|len| (len / rows.max(1)).max(1));
    if rows.saturating_mul(columns) < FORK {
        let mut scratch = scratch();
        let shares = a.chunks_mut(first).zip(b.chunks_mut(second)).zip(c.chunks_mut(third));
        return shares.enumerate().try_for_each(|(row, ((a, b), c))| write(&mut scratch, row, a, b, c));
    }
    let shares = a.par_chunks_mut(first).zip(b.par_chunks_mut(second)).zip(c.par_chunks_mut(third));
    shares.enumerate().try_for_each_init(scratch, |scratch, (row, ((a, b), c))| write(scratch, row, a, b, c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_share_on_one_thread_or_several() {
        for (rows, columns) in [(1, 1), (5, 7), (300, FORK / 300 + 1)] {
            let (mut a, mut b, mut c) = (vec![0; rows * 3], vec![0; rows], vec![(); rows]);
            let scratch = || [9];
            fill_rows::<_, _, _, _, ()>(rows, columns, (&mut a, &mut b, &mut c), scratch, |scratch, row, a, b, c| {
                assert_eq!((a.len(), b.len(), c.len(), scratch[0]), (3, 1, 1, 9));
                a.fill(row);
                b.fill(row + 1);
                Ok(())
            })
            .unwrap();
            assert!((0..rows).all(|row| a[3 * row..][..3] == [row; 3] && b[row] == row + 1));
            let last = |_: &mut (), row: usize, _: &mut [usize], _: &mut [usize], _: &mut [()]| {
                if row + 1 == rows { Err(row) } else { Ok(()) }
            };
            assert_eq!(fill_rows(rows, columns, (&mut a, &mut b, &mut c), || (), last), Err(rows - 1));
        }
    }
}
