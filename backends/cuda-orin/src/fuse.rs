//! From ops to nodes: neighbours that one launch can compute together become one node.
//!
//! What a fused launch leaves out is not computed elsewhere: it is left out only where nobody can ask for it, that is
//! where a later op of the same step overwrites it before anyone looks, or the step says that it is of no use to anyone
//! ([`Op::Discard`]). Any other buffer can be read after a step.

use trine_backend::{Activation, Gate, Heads};

use crate::kv::Cache;
use crate::op::{Buf, Op, Shared, is_needed};
use crate::weights::Matrix;

/// Rows up to which a product goes through the kernels that read the weights once for all of them.
pub(crate) const MOST_FEW_ROWS: usize = 8;
/// Columns that a block of a product normalises for itself, at most.
pub(crate) const MOST_NORMED_COLUMNS: usize = 8192;

/// One launch or a few.
#[derive(Clone, PartialEq)]
pub(crate) enum Node {
    /// The product of a matrix with what it is multiplied with; where it goes and what is added first.
    Product { weight: Shared<Matrix>, input: Input, bias: Option<Buf>, target: Target },
    /// Attention that rotates queries and keys and stores keys and values by itself.
    AttendRotating { out: Buf, qkv: Buf, table: Buf, cache: Shared<Cache>, layer: usize, heads: Heads },
    /// An op of its own.
    Alone(Op),
}

/// What a product multiplies a matrix with.
#[derive(Clone, PartialEq)]
pub(crate) enum Input {
    /// A buffer's rows.
    Rows(Buf),
    /// The norm of a buffer's rows.
    Normed { x: Buf, weight: Buf, eps: f32 },
}

impl Input {
    fn buffer(&self) -> &Buf {
        match self {
            Input::Rows(x) | Input::Normed { x, .. } => x,
        }
    }
}

/// Where a product goes.
#[derive(Clone, PartialEq)]
pub(crate) enum Target {
    /// Into a buffer.
    Store(Buf),
    /// Onto what a buffer holds.
    AddTo(Buf),
    /// Through the gate, into a buffer of half the columns.
    Gated(Buf, Gate),
}

/// Nodes with the number of ops that each stands for. `rows` are those of the step, `outputs` those that a selection keeps.
pub(crate) fn fuse(ops: &[Op], rows: usize, outputs: usize) -> Vec<(Node, usize)> {
    let mut fuser = Fuser { rows, outputs, added: false };
    let mut nodes = Vec::new();
    let mut at = 0;
    while at < ops.len() {
        let (node, count) = fuser.node(&ops[at], &ops[at + 1..]);
        nodes.extend(node.map(|node| (node, at + count)));
        at += count;
    }
    nodes
}

struct Fuser {
    rows: usize,
    outputs: usize,
    /// Whether the next op's addition has been made by the product before it.
    added: bool,
}

impl Fuser {
    /// The node that begins with `op`, if there is anything left of it, and how many ops it takes.
    fn node(&mut self, op: &Op, later: &[Op]) -> (Option<Node>, usize) {
        let added = std::mem::take(&mut self.added);
        match op {
            Op::RmsNorm { out, x, add, weight, eps } => {
                let add = add.clone().filter(|_| !added);
                if add.is_none()
                    && let Some((product, count)) = self.normed_product(out, x, weight, *eps, later)
                {
                    return (Some(product), 1 + count);
                }
                let (out, x, weight) = (out.clone(), x.clone(), weight.clone());
                (Some(Node::Alone(Op::RmsNorm { out, x, add, weight, eps: *eps })), 1)
            }
            Op::Add { .. } if added => (None, 1),
            Op::Linear { out, x, weight } => {
                let (product, count) = self.product(out, Input::Rows(x.clone()), weight, later);
                (Some(product), 1 + count)
            }
            Op::RopeStoreKv { qkv, heads, table: Some(table), cache: Some((cache, layer)) } => {
                if let Some(Op::Attend { out, qkv: read, cache: kv, layer: of, heads: shape }) = later.first() {
                    let same = read == qkv && kv == cache && of == layer && shape == heads;
                    if same && self.rows == 1 && !is_needed(qkv, &later[1..]) {
                        let node = Node::AttendRotating {
                            out: out.clone(),
                            qkv: qkv.clone(),
                            table: table.clone(),
                            cache: cache.clone(),
                            layer: *layer,
                            heads: *heads,
                        };
                        return (Some(node), 2);
                    }
                }
                (Some(Node::Alone(op.clone())), 1)
            }
            Op::SelectOutputs { out, x } => {
                let all = self.rows == self.outputs;
                self.rows = self.outputs;
                if let Some((Op::RmsNorm { out: normed, x: read, add: None, weight, eps }, rest)) = later.split_first()
                    && all
                    && read == out
                    && !is_needed(out, rest)
                {
                    // Every row is selected: the norm takes them where they are.
                    let (out, x, weight) = (normed.clone(), x.clone(), weight.clone());
                    let norm = Op::RmsNorm { out, x, add: None, weight, eps: *eps };
                    let (node, count) = self.node(&norm, rest);
                    return (node, 1 + count);
                }
                (Some(Node::Alone(op.clone())), 1)
            }
            _ => (Some(Node::Alone(op.clone())), 1),
        }
    }

    /// The product of a norm's output, where the norm is of use to it alone.
    fn normed_product(&mut self, out: &Buf, x: &Buf, weight: &Buf, eps: f32, later: &[Op]) -> Option<(Node, usize)> {
        let Some((Op::Linear { out: target, x: input, weight: matrix }, rest)) = later.split_first() else {
            return None;
        };
        let fits = self.rows == 1
            && input == out
            && matrix.activation == Activation::Block
            && x.columns <= MOST_NORMED_COLUMNS
            && x.columns.is_multiple_of(4);
        if !fits || is_needed(out, rest) || target == x {
            return None;
        }
        let input = Input::Normed { x: x.clone(), weight: weight.clone(), eps };
        let (product, count) = self.product(target, input, matrix, rest);
        Some((product, 1 + count))
    }

    /// A product with what follows it, and how many ops follow.
    fn product(&mut self, out: &Buf, input: Input, weight: &Shared<Matrix>, later: &[Op]) -> (Node, usize) {
        let (bias, rest) = match later.split_first() {
            Some((Op::AddBias { x, bias }, rest)) if x == out => (Some(bias.clone()), rest),
            _ => (None, later),
        };
        let count = usize::from(bias.is_some());
        let product =
            |target| Node::Product { weight: weight.clone(), input: input.clone(), bias: bias.clone(), target };
        match rest.first() {
            Some(Op::RmsNorm { x, add: Some(add), .. } | Op::Add { x, y: add })
                if add == out && x != out && input.buffer() != x && !is_needed(out, &rest[1..]) =>
            {
                // The op itself stays, without its addition.
                self.added = true;
                (product(Target::AddTo(x.clone())), count)
            }
            Some(Op::Gated { out: gated, gate_up, gate })
                if gate_up == out
                    && self.gates(weight)
                    && bias.is_none()
                    && input.buffer() != gated
                    && !is_needed(out, &rest[1..]) =>
            {
                (product(Target::Gated(gated.clone(), *gate)), count + 1)
            }
            _ => (product(Target::Store(out.clone())), count),
        }
    }

    /// Whether the product's kernel can apply the gate.
    fn gates(&self, weight: &Matrix) -> bool {
        self.rows <= MOST_FEW_ROWS && !weight.format.is_dense() && (weight.rows / 2).is_multiple_of(32)
    }
}
