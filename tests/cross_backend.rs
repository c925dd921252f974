//! One suite for every backend that was compiled in: whatever a model runs on, it must say the same.
//!
//! The scalar oracle is the other side of each comparison, so that two backends that agree with it agree with each
//! other. A backend whose device is missing is skipped by name; `TRINE_REQUIRE=wgpu,cpu-tsar` makes that a failure.

use std::path::Path;

use half::f16;
use trine::backend::{COMPILED, Compiled, Settings};
use trine::engine::{Engine, EngineOptions};
use trine::files::ModelFiles;
use trine::model::Formats;
use trine_backend::oracle::Oracle;
use trine_backend::{
    Activation, Backend, Codes, Group, HostMatrix, Int4, Int8, KvFormat, Row, Ternary, Zero, conformance,
};

use crate::golden::{Model, norm, run};
use crate::program::project;

/// Relative L2 error allowed to logits of quantised models, from the oracle's. Where float rounding differs in the last
/// bit, an activation may get the next of its 127 codes; what follows from it is quantised anew, and stays in the KV
/// cache. So logits may come as far apart as quantisation noise puts them: 3.4 % were seen on models of 128 columns, 1.6 % on
/// the demo model.
const QUANTISED: f64 = 6e-2;

/// Greedy tokens that are compared.
const GREEDY: usize = 64;

/// The options of a backend whose device is there.
fn device<B: Compiled>() -> Option<B::Options> {
    let options = B::options(&Settings::default()).unwrap();
    match B::open(&options) {
        Ok(_) => Some(options),
        Err(error) => {
            println!("{}", skipped(B::NAME, &error.to_string(), &required()));
            None
        }
    }
}

fn required() -> String {
    std::env::var("TRINE_REQUIRE").unwrap_or_default()
}

fn names(required: &str) -> impl Iterator<Item = &str> {
    required.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// The remark on a backend without a device.
///
/// # Panics
/// If it is required.
fn skipped(name: &str, error: &str, required: &str) -> String {
    assert!(!names(required).any(|required| required == name), "{name} is required and its device missing: {error}");
    format!("skipped: {name}: {error}")
}

#[test]
fn what_is_required_is_compiled_in() {
    let required = required();
    for name in names(&required) {
        assert!(COMPILED.contains(&name), "TRINE_REQUIRE has {name}; this build has {COMPILED:?}");
    }
}

#[test]
fn a_missing_device_is_skipped_by_name_unless_it_is_required() {
    for required in ["", "cpu-tsar", "cpu-tsar, other"] {
        assert_eq!(skipped("wgpu", "no adapter", required), "skipped: wgpu: no adapter");
    }
    for required in ["wgpu", "cpu-tsar, wgpu,"] {
        let failed = std::panic::catch_unwind(|| skipped("wgpu", "no adapter", required)).unwrap_err();
        let line = failed.downcast_ref::<String>().unwrap();
        assert!(line.contains("wgpu is required and its device missing: no adapter"), "{line}");
    }
}

/// Tests against the references made with transformers; the demo model with the first so many of its options.
macro_rules! golden_suite {
    ($backend:ty, $options:literal) => {
        golden_suite!($backend, tiny_qwen2 "tiny-qwen2", tiny_qwen3 "tiny-qwen3", tiny_llama3_rope "tiny-llama3-rope",
            tiny_bitnet "tiny-bitnet", tiny_bitnet_online "tiny-bitnet-online", tiny_llama_b158 "tiny-llama-b158");

        #[test]
        fn stories260k() {
            if let (Some(device), Some(model)) = (super::device::<$backend>(), super::Model::stories()) {
                model.check::<$backend>(&device);
            }
        }

        #[test]
        fn demo_model() {
            if let Some(device) = super::device::<$backend>() {
                super::Model::demo().iter().take($options).for_each(|model| model.check::<$backend>(&device));
            }
        }
    };
    ($backend:ty, $($name:ident $fixture:literal),+) => {
        $(
            #[test]
            fn $name() {
                if let Some(device) = super::device::<$backend>() {
                    super::Model::fixture($fixture).check::<$backend>(&device);
                }
            }
        )+
    };
}

/// Everything.
macro_rules! suite {
    ($module:ident, $backend:ty) => {
        mod $module {
            golden_suite!($backend, 2);

            #[test]
            fn conformance() {
                if let Some(device) = super::device::<$backend>() {
                    super::conformance::assert_conforms::<$backend>(&device);
                }
            }

            #[test]
            fn integer_products_of_a_models_shapes() {
                if let Some(device) = super::device::<$backend>() {
                    super::integer_products::<$backend>(&device);
                }
            }

            #[test]
            fn quantised_fixtures() {
                if let Some(device) = super::device::<$backend>() {
                    super::quantised_fixtures::<$backend>(&device);
                }
            }

            #[test]
            fn quantised_demo_model() {
                if let Some(device) = super::device::<$backend>() {
                    super::quantised_demo_model::<$backend>(&device);
                }
            }
        }
    };
}

trine::each_backend!(suite);

/// The oracle itself says what the references say.
mod oracle {
    golden_suite!(trine_backend::oracle::Oracle, 1);
}

/// Random integers (Knuth's MMIX generator).
struct Random(u64);

impl Random {
    fn within(&mut self, low: i32, high: i32) -> i32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + ((self.0 >> 33) % (high - low + 1) as u64) as i32
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.within(0, 255) as u8).collect()
    }

    /// Powers of two up to 2^`most`.
    fn scales(&mut self, count: usize, most: i32) -> Vec<f32> {
        (0..count).map(|_| 2f32.powi(self.within(0, most))).collect()
    }

    fn half_scales(&mut self, count: usize, most: i32) -> Vec<f16> {
        self.scales(count, most).into_iter().map(f16::from_f32).collect()
    }
}

