//! Norms, sums, heads, gates and the choice of rows, each within its own bound (`u` = 2^-24):
//!
//! - `add`, `add_bias`, `select_outputs`: one correctly rounded addition, or none: equal.
//! - `rms_norm`, `head_norm`, `add_rms_norm`: relative `(16 + 2 sqrt(n)) u`; a sum of `n` squares, a
//!   reciprocal root good to a few units in the last place, two products.
//! - `rope`: `4 u (|a cos| + |b sin|)`.
//! - `gated`: Silu relative `(16 + 4 |x|) u`, since an exponential is only as good as its argument, and
//!   1e-35 · |u| absolute, since `exp(-x)` overflows f32 below -88; relu² relative `4 u`.
//! - `gated_rms_norm`: what the device's own two ops give, within the bounds of both.

use super::check::{Case, Checker, Failure, ROUNDING, Report, refused};
use super::data::{Random, dense_matrix, plain_rows, rope_table};
use super::device::{UNTOUCHED, open, output, prepare, read, upload};
use crate::oracle::Oracle;
use crate::{Backend, Format, Gate, Heads, Row};

/// Norms, sums, heads, gates and the choice of rows.
pub fn float_ops<B: Backend>(options: &B::Options) -> Result<Report, Failure> {
    let mut checker = Checker::default();
    norms::<B>(options, &mut checker)?;
    sums::<B>(options, &mut checker)?;
    heads::<B>(options, &mut checker)?;
    gates::<B>(options, &mut checker)?;
    outputs::<B>(options, &mut checker)?;
    Ok(checker.report)
}

fn norm_bound(columns: usize, want: f32) -> f64 {
    (16.0 + 2.0 * (columns as f64).sqrt()) * ROUNDING * f64::from(want).abs()
}

/// Rows of one width: the input of a norm or a sum.
struct Rows {
    columns: usize,
    eps: f32,
    x: Vec<f32>,
    y: Vec<f32>,
    weight: Vec<f32>,
}

const NORM_ROWS: usize = 7;

impl Rows {
    fn all() -> Vec<Rows> {
        let mut random = Random::new(7);
        let sizes = [(1, 1e-5), (3, 1e-6), (8, 1e-5), (33, 1e-5), (100, 1e-6), (255, 1e-2), (640, 1e-5), (2561, 1e-6)];
        sizes.map(|(columns, eps)| Rows::new(&mut random, columns, eps)).into()
    }

    fn new(random: &mut Random, columns: usize, eps: f32) -> Rows {
        let mut row = |at: usize| -> Vec<f32> {
            let large = random.below(columns);
            let value = |column| match at {
                0 => random.signed(),
                1 => 0.0,
                2 => 1e-20 * random.signed(),
                3 => 1e-4 * random.signed(),
                4 => 1e15 * random.signed(),
                5 if column == large => -3e4,
                5 => random.signed(),
                _ => random.magnitude(1e-6, 1e4),
            };
            (0..columns).map(value).collect()
        };
        let x = (0..NORM_ROWS).flat_map(&mut row).collect();
        let y = (0..NORM_ROWS).flat_map(&mut row).collect();
        let weight = (0..columns).map(|_| 1.0 + random.signed()).collect();
        Rows { columns, eps, x, y, weight }
    }

    /// The input and one row more that no op may touch.
    fn with_spare(&self, values: &[f32]) -> Vec<f32> {
        values.iter().copied().chain(vec![UNTOUCHED; self.columns]).collect()
    }
}

