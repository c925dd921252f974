//! The non-linearity of gated feed-forward blocks.

use pulp::NullaryFnOnce;
use trine_backend::Gate;

use super::{SPLIT, math, norm, segments, split};
use crate::isa::Isa;
use crate::pool::Pool;

/// `out = gate(g) · u`; `out` is `[rows, columns]`, a row of `gate_up` is `[g | u]`.
pub(crate) fn gated(pool: &Pool, isa: Isa, out: &mut [f32], columns: usize, gate_up: &[f32], gate: Gate) {
    assert_eq!(gate_up.len(), 2 * out.len());
    split(pool, out, SPLIT, cost(gate), |start, mut out| {
        for (row, range) in segments(start, out.len(), columns) {
            let (g, u) = gate_up[2 * row * columns..][..2 * columns].split_at(columns);
            let (part, rest) = out.split_at_mut(range.len());
            out = rest;
            gated_part(isa, part, &g[range.clone()], &u[range], gate);
        }
    });
}

/// [`gated`], then RMSNorm with `weight`, while the row is in the nearest cache: `out` is `[rows, weight.len()]`.
pub(crate) fn gated_rms_norm(
    pool: &Pool,
    isa: Isa,
    out: &mut [f32],
    gate_up: &[f32],
    gate: Gate,
    weight: &[f32],
    eps: f32,
) {
    let columns = weight.len();
    assert_eq!(gate_up.len(), 2 * out.len());
    assert!(out.len().is_multiple_of(columns), "rows are not as wide as the norm's weight");
    split(pool, out, columns, cost(gate) + norm::COST, |start, out| {
        for (out, gate_up) in out.chunks_exact_mut(columns).zip(gate_up[2 * start..].chunks_exact(2 * columns)) {
            let (g, u) = gate_up.split_at(columns);
            gated_part(isa, out, g, u, gate);
            norm::rms_norm_in_place(isa, out, weight, eps);
        }
    });
}

/// Simple operations that a gate costs per value.
fn cost(gate: Gate) -> usize {
    match gate {
        Gate::Silu => 8, // An exponential and a division.
        Gate::Relu2 => 1,
    }
}

fn gated_part(isa: Isa, out: &mut [f32], g: &[f32], u: &[f32], gate: Gate) {
    match gate {
        Gate::Silu => isa.vectorize(Silu { out, g, u }),
        Gate::Relu2 => isa.vectorize(Relu2 { out, g, u }),
    }
}

struct Silu<'a> {
    out: &'a mut [f32],
    g: &'a [f32],
    u: &'a [f32],
}

impl NullaryFnOnce for Silu<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for ((out, &g), &u) in self.out.iter_mut().zip(self.g).zip(self.u) {
            *out = g / (1.0 + math::exp(-g)) * u;
        }
    }
}

struct Relu2<'a> {
    out: &'a mut [f32],
    g: &'a [f32],
    u: &'a [f32],
}

impl NullaryFnOnce for Relu2<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for ((out, &g), &u) in self.out.iter_mut().zip(self.g).zip(self.u) {
            let positive = g.max(0.0);
            *out = positive * positive * u;
        }
    }
}
