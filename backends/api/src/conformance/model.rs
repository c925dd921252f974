//! A tiny transformer, written with the trait's ops alone.

use super::check::{Failure, refused};
use super::data::{Random, random_matrix, rope_table};
use super::device::{open, output, prepare, read, upload};
use crate::{Backend, Format, Gate, Heads, HostMatrix, KvFormat, KvShape, Row};

/// The shape of a model and the formats of its parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) name: &'static str,
    pub(super) hidden: usize,
    pub(super) heads: Heads,
    pub(super) feed_forward: usize,
    pub(super) vocabulary: usize,
    pub(super) embedding: Format,
    pub(super) body: Format,
    pub(super) head: Format,
    pub(super) gate: Gate,
    /// BitNet's norms before the two output projections.
    pub(super) sub_norms: bool,
    /// Qwen's biases on q|k|v and norms of the heads.
    pub(super) qwen: bool,
    pub(super) kv: KvFormat,
}

const LAYERS: usize = 2;
const EPS: f32 = 1e-5;

struct Layer<M, V> {
    input_norm: V,
    qkv: M,
    bias: V,
    query_norm: V,
    key_norm: V,
    attention_norm: V,
    attention_out: M,
    ff_norm: V,
    gate_up: M,
    down_norm: V,
    down: M,
}

impl Plan {
    fn layer(&self, random: &mut Random) -> Layer<HostMatrix<'static>, Vec<f32>> {
        let Plan { hidden, heads, feed_forward, body, .. } = *self;
        let near_one = |random: &mut Random, n: usize| (0..n).map(|_| 1.0 + 0.3 * random.signed()).collect();
        Layer {
            input_norm: near_one(random, hidden),
            qkv: random_matrix(random, body, heads.fused_width(), hidden),
            bias: random.floats(heads.fused_width(), 0.5),
            query_norm: near_one(random, heads.dim),
            key_norm: near_one(random, heads.dim),
            attention_norm: near_one(random, heads.query_width()),
            attention_out: random_matrix(random, body, hidden, heads.query_width()),
            ff_norm: near_one(random, hidden),
            gate_up: random_matrix(random, body, 2 * feed_forward, hidden),
            down_norm: near_one(random, feed_forward),
            down: random_matrix(random, body, hidden, feed_forward),
        }
    }
}

/// The model on a device, with a cache of several sequences.
pub(super) struct Model<B: Backend> {
    backend: B,
    plan: Plan,
    embedding: B::Weight,
    layers: Vec<Layer<B::Weight, B::Buf>>,
    final_norm: B::Buf,
    head: B::Weight,
    angles: B::Buf,
    kv: B::Kv,
    state: State<B>,
}

/// The activations of a step.
struct State<B: Backend> {
    x: B::Buf,
    normed: B::Buf,
    qkv: B::Buf,
    attention: B::Buf,
    attention_normed: B::Buf,
    branch: B::Buf,
    gate_up: B::Buf,
    gated: B::Buf,
    gated_normed: B::Buf,
    selected: B::Buf,
    selected_normed: B::Buf,
    logits: B::Buf,
}

impl<B: Backend> Model<B> {
    /// The weights depend on the plan alone. A step may have up to `most_rows` rows.
    pub(super) fn new(
        options: &B::Options,
        plan: Plan,
        sequences: usize,
        context: usize,
        most_rows: usize,
    ) -> Result<Self, Failure> {
        let mut random = Random::new(13);
        let mut b = open::<B>(options)?;
        let Plan { hidden, heads, vocabulary, .. } = plan;
        let embedding = prepare(&mut b, &random_matrix(&mut random, plan.embedding, vocabulary, hidden))?;
        let mut layers = Vec::new();
        for _ in 0..LAYERS {
            layers.push(load(&mut b, &plan.layer(&mut random))?);
        }
        let final_norm = upload(&mut b, hidden, &vec![1.0; hidden])?;
        let head = prepare(&mut b, &random_matrix(&mut random, plan.head, vocabulary, hidden))?;
        let angles = upload(&mut b, heads.dim, &rope_table(context, heads.dim))?;
        let shape = KvShape { layers: LAYERS, sequences, context, kv_heads: heads.kv, head_dim: heads.dim };
        let kv = b.kv(shape, plan.kv).map_err(refused("kv", format!("{:?} {shape:?}", plan.kv)))?;
        let state = State::new(&mut b, plan, most_rows)?;
        Ok(Model { backend: b, plan, embedding, layers, final_norm, head, angles, kv, state })
    }

