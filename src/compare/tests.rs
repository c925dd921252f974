//! A wrong backend must be found out, and where it is wrong.

use trine_backend::oracle::Oracle;
use trine_backend::{Gate, Heads, HostMatrix, KvFormat, KvShape};

use super::*;
use crate::backend::Takes;

type OracleBuf = <Oracle as Backend>::Buf;
type OracleKv = <Oracle as Backend>::Kv;
type Matrix = HostMatrix<'static>;
type Outcome<T> = trine_backend::Result<T>;

/// The oracle with the other gate.
struct WrongGate(Oracle);

macro_rules! pass {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?;)+) => {
        $(fn $name(&mut self, $($arg: $type),*) $(-> $out)? {
            self.0.$name($($arg),*)
        })+
    };
}

impl Backend for WrongGate {
    const NAME: &'static str = "wrong-gate";
    type Options = ();
    type Buf = OracleBuf;
    type Weight = Matrix;
    type Kv = OracleKv;

    fn open(_: &()) -> Outcome<Self> {
        Oracle::open(&()).map(WrongGate)
    }

    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn step(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Outcome<()> {
        // Rows are all that a step of the oracle sets up.
        self.0.step(rows, |_| {})?;
        record(self);
        Ok(())
    }

    fn gated(&mut self, out: &mut OracleBuf, gate_up: &OracleBuf, gate: Gate) {
        let other = if gate == Gate::Silu { Gate::Relu2 } else { Gate::Silu };
        self.0.gated(out, gate_up, other);
    }

    pass! {
        alloc(rows: usize, columns: usize) -> Outcome<OracleBuf>;
        upload(columns: usize, data: &[f32]) -> Outcome<OracleBuf>;
        prepare(matrix: HostMatrix<'_>) -> Outcome<Matrix>;
        kv(shape: KvShape, format: KvFormat) -> Outcome<OracleKv>;
        embed(out: &mut OracleBuf, table: &Matrix);
        rms_norm(out: &mut OracleBuf, x: &OracleBuf, weight: &OracleBuf, eps: f32);
        linear(out: &mut OracleBuf, x: &OracleBuf, weight: &Matrix);
        add_bias(x: &mut OracleBuf, bias: &OracleBuf);
        add(x: &mut OracleBuf, y: &OracleBuf);
        head_norm(qkv: &mut OracleBuf, heads: Heads, query: &OracleBuf, key: &OracleBuf, eps: f32);
        rope(qkv: &mut OracleBuf, heads: Heads, table: &OracleBuf);
        store_kv(kv: &mut OracleKv, layer: usize, qkv: &OracleBuf, heads: Heads);
        attend(out: &mut OracleBuf, qkv: &OracleBuf, kv: &OracleKv, layer: usize, heads: Heads);
        select_outputs(out: &mut OracleBuf, x: &OracleBuf);
        read(buf: &OracleBuf, out: &mut [f32]) -> Outcome<()>;
    }
}

impl Compiled for WrongGate {
    const TAKES: Takes = Takes { cpu: false, kernel: false, device: false };

    fn options(_: &Settings) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_wrong_op_stands_out_and_what_follows_from_it_does_not() {
    let (files, settings) = (ModelFiles::demo().unwrap(), Settings::default());
    let prompt = [1, 300, 42];
    let request =
        Request { files: &files, options: EngineOptions::default(), settings: &settings, prompt: &prompt, generate: 2 };
    let first = Measure { request: &request, leader: None }.run::<Oracle>().unwrap();
    let same = Measure { request: &request, leader: Some(&first) }.run::<Oracle>().unwrap();
    let wrong = Measure { request: &request, leader: Some(&first) }.run::<WrongGate>().unwrap();

    let same = first.differences(same, &request);
    assert_eq!((same.logits.positions, same.logits.difference), (3, Difference::default()));
    assert_eq!(same.greedy, Greedy { same: 2, fork: None });
    assert!(same.ops.iter().all(|op| op.own == Difference::default() && op.drift == Difference::default()));

    let found = first.differences(wrong, &request);
    assert!(found.logits.difference.largest > 0.1);
    assert_eq!((found.side.name, found.ops.len()), ("wrong-gate", same.ops.len()));
    let gates = found.ops.iter().filter(|op| op.name == "gated").count();
    assert_eq!(gates, files.config.layers);
    for op in &found.ops {
        assert_eq!(op.own.largest > 0.0, op.name == "gated", "{op:?}");
    }
    let from = found.ops.iter().position(|op| op.name == "gated").unwrap();
    for (index, op) in found.ops.iter().enumerate() {
        // The embedding of the tokens is left as it was, but no later row is.
        assert_eq!(op.drift.relative > 1e-3, index >= from, "{op:?}");
    }
}

#[test]
fn forks_tell_how_close_the_candidates_were() {
    let first = GreedyStep::new(&[0.0, 3.0, 1.0], None);
    let other = GreedyStep::new(&[0.0, 2.5, 2.75], Some(&first));
    assert_eq!((first.token(), other.token(), other.of_first), (1, 2, Some(2.5)));
    // A tie goes to the lower id, and long lists keep the likeliest.
    let mut long = vec![0.0; 1000];
    (long[900], long[500]) = (1.0, 1.0);
    let tie = GreedyStep::new(&long, None);
    assert_eq!((tie.token(), tie.candidates.len(), tie.logit(900), tie.logit(999)), (500, CANDIDATES, 1.0, 0.0));

    let device = DeviceInfo::default();
    let run = |steps| Run {
        side: Side { name: "x", device: device.clone() },
        logits: Vec::new(),
        steps,
        drift: Arc::default(),
        own: Vec::new(),
    };
    let (a, b) = (run(vec![first]), run(vec![other]));
    let fork = Fork { first: 1, other: 2, gap_first: 2.0, gap_other: 0.25 };
    assert_eq!(a.greedy(&b), Greedy { same: 0, fork: Some(fork) });
}

#[test]
fn what_can_not_be_compared_is_refused() {
    let (files, settings) = (ModelFiles::demo().unwrap(), Settings::default());
    let ask = |names: &[&str], prompt: &[u32]| {
        let request =
            Request { files: &files, options: EngineOptions::default(), settings: &settings, prompt, generate: 1 };
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        compare(&request, &names, |_| panic!("nothing is run")).unwrap_err().to_string()
    };
    assert!(ask(&["oracle"], &[1]).starts_with("--backends: two are needed"));
    assert!(ask(&[], &[1]).starts_with("--backends: two are needed"));
    assert!(ask(&["oracle", "abacus"], &[1]).starts_with("'abacus' is no backend of this build"));
    assert_eq!(ask(&["oracle", "oracle"], &[]), "the prompt has no tokens");
}
