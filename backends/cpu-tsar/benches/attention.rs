//! Attention on one thread, with the heads of BitNet b1.58 2B: steps of one row, of eight texts and of a prompt.
//!
//! Elements are the positions that all rows see together, so the throughputs tell what a position costs.
//!
//! `cargo bench -p trine-cpu-tsar --bench attention -- f16/1` runs a part.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use trine_backend::{Backend, Heads, KvFormat, KvShape, Row};
use trine_cpu_tsar::{CpuTsar, Isa, Options};

const HEADS: Heads = Heads { query: 20, kv: 5, dim: 128 };

/// Rows, whether they are texts of their own, and the position of the first.
const STEPS: [(usize, bool, usize); 5] =
    [(1, false, 128), (1, false, 512), (1, false, 4096), (8, true, 512), (128, false, 512)];

fn attention(criterion: &mut Criterion) {
    for (format, format_name) in [(KvFormat::F16, "f16"), (KvFormat::Int8, "int8"), (KvFormat::F32, "f32")] {
        for (rows, texts, depth) in STEPS {
            let steps = steps(rows, texts, depth);
            let seen: u64 = steps.iter().map(|row| u64::from(row.position) + 1).sum();
            let name = if texts { format!("{rows} texts") } else { rows.to_string() };
            let mut group = criterion.benchmark_group(format!("{format_name}/{name}/{depth}"));
            group.sample_size(20).warm_up_time(Duration::from_millis(200));
            group.measurement_time(Duration::from_millis(1000));
            group.throughput(Throughput::Elements(seen));
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let options = Options { threads: Some(1), isa: Some(isa), ..Options::default() };
                let mut backend = CpuTsar::open(&options).expect("an instruction set that is there");
                let sequences = if texts { rows } else { 1 };
                let shape =
                    KvShape { layers: 1, sequences, context: depth + rows, kv_heads: HEADS.kv, head_dim: HEADS.dim };
                let mut kv = backend.kv(shape, format).expect("a small cache");
                let qkv = backend.upload(HEADS.fused_width(), &floats(rows * HEADS.fused_width())).expect("small");
                let mut out = backend.alloc(rows, HEADS.query_width()).expect("small");
                fill(&mut backend, &mut kv, sequences, depth + rows);
                group.bench_function(BenchmarkId::from_parameter(isa), |bencher| {
                    bencher.iter(|| {
                        let step = backend.step(black_box(&steps), |b| b.attend(&mut out, &qkv, &kv, 0, HEADS));
                        step.expect("steps of rows that exist");
                    });
                });
            }
            group.finish();
        }
    }
}

/// The rows of a step whose first is at `depth`.
fn steps(rows: usize, texts: bool, depth: usize) -> Vec<Row> {
    let row = |row: usize| Row {
        token: 0,
        sequence: if texts { row as u32 } else { 0 },
        position: (if texts { depth } else { depth + row }) as u32,
        output: false,
    };
    (0..rows).map(row).collect()
}

/// Keys and values for all positions.
fn fill(backend: &mut CpuTsar, kv: &mut <CpuTsar as Backend>::Kv, sequences: usize, positions: usize) {
    let qkv = backend.upload(HEADS.fused_width(), &floats(HEADS.fused_width())).expect("small");
    for sequence in 0..sequences as u32 {
        for position in 0..positions as u32 {
            let row = Row { token: 0, sequence, position, output: false };
            backend.step(&[row], |b| b.store_kv(kv, 0, &qkv, HEADS)).expect("a row that exists");
        }
    }
}

/// Numbers within ±1 that look random.
fn floats(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

criterion_group!(benches, attention);
criterion_main!(benches);
