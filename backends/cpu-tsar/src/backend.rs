//! The backend: buffers, the step's rows, and which code does which op.

use trine_backend::{
    Backend, Choice, DeviceInfo, Error, Format, Gate, Heads, HostMatrix, KvFormat, KvShape, Result, Row,
};

use crate::activations;
use crate::attention::{self, attend};
use crate::isa::{Isa, Options};
use crate::kernels::Selection;
use crate::kv::Kv;
use crate::linear::linear;
use crate::memory::Buf;
use crate::ops::{self, elementwise, gate, norm, rope};
use crate::pools::Pools;
use crate::topology;
use crate::weights::Weight;

/// Trine's CPU backend. Ops run when they are called, on the thread that calls and on its pool.
#[derive(Debug)]
pub struct CpuTsar {
    pools: Pools,
    isa: Isa,
    selection: Selection,
    /// The rows that ops work on: the step's, or after `select_outputs` those with an output.
    rows: Vec<Row>,
    activations: activations::Scratch,
    attention: attention::Scratch,
}

impl Backend for CpuTsar {
    const NAME: &'static str = "cpu-tsar";
    type Options = Options;
    type Buf = Buf;
    type Weight = Weight;
    type Kv = Kv;

    fn open(options: &Options) -> Result<Self> {
        let selection = options.selection()?;
        Ok(CpuTsar {
            isa: selection.isa(),
            selection,
            pools: Pools::new(options.threads())?,
            rows: Vec::new(),
            activations: activations::Scratch::default(),
            attention: attention::Scratch::default(),
        })
    }

    fn info(&self) -> DeviceInfo {
        let (single, batch) = self.pools.threads();
        let mut facts = vec![("threads", single.to_string())];
        facts.extend((batch != single).then(|| ("batch threads", batch.to_string())));
        facts.push(("instructions", self.isa.to_string()));
        facts.extend(self.selection.wanted().map(|kernel| ("kernel", kernel.to_owned())));
        DeviceInfo {
            name: topology::cpu_name(),
            facts: facts.into_iter().map(|(name, fact)| (name.into(), fact)).collect(),
            free_memory: None,
        }
    }

    fn alloc(&mut self, rows: usize, columns: usize) -> Result<Buf> {
        let buf = Buf::zeroed(rows, columns)?;
        // Any buffer may be multiplied with a matrix: after load no step has to ask for memory.
        self.activations.reserve(rows, columns)?;
        let many = |_| Error::OutOfMemory(format!("no memory for steps of {rows} rows"));
        self.rows.try_reserve(rows).map_err(many)?;
        Ok(buf)
    }

    fn upload(&mut self, columns: usize, data: &[f32]) -> Result<Buf> {
        Buf::from_rows(columns, data)
    }

    fn prepare(&mut self, matrix: HostMatrix<'_>) -> Result<Weight> {
        Weight::prepare(matrix, &self.selection, self.pools.largest())
    }

    fn explain(&self, rows: usize, columns: usize, format: Format, tokens: usize) -> Vec<Choice> {
        self.selection.explain(rows, columns, format, tokens)
    }

    fn kv(&mut self, shape: KvShape, format: KvFormat) -> Result<Kv> {
        Kv::new(shape, format)
    }

