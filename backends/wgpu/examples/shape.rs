//! Speed of a model's shape with random weights, through the trait: Qwen2-7B with INT4 weights in groups of 32.
//!
//! ```text
//! cargo run --release -p trine-wgpu --example shape [-- --layers N] [--device N|NAME] [--vocabulary N]
//! ```
//!
//! It prints the device's copy bandwidth, decode and prefill rates with the share of that bandwidth that the
//! weights' bytes take, and what each op took by the device's own clock.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use half::f16;
use trine_backend::{Backend, Codes, Gate, Group, Heads, HostMatrix, Int4, KvFormat, KvShape, Row, Zero};
use trine_wgpu::{Options, Wgpu};

const HIDDEN: usize = 3584;
const INNER: usize = 18944;
const HEADS: Heads = Heads { query: 28, kv: 4, dim: 128 };
const CONTEXT: usize = 2048;
const PROMPT: usize = 512;
const EPS: f32 = 1e-6;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str, default: usize| value(name).map_or(Ok(default), |text| text.parse());
    let (layers, vocabulary) = (number("--layers", 28)?, number("--vocabulary", 152_064)?);
    let options = Options { device: value("--device").cloned(), ..Options::default() };

    let mut backend = Wgpu::open(&options)?;
    let info = backend.info();
    println!("{}", info.name);
    info.facts.iter().for_each(|(name, fact)| println!("  {name}: {fact}"));
    let bandwidth = backend.copy_bandwidth(256 << 20)?;
    println!("copy bandwidth {:.0} GB/s", bandwidth / 1e9);

    let start = Instant::now();
    let matrices = Matrices::new(vocabulary);
    let mut model = Model::new(backend, &matrices, layers)?;
    println!("{layers} layers loaded in {:.1} s", start.elapsed().as_secs_f64());
    fixed_cost(&mut model)?;
    decode(&mut model, &matrices, layers, bandwidth)?;
    prefill(&mut model)?;
    drop(model);

    let layers = layers.min(4);
    let options = Options { profile: true, ..options };
    let mut model = Model::new(Wgpu::open(&options)?, &matrices, layers)?;
    for (position, count) in [(0, 1), (100, 1), (1000, 1), (0, PROMPT)] {
        println!("{count} tokens from position {position}, {layers} layers, by the device's clock:");
        op_times(&mut model, position, count)?;
    }
    Ok(())
}

/// What a step costs that does next to nothing.
fn fixed_cost(model: &mut Model) -> Result<()> {
    const STEPS: usize = 200;
    let mut out = vec![0.0; HIDDEN];
    let mut start = Instant::now();
    for step in 0..STEPS + 10 {
        if step == 10 {
            start = Instant::now();
        }
        model.backend.step(&rows(0, 1), |b| b.embed(&mut model.x, &model.embedding))?;
        model.backend.read(&model.x, &mut out)?;
    }
    println!("a step of one op, and its read: {:.1} us", 1e6 * start.elapsed().as_secs_f64() / STEPS as f64);
    Ok(())
}

fn decode(model: &mut Model, matrices: &Matrices, layers: usize, bandwidth: f64) -> Result<()> {
    const STEPS: usize = 100;
    // Every plan that these positions ask for is made before the clock runs.
    for position in 0..STEPS {
        model.step(&rows(position, 1))?;
    }
    let (mut host, start) = (0.0, Instant::now());
    for position in 0..STEPS {
        host += model.step(&rows(position, 1))?;
    }
    let seconds = start.elapsed().as_secs_f64() / STEPS as f64;
    assert!(model.out.iter().all(|logit| logit.is_finite()), "a logit is not finite");
    let bytes = matrices.bytes_per_token(layers) as f64;
    println!(
        "decode {:.1} tok/s: {:.3} ms each, of which the host {:.3} ms; {:.2} GB of weights at {:.0} GB/s, {:.0} % of a copy",
        1.0 / seconds,
        1e3 * seconds,
        1e3 * host / STEPS as f64,
        bytes / 1e9,
        bytes / seconds / 1e9,
        100.0 * bytes / seconds / bandwidth
    );
    Ok(())
}

