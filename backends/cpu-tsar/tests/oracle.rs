//! Every op but the matrix product against the scalar oracle, and its bits against themselves: on each
//! instruction set, with any number of threads.

use trine_backend::oracle::Oracle;
use trine_backend::{Backend, Codes, Gate, Heads, HostMatrix, KvFormat, KvShape, Row};
use trine_cpu_tsar::{CpuTsar, Isa, Options};

/// Random values in -1..1 (an xorshift generator).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn values(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.next() * scale).collect()
    }
}

/// What is run on the oracle and on the CPU backend.
trait Program {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32>;
}

fn options() -> impl Iterator<Item = Options> {
    let isas = Isa::ALL.into_iter().filter(|isa| isa.is_available());
    // Steps of one row, and of more.
    let threads = [(1, 2), (2, 1), (3, 3)];
    isas.flat_map(move |isa| {
        threads.map(|(one, more)| Options {
            threads: Some(one),
            threads_batch: Some(more),
            isa: Some(isa),
            ..Options::default()
        })
    })
}

/// Runs a program everywhere. The results must be within `tolerance` of the oracle's, relative to the value
/// or to `floor` where that is larger, and the same bits under all options.
#[track_caller]
fn check(name: &str, program: &impl Program, tolerance: f32, floor: f32) {
    let expected = program.run(&mut Oracle::open(&()).unwrap());
    let mut first: Option<Vec<u32>> = None;
    for options in options() {
        let got = program.run(&mut CpuTsar::open(&options).unwrap());
        assert_eq!(got.len(), expected.len(), "{name}");
        for (i, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
            let near = (got - expected).abs() <= tolerance * expected.abs().max(floor);
            let same = got == expected || got.is_nan() && expected.is_nan();
            assert!(near || same, "{name}, {options:?}: value {i} is {got}, not {expected}");
        }
        let bits: Vec<u32> = got.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect();
        assert!(first.get_or_insert_with(|| bits.clone()) == &bits, "{name}, {options:?}: other bits");
    }
}

fn rows(count: usize) -> Vec<Row> {
    let row = |i: usize| Row { token: i as u32, sequence: 0, position: i as u32, output: true };
    (0..count).map(row).collect()
}

/// Edge values for one row: zeros, tiny, huge, special.
fn edges(columns: usize) -> Vec<Vec<f32>> {
    let mut infinite = vec![1.0; columns];
    infinite[columns / 2] = f32::INFINITY;
    let mut nan = vec![1.0; columns];
    nan[columns - 1] = f32::NAN;
    let fill = [0.0, -0.0, 1e-30, -1e30, 3e38, 87.0, -88.0, -104.0].map(|x| vec![x; columns]);
    fill.into_iter().chain([infinite, nan]).collect()
}

/// Widths and numbers of rows: below and above the vector width, and large enough to be split.
const EXTENTS: [(usize, usize); 7] = [(1, 1), (1, 7), (3, 33), (2, 100), (1, 2560), (17, 1536), (1, 24_000)];

/// A unary op in place or out of place over `[rows, columns]`.
struct Unary<'a> {
    columns: usize,
    x: &'a [f32],
    y: &'a [f32],
    op: Op,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    RmsNorm,
    Add,
    AddBias,
    AddRmsNorm,
    Gated(Gate),
}

