//! The [`Backend`] trait: everything that a device must do so that the model graph runs on it.
//!
//! Activations are f32 device buffers of `[rows, columns]`, one row per token of the step. The graph
//! allocates them once, at load; an op works on the rows of the step that is being recorded and leaves
//! the others alone. Token ids and positions belong to the step, not to an op, so that a device can keep
//! them in its own memory and replay a recorded step with other ones.

use std::fmt;

use crate::{Format, HostMatrix, Result};

/// One token of a step: what it is, where it belongs, and whether its logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Token id, below the vocabulary size.
    pub token: u32,
    /// Index of the sequence in the KV cache.
    pub sequence: u32,
    /// Position in its sequence, from 0. Attention sees positions `0..=position` of the same sequence.
    pub position: u32,
    /// Whether [`Backend::select_outputs`] keeps this row.
    pub output: bool,
}

/// The attention heads in a row of fused query, key and value: `[q: heads | k: kv_heads | v: kv_heads]`,
/// each head `dim` wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads; a multiple of `kv`.
    pub query: usize,
    /// Key and value heads (GQA: each serves `query / kv` query heads).
    pub kv: usize,
    /// Columns of one head; even.
    pub dim: usize,
}

impl Heads {
    /// Columns of the query part, which is also the width of attention's output.
    pub fn query_width(&self) -> usize {
        self.query * self.dim
    }
    /// Columns of the key part, and of the value part.
    pub fn kv_width(&self) -> usize {
        self.kv * self.dim
    }
    /// Columns of a fused q|k|v row.
    pub fn fused_width(&self) -> usize {
        self.query_width() + 2 * self.kv_width()
    }
    /// Query heads that share one key/value head.
    pub fn group(&self) -> usize {
        self.query / self.kv
    }
}

/// The non-linearity of a gated feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    /// `x · sigmoid(x)` (Llama, Qwen).
    Silu,
    /// `max(x, 0)²` (BitNet b1.58). Overflows f16 for ordinary activations.
    Relu2,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 32-bit floats.
    F32,
    /// 16-bit floats, rounded to nearest even.
    F16,
    /// 8-bit codes with one f32 scale per head vector: `s = max|x| / 127`, `q = round(x / s)`.
    Int8,
}

impl KvFormat {
    /// Bytes of one head vector of `dim` values, its scale included.
    pub fn vector_bytes(self, dim: usize) -> usize {
        match self {
            KvFormat::F32 => 4 * dim,
            KvFormat::F16 => 2 * dim,
            KvFormat::Int8 => dim + 4,
        }
    }
}

/// The extent of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Transformer layers.
    pub layers: usize,
    /// Sequences that are kept at the same time.
    pub sequences: usize,
    /// Positions of each sequence.
    pub context: usize,
    /// Key/value heads of each layer.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
}

impl KvShape {
    /// Bytes that keys and values take in `format`.
    pub fn bytes(&self, format: KvFormat) -> usize {
        2 * self.layers * self.sequences * self.context * self.kv_heads * format.vector_bytes(self.head_dim)
    }
}

/// What a backend says of the device that it opened.
#[derive(Clone, Debug, Default)]
pub struct DeviceInfo {
    /// The device's own name, such as the CPU's or the GPU's model.
    pub name: String,
    /// Further facts for `trine doctor`, in the order in which they are shown.
    pub facts: Vec<(String, String)>,
    /// Bytes of device memory that are free now, where they are not the host's.
    pub free_memory: Option<u64>,
}

/// A kernel's part in a product, or that it has none: see [`Backend::explain`].
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The kernel's name.
    pub kernel: String,
    /// How the matrix lies in memory for it.
    pub layout: String,
    /// Tokens of the product that it computes; 0 for a kernel that was not taken.
    pub tokens: usize,
    /// What it costs, where that is known: cycles of a core for 256 multiply-adds.
    pub cycles: Option<f64>,
    /// Why it was taken, or was not.
    pub reason: String,
}

/// What a device can do at most, measured: what the speed of a step is a share of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes per second of a copy within its memory, read and written bytes both counted.
    pub copy_bandwidth: f64,
}

/// A kernel of a step, and what it took.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// Its name, with what tells its variant from others.
    pub kernel: String,
    /// Nanoseconds on the device.
    pub nanoseconds: f64,
    /// Bytes that it can't do without reading: weights, keys and values.
    pub bytes: u64,
}

