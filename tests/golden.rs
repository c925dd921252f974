//! Logits and greedy continuations against references made with transformers in float32.

use std::path::{Path, PathBuf};

use trine::engine::{Engine, EngineOptions};
use trine::files::ModelFiles;
use trine::formats::Checkpoint;
use trine::model::Formats;
use trine_backend::oracle::Oracle;
use trine_backend::{Backend, KvFormat, Row};
use trine_cpu_tsar::{CpuTsar, Isa, Options};

/// Relative L2 error allowed to dense models: float rounding only.
const DENSE: f64 = 1e-4;
/// To ternary models: an activation's int8 code may flip where float rounding differs in the last bit.
const TERNARY: f64 = 2e-2;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Weights as they are, activations and KV cache in full precision: the reference's own arithmetic.
fn exact(native_head: bool) -> EngineOptions {
    let head = native_head.then(|| "bf16".parse().unwrap());
    EngineOptions { kv: KvFormat::F32, outputs: 64, formats: Formats { body: None, head }, ..EngineOptions::default() }
}

struct Golden {
    ids: Vec<u32>,
    logits: Vec<f32>,
    greedy: Vec<u32>,
}

fn golden(dir: &Path) -> Vec<Golden> {
    let file = Checkpoint::open(dir.join("golden.safetensors")).unwrap();
    let ids = |name: &str| -> Vec<u32> {
        let bytes = file.tensor(name).unwrap().bytes();
        bytes.as_chunks::<4>().0.iter().map(|&id| u32::try_from(i32::from_le_bytes(id)).unwrap()).collect()
    };
    (0..3)
        .map(|n| Golden {
            ids: ids(&format!("ids.{n}")),
            logits: file.tensor(&format!("logits.{n}")).unwrap().to_f32().unwrap(),
            greedy: ids(&format!("greedy.{n}")),
        })
        .collect()
}

/// Runs `tokens` from `position` on and returns their logits.
fn run<B: Backend>(engine: &mut Engine<B>, tokens: &[u32], position: usize) -> Vec<f32> {
    let row = |(i, &token): (usize, &u32)| Row { token, sequence: 0, position: (position + i) as u32, output: true };
    let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
    let mut logits = vec![0.0; tokens.len() * engine.config().vocab];
    engine.step(&rows).unwrap();
    engine.read_logits(&mut logits).unwrap();
    logits
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

fn check<B: Backend>(device: &B::Options, files: &ModelFiles, dir: &Path, options: &EngineOptions, bound: f64) {
    let label = format!("{} {device:?} {}", B::NAME, dir.display());
    let mut engine = Engine::<B>::load(device, files, options, &mut |_| {}).unwrap();
    let vocab = engine.config().vocab;
    for (n, golden) in golden(dir).iter().enumerate() {
        let logits = run(&mut engine, &golden.ids, 0);
        assert_eq!(logits.len(), golden.logits.len(), "{label}");
        let difference = norm(logits.iter().zip(&golden.logits).map(|(a, b)| f64::from(a - b)));
        let relative = difference / norm(golden.logits.iter().map(|&x| f64::from(x)));
        println!("{label} prompt {n}: relative error {relative:.2e}");
        assert!(relative <= bound, "{label}: prompt {n} is off by {relative:.2e}");

        // Greedy: wherever our choice differs, the two candidates must be closer than the bound lets them be.
        let prompt = golden.ids.len();
        assert_eq!(golden.greedy[..prompt], golden.ids);
        let mut last = logits[logits.len() - vocab..].to_vec();
        for (position, &expected) in golden.greedy.iter().enumerate().skip(prompt) {
            let best = (0..vocab).reduce(|a, b| if last[b] > last[a] { b } else { a }).unwrap();
            let gap = f64::from(last[best] - last[expected as usize]);
            let scale = norm(last.iter().map(|&x| f64::from(x))) / (vocab as f64).sqrt();
            assert!(
                gap <= 4.0 * bound * scale,
                "{label}: prompt {n} token {position}: {best} is {gap:.3} above {expected}"
            );
            last = run(&mut engine, &[expected], position);
        }
    }
}

/// The same checks on the oracle and on each CPU path that this machine has.
fn check_everywhere(files: &ModelFiles, dir: &Path, options: &EngineOptions, bound: f64) {
    check::<Oracle>(&(), files, dir, options, bound);
    for isa in [Isa::Plain, Isa::detect()] {
        for threads in [1, 2] {
            let device = Options { threads: Some(threads), isa: Some(isa), ..Options::default() };
            check::<CpuTsar>(&device, files, dir, options, bound);
        }
    }
}

fn check_fixture(name: &str, bound: f64) {
    let dir = fixture(name);
    check_everywhere(&ModelFiles::open(&dir).unwrap(), &dir, &exact(true), bound);
}

#[test]
fn tiny_qwen2() {
    check_fixture("tiny-qwen2", DENSE);
}

#[test]
fn tiny_qwen3() {
    check_fixture("tiny-qwen3", DENSE);
}

#[test]
fn tiny_llama3_rope() {
    check_fixture("tiny-llama3-rope", DENSE);
}

#[test]
fn tiny_bitnet() {
    check_fixture("tiny-bitnet", TERNARY);
}

#[test]
fn tiny_bitnet_online() {
    check_fixture("tiny-bitnet-online", TERNARY);
}

#[test]
fn tiny_llama_b158() {
    check_fixture("tiny-llama-b158", TERNARY);
}

#[test]
fn stories260k() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures/stories260k");
    if !dir.exists() {
        println!("skipped: {} is not there (third-party model)", dir.display());
        return;
    }
    // F32 throughout: its own dtype.
    let options = EngineOptions { kv: KvFormat::F32, outputs: 64, ..EngineOptions::default() };
    check_everywhere(&ModelFiles::open(&dir).unwrap(), &dir, &options, DENSE);
}

#[test]
fn demo_model() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tales-bitnet-20m");
    check_everywhere(&ModelFiles::demo().unwrap(), &dir, &exact(true), TERNARY);
    // As it is run by default: INT8 embedding and lm_head, f16 KV cache.
    let default = EngineOptions { outputs: 64, ..EngineOptions::default() };
    check_everywhere(&ModelFiles::demo().unwrap(), &dir, &default, TERNARY);
}