impl Program for Unary<'_> {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let (columns, count) = (self.columns, self.x.len() / self.columns);
        let weight: Vec<f32> = (0..columns).map(|i| 0.5 + (i % 7) as f32 / 3.0).collect();
        let weight = backend.upload(columns, &weight).unwrap();
        let mut x = backend.upload(columns, self.x).unwrap();
        let y = backend.upload(columns, self.y).unwrap();
        let mut out = backend.alloc(count, columns).unwrap();
        let fused: Vec<f32> =
            self.x.chunks(columns).zip(self.y.chunks(columns)).flat_map(|(x, y)| [x, y].concat()).collect();
        let gate_up = backend.upload(2 * columns, &fused).unwrap();
        let record = |backend: &mut B| match self.op {
            Op::RmsNorm => backend.rms_norm(&mut out, &x, &weight, 1e-5),
            Op::Add => backend.add(&mut x, &y),
            Op::AddBias => backend.add_bias(&mut x, &weight),
            Op::AddRmsNorm => backend.add_rms_norm(&mut out, &mut x, &y, &weight, 1e-5),
            Op::Gated(gate) => backend.gated(&mut out, &gate_up, gate),
        };
        backend.step(&rows(count), record).unwrap();
        let mut result = vec![0.0; 2 * self.x.len()];
        let (first, second) = result.split_at_mut(self.x.len());
        backend.read(&out, first).unwrap();
        backend.read(&x, second).unwrap();
        result
    }
}

#[track_caller]
fn check_unary(op: Op, tolerance: f32, floor: f32) {
    let mut random = Random(7);
    for (count, columns) in EXTENTS {
        for scale in [1e-3, 1.0, 30.0] {
            let (x, y) = (random.values(count * columns, scale), random.values(count * columns, 1.0));
            let name = format!("{op:?} of {count} x {columns}, {scale}");
            check(&name, &Unary { columns, x: &x, y: &y, op }, tolerance, floor);
        }
    }
    for x in edges(20) {
        let y = random.values(20, 1.0);
        check(&format!("{op:?} of {:?}", &x[..1]), &Unary { columns: 20, x: &x, y: &y, op }, tolerance, 1e-30);
    }
}

#[test]
fn rms_norm() {
    check_unary(Op::RmsNorm, 3e-7, 1e-30);
}

#[test]
fn additions() {
    check_unary(Op::Add, 0.0, 0.0);
    check_unary(Op::AddBias, 0.0, 0.0);
}

#[test]
fn add_rms_norm() {
    check_unary(Op::AddRmsNorm, 3e-7, 1e-30);
}

#[test]
fn gates() {
    check_unary(Op::Gated(Gate::Silu), 4e-7, 1e-30);
    check_unary(Op::Gated(Gate::Relu2), 0.0, 0.0);
}

/// Head norm, RoPE, the KV cache and attention over a sequence of steps.
struct Attention {
    heads: Heads,
    format: KvFormat,
    context: usize,
    /// Each step's rows.
    steps: Vec<Vec<Row>>,
    scale: f32,
    fused: bool,
}

impl Program for Attention {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        let Heads { kv, dim, .. } = self.heads;
        let mut random = Random(11);
        let shape = KvShape { layers: 2, sequences: 2, context: self.context, kv_heads: kv, head_dim: dim };
        let mut cache = backend.kv(shape, self.format).unwrap();
        let angles: Vec<f32> = (0..self.context)
            .flat_map(|p| {
                let angle = move |i: usize| p as f64 / 100f64.powf(i as f64 / (dim / 2) as f64);
                (0..dim).map(move |i| if i < dim / 2 { angle(i).cos() } else { angle(i - dim / 2).sin() } as f32)
            })
            .collect();
        let table = backend.upload(dim, &angles).unwrap();
        let query = backend.upload(dim, &random.values(dim, 1.0)).unwrap();
        let key = backend.upload(dim, &random.values(dim, 1.0)).unwrap();
        let mut result = Vec::new();
        for step in &self.steps {
            let width = self.heads.fused_width();
            let mut qkv = backend.upload(width, &random.values(step.len() * width, self.scale)).unwrap();
            let mut out = backend.alloc(step.len(), self.heads.query_width()).unwrap();
            let record = |backend: &mut B| {
                // A norm that differs in a last bit may round a key to the other side: floats only.
                if self.format == KvFormat::F32 {
                    backend.head_norm(&mut qkv, self.heads, &query, &key, 1e-6);
                }
                for layer in 0..2 {
                    if self.fused {
                        backend.rope_store_kv(&mut cache, layer, &mut qkv, self.heads, &table);
                    } else {
                        backend.rope(&mut qkv, self.heads, &table);
                        backend.store_kv(&mut cache, layer, &qkv, self.heads);
                    }
                }
                backend.attend(&mut out, &qkv, &cache, 1, self.heads);
            };
            backend.step(step, record).unwrap();
            for (buf, columns) in [(&out, self.heads.query_width()), (&qkv, width)] {
                let mut read = vec![0.0; step.len() * columns];
                backend.read(buf, &mut read).unwrap();
                result.extend(read);
            }
        }
        result
    }
}

