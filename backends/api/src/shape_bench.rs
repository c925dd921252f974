//! Speed of a model's shape with random weights, through the trait: what the examples `shape` of the backends have in common.
//!
//! The weights are INT4 in groups of 32 and one matrix of each kind serves all layers, each of which has a copy of its own on
//! the device. What is read after a step is the caller's: a function of type `impl FnMut(&mut Model<B>) -> Result<()>`.

use std::fmt;
use std::time::Instant;

use half::f16;

use crate::{Backend, Codes, Gate, Group, Heads, HostMatrix, Int4, KvFormat, KvShape, Result, Row, Zero};

const EPS: f32 = 1e-6;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Transformer layers.
    pub layers: usize,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Columns between a feed-forward block's matrices.
    pub inner: usize,
    /// Attention's heads.
    pub heads: Heads,
    /// Rows of the embedding, and of lm_head.
    pub vocabulary: usize,
    /// Tokens of a prefill: the rows of the largest step.
    pub prompt: usize,
    /// Positions of the KV cache.
    pub context: usize,
}

impl Sizes {
    /// Those of Qwen2-7B, with a cache of 2048 positions; its q|k|v has a bias.
    pub const QWEN2_7B: Sizes = Sizes {
        layers: 28,
        hidden: 3584,
        inner: 18944,
        heads: Heads { query: 28, kv: 4, dim: 128 },
        vocabulary: 152_064,
        prompt: 512,
        context: 2048,
    };
}

/// One random matrix of each kind.
#[derive(Debug)]
pub struct Matrices {
    qkv: HostMatrix<'static>,
    attention_out: HostMatrix<'static>,
    gate_up: HostMatrix<'static>,
    down: HostMatrix<'static>,
    vocabulary: HostMatrix<'static>,
}

impl Matrices {
    /// Matrices of these sizes.
    ///
    /// # Panics
    /// A width is no multiple of 32.
    pub fn new(sizes: &Sizes) -> Self {
        let Sizes { hidden, inner, heads, vocabulary, .. } = *sizes;
        Matrices {
            qkv: random(heads.fused_width(), hidden),
            attention_out: random(hidden, heads.query_width()),
            gate_up: random(2 * inner, hidden),
            down: random(hidden, inner),
            vocabulary: random(vocabulary, hidden),
        }
    }

    /// Bytes of weights that a token takes in so many layers, and in lm_head.
    pub fn bytes_per_token(&self, layers: usize) -> u64 {
        let bytes = |matrix: &HostMatrix<'_>| matrix.format().bytes(matrix.rows(), matrix.columns()).unwrap_or(0);
        let layer = [&self.qkv, &self.attention_out, &self.gate_up, &self.down].map(bytes).iter().sum::<u64>();
        layers as u64 * layer + bytes(&self.vocabulary)
    }
}

/// Random codes, and scales such that activations keep their size.
fn random(rows: usize, columns: usize) -> HostMatrix<'static> {
    let mut state = (rows * 31 + columns) as u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let codes: Vec<u8> = (0..rows * columns / 8).flat_map(|_| next().to_le_bytes()).collect();
    let scale = 1.0 / (4.6 * (columns as f32).sqrt());
    let scales: Vec<f16> =
        (0..rows * columns / 32).map(|_| f16::from_f32(scale * (0.5 + (next() % 1000) as f32 / 1000.0))).collect();
    let codes = Codes::Int4(Int4::new(Group::G32, codes, scales, Zero::Symmetric));
    HostMatrix::new(rows, columns, codes).expect("codes and scales fit the shape")
}

/// Rows of sequence 0 from a position on, the last one with an output.
pub fn rows(position: usize, count: usize) -> Vec<Row> {
    let row = |at: usize| Row {
        token: ((position + at) * 37 % 1000) as u32,
        sequence: 0,
        position: (position + at) as u32,
        output: at + 1 == count,
    };
    (0..count).map(row).collect()
}

struct Layer<B: Backend> {
    qkv: B::Weight,
    bias: B::Buf,
    attention_out: B::Weight,
    gate_up: B::Weight,
    down: B::Weight,
}

/// The model on a device.
pub struct Model<B: Backend> {
    /// The device.
    pub backend: B,
    /// `[1, vocabulary]`: what a step leaves.
    pub logits: B::Buf,
    /// `[vocabulary, hidden]`.
    pub embedding: B::Weight,
    /// `[prompt, hidden]`: the residual stream.
    pub x: B::Buf,
    sizes: Sizes,
    bytes_per_token: u64,
    layers: Vec<Layer<B>>,
    head: B::Weight,
    norm: B::Buf,
    angles: B::Buf,
    kv: B::Kv,
    normed: B::Buf,
    qkv: B::Buf,
    attention: B::Buf,
    delta: B::Buf,
    gate_up: B::Buf,
    gated: B::Buf,
    selected: B::Buf,
    selected_normed: B::Buf,
}

