//! Products: near the oracle's, and the same bits whichever kernel made them.

use trine_backend::{Activation, Backend, Format, Gate, Group, HostMatrix, ZeroKind};
use trine_kernels::args::{self, Product};
use trine_kernels::{Epilogue, Gemv, Kernel, Launch, Quantize, segment};

use crate::device::{Codes, Random, bits, close, download, oracle, read, run, upload, zeros};
use crate::matrices::{DENSE, product, quantised, random_matrix};

const TOKENS: usize = 11;

fn gemv(format: Format, activation: Activation, rows: u32, tokens: u32) -> Gemv {
    Gemv { format, activation, rows, tokens, epilogue: Epilogue::Store, norm: false, per: None, threads: 128 }
}

/// A row with an outlier, zeros and ordinary numbers, for each token.
fn inputs(random: &mut Random, tokens: usize, columns: usize) -> Vec<f32> {
    let mut x = random.floats(tokens * columns, 2.0);
    for (token, row) in x.chunks_mut(columns).enumerate() {
        let at = random.next() as usize % columns;
        row[at] = if token % 3 == 0 { 300.0 } else { 0.0 };
        if token == 2 {
            row.fill(0.0);
        }
        if token == 5 {
            row[at] = f32::NAN;
        }
    }
    x
}

fn quantized(x: &[f32], columns: usize, activation: Activation) -> Codes {
    quantized_by(Kernel::quantize(Quantize::from_activation(activation), false), x, columns, activation)
}

/// In the order for products of many tokens.
fn quantized_plain(x: &[f32], columns: usize, activation: Activation) -> Codes {
    quantized_by(Kernel::quantize(Quantize::from_activation(activation), false).for_gemm(), x, columns, activation)
}

fn quantized_by(kernel: Kernel, x: &[f32], columns: usize, activation: Activation) -> Codes {
    let rows = x.len() / columns;
    let codes = Codes::new(rows, columns);
    let args = args::Quantize {
        x: upload(x),
        codes: codes.codes,
        spans: codes.spans,
        columns: columns as u32,
        per: segment(columns) as u32,
    };
    let launch = if activation == Activation::Token { Launch::rows(rows) } else { Launch::units(columns, rows) };
    run(&kernel, launch, &args);
    codes
}

fn expected(matrix: &HostMatrix<'static>, x: &[f32]) -> Vec<f32> {
    let tokens = x.len() / matrix.columns();
    let mut want = Vec::new();
    oracle(tokens, |o| {
        let weight = o.prepare(matrix.clone()).unwrap();
        let x = o.upload(matrix.columns(), x).unwrap();
        let mut out = o.alloc(tokens, matrix.rows()).unwrap();
        o.linear(&mut out, &x, &weight);
        want = read(o, &out, tokens * matrix.rows());
    });
    want
}

/// Runs a product of the first `tokens` rows.
fn multiply(kernel: &Kernel, launch: Option<Launch>, base: Product, tokens: usize) -> Vec<f32> {
    let rows = base.rows as usize;
    let out = upload(&vec![f32::NAN; tokens * rows]);
    run(kernel, launch, &Product { out, tokens: tokens as u32, ..base });
    download(out, tokens * rows)
}

/// One case: the few-token kernels given, and the one for many.
fn check(random: &mut Random, format: Format, activation: Activation, rows: usize, columns: usize, kernels: &[Gemv]) {
    let matrix = random_matrix(random, format, activation, rows, columns);
    let x = inputs(random, TOKENS, columns);
    let codes = quantized(&x, columns, activation);
    let bias = random.floats(rows, 1.0);
    let base = Product { x_codes: codes.codes, x_spans: codes.spans, bias: upload(&bias), ..product(&matrix) };
    let what = format!("{format} {activation:?} {rows} x {columns}");
    let plain = quantized_plain(&x, columns, activation);
    let tile = if rows > 64 { 128 } else { 64 };
    let gemm = Kernel::gemm(format, activation, tile, Epilogue::Store, false);
    let plain = Product { x_codes: plain.codes, x_spans: plain.spans, ..base };
    let many = multiply(&gemm, Launch::gemm(rows, TOKENS, tile), plain, TOKENS);
    let want: Vec<f32> = expected(&matrix, &x).iter().enumerate().map(|(at, x)| x + bias[at % rows]).collect();
    let mut dense = vec![0.0; columns];
    let largest: Vec<f32> = (0..rows)
        .map(|row| {
            matrix.dequantize_row(row, &mut dense);
            dense.iter().map(|w| w.abs()).sum::<f32>() + 16.0 * 0.05 * columns as f32 / 32.0
        })
        .collect();
    let bound = |at: usize| {
        let x = x[at / rows * columns..][..columns].iter().fold(0.0f32, |most, x| most.max(x.abs()));
        1e-5 + 2e-6 * x * largest[at % rows]
    };
    close(&many, &want, bound, &what);
    for kernel in kernels {
        let tokens = (kernel.tokens as usize).min(TOKENS);
        // Fewer tokens than the kernel takes, too.
        for tokens in [tokens, tokens.div_ceil(2)] {
            let few = multiply(&kernel.kernel(false), kernel.launch(rows, 1), base, tokens);
            assert_eq!(bits(&few), bits(&many[..tokens * rows]), "{what}: {kernel:?}");
        }
    }
}

