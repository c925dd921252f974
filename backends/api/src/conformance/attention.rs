//! The KV cache and attention against the oracle.
//!
//! The bound, for a head of `d` columns over `n` positions: a score `q · k / sqrt(d)` is off by at most
//! `δ = (4 + 2 sqrt(d)) u Σ|q k| / sqrt(d)` (see `scaled` for the root), which changes a softmax weight by
//! the factor `1 ± 2δ`; exponentials of 2 or 3 units in the last place and the sums over `n` positions
//! add `(16 + 2 sqrt(n)) u`. Weights sum to 1, so all of it is relative to the largest |v| of the head.
//! Cached values themselves follow an exact rule and get no allowance: RoPE turns them by quarters here,
//! which is exact, so that no rounding can tip a cached code.

use super::check::{Case, Checker, Failure, ROUNDING, Report, refused};
use super::data::{Random, dense_matrix};
use super::device::{UNTOUCHED, open, output, prepare, read, upload};
use crate::oracle::Oracle;
use crate::{Backend, Format, Heads, HostMatrix, KvFormat, KvShape, Row};

/// One cache with its sequences.
struct Scenario {
    heads: Heads,
    format: KvFormat,
    /// Positions of each sequence.
    lengths: Vec<usize>,
    context: usize,
    /// The fused q|k|v rows: a token names one.
    table: Vec<f32>,
    /// The steps, in order.
    steps: Vec<Vec<Row>>,
}

/// Rows of the largest step.
const MOST_ROWS: usize = 64;
const LAYERS: usize = 2;

/// Attention over caches of every format, with grouped heads, long contexts, several sequences, two
/// layers, large scores, and RoPE together with the store.
pub fn attention<B: Backend>(options: &B::Options) -> Result<Report, Failure> {
    let mut checker = Checker::default();
    let heads = |query, kv, dim| Heads { query, kv, dim };
    let all: &[KvFormat] = &[KvFormat::F32, KvFormat::F16, KvFormat::Int8];
    // The largest |q| and |k|: such that scores reach ±1e3 and more, and ordinary ones.
    for (heads, lengths, largest, formats) in [
        (heads(4, 2, 64), vec![40, 70], 24.0, all),
        (heads(8, 2, 8), vec![66, 32, 2, 5], 1.5, all),
        (heads(3, 3, 64), vec![300, 33], 1.5, &[KvFormat::F32]),
        (heads(3, 1, 128), vec![257, 1, 31], 1.5, &[KvFormat::F16]),
        (heads(7, 1, 80), vec![256, 9], 1.5, &[KvFormat::Int8]),
        (heads(1, 1, 2), vec![255, 3], 1.5, &[KvFormat::F16]),
    ] {
        for &format in formats {
            let scenario = Scenario::new(heads, format, &lengths, largest);
            let want = scenario.run::<Oracle>(&())?;
            let got = scenario.run::<B>(options)?;
            scenario.compare(&mut checker, &got, &want)?;
        }
    }
    Ok(checker.report)
}

impl Scenario {
    fn new(heads: Heads, format: KvFormat, lengths: &[usize], largest: f32) -> Self {
        let mut random = Random::new(6);
        let (total, fused) = (lengths.iter().sum::<usize>(), heads.fused_width());
        let values = heads.query_width() + heads.kv_width();
        let mut table = random.floats(total * fused, largest);
        for (at, x) in table.iter_mut().enumerate().filter(|(at, _)| at % fused >= values) {
            // Values differ in magnitude from head to head, so that a shared scale would show.
            *x *= [1.0, 0.01, 30.0][(at % fused - values) / heads.dim % 3] / largest;
        }
        let steps = schedule(lengths);
        let context = lengths.iter().max().map_or(1, |longest| longest + 3);
        Scenario { heads, format, lengths: lengths.to_vec(), context, table, steps }
    }

    /// Attention's output of each step and layer, `[rows + 1, query width]` (the last row untouched).
    fn run<B: Backend>(&self, options: &B::Options) -> Result<Vec<[Vec<f32>; LAYERS]>, Failure> {
        let mut backend = open::<B>(options)?;
        let Scenario { heads, format, context, .. } = *self;
        let shape =
            KvShape { layers: LAYERS, sequences: self.lengths.len(), context, kv_heads: heads.kv, head_dim: heads.dim };
        let mut kv = backend.kv(shape, format).map_err(refused("kv", format!("{format:?} {shape:?}")))?;
        let table = prepare(&mut backend, &self.host_table())?;
        let angles = upload(&mut backend, heads.dim, &quarter_turns(context, heads.dim))?;
        let mut qkv = output(&mut backend, MOST_ROWS + 1, heads.fused_width())?;
        let mut outs = Vec::new();
        for _ in 0..LAYERS {
            outs.push(output(&mut backend, MOST_ROWS + 1, heads.query_width())?);
        }
        let mut results = Vec::new();
        for rows in &self.steps {
            // Layer 0 holds the rows as they are, layer 1 with RoPE; neither may see the other's.
            backend
                .step(rows, |b| {
                    b.embed(&mut qkv, &table);
                    b.store_kv(&mut kv, 0, &qkv, heads);
                    b.attend(&mut outs[0], &qkv, &kv, 0, heads);
                    b.rope_store_kv(&mut kv, 1, &mut qkv, heads, &angles);
                    b.attend(&mut outs[1], &qkv, &kv, 1, heads);
                })
                .map_err(refused("attend", format!("{format:?} cache, {heads:?}, batch {}", rows.len())))?;
            let mut layer = |at: usize| read(&mut backend, &outs[at], rows.len(), heads.query_width());
            results.push([layer(0)?, layer(1)?]);
        }
        let mut past = Vec::new();
        for out in &outs {
            past.push(
                read(&mut backend, out, MOST_ROWS + 1, heads.query_width())?.split_off(MOST_ROWS * heads.query_width()),
            );
        }
        let [first, second] = &past[..] else { unreachable!("an output per layer") };
        results.push([first.clone(), second.clone()]);
        Ok(results)
    }

