//! What bad models get: one line that says what is wrong and where, before anything is computed.

use std::fs::{self, File};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::program::{copy_of, failure, project, trine};

/// A tensor of a safetensors file.
#[derive(Clone)]
struct Tensor {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

fn header_length(file: &[u8]) -> usize {
    usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap()
}

fn weights(dir: &Path) -> std::path::PathBuf {
    dir.join("model.safetensors")
}

/// Changes the header's JSON and leaves the data as they are.
fn edit_header(dir: &Path, edit: impl FnOnce(&mut Map<String, Value>)) {
    let file = fs::read(weights(dir)).unwrap();
    let end = 8 + header_length(&file);
    let mut header = serde_json::from_slice(&file[8..end]).unwrap();
    edit(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(weights(dir), [&length, header.as_slice(), &file[end..]].concat()).unwrap();
}

/// Changes the tensors and writes a sound file of them.
fn edit_tensors(dir: &Path, edit: impl FnOnce(&mut Vec<Tensor>)) {
    let file = fs::read(weights(dir)).unwrap();
    let end = 8 + header_length(&file);
    let header: Map<String, Value> = serde_json::from_slice(&file[8..end]).unwrap();
    let read = |(name, entry): (&String, &Value)| {
        let offset = |i: usize| end + usize::try_from(entry["data_offsets"][i].as_u64().unwrap()).unwrap();
        Tensor {
            name: name.clone(),
            dtype: entry["dtype"].as_str().unwrap().to_owned(),
            shape: serde_json::from_value(entry["shape"].clone()).unwrap(),
            bytes: file[offset(0)..offset(1)].to_vec(),
        }
    };
    let mut tensors: Vec<_> = header.iter().filter(|(name, _)| *name != "__metadata__").map(read).collect();
    edit(&mut tensors);
    let mut data = Vec::new();
    let mut header = Map::new();
    for tensor in tensors {
        let start = data.len();
        data.extend(&tensor.bytes);
        let entry = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()] });
        header.insert(tensor.name, entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    fs::write(weights(dir), [&(header.len() as u64).to_le_bytes(), header.as_slice(), &data].concat()).unwrap();
}

fn edit_config(dir: &Path, fields: &[(&str, Value)]) {
    let path = dir.join("config.json");
    let mut config: Map<String, Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    fs::write(&path, serde_json::to_vec(&config).unwrap()).unwrap();
}

fn find<'a>(tensors: &'a mut [Tensor], name: &str) -> &'a mut Tensor {
    tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

/// The line that loading `model` fails with, which must hold each of `parts`.
#[track_caller]
fn refuses(model: &Path, parts: &[&str]) -> String {
    let line = failure(trine().args(["bench", "-p", "4", "-n", "1", "-r", "1", "-m"]).arg(model), 1);
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in: {line}");
    }
    line
}

/// As [`refuses`], for a small model that `damage` was done to.
#[track_caller]
fn refuses_damaged(damage: impl FnOnce(&Path), parts: &[&str]) -> String {
    let dir = copy_of("tests/fixtures/tiny-qwen2");
    damage(dir.path());
    refuses(dir.path(), parts)
}

const GATE: &str = "model.layers.1.mlp.gate_proj.weight";

#[test]
fn the_model_is_sound_before_it_is_damaged() {
    let dir = copy_of("tests/fixtures/tiny-qwen2");
    edit_tensors(dir.path(), |_| {});
    edit_header(dir.path(), |_| {});
    edit_config(dir.path(), &[]);
    trine().args(["bench", "-p", "4", "-n", "1", "-r", "1", "-m"]).arg(dir.path()).assert().success();
}

#[test]
fn no_model_there() {
    let dir = tempfile::tempdir().unwrap();
    refuses(&dir.path().join("nowhere"), &["nowhere", "No such file or directory"]);
    refuses(dir.path(), &["holds no model", "config.json, model.safetensors"]);
    refuses_damaged(|dir| fs::remove_file(dir.join("config.json")).unwrap(), &["config.json is missing"]);
    refuses_damaged(|dir| fs::remove_file(weights(dir)).unwrap(), &["model"]);
}

#[test]
fn another_format() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = dir.path().join("model.gguf");
    fs::write(&gguf, b"GGUF\x03\0\0\0 and more").unwrap();
    refuses(&gguf, &["model.gguf", "truncated or damaged"]);
    refuses(dir.path(), &["GGUF", "model.gguf", "give that file itself"]);
}

#[test]
fn damaged_safetensors() {
    let cut = |keep: fn(usize) -> usize| {
        move |dir: &Path| {
            let file = fs::read(weights(dir)).unwrap();
            fs::write(weights(dir), &file[..keep(file.len())]).unwrap();
        }
    };
    for keep in [|_| 0, |_| 7, |_| 100, |length| length / 2, |length| length - 1] as [fn(usize) -> usize; 5] {
        refuses_damaged(cut(keep), &["model.safetensors"]);
    }
    refuses_damaged(
        |dir| {
            let mut file = fs::read(weights(dir)).unwrap();
            file[..8].copy_from_slice(&(1u64 << 60).to_le_bytes());
            fs::write(weights(dir), file).unwrap();
        },
        &["model.safetensors", "header"],
    );
    refuses_damaged(
        |dir| edit_header(dir, |header| header["model.norm.weight"]["data_offsets"] = json!([1050624, 1u64 << 40])),
        &["model.safetensors"],
    );
    refuses_damaged(
        |dir| edit_header(dir, |header| header["model.norm.weight"]["data_offsets"] = json!([262144, 262400])),
        &["model.safetensors"],
    );
}