/// Per case: `rms_norm(x)`, then `x + y`, `rms_norm(x + y)` and `x + bias`.
fn run_rows<B: Backend>(options: &B::Options, cases: &[Rows]) -> Result<Vec<[Vec<f32>; 5]>, Failure> {
    let mut backend = open::<B>(options)?;
    let mut work = Vec::new();
    for case in cases {
        let mut up = |values: &[f32]| upload(&mut backend, case.columns, values);
        let (x, y, weight) = (up(&case.x)?, up(&case.y)?, up(&case.weight)?);
        let (added, fused, biased) =
            (up(&case.with_spare(&case.x))?, up(&case.with_spare(&case.x))?, up(&case.with_spare(&case.x))?);
        let normed = output(&mut backend, NORM_ROWS + 1, case.columns)?;
        let fused_normed = output(&mut backend, NORM_ROWS + 1, case.columns)?;
        work.push((x, y, weight, [normed, added, fused, fused_normed, biased]));
    }
    let record = |b: &mut B| {
        for ((x, y, weight, [normed, added, fused, fused_normed, biased]), case) in work.iter_mut().zip(cases) {
            b.rms_norm(normed, x, weight, case.eps);
            b.add(added, y);
            b.add_rms_norm(fused_normed, fused, y, weight, case.eps);
            b.add_bias(biased, weight);
        }
    };
    backend.step(&plain_rows(NORM_ROWS), record).map_err(refused("step", "norms and sums"))?;
    let mut results = Vec::new();
    for ((_, _, _, outs), case) in work.iter().zip(cases) {
        let mut result: [Vec<f32>; 5] = Default::default();
        for (result, out) in result.iter_mut().zip(outs) {
            *result = read(&mut backend, out, NORM_ROWS + 1, case.columns)?;
        }
        results.push(result);
    }
    Ok(results)
}

fn norms<B: Backend>(options: &B::Options, checker: &mut Checker) -> Result<(), Failure> {
    let cases = Rows::all();
    let (got, want) = (run_rows::<B>(options, &cases)?, run_rows::<Oracle>(&(), &cases)?);
    for ((case, got), want) in cases.iter().zip(&got).zip(&want) {
        let label = format!("{} columns, eps {}", case.columns, case.eps);
        let of = |op| Case { op, label: &label, columns: case.columns };
        let relative = |want: &Vec<f32>| {
            let want = want.clone();
            move |at: usize| if at < NORM_ROWS * case.columns { norm_bound(case.columns, want[at]) } else { 0.0 }
        };
        checker.within(of("rms_norm"), &got[0], &want[0], relative(&want[0]))?;
        checker.equal(of("add"), &got[1], &want[1])?;
        checker.equal(of("add_rms_norm"), &got[2], &want[2])?;
        checker.within(of("add_rms_norm"), &got[3], &want[3], relative(&want[3]))?;
        checker.equal(of("add_bias"), &got[4], &want[4])?;
    }
    Ok(())
}

/// Sums of ordinary numbers at widths around vector sizes; norms have sums of extreme ones.
fn sums<B: Backend>(options: &B::Options, checker: &mut Checker) -> Result<(), Failure> {
    let mut random = Random::new(8);
    let mut backend = open::<B>(options)?;
    let batch = 65;
    let mut work = Vec::new();
    for columns in [1, 2, 5, 7, 9, 63, 64, 130] {
        let (x, y, bias) =
            (random.floats(batch * columns, 10.0), random.floats(batch * columns, 10.0), random.floats(columns, 10.0));
        let (to, from) = (upload(&mut backend, columns, &x)?, upload(&mut backend, columns, &y)?);
        work.push((columns, x, y, upload(&mut backend, columns, &bias)?, bias, to, from));
    }
    let record = |b: &mut B| {
        for (_, _, _, bias, _, to, from) in &mut work {
            b.add(to, from);
            b.add_bias(to, bias);
            b.add(to, from);
        }
    };
    backend.step(&plain_rows(batch), record).map_err(refused("step", "sums"))?;
    for (columns, x, y, _, bias, to, _) in &work {
        let sum = |(at, (x, y)): (usize, (&f32, &f32))| x + y + bias[at % columns] + y;
        let want: Vec<f32> = x.iter().zip(y).enumerate().map(sum).collect();
        let label = format!("{columns} columns, batch {batch}, twice with a bias between");
        let got = read(&mut backend, to, batch, *columns)?;
        checker.equal(Case { op: "add", label: &label, columns: *columns }, &got, &want)?;
    }
    Ok(())
}

