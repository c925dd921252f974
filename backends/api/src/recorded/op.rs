//! One op of a step, and whether a buffer's values are needed.

use crate::{Gate, Heads};

/// One op of a step, with the handles that a backend has of its buffers, weight matrices and caches. What it computes is told
/// at the methods of [`Backend`](crate::Backend), whose arguments its fields are.
#[allow(missing_docs)] // Of the fields: see above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op<Buf, Weight, Kv> {
    /// A row of the table for each token.
    Embed { out: Buf, table: Weight },
    /// RMSNorm; `x += add` first, where there is one.
    RmsNorm { out: Buf, x: Buf, add: Option<Buf>, weight: Buf, eps: f32 },
    /// A product with a matrix.
    Linear { out: Buf, x: Buf, weight: Weight },
    /// The same row added to each.
    AddBias { x: Buf, bias: Buf },
    /// Rows added to rows.
    Add { x: Buf, y: Buf },
    /// RMSNorm of query and key heads.
    HeadNorm { qkv: Buf, heads: Heads, query: Buf, key: Buf, eps: f32 },
    /// RoPE where there is a table, the store in a layer where there is a cache.
    RopeStoreKv { qkv: Buf, heads: Heads, table: Option<Buf>, cache: Option<(Kv, usize)> },
    /// Attention.
    Attend { out: Buf, qkv: Buf, cache: Kv, layer: usize, heads: Heads },
    /// One half of the columns through the gate, times the other.
    Gated { out: Buf, gate_up: Buf, gate: Gate },
    /// The rows that have an output; later ops work on those only.
    SelectOutputs { out: Buf, x: Buf },
    /// Nobody looks at its values any more.
    Discard { buf: Buf },
}

