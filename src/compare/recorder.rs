//! A backend around another one that looks at what each op makes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trine_backend::{Backend, DeviceInfo, Gate, Heads, HostMatrix, KvFormat, KvShape, Result, Row};

/// One op of a step and what it made.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The trait's method, fusions included.
    pub op: &'static str,
    /// Which of the op's results, where it has several.
    pub result: &'static str,
    /// Columns of the result.
    pub columns: usize,
    /// `[rows of the step, columns]`.
    pub values: Vec<f32>,
}

/// What a [`Recorder`] does besides running the ops.
#[derive(Clone, Debug, Default)]
pub enum Mode {
    /// Nothing.
    #[default]
    Off,
    /// Copies each op's result to the host.
    Record(Vec<Recorded>),
    /// Copies each op's result, then puts that of another run of the same step in its place, so that every op
    /// starts from the other run's values.
    Follow {
        /// The other run's results.
        leader: Arc<Vec<Recorded>>,
        /// This run's.
        own: Vec<Recorded>,
    },
}

/// The mode of a [`Recorder`], shared with whoever set it.
pub type Tap = Arc<Mutex<Mode>>;

/// Locks a tap, whatever became of the last one who did.
pub fn locked(tap: &Tap) -> MutexGuard<'_, Mode> {
    tap.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a [`Recorder`] is opened.
#[derive(Clone, Debug, Default)]
pub struct Options<O> {
    /// The inner backend's options.
    pub inner: O,
    /// The mode, which may be changed between steps.
    pub tap: Tap,
}

/// Backend `B`, with each op in a step of its own, whose results can be looked at.
///
/// Buffers have the width that [`Backend::alloc`] or [`Backend::upload`] gave them beside them, since a backend's
/// buffers do not tell it.
pub struct Recorder<B: Backend> {
    inner: B,
    tap: Tap,
    /// The rows that ops work on: the step's, or after `select_outputs` those with an output.
    rows: Vec<Row>,
    /// The step's first failure; ops after it are left out.
    failure: Result<()>,
}

/// A buffer of the inner backend.
pub struct Buf<T> {
    inner: T,
    columns: usize,
}

impl<B: Backend> Recorder<B> {
    /// Runs one op as a step.
    fn op(&mut self, op: impl FnOnce(&mut B)) {
        if self.failure.is_ok() {
            self.failure = self.inner.step_once(&self.rows, op);
        }
    }

    /// Looks at the result of the op that has just run.
    fn look(&mut self, op: &'static str, result: &'static str, buf: &mut Buf<B::Buf>) {
        if self.failure.is_ok() {
            self.failure = self.try_look(op, result, buf);
        }
    }

    fn try_look(&mut self, op: &'static str, result: &'static str, buf: &mut Buf<B::Buf>) -> Result<()> {
        let tap = Arc::clone(&self.tap);
        let mut mode = locked(&tap);
        if matches!(*mode, Mode::Off) || self.rows.is_empty() {
            return Ok(());
        }
        let mut values = vec![0.0; self.rows.len() * buf.columns];
        self.inner.read(&buf.inner, &mut values)?;
        let recorded = Recorded { op, result, columns: buf.columns, values };
        match &mut *mode {
            Mode::Off => {}
            Mode::Record(own) => own.push(recorded),
            Mode::Follow { leader, own } => {
                if let Some(other) = leader.get(own.len()).filter(|other| other.values.len() == recorded.values.len()) {
                    buf.inner = self.inner.upload(buf.columns, &other.values)?;
                }
                own.push(recorded);
            }
        }
        Ok(())
    }
}

impl<B: Backend> Backend for Recorder<B> {
    const NAME: &'static str = B::NAME;
    type Options = Options<B::Options>;
    type Buf = Buf<B::Buf>;
    type Weight = B::Weight;
    type Kv = B::Kv;

    fn open(options: &Self::Options) -> Result<Self> {
        let inner = B::open(&options.inner)?;
        Ok(Recorder { inner, tap: Arc::clone(&options.tap), rows: Vec::new(), failure: Ok(()) })
    }

    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn alloc(&mut self, rows: usize, columns: usize) -> Result<Self::Buf> {
        Ok(Buf { inner: self.inner.alloc(rows, columns)?, columns })
    }

