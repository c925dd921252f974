//! The kernels that only large matrices get.

use half::f16;
use trine_backend::{Backend, Codes, Group, HostMatrix, Int4, Row, Zero};

use super::conforms::device;
use crate::CudaOrin;

const COLUMNS: usize = 160;
const TOKENS: usize = 70;

/// So many rows that a step of many tokens has a large tile for each multiprocessor of a large GPU. An imitated one would take
/// minutes, and has one size of tiles.
#[test]
fn large_tiles_give_the_bits_of_single_rows() {
    let Some(options) = device() else { return };
    let rows = if options.emulate { 150 } else { 20_000 };
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let codes: Vec<u8> = (0..rows * COLUMNS / 2).map(|_| next() as u8).collect();
    let scales: Vec<f16> = (0..rows * COLUMNS / 32).map(|_| f16::from_f32((next() % 1000) as f32 / 2e4)).collect();
    let codes = Codes::Int4(Int4::new(Group::G32, codes, scales, Zero::Symmetric));
    let mut b = CudaOrin::open(&options).unwrap();
    let weight = b.prepare(HostMatrix::new(rows, COLUMNS, codes).unwrap()).unwrap();
    let x: Vec<f32> = (0..TOKENS * COLUMNS).map(|_| (next() % 2001) as f32 / 1e3 - 1.0).collect();
    let mut multiply = |x: &[f32]| -> Vec<u32> {
        let tokens = x.len() / COLUMNS;
        let step: Vec<Row> =
            (0..tokens as u32).map(|position| Row { token: 0, sequence: 0, position, output: false }).collect();
        let (x, mut out) = (b.upload(COLUMNS, x).unwrap(), b.alloc(tokens, rows).unwrap());
        b.step_once(&step, |b| b.linear(&mut out, &x, &weight)).unwrap();
        let mut values = vec![0.0; tokens * rows];
        b.read(&out, &mut values).unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    let many = multiply(&x);
    for token in [0, 1, 63, 64, TOKENS - 1] {
        let one = multiply(&x[token * COLUMNS..][..COLUMNS]);
        assert!(one == many[token * rows..][..rows], "token {token}");
    }
}