fn prefill(model: &mut Model) -> Result<()> {
    const STEPS: usize = 5;
    model.step(&rows(0, PROMPT))?;
    model.step(&rows(0, PROMPT))?;
    let start = Instant::now();
    for _ in 0..STEPS {
        model.step(&rows(0, PROMPT))?;
    }
    let seconds = start.elapsed().as_secs_f64() / STEPS as f64;
    println!("prefill of {PROMPT}: {:.0} tok/s, {:.1} ms", PROMPT as f64 / seconds, 1e3 * seconds);
    Ok(())
}

/// Times of each op, told apart by the op before it: products of one shape may differ in what they wait for.
fn op_times(model: &mut Model, position: usize, count: usize) -> Result<()> {
    const STEPS: usize = 5;
    let mut sums: BTreeMap<String, (usize, f64)> = BTreeMap::new();
    for step in 0..STEPS + 3 {
        model.step(&rows(position, count))?;
        let mut before = "the start";
        for time in model.backend.op_times()?.into_iter().filter(|_| step >= 3) {
            let sum = sums.entry(format!("{} {:?} after {before}", time.name, time.workgroups)).or_default();
            *sum = (sum.0 + 1, sum.1 + time.nanoseconds);
            before = time.name;
        }
    }
    for (name, (count, nanoseconds)) in sums {
        println!("  {name:<44} {:>3} times, {:>9.1} us each", count / STEPS, nanoseconds / count as f64 / 1e3);
    }
    Ok(())
}

/// Rows of sequence 0 from a position on, the last one with an output.
fn rows(position: usize, count: usize) -> Vec<Row> {
    let row = |at: usize| Row {
        token: (at * 37 % 1000) as u32,
        sequence: 0,
        position: (position + at) as u32,
        output: at + 1 == count,
    };
    (0..count).map(row).collect()
}

/// One matrix of each shape; layers hold copies of their own.
struct Matrices {
    qkv: HostMatrix<'static>,
    attention_out: HostMatrix<'static>,
    gate_up: HostMatrix<'static>,
    down: HostMatrix<'static>,
    vocabulary: HostMatrix<'static>,
}

impl Matrices {
    fn new(vocabulary: usize) -> Self {
        Matrices {
            qkv: random(HEADS.fused_width(), HIDDEN),
            attention_out: random(HIDDEN, HEADS.query_width()),
            gate_up: random(2 * INNER, HIDDEN),
            down: random(HIDDEN, INNER),
            vocabulary: random(vocabulary, HIDDEN),
        }
    }

    fn bytes_per_token(&self, layers: usize) -> u64 {
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
        (state >> 33) as u32
    };
    let codes: Vec<u8> = (0..rows * columns / 2).map(|_| next() as u8).collect();
    let scale = 1.0 / (4.6 * (columns as f32).sqrt());
    let scales: Vec<f16> =
        (0..rows * columns / 32).map(|_| f16::from_f32(scale * (0.5 + (next() % 1000) as f32 / 1000.0))).collect();
    let codes = Codes::Int4(Int4::new(Group::G32, codes, scales, Zero::Symmetric));
    HostMatrix::new(rows, columns, codes).expect("codes and scales fit the shape")
}

type Buf = <Wgpu as Backend>::Buf;
type Weight = <Wgpu as Backend>::Weight;

struct Layer {
    qkv: Weight,
    bias: Buf,
    attention_out: Weight,
    gate_up: Weight,
    down: Weight,
}

struct Model {
    backend: Wgpu,
    layers: Vec<Layer>,
    embedding: Weight,
    head: Weight,
    norm: Buf,
    angles: Buf,
    kv: <Wgpu as Backend>::Kv,
    x: Buf,
    normed: Buf,
    qkv: Buf,
    attention: Buf,
    delta: Buf,
    gate_up: Buf,
    gated: Buf,
    selected: Buf,
    selected_normed: Buf,
    logits: Buf,
    out: Vec<f32>,
}