#[test]
fn every_format_gives_the_same_bits_for_few_tokens_and_for_many() {
    let mut random = Random(1);
    // With their own activations, and those that are one integer sum.
    let own = |&(format, activation): &(Format, Activation)| {
        activation == format.activation() || trine_kernels::is_integer(format, activation)
    };
    for (at, (format, activation)) in quantised().into_iter().filter(own).enumerate() {
        let kernels = [gemv(format, activation, [4, 2, 1, 8][at % 4], [1, 8][at % 2])];
        for (rows, columns) in [(41, 334), (5, 31), (133, 1040)] {
            check(&mut random, format, activation, rows, columns, &kernels);
        }
    }
}

#[test]
fn every_number_of_rows_and_tokens_gives_the_same_bits() {
    let format = Format::Int4 { group: Group::G32, zero: ZeroKind::Symmetric };
    let mut kernels = Vec::new();
    for rows in [1, 2, 4, 8] {
        for tokens in if rows == 2 { &[1, 2, 4, 8][..] } else { &[1, 2] } {
            let &tokens = tokens;
            kernels.push(gemv(format, Activation::Block, rows, tokens));
        }
    }
    for per in [7, 5] {
        kernels = kernels.iter().map(|kernel| Gemv { per: Some(per), ..*kernel }).collect();
        let columns = per as usize * 512 - 40;
        check(&mut Random(2), format, Activation::Block, 150, columns, &kernels);
    }
}

/// More tiles than blocks: each block has several.
#[test]
fn a_block_goes_on_with_the_next_tile() {
    let mut random = Random(3);
    let format = Format::Int4 { group: Group::G64, zero: ZeroKind::Point };
    let matrix = random_matrix(&mut random, format, Activation::Block, 200, 700);
    let x = inputs(&mut random, 2, 700);
    let codes = quantized(&x, 700, Activation::Block);
    let base = Product { x_codes: codes.codes, x_spans: codes.spans, ..product(&matrix) };
    let kernel = gemv(format, Activation::Block, 2, 2);
    let many = multiply(&kernel.kernel(false), kernel.launch(200, 4), base, 2);
    let few = multiply(&kernel.kernel(false), Some(Launch { grid: [3, 1, 1], threads: 128 }), base, 2);
    assert_eq!(bits(&few), bits(&many));
}

#[test]
fn sums_are_added_to_what_is_there() {
    let mut random = Random(4);
    let format = Format::Int8 { group: Group::G32 };
    let matrix = random_matrix(&mut random, format, Activation::Block, 70, 100);
    let x = inputs(&mut random, 3, 100);
    let codes = quantized(&x, 100, Activation::Block);
    let base = Product { x_codes: codes.codes, x_spans: codes.spans, tokens: 3, ..product(&matrix) };
    let before = random.floats(3 * 70, 1.0);
    let few = gemv(format, Activation::Block, 1, 4);
    let stored = multiply(&few.kernel(false), few.launch(70, 1), base, 3);
    let want: Vec<f32> = before.iter().zip(&stored).map(|(a, b)| a + b).collect();
    let few = Gemv { epilogue: Epilogue::Add, ..few };
    let plain = quantized_plain(&x, 100, Activation::Block);
    let plain = Product { x_codes: plain.codes, x_spans: plain.spans, ..base };
    let many = (Kernel::gemm(format, Activation::Block, 64, Epilogue::Add, false), Launch::gemm(70, 3, 64), plain);
    for (kernel, launch, args) in [(few.kernel(false), few.launch(70, 1), base), many] {
        let out = upload(&before);
        run(&kernel, launch, &Product { out, ..args });
        assert_eq!(bits(&download(out, 3 * 70)), bits(&want), "{kernel:?}");
    }
}