const HEADS: [Heads; 5] = [
    Heads { query: 1, kv: 1, dim: 2 },
    Heads { query: 4, kv: 2, dim: 8 },
    Heads { query: 3, kv: 1, dim: 64 },
    Heads { query: 7, kv: 1, dim: 80 },
    Heads { query: 4, kv: 4, dim: 128 },
];
const POSITIONS: usize = 300;
/// First, second and last position, out of order.
const HEAD_ROWS: [u32; 5] = [1, 0, POSITIONS as u32 - 1, 17, 0];

/// For each of [`HEADS`]: `head_norm`, then `rope`, each of the same input.
fn run_heads<B: Backend>(options: &B::Options, inputs: &[Vec<f32>]) -> Result<Vec<[Vec<f32>; 2]>, Failure> {
    let mut random = Random::new(9);
    let mut backend = open::<B>(options)?;
    let mut work = Vec::new();
    for (heads, input) in HEADS.iter().zip(inputs) {
        let (dim, width) = (heads.dim, heads.fused_width());
        let query = upload(&mut backend, dim, &random.floats(dim, 2.0))?;
        let key = upload(&mut backend, dim, &random.floats(dim, 2.0))?;
        let table = upload(&mut backend, dim, &rope_table(POSITIONS, dim))?;
        let (normed, turned) = (upload(&mut backend, width, input)?, upload(&mut backend, width, input)?);
        work.push((query, key, table, normed, turned));
    }
    let row = |&position: &u32| Row { token: 0, sequence: 0, position, output: true };
    let rows: Vec<Row> = HEAD_ROWS.iter().map(row).collect();
    let record = |b: &mut B| {
        for ((query, key, table, normed, turned), &heads) in work.iter_mut().zip(&HEADS) {
            b.head_norm(normed, heads, query, key, 1e-6);
            b.rope(turned, heads, table);
        }
    };
    backend.step(&rows, record).map_err(refused("step", "heads"))?;
    let mut results = Vec::new();
    for ((_, _, _, normed, turned), heads) in work.iter().zip(&HEADS) {
        let mut result = |buf| read(&mut backend, buf, HEAD_ROWS.len() + 1, heads.fused_width());
        results.push([result(normed)?, result(turned)?]);
    }
    Ok(results)
}

fn heads<B: Backend>(options: &B::Options, checker: &mut Checker) -> Result<(), Failure> {
    let mut random = Random::new(10);
    let batch = HEAD_ROWS.len();
    let inputs = HEADS.map(|heads| {
        let mut input = random.floats((batch + 1) * heads.fused_width(), 3.0);
        // One row so small that eps decides.
        input[..heads.fused_width()].iter_mut().for_each(|x| *x *= 1e-4);
        input
    });
    let (got, want) = (run_heads::<B>(options, &inputs)?, run_heads::<Oracle>(&(), &inputs)?);
    for (((heads, input), got), want) in HEADS.iter().zip(&inputs).zip(&got).zip(&want) {
        let (dim, columns) = (heads.dim, heads.fused_width());
        let label = format!("{heads:?}, batch {batch}");
        // Value heads and the row past the last stay as they are.
        let changed = |at: usize| at / columns < batch && at % columns < heads.query_width() + heads.kv_width();
        let norm = |at: usize| if changed(at) { norm_bound(dim, want[0][at]) } else { 0.0 };
        checker.within(Case { op: "head_norm", label: &label, columns }, &got[0], &want[0], norm)?;
        let rope = |at: usize| {
            let other = if at % dim < dim / 2 { at + dim / 2 } else { at - dim / 2 };
            let sum = f64::from(input[at].abs() + input[other].abs());
            if changed(at) { 4.0 * ROUNDING * sum } else { 0.0 }
        };
        checker.within(Case { op: "rope", label: &label, columns }, &got[1], &want[1], rope)?;
    }
    Ok(())
}