/// A device that runs the model graph.
///
/// Ops panic on buffers whose shapes do not fit together: that is a fault of the graph, never of a
/// file or a user. Faults of the device come out of [`Backend::step`] and [`Backend::read`].
pub trait Backend: Sized + Send + 'static {
    /// The name that users choose it by, such as `cpu-tsar`.
    const NAME: &'static str;
    /// What can be set when it is opened.
    type Options: Clone + fmt::Debug + Default;
    /// f32 activations `[rows, columns]` on the device.
    type Buf: Send;
    /// A weight matrix in the device's own layout.
    type Weight: Send + Sync;
    /// Keys and values of every layer and sequence.
    type Kv: Send;

    /// Opens the device. Errors say what is missing and what would bring it.
    fn open(options: &Self::Options) -> Result<Self>;

    /// What was opened.
    fn info(&self) -> DeviceInfo;

    /// A zeroed buffer of `[rows, columns]`.
    fn alloc(&mut self, rows: usize, columns: usize) -> Result<Self::Buf>;

    /// A buffer that holds `data`, row-major `[data.len() / columns, columns]`: norms, biases, RoPE tables.
    fn upload(&mut self, columns: usize, data: &[f32]) -> Result<Self::Buf>;

    /// Brings a matrix into the device's layout. The codes and scales stay what they are.
    fn prepare(&mut self, matrix: HostMatrix<'_>) -> Result<Self::Weight>;

    /// Which kernels multiply `tokens` rows with a matrix `[rows, columns]` of a format, in the order in which they are
    /// taken, and then which kernels for that format were not taken. Nothing where a device has no choice.
    fn explain(&self, rows: usize, columns: usize, format: Format, tokens: usize) -> Vec<Choice> {
        let _ = (rows, columns, format, tokens);
        Vec::new()
    }

    /// An empty KV cache.
    fn kv(&mut self, shape: KvShape, format: KvFormat) -> Result<Self::Kv>;

    /// Runs one step over `rows`: `record` calls the ops below, in order. A device may record them and
    /// replay the recording for later steps with the same number of rows and outputs.
    fn step(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Result<()>;

    /// As [`Backend::step`], for ops that are no step of the model: a device that replays recordings neither
    /// replays nor keeps this one, and looks at the ops afresh.
    fn step_once(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Result<()> {
        self.step(rows, record)
    }

    /// `out[r] = table[token of r]`, dequantised.
    fn embed(&mut self, out: &mut Self::Buf, table: &Self::Weight);

    /// `out[r] = x[r] / sqrt(mean(x[r]²) + eps) · weight`.
    fn rms_norm(&mut self, out: &mut Self::Buf, x: &Self::Buf, weight: &Self::Buf, eps: f32);

    /// `out[r] = W · x[r]`, with the activations quantised as the matrix asks
    /// ([`HostMatrix::activation`]).
    fn linear(&mut self, out: &mut Self::Buf, x: &Self::Buf, weight: &Self::Weight);

    /// `x[r] += bias`.
    fn add_bias(&mut self, x: &mut Self::Buf, bias: &Self::Buf);

    /// `x[r] += y[r]`.
    fn add(&mut self, x: &mut Self::Buf, y: &Self::Buf);

    /// RMSNorm of each query head with `query` and of each key head with `key` (both `[1, dim]`), in
    /// place in a fused q|k|v row (Qwen3).
    fn head_norm(&mut self, qkv: &mut Self::Buf, heads: Heads, query: &Self::Buf, key: &Self::Buf, eps: f32);

    /// Rotary position embedding of query and key heads, in place, in the "half" pairing: column `i` goes
    /// with `i + dim / 2`. Row `p` of `table` holds `cos[dim / 2] | sin[dim / 2]` of position `p`.
    fn rope(&mut self, qkv: &mut Self::Buf, heads: Heads, table: &Self::Buf);

    /// Stores the key and value heads of each row at its sequence and position.
    fn store_kv(&mut self, kv: &mut Self::Kv, layer: usize, qkv: &Self::Buf, heads: Heads);

    /// Causal attention of each row's query heads over positions `0..=position` of its sequence, scores
    /// scaled by `1 / sqrt(dim)`: `out[r]` is `[heads, dim]`.
    fn attend(&mut self, out: &mut Self::Buf, qkv: &Self::Buf, kv: &Self::Kv, layer: usize, heads: Heads);

    /// `out[r] = gate(g) · u` where a row of `gate_up` is `[g | u]`.
    fn gated(&mut self, out: &mut Self::Buf, gate_up: &Self::Buf, gate: Gate);

    /// Copies the rows whose [`Row::output`] is set to the front of `out`. Later ops of the step work
    /// on those rows only.
    fn select_outputs(&mut self, out: &mut Self::Buf, x: &Self::Buf);

    /// Says that nobody looks at the values of `buf` before it is written again: a device may leave out what only they
    /// would need. What the buffer holds then is anything.
    fn discard(&mut self, buf: &mut Self::Buf) {
        let _ = buf;
    }

    /// Waits for the device and copies the first `out.len() / columns` rows of `buf` to the host.
    fn read(&mut self, buf: &Self::Buf, out: &mut [f32]) -> Result<()>;

    /// Waits for the device and finds the largest value of each of the first `out.len()` rows of `buf`, which has rows of
    /// `columns`: its index, the lowest of equal ones; `None` where each value is NaN or -inf. A device that can do
    /// that itself spares the host the values.
    fn read_largest(&mut self, buf: &Self::Buf, columns: usize, out: &mut [Option<u32>]) -> Result<()> {
        let mut values = vec![0.0; columns * out.len()];
        self.read(buf, &mut values)?;
        out.iter_mut().zip(values.chunks(columns)).for_each(|(out, row)| *out = largest(row));
        Ok(())
    }

    /// What the device's memory can do, measured now; `None` where nobody asks. It takes a moment, and memory.
    fn limits(&mut self) -> Result<Option<Limits>> {
        Ok(None)
    }

    /// Runs the kernels of the last step once more, one by one, and tells what each took; nothing where a device can't. For
    /// steps of a model, which give the same when they are run again.
    fn profile(&mut self) -> Result<Vec<KernelTime>> {
        Ok(Vec::new())
    }

    // Fusions: a device overrides those that save it memory traffic or launches.

    /// `x[r] += y[r]`, then `out[r] = rms_norm(x[r])`.
    fn add_rms_norm(&mut self, out: &mut Self::Buf, x: &mut Self::Buf, y: &Self::Buf, weight: &Self::Buf, eps: f32) {
        self.add(x, y);
        self.rms_norm(out, x, weight, eps);
    }

    /// `gated[r] = gate(g[r]) · u[r]`, where a row of `gate_up` is `[g | u]`, then `out[r] = rms_norm(gated[r])`. What `gated`
    /// holds afterwards is the device's affair.
    fn gated_rms_norm(
        &mut self,
        out: &mut Self::Buf,
        gated: &mut Self::Buf,
        gate_up: &Self::Buf,
        gate: Gate,
        weight: &Self::Buf,
        eps: f32,
    ) {
        self.gated(gated, gate_up, gate);
        self.rms_norm(out, gated, weight, eps);
    }

    /// RoPE, then the store of keys and values.
    fn rope_store_kv(&mut self, kv: &mut Self::Kv, layer: usize, qkv: &mut Self::Buf, heads: Heads, table: &Self::Buf) {
        self.rope(qkv, heads, table);
        self.store_kv(kv, layer, qkv, heads);
    }
}

/// The index of the largest value, the lowest of equal ones; `None` where each is NaN or -inf.
pub fn largest(values: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (at, &value) in values.iter().enumerate() {
        if value > best.map_or(f32::NEG_INFINITY, |(_, best)| best) {
            best = Some((at as u32, value));
        }
    }
    best.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_the_first_of_equal_ones() {
        assert_eq!(largest(&[1.0, 3.0, 3.0, 2.0]), Some(1));
        assert_eq!(largest(&[f32::NAN, -3.0, f32::NAN, f32::NEG_INFINITY]), Some(1));
        assert_eq!(largest(&[0.0, -0.0]), Some(0));
        assert_eq!(largest(&[f32::NEG_INFINITY, f32::INFINITY]), Some(1));
        assert_eq!(largest(&[f32::NAN, f32::NEG_INFINITY]), None);
        assert_eq!(largest(&[]), None);
    }
}