impl<B: Backend> Model<B> {
    /// Brings `matrices`, which are of these sizes, to the device.
    ///
    /// # Errors
    /// The device failed, or has no room for them.
    pub fn new(mut b: B, matrices: &Matrices, sizes: Sizes) -> Result<Self> {
        let Sizes { layers, hidden, inner, heads, vocabulary, prompt, context } = sizes;
        let mut layer = || -> Result<Layer<B>> {
            Ok(Layer {
                qkv: b.prepare(matrices.qkv.clone())?,
                bias: b.upload(heads.fused_width(), &vec![0.1; heads.fused_width()])?,
                attention_out: b.prepare(matrices.attention_out.clone())?,
                gate_up: b.prepare(matrices.gate_up.clone())?,
                down: b.prepare(matrices.down.clone())?,
            })
        };
        let prepared = (0..layers).map(|_| layer()).collect::<Result<Vec<_>>>()?;
        let shape = KvShape { layers, sequences: 1, context, kv_heads: heads.kv, head_dim: heads.dim };
        let half = heads.dim / 2;
        let angle = |at: usize| (at / heads.dim) as f32 * 1e4f32.powf(-((at % half) as f32) / half as f32);
        let turn = |at: usize| if at % heads.dim < half { angle(at).cos() } else { angle(at).sin() };
        let angles: Vec<f32> = (0..context * heads.dim).map(turn).collect();
        Ok(Model {
            sizes,
            bytes_per_token: matrices.bytes_per_token(layers),
            layers: prepared,
            embedding: b.prepare(matrices.vocabulary.clone())?,
            head: b.prepare(matrices.vocabulary.clone())?,
            norm: b.upload(hidden, &vec![1.0; hidden])?,
            angles: b.upload(heads.dim, &angles)?,
            kv: b.kv(shape, KvFormat::F16)?,
            x: b.alloc(prompt, hidden)?,
            normed: b.alloc(prompt, hidden)?,
            qkv: b.alloc(prompt, heads.fused_width())?,
            attention: b.alloc(prompt, heads.query_width())?,
            delta: b.alloc(prompt, hidden)?,
            gate_up: b.alloc(prompt, 2 * inner)?,
            gated: b.alloc(prompt, inner)?,
            selected: b.alloc(1, hidden)?,
            selected_normed: b.alloc(1, hidden)?,
            logits: b.alloc(1, vocabulary)?,
            backend: b,
        })
    }

