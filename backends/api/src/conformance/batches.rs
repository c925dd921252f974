//! What else is in a batch must not change a row's result: a request's text may not depend on its
//! neighbours. Rows computed alone and in batches are compared bit for bit, on one backend; no oracle is
//! asked.

use super::check::{Case, Checker, Failure, Report, refused};
use super::data::{DENSE, Random, activations, dense_matrix, integer_formats, random_matrix, rope_table};
use super::device::{open, output, prepare, read, upload};
use crate::{Activation, Backend, Format, Gate, Heads, KvFormat, KvShape, Row};

const BATCHES: [usize; 12] = [2, 3, 4, 5, 7, 8, 9, 16, 17, 32, 33, 64];
/// Different input rows; a row is chosen by a token.
const INPUTS: usize = 64;

/// `linear` in every format, norms, gates and attention give a row the same bits in every batch.
pub fn batch_invariance<B: Backend>(options: &B::Options) -> Result<Report, Failure> {
    let mut checker = Checker::default();
    rows_of_ops::<B>(options, &mut checker)?;
    rows_of_gates::<B>(options, &mut checker)?;
    for (heads, format) in [
        (Heads { query: 2, kv: 1, dim: 64 }, KvFormat::F32),
        (Heads { query: 14, kv: 2, dim: 128 }, KvFormat::F16),
        (Heads { query: 3, kv: 1, dim: 80 }, KvFormat::F16),
        (Heads { query: 2, kv: 2, dim: 128 }, KvFormat::Int8),
    ] {
        rows_of_attention::<B>(options, heads, format, &mut checker)?;
    }
    Ok(checker.report)
}

/// An op whose rows are compared: its name, its case and its output.
struct Watched<B: Backend> {
    op: &'static str,
    label: String,
    columns: usize,
    out: B::Buf,
}

fn rows_of_ops<B: Backend>(options: &B::Options, checker: &mut Checker) -> Result<(), Failure> {
    // More than 16 blocks, so that a device which deals them out to lanes has some left over.
    const COLUMNS: usize = 590;
    const OUTPUTS: usize = 41;
    let mut random = Random::new(4);
    let mut backend = open::<B>(options)?;
    let inputs = dense_matrix(Format::F32, COLUMNS, &random.floats(INPUTS * COLUMNS, 4.0));
    let table = prepare(&mut backend, &inputs)?;
    let norm = upload(&mut backend, COLUMNS, &random.floats(COLUMNS, 1.0))?;
    let gate_norm = upload(&mut backend, COLUMNS / 2, &random.floats(COLUMNS / 2, 1.0))?;
    let mut x = output(&mut backend, INPUTS, COLUMNS)?;
    let mut room = output(&mut backend, INPUTS, COLUMNS / 2)?;
    let mut watched = Vec::new();
    let ops =
        [("rms_norm", COLUMNS), ("gated", COLUMNS / 2), ("add_rms_norm", COLUMNS), ("gated_rms_norm", COLUMNS / 2)];
    for (op, columns) in ops {
        let out = output(&mut backend, INPUTS, columns)?;
        watched.push(Watched::<B> { op, label: format!("{columns} columns"), columns, out });
    }
    let mut weights = Vec::new();
    for format in DENSE.into_iter().chain(integer_formats()) {
        for &activation in activations(format) {
            let matrix = random_matrix(&mut random, format, OUTPUTS, COLUMNS).with_activation(activation);
            weights.push(prepare(&mut backend, &matrix.expect("a combination from the list"))?);
            let label = format!("{format} {OUTPUTS} x {COLUMNS}, {activation:?} activations");
            let out = output(&mut backend, INPUTS, OUTPUTS)?;
            watched.push(Watched { op: "linear", label, columns: OUTPUTS, out });
        }
    }
    let mut run = |tokens: &[u32]| -> Result<Vec<Vec<f32>>, Failure> {
        let rows: Vec<Row> = tokens.iter().map(|&token| row(token, 0, token)).collect();
        backend
            .step(&rows, |b| {
                let (ops, products) = watched.split_at_mut(ops.len());
                b.embed(&mut x, &table);
                b.rms_norm(&mut ops[0].out, &x, &norm, 1e-5);
                b.gated(&mut ops[1].out, &x, Gate::Silu);
                b.gated_rms_norm(&mut ops[3].out, &mut room, &x, Gate::Relu2, &gate_norm, 1e-5);
                products.iter_mut().zip(&weights).for_each(|(product, w)| b.linear(&mut product.out, &x, w));
                let (first, rest) = ops.split_at_mut(1);
                b.add_rms_norm(&mut rest[1].out, &mut x, &first[0].out, &norm, 1e-5);
            })
            .map_err(refused("step", format!("batch {}", tokens.len())))?;
        watched.iter().map(|watched| read(&mut backend, &watched.out, tokens.len(), watched.columns)).collect()
    };
    let mut alone = Vec::new();
    for token in 0..INPUTS as u32 {
        alone.push(run(&[token])?);
    }
    let mut batched = Vec::new();
    for batch in BATCHES {
        let tokens: Vec<u32> = (0..batch).map(|at| ((at + 7 * batch) % INPUTS) as u32).collect();
        batched.push((run(&tokens)?, tokens));
    }
    // What batches left in the device's memory is none of a row's business.
    for token in [0, INPUTS as u32 - 1] {
        batched.push((run(&[token])?, vec![token]));
    }
    for (results, tokens) in &batched {
        for (at, (watched, got)) in watched.iter().zip(results).enumerate() {
            let want: Vec<f32> = tokens.iter().flat_map(|&token| alone[token as usize][at].iter().copied()).collect();
            let label = format!("{}, batch {} against each row alone", watched.label, tokens.len());
            checker.identical(Case { op: watched.op, label: &label, columns: watched.columns }, got, &want)?;
        }
    }
    Ok(())
}