/// A prompt of `prompt` tokens, a second sequence's, then `decode` single tokens of both together.
fn conversation(prompt: usize, decode: usize) -> Vec<Vec<Row>> {
    let row = |sequence, position: usize| Row { token: 0, sequence, position: position as u32, output: true };
    let mut steps = vec![(0..prompt).map(|p| row(0, p)).collect(), (0..3).map(|p| row(1, p)).collect::<Vec<_>>()];
    steps.extend((0..decode).map(|p| vec![row(0, prompt + p)]));
    steps.extend((0..decode).map(|p| vec![row(1, 3 + p), row(0, prompt + decode + p)]));
    steps
}

#[test]
fn attention_of_all_formats_and_groups() {
    for format in [KvFormat::F32, KvFormat::F16, KvFormat::Int8] {
        for (query, kv, dim) in [(1, 1, 2), (4, 2, 10), (6, 2, 24), (7, 1, 32), (5, 5, 20), (8, 2, 64)] {
            let heads = Heads { query, kv, dim };
            let program =
                Attention { heads, format, context: 40, steps: conversation(20, 3), scale: 1.0, fused: dim > 20 };
            check(&format!("{format:?} {heads:?}"), &program, 1e-5, 0.05);
        }
    }
}

#[test]
fn attention_over_several_chunks() {
    for format in [KvFormat::F32, KvFormat::F16, KvFormat::Int8] {
        // Scores of up to 20 in f32: weights are off by 5e-6 of themselves, values are up to 4.
        // Positions up to 800: four chunks, the last of them short; and prompts that end at a chunk's edge.
        for (prompt, heads) in [(780, Heads { query: 4, kv: 1, dim: 64 }), (256, Heads { query: 6, kv: 2, dim: 64 })] {
            let program =
                Attention { heads, format, context: 1000, steps: conversation(prompt, 2), scale: 4.0, fused: true };
            check(&format!("{format:?} {prompt}"), &program, 1e-5, 2.0);
        }
    }
}

/// A row's result must not depend on the rows that share its step.
#[test]
fn batches_do_not_change_bits() {
    let steps = conversation(600, 0);
    let outputs = |heads: Heads, steps: Vec<Vec<Row>>, options: &Options| {
        let sizes: Vec<usize> = steps.iter().map(Vec::len).collect();
        let program = Attention { heads, format: KvFormat::F16, context: 700, steps, scale: 3.0, fused: false };
        let all = program.run(&mut CpuTsar::open(options).unwrap());
        let (mut rest, mut outputs) = (&all[..], Vec::new());
        for rows in sizes {
            outputs.extend_from_slice(&rest[..rows * heads.query_width()]);
            rest = &rest[rows * (heads.query_width() + heads.fused_width())..];
        }
        outputs.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
    };
    // Few heads, and more than there are workers for; groups that are widened where they are used, and others.
    for heads in [Heads { query: 4, kv: 2, dim: 64 }, Heads { query: 45, kv: 9, dim: 8 }] {
        for options in options() {
            let together = outputs(heads, steps[..1].to_vec(), &options);
            let (start, end) = steps[0].split_at(520);
            let sevens: Vec<Vec<Row>> = steps[0].chunks(7).map(<[Row]>::to_vec).collect();
            let ones = std::iter::once(start).chain(end.chunks(1)).map(<[Row]>::to_vec).collect();
            for split in [sevens, ones] {
                assert!(outputs(heads, split, &options) == together, "{heads:?} {options:?}");
            }
        }
    }
}

