//! Greedy decoding: the device makes the next step's row itself, and nobody can tell.

use half::f16;
use trine_backend::oracle::Oracle;
use trine_backend::{Backend, Codes, Heads, HostMatrix, Row};

use super::conforms::device;
use crate::CudaOrin;

const VOCABULARY: usize = 50;
const HEADS: Heads = Heads { query: 1, kv: 1, dim: 8 };
const WIDTH: usize = 24;

/// Logits that depend on a row's token and its position.
struct Model<B: Backend> {
    backend: B,
    table: B::Weight,
    head: B::Weight,
    angles: B::Buf,
    x: B::Buf,
    logits: B::Buf,
}

impl<B: Backend> Model<B> {
    fn new(options: &B::Options) -> Self {
        let mut b = B::open(options).unwrap();
        let values = |salt: usize| -> Vec<f16> {
            let value = |at: usize| ((at * 37 + salt) * 7919 % 1009) as f32 / 500.0 - 1.0;
            (0..VOCABULARY * WIDTH).map(|at| f16::from_f32(value(at))).collect()
        };
        let matrix = |salt| HostMatrix::new(VOCABULARY, WIDTH, Codes::F16(values(salt).into())).unwrap();
        let angle = |at: usize| (at / 8) as f32 / (1 + at % 4) as f32;
        let angles: Vec<f32> =
            (0..64 * 8).map(|at| if at % 8 < 4 { angle(at).cos() } else { angle(at).sin() }).collect();
        Model {
            table: b.prepare(matrix(1)).unwrap(),
            head: b.prepare(matrix(500)).unwrap(),
            angles: b.upload(HEADS.dim, &angles).unwrap(),
            x: b.alloc(4, WIDTH).unwrap(),
            logits: b.alloc(4, VOCABULARY).unwrap(),
            backend: b,
        }
    }

    fn step(&mut self, rows: &[(u32, u32)]) {
        let Model { backend, table, head, angles, x, logits } = self;
        let row = |&(token, position): &(u32, u32)| Row { token, sequence: 0, position, output: true };
        let rows: Vec<Row> = rows.iter().map(row).collect();
        let record = |b: &mut B| {
            b.embed(x, table);
            b.rope(x, HEADS, angles);
            b.linear(logits, x, head);
        };
        backend.step(&rows, record).unwrap();
    }

    fn largest(&mut self) -> u32 {
        let mut out = [None];
        self.backend.read_largest(&self.logits, VOCABULARY, &mut out).unwrap();
        out[0].unwrap()
    }

    fn rotated(&mut self) -> Vec<f32> {
        let mut out = vec![0.0; WIDTH];
        self.backend.read(&self.x, &mut out).unwrap();
        out
    }
}

#[test]
fn a_row_that_the_device_made_is_as_good_as_one_that_came() {
    let Some(options) = device() else { return };
    let (mut model, mut oracle) = (Model::<CudaOrin>::new(&options), Model::<Oracle>::new(&()));
    let mut same = |model: &mut Model<CudaOrin>, rows: &[(u32, u32)]| {
        oracle.step(rows);
        for (got, want) in model.rotated().iter().zip(oracle.rotated()) {
            assert!((got - want).abs() < 1e-5, "{got} instead of {want} at {rows:?}");
        }
        oracle.largest()
    };
    let mut row = (3, 0);
    for turn in 0..24 {
        model.step(&[row]);
        // What is read, and how often, makes no difference.
        if turn % 4 == 1 {
            model.rotated();
        }
        let token = model.largest();
        if turn % 4 == 2 {
            model.rotated();
            assert_eq!(model.largest(), token);
        }
        if turn % 8 == 3 {
            assert!(!model.backend.profile().unwrap().is_empty());
            assert_eq!(model.largest(), token);
        }
        assert_eq!(token, same(&mut model, &[row]), "turn {turn}");
        row = (token, row.1 + 1);
        // Another row than the device has made, now and then: another token, another position, or another number of rows.
        match turn % 6 {
            3 => row.0 = (row.0 + 1) % VOCABULARY as u32,
            4 => row.1 += 3,
            5 => {
                let rows = [row, (7, row.1 + 1)];
                model.step(&rows);
                same(&mut model, &rows);
            }
            _ => {}
        }
    }
}