    fn host_table(&self) -> HostMatrix<'static> {
        dense_matrix(Format::F32, self.heads.fused_width(), &self.table)
    }

    fn compare(
        &self,
        checker: &mut Checker,
        got: &[[Vec<f32>; LAYERS]],
        want: &[[Vec<f32>; LAYERS]],
    ) -> Result<(), Failure> {
        let columns = self.heads.query_width();
        for ((rows, got), want) in self.steps.iter().zip(got).zip(want) {
            let bounds: Vec<f64> = rows.iter().flat_map(|&row| self.bounds(row)).collect();
            for layer in 0..LAYERS {
                let label = format!(
                    "{:?} cache, {:?}, {}, batch {} from sequence {} position {}",
                    self.format,
                    self.heads,
                    ["keys as they are", "keys with RoPE"][layer],
                    rows.len(),
                    rows[0].sequence,
                    rows[0].position
                );
                let case = Case { op: "attend", label: &label, columns };
                checker.within(case, &got[layer], &want[layer], |at| bounds[at / self.heads.dim])?;
            }
        }
        for past in got.last().into_iter().flatten() {
            let case = Case { op: "attend", label: "the row past the last", columns };
            checker.equal(case, past, &vec![UNTOUCHED; columns])?;
        }
        Ok(())
    }

    /// The largest difference that is allowed in each query head of a row.
    fn bounds(&self, row: Row) -> Vec<f64> {
        let Heads { query, dim, .. } = self.heads;
        // Rows of one sequence have consecutive tokens.
        let first = (row.token - row.position) as usize;
        let fused = self.heads.fused_width();
        let seen: Vec<&[f32]> = self.table.chunks(fused).skip(first).take(row.position as usize + 1).collect();
        let root = |n: usize| (n as f64).sqrt();
        (0..query)
            .map(|head| {
                let q = &self.table[row.token as usize * fused + head * dim..][..dim];
                let key = self.heads.query_width() + head / self.heads.group() * dim;
                // RoPE mixes two columns: their magnitudes are at most the vectors' norms, which it keeps.
                let norm = |x: &[f32]| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                let keys = seen.iter().map(|row| norm(&row[key..][..dim])).fold(0.0, f64::max);
                let value = key + self.heads.kv_width();
                let values = seen.iter().flat_map(|row| &row[value..][..dim]).fold(0.0f32, |most, v| most.max(v.abs()));
                let score = (4.0 + 2.0 * root(dim)) * norm(q) * keys / root(dim);
                (2.0 * score + 16.0 + 2.0 * root(seen.len())) * ROUNDING * f64::from(values)
            })
            .collect()
    }
}

/// A RoPE table whose angles are multiples of a right angle.
fn quarter_turns(positions: usize, dim: usize) -> Vec<f32> {
    let quarter = |position: usize, i: usize| position * (i + 1) % 4;
    let row = |position| {
        let cosines = (0..dim / 2).map(move |i| [1.0, 0.0, -1.0, 0.0][quarter(position, i)]);
        cosines.chain((0..dim / 2).map(move |i| [0.0, 1.0, 0.0, -1.0][quarter(position, i)]))
    };
    (0..positions).flat_map(row).collect()
}

/// Sequence 0 in chunks up to its last 3 positions, the others in one mixed chunk at a time, then those
/// last positions one by one; at last a step back: position 1 of sequence 0 once more.
fn schedule(lengths: &[usize]) -> Vec<Vec<Row>> {
    let starts: Vec<usize> = lengths.iter().scan(0, |at, length| Some(std::mem::replace(at, *at + length))).collect();
    let row = |sequence: usize, position: usize| Row {
        token: (starts[sequence] + position) as u32,
        sequence: sequence as u32,
        position: position as u32,
        output: true,
    };
    let chunked = lengths[0].saturating_sub(3);
    let first: Vec<Row> = (0..chunked).map(|position| row(0, position)).collect();
    let longest = lengths[1..].iter().copied().max().unwrap_or(0);
    let others = (0..longest).flat_map(|position| {
        (1..lengths.len()).filter(move |&s| position < lengths[s]).map(move |sequence| (sequence, position))
    });
    let mixed: Vec<Row> = others.map(|(sequence, position)| row(sequence, position)).collect();
    let mut steps: Vec<Vec<Row>> = first.chunks(MOST_ROWS).map(<[Row]>::to_vec).collect();
    steps.extend(mixed.chunks(MOST_ROWS - 1).map(<[Row]>::to_vec));
    steps.extend((chunked..lengths[0]).map(|position| vec![row(0, position)]));
    steps.push(vec![row(0, 1)]);
    steps
}