/// A name and a matrix with the demo model's shapes, for each kind of integer format. Weight scales are powers of two
/// and all sums of codes, times them, whole numbers below 2^24: f32 steps are then exact in any order.
fn integer_matrices(random: &mut Random, rows: usize, columns: usize) -> Vec<(String, HostMatrix<'static>)> {
    let mut matrices = Vec::new();
    let mut add = |name: String, codes: Codes<'static>, activation| {
        let matrix = HostMatrix::new(rows, columns, codes).unwrap().with_activation(activation).unwrap();
        matrices.push((format!("{name} {rows} x {columns}, {activation:?}"), matrix));
    };
    let ternary =
        (0..rows * columns / 4).map(|_| (0..4).fold(0, |byte, at| byte | (random.within(0, 2) as u8) << (2 * at)));
    let codes = Codes::Ternary(Ternary::new(ternary.collect::<Vec<_>>(), random.scales(rows, 5)));
    add("ternary".into(), codes, Activation::Token);
    for activation in [Activation::Block, Activation::Token] {
        for group in [Group::G32, Group::G64, Group::G128, Group::Row] {
            let groups = rows * group.count(columns);
            for kind in ["symmetric", "point", "min"] {
                let zero = match kind {
                    "symmetric" => Zero::Symmetric,
                    "point" => Zero::Point((0..groups).map(|_| random.within(0, 16) as u8).collect()),
                    _ => Zero::Min((0..groups).map(|_| f16::from_f32(random.within(-8, 0) as f32)).collect()),
                };
                let (codes, scales) = (random.bytes(rows * columns / 2), random.half_scales(groups, 1));
                add(format!("int4 {group:?} {kind}"), Codes::Int4(Int4::new(group, codes, scales, zero)), activation);
            }
            let codes: Vec<i8> = (0..rows * columns).map(|_| random.within(-64, 64) as i8).collect();
            let scales = random.half_scales(groups, 0);
            add(format!("int8 {group:?}"), Codes::Int8(Int8::new(group, codes, scales)), activation);
        }
    }
    matrices
}

/// Activations whose codes are themselves: whole numbers with ±127 in each block of 32, times a power of two.
fn integer_activations(random: &mut Random, tokens: usize, columns: usize) -> Vec<f32> {
    let mut x = Vec::with_capacity(tokens * columns);
    for _ in 0..tokens {
        let scale = 2f32.powi(random.within(-3, 0));
        for column in 0..columns {
            let value = if column % 32 == 7 { 127 * (1 - 2 * random.within(0, 1)) } else { random.within(-127, 127) };
            x.push(value as f32 * scale);
        }
    }
    x
}

/// `W · x` on a backend.
fn product<B: Backend>(backend: &mut B, matrix: &HostMatrix<'static>, x: &[f32]) -> Vec<f32> {
    let (rows, columns) = (matrix.rows(), matrix.columns());
    let tokens = x.len() / columns;
    let weight = backend.prepare(matrix.clone()).unwrap();
    let (x, mut out) = (backend.upload(columns, x).unwrap(), backend.alloc(tokens, rows).unwrap());
    backend.step_once(&rows_of(tokens), |b| b.linear(&mut out, &x, &weight)).unwrap();
    let mut values = vec![0.0; tokens * rows];
    backend.read(&out, &mut values).unwrap();
    values
}

fn rows_of(tokens: usize) -> Vec<Row> {
    (0..tokens as u32).map(|row| Row { token: 0, sequence: 0, position: row, output: true }).collect()
}

fn integer_products<B: Backend>(device: &B::Options) {
    let mut backend = B::open(device).unwrap();
    let mut oracle = Oracle::open(&()).unwrap();
    let mut random = Random(3);
    // q|k|v, output, and down projections of the demo model; one token, a few, a prompt.
    for (shape, (rows, columns)) in [(640, 384), (384, 384), (384, 1280)].into_iter().enumerate() {
        let tokens = [1, 3, 17][shape];
        for (name, matrix) in integer_matrices(&mut random, rows, columns) {
            let x = integer_activations(&mut random, tokens, columns);
            let (got, expected) = (product(&mut backend, &matrix, &x), product(&mut oracle, &matrix, &x));
            let differs = got.iter().zip(&expected).position(|(got, expected)| got != expected);
            if let Some(at) = differs {
                panic!("{name}, {tokens} tokens: value {at} is {} and not {}", got[at], expected[at]);
            }
        }
    }
}

