//! Norms, activations' codes, tables, sums, heads and choices of rows.

use trine_backend::activation;
use trine_backend::{Activation, Backend, Heads};
use trine_kernels::args::{self, StepRow};
use trine_kernels::{Kernel, Launch, Quantize, segment, slots};

use crate::device::{Codes, Random, bits, close, download, oracle, read, rows, run, upload, zeros};
use crate::matrices::{DENSE, quantised, random_matrix, send};

fn reference(x: &[f32], activation: Activation) -> (Vec<i8>, Vec<f32>) {
    let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; x.len().div_ceil(32)]);
    activation::quantize(x, activation, &mut codes, &mut scales);
    (codes, scales)
}

#[track_caller]
fn same(got: &(Vec<i8>, Vec<f32>), want: &(Vec<i8>, Vec<f32>), what: &str) {
    assert_eq!(got.0, want.0, "{what}");
    let plain =
        |scales: &[f32]| -> Vec<u32> { scales.iter().map(|s| if s.is_nan() { 1 } else { s.to_bits() }).collect() };
    assert_eq!(plain(&got.1), plain(&want.1), "{what}");
}

#[test]
fn codes_are_those_of_the_contract() {
    let mut random = Random(20);
    for columns in [1, 31, 64, 334, 1100] {
        let count = 6;
        let mut x = random.floats(count * columns, 5.0);
        // Ties, the largest and the smallest numbers, NaN.
        x[0] = 127.0;
        x[columns..2 * columns].iter_mut().enumerate().for_each(|(at, x)| *x = at as f32 % 100.0 + 0.5);
        x[columns] = 127.0;
        x[2 * columns..3 * columns].fill(0.0);
        x[3 * columns..4 * columns].iter_mut().for_each(|x| *x *= 1e-38);
        x[4 * columns] = f32::NAN;
        x[5 * columns] = f32::MAX;
        for activation in [Activation::Block, Activation::Token] {
            let codes = Codes::new(count, columns);
            let args = args::Quantize {
                x: upload(&x),
                codes: codes.codes,
                spans: codes.spans,
                columns: columns as u32,
                per: segment(columns) as u32,
            };
            let launch =
                if activation == Activation::Token { Launch::rows(count) } else { Launch::units(columns, count) };
            run(&Kernel::quantize(Quantize::from_activation(activation), false), launch, &args);
            for (row, x) in x.chunks(columns).enumerate() {
                same(&codes.row(row), &reference(x, activation), &format!("{activation:?} row {row} of {columns}"));
            }
        }
    }
}

#[test]
fn norms_are_near_the_oracle_and_their_codes_are_those_of_their_floats() {
    let mut random = Random(21);
    for (columns, add, quantize) in [
        (1, false, Quantize::Block),
        (33, true, Quantize::Token),
        (640, true, Quantize::Block),
        (2561, false, Quantize::No),
    ] {
        let count = 3;
        let (x, y, weight) =
            (random.floats(count * columns, 4.0), random.floats(count * columns, 4.0), random.floats(columns, 1.0));
        let (out, residual, codes) = (zeros(4 * count * columns), upload(&x), Codes::new(count, columns));
        let args = args::RmsNorm {
            x: residual,
            y: if add { upload(&y) } else { 0 },
            weight: upload(&weight),
            out,
            codes: codes.codes,
            spans: codes.spans,
            columns: columns as u32,
            per: segment(columns) as u32,
            eps: 1e-5,
            unused: 0,
        };
        run(&Kernel::rms_norm(quantize, false), Launch::rows(count), &args);
        let got: Vec<f32> = download(out, count * columns);
        let (mut want, mut sums) = (Vec::new(), Vec::new());
        oracle(count, |o| {
            let up = |o: &mut trine_backend::oracle::Oracle, columns, x: &[f32]| o.upload(columns, x).unwrap();
            let (mut a, b, w) = (up(o, columns, &x), up(o, columns, &y), up(o, columns, &weight));
            let mut out = o.alloc(count, columns).unwrap();
            if add {
                o.add(&mut a, &b);
            }
            o.rms_norm(&mut out, &a, &w, 1e-5);
            (want, sums) = (read(o, &out, count * columns), read(o, &a, count * columns));
        });
        close(&got, &want, |at| 2e-6 * want[at].abs(), &format!("{columns} columns"));
        assert_eq!(bits(&download(residual, count * columns)), bits(&sums));
        let activation = match quantize {
            Quantize::No => continue,
            Quantize::Token => Activation::Token,
            Quantize::Block => Activation::Block,
        };
        for (row, x) in got.chunks(columns).enumerate() {
            same(&codes.row(row), &reference(x, activation), &format!("row {row} of {columns}"));
        }
    }
}

