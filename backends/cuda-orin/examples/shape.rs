//! Speed of a model's shape with random weights, through the trait: Qwen2-7B with INT4 weights in groups of 32.
//!
//! ```text
//! cargo run --release -p trine-cuda-orin --example shape [-- --layers N] [--vocabulary N] [--depth N,…] [--kernel o1,o2,…]
//!     [--device N|NAME] [--profile]
//! ```
//!
//! It prints the speed of a copy, then of decoding at each depth (after so many tokens) and of prefill, with the share of the
//! copy's speed that the bytes of weights, keys and values take; `--profile` adds what each kernel took by itself.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use half::f16;
use trine_backend::{Backend, Codes, Gate, Group, Heads, HostMatrix, Int4, KvFormat, KvShape, Row, Zero};
use trine_cuda_orin::{CudaOrin, Options};

const HIDDEN: usize = 3584;
const INNER: usize = 18944;
const HEADS: Heads = Heads { query: 28, kv: 4, dim: 128 };
const PROMPT: usize = 512;
/// Decode steps of a measurement.
const STEPS: usize = 128;
const EPS: f32 = 1e-6;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str, default: usize| value(name).map_or(Ok(default), |text| text.parse());
    let (layers, vocabulary) = (number("--layers", 28)?, number("--vocabulary", 152_064)?);
    let depths: Vec<usize> = value("--depth")
        .map_or("0,512", String::as_str)
        .split(',')
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    let kernels: Vec<Option<&str>> =
        value("--kernel").map_or(vec![None], |list| list.split(',').map(Some).collect::<Vec<_>>());
    let profile = arguments.iter().any(|argument| argument == "--profile");

    let matrices = Matrices::new(vocabulary);
    for kernel in kernels {
        let rows = kernel.map(str::parse).transpose()?;
        let options = Options { device: value("--device").cloned(), rows, ..Options::from_environment() };
        let mut backend = CudaOrin::open(&options)?;
        let info = backend.info();
        println!("{}, kernel {}", info.name, kernel.unwrap_or("by itself"));
        let copy = backend.limits()?.map_or(f64::NAN, |limits| limits.copy_bandwidth);
        println!("copy {:.0} GB/s", copy / 1e9);
        let start = Instant::now();
        let context = depths.iter().copied().max().unwrap_or(0).max(PROMPT) + STEPS;
        let mut model = Model::new(backend, &matrices, layers, context)?;
        println!("{layers} layers loaded in {:.1} s", start.elapsed().as_secs_f64());
        prefill(&mut model, copy, profile)?;
        for &depth in &depths {
            decode(&mut model, &matrices, (layers, depth), copy, profile)?;
        }
    }
    Ok(())
}

fn decode(
    model: &mut Model,
    matrices: &Matrices,
    (layers, depth): (usize, usize),
    copy: f64,
    profile: bool,
) -> Result<()> {
    for start in (0..depth).step_by(PROMPT) {
        model.step(&rows(start, PROMPT.min(depth - start)))?;
    }
    // Every plan that these positions ask for is made, and has become a graph, before the clock runs.
    for _ in 0..2 {
        for position in depth..depth + STEPS {
            model.step(&rows(position, 1))?;
        }
    }
    let (mut host, start) = (0.0, Instant::now());
    for position in depth..depth + STEPS {
        host += model.step(&rows(position, 1))?;
    }
    let seconds = start.elapsed().as_secs_f64() / STEPS as f64;
    let cached = layers * (depth + STEPS / 2) * 2 * HEADS.kv * KvFormat::F16.vector_bytes(HEADS.dim);
    let bytes = (matrices.bytes_per_token(layers) + cached as u64) as f64;
    println!(
        "decode at {depth}: {:.1} tok/s, {:.3} ms each, of which the host {:.3} ms; {:.3} GB at {:.0} GB/s, {:.1} % of a copy",
        1.0 / seconds,
        1e3 * seconds,
        1e3 * host / STEPS as f64,
        bytes / 1e9,
        bytes / seconds / 1e9,
        100.0 * bytes / seconds / copy
    );
    kernel_times(model, copy, profile)
}

