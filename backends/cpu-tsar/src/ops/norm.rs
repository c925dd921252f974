//! RMSNorm.

use pulp::NullaryFnOnce;
use trine_backend::Heads;

use super::{SERIAL_LIMIT, math, split};
use crate::isa::Isa;
use crate::pool::Pool;

/// Simple operations that a norm costs per value: two passes, one in f64.
pub(super) const COST: usize = 2;

/// `out[r] = x[r] / sqrt(mean(x[r]²) + eps) · weight`; `out` and `x` are `[rows, weight.len()]`.
pub(crate) fn rms_norm(pool: &Pool, isa: Isa, out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
    let columns = weight.len();
    assert_eq!(out.len(), x.len());
    assert!(out.len().is_multiple_of(columns), "rows are not as wide as the norm's weight");
    split(pool, out, columns, COST, |start, out| {
        let x = &x[start..start + out.len()];
        isa.vectorize(NormRows { out, x, weight, eps });
    });
}

/// RMSNorm of one row where it is.
pub(super) fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    isa.vectorize(NormInPlace { x, weight, eps });
}

/// `x[r] += y[r]`, then `out[r] = rms_norm(x[r])`, while the row is in the nearest cache.
pub(crate) fn add_rms_norm(pool: &Pool, isa: Isa, out: &mut [f32], x: &mut [f32], y: &[f32], weight: &[f32], eps: f32) {
    let columns = weight.len();
    assert!(out.len() == x.len() && x.len() == y.len());
    assert!(out.len().is_multiple_of(columns), "rows are not as wide as the norm's weight");
    let task = |start: usize, out: &mut [f32], x: &mut [f32]| {
        let y = &y[start..start + x.len()];
        isa.vectorize(AddNormRows { out, x, y, weight, eps });
    };
    match out.len() * COST < SERIAL_LIMIT {
        true => task(0, out, x),
        false => pool.split_two(out, x, columns, task),
    }
}

/// RMSNorm of each query head with `query` and of each key head with `key`, in place in fused rows.
pub(crate) fn head_norm(pool: &Pool, isa: Isa, qkv: &mut [f32], heads: Heads, query: &[f32], key: &[f32], eps: f32) {
    assert!(query.len() == heads.dim && key.len() == heads.dim, "head norms are not as wide as a head");
    split(pool, qkv, heads.fused_width(), COST, |_, qkv| {
        isa.vectorize(NormHeads { qkv, heads, query, key, eps });
    });
}

#[inline(always)]
fn norm_row(out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
    let scale = scale_of(x, eps);
    for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

#[inline(always)]
fn scale_row(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = scale_of(x, eps);
    x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
}

struct NormRows<'a> {
    out: &'a mut [f32],
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
}

impl NullaryFnOnce for NormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let columns = self.weight.len();
        for (out, x) in self.out.chunks_exact_mut(columns).zip(self.x.chunks_exact(columns)) {
            norm_row(out, x, self.weight, self.eps);
        }
    }
}

struct AddNormRows<'a> {
    out: &'a mut [f32],
    x: &'a mut [f32],
    y: &'a [f32],
    weight: &'a [f32],
    eps: f32,
}

impl NullaryFnOnce for AddNormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let columns = self.weight.len();
        let rows = self.out.chunks_exact_mut(columns).zip(self.x.chunks_exact_mut(columns));
        for ((out, x), y) in rows.zip(self.y.chunks_exact(columns)) {
            x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
            norm_row(out, x, self.weight, self.eps);
        }
    }
}

struct NormInPlace<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl NullaryFnOnce for NormInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        scale_row(self.x, self.weight, self.eps);
    }
}

struct NormHeads<'a> {
    qkv: &'a mut [f32],
    heads: Heads,
    query: &'a [f32],
    key: &'a [f32],
    eps: f32,
}

impl NullaryFnOnce for NormHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Heads { query, kv, dim } = self.heads;
        for row in self.qkv.chunks_exact_mut(self.heads.fused_width()) {
            for (head, x) in row.chunks_exact_mut(dim).take(query + kv).enumerate() {
                let weight = if head < query { self.query } else { self.key };
                scale_row(x, weight, self.eps);
            }
        }
    }
}

/// `1 / sqrt(mean(x²) + eps)`. The squares are summed in f64, where they can't overflow.
#[inline(always)]
fn scale_of(x: &[f32], eps: f32) -> f32 {
    let squares = math::sum(x, |x| x * x);
    (1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt()) as f32
}
