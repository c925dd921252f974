//! Logits and greedy continuations against references made with transformers in float32: on each CPU path here, on
//! every backend in `cross_backend.rs`.

use std::path::{Path, PathBuf};

use trine::engine::{Engine, EngineOptions};
use trine::files::ModelFiles;
use trine::formats::Checkpoint;
use trine::model::Formats;
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
    EngineOptions {
        kv: KvFormat::F32,
        outputs: 64,
        formats: Formats { body: None, head, ..Formats::default() },
        ..EngineOptions::default()
    }
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
pub(crate) fn run<B: Backend>(engine: &mut Engine<B>, tokens: &[u32], position: usize) -> Vec<f32> {
    let row = |(i, &token): (usize, &u32)| Row { token, sequence: 0, position: (position + i) as u32, output: true };
    let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
    let mut logits = vec![0.0; tokens.len() * engine.config().vocab];
    engine.step(&rows).unwrap();
    engine.read_logits(&mut logits).unwrap();
    logits
}

pub(crate) fn norm(values: impl Iterator<Item = f64>) -> f64 {
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

/// A model with reference values, the formats that it is run in, and the bound of its relative error.
pub(crate) struct Model {
    pub(crate) dir: PathBuf,
    pub(crate) options: EngineOptions,
    pub(crate) bound: f64,
}

impl Model {
    /// One of the fixtures.
    pub(crate) fn fixture(name: &str) -> Self {
        let bound = if name.contains("bitnet") || name.contains("b158") { TERNARY } else { DENSE };
        Model { dir: fixture(name), options: exact(true), bound }
    }

    /// A third-party model, if it is there. F32 throughout: its own dtype.
    pub(crate) fn stories() -> Option<Self> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures/stories260k");
        if !dir.exists() {
            println!("skipped: {} is not there (third-party model)", dir.display());
            return None;
        }
        Some(Model { dir, options: exact(false), bound: DENSE })
    }

    /// The demo model: in the reference's arithmetic, and as it is run by default (INT8 embedding and lm_head, f16 KV
    /// cache).
    pub(crate) fn demo() -> [Self; 2] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tales-bitnet-20m");
        let default = EngineOptions { outputs: 64, ..EngineOptions::default() };
        [exact(true), default].map(|options| Model { dir: dir.clone(), options, bound: TERNARY })
    }

    /// Checks a backend against the reference.
    pub(crate) fn check<B: Backend>(&self, device: &B::Options) {
        let files = ModelFiles::open(&self.dir).unwrap();
        check::<B>(device, &files, &self.dir, &self.options, self.bound);
    }

    /// The paths that the backend on this machine does not take by itself.
    fn check_cpu_paths(&self) {
        for (isa, threads) in [(Isa::Plain, 2), (Isa::detect(), 1)] {
            let device = Options { threads: Some(threads), isa: Some(isa), ..Options::default() };
            self.check::<CpuTsar>(&device);
        }
    }
}

#[test]
fn tiny_qwen2() {
    Model::fixture("tiny-qwen2").check_cpu_paths();
}

#[test]
fn tiny_qwen3() {
    Model::fixture("tiny-qwen3").check_cpu_paths();
}

#[test]
fn tiny_llama3_rope() {
    Model::fixture("tiny-llama3-rope").check_cpu_paths();
}

#[test]
fn tiny_bitnet() {
    Model::fixture("tiny-bitnet").check_cpu_paths();
}

#[test]
fn tiny_bitnet_online() {
    Model::fixture("tiny-bitnet-online").check_cpu_paths();
}

#[test]
fn tiny_llama_b158() {
    Model::fixture("tiny-llama-b158").check_cpu_paths();
}

#[test]
fn stories260k() {
    if let Some(model) = Model::stories() {
        model.check_cpu_paths();
    }
}

#[test]
fn demo_model() {
    Model::demo().iter().for_each(Model::check_cpu_paths);
}