impl<Buf, Weight, Kv> Op<Buf, Weight, Kv> {
    /// The same op with other handles.
    #[inline]
    pub fn map<'a, B, W, K>(
        &'a self,
        buf: impl Fn(&'a Buf) -> B,
        weight: impl Fn(&'a Weight) -> W,
        kv: impl Fn(&'a Kv) -> K,
    ) -> Op<B, W, K> {
        match self {
            Op::Embed { out, table } => Op::Embed { out: buf(out), table: weight(table) },
            Op::RmsNorm { out, x, add, weight, eps } => {
                Op::RmsNorm { out: buf(out), x: buf(x), add: add.as_ref().map(&buf), weight: buf(weight), eps: *eps }
            }
            Op::Linear { out, x, weight: by } => Op::Linear { out: buf(out), x: buf(x), weight: weight(by) },
            Op::AddBias { x, bias } => Op::AddBias { x: buf(x), bias: buf(bias) },
            Op::Add { x, y } => Op::Add { x: buf(x), y: buf(y) },
            Op::HeadNorm { qkv, heads, query, key, eps } => {
                Op::HeadNorm { qkv: buf(qkv), heads: *heads, query: buf(query), key: buf(key), eps: *eps }
            }
            Op::RopeStoreKv { qkv, heads, table, cache } => Op::RopeStoreKv {
                qkv: buf(qkv),
                heads: *heads,
                table: table.as_ref().map(&buf),
                cache: cache.as_ref().map(|(cache, layer)| (kv(cache), *layer)),
            },
            Op::Attend { out, qkv, cache, layer, heads } => {
                Op::Attend { out: buf(out), qkv: buf(qkv), cache: kv(cache), layer: *layer, heads: *heads }
            }
            Op::Gated { out, gate_up, gate } => Op::Gated { out: buf(out), gate_up: buf(gate_up), gate: *gate },
            Op::SelectOutputs { out, x } => Op::SelectOutputs { out: buf(out), x: buf(x) },
            Op::Discard { buf: discarded } => Op::Discard { buf: buf(discarded) },
        }
    }

    /// The buffers whose values it needs, those that it changes in place among them.
    pub fn reads(&self) -> Vec<&Buf> {
        match self {
            Op::Embed { .. } | Op::Discard { .. } => vec![],
            Op::RmsNorm { x, add, weight, .. } => add.iter().chain([x, weight]).collect(),
            Op::Linear { x, .. } | Op::SelectOutputs { x, .. } => vec![x],
            Op::AddBias { x, bias } => vec![x, bias],
            Op::Add { x, y } => vec![x, y],
            Op::HeadNorm { qkv, query, key, .. } => vec![qkv, query, key],
            Op::RopeStoreKv { qkv, table, .. } => table.iter().chain([qkv]).collect(),
            Op::Attend { qkv, .. } => vec![qkv],
            Op::Gated { gate_up, .. } => vec![gate_up],
        }
    }

    /// The buffer that it writes without having looked at it.
    pub fn overwrites(&self) -> Option<&Buf> {
        match self {
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Attend { out, .. }
            | Op::Gated { out, .. }
            | Op::SelectOutputs { out, .. } => Some(out),
            Op::AddBias { .. } | Op::Add { .. } | Op::HeadNorm { .. } | Op::RopeStoreKv { .. } | Op::Discard { .. } => {
                None
            }
        }
    }
}

/// Whether the values that `buf` has before the `later` ops of a step are needed: by one of them, or by someone who reads the
/// buffer after the step. They are not where all of them are overwritten first, or discarded.
pub fn is_needed<Buf: PartialEq, Weight, Kv>(buf: &Buf, later: &[Op<Buf, Weight, Kv>]) -> bool {
    // After a selection ops write fewer rows.
    let mut all_rows = true;
    for op in later {
        if op.reads().contains(&buf) {
            return true;
        }
        all_rows &= !matches!(op, Op::SelectOutputs { .. });
        let overwritten = all_rows && op.overwrites() == Some(buf);
        if overwritten || matches!(op, Op::Discard { buf: discarded } if discarded == buf) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads { query: 2, kv: 1, dim: 8 };

    type Named = Op<&'static str, &'static str, &'static str>;

    /// One op of each kind.
    fn each() -> Vec<Named> {
        vec![
            Op::Embed { out: "x", table: "tokens" },
            Op::RmsNorm { out: "normed", x: "x", add: Some("delta"), weight: "norm", eps: 1e-6 },
            Op::RmsNorm { out: "normed", x: "x", add: None, weight: "norm", eps: 1e-6 },
            Op::Linear { out: "qkv", x: "normed", weight: "matrix" },
            Op::AddBias { x: "qkv", bias: "bias" },
            Op::HeadNorm { qkv: "qkv", heads: HEADS, query: "query", key: "key", eps: 1e-6 },
            Op::RopeStoreKv { qkv: "qkv", heads: HEADS, table: Some("angles"), cache: Some(("cache", 3)) },
            Op::RopeStoreKv { qkv: "qkv", heads: HEADS, table: None, cache: None },
            Op::Attend { out: "attention", qkv: "qkv", cache: "cache", layer: 3, heads: HEADS },
            Op::Gated { out: "gated", gate_up: "gate_up", gate: Gate::Silu },
            Op::Add { x: "x", y: "delta" },
            Op::SelectOutputs { out: "selected", x: "x" },
            Op::Discard { buf: "x" },
        ]
    }

    #[test]
    fn other_handles_leave_the_op_what_it_is() {
        for op in each() {
            let lengths = op.map(|name| name.len(), |name| name.len(), |name| name.len());
            assert_eq!(op.map(|name| *name, |name| *name, |name| *name), op);
            let reads: Vec<usize> = op.reads().iter().map(|name| name.len()).collect();
            assert_eq!(lengths.reads().into_iter().copied().collect::<Vec<_>>(), reads, "{op:?}");
            assert_eq!(lengths.overwrites().copied(), op.overwrites().map(|name| name.len()), "{op:?}");
        }
    }

    #[test]
    fn an_op_reads_what_it_changes_in_place() {
        for op in each() {
            assert!(op.overwrites().is_none_or(|out| !op.reads().contains(&out)), "{op:?} overwrites what it reads");
        }
        for (at, changed) in [(1, "x"), (4, "qkv"), (5, "qkv"), (6, "qkv"), (10, "x")] {
            assert!(each()[at].reads().contains(&&changed), "{:?}", each()[at]);
        }
    }

    #[test]
    fn values_are_needed_until_they_are_lost() {
        let ops = each();
        let select = ops.iter().position(|op| matches!(op, Op::SelectOutputs { .. })).unwrap();
        // A norm adds it.
        assert!(is_needed(&"delta", &ops));
        assert!(!is_needed(&"qkv", &ops));
        assert!(is_needed(&"qkv", &ops[4..]));
        assert!(is_needed(&"attention", &ops[9..]));
        // A selection reads it; after that it is discarded.
        assert!(is_needed(&"x", &ops[select..]));
        assert!(!is_needed(&"x", &ops[select + 1..]));
        // After a selection an op leaves the other rows as they were.
        let linear: [Named; 2] =
            [Op::SelectOutputs { out: "selected", x: "x" }, Op::Linear { out: "y", x: "selected", weight: "matrix" }];
        assert!(!is_needed(&"y", &linear[1..]) && is_needed(&"y", &linear));
        assert!(is_needed::<_, (), ()>(&"x", &[]));
    }
}
