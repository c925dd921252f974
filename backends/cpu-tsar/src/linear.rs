//! Matrix products.

use trine_backend::{Backend, Row, oracle::Oracle};

use crate::activations::Scratch;
use crate::isa::Isa;
use crate::pool::Pool;
use crate::weights::Weight;

pub(crate) fn linear(_: &Pool, _: Isa, _: &mut Scratch, weight: &Weight, x: &[f32], rows: usize, out: &mut [f32]) {
    let mut oracle = Oracle::default();
    let x = oracle.upload(weight.0.columns(), x).unwrap();
    let mut to = oracle.alloc(rows, weight.0.rows()).unwrap();
    let row = Row { token: 0, sequence: 0, position: 0, output: true };
    oracle.step(&vec![row; rows], |oracle| oracle.linear(&mut to, &x, &weight.0)).unwrap();
    oracle.read(&to, out).unwrap();
}