#[test]
fn rows_of_tables_are_those_of_the_oracle() {
    let mut random = Random(22);
    let dense = DENSE.map(|format| (format, Activation::Float));
    // Their layout is the same for every activation.
    let coded = quantised().into_iter().filter(|&(format, activation)| activation == format.activation());
    for (format, activation) in coded.chain(dense) {
        let (count, columns) = (10, 334);
        let table = random_matrix(&mut random, format, activation, count, columns);
        let [codes, scales, zero] = send(&table);
        let tokens = [(7, 0, 0), (0, 0, 0), (9, 0, 0), (10, 0, 0)];
        let out = zeros(4 * tokens.len() * columns);
        let per = if format.is_dense() { trine_kernels::pitch(columns) } else { segment(columns) };
        let args = args::Embed {
            codes,
            scales,
            zeros: zero,
            step: upload(&rows(&tokens)),
            out,
            columns: columns as u32,
            per: per as u32,
            slots: slots(format, columns) as u32,
            rows: count as u32,
        };
        run(&Kernel::embed(format, false), Launch::columns(columns, tokens.len()), &args);
        let got: Vec<f32> = download(out, tokens.len() * columns);
        let mut want = vec![0.0; columns];
        for (row, &(token, ..)) in tokens[..3].iter().enumerate() {
            table.dequantize_row(token as usize, &mut want);
            assert_eq!(bits(&got[row * columns..][..columns]), bits(&want), "{format} token {token}");
        }
        assert!(got[3 * columns..].iter().all(|x| x.is_nan()), "a token beyond the table");
    }
}

#[test]
fn sums_choices_and_copies() {
    let mut random = Random(23);
    let (count, columns) = (4, 300);
    let (x, y, bias) =
        (random.floats(count * columns, 4.0), random.floats(count * columns, 4.0), random.floats(columns, 1.0));
    let at = upload(&x);
    let add = Kernel::plain("add", false);
    run(
        &add,
        Launch::columns(columns, count),
        &args::Add { x: at, y: upload(&y), columns: columns as u32, y_pitch: columns as u32 },
    );
    run(
        &add,
        Launch::columns(columns, count),
        &args::Add { x: at, y: upload(&bias), columns: columns as u32, y_pitch: 0 },
    );
    let want: Vec<f32> = (0..x.len()).map(|i| x[i] + y[i] + bias[i % columns]).collect();
    assert_eq!(bits(&download(at, count * columns)), bits(&want));

    let step: Vec<StepRow> = [3, 1].map(|source| StepRow { source, ..StepRow::default() }).to_vec();
    let out = zeros(4 * 2 * columns);
    let args = args::SelectRows { step: upload(&step), x: at, out, columns: columns as u32, unused: 0 };
    run(&Kernel::plain("select_rows", false), Launch::columns(columns, 2), &args);
    let chosen = [&want[3 * columns..], &want[columns..2 * columns]].concat();
    assert_eq!(bits(&download(out, 2 * columns)), bits(&chosen));

    let bytes: Vec<u8> = (0..16 * 5000).map(|_| random.next() as u8).collect();
    let to = zeros(bytes.len());
    run(&Kernel::plain("copy", false), Launch::copy(3), &args::Copy16 { from: upload(&bytes), to, vectors: 5000 });
    assert_eq!(download::<u8>(to, bytes.len()), bytes);
}

#[test]
fn heads_are_normalised_apart() {
    let mut random = Random(24);
    for heads in
        [Heads { query: 4, kv: 2, dim: 8 }, Heads { query: 7, kv: 1, dim: 80 }, Heads { query: 2, kv: 2, dim: 128 }]
    {
        let (count, width) = (3, heads.fused_width());
        let (x, query, key) =
            (random.floats(count * width, 3.0), random.floats(heads.dim, 2.0), random.floats(heads.dim, 2.0));
        let qkv = upload(&x);
        let args = args::HeadNorm {
            qkv,
            query: upload(&query),
            key: upload(&key),
            dim: heads.dim as u32,
            query_heads: heads.query as u32,
            kv_heads: heads.kv as u32,
            eps: 1e-6,
        };
        run(&Kernel::plain("head_norm", false), Launch::heads(heads.query + heads.kv, count), &args);
        let mut want = Vec::new();
        oracle(count, |o| {
            let (mut buf, q, k) = (
                o.upload(width, &x).unwrap(),
                o.upload(heads.dim, &query).unwrap(),
                o.upload(heads.dim, &key).unwrap(),
            );
            o.head_norm(&mut buf, heads, &q, &k, 1e-6);
            want = read(o, &buf, count * width);
        });
        close(&download(qkv, count * width), &want, |at| 2e-6 * want[at].abs(), &format!("{heads:?}"));
    }
}

#[test]
fn the_largest_is_found_the_first_of_equals_and_never_nan() {
    let columns = 5000;
    let mut x = Random(25).floats(4 * columns, 1.0);
    (x[4321], x[1000], x[7]) = (2.0, 2.0, f32::NAN);
    x[columns..2 * columns].fill(f32::NAN);
    x[2 * columns..3 * columns].fill(f32::NEG_INFINITY);
    x[4 * columns - 1] = f32::INFINITY;
    let launch = Launch::argmax(columns, 4);
    let blocks = launch.unwrap().grid[0] as usize;
    let (out, next) = (zeros(16), upload(&rows(&[(9, 1, 5); 4])));
    let args = args::Argmax {
        x: upload(&x),
        partials: zeros(8 * 4 * blocks),
        counters: zeros(16),
        out,
        next,
        columns: columns as u32,
        unused: 0,
    };
    for turn in 1..3 {
        run(&Kernel::plain("argmax", false), launch, &args);
        assert_eq!(download::<u32>(out, 4), [1000, 0, 0, columns as u32 - 1]);
        let row: Vec<StepRow> = download(next, 4);
        assert_eq!(row[0], StepRow { token: 1000, sequence: 1, position: 5 + turn, source: 0 });
    }
}
