//! Buffers and launches on the emulated device, and the oracle beside it. Memory is not given back: a test is short.

use std::sync::OnceLock;

use trine_backend::oracle::Oracle;
use trine_backend::{Backend, Row};
use trine_kernels::args::{Address, Args, StepRow};
use trine_kernels::emulate::Emulator;
use trine_kernels::{Kernel, LANES, Launch, TOKENS, UNIT, place, segment};

/// The emulator, one for all tests.
fn emulator() -> &'static Emulator {
    static EMULATOR: OnceLock<Emulator> = OnceLock::new();
    EMULATOR.get_or_init(|| Emulator::open().expect("a C++ compiler"))
}

/// Numbers of the same size on both sides.
pub(crate) trait Plain: Copy + Default {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for f32 {}
impl Plain for (f32, i32) {}
impl Plain for StepRow {}

pub(crate) fn upload<T: Plain>(values: &[T]) -> Address {
    let bytes = size_of_val(values);
    let at = emulator().alloc(bytes).unwrap();
    // SAFETY: plain numbers; the memory is as long as they are.
    unsafe { emulator().write(at, std::slice::from_raw_parts(values.as_ptr().cast(), bytes)) };
    at
}

pub(crate) fn zeros(bytes: usize) -> Address {
    upload(&vec![0u8; bytes])
}

pub(crate) fn download<T: Plain>(at: Address, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    // SAFETY: plain numbers, of which every pattern of bits is one; tests read what they have allocated.
    unsafe {
        let bytes = std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(&values[..]));
        emulator().read(at, bytes);
    }
    values
}

pub(crate) fn run(kernel: &Kernel, launch: Option<Launch>, args: &impl Args) {
    let function = emulator().load(kernel).unwrap();
    // SAFETY: the addresses are those of buffers of the sizes that the kernels are documented to want.
    unsafe { emulator().launch(&function, launch.expect("a launch"), args) }.unwrap();
}

/// Quantised activations on the device.
#[derive(Clone, Copy)]
pub(crate) struct Codes {
    pub(crate) codes: Address,
    pub(crate) spans: Address,
    pub(crate) columns: usize,
}

impl Codes {
    pub(crate) fn new(rows: usize, columns: usize) -> Codes {
        let places = rows.next_multiple_of(TOKENS) * segment(columns) * LANES;
        Codes { codes: zeros(places * UNIT), spans: zeros(places * 8), columns }
    }

    /// Codes and scales of a row as the oracle writes them, after a look at the sums.
    pub(crate) fn row(&self, row: usize) -> (Vec<i8>, Vec<f32>) {
        let per = segment(self.columns);
        let places = per * LANES;
        let codes: Vec<i8> = download(self.codes + (row * places * UNIT) as u64, places * UNIT);
        let spans: Vec<(f32, i32)> = download(self.spans + (row * places * 8) as u64, places);
        let code = |column: usize| {
            let (unit, within) = (column / UNIT, column % UNIT);
            let (step, lane) = (unit % per, unit / per);
            codes[((step * 2 + within / 16) * LANES + lane) * 16 + within % 16]
        };
        let out: Vec<i8> = (0..self.columns).map(code).collect();
        for (unit, codes) in out.chunks(UNIT).enumerate() {
            let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
            assert_eq!(spans[place(unit, per)].1, sum, "the sum of unit {unit}");
        }
        let scales = (0..self.columns.div_ceil(UNIT)).map(|unit| spans[place(unit, per)].0).collect();
        (out, scales)
    }
}

/// Numbers that are the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    pub(crate) fn signed(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, count: usize, largest: f32) -> Vec<f32> {
        (0..count).map(|_| largest * self.signed()).collect()
    }
}

pub(crate) fn rows(tokens: &[(u32, u32, u32)]) -> Vec<StepRow> {
    tokens.iter().map(|&(token, sequence, position)| StepRow { token, sequence, position, source: 0 }).collect()
}

/// The oracle with as many rows in its step.
pub(crate) fn oracle(rows: usize, record: impl FnOnce(&mut Oracle)) {
    let mut oracle = Oracle::open(&()).unwrap();
    let rows: Vec<Row> =
        (0..rows as u32).map(|row| Row { token: row, sequence: 0, position: row, output: true }).collect();
    oracle.step(&rows, record).unwrap();
}

pub(crate) fn read(oracle: &mut Oracle, buf: &<Oracle as Backend>::Buf, count: usize) -> Vec<f32> {
    let mut out = vec![0.0; count];
    oracle.read(buf, &mut out).unwrap();
    out
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[track_caller]
pub(crate) fn close(got: &[f32], want: &[f32], bound: impl Fn(usize) -> f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
        let same = got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= bound(at);
        assert!(same, "{what}: {got} instead of {want} at {at}");
    }
}
