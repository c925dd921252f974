//! A backend that does one thing wrong: the oracle underneath, with a fault on top.

use std::collections::HashMap;

use trine_backend::activation::{self, BLOCK};
use trine_backend::oracle::{Oracle, OracleBuf, OracleKv};
use trine_backend::{
    Activation, Backend, Codes, DeviceInfo, Error, Gate, Heads, HostMatrix, KvFormat, KvShape, Result, Row, Zero,
};

/// The one thing that is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is.
    #[default]
    None,
    /// Integer sums of a block, or of a ternary row, saturate at 16 bits.
    SaturatedSums,
    /// Halves are rounded away from zero.
    HalvesAwayFromZero,
    /// Groups take the scale of the next one.
    ShiftedScales,
    /// Zero points and minima are forgotten.
    NoZeroPoints,
    /// Columns past the last whole block are left out.
    NoTailColumns,
    /// Rows past the last four are left out.
    NoTailRows,
    /// Activations get one scale per token where 32 columns have their own.
    TokenScales,
    /// A NaN counts as zero.
    NanIsZero,
    /// Two columns of every eight change places in the device's layout.
    SwappedColumns,
    /// Products of more than one row are an ulp off.
    BatchDependent,
    /// Products of one row are an ulp off after a step of several.
    RemembersBatches,
    /// Products are added to what `out` held.
    Accumulates,
    /// Products go on to the row after the step's last.
    OneRowTooMany,
    /// RoPE turns columns 2i and 2i + 1.
    InterleavedRope,
    /// RoPE takes a row's index in the step for its position.
    RopeByRow,
    /// RoPE turns values as well.
    RopeOnValues,
    /// Attention sees the next position.
    SeesNext,
    /// Attention does not see its own position.
    MissesOwn,
    /// Attention goes over everything that the cache has, not up to the row's position.
    SeesAll,
    /// Query head h goes with key head h % kv.
    HeadsModulo,
    /// Attention looks at the sequence after its own.
    OtherSequence,
    /// All layers share a cache.
    OneLayer,
    /// INT8 caches lose their scales.
    NoKvScale,
    /// Half-precision caches keep floats.
    F16IsF32,
    /// `exp` overflows since the largest score is not subtracted.
    PlainSoftmax,
    /// A position keeps what was first stored there.
    StoresOnce,
    /// Keys are stored before RoPE.
    StoresBeforeRope,
    /// Norms leave out eps.
    NoEps,
    /// Means are taken over a width rounded up to 8.
    PaddedMean,
    /// Key heads are normalised with the queries' weight.
    KeyNormOfQueries,
    /// relu² goes through half precision.
    HalfRelu2,
    /// Silu computes `x · e^x / (1 + e^x)`, which is NaN for large x.
    OverflowingSilu,
    /// The first rows are kept, whichever were asked for.
    KeepsFirstRows,
    /// Ops after `select_outputs` go on with the whole step.
    ForgetsSelection,
    /// `add_rms_norm` leaves `x` as it was.
    FusionLosesSum,
    /// `gated_rms_norm` takes the norm of what was in its room before.
    FusionUsesOldGate,
    /// A step of one row does not write what its gate was given, as if that were discarded.
    LosesHalves,
    /// A step of one row does not write the vectors that attention was given, as if they were discarded.
    LosesRotated,
}

