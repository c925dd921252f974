//! Differences of recorded ops, and where in the graph each op is.

use super::recorder::Recorded;

/// How far apart two results are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// The largest absolute difference; NaN if one of two values is NaN and the other is not.
    pub largest: f64,
    /// Where it is, as an index into the result.
    pub at: usize,
    /// L2 norm of all differences over that of the first result.
    pub relative: f64,
}

impl Difference {
    /// Of `other` from `first`, which are equally long. Equal infinities and two NaNs do not differ.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn of(first: &[f32], other: &[f32]) -> Self {
        assert_eq!(first.len(), other.len(), "results of different sizes");
        let mut result = Difference::default();
        let (mut squares, mut norm) = (0.0f64, 0.0f64);
        for (at, (&a, &b)) in first.iter().zip(other).enumerate() {
            let same = a == b || (a.is_nan() && b.is_nan());
            let difference = if same { 0.0 } else { (f64::from(a) - f64::from(b)).abs() };
            if difference > result.largest || (difference.is_nan() && !result.largest.is_nan()) {
                (result.largest, result.at) = (difference, at);
            }
            squares += difference * difference;
            norm += f64::from(a) * f64::from(a);
        }
        // Against zeros, any difference is a whole one.
        let scale = if norm > 0.0 { norm.sqrt() } else { 1.0 };
        result.relative = if squares == 0.0 { 0.0 } else { squares.sqrt() / scale };
        result
    }
}

/// A part of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// From tokens to rows.
    Embedding,
    /// A layer, from 0.
    Layer(usize),
    /// From the last layer to logits.
    Head,
}

/// One op's result on two backends.
#[derive(Clone, Debug, PartialEq)]
pub struct OpDifference {
    /// Where in the graph.
    pub part: Part,
    /// The op, by what it is in the graph: `qkv` rather than `linear`.
    pub name: &'static str,
    /// The method of the backend.
    pub op: &'static str,
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// What the op makes of the first backend's inputs.
    pub own: Difference,
    /// How far the results are when each backend goes on from its own.
    pub drift: Difference,
}

/// The matrices of a layer in the order in which they are multiplied.
const MATRICES: [&str; 4] = ["qkv", "out", "gate_up", "down"];

/// Compares two recordings with the first backend's. The graph calls the same ops on every backend.
pub(super) fn differences(
    first: &[Recorded],
    own: &[Recorded],
    drift: &[Recorded],
    layers: usize,
) -> Vec<OpDifference> {
    let places = places(first, layers);
    let recorded = first.iter().zip(own.iter().zip(drift)).zip(places);
    let difference = |((first, (own, drift)), (part, name)): ((&Recorded, (&Recorded, &Recorded)), _)| OpDifference {
        part,
        name,
        op: first.op,
        rows: first.values.len() / first.columns,
        columns: first.columns,
        own: Difference::of(&first.values, &own.values),
        drift: Difference::of(&first.values, &drift.values),
    };
    recorded.map(difference).collect()
}

/// Part and name of each op. An op belongs to the layer of the next matrix: what comes before it prepares its input.
fn places(ops: &[Recorded], layers: usize) -> Vec<(Part, &'static str)> {
    let mut matrix = 0;
    let place = |recorded: &Recorded| {
        let index = matrix;
        let in_layer = index / MATRICES.len() < layers;
        let part = match (recorded.op, in_layer) {
            ("embed", _) => Part::Embedding,
            (_, true) => Part::Layer(index / MATRICES.len()),
            (_, false) => Part::Head,
        };
        let name = match (recorded.op, recorded.result) {
            ("linear", _) => {
                matrix += 1;
                if in_layer { MATRICES[index % MATRICES.len()] } else { "logits" }
            }
            ("add_rms_norm", result) => result,
            ("rms_norm", _) => "norm",
            ("add", _) => "sum",
            ("add_bias", _) => "bias",
            ("rope_store_kv", _) => "rope",
            ("select_outputs", _) => "select",
            (op, _) => op,
        };
        (part, name)
    };
    ops.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_difference_is_found() {
        let difference = Difference::of(&[3.0, -4.0, 0.0], &[3.0, -3.5, 0.25]);
        assert_eq!((difference.largest, difference.at), (0.5, 1));
        assert!((difference.relative - (0.25f64 + 0.0625).sqrt() / 5.0).abs() < 1e-12);
        assert_eq!(
            Difference::of(&[1.0, f32::INFINITY, f32::NAN], &[1.0, f32::INFINITY, f32::NAN]),
            Difference::default()
        );
        assert_eq!(Difference::of(&[0.0, -0.0], &[-0.0, 0.0]), Difference::default());
        assert_eq!(Difference::of(&[0.0], &[2.0]).relative, 2.0);
    }

    #[test]
    fn a_nan_or_an_infinity_on_one_side_is_the_largest_difference() {
        let difference = Difference::of(&[1.0, 2.0, 3.0], &[9.0, f32::NAN, 99.0]);
        assert!(difference.largest.is_nan() && difference.at == 1 && difference.relative.is_nan());
        let difference = Difference::of(&[1.0, f32::INFINITY], &[1.0, 5.0]);
        assert!(difference.largest == f64::INFINITY && difference.at == 1);
    }

    fn recorded(op: &'static str, result: &'static str) -> Recorded {
        Recorded { op, result, columns: 2, values: vec![1.0; 4] }
    }

    #[test]
    fn ops_are_named_by_their_place() {
        let first = [("embed", ""), ("rms_norm", ""), ("linear", ""), ("add_bias", ""), ("rope_store_kv", "")];
        let layer = [("attend", ""), ("linear", ""), ("add_rms_norm", "sum"), ("add_rms_norm", "norm"), ("linear", "")];
        let down = [("gated", ""), ("linear", "")];
        let head = [("add", ""), ("select_outputs", ""), ("rms_norm", ""), ("linear", "")];
        let ops: Vec<_> =
            [&first[..], &layer, &down, &head].concat().into_iter().map(|(a, b)| recorded(a, b)).collect();
        let mut other = ops.clone();
        other[2].values[3] = 2.0;
        let found = differences(&ops, &other, &ops, 1);
        let names: Vec<_> = found.iter().map(|op| op.name).collect();
        let expected = "embed norm qkv bias rope attend out sum norm gate_up gated down sum select norm logits";
        assert_eq!(names, expected.split(' ').collect::<Vec<_>>());
        let parts: Vec<_> = found.iter().map(|op| op.part).collect();
        assert_eq!(parts[0], Part::Embedding);
        assert_eq!((&parts[1..12], &parts[12..]), (&[Part::Layer(0); 11][..], &[Part::Head; 4][..]));
        let qkv = &found[2];
        assert_eq!((qkv.op, qkv.rows, qkv.columns, qkv.own.largest, qkv.own.at), ("linear", 2, 2, 1.0, 3));
        assert!(found.iter().filter(|op| op.own.largest > 0.0 || op.drift.largest > 0.0).count() == 1);
    }
}
