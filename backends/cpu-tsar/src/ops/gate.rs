//! The non-linearity of gated feed-forward blocks.

use pulp::NullaryFnOnce;
use trine_backend::Gate;

use super::{SPLIT, math, segments, split};
use crate::isa::Isa;
use crate::pool::Pool;

/// `out = gate(g) · u`; `out` is `[rows, columns]`, a row of `gate_up` is `[g | u]`.
pub(crate) fn gated(pool: &Pool, isa: Isa, out: &mut [f32], columns: usize, gate_up: &[f32], gate: Gate) {
    assert_eq!(gate_up.len(), 2 * out.len());
    let cost = match gate {
        Gate::Silu => 8, // An exponential and a division.
        Gate::Relu2 => 1,
    };
    split(pool, out, SPLIT, cost, |start, mut out| {
        for (row, range) in segments(start, out.len(), columns) {
            let (g, u) = gate_up[2 * row * columns..][..2 * columns].split_at(columns);
            let (part, rest) = out.split_at_mut(range.len());
            out = rest;
            let (g, u) = (&g[range.clone()], &u[range]);
            match gate {
                Gate::Silu => isa.vectorize(Silu { out: part, g, u }),
                Gate::Relu2 => isa.vectorize(Relu2 { out: part, g, u }),
            }
        }
    });
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