impl Model {
    fn new(mut b: Wgpu, matrices: &Matrices, layers: usize) -> Result<Model> {
        let vocabulary = matrices.vocabulary.rows();
        let mut layer = || -> Result<Layer> {
            Ok(Layer {
                qkv: b.prepare(matrices.qkv.clone())?,
                bias: b.upload(HEADS.fused_width(), &vec![0.1; HEADS.fused_width()])?,
                attention_out: b.prepare(matrices.attention_out.clone())?,
                gate_up: b.prepare(matrices.gate_up.clone())?,
                down: b.prepare(matrices.down.clone())?,
            })
        };
        let layers = (0..layers).map(|_| layer()).collect::<Result<Vec<_>>>()?;
        let shape =
            KvShape { layers: layers.len(), sequences: 1, context: CONTEXT, kv_heads: HEADS.kv, head_dim: HEADS.dim };
        let angle = |at: usize| (at / HEADS.dim) as f32 * 1e4f32.powf(-((at % 64) as f32) / 64.0);
        let turn = |at: usize| if at % HEADS.dim < 64 { angle(at).cos() } else { angle(at).sin() };
        let angles: Vec<f32> = (0..CONTEXT * HEADS.dim).map(turn).collect();
        Ok(Model {
            layers,
            embedding: b.prepare(matrices.vocabulary.clone())?,
            head: b.prepare(matrices.vocabulary.clone())?,
            norm: b.upload(HIDDEN, &[1.0; HIDDEN])?,
            angles: b.upload(HEADS.dim, &angles)?,
            kv: b.kv(shape, KvFormat::F16)?,
            x: b.alloc(PROMPT, HIDDEN)?,
            normed: b.alloc(PROMPT, HIDDEN)?,
            qkv: b.alloc(PROMPT, HEADS.fused_width())?,
            attention: b.alloc(PROMPT, HEADS.query_width())?,
            delta: b.alloc(PROMPT, HIDDEN)?,
            gate_up: b.alloc(PROMPT, 2 * INNER)?,
            gated: b.alloc(PROMPT, INNER)?,
            selected: b.alloc(1, HIDDEN)?,
            selected_normed: b.alloc(1, HIDDEN)?,
            logits: b.alloc(1, vocabulary)?,
            out: vec![0.0; vocabulary],
            backend: b,
        })
    }

    /// Runs a step and reads the logits; returns the seconds until the device had its commands.
    fn step(&mut self, rows: &[Row]) -> Result<f64> {
        let Model { backend, layers, x, normed, qkv, attention, delta, gate_up, gated, .. } = self;
        let start = Instant::now();
        backend.step(rows, |b| {
            b.embed(x, &self.embedding);
            for (at, layer) in layers.iter().enumerate() {
                match at {
                    0 => b.rms_norm(normed, x, &self.norm, EPS),
                    _ => b.add_rms_norm(normed, x, delta, &self.norm, EPS),
                }
                b.linear(qkv, normed, &layer.qkv);
                b.add_bias(qkv, &layer.bias);
                b.rope_store_kv(&mut self.kv, at, qkv, HEADS, &self.angles);
                b.attend(attention, qkv, &self.kv, at, HEADS);
                b.linear(delta, attention, &layer.attention_out);
                b.add_rms_norm(normed, x, delta, &self.norm, EPS);
                b.linear(gate_up, normed, &layer.gate_up);
                b.gated(gated, gate_up, Gate::Silu);
                b.linear(delta, gated, &layer.down);
            }
            b.add(x, delta);
            b.select_outputs(&mut self.selected, x);
            b.rms_norm(&mut self.selected_normed, &self.selected, &self.norm, EPS);
            b.linear(&mut self.logits, &self.selected_normed, &self.head);
        })?;
        let host = start.elapsed().as_secs_f64();
        backend.read(&self.logits, &mut self.out)?;
        Ok(host)
    }
}