    /// One step; the logits `[outputs, vocabulary]`.
    pub(super) fn step(&mut self, rows: &[Row]) -> Result<Vec<f32>, Failure> {
        let outputs = rows.iter().filter(|row| row.output).count();
        let Model { backend, plan, embedding, layers, final_norm, head, angles, kv, state: s } = self;
        let record = |b: &mut B| {
            b.embed(&mut s.x, embedding);
            for (at, layer) in layers.iter().enumerate() {
                if at == 0 {
                    b.rms_norm(&mut s.normed, &s.x, &layer.input_norm, EPS);
                } else {
                    b.add_rms_norm(&mut s.normed, &mut s.x, &s.branch, &layer.input_norm, EPS);
                }
                s.attend(b, plan, layer, kv, at, angles);
                b.add_rms_norm(&mut s.normed, &mut s.x, &s.branch, &layer.ff_norm, EPS);
                s.feed_forward(b, plan, layer);
            }
            b.add(&mut s.x, &s.branch);
            b.select_outputs(&mut s.selected, &s.x);
            b.rms_norm(&mut s.selected_normed, &s.selected, final_norm, EPS);
            b.linear(&mut s.logits, &s.selected_normed, head);
            // With and without: what a device may leave out then, and what it must not.
            if rows.first().is_some_and(|row| row.position % 2 == 0) {
                let State { x, normed, qkv, attention, branch, gate_up, gated, selected, selected_normed, .. } = s;
                for buf in [x, normed, qkv, attention, branch, gate_up, gated, selected, selected_normed] {
                    b.discard(buf);
                }
            }
        };
        let case = || format!("{}, batch {}", plan.name, rows.len());
        backend.step(rows, record).map_err(|error| refused("model", case())(error))?;
        if outputs == 0 {
            return Ok(Vec::new());
        }
        let logits = read(backend, &s.logits, outputs, plan.vocabulary)?;
        let mut chosen = vec![None; outputs];
        backend
            .read_largest(&s.logits, plan.vocabulary, &mut chosen)
            .map_err(|error| refused("read_largest", case())(error))?;
        for (row, (chosen, logits)) in chosen.iter().zip(logits.chunks(plan.vocabulary)).enumerate() {
            let want = crate::largest(logits);
            if *chosen != want {
                let index = |index: Option<u32>| index.map_or(f32::NAN, |index| index as f32);
                let (got, want) = (index(*chosen), index(want));
                return Err(Failure::Differs {
                    op: "read_largest",
                    case: case(),
                    row,
                    column: 0,
                    got,
                    want,
                    bound: 0.0,
                });
            }
        }
        Ok(logits)
    }
}

impl<B: Backend> State<B> {
    fn new(b: &mut B, plan: Plan, rows: usize) -> Result<Self, Failure> {
        let Plan { hidden, heads, feed_forward, vocabulary, .. } = plan;
        let mut buffer = |columns| output(b, rows, columns);
        Ok(State {
            x: buffer(hidden)?,
            normed: buffer(hidden)?,
            qkv: buffer(heads.fused_width())?,
            attention: buffer(heads.query_width())?,
            attention_normed: buffer(heads.query_width())?,
            branch: buffer(hidden)?,
            gate_up: buffer(2 * feed_forward)?,
            gated: buffer(feed_forward)?,
            gated_normed: buffer(feed_forward)?,
            selected: buffer(hidden)?,
            selected_normed: buffer(hidden)?,
            logits: buffer(vocabulary)?,
        })
    }

    /// `normed` to `branch` through attention.
    fn attend(
        &mut self,
        b: &mut B,
        plan: &Plan,
        layer: &Layer<B::Weight, B::Buf>,
        kv: &mut B::Kv,
        at: usize,
        angles: &B::Buf,
    ) {
        b.linear(&mut self.qkv, &self.normed, &layer.qkv);
        if plan.qwen {
            b.add_bias(&mut self.qkv, &layer.bias);
            b.head_norm(&mut self.qkv, plan.heads, &layer.query_norm, &layer.key_norm, EPS);
        }
        b.rope_store_kv(kv, at, &mut self.qkv, plan.heads, angles);
        b.attend(&mut self.attention, &self.qkv, kv, at, plan.heads);
        if plan.sub_norms {
            b.rms_norm(&mut self.attention_normed, &self.attention, &layer.attention_norm, EPS);
            b.linear(&mut self.branch, &self.attention_normed, &layer.attention_out);
        } else {
            b.linear(&mut self.branch, &self.attention, &layer.attention_out);
        }
    }

    /// `normed` to `branch` through the feed-forward block.
    fn feed_forward(&mut self, b: &mut B, plan: &Plan, layer: &Layer<B::Weight, B::Buf>) {
        b.linear(&mut self.gate_up, &self.normed, &layer.gate_up);
        b.gated(&mut self.gated, &self.gate_up, plan.gate);
        if plan.sub_norms {
            b.rms_norm(&mut self.gated_normed, &self.gated, &layer.down_norm, EPS);
            b.linear(&mut self.branch, &self.gated_normed, &layer.down);
        } else {
            b.linear(&mut self.branch, &self.gated, &layer.down);
        }
    }
}

fn load<B: Backend>(
    b: &mut B,
    layer: &Layer<HostMatrix<'static>, Vec<f32>>,
) -> Result<Layer<B::Weight, B::Buf>, Failure> {
    let mut vector = |values: &Vec<f32>| upload(b, values.len(), values);
    let (input_norm, bias, ff_norm) = (vector(&layer.input_norm)?, vector(&layer.bias)?, vector(&layer.ff_norm)?);
    let (query_norm, key_norm) = (vector(&layer.query_norm)?, vector(&layer.key_norm)?);
    let (attention_norm, down_norm) = (vector(&layer.attention_norm)?, vector(&layer.down_norm)?);
    Ok(Layer {
        input_norm,
        qkv: prepare(b, &layer.qkv)?,
        bias,
        query_norm,
        key_norm,
        attention_norm,
        attention_out: prepare(b, &layer.attention_out)?,
        ff_norm,
        gate_up: prepare(b, &layer.gate_up)?,
        down_norm,
        down: prepare(b, &layer.down)?,
    })
}