    fn upload(&mut self, columns: usize, data: &[f32]) -> Result<Self::Buf> {
        Ok(Buf { inner: self.inner.upload(columns, data)?, columns })
    }

    fn prepare(&mut self, matrix: HostMatrix<'_>) -> Result<B::Weight> {
        self.inner.prepare(matrix)
    }

    fn kv(&mut self, shape: KvShape, format: KvFormat) -> Result<B::Kv> {
        self.inner.kv(shape, format)
    }

    fn step(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Result<()> {
        self.rows = rows.to_vec();
        self.failure = Ok(());
        record(self);
        std::mem::replace(&mut self.failure, Ok(()))
    }

    fn embed(&mut self, out: &mut Self::Buf, table: &B::Weight) {
        self.op(|b| b.embed(&mut out.inner, table));
        self.look("embed", "", out);
    }

    fn rms_norm(&mut self, out: &mut Self::Buf, x: &Self::Buf, weight: &Self::Buf, eps: f32) {
        self.op(|b| b.rms_norm(&mut out.inner, &x.inner, &weight.inner, eps));
        self.look("rms_norm", "", out);
    }

    fn linear(&mut self, out: &mut Self::Buf, x: &Self::Buf, weight: &B::Weight) {
        self.op(|b| b.linear(&mut out.inner, &x.inner, weight));
        self.look("linear", "", out);
    }

    fn add_bias(&mut self, x: &mut Self::Buf, bias: &Self::Buf) {
        self.op(|b| b.add_bias(&mut x.inner, &bias.inner));
        self.look("add_bias", "", x);
    }

    fn add(&mut self, x: &mut Self::Buf, y: &Self::Buf) {
        self.op(|b| b.add(&mut x.inner, &y.inner));
        self.look("add", "", x);
    }

    fn head_norm(&mut self, qkv: &mut Self::Buf, heads: Heads, query: &Self::Buf, key: &Self::Buf, eps: f32) {
        self.op(|b| b.head_norm(&mut qkv.inner, heads, &query.inner, &key.inner, eps));
        self.look("head_norm", "", qkv);
    }

    fn rope(&mut self, qkv: &mut Self::Buf, heads: Heads, table: &Self::Buf) {
        self.op(|b| b.rope(&mut qkv.inner, heads, &table.inner));
        self.look("rope", "", qkv);
    }

    fn store_kv(&mut self, kv: &mut B::Kv, layer: usize, qkv: &Self::Buf, heads: Heads) {
        // What it makes is seen in what attention makes of it.
        self.op(|b| b.store_kv(kv, layer, &qkv.inner, heads));
    }

    fn attend(&mut self, out: &mut Self::Buf, qkv: &Self::Buf, kv: &B::Kv, layer: usize, heads: Heads) {
        self.op(|b| b.attend(&mut out.inner, &qkv.inner, kv, layer, heads));
        self.look("attend", "", out);
    }

    fn gated(&mut self, out: &mut Self::Buf, gate_up: &Self::Buf, gate: Gate) {
        self.op(|b| b.gated(&mut out.inner, &gate_up.inner, gate));
        self.look("gated", "", out);
    }

    fn select_outputs(&mut self, out: &mut Self::Buf, x: &Self::Buf) {
        self.op(|b| b.select_outputs(&mut out.inner, &x.inner));
        self.rows.retain(|row| row.output);
        self.look("select_outputs", "", out);
    }

    fn read(&mut self, buf: &Self::Buf, out: &mut [f32]) -> Result<()> {
        self.inner.read(&buf.inner, out)
    }

    fn add_rms_norm(&mut self, out: &mut Self::Buf, x: &mut Self::Buf, y: &Self::Buf, weight: &Self::Buf, eps: f32) {
        self.op(|b| b.add_rms_norm(&mut out.inner, &mut x.inner, &y.inner, &weight.inner, eps));
        self.look("add_rms_norm", "sum", x);
        self.look("add_rms_norm", "norm", out);
    }

    fn rope_store_kv(&mut self, kv: &mut B::Kv, layer: usize, qkv: &mut Self::Buf, heads: Heads, table: &Self::Buf) {
        self.op(|b| b.rope_store_kv(kv, layer, &mut qkv.inner, heads, &table.inner));
        self.look("rope_store_kv", "", qkv);
    }
}
