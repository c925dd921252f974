//! What a step's closure asked for, before it is planned.

use std::ops::Deref;
use std::sync::Arc;

use trine_backend::{Gate, Heads};

use crate::buffers::Buffer;
use crate::kv::Cache;
use crate::weights::Matrix;

/// Something on the device that ops refer to; equal if it is the same one.
#[derive(Debug)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Shared(Arc::new(value))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(Arc::clone(&self.0))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

pub(crate) type Buf = Shared<Buffer>;

/// One op of a step.
#[derive(Clone, PartialEq)]
pub(crate) enum Op {
    Embed {
        out: Buf,
        table: Shared<Matrix>,
    },
    /// `x += add` first, where there is one.
    RmsNorm {
        out: Buf,
        x: Buf,
        add: Option<Buf>,
        weight: Buf,
        eps: f32,
    },
    Linear {
        out: Buf,
        x: Buf,
        weight: Shared<Matrix>,
    },
    AddBias {
        x: Buf,
        bias: Buf,
    },
    Add {
        x: Buf,
        y: Buf,
    },
    HeadNorm {
        qkv: Buf,
        heads: Heads,
        query: Buf,
        key: Buf,
        eps: f32,
    },
    /// RoPE where there is a table, the store where there is a cache.
    RopeStoreKv {
        qkv: Buf,
        heads: Heads,
        table: Option<Buf>,
        cache: Option<(Shared<Cache>, usize)>,
    },
    Attend {
        out: Buf,
        qkv: Buf,
        cache: Shared<Cache>,
        layer: usize,
        heads: Heads,
    },
    Gated {
        out: Buf,
        gate_up: Buf,
        gate: Gate,
    },
    SelectOutputs {
        out: Buf,
        x: Buf,
    },
    /// Nobody looks at its values any more.
    Discard {
        buf: Buf,
    },
}

impl Op {
    /// The buffers whose values it needs, those that it changes in place among them.
    fn reads(&self) -> Vec<&Buf> {
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
    pub(crate) fn overwrites(&self) -> Option<&Buf> {
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

/// Whether the values of `buf` are needed by any of the `later` ops, or by someone who reads the buffer after the
/// step: they are unless all of them are overwritten first, or discarded.
pub(crate) fn is_needed(buf: &Buf, later: &[Op]) -> bool {
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
