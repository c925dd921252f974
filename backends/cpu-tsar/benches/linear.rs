//! Matrix products on one thread, by format and shape, against the same sums in plain code.
//!
//! `plain-loop` is the integer loop that the formats are defined by, over codes unpacked to a byte each
//! beforehand, compiled with the same optimisation and for the same baseline CPU as the rest of the program.
//! Elements are multiply-adds, so the throughputs of a group give the speed-ups.
//!
//! `cargo bench -p trine-cpu-tsar -- ternary/2560x6912` runs a part.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use trine_backend::activation::{BLOCK, quantize};
use trine_backend::{Activation, Codes, Format, HostMatrix, Int4, Int8, Ternary, Zero};
use trine_cpu_tsar::{Isa, Multiplier};

/// Outputs and inputs: the attention and feed-forward products of BitNet b1.58 2B.
const SHAPES: [(usize, usize); 3] = [(2560, 2560), (6912, 2560), (2560, 6912)];

/// Tokens of a decode step, of steps that some texts share, and of a prefill.
const BATCHES: [usize; 4] = [1, 2, 8, 64];

const FORMATS: [&str; 5] = ["ternary", "int4-g32", "int4-g128", "int8", "bf16"];

/// T-SAR's instructions, emulated.
const PUBLISHED: [&str; 4] = ["tsar-2x4-ap", "tsar-2x4-op", "tsar-4x4-ap", "tsar-4x4-op"];

/// The plain loop takes a second for a large prefill: there its decode figure stands for both.
const PLAIN_BATCH: usize = 1;

fn products(criterion: &mut Criterion) {
    for format in FORMATS {
        for (rows, columns) in SHAPES {
            let matrix = matrix(format.parse().expect("the name of a format"), rows, columns);
            for batch in BATCHES {
                let mut group = criterion.benchmark_group(format!("{format}/{rows}x{columns}/{batch}"));
                group.sample_size(20).warm_up_time(Duration::from_millis(300));
                group.measurement_time(Duration::from_millis(1500));
                group.throughput(Throughput::Elements((rows * columns * batch) as u64));
                let x = random_floats(batch * columns);
                let mut out = vec![0.0; batch * rows];
                for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                    let mut multiplier = Multiplier::new(matrix.clone(), isa, 1).expect("a small matrix");
                    let fits = |kernel: &&trine_cpu_tsar::KernelInfo| kernel.tokens <= batch;
                    let name = multiplier.kernels().iter().find(fits).map_or("none", |kernel| kernel.name);
                    group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                        bencher.iter(|| multiplier.multiply(black_box(&x), black_box(&mut out)));
                    });
                }
                if format == "ternary" {
                    for kernel in PUBLISHED {
                        let multiplier = Multiplier::with_kernel(matrix.clone(), Isa::detect(), 1, Some(kernel));
                        let mut multiplier = multiplier.expect("every instruction set has the variants of T-SAR");
                        group.bench_function(BenchmarkId::from_parameter(kernel), |bencher| {
                            bencher.iter(|| multiplier.multiply(black_box(&x), black_box(&mut out)));
                        });
                    }
                }
                if batch == PLAIN_BATCH {
                    let plain = PlainLoop::new(&matrix);
                    group.bench_function(BenchmarkId::from_parameter("plain-loop"), |bencher| {
                        bencher.iter(|| plain.multiply(black_box(&x), black_box(&mut out)));
                    });
                }
                group.finish();
            }
        }
    }
}

fn random_bytes(count: usize) -> impl Iterator<Item = u8> {
    let mut state = 1u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
}

fn random_floats(count: usize) -> Vec<f32> {
    random_bytes(count).map(|byte| f32::from(byte) / 128.0 - 1.0).collect()
}

/// A matrix of random codes.
fn matrix(format: Format, rows: usize, columns: usize) -> HostMatrix<'static> {
    let scales = |count| vec![f16::from_f32(0.01); count];
    let codes = match format {
        Format::Ternary => {
            let trits = |byte: u8| (0..4).fold(0, |codes, at| codes | (byte >> (2 * at) & 3).min(2) << (2 * at));
            let codes: Vec<u8> = random_bytes(rows * columns / 4).map(trits).collect();
            Codes::Ternary(Ternary::new(codes, vec![0.01; rows]))
        }
        Format::Int4 { group, .. } => {
            let codes: Vec<u8> = random_bytes(rows * columns / 2).collect();
            Codes::Int4(Int4::new(group, codes, scales(rows * group.count(columns)), Zero::Symmetric))
        }
        Format::Int8 { group } => {
            let codes: Vec<i8> = random_bytes(rows * columns).map(|byte| (byte as i8).max(-127)).collect();
            Codes::Int8(Int8::new(group, codes, scales(rows * group.count(columns))))
        }
        _ => {
            return HostMatrix::quantize::<trine_backend::Error>(rows, columns, format, |row, out| {
                out.copy_from_slice(&random_floats(row + columns)[row..]);
                Ok(())
            })
            .expect("floats can be made dense");
        }
    };
    HostMatrix::new(rows, columns, codes).expect("the lengths fit")
}

/// A matrix as one code per byte and one scale per 32 columns, or as floats.
struct PlainLoop {
    columns: usize,
    activation: Activation,
    codes: Vec<i8>,
    scales: Vec<f32>,
    floats: Vec<f32>,
}

impl PlainLoop {
    fn new(matrix: &HostMatrix<'_>) -> Self {
        let (rows, columns) = (matrix.rows(), matrix.columns());
        let activation = matrix.activation();
        let mut plain =
            PlainLoop { columns, activation, codes: vec![], scales: vec![], floats: vec![0.0; columns * rows] };
        for (row, out) in plain.floats.chunks_mut(columns).enumerate() {
            matrix.dequantize_row(row, out);
        }
        if plain.activation != Activation::Float {
            let scale = f16::from_f32(0.01).to_f32();
            let scale = if plain.activation == Activation::Token { 0.01 } else { scale };
            plain.codes = plain.floats.iter().map(|value| (value / scale).round() as i8).collect();
            plain.scales = vec![scale; plain.codes.len() / BLOCK];
        }
        plain
    }

    fn multiply(&self, x: &[f32], out: &mut [f32]) {
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; x.len() / BLOCK]);
        match self.activation {
            Activation::Float => {
                for (row, out) in self.floats.chunks(self.columns).zip(out) {
                    *out = row.iter().zip(x).map(|(weight, x)| weight * x).sum();
                }
            }
            Activation::Token => {
                quantize(x, Activation::Token, &mut codes, &mut scales);
                for (row, out) in self.codes.chunks(self.columns).zip(out) {
                    *out = dot(row, &codes) as f32 * (self.scales[0] * scales[0]);
                }
            }
            Activation::Block => {
                quantize(x, Activation::Block, &mut codes, &mut scales);
                let rows = self.codes.chunks(self.columns).zip(self.scales.chunks(self.columns / BLOCK));
                for ((row, row_scales), out) in rows.zip(out) {
                    let blocks = row.chunks(BLOCK).zip(codes.chunks(BLOCK)).zip(row_scales.iter().zip(&scales));
                    *out = blocks.map(|((w, a), (s, t))| dot(w, a) as f32 * (s * t)).sum();
                }
            }
        }
    }
}

fn dot(weights: &[i8], codes: &[i8]) -> i32 {
    weights.iter().zip(codes).map(|(&weight, &code)| i32::from(weight) * i32::from(code)).sum()
}

criterion_group!(benches, products);
criterion_main!(benches);
