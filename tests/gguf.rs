//! Models as GGUF files: the fixtures, written as GGUF, are the same models.

use std::path::Path;

use trine::engine::{Engine, EngineOptions};
use trine::files::ModelFiles;
use trine::formats::{Checkpoint, Dtype, PackedTernary};
use trine::model::{Config, Family, Formats, RopeScaling};
use trine_backend::{Format, KvFormat};
use trine_cpu_tsar::{CpuTsar, Options};

use crate::golden;
use crate::program::{failure, project, run, trine};

const NAMES: [(&str, &str); 16] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.attn_sub_norm", "attn_sub_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.ffn_sub_norm", "ffn_sub_norm"),
];

/// GGUF's types by number.
mod kind {
    pub(super) const F32: u32 = 0;
    pub(super) const F16: u32 = 1;
    pub(super) const Q8_0: u32 = 8;
    pub(super) const BF16: u32 = 30;
    pub(super) const I2_S: u32 = 36;
}

/// A GGUF file in the making.
#[derive(Default)]
struct Writer {
    keys: Vec<Vec<u8>>,
    infos: Vec<Vec<u8>>,
    data: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Writer {
    fn text(&mut self, key: &str, value: &str) {
        self.keys.push([&text(key), &8u32.to_le_bytes()[..], &text(value)].concat());
    }

    fn int(&mut self, key: &str, value: usize) {
        self.keys.push([&text(key), &4u32.to_le_bytes()[..], &(value as u32).to_le_bytes()].concat());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.keys.push([&text(key), &6u32.to_le_bytes()[..], &value.to_le_bytes()].concat());
    }

    /// `shape` is outermost first.
    fn tensor(&mut self, name: &str, kind: u32, shape: &[usize], bytes: &[u8]) {
        let extents: Vec<u8> = shape.iter().rev().flat_map(|&extent| (extent as u64).to_le_bytes()).collect();
        let (dimensions, offset) = (shape.len() as u32, self.data.len() as u64);
        let parts = [&text(name), &dimensions.to_le_bytes()[..], &extents, &kind.to_le_bytes(), &offset.to_le_bytes()];
        self.infos.push(parts.concat());
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(32), 0);
    }

    fn build(self) -> Vec<u8> {
        let counts = [self.infos.len() as u64, self.keys.len() as u64];
        let mut file = [b"GGUF", &3u32.to_le_bytes()[..], &counts[0].to_le_bytes(), &counts[1].to_le_bytes()].concat();
        self.keys.iter().chain(&self.infos).for_each(|part| file.extend(part));
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }
}

/// GGUF's name of the fixture's tensor `name`.
fn gguf_name(name: &str) -> String {
    let (stem, tail) = name.rsplit_once('.').unwrap();
    let (layer, stem) = match stem.strip_prefix("model.layers.") {
        Some(rest) => rest.split_once('.').map(|(layer, stem)| (format!("blk.{layer}."), stem)).unwrap(),
        None => (String::new(), stem),
    };
    let (_, short) = NAMES.iter().find(|(long, _)| *long == stem).unwrap();
    format!("{layer}{short}.{tail}")
}

/// Rows as llama.cpp's converter puts them: of each head, one of the first half, one of the second, and so on.
fn interleave(bytes: &[u8], rows: usize, dim: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / rows;
    let row = |row: usize| &bytes[row * row_bytes..][..row_bytes];
    let heads = (0..rows).step_by(dim);
    heads
        .flat_map(|head| (0..dim / 2).flat_map(move |i| [row(head + i), row(head + dim / 2 + i)]))
        .flatten()
        .copied()
        .collect()
}

fn arch(config: &Config) -> &'static str {
    match config.family {
        Family::Llama => "llama",
        Family::Qwen2 => "qwen2",
        Family::Qwen3 => "qwen3",
        Family::BitNet => "bitnet-b1.58",
    }
}

/// What divides each frequency of a Llama 3 model, by the definition of its scaling.
fn rope_factors(config: &Config) -> Option<Vec<f32>> {
    let RopeScaling::Llama3 { factor, low, high, original_context } = config.rope.scaling else { return None };
    let dim = config.heads.dim;
    let factor_of = |pair: usize| {
        let wavelength = std::f64::consts::TAU * config.rope.base.powf(2.0 * pair as f64 / dim as f64);
        let turns = original_context as f64 / wavelength;
        let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        1.0 / ((1.0 - smooth) / factor + smooth)
    };
    Some((0..dim / 2).map(|pair| factor_of(pair) as f32).collect())
}

