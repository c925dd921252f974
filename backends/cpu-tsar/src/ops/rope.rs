//! Rotary position embedding (Su et al., "RoFormer", 2021), in the half pairing.

use pulp::NullaryFnOnce;
use trine_backend::{Heads, Row};

use super::split;
use crate::isa::Isa;
use crate::memory::Buf;
use crate::pool::Pool;

/// Rotates query and key heads of fused rows in place. Row `p` of `table` holds `cos[dim / 2] | sin[dim / 2]` of
/// position `p`.
pub(crate) fn rope(pool: &Pool, isa: Isa, rows: &[Row], qkv: &mut [f32], heads: Heads, table: &Buf) {
    let width = heads.fused_width();
    assert_eq!(qkv.len(), rows.len() * width);
    assert!(heads.dim.is_multiple_of(2) && table.columns() == heads.dim, "the table does not fit {heads:?}");
    split(pool, qkv, width, 1, |start, qkv| {
        isa.vectorize(Rotate { rows: &rows[start / width..], qkv, heads, table });
    });
}

struct Rotate<'a> {
    rows: &'a [Row],
    qkv: &'a mut [f32],
    heads: Heads,
    table: &'a Buf,
}

impl NullaryFnOnce for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Heads { query, kv, dim } = self.heads;
        for (row, qkv) in self.rows.iter().zip(self.qkv.chunks_exact_mut(self.heads.fused_width())) {
            let (cos, sin) = self.table.row(row.position as usize).split_at(dim / 2);
            for head in qkv.chunks_exact_mut(dim).take(query + kv) {
                let (first, second) = head.split_at_mut(dim / 2);
                // Slices of one length, indexed: the compiler vectorises this, but not four zipped iterators.
                let (second, cos, sin) = (&mut second[..first.len()], &cos[..first.len()], &sin[..first.len()]);
                for i in 0..first.len() {
                    let (a, b) = (first[i], second[i]);
                    first[i] = a * cos[i] - b * sin[i];
                    second[i] = b * cos[i] + a * sin[i];
                }
            }
        }
    }
}