/// A feed-forward network: a product, the gate of its halves, and a product with that. A backend may take the first two
/// together where the halves are discarded, and only there.
fn rows_of_gates<B: Backend>(options: &B::Options, checker: &mut Checker) -> Result<(), Failure> {
    let mut random = Random::new(6);
    for format in DENSE.into_iter().chain(integer_formats()) {
        for (&activation, gate) in activations(format).iter().zip([Gate::Silu, Gate::Relu2]) {
            rows_of_gate::<B>(options, (format, activation, gate), &mut random, checker)?;
        }
    }
    Ok(())
}

/// A backend of its own: what is recorded for a number of rows is one model's step.
fn rows_of_gate<B: Backend>(
    options: &B::Options,
    (format, activation, gate): (Format, Activation, Gate),
    random: &mut Random,
    checker: &mut Checker,
) -> Result<(), Failure> {
    const COLUMNS: usize = 334;
    const INNER: usize = 96;
    const TOKENS: u32 = 8;
    let mut backend = open::<B>(options)?;
    let inputs = dense_matrix(Format::F32, COLUMNS, &random.floats(TOKENS as usize * COLUMNS, 4.0));
    let table = prepare(&mut backend, &inputs)?;
    let mut x = output(&mut backend, INPUTS, COLUMNS)?;
    let mut gate_up = output(&mut backend, INPUTS, 2 * INNER)?;
    let mut gated = output(&mut backend, INPUTS, INNER)?;
    let mut out = output(&mut backend, INPUTS, COLUMNS)?;
    let mut matrix = |rows, columns| {
        let matrix = random_matrix(random, format, rows, columns).with_activation(activation);
        prepare(&mut backend, &matrix.expect("a combination from the list"))
    };
    let (up, down) = (matrix(2 * INNER, COLUMNS)?, matrix(COLUMNS, INNER)?);
    let mut run = |tokens: &[u32], kept: bool| -> Result<[Vec<f32>; 3], Failure> {
        let rows: Vec<Row> = tokens.iter().map(|&token| row(token, 0, token)).collect();
        backend
            .step(&rows, |b| {
                b.embed(&mut x, &table);
                b.linear(&mut gate_up, &x, &up);
                b.gated(&mut gated, &gate_up, gate);
                b.linear(&mut out, &gated, &down);
                if !kept {
                    b.discard(&mut gate_up);
                }
            })
            .map_err(refused("step", format!("batch {}", tokens.len())))?;
        let mut read = |buf, columns| read(&mut backend, buf, tokens.len(), columns);
        let halves = if kept { read(&gate_up, 2 * INNER)? } else { Vec::new() };
        Ok([read(&gated, INNER)?, read(&out, COLUMNS)?, halves])
    };
    let alone = (0..TOKENS).map(|token| run(&[token], true)).collect::<Result<Vec<_>, _>>()?;
    let ops = [("gated", INNER), ("linear", COLUMNS), ("linear", 2 * INNER)];
    for (batch, kept) in [(1, false), (2, true), (9, true), (17, true), (17, false)] {
        let tokens: Vec<u32> = (0..batch).map(|at| (at + batch) % TOKENS).collect();
        let got = run(&tokens, kept)?;
        for (at, (op, columns)) in ops.into_iter().enumerate().take(if kept { 3 } else { 2 }) {
            let want: Vec<f32> = tokens.iter().flat_map(|&token| alone[token as usize][at].clone()).collect();
            let halves = if kept { "kept" } else { "discarded" };
            let label = format!(
                "{format}, {activation:?} activations, {gate:?}, batch {batch} with halves {halves} against each row alone"
            );
            checker.identical(Case { op, label: &label, columns }, &got[at], &want)?;
        }
    }
    Ok(())
}