/// The fixture at `dir` as a GGUF file. Packed ternary matrices become I2_S.
fn convert(dir: &Path) -> Writer {
    let (config, checkpoint) = (Config::load(dir).unwrap(), Checkpoint::open(dir).unwrap());
    let arch = arch(&config);
    let mut out = Writer::default();
    out.text("general.architecture", arch);
    for (key, value) in [
        ("block_count", config.layers),
        ("context_length", config.context),
        ("embedding_length", config.hidden),
        ("feed_forward_length", config.intermediate),
        ("attention.head_count", config.heads.query),
        ("attention.head_count_kv", config.heads.kv),
        ("attention.key_length", config.heads.dim),
        ("rope.dimension_count", config.heads.dim),
    ] {
        out.int(&format!("{arch}.{key}"), value);
    }
    out.float(&format!("{arch}.attention.layer_norm_rms_epsilon"), config.eps);
    out.float(&format!("{arch}.rope.freq_base"), config.rope.base as f32);
    if let Some(factors) = rope_factors(&config) {
        let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
        out.tensor("rope_freqs.weight", kind::F32, &[factors.len()], &bytes);
    }
    for name in checkpoint.names().filter(|name| !name.ends_with("weight_scale")) {
        let tensor = checkpoint.tensor(name).unwrap();
        let kind = match tensor.dtype() {
            Dtype::F32 => kind::F32,
            Dtype::F16 => kind::F16,
            Dtype::BF16 => kind::BF16,
            _ => {
                let scale = checkpoint.tensor(&format!("{name}_scale")).unwrap().to_f32().unwrap()[0];
                let (shape, bytes) = i2_s(&PackedTernary::new(tensor).unwrap(), scale);
                out.tensor(&gguf_name(name), kind::I2_S, &shape, &bytes);
                continue;
            }
        };
        let bytes = match arch == "llama" && [".q_proj.", ".k_proj."].iter().any(|part| name.contains(part)) {
            true => interleave(tensor.bytes(), tensor.shape()[0], config.heads.dim),
            false => tensor.bytes().to_vec(),
        };
        out.tensor(&gguf_name(name), kind, tensor.shape(), &bytes);
    }
    out
}

/// As bitnet.cpp packs a matrix.
fn i2_s(packed: &PackedTernary<'_>, scale: f32) -> (Vec<usize>, Vec<u8>) {
    let (rows, columns) = (packed.rows(), packed.cols());
    let mut values = vec![0i8; rows * columns];
    values.chunks_mut(columns).enumerate().for_each(|(row, out)| packed.row(row, out).unwrap());
    let pack = |block: &[i8]| -> Vec<u8> {
        (0..32).map(|j| (0..4).fold(0, |byte, i| byte << 2 | (block[32 * i + j] + 1) as u8)).collect()
    };
    let mut bytes: Vec<u8> = values.chunks(128).flat_map(pack).collect();
    bytes.extend(scale.to_le_bytes());
    bytes.resize(bytes.len() + 28, 0);
    (vec![rows, columns], bytes)
}

fn logits(files: &ModelFiles, formats: Formats) -> Vec<f32> {
    let options = EngineOptions { kv: KvFormat::F32, outputs: 64, formats, ..EngineOptions::default() };
    let mut engine = Engine::<CpuTsar>::load(&Options::default(), files, &options, &mut |_| {}).unwrap();
    golden::run(&mut engine, &[1, 17, 300, 4, 250, 99, 33, 7, 180, 2, 61, 511], 0)
}

#[test]
fn a_fixture_as_gguf_is_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tiny-llama3-rope", "tiny-qwen2", "tiny-qwen3", "tiny-bitnet"] {
        let fixture = project("tests/fixtures").join(name);
        let path = dir.path().join(format!("{name}.gguf"));
        std::fs::write(&path, convert(&fixture).build()).unwrap();
        let (gguf, hugging_face) = (ModelFiles::open(&path).unwrap(), ModelFiles::open(&fixture).unwrap());
        let (found, expected) = (logits(&gguf, Formats::default()), logits(&hugging_face, Formats::default()));
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Frequency factors are stored in f32, where ours are f64; everything else is the same number.
        let bound = if name == "tiny-llama3-rope" { 1e-4 } else { 0.0 };
        assert!(worst <= bound, "{name}: off by {worst}");
        let body = Some("int4-g32".parse().unwrap());
        let formats = Formats { body, head: None, ..Formats::default() };
        if name != "tiny-llama3-rope" {
            assert_eq!(logits(&gguf, formats), logits(&hugging_face, formats), "{name}");
        }
    }
}

