//! The scalar oracle: a complete backend in plain loops, the definition that every other backend is
//! checked against. Integer sums are exact in i32, float sums are in f64, and nothing is fused, blocked,
//! threaded or approximated.

mod attention;
mod linear;

use crate::error::ensure;
use crate::{Backend, DeviceInfo, Gate, Heads, HostMatrix, KvFormat, KvShape, Result, Row};

pub use attention::OracleKv;

/// The oracle. It has no options.
#[derive(Debug, Default)]
pub struct Oracle {
    /// The rows that ops work on: the step's, or after `select_outputs` those with an output.
    rows: Vec<Row>,
}

/// f32 `[rows, columns]` in host memory.
#[derive(Clone, Debug)]
pub struct OracleBuf {
    columns: usize,
    data: Vec<f32>,
}

impl OracleBuf {
    fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.columns..(row + 1) * self.columns]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.columns..(row + 1) * self.columns]
    }
}

impl Backend for Oracle {
    const NAME: &'static str = "oracle";
    type Options = ();
    type Buf = OracleBuf;
    type Weight = HostMatrix<'static>;
    type Kv = OracleKv;

    fn open(_: &()) -> Result<Self> {
        Ok(Oracle::default())
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "scalar reference on the CPU".into(), ..DeviceInfo::default() }
    }

    fn alloc(&mut self, rows: usize, columns: usize) -> Result<OracleBuf> {
        ensure!(rows > 0 && columns > 0, "a buffer of {rows} x {columns} holds nothing");
        Ok(OracleBuf { columns, data: vec![0.0; rows * columns] })
    }

    fn upload(&mut self, columns: usize, data: &[f32]) -> Result<OracleBuf> {
        let fits = columns > 0 && !data.is_empty() && data.len().is_multiple_of(columns);
        ensure!(fits, "{} values do not fill rows of {columns}", data.len());
        Ok(OracleBuf { columns, data: data.to_vec() })
    }

    fn prepare(&mut self, matrix: HostMatrix<'_>) -> Result<HostMatrix<'static>> {
        Ok(matrix.into_owned())
    }

    fn kv(&mut self, shape: KvShape, format: KvFormat) -> Result<OracleKv> {
        Ok(OracleKv::new(shape, format))
    }

    fn step(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Result<()> {
        ensure!(!rows.is_empty(), "a step needs at least one row");
        self.rows = rows.to_vec();
        record(self);
        Ok(())
    }

    fn embed(&mut self, out: &mut OracleBuf, table: &HostMatrix<'static>) {
        for (r, row) in self.rows.iter().enumerate() {
            table.dequantize_row(row.token as usize, out.row_mut(r));
        }
    }

    fn rms_norm(&mut self, out: &mut OracleBuf, x: &OracleBuf, weight: &OracleBuf, eps: f32) {
        for r in 0..self.rows.len() {
            out.row_mut(r).copy_from_slice(x.row(r));
            rms_norm(out.row_mut(r), weight.row(0), eps);
        }
    }

    fn linear(&mut self, out: &mut OracleBuf, x: &OracleBuf, weight: &HostMatrix<'static>) {
        for r in 0..self.rows.len() {
            linear::linear(weight, x.row(r), out.row_mut(r));
        }
    }

    fn add_bias(&mut self, x: &mut OracleBuf, bias: &OracleBuf) {
        for r in 0..self.rows.len() {
            x.row_mut(r).iter_mut().zip(bias.row(0)).for_each(|(x, bias)| *x += bias);
        }
    }

    fn add(&mut self, x: &mut OracleBuf, y: &OracleBuf) {
        for r in 0..self.rows.len() {
            x.row_mut(r).iter_mut().zip(y.row(r)).for_each(|(x, y)| *x += y);
        }
    }

    fn head_norm(&mut self, qkv: &mut OracleBuf, heads: Heads, query: &OracleBuf, key: &OracleBuf, eps: f32) {
        for r in 0..self.rows.len() {
            let (q, rest) = qkv.row_mut(r).split_at_mut(heads.query_width());
            q.chunks_mut(heads.dim).for_each(|head| rms_norm(head, query.row(0), eps));
            rest[..heads.kv_width()].chunks_mut(heads.dim).for_each(|head| rms_norm(head, key.row(0), eps));
        }
    }

    fn rope(&mut self, qkv: &mut OracleBuf, heads: Heads, table: &OracleBuf) {
        for (r, row) in self.rows.iter().enumerate() {
            let (cos, sin) = table.row(row.position as usize).split_at(heads.dim / 2);
            let rotated = heads.query_width() + heads.kv_width();
            for head in qkv.row_mut(r)[..rotated].chunks_mut(heads.dim) {
                let (first, second) = head.split_at_mut(heads.dim / 2);
                for i in 0..first.len() {
                    let (a, b) = (first[i], second[i]);
                    first[i] = a * cos[i] - b * sin[i];
                    second[i] = b * cos[i] + a * sin[i];
                }
            }
        }
    }

    fn store_kv(&mut self, kv: &mut OracleKv, layer: usize, qkv: &OracleBuf, heads: Heads) {
        for (r, &row) in self.rows.iter().enumerate() {
            kv.store(layer, row, qkv.row(r), heads);
        }
    }

    fn attend(&mut self, out: &mut OracleBuf, qkv: &OracleBuf, kv: &OracleKv, layer: usize, heads: Heads) {
        for (r, &row) in self.rows.iter().enumerate() {
            kv.attend(layer, row, qkv.row(r), heads, out.row_mut(r));
        }
    }

    fn gated(&mut self, out: &mut OracleBuf, gate_up: &OracleBuf, gate: Gate) {
        for r in 0..self.rows.len() {
            let (g, u) = gate_up.row(r).split_at(gate_up.columns / 2);
            for (i, out) in out.row_mut(r).iter_mut().enumerate() {
                *out = activate(g[i], gate) * u[i];
            }
        }
    }

    fn select_outputs(&mut self, out: &mut OracleBuf, x: &OracleBuf) {
        let kept: Vec<usize> = (0..self.rows.len()).filter(|&r| self.rows[r].output).collect();
        for (to, &from) in kept.iter().enumerate() {
            out.row_mut(to).copy_from_slice(x.row(from));
        }
        self.rows.retain(|row| row.output);
    }

    /// Whoever looks at it all the same sees no number.
    fn discard(&mut self, buf: &mut OracleBuf) {
        buf.data.fill(f32::NAN);
    }

    fn read(&mut self, buf: &OracleBuf, out: &mut [f32]) -> Result<()> {
        out.copy_from_slice(&buf.data[..out.len()]);
        Ok(())
    }
}

fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len());
    let square: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
    let scale = 1.0 / (square / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter_mut().zip(weight).for_each(|(x, &weight)| *x = (f64::from(*x) * scale * f64::from(weight)) as f32);
}

fn activate(x: f32, gate: Gate) -> f32 {
    match gate {
        Gate::Silu => (f64::from(x) / (1.0 + (-f64::from(x)).exp())) as f32,
        Gate::Relu2 => x.max(0.0).powi(2),
    }
}