/// What gates give, each `[batch + 1, columns]`, for [`GATES`] in turn.
#[derive(Default)]
struct Gated {
    gated: [Vec<f32>; 2],
    /// The norm of that, and both by one op.
    normed: [Vec<f32>; 2],
    fused: [Vec<f32>; 2],
}

const GATES: [Gate; 2] = [Gate::Silu, Gate::Relu2];
const GATE_ROWS: usize = 3;

fn run_gates<B: Backend>(options: &B::Options, inputs: &[(usize, Vec<f32>)]) -> Result<Vec<Gated>, Failure> {
    let mut random = Random::new(13);
    let mut backend = open::<B>(options)?;
    let mut work = Vec::new();
    for (columns, input) in inputs {
        let batch = input.len() / columns / 2;
        let gate_up = upload(&mut backend, 2 * columns, input)?;
        let weight: Vec<f32> = (0..*columns).map(|_| 1.0 + 0.5 * random.signed()).collect();
        let weight = upload(&mut backend, *columns, &weight)?;
        let mut out = || output(&mut backend, batch + 1, *columns);
        work.push((gate_up, weight, [[out()?, out()?, out()?, out()?], [out()?, out()?, out()?, out()?]]));
    }
    let record = |b: &mut B| {
        for (gate_up, weight, outs) in &mut work {
            for ([gated, normed, fused, room], gate) in outs.iter_mut().zip(GATES) {
                b.gated(gated, gate_up, gate);
                b.rms_norm(normed, gated, weight, 1e-5);
                b.gated_rms_norm(fused, room, gate_up, gate, weight, 1e-5);
            }
        }
    };
    backend.step(&plain_rows(GATE_ROWS), record).map_err(refused("gated", format!("batch {GATE_ROWS}")))?;
    let mut results = Vec::new();
    for ((columns, _), (_, _, outs)) in inputs.iter().zip(&work) {
        let mut result = Gated::default();
        for (at, [gated, normed, fused, _]) in outs.iter().enumerate() {
            let mut read = |buf| read(&mut backend, buf, GATE_ROWS + 1, *columns);
            (result.gated[at], result.normed[at], result.fused[at]) = (read(gated)?, read(normed)?, read(fused)?);
        }
        results.push(result);
    }
    Ok(results)
}

fn gates<B: Backend>(options: &B::Options, checker: &mut Checker) -> Result<(), Failure> {
    const EXTREMES: [f32; 14] =
        [0.0, -0.0, 88.0, -88.0, 89.0, -89.0, 104.0, -104.0, 1e4, -1e4, 300.0, -300.0, 1e-30, -1e-30];
    let mut random = Random::new(11);
    let inputs = [1, 7, 14, 33, 160].map(|columns| {
        let mut gate_up = Vec::new();
        for row in 0..GATE_ROWS {
            let gate = |column: usize| if row == 1 { EXTREMES[column % 14] } else { 12.0 * random.signed() };
            gate_up.extend((0..columns).map(gate));
            gate_up.extend(random.floats(columns, 2.0));
        }
        (columns, gate_up)
    });
    let (got, want) = (run_gates::<B>(options, &inputs)?, run_gates::<Oracle>(&(), &inputs)?);
    for (((columns, input), got), want) in inputs.iter().zip(&got).zip(&want) {
        let label = format!("{columns} columns, batch {GATE_ROWS}");
        let silu = |at: usize| {
            if at >= GATE_ROWS * columns {
                return 0.0;
            }
            let x = at / columns * 2 * columns + at % columns;
            let (x, up) = (f64::from(input[x]), f64::from(input[x + columns]));
            (16.0 + 4.0 * x.abs()) * ROUNDING * f64::from(want.gated[0][at]).abs() + 1e-35 * up.abs()
        };
        checker.within(
            Case { op: "gated", label: &format!("Silu, {label}"), columns: *columns },
            &got.gated[0],
            &want.gated[0],
            silu,
        )?;
        let relu2 = |at: usize| {
            if at < GATE_ROWS * columns { 4.0 * ROUNDING * f64::from(want.gated[1][at]).abs() } else { 0.0 }
        };
        checker.within(
            Case { op: "gated", label: &format!("Relu2, {label}"), columns: *columns },
            &got.gated[1],
            &want.gated[1],
            relu2,
        )?;
        for (gate, (fused, normed)) in GATES.into_iter().zip(got.fused.iter().zip(&got.normed)) {
            let label = format!("{gate:?}, {label}");
            // A gate of an argument within ±12, and what its error makes of the norm.
            let bound = |at: usize| norm_bound(*columns, normed[at]) + 128.0 * ROUNDING * f64::from(normed[at]).abs();
            checker.within(Case { op: "gated_rms_norm", label: &label, columns: *columns }, fused, normed, bound)?;
        }
    }
    Ok(())
}

