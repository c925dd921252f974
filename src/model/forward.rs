//! The forward pass: one function for every family and every backend.

use trine_backend::{Backend, Heads};

use super::Config;
use super::weights::{Layer, Linear, Weights};
use crate::Result;

/// Device buffers of one step, allocated once for the largest step.
/// Shapes: `rows` is the batch size, `outputs` the most rows whose logits are wanted at once.
pub struct Activations<B: Backend> {
    /// `[rows, hidden]`: the residual stream.
    x: B::Buf,
    /// `[rows, hidden]`: the residual stream, normalised.
    normed: B::Buf,
    /// `[rows, (heads + 2 kv_heads) * head_dim]`: fused query, key and value.
    qkv: B::Buf,
    /// `[rows, heads * head_dim]`: attention's output.
    attention: B::Buf,
    /// `[rows, heads * head_dim]`: the same after its sub-norm, where the model has one.
    attention_normed: Option<B::Buf>,
    /// `[rows, 2 * intermediate]`: fused gate and up projection.
    gate_up: B::Buf,
    /// `[rows, intermediate]`: the gated feed-forward activations.
    gated: B::Buf,
    /// `[rows, intermediate]`: the same after their sub-norm, where the model has one.
    gated_normed: Option<B::Buf>,
    /// `[rows, hidden]`: what a block adds to the residual stream.
    delta: B::Buf,
    /// `[outputs, hidden]`: the rows whose logits are wanted.
    selected: B::Buf,
    /// `[outputs, hidden]`: the same, normalised.
    selected_normed: B::Buf,
    /// `[outputs, vocab]`.
    logits: B::Buf,
}

impl<B: Backend> Activations<B> {
    /// Allocates the buffers for steps of up to `rows` tokens and `outputs` rows of logits.
    pub fn new(backend: &mut B, config: &Config, rows: usize, outputs: usize) -> Result<Self> {
        let (hidden, inner, width) = (config.hidden, config.intermediate, config.heads.query_width());
        let sub_norm = |backend: &mut B, columns| config.sub_norms.then(|| backend.alloc(rows, columns)).transpose();
        Ok(Activations {
            x: backend.alloc(rows, hidden)?,
            normed: backend.alloc(rows, hidden)?,
            qkv: backend.alloc(rows, config.heads.fused_width())?,
            attention: backend.alloc(rows, width)?,
            attention_normed: sub_norm(backend, width)?,
            gate_up: backend.alloc(rows, 2 * inner)?,
            gated: backend.alloc(rows, inner)?,
            gated_normed: sub_norm(backend, inner)?,
            delta: backend.alloc(rows, hidden)?,
            selected: backend.alloc(outputs, hidden)?,
            selected_normed: backend.alloc(outputs, hidden)?,
            logits: backend.alloc(outputs, config.vocab)?,
        })
    }

    /// f32 values that the buffers hold for one row of the batch, and for one row of outputs.
    pub fn values_per_row(config: &Config) -> (usize, usize) {
        let norms = if config.sub_norms { 2 } else { 1 };
        let attention = config.heads.fused_width() + norms * config.heads.query_width();
        (3 * config.hidden + attention + (2 + norms) * config.intermediate, 2 * config.hidden + config.vocab)
    }

    /// The logits of the last step, `[outputs, vocab]`.
    pub fn logits(&self) -> &B::Buf {
        &self.logits
    }

    fn discard_all_but_logits(&mut self, b: &mut B) {
        let Activations { x, normed, qkv, attention, gate_up, gated, delta, selected, selected_normed, .. } = self;
        let sub_norms = self.attention_normed.iter_mut().chain(&mut self.gated_normed);
        for buf in
            [x, normed, qkv, attention, gate_up, gated, delta, selected, selected_normed].into_iter().chain(sub_norms)
        {
            b.discard(buf);
        }
    }

    /// The residual stream, `[rows, hidden]`.
    pub(crate) fn residual(&mut self) -> &mut B::Buf {
        &mut self.x
    }

    /// What the last block's two projections were multiplied with: of an attention block q|k|v's and the output
    /// projection's inputs.
    pub(crate) fn attention_inputs(&self) -> [&B::Buf; 2] {
        [&self.normed, self.attention_normed.as_ref().unwrap_or(&self.attention)]
    }

    /// As above, of a feed-forward block: gate|up's and the down projection's inputs.
    pub(crate) fn feed_forward_inputs(&self) -> [&B::Buf; 2] {
        [&self.normed, self.gated_normed.as_ref().unwrap_or(&self.gated)]
    }
}