    /// What is measured.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Runs a step; returns the seconds until the device had its commands.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(&mut self, rows: &[Row]) -> Result<f64> {
        let Model { backend, layers, norm, x, normed, qkv, attention, delta, gate_up, gated, .. } = self;
        let heads = self.sizes.heads;
        let start = Instant::now();
        backend.step(rows, |b| {
            b.embed(x, &self.embedding);
            for (at, layer) in layers.iter().enumerate() {
                match at {
                    0 => b.rms_norm(normed, x, norm, EPS),
                    _ => b.add_rms_norm(normed, x, delta, norm, EPS),
                }
                b.linear(qkv, normed, &layer.qkv);
                b.add_bias(qkv, &layer.bias);
                b.rope_store_kv(&mut self.kv, at, qkv, heads, &self.angles);
                b.attend(attention, qkv, &self.kv, at, heads);
                b.linear(delta, attention, &layer.attention_out);
                b.add_rms_norm(normed, x, delta, norm, EPS);
                b.linear(gate_up, normed, &layer.gate_up);
                b.gated(gated, gate_up, Gate::Silu);
                b.linear(delta, gated, &layer.down);
            }
            b.add(x, delta);
            b.select_outputs(&mut self.selected, x);
            b.rms_norm(&mut self.selected_normed, &self.selected, norm, EPS);
            b.linear(&mut self.logits, &self.selected_normed, &self.head);
            let (selected, selected_normed) = (&mut self.selected, &mut self.selected_normed);
            for buf in [x, normed, qkv, attention, delta, gate_up, gated, selected, selected_normed] {
                b.discard(buf);
            }
        })?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Decodes `steps` tokens after `depth` others, each with a `read`.
    ///
    /// # Errors
    /// The device failed, or what was read is wrong.
    pub fn decode(
        &mut self,
        depth: usize,
        steps: usize,
        mut read: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<Speed> {
        let prompt = self.sizes.prompt;
        for start in (0..depth).step_by(prompt) {
            self.step(&rows(start, prompt.min(depth - start)))?;
            read(self)?;
        }
        let positions = || (depth..depth + steps).map(|position| rows(position, 1));
        // Every plan that these positions ask for is made, and has been run again, before the clock runs.
        for rows in positions().chain(positions()) {
            self.step(&rows)?;
            read(self)?;
        }
        let speed = self.time(positions(), read)?;
        let Sizes { layers, heads, .. } = self.sizes;
        let cached = layers * (depth + steps / 2) * 2 * heads.kv * KvFormat::F16.vector_bytes(heads.dim);
        Ok(Speed { bytes: self.bytes_per_token + cached as u64, ..speed })
    }

    /// Takes a prompt `repetitions` times, each with a `read`.
    ///
    /// # Errors
    /// The device failed, or what was read is wrong.
    pub fn prefill(&mut self, repetitions: usize, mut read: impl FnMut(&mut Self) -> Result<()>) -> Result<Speed> {
        let prompt = rows(0, self.sizes.prompt);
        for _ in 0..3 {
            self.step(&prompt)?;
            read(self)?;
        }
        self.time(std::iter::repeat_n(prompt, repetitions), read)
    }

    fn time(
        &mut self,
        steps: impl Iterator<Item = Vec<Row>>,
        mut read: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<Speed> {
        let (mut count, mut tokens, mut host) = (0, 0, 0.0);
        let start = Instant::now();
        for rows in steps {
            (count, tokens) = (count + 1, tokens + rows.len());
            host += self.step(&rows)?;
            read(self)?;
        }
        let each = |of: f64| of / f64::from(count);
        let (seconds, tokens) = (each(start.elapsed().as_secs_f64()), each(tokens as f64));
        Ok(Speed { tokens, seconds, host: each(host), bytes: self.bytes_per_token })
    }
}

/// What a step took, on average. Shown in one line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Its tokens.
    pub tokens: f64,
    /// Seconds, with what was read after it.
    pub seconds: f64,
    /// Seconds until the device had its commands.
    pub host: f64,
    /// Bytes that it can't do without reading: weights, and of decoding also keys and values.
    pub bytes: u64,
}

impl Speed {
    /// The speed of the memory that its bytes make, in words, as a share of a copy's bytes per second.
    pub fn of_copy(&self, copy: f64) -> String {
        let (bytes, speed) = (self.bytes as f64, self.bytes as f64 / self.seconds);
        format!("{:.3} GB at {:.0} GB/s, {:.1} % of a copy", bytes / 1e9, speed / 1e9, 100.0 * speed / copy)
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, all, host) = (self.tokens / self.seconds, 1e3 * self.seconds, 1e3 * self.host);
        write!(f, "{rate:.1} tok/s, {all:.3} ms each, of which the host {host:.3} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Oracle;

    const SIZES: Sizes = Sizes {
        layers: 3,
        hidden: 64,
        inner: 96,
        heads: Heads { query: 4, kv: 2, dim: 16 },
        vocabulary: 1000,
        prompt: 4,
        context: 16,
    };

    fn model() -> (Model<Oracle>, Matrices) {
        let matrices = Matrices::new(&SIZES);
        (Model::new(Oracle::open(&()).unwrap(), &matrices, SIZES).unwrap(), matrices)
    }

    #[test]
    fn activations_keep_their_size() {
        let (mut model, _) = model();
        let mut logits = vec![0.0; SIZES.vocabulary];
        for rows in [rows(0, 4), rows(4, 1), rows(5, 1)] {
            model.step(&rows).unwrap();
            model.backend.read(&model.logits, &mut logits).unwrap();
            let square = logits.iter().map(|x| x * x).sum::<f32>() / logits.len() as f32;
            assert!((0.5..2.0).contains(&square.sqrt()), "{}", square.sqrt());
        }
    }

    #[test]
    fn steps_go_where_they_are_asked_to() {
        let (mut model, matrices) = model();
        let mut reads = 0;
        let decode = model
            .decode(6, 5, |_| {
                reads += 1;
                Ok(())
            })
            .unwrap();
        // Two pieces of a prompt, then each token three times.
        assert_eq!((reads, decode.tokens), (2 + 3 * 5, 1.0));
        // INT4 has half a byte and the 32nd part of a scale for each weight.
        let layer = 128 * 64 + 64 * 64 + 192 * 64 + 64 * 96;
        let weights = (3 * layer + 1000 * 64) * 18 / 32;
        assert_eq!(matrices.bytes_per_token(3), weights);
        assert_eq!(decode.bytes, weights + 3 * (6 + 2) * 2 * 2 * 32);
        let prefill = model
            .prefill(2, |_| {
                reads += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!((reads, prefill.tokens), (17 + 5, 4.0));
        assert!(prefill.host > 0.0 && prefill.seconds >= prefill.host);
    }

    #[test]
    fn what_is_read_wrong_ends_it() {
        let wrong = |_: &mut Model<Oracle>| Err(crate::Error::Device("no number".into()));
        let (mut model, _) = model();
        assert!(model.decode(0, 1, wrong).is_err() && model.prefill(1, wrong).is_err());
    }

    #[test]
    fn a_speed_is_one_line() {
        let speed = Speed { tokens: 512.0, seconds: 0.1, host: 0.0005, bytes: 50_000_000_000 };
        assert_eq!(speed.to_string(), "5120.0 tok/s, 100.000 ms each, of which the host 0.500 ms");
        assert_eq!(speed.of_copy(1e12), "50.000 GB at 500 GB/s, 50.0 % of a copy");
    }
}
