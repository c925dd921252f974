//! Additions.

use pulp::NullaryFnOnce;

use super::{SPLIT, segments, split};
use crate::isa::Isa;
use crate::pool::Pool;

/// `x += y`.
pub(crate) fn add(pool: &Pool, isa: Isa, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    split(pool, x, SPLIT, 1, |start, x| {
        let y = &y[start..start + x.len()];
        isa.vectorize(Add { x, y });
    });
}

/// `x[r] += bias`; `x` is `[rows, bias.len()]`.
pub(crate) fn add_bias(pool: &Pool, isa: Isa, x: &mut [f32], bias: &[f32]) {
    assert!(x.len().is_multiple_of(bias.len()), "rows are not as wide as the bias");
    split(pool, x, SPLIT, 1, |start, mut x| {
        for (_, range) in segments(start, x.len(), bias.len()) {
            let (part, rest) = x.split_at_mut(range.len());
            x = rest;
            isa.vectorize(Add { x: part, y: &bias[range] });
        }
    });
}

struct Add<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl NullaryFnOnce for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x += y;
        }
    }
}