/// A matrix as Q8_0, whose codes go from -127 to 127 and whose scales are f16.
fn q8_0(values: &[f32]) -> Vec<u8> {
    let block = |values: &[f32]| {
        let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let scale = half::f16::from_f32(largest / 127.0);
        let code = |value: &f32| (value / scale.to_f32()).round().clamp(-127.0, 127.0) as i8 as u8;
        [scale.to_le_bytes().to_vec(), values.iter().map(code).collect()].concat()
    };
    values.chunks(32).flat_map(block).collect()
}

/// The Qwen2 fixture with its down projections as Q8_0.
fn mixed() -> Vec<u8> {
    let fixture = project("tests/fixtures/tiny-qwen2");
    let mut written = convert(&fixture);
    let checkpoint = Checkpoint::open(&fixture).unwrap();
    let mut other = Writer { keys: std::mem::take(&mut written.keys), ..Writer::default() };
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name).unwrap();
        let down = name.contains("mlp.down_proj");
        let (kind, bytes) = match down {
            true => (kind::Q8_0, q8_0(&tensor.to_f32().unwrap())),
            false => (kind::BF16, tensor.bytes().to_vec()),
        };
        let kind = if !down && tensor.dtype() == Dtype::F32 { kind::F32 } else { kind };
        other.tensor(&gguf_name(name), kind, tensor.shape(), &bytes);
    }
    other.build()
}

#[test]
fn formats_follow_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mixed.gguf");
    std::fs::write(&path, mixed()).unwrap();
    let files = ModelFiles::open(&path).unwrap();
    let engine = Engine::<CpuTsar>::load(&Options::default(), &files, &EngineOptions::default(), &mut |_| {}).unwrap();
    // The body counts as coded: its dense head becomes INT8 as in any other such model.
    assert_eq!(engine.plan().head_format, "int8".parse::<Format>().unwrap());
    assert_eq!(engine.plan().body_format, Format::Bf16);
    assert!(engine.plan().requantised.is_empty(), "{:?}", engine.plan().requantised);
}

#[test]
fn every_command_takes_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, mixed()).unwrap();
    let info = run(trine().args(["info", "--json", "-m"]).arg(&path));
    let info: serde_json::Value = serde_json::from_str(&info.stdout).unwrap();
    assert_eq!(info["family"], "Qwen2");
    assert!(info["file"]["dtypes"]["Q8_0"].as_u64().unwrap() > 0, "{info}");
    let bench = run(trine().args(["bench", "-p", "4", "-n", "2", "-r", "1", "-m"]).arg(&path));
    assert_eq!(bench.code, Some(0), "{bench:?}");
    let text = failure(trine().args(["run", "hello", "-m"]).arg(&path), 1);
    assert!(text.contains("model.gguf") && text.contains("text can't be read"), "{text}");
}

#[test]
fn a_model_of_another_kind_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let refused = |edit: &dyn Fn(&mut Writer), parts: &[&str]| {
        let mut writer = convert(&project("tests/fixtures/tiny-qwen2"));
        edit(&mut writer);
        std::fs::write(&path, writer.build()).unwrap();
        let line = failure(trine().args(["bench", "-p", "4", "-n", "1", "-r", "1", "-m"]).arg(&path), 1);
        assert!(line.contains("model.gguf: ") && parts.iter().all(|part| line.contains(part)), "{line}");
    };
    let without = |key: &'static str| {
        move |writer: &mut Writer| writer.keys.retain(|bytes| !bytes[8..].starts_with(key.as_bytes()))
    };
    refused(&without("general.architecture"), &["general.architecture: is missing"]);
    refused(&without("qwen2.block_count"), &["qwen2.block_count: is missing"]);
    refused(&without("qwen2.attention.layer_norm"), &["qwen2.attention.layer_norm_rms_epsilon: is missing"]);
    refused(&|writer| writer.int("qwen2.expert_count", 8), &["qwen2.expert_count: 8 experts"]);
    refused(&|writer| writer.int("qwen2.attention.value_length", 4), &["value_length: 4 is not supported"]);
    refused(&|writer| writer.text("qwen2.rope.scaling.type", "longrope"), &["\"longrope\" is not supported"]);
    refused(&|writer| writer.text("tokenizer.ggml.model", "bert"), &["\"bert\" is not supported: gpt2, llama are"]);
    refused(
        &|writer| writer.tensor("blk.0.ffn_gate_exps.weight", kind::F32, &[1], &[0; 4]),
        &["tensor \"blk.0.ffn_gate_exps.weight\": has no place in a Qwen2"],
    );
    let arch = |writer: &mut Writer| {
        without("general.architecture")(writer);
        writer.text("general.architecture", "gemma3");
    };
    refused(&arch, &["\"gemma3\" is not supported: llama, qwen2, qwen3, bitnet, bitnet-b1.58"]);
}