/// Runs the prompt and greedy decoding on the oracle and, along its tokens, on the backend.
fn agrees_with_oracle<B: Backend>(
    device: &B::Options,
    files: &ModelFiles,
    options: &EngineOptions,
    prompt: &[u32],
    generate: usize,
) {
    let label = format!("{} {} {:?} {:?}", B::NAME, files.path.display(), options.formats, options.kv);
    let options = EngineOptions { outputs: prompt.len(), context: Some(prompt.len() + generate), ..*options };
    let mut oracle = Engine::<Oracle>::load(&(), files, &options, &mut |_| {}).unwrap();
    let mut engine = Engine::<B>::load(device, files, &options, &mut |_| {}).unwrap();
    let vocab = files.config.vocab;

    let (mut expected, mut got) = (run(&mut oracle, prompt, 0), run(&mut engine, prompt, 0));
    let mut worst = 0.0f64;
    let mut ties = 0;
    for position in prompt.len()..=prompt.len() + generate {
        let difference = norm(got.iter().zip(&expected).map(|(a, b)| f64::from(a - b)));
        let relative = difference / norm(expected.iter().map(|&x| f64::from(x)));
        worst = worst.max(relative);
        assert!(relative <= QUANTISED, "{label}: off by {relative:.2e} at position {position}");
        let (ours, theirs) = (&got[got.len() - vocab..], &expected[expected.len() - vocab..]);
        let (choice, token) = (greedy(ours), greedy(theirs));
        if choice != token {
            // Each must nearly have taken the other's choice.
            let scale = norm(theirs.iter().map(|&x| f64::from(x))) / (vocab as f64).sqrt();
            let gaps = [ours[choice] - ours[token], theirs[token] - theirs[choice]];
            let near = gaps.iter().all(|&gap| f64::from(gap) <= 4.0 * QUANTISED * scale);
            assert!(near, "{label}: {choice} and not {token} at position {position}, {gaps:?} apart");
            println!("{label}: near tie of {choice} and {token} at position {position}, {gaps:?} apart");
            ties += 1;
        }
        if position < prompt.len() + generate {
            let next = [token as u32];
            (expected, got) = (run(&mut oracle, &next, position), run(&mut engine, &next, position));
        }
    }
    println!("{label}: relative error up to {worst:.2e}, {ties} near ties in {} tokens", generate + 1);
}

/// The largest logit's index, the lowest of equal ones.
fn greedy(logits: &[f32]) -> usize {
    (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap()
}

fn quantised(body: &str, head: &str, kv: KvFormat) -> EngineOptions {
    let formats =
        Formats { body: Some(body.parse().unwrap()), head: Some(head.parse().unwrap()), ..Formats::default() };
    EngineOptions { formats, kv, ..EngineOptions::default() }
}

fn quantised_fixtures<B: Backend>(device: &B::Options) {
    let prompt: Vec<u32> = (0..19).map(|i| 3 + i * 131 % 500).collect();
    for (fixture, body, head, kv) in [
        ("tiny-qwen2", "int4-g32", "int8", KvFormat::F16),
        ("tiny-qwen2", "int8", "int8", KvFormat::Int8),
        ("tiny-qwen3", "int4-g64", "int4-g32", KvFormat::F32),
        ("tiny-llama3-rope", "int4-g128", "int8-row", KvFormat::Int8),
        ("tiny-llama3-rope", "int8-row", "bf16", KvFormat::F16),
        ("tiny-bitnet", "int4-row", "int8", KvFormat::F16),
        ("tiny-llama-b158", "int4-g32", "int8", KvFormat::F16),
    ] {
        let files =
            ModelFiles::open(project(&Path::new("tests/fixtures").join(fixture).display().to_string())).unwrap();
        agrees_with_oracle::<B>(device, &files, &quantised(body, head, kv), &prompt, GREEDY);
    }
}

fn quantised_demo_model<B: Backend>(device: &B::Options) {
    let files = ModelFiles::demo().unwrap();
    // Long enough to be taken as many rows, after which single ones follow.
    let prompt = [1, 300, 42, 77, 512, 261, 568, 478, 1343, 450, 426];
    // The oracle takes its time: the fixtures go on for longer in the other formats.
    for (body, tokens) in [("ternary", GREEDY), ("int4-g32", 12), ("int8", 12)] {
        agrees_with_oracle::<B>(device, &files, &quantised(body, "int8", KvFormat::F16), &prompt, tokens);
    }
}
