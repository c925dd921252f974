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
}

impl Op {
    /// Whether it needs what a buffer of fused queries, keys and values holds: `None` if it leaves it alone, false if
    /// it overwrites it.
    pub(crate) fn uses(&self, qkv: &Buf) -> Option<bool> {
        let (read, written) = match self {
            Op::Embed { out, .. } => (vec![], out),
            Op::RmsNorm { out, x, add: Some(add), weight, .. } => (vec![x, add, weight], out),
            Op::RmsNorm { out, x, add: None, weight, .. } => (vec![x, weight], out),
            Op::Linear { out, x, .. } | Op::SelectOutputs { out, x } => (vec![x], out),
            Op::AddBias { x, bias } => (vec![x, bias], x),
            Op::Add { x, y } => (vec![x, y], x),
            Op::HeadNorm { qkv, query, key, .. } => (vec![qkv, query, key], qkv),
            Op::RopeStoreKv { qkv, table, .. } => (table.iter().chain([qkv]).collect(), qkv),
            Op::Attend { out, qkv, .. } => (vec![qkv], out),
            Op::Gated { out, gate_up, .. } => (vec![gate_up], out),
        };
        if read.contains(&qkv) {
            return Some(true);
        }
        (written == qkv).then_some(false)
    }
}