#[test]
fn tensors_that_are_not_the_configs() {
    refuses_damaged(
        |dir| edit_tensors(dir, |tensors| find(tensors, GATE).dtype = "I16".into()),
        &["model.safetensors", GATE, "I16", "BF16"],
    );
    refuses_damaged(
        |dir| edit_tensors(dir, |tensors| tensors.retain(|tensor| tensor.name != GATE)),
        &[GATE, "is missing"],
    );
    refuses_damaged(
        |dir| {
            edit_tensors(dir, |tensors| {
                let mut extra = find(tensors, GATE).clone();
                extra.name = "model.layers.2.mlp.gate_proj.weight".into();
                tensors.push(extra);
            });
        },
        &["model.layers.2.mlp.gate_proj.weight", "has no place", "2 layers"],
    );
    refuses_damaged(|dir| edit_config(dir, &[("intermediate_size", json!(256))]), &["proj.weight", "384", "256"]);
    refuses_damaged(|dir| edit_config(dir, &[("vocab_size", json!(500))]), &["512", "500"]);
    refuses_damaged(
        |dir| {
            edit_tensors(dir, |tensors| {
                // bf16 NaN, in row 5 of 128 columns.
                find(tensors, GATE).bytes[2 * (5 * 128 + 7)..][..2].copy_from_slice(&[0xc0, 0x7f]);
            });
        },
        &["model.safetensors", GATE, "NaN", "5"],
    );
}

#[test]
fn configs_that_make_no_sense() {
    refuses_damaged(
        |dir| edit_config(dir, &[("num_attention_heads", json!(0))]),
        &["config.json", "num_attention_heads"],
    );
    refuses_damaged(|dir| edit_config(dir, &[("num_key_value_heads", json!(3))]), &["num_key_value_heads", "3", "4"]);
    let supported =
        ["GPT2LMHeadModel", "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "BitNetForCausalLM"];
    refuses_damaged(|dir| edit_config(dir, &[("architectures", json!(["GPT2LMHeadModel"]))]), &supported);
    refuses_damaged(|dir| fs::write(dir.join("config.json"), "{").unwrap(), &["config.json", "JSON"]);
    refuses_damaged(|dir| edit_config(dir, &[("hidden_size", json!(u64::MAX))]), &["hidden_size"]);
    refuses_damaged(|dir| edit_config(dir, &[("rms_norm_eps", json!("small"))]), &["rms_norm_eps"]);
}

#[test]
fn tokenizers_that_do_not_fit() {
    let demo = project("models/tales-bitnet-20m/tokenizer.json");
    refuses_damaged(
        |dir| {
            fs::copy(&demo, dir.join("tokenizer.json")).unwrap();
        },
        &["tokenizer.json", "4096", "512"],
    );
    for bad in ["{", "[]", "{}", "\u{0}"] {
        refuses_damaged(|dir| fs::write(dir.join("tokenizer.json"), bad).unwrap(), &["tokenizer.json"]);
    }
    // A model without a tokenizer takes no text.
    let fixture = project("tests/fixtures/tiny-qwen2");
    let line = failure(trine().args(["run", "hello", "-m"]).arg(&fixture), 1);
    assert!(line.contains("tokenizer.json is missing"), "{line}");
}

#[test]
fn formats_that_do_not_fit() {
    let fixture = project("tests/fixtures/tiny-qwen2");
    let line = failure(trine().args(["bench", "--weights", "nonsense", "-m"]).arg(&fixture), 2);
    assert!(line.contains("'nonsense'") && line.contains("int4-g128"), "{line}");
    for command in ["bench", "info"] {
        let line = failure(trine().args([command, "--weights", "ternary", "-m"]).arg(&fixture), 2);
        assert!(line.contains("no ternary weights") && line.contains("int8"), "{line}");
    }
}

/// A model of about a tebibyte: its file is sparse, and refused before any of it is read.
#[test]
fn a_model_larger_than_the_memory() {
    let dir = copy_of("tests/fixtures/tiny-qwen2");
    let (vocab, hidden) = (1u64 << 24, 1u64 << 15);
    let fields = [("vocab_size", vocab.into()), ("hidden_size", hidden.into()), ("head_dim", 32.into())];
    edit_config(dir.path(), &fields);
    edit_config(dir.path(), &[("tie_word_embeddings", true.into())]);

    let file = fs::read(weights(dir.path())).unwrap();
    let header: Map<String, Value> = serde_json::from_slice(&file[8..8 + header_length(&file)]).unwrap();
    let mut end = 0u64;
    let mut large = Map::new();
    for (name, entry) in header.iter().filter(|(name, _)| !matches!(name.as_str(), "__metadata__" | "lm_head.weight")) {
        // Every 128 is the width of the residual stream, but for the rows of q_proj and the columns of o_proj.
        let mut shape: Vec<u64> = serde_json::from_value(entry["shape"].clone()).unwrap();
        let keep = if name.contains("q_proj") { Some(0) } else { name.contains("o_proj").then_some(1) };
        for (axis, size) in shape.iter_mut().enumerate() {
            match *size {
                512 => *size = vocab,
                128 if keep != Some(axis) => *size = hidden,
                _ => {}
            }
        }
        let start = end;
        end += 2 * shape.iter().product::<u64>();
        large.insert(name.clone(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] }));
    }
    let header = serde_json::to_vec(&large).unwrap();
    fs::write(weights(dir.path()), [&(header.len() as u64).to_le_bytes(), header.as_slice()].concat()).unwrap();
    let file = File::options().write(true).open(weights(dir.path())).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();

    let line = refuses(dir.path(), &["the model needs 1.0 TiB", "KV cache", "activations", "is free", "--weights"]);
    assert!(line.len() < 300, "{line}");
    // Looking at it is allowed.
    trine().args(["info", "-m"]).arg(dir.path()).assert().success();
}
