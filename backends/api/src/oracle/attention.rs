//! The KV cache and causal attention.

use half::f16;

use crate::activation;
use crate::{Heads, KvFormat, KvShape, Row};

/// Keys and values, kept as the floats that their format rounds them to.
#[derive(Debug)]
pub struct OracleKv {
    shape: KvShape,
    format: KvFormat,
    /// `[layer, sequence, position, kv head, dim]` each.
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl OracleKv {
    pub(super) fn new(shape: KvShape, format: KvFormat) -> Self {
        let cells = shape.layers * shape.sequences * shape.context * shape.kv_heads * shape.head_dim;
        OracleKv { shape, format, keys: vec![0.0; cells], values: vec![0.0; cells] }
    }

    fn vector(&self, layer: usize, sequence: u32, position: usize, head: usize) -> std::ops::Range<usize> {
        let KvShape { layers, sequences, context, kv_heads, head_dim } = self.shape;
        assert!(layer < layers && (sequence as usize) < sequences && position < context && head < kv_heads);
        let at = (layer * sequences + sequence as usize) * context + position;
        let start = (at * kv_heads + head) * head_dim;
        start..start + head_dim
    }

    pub(super) fn store(&mut self, layer: usize, row: Row, qkv: &[f32], heads: Heads) {
        let (keys, values) = qkv[heads.query_width()..].split_at(heads.kv_width());
        for head in 0..heads.kv {
            let from = head * heads.dim..(head + 1) * heads.dim;
            let to = self.vector(layer, row.sequence, row.position as usize, head);
            self.keys[to.clone()].copy_from_slice(&keys[from.clone()]);
            round(&mut self.keys[to.clone()], self.format);
            self.values[to.clone()].copy_from_slice(&values[from]);
            round(&mut self.values[to], self.format);
        }
    }

    pub(super) fn attend(&self, layer: usize, row: Row, qkv: &[f32], heads: Heads, out: &mut [f32]) {
        let scale = 1.0 / (heads.dim as f64).sqrt();
        for head in 0..heads.query {
            let query = &qkv[head * heads.dim..(head + 1) * heads.dim];
            let kv = |position| self.vector(layer, row.sequence, position, head / heads.group());
            let score = |position| dot(query, &self.keys[kv(position)]) * scale;
            let scores: Vec<f64> = (0..=row.position as usize).map(score).collect();
            let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = vec![0.0f64; heads.dim];
            for (position, weight) in weights.iter().enumerate() {
                let value = &self.values[kv(position)];
                sum.iter_mut().zip(value).for_each(|(sum, &value)| *sum += weight * f64::from(value));
            }
            let out = &mut out[head * heads.dim..(head + 1) * heads.dim];
            out.iter_mut().zip(&sum).for_each(|(out, sum)| *out = (sum / total) as f32);
        }
    }
}

/// Rounds one head vector to what `format` can hold.
fn round(vector: &mut [f32], format: KvFormat) {
    match format {
        KvFormat::F32 => {}
        KvFormat::F16 => vector.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
        KvFormat::Int8 => {
            let (scale, inverse) = activation::span_scale(vector);
            vector.iter_mut().for_each(|x| *x = scale * f32::from(activation::code(*x, inverse)));
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}