/// Records one step: from the token ids of the step's rows to the logits of its outputs (left out where
/// there are none). Keys and values of the rows go into `kv`. Nothing else can be read after the step.
pub fn forward<B: Backend>(
    b: &mut B,
    config: &Config,
    weights: &Weights<B>,
    s: &mut Activations<B>,
    kv: &mut B::Kv,
    outputs: bool,
) {
    b.embed(&mut s.x, &weights.embedding);
    for (index, layer) in weights.layers.iter().enumerate() {
        // x is the residual stream; the block before this one left its part in delta.
        match index {
            0 => b.rms_norm(&mut s.normed, &s.x, &layer.input_norm, config.eps),
            _ => b.add_rms_norm(&mut s.normed, &mut s.x, &s.delta, &layer.input_norm, config.eps),
        }
        attention(b, config, &weights.rope, layer, index, s, kv);
        b.add_rms_norm(&mut s.normed, &mut s.x, &s.delta, &layer.post_attention_norm, config.eps);
        feed_forward(b, config, layer, s);
    }
    if outputs {
        b.add(&mut s.x, &s.delta);
        b.select_outputs(&mut s.selected, &s.x);
        b.rms_norm(&mut s.selected_normed, &s.selected, &weights.final_norm, config.eps);
        b.linear(&mut s.logits, &s.selected_normed, weights.head());
    }
    s.discard_all_but_logits(b);
}

/// The attention block of one layer by itself, whose cache is layer 0 of `kv`: `x += attention(norm(x))`.
pub(crate) fn attention_block<B: Backend>(
    b: &mut B,
    config: &Config,
    rope: &B::Buf,
    layer: &Layer<B>,
    s: &mut Activations<B>,
    kv: &mut B::Kv,
) {
    b.rms_norm(&mut s.normed, &s.x, &layer.input_norm, config.eps);
    attention(b, config, rope, layer, 0, s, kv);
    b.add(&mut s.x, &s.delta);
}

/// The feed-forward block of one layer by itself: `x += feed_forward(norm(x))`.
pub(crate) fn feed_forward_block<B: Backend>(b: &mut B, config: &Config, layer: &Layer<B>, s: &mut Activations<B>) {
    b.rms_norm(&mut s.normed, &s.x, &layer.post_attention_norm, config.eps);
    feed_forward(b, config, layer, s);
    b.add(&mut s.x, &s.delta);
}

/// The norm before lm_head, of all rows; what it makes is the first of [`Activations::attention_inputs`].
pub(crate) fn norm_block<B: Backend>(b: &mut B, config: &Config, norm: &B::Buf, s: &mut Activations<B>) {
    b.rms_norm(&mut s.normed, &s.x, norm, config.eps);
}

/// `delta = W_o · sub_norm(attend(rope(norm(W_qkv · normed))))`
fn attention<B: Backend>(
    b: &mut B,
    config: &Config,
    rope: &B::Buf,
    layer: &Layer<B>,
    index: usize,
    s: &mut Activations<B>,
    kv: &mut B::Kv,
) {
    let heads: Heads = config.heads;
    apply(b, &mut s.qkv, &s.normed, &layer.qkv);
    if let Some((query, key)) = &layer.head_norms {
        b.head_norm(&mut s.qkv, heads, query, key, config.eps);
    }
    b.rope_store_kv(kv, index, &mut s.qkv, heads, rope);
    b.attend(&mut s.attention, &s.qkv, kv, index, heads);
    let attended = match (&mut s.attention_normed, &layer.attention_norm) {
        (Some(normed), Some(weight)) => {
            b.rms_norm(normed, &s.attention, weight, config.eps);
            normed
        }
        _ => &s.attention,
    };
    apply(b, &mut s.delta, attended, &layer.attention_output);
}

/// `delta = W_down · sub_norm(gate(W_gate · normed) * (W_up · normed))`
fn feed_forward<B: Backend>(b: &mut B, config: &Config, layer: &Layer<B>, s: &mut Activations<B>) {
    apply(b, &mut s.gate_up, &s.normed, &layer.gate_up);
    let gated = match (&mut s.gated_normed, &layer.feed_forward_norm) {
        (Some(normed), Some(weight)) => {
            b.gated_rms_norm(normed, &mut s.gated, &s.gate_up, config.gate, weight, config.eps);
            normed
        }
        _ => {
            b.gated(&mut s.gated, &s.gate_up, config.gate);
            &s.gated
        }
    };
    apply(b, &mut s.delta, gated, &layer.down);
}

/// `out = W · x (+ bias)`
fn apply<B: Backend>(b: &mut B, out: &mut B::Buf, x: &B::Buf, linear: &Linear<B>) {
    b.linear(out, x, &linear.weight);
    if let Some(bias) = &linear.bias {
        b.add_bias(out, bias);
    }
}