/// Ops with the ids of their operands.
type Recording = Vec<(&'static str, Vec<usize>)>;

/// An oracle with a fault; a step size must always be recorded with the same ops on the same buffers.
pub(crate) struct Faulty {
    oracle: Oracle,
    fault: Fault,
    /// The rows that ops work on.
    rows: Vec<Row>,
    /// Whether a step had several.
    had_batches: bool,
    /// Buffers that the last step has not written.
    lost: Vec<usize>,
    /// Buffers, weights and caches are numbered so that recordings can be told apart.
    next_id: usize,
    /// The step that is being recorded, and the first of each number of rows and outputs.
    recording: Recording,
    recorded: HashMap<(usize, usize), Recording>,
}

pub(crate) struct Buf {
    id: usize,
    rows: usize,
    columns: usize,
    inner: OracleBuf,
}

pub(crate) struct Weight {
    id: usize,
    matrix: HostMatrix<'static>,
}

pub(crate) struct Kv {
    id: usize,
    shape: KvShape,
    format: KvFormat,
    inner: OracleKv,
    stored: Vec<(usize, u32, u32)>,
}

impl Faulty {
    fn id(&mut self) -> usize {
        self.next_id += 1;
        self.next_id
    }

    fn log(&mut self, op: &'static str, operands: &[usize]) {
        self.recording.push((op, operands.to_vec()));
    }

    fn host(&mut self, buf: &Buf) -> Vec<f32> {
        let mut data = vec![0.0; buf.rows * buf.columns];
        self.oracle.read(&buf.inner, &mut data).expect("the oracle reads every buffer");
        data
    }

    fn put(&mut self, buf: &mut Buf, data: &[f32]) {
        buf.inner = self.oracle.upload(buf.columns, data).expect("as many values as there were");
    }

    /// Runs oracle ops on other rows than the step's.
    fn with_rows<T>(&mut self, rows: &[Row], ops: impl FnOnce(&mut Oracle) -> T) -> T {
        let mut result = None;
        self.oracle.step(rows, |oracle| result = Some(ops(oracle))).expect("rows");
        self.oracle.step(&self.rows, |_| {}).expect("rows");
        result.expect("the step runs its ops")
    }

    /// Changes the step's rows of a buffer on the host.
    fn change(&mut self, buf: &mut Buf, mut change: impl FnMut(usize, &mut [f32])) {
        let mut data = self.host(buf);
        let count = self.rows.len();
        data.chunks_mut(buf.columns).take(count).enumerate().for_each(|(at, row)| change(at, row));
        self.put(buf, &data);
    }
}

impl Backend for Faulty {
    const NAME: &'static str = "faulty";
    type Options = Fault;
    type Buf = Buf;
    type Weight = Weight;
    type Kv = Kv;

    fn open(fault: &Fault) -> Result<Self> {
        Ok(Faulty {
            oracle: Oracle::default(),
            fault: *fault,
            rows: Vec::new(),
            had_batches: false,
            lost: Vec::new(),
            next_id: 0,
            recording: Vec::new(),
            recorded: HashMap::new(),
        })
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo::default()
    }

    fn alloc(&mut self, rows: usize, columns: usize) -> Result<Buf> {
        Ok(Buf { id: self.id(), rows, columns, inner: self.oracle.alloc(rows, columns)? })
    }

    fn upload(&mut self, columns: usize, data: &[f32]) -> Result<Buf> {
        Ok(Buf { id: self.id(), rows: data.len() / columns, columns, inner: self.oracle.upload(columns, data)? })
    }

    fn prepare(&mut self, matrix: HostMatrix<'_>) -> Result<Weight> {
        Ok(Weight { id: self.id(), matrix: matrix.into_owned() })
    }

    fn kv(&mut self, shape: KvShape, format: KvFormat) -> Result<Kv> {
        let stored_as = match (self.fault, format) {
            (Fault::NoKvScale, KvFormat::Int8) | (Fault::F16IsF32, KvFormat::F16) => KvFormat::F32,
            _ => format,
        };
        Ok(Kv { id: self.id(), shape, format, inner: self.oracle.kv(shape, stored_as)?, stored: Vec::new() })
    }

    fn step(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Result<()> {
        self.rows = rows.to_vec();
        self.had_batches |= rows.len() > 1;
        self.recording.clear();
        self.lost.clear();
        self.oracle.step(rows, |_| {})?;
        record(self);
        let key = (rows.len(), rows.iter().filter(|row| row.output).count());
        let recording = self.recording.clone();
        if *self.recorded.entry(key).or_insert_with(|| recording.clone()) != recording {
            return Err(Error::Device(format!("a step of {key:?} rows and outputs is recorded in two ways")));
        }
        Ok(())
    }

    fn embed(&mut self, out: &mut Buf, table: &Weight) {
        self.log("embed", &[out.id, table.id]);
        let columns = table.matrix.columns();
        let mut weights = vec![0.0; columns];
        let (rows, fault) = (self.rows.clone(), self.fault);
        self.change(out, |at, out| {
            table.matrix.dequantize_row(rows[at].token as usize, &mut weights);
            if fault == Fault::SwappedColumns {
                swap_columns(&mut weights);
            }
            out.copy_from_slice(&weights);
        });
    }

    fn rms_norm(&mut self, out: &mut Buf, x: &Buf, weight: &Buf, eps: f32) {
        self.log("rms_norm", &[out.id, x.id, weight.id, eps.to_bits() as usize]);
        let eps = if self.fault == Fault::NoEps { 0.0 } else { eps };
        self.oracle.rms_norm(&mut out.inner, &x.inner, &weight.inner, eps);
        if self.fault == Fault::PaddedMean {
            let (width, padded) = (x.columns as f32, x.columns.next_multiple_of(8) as f32);
            self.change(out, |_, row| row.iter_mut().for_each(|x| *x *= (padded / width).sqrt()));
        }
    }

    fn linear(&mut self, out: &mut Buf, x: &Buf, weight: &Weight) {
        self.log("linear", &[out.id, x.id, weight.id]);
        let (input, fault, rows) = (self.host(x), self.fault, self.rows.len());
        let matrix = &weight.matrix;
        let mut results = self.host(out);
        let extra = usize::from(fault == Fault::OneRowTooMany && rows < out.rows);
        for (at, results) in results.chunks_mut(out.columns).take(rows + extra).enumerate() {
            let x = &input[at.min(x.rows - 1) * x.columns..][..x.columns];
            let products = linear(matrix, x, fault);
            let kept = if fault == Fault::NoTailRows { products.len() / 4 * 4 } else { products.len() };
            for (out, product) in results[..kept].iter_mut().zip(products) {
                *out = match fault {
                    Fault::Accumulates => *out + product,
                    Fault::RemembersBatches if rows == 1 && self.had_batches => f32::from_bits(product.to_bits() ^ 1),
                    Fault::BatchDependent if rows > 1 => f32::from_bits(product.to_bits() ^ 1),
                    _ => product,
                };
            }
        }
        self.put(out, &results);
    }

    fn add_bias(&mut self, x: &mut Buf, bias: &Buf) {
        self.log("add_bias", &[x.id, bias.id]);
        self.oracle.add_bias(&mut x.inner, &bias.inner);
    }

    fn add(&mut self, x: &mut Buf, y: &Buf) {
        self.log("add", &[x.id, y.id]);
        self.oracle.add(&mut x.inner, &y.inner);
    }

    fn head_norm(&mut self, qkv: &mut Buf, heads: Heads, query: &Buf, key: &Buf, eps: f32) {
        self.log("head_norm", &[qkv.id, query.id, key.id]);
        let eps = if self.fault == Fault::NoEps { 0.0 } else { eps };
        let key = if self.fault == Fault::KeyNormOfQueries { query } else { key };
        self.oracle.head_norm(&mut qkv.inner, heads, &query.inner, &key.inner, eps);
    }

    fn rope(&mut self, qkv: &mut Buf, heads: Heads, table: &Buf) {
        self.log("rope", &[qkv.id, table.id]);
        match self.fault {
            Fault::InterleavedRope => {
                let rotated = heads.query_width() + heads.kv_width();
                let gather = |at: usize, i: usize| if i < at / 2 { 2 * i } else { 2 * (i - at / 2) + 1 };
                let dim = heads.dim;
                self.change(qkv, |_, row| {
                    for head in row[..rotated].chunks_mut(dim) {
                        let before = head.to_vec();
                        (0..dim).for_each(|i| head[i] = before[gather(dim, i)]);
                    }
                });
                self.oracle.rope(&mut qkv.inner, heads, &table.inner);
                self.change(qkv, |_, row| {
                    for head in row[..rotated].chunks_mut(dim) {
                        let turned = head.to_vec();
                        (0..dim).for_each(|i| head[gather(dim, i)] = turned[i]);
                    }
                });
            }
            Fault::RopeByRow => {
                let mut rows = self.rows.clone();
                rows.iter_mut().enumerate().for_each(|(at, row)| row.position = at as u32);
                self.with_rows(&rows, |oracle| oracle.rope(&mut qkv.inner, heads, &table.inner));
            }
            Fault::RopeOnValues => {
                let all = Heads { query: heads.query + heads.kv, ..heads };
                self.oracle.rope(&mut qkv.inner, all, &table.inner);
            }
            _ => self.oracle.rope(&mut qkv.inner, heads, &table.inner),
        }
    }

    fn store_kv(&mut self, kv: &mut Kv, layer: usize, qkv: &Buf, heads: Heads) {
        self.log("store_kv", &[kv.id, layer, qkv.id]);
        let layer = if self.fault == Fault::OneLayer { 0 } else { layer };
        let mut input = Buf { id: 0, rows: qkv.rows, columns: qkv.columns, inner: qkv.inner.clone() };
        if self.fault == Fault::NoKvScale && kv.format == KvFormat::Int8 {
            self.change(&mut input, |_, row| {
                for head in row[heads.query_width()..].chunks_mut(heads.dim) {
                    let inverse = activation::span_scale(head).1;
                    head.iter_mut().for_each(|x| *x = f32::from(activation::code(*x, inverse)));
                }
            });
        }
        // Row by row so that single rows can be left out.
        let data = self.host(&input);
        for (at, row) in self.rows.clone().into_iter().enumerate() {
            let place = (layer, row.sequence, row.position);
            if self.fault == Fault::StoresOnce && kv.stored.contains(&place) {
                continue;
            }
            kv.stored.push(place);
            let one = self.oracle.upload(qkv.columns, &data[at * qkv.columns..][..qkv.columns]).expect("a row");
            self.with_rows(&[row], |oracle| oracle.store_kv(&mut kv.inner, layer, &one, heads));
        }
    }

    fn attend(&mut self, out: &mut Buf, qkv: &Buf, kv: &Kv, layer: usize, heads: Heads) {
        self.log("attend", &[out.id, qkv.id, kv.id, layer]);
        if self.fault == Fault::LosesRotated && self.rows.len() == 1 {
            self.lost.push(qkv.id);
        }
        let layer = if self.fault == Fault::OneLayer { 0 } else { layer };
        let mut rows = self.rows.clone();
        for row in &mut rows {
            let stored = |stored: &&(usize, u32, u32)| stored.0 == layer && stored.1 == row.sequence;
            match self.fault {
                Fault::SeesNext => row.position = (row.position + 1).min(kv.shape.context as u32 - 1),
                Fault::MissesOwn => row.position = row.position.saturating_sub(1),
                Fault::SeesAll => {
                    let last = kv.stored.iter().filter(stored).map(|stored| stored.2).max();
                    row.position = last.unwrap_or(row.position);
                }
                Fault::OtherSequence => row.sequence = (row.sequence + 1) % kv.shape.sequences as u32,
                _ => {}
            }
        }
        if self.fault == Fault::HeadsModulo {
            return self.attend_modulo(out, qkv, kv, layer, heads);
        }
        self.with_rows(&rows, |oracle| oracle.attend(&mut out.inner, &qkv.inner, &kv.inner, layer, heads));
        if self.fault == Fault::PlainSoftmax {
            // What infinity divided by infinity gives, for rows whose own score is beyond exp's range.
            let input = self.host(qkv);
            self.change(out, |at, out| {
                let row = &input[at * qkv.columns..][..qkv.columns];
                for (head, out) in out.chunks_mut(heads.dim).enumerate() {
                    let key = &row[heads.query_width() + head / heads.group() * heads.dim..][..heads.dim];
                    let score: f32 = row[head * heads.dim..][..heads.dim].iter().zip(key).map(|(q, k)| q * k).sum();
                    if score / (heads.dim as f32).sqrt() > 88.7 {
                        out.fill(f32::NAN);
                    }
                }
            });
        }
    }

    fn gated(&mut self, out: &mut Buf, gate_up: &Buf, gate: Gate) {
        self.log("gated", &[out.id, gate_up.id]);
        if self.fault == Fault::LosesHalves && self.rows.len() == 1 {
            self.lost.push(gate_up.id);
        }
        self.oracle.gated(&mut out.inner, &gate_up.inner, gate);
        let input = self.host(gate_up);
        let (fault, width) = (self.fault, out.columns);
        self.change(out, |at, out| {
            let (g, u) = input[at * 2 * width..(at + 1) * 2 * width].split_at(width);
            for (i, out) in out.iter_mut().enumerate() {
                match (fault, gate) {
                    (Fault::HalfRelu2, Gate::Relu2) => {
                        *out = half::f16::from_f32(g[i].max(0.0).powi(2)).to_f32() * u[i];
                    }
                    (Fault::OverflowingSilu, Gate::Silu) => *out = g[i] * g[i].exp() / (1.0 + g[i].exp()) * u[i],
                    _ => {}
                }
            }
        });
    }

    fn select_outputs(&mut self, out: &mut Buf, x: &Buf) {
        self.log("select_outputs", &[out.id, x.id]);
        let mut rows = self.rows.clone();
        if self.fault == Fault::KeepsFirstRows {
            let kept = rows.iter().filter(|row| row.output).count();
            rows.iter_mut().enumerate().for_each(|(at, row)| row.output = at < kept);
        }
        self.oracle.step(&rows, |oracle| oracle.select_outputs(&mut out.inner, &x.inner)).expect("rows");
        if self.fault == Fault::ForgetsSelection {
            self.oracle.step(&rows, |_| {}).expect("rows");
        } else {
            self.rows.retain(|row| row.output);
        }
    }

    fn read(&mut self, buf: &Buf, out: &mut [f32]) -> Result<()> {
        self.oracle.read(&buf.inner, out)?;
        if self.lost.contains(&buf.id) {
            out.fill(0.5);
        }
        Ok(())
    }

    fn add_rms_norm(&mut self, out: &mut Buf, x: &mut Buf, y: &Buf, weight: &Buf, eps: f32) {
        let before = x.inner.clone();
        self.add(x, y);
        self.rms_norm(out, x, weight, eps);
        if self.fault == Fault::FusionLosesSum {
            x.inner = before;
        }
    }

    fn gated_rms_norm(&mut self, out: &mut Buf, gated: &mut Buf, gate_up: &Buf, gate: Gate, weight: &Buf, eps: f32) {
        if self.fault == Fault::FusionUsesOldGate {
            self.rms_norm(out, gated, weight, eps);
            self.gated(gated, gate_up, gate);
        } else {
            self.gated(gated, gate_up, gate);
            self.rms_norm(out, gated, weight, eps);
        }
    }

    fn rope_store_kv(&mut self, kv: &mut Kv, layer: usize, qkv: &mut Buf, heads: Heads, table: &Buf) {
        if self.fault == Fault::StoresBeforeRope {
            self.store_kv(kv, layer, qkv, heads);
            self.rope(qkv, heads, table);
        } else {
            self.rope(qkv, heads, table);
            self.store_kv(kv, layer, qkv, heads);
        }
    }
}

impl Faulty {
    /// Attention with query head h on key head h % kv: heads are put where the oracle takes them for those.
    fn attend_modulo(&mut self, out: &mut Buf, qkv: &Buf, kv: &Kv, layer: usize, heads: Heads) {
        let place = |head: usize| (head % heads.kv) * heads.group() + head / heads.kv;
        let mut moved = Buf { id: 0, rows: qkv.rows, columns: qkv.columns, inner: qkv.inner.clone() };
        let spread = |row: &mut [f32], from: &dyn Fn(usize) -> usize, to: &dyn Fn(usize) -> usize| {
            let before = row.to_vec();
            for head in 0..heads.query {
                row[to(head) * heads.dim..][..heads.dim]
                    .copy_from_slice(&before[from(head) * heads.dim..][..heads.dim]);
            }
        };
        self.change(&mut moved, |_, row| spread(row, &|head| head, &place));
        self.oracle.attend(&mut out.inner, &moved.inner, &kv.inner, layer, heads);
        self.change(out, |_, row| spread(row, &place, &|head| head));
    }
}

/// The layout fault: columns 1 and 2 of every whole eight change places.
fn swap_columns<T>(values: &mut [T]) {
    values.chunks_exact_mut(8).for_each(|eight| eight.swap(1, 2));
}

/// `W · x` as the integer contract has it, but for the fault.
fn linear(matrix: &HostMatrix<'_>, x: &[f32], fault: Fault) -> Vec<f32> {
    let columns = x.len();
    let (codes, scales) = quantize(x, matrix.activation(), fault);
    let used = if fault == Fault::NoTailColumns { columns / BLOCK * BLOCK } else { columns };
    let product = |row: usize| -> f32 {
        if matrix.activation() == Activation::Float {
            let mut weights = vec![0.0; columns];
            matrix.dequantize_row(row, &mut weights);
            if fault == Fault::SwappedColumns {
                swap_columns(&mut weights);
            }
            let products = weights.iter().zip(x).take(used).map(|(&w, &x)| f64::from(w) * f64::from(x));
            return products.sum::<f64>() as f32;
        }
        let WeightRow { mut weights, scale, minimum } = row_of(matrix, row, fault);
        if fault == Fault::SwappedColumns {
            swap_columns(&mut weights);
        }
        let clamp = |sum: i64| if fault == Fault::SaturatedSums { sum.clamp(-32768, 32767) } else { sum };
        let span = if matches!(matrix.codes(), Codes::Ternary(_)) { columns } else { BLOCK };
        let mut total = 0.0f64;
        for start in (0..used).step_by(span) {
            let span = start..used.min(start + span);
            let products = span.clone().map(|at| i64::from(weights[at]) * i64::from(codes[at]));
            let sum = products.fold(0, |sum, product| clamp(sum + product));
            let activations: i64 = span.map(|at| i64::from(codes[at])).sum();
            let (s, m) = (scale(start), minimum(start));
            total += (s * sum as f64 + m * activations as f64) * f64::from(scales[start / BLOCK]);
        }
        total as f32
    };
    (0..matrix.rows()).map(product).collect()
}

/// One row: integer weights, and the scale and minimum of the group that a column is in.
struct WeightRow<'a> {
    weights: Vec<i32>,
    scale: Box<dyn Fn(usize) -> f64 + 'a>,
    minimum: Box<dyn Fn(usize) -> f64 + 'a>,
}

fn row_of<'a>(matrix: &'a HostMatrix<'_>, row: usize, fault: Fault) -> WeightRow<'a> {
    let columns = matrix.columns();
    let shift = usize::from(fault == Fault::ShiftedScales);
    match matrix.codes() {
        Codes::Ternary(ternary) => {
            let mut weights = vec![0i8; columns];
            ternary.row(row, &mut weights);
            let scale = f64::from(ternary.scales()[row]);
            let weights = weights.into_iter().map(i32::from).collect();
            WeightRow { weights, scale: Box::new(move |_| scale), minimum: Box::new(|_| 0.0) }
        }
        Codes::Int4(int4) => {
            let (width, groups) = (int4.group().columns(columns), int4.group().count(columns));
            let group = move |column: usize| row * groups + column / width;
            let mut raw = vec![0u8; columns];
            int4.row(row, &mut raw);
            let point = |column: usize| match int4.zero() {
                Zero::Symmetric => 8,
                Zero::Point(points) if fault != Fault::NoZeroPoints => i32::from(points[group(column)]),
                _ => 0,
            };
            let weights = raw.iter().enumerate().map(|(at, &u)| i32::from(u) - point(at)).collect();
            let scale = move |column| int4.scales()[(group(column) + shift) % int4.scales().len()].to_f64();
            let minimum = move |column| match int4.zero() {
                Zero::Min(minima) if fault != Fault::NoZeroPoints => minima[group(column)].to_f64(),
                _ => 0.0,
            };
            WeightRow { weights, scale: Box::new(scale), minimum: Box::new(minimum) }
        }
        Codes::Int8(int8) => {
            let (width, groups) = (int8.group().columns(columns), int8.group().count(columns));
            let weights = int8.codes()[row * columns..][..columns].iter().map(|&q| i32::from(q)).collect();
            let at = move |column: usize| (row * groups + column / width + shift) % int8.scales().len();
            WeightRow { weights, scale: Box::new(move |c| int8.scales()[at(c)].to_f64()), minimum: Box::new(|_| 0.0) }
        }
        Codes::F32(_) | Codes::F16(_) | Codes::Bf16(_) => unreachable!("dense matrices have float activations"),
    }
}

fn quantize(x: &[f32], activation: Activation, fault: Fault) -> (Vec<i8>, Vec<f32>) {
    let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; x.len().div_ceil(BLOCK)]);
    let mut x = x.to_vec();
    if fault == Fault::NanIsZero {
        x.iter_mut().filter(|x| !x.is_finite()).for_each(|x| *x = 0.0);
    }
    match (activation, fault) {
        (Activation::Float, _) => {}
        (_, Fault::TokenScales) => activation::quantize(&x, Activation::Token, &mut codes, &mut scales),
        (_, Fault::HalvesAwayFromZero) => {
            activation::quantize(&x, activation, &mut codes, &mut scales);
            let span = if activation == Activation::Token { x.len() } else { BLOCK };
            for (x, codes) in x.chunks(span).zip(codes.chunks_mut(span)) {
                let inverse = activation::span_scale(x).1;
                codes.iter_mut().zip(x).for_each(|(code, x)| *code = (x * inverse).round() as i8);
            }
        }
        _ => activation::quantize(&x, activation, &mut codes, &mut scales),
    }
    (codes, scales)
}