#[test]
fn broken_keys_show_in_the_output() {
    struct Broken(KvFormat);
    impl Program for Broken {
        fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
            let heads = Heads { query: 2, kv: 1, dim: 4 };
            let shape = KvShape { layers: 1, sequences: 1, context: 2, kv_heads: 1, head_dim: 4 };
            let mut kv = backend.kv(shape, self.0).unwrap();
            let mut row = vec![1.0; heads.fused_width()];
            row[8] = f32::NAN;
            let qkv = backend.upload(heads.fused_width(), &row).unwrap();
            let mut out = backend.alloc(1, 8).unwrap();
            let record = |backend: &mut B| {
                backend.store_kv(&mut kv, 0, &qkv, heads);
                backend.attend(&mut out, &qkv, &kv, 0, heads);
            };
            backend.step(&rows(1), record).unwrap();
            let mut result = vec![0.0; 8];
            backend.read(&out, &mut result).unwrap();
            assert!(result.iter().all(|x| x.is_nan()), "{result:?}");
            result
        }
    }
    for format in [KvFormat::F32, KvFormat::F16, KvFormat::Int8] {
        check("a key of NaN", &Broken(format), 0.0, 0.0);
    }
}

/// Embedding rows, kept rows, and ops on the rows that are left.
struct Selection;

impl Program for Selection {
    fn run<B: Backend>(&self, backend: &mut B) -> Vec<f32> {
        const COLUMNS: usize = 1000;
        let values = Random(3).values(50 * COLUMNS, 1.0);
        let table = backend.prepare(HostMatrix::new(50, COLUMNS, Codes::F32(values.into())).unwrap()).unwrap();
        let mut x = backend.alloc(40, COLUMNS).unwrap();
        let mut kept = backend.alloc(40, COLUMNS).unwrap();
        let step: Vec<Row> =
            (0..37).map(|i| Row { token: i * 13 % 50, sequence: 0, position: i, output: i % 5 == 2 }).collect();
        let record = |backend: &mut B| {
            backend.embed(&mut x, &table);
            backend.select_outputs(&mut kept, &x);
            backend.add(&mut kept, &x);
        };
        backend.step(&step, record).unwrap();
        let mut result = vec![0.0; 40 * COLUMNS];
        backend.read(&kept, &mut result).unwrap();
        result
    }
}

#[test]
fn embedding_and_selection() {
    check("selection", &Selection, 0.0, 0.0);
}

#[test]
fn steps_and_buffers_that_make_no_sense_are_errors() {
    let mut backend = CpuTsar::open(&Options::default()).unwrap();
    assert!(backend.step(&[], |_| unreachable!()).is_err());
    assert!(backend.alloc(0, 3).is_err());
    assert!(backend.alloc(usize::MAX, 3).is_err());
    assert!(backend.upload(3, &[1.0, 2.0]).is_err());
    let shape = KvShape { layers: 64, sequences: 1, context: 1 << 50, kv_heads: 8, head_dim: 128 };
    let error = backend.kv(shape, KvFormat::F16).unwrap_err().to_string();
    assert!(error.contains("KV cache") && error.contains("MB"), "{error}");
    assert!(CpuTsar::open(&Options { threads: Some(0), ..Options::default() }).is_err());
}

#[test]
fn the_device_is_described() {
    let options = Options { threads: Some(2), isa: Some(Isa::Plain), ..Options::default() };
    let info = CpuTsar::open(&options).unwrap().info();
    let facts =
        |facts: &[(&str, &str)]| facts.iter().map(|&(name, fact)| (name.into(), fact.into())).collect::<Vec<_>>();
    assert_eq!(info.facts, facts(&[("threads", "2"), ("instructions", "plain")]));
    let both = CpuTsar::open(&Options { threads_batch: Some(3), ..options }).unwrap().info();
    assert_eq!(both.facts, facts(&[("threads", "2"), ("batch threads", "3"), ("instructions", "plain")]));
    assert!(!info.name.is_empty());
}