fn prefill(model: &mut Model, copy: f64, profile: bool) -> Result<()> {
    const REPETITIONS: usize = 5;
    for _ in 0..3 {
        model.step(&rows(0, PROMPT))?;
    }
    let start = Instant::now();
    for _ in 0..REPETITIONS {
        model.step(&rows(0, PROMPT))?;
    }
    let seconds = start.elapsed().as_secs_f64() / REPETITIONS as f64;
    println!("prefill of {PROMPT}: {:.0} tok/s, {:.2} ms", PROMPT as f64 / seconds, 1e3 * seconds);
    kernel_times(model, copy, profile)
}

/// The kernels of the last step, each by itself.
fn kernel_times(model: &mut Model, copy: f64, shown: bool) -> Result<()> {
    const REPETITIONS: usize = 5;
    let launches = model.backend.profile()?.len();
    println!("  {launches} launches");
    if !shown {
        return Ok(());
    }
    let mut sums: BTreeMap<String, (usize, f64, u64)> = BTreeMap::new();
    for time in (0..REPETITIONS).map(|_| model.backend.profile()).collect::<std::result::Result<Vec<_>, _>>()?.concat()
    {
        let sum = sums.entry(time.kernel).or_default();
        *sum = (sum.0 + 1, sum.1 + time.nanoseconds, sum.2 + time.bytes);
    }
    let all: f64 = sums.values().map(|sum| sum.1).sum();
    println!("  {:.1} us one by one", all / 1e3 / REPETITIONS as f64);
    for (name, (count, nanoseconds, bytes)) in sums {
        let speed = bytes as f64 / nanoseconds;
        let rate = if bytes > 0 {
            format!("{speed:>6.0} GB/s, {:>5.1} % of a copy", 1e11 * speed / copy)
        } else {
            String::new()
        };
        println!(
            "  {name:<44} {:>4} times {:>9.2} us {:>5.1} % {rate}",
            count / REPETITIONS,
            nanoseconds / count as f64 / 1e3,
            100.0 * nanoseconds / all
        );
    }
    Ok(())
}

/// Rows of sequence 0 from a position on, the last one with an output.
fn rows(position: usize, count: usize) -> Vec<Row> {
    let row = |at: usize| Row {
        token: ((position + at) * 37 % 1000) as u32,
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
        (state >> 32) as u32
    };
    let codes: Vec<u8> = (0..rows * columns / 8).flat_map(|_| next().to_le_bytes()).collect();
    let scale = 1.0 / (4.6 * (columns as f32).sqrt());
    let scales: Vec<f16> =
        (0..rows * columns / 32).map(|_| f16::from_f32(scale * (0.5 + (next() % 1000) as f32 / 1000.0))).collect();
    let codes = Codes::Int4(Int4::new(Group::G32, codes, scales, Zero::Symmetric));
    HostMatrix::new(rows, columns, codes).expect("codes and scales fit the shape")
}

type Buf = <CudaOrin as Backend>::Buf;
type Weight = <CudaOrin as Backend>::Weight;

struct Layer {
    qkv: Weight,
    bias: Buf,
    attention_out: Weight,
    gate_up: Weight,
    down: Weight,
}

struct Model {
    layers: Vec<Layer>,
    embedding: Weight,
    head: Weight,
    norm: Buf,
    angles: Buf,
    kv: <CudaOrin as Backend>::Kv,
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
    vocabulary: usize,
    backend: CudaOrin,
}

impl Model {
    fn new(mut b: CudaOrin, matrices: &Matrices, layers: usize, context: usize) -> Result<Model> {
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
        let shape = KvShape { layers: layers.len(), sequences: 1, context, kv_heads: HEADS.kv, head_dim: HEADS.dim };
        let angle = |at: usize| (at / HEADS.dim) as f32 * 1e4f32.powf(-((at % 64) as f32) / 64.0);
        let turn = |at: usize| if at % HEADS.dim < 64 { angle(at).cos() } else { angle(at).sin() };
        let angles: Vec<f32> = (0..context * HEADS.dim).map(turn).collect();
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
            vocabulary,
            backend: b,
        })
    }

    /// Runs a step and finds the most probable token, as greedy decoding does; returns the seconds until the device had
    /// its commands.
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
            let (selected, selected_normed) = (&mut self.selected, &mut self.selected_normed);
            for buf in [x, normed, qkv, attention, delta, gate_up, gated, selected, selected_normed] {
                b.discard(buf);
            }
        })?;
        let host = start.elapsed().as_secs_f64();
        let mut token = [None];
        backend.read_largest(&self.logits, self.vocabulary, &mut token)?;
        assert!(token[0].is_some(), "no logit is a number");
        Ok(host)
    }
}