    fn step(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Result<()> {
        if rows.is_empty() {
            return Err(Error::Invalid("a step needs at least one row".into()));
        }
        self.pools.choose(rows.len());
        self.rows.clear();
        self.rows.extend_from_slice(rows);
        record(self);
        Ok(())
    }

    fn embed(&mut self, out: &mut Buf, table: &Weight) {
        let (columns, rows) = (out.columns(), &self.rows);
        ops::split(self.pools.chosen(), out.front_mut(rows.len()), columns, 1, |start, out| {
            for (out, row) in out.chunks_exact_mut(columns).zip(&rows[start / columns..]) {
                table.embed_row(row.token as usize, out);
            }
        });
    }

    fn rms_norm(&mut self, out: &mut Buf, x: &Buf, weight: &Buf, eps: f32) {
        let rows = self.rows.len();
        norm::rms_norm(self.pools.chosen(), self.isa, out.front_mut(rows), x.front(rows), weight.row(0), eps);
    }

    fn linear(&mut self, out: &mut Buf, x: &Buf, weight: &Weight) {
        let rows = self.rows.len();
        linear(self.pools.chosen(), self.isa, &mut self.activations, weight, x.front(rows), rows, out.front_mut(rows));
    }

    fn add_bias(&mut self, x: &mut Buf, bias: &Buf) {
        elementwise::add_bias(self.pools.chosen(), self.isa, x.front_mut(self.rows.len()), bias.row(0));
    }

    fn add(&mut self, x: &mut Buf, y: &Buf) {
        let rows = self.rows.len();
        elementwise::add(self.pools.chosen(), self.isa, x.front_mut(rows), y.front(rows));
    }

    fn head_norm(&mut self, qkv: &mut Buf, heads: Heads, query: &Buf, key: &Buf, eps: f32) {
        let qkv = qkv.front_mut(self.rows.len());
        norm::head_norm(self.pools.chosen(), self.isa, qkv, heads, query.row(0), key.row(0), eps);
    }

    fn rope(&mut self, qkv: &mut Buf, heads: Heads, table: &Buf) {
        rope::rope(self.pools.chosen(), self.isa, &self.rows, qkv.front_mut(self.rows.len()), heads, table);
    }

    fn store_kv(&mut self, kv: &mut Kv, layer: usize, qkv: &Buf, heads: Heads) {
        kv.store(self.isa, layer, &self.rows, qkv.front(self.rows.len()), heads);
    }

    fn attend(&mut self, out: &mut Buf, qkv: &Buf, kv: &Kv, layer: usize, heads: Heads) {
        let rows = self.rows.len();
        let (out, qkv) = (out.front_mut(rows), qkv.front(rows));
        attend(self.pools.chosen(), self.isa, &mut self.attention, &self.rows, out, qkv, kv, layer, heads);
    }

    fn gated(&mut self, out: &mut Buf, gate_up: &Buf, gate: Gate) {
        let (rows, columns) = (self.rows.len(), out.columns());
        gate::gated(self.pools.chosen(), self.isa, out.front_mut(rows), columns, gate_up.front(rows), gate);
    }

    fn select_outputs(&mut self, out: &mut Buf, x: &Buf) {
        let columns = x.columns();
        assert_eq!(out.columns(), columns);
        let kept = self.rows.iter().enumerate().filter(|(_, row)| row.output);
        let to = out.front_mut(kept.clone().count()).chunks_exact_mut(columns);
        to.zip(kept).for_each(|(to, (row, _))| to.copy_from_slice(x.row(row)));
        self.rows.retain(|row| row.output);
    }

    fn read(&mut self, buf: &Buf, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(&buf.front(out.len().div_ceil(buf.columns()))[..out.len()]);
        Ok(())
    }

    // `rope_store_kv` stays the default: between its two ops a row does not leave the nearest cache.

    fn add_rms_norm(&mut self, out: &mut Buf, x: &mut Buf, y: &Buf, weight: &Buf, eps: f32) {
        let rows = self.rows.len();
        let (out, x, y) = (out.front_mut(rows), x.front_mut(rows), y.front(rows));
        norm::add_rms_norm(self.pools.chosen(), self.isa, out, x, y, weight.row(0), eps);
    }

    fn gated_rms_norm(&mut self, out: &mut Buf, gated: &mut Buf, gate_up: &Buf, gate: Gate, weight: &Buf, eps: f32) {
        let (rows, pool) = (self.rows.len(), self.pools.chosen());
        if rows < pool.threads() {
            // A row that several threads share out.
            self.gated(gated, gate_up, gate);
            return self.rms_norm(out, gated, weight, eps);
        }
        gate::gated_rms_norm(pool, self.isa, out.front_mut(rows), gate_up.front(rows), gate, weight.row(0), eps);
    }
}