#[test]
fn products_of_floats_are_near_the_oracle_and_the_same_in_every_batch() {
    let mut random = Random(5);
    for format in DENSE {
        for (rows, columns) in [(9, 70), (3, 1), (20, 256)] {
            let matrix = random_matrix(&mut random, format, Activation::Float, rows, columns);
            let x = random.floats(TOKENS * columns, 2.0);
            let base = args::Dense {
                weights: product(&matrix).codes,
                x: upload(&x),
                rows: rows as u32,
                columns: columns as u32,
                pitch: trine_kernels::pitch(columns) as u32,
                out_pitch: rows as u32,
                ..args::Dense::default()
            };
            let kernel = Kernel::dense(format, Epilogue::Store, false);
            let multiply = |tokens: usize| -> Vec<f32> {
                let out = zeros(4 * tokens * rows);
                run(&kernel, Launch::dense(rows, tokens), &args::Dense { out, tokens: tokens as u32, ..base });
                download(out, tokens * rows)
            };
            let many = multiply(TOKENS);
            close(&many, &expected(&matrix, &x), |_| 2e-6 * columns as f32, &format!("{format} {rows} x {columns}"));
            assert_eq!(bits(&multiply(1)), bits(&many[..rows]));
        }
    }
}

/// The norm in a product is the one before it, and gate and up leave what the kernels apart would leave.
#[test]
fn fused_products_equal_their_parts() {
    let mut random = Random(6);
    let (half, columns) = (96, 200);
    let format = Format::Int4 { group: Group::G32, zero: ZeroKind::Symmetric };
    let matrix = random_matrix(&mut random, format, Activation::Block, 2 * half, columns);
    let (x, weight) = (random.floats(columns, 3.0), random.floats(columns, 1.0));
    let (per, half_per) = (segment(columns) as u32, segment(half) as u32);
    let apart = Codes::new(1, columns);
    let norm = args::RmsNorm {
        x: upload(&x),
        weight: upload(&weight),
        codes: apart.codes,
        spans: apart.spans,
        columns: columns as u32,
        per,
        eps: 1e-5,
        ..args::RmsNorm::default()
    };
    run(&Kernel::rms_norm(Quantize::Block, false), Launch::rows(1), &norm);
    let base = Product { x_codes: apart.codes, x_spans: apart.spans, tokens: 1, ..product(&matrix) };
    let plain = gemv(format, Activation::Block, 4, 1);
    let sums = upload(&vec![f32::NAN; 2 * half]);
    run(&plain.kernel(false), plain.launch(2 * half, 2), &Product { out: sums, ..base });
    let want = Codes::new(1, half);
    let floats = zeros(4 * half);
    let gated = args::Gated {
        gate_up: sums,
        out: floats,
        codes: want.codes,
        spans: want.spans,
        columns: half as u32,
        per: half_per,
        gate: 0,
        unused: 0,
    };
    run(&Kernel::gated(Quantize::Block, false), Launch::units(half, 1), &gated);
    for rows in [1, 2, 4, 8] {
        let got = Codes::new(1, half);
        let out = zeros(4 * half);
        let fused = Gemv { rows, epilogue: Epilogue::Gated, norm: true, threads: Gemv::gated_threads(rows), ..plain };
        let args = Product {
            x: norm.x,
            norm: norm.weight,
            eps: 1e-5,
            x_codes: 0,
            x_spans: 0,
            out,
            out_pitch: half as u32,
            out_codes: got.codes,
            out_spans: got.spans,
            out_per: half_per,
            ..base
        };
        run(&fused.kernel(false), fused.launch(2 * half, 1), &args);
        assert_eq!(bits(&download(out, half)), bits(&download(floats, half)), "{rows} rows");
        assert_eq!(got.row(0), want.row(0), "{rows} rows");
    }
    let mut oracles = Vec::new();
    oracle(1, |o| {
        let gate_up = o.upload(2 * half, &download::<f32>(sums, 2 * half)).unwrap();
        let mut out = o.alloc(1, half).unwrap();
        o.gated(&mut out, &gate_up, Gate::Silu);
        oracles = read(o, &out, half);
    });
    close(&download(floats, half), &oracles, |at| 1e-5 * oracles[at].abs(), "gated");
}