/// Which rows of a step have an output; several choices of one size replay one recording. Fewest first:
/// the rows past a choice's last are then untouched until a larger choice comes.
const CHOICES: [[bool; 6]; 7] = [
    [false; 6],
    [false, false, false, false, false, true],
    [true, false, false, false, false, false],
    [true, false, true, false, true, false],
    [false, false, false, true, true, true],
    [false, true, true, false, false, true],
    [true; 6],
];

/// Rows are chosen, and later ops work on no others.
fn outputs<B: Backend>(options: &B::Options, checker: &mut Checker) -> Result<(), Failure> {
    let columns = 37;
    let mut random = Random::new(12);
    let data = random.floats(40 * columns, 5.0);
    let bias = random.floats(columns, 5.0);
    let mut backend = open::<B>(options)?;
    let table = prepare(&mut backend, &dense_matrix(Format::F32, columns, &data))?;
    let identity: Vec<f32> = (0..columns * columns).map(|at| f32::from(at % (columns + 1) == 0)).collect();
    let weight = prepare(&mut backend, &dense_matrix(Format::F32, columns, &identity))?;
    let bias_buf = upload(&mut backend, columns, &bias)?;
    let mut x = output(&mut backend, 7, columns)?;
    let (mut selected, mut after) = (output(&mut backend, 7, columns)?, output(&mut backend, 7, columns)?);
    for (at, choice) in CHOICES.iter().enumerate() {
        let token = |row: usize| (at * 6 + row) as u32 % 40;
        let row = |(row, &output): (usize, &bool)| Row { token: token(row), sequence: 0, position: row as u32, output };
        let rows: Vec<Row> = choice.iter().enumerate().map(row).collect();
        let kept: Vec<u32> = rows.iter().filter(|row| row.output).map(|row| row.token).collect();
        let label = format!("outputs {choice:?}");
        backend
            .step(&rows, |b| {
                b.embed(&mut x, &table);
                b.select_outputs(&mut selected, &x);
                b.linear(&mut after, &selected, &weight);
                b.add_bias(&mut after, &bias_buf);
            })
            .map_err(refused("select_outputs", label.clone()))?;
        let got = read(&mut backend, &selected, kept.len().max(1), columns)?;
        let want: Vec<f32> =
            kept.iter().flat_map(|&token| data[token as usize * columns..][..columns].iter().copied()).collect();
        checker.equal(Case { op: "select_outputs", label: &label, columns }, &got[..want.len()], &want)?;
        let got = read(&mut backend, &after, 7, columns)?;
        let sums = want.iter().enumerate().map(|(at, x)| x + bias[at % columns]);
        let want: Vec<f32> = sums.chain(vec![UNTOUCHED; (7 - kept.len()) * columns]).collect();
        let label = format!("ops after {label}");
        checker.equal(Case { op: "select_outputs", label: &label, columns }, &got, &want)?;
    }
    Ok(())
}