/// Positions of a sequence: enough for attention to be split into parts.
const CONTEXT: usize = 270;
/// How far one of two sequences in a batch is ahead of the other; the rest is whole steps of [`TURNS`].
const AHEAD: usize = 30;
const TURNS: usize = 24;

fn rows_of_attention<B: Backend>(
    options: &B::Options,
    heads: Heads,
    format: KvFormat,
    checker: &mut Checker,
) -> Result<(), Failure> {
    let mut random = Random::new(5);
    let mut backend = open::<B>(options)?;
    let (fused, columns) = (heads.fused_width(), heads.query_width());
    let inputs = dense_matrix(Format::F32, fused, &random.floats(CONTEXT * fused, 2.0));
    let table = prepare(&mut backend, &inputs)?;
    let angles = upload(&mut backend, heads.dim, &rope_table(CONTEXT, heads.dim))?;
    let query_norm = upload(&mut backend, heads.dim, &random.floats(heads.dim, 1.0))?;
    let key_norm = upload(&mut backend, heads.dim, &random.floats(heads.dim, 1.0))?;
    let mut qkv = output(&mut backend, INPUTS, fused)?;
    let mut out = output(&mut backend, INPUTS, columns)?;
    let shape = KvShape { layers: 1, sequences: 4, context: CONTEXT, kv_heads: heads.kv, head_dim: heads.dim };
    let mut kv = backend.kv(shape, format).map_err(refused("kv", format!("{format:?} {shape:?}")))?;
    // Where the rotated vectors are discarded a backend need not write them; where they are not it must.
    let mut run = |rows: &[Row], kept: bool| -> Result<[Vec<f32>; 2], Failure> {
        backend
            .step(rows, |b| {
                b.embed(&mut qkv, &table);
                b.head_norm(&mut qkv, heads, &query_norm, &key_norm, 1e-6);
                b.rope_store_kv(&mut kv, 0, &mut qkv, heads, &angles);
                b.attend(&mut out, &qkv, &kv, 0, heads);
                if !kept {
                    b.discard(&mut qkv);
                }
            })
            .map_err(refused("attend", format!("batch {}", rows.len())))?;
        let rotated = if kept { read(&mut backend, &qkv, rows.len(), fused)? } else { Vec::new() };
        Ok([read(&mut backend, &out, rows.len(), columns)?, rotated])
    };
    let at = |sequence: u32, position: usize| row(position as u32, sequence, position as u32);
    let (mut alone, mut alone_rotated) = (Vec::with_capacity(CONTEXT * columns), Vec::with_capacity(CONTEXT * fused));
    for position in 0..CONTEXT {
        let [out, rotated] = run(&[at(0, position)], true)?;
        alone.extend(out);
        alone_rotated.extend(rotated);
    }
    let mut compare = |rows: &[Row], [got, rotated]: &[Vec<f32>; 2]| {
        let label = format!(
            "{format:?} cache, {heads:?}, batch {} from position {} against each row alone",
            rows.len(),
            rows[0].position
        );
        for (op, columns, alone, got) in [("attend", columns, &alone, got), ("rope", fused, &alone_rotated, rotated)] {
            let of = |row: &Row| alone[row.position as usize * columns..][..columns].iter().copied();
            let want: Vec<f32> = rows.iter().flat_map(of).collect();
            if !got.is_empty() {
                checker.identical(Case { op, label: &label, columns }, got, &want)?;
            }
        }
        Ok(())
    };
    // The same cells are written once more, by what may be another kernel.
    for position in (0..CONTEXT).step_by(9) {
        let rows = [at(0, position)];
        compare(&rows, &run(&rows, false)?)?;
    }
    // Sequence 1 in chunks; sequences 2 and 3 side by side, one of them ahead.
    let mut sizes = BATCHES.into_iter().cycle();
    let mut start = 0;
    while start < CONTEXT {
        let end = CONTEXT.min(start + sizes.next().unwrap_or(1));
        let rows: Vec<Row> = (start..end).map(|position| at(1, position)).collect();
        compare(&rows, &run(&rows, true)?)?;
        start = end;
    }
    let ahead: Vec<Row> = (0..AHEAD).map(|position| at(3, position)).collect();
    compare(&ahead, &run(&ahead, false)?)?;
    for start in (0..CONTEXT - AHEAD).step_by(TURNS) {
        let pair = |position: usize| [at(3, position + AHEAD), at(2, position)];
        let rows: Vec<Row> = (start..start + TURNS).flat_map(pair).collect();
        compare(&rows, &run(&rows, (start / TURNS).is_multiple_of(2))?)?;
    }
    Ok(())
}

fn row(token: u32, sequence: u32, position: u32) -> Row {
    Row { token, sequence, position, output: true }
}
