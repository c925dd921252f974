//! What loading takes.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::program::{run, trine};

const HIDDEN: u64 = 1024;
const INTERMEDIATE: u64 = 4096;
const LAYERS: u64 = 4;
const VOCAB: u64 = 512;

/// A dense bf16 Llama of 60 M random parameters, 121 MB.
fn write_model(dir: &Path) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": 16,
        "num_key_value_heads": 4, "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true,
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();

    let mut tensors =
        vec![("model.embed_tokens".to_owned(), vec![VOCAB, HIDDEN]), ("model.norm".to_owned(), vec![HIDDEN])];
    for layer in 0..LAYERS {
        let mut add =
            |name: &str, shape: &[u64]| tensors.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        add("input_layernorm", &[HIDDEN]);
        add("post_attention_layernorm", &[HIDDEN]);
        add("self_attn.q_proj", &[HIDDEN, HIDDEN]);
        add("self_attn.k_proj", &[HIDDEN / 4, HIDDEN]);
        add("self_attn.v_proj", &[HIDDEN / 4, HIDDEN]);
        add("self_attn.o_proj", &[HIDDEN, HIDDEN]);
        add("mlp.gate_proj", &[INTERMEDIATE, HIDDEN]);
        add("mlp.up_proj", &[INTERMEDIATE, HIDDEN]);
        add("mlp.down_proj", &[HIDDEN, INTERMEDIATE]);
    }
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<u64>();
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] });
        header.insert(format!("{name}.weight"), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = BufWriter::new(File::create(dir.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    let mut state = 1u64;
    for _ in 0..end / 2 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // A random sign and mantissa below an exponent of 2^-5: weights of at most 1/16.
        let bits = (state >> 48) as u16 & 0x807f | 0x3d00;
        file.write_all(&bits.to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
}

/// A size as the program prints it, in bytes.
fn bytes(text: &str) -> f64 {
    let (number, unit) = text.split_once(' ').unwrap();
    let scale = match unit {
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        other => panic!("{other} in {text}"),
    };
    number.parse::<f64>().unwrap() * scale
}

#[test]
#[cfg(target_os = "linux")]
fn the_peak_is_the_final_size_and_one_matrix() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path());
    let flags = ["-p", "1", "-n", "1", "-r", "1", "-t", "2", "-b", "1", "--weights", "int4-g32", "-v", "-m"];
    let ran = run(trine().arg("bench").args(flags).arg(dir.path()));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let after = |label: &str| {
        let at = ran.stderr.find(label).unwrap_or_else(|| panic!("{label} in {ran:?}")) + label.len();
        ran.stderr[at..].lines().next().unwrap().trim_end().to_owned()
    };
    let peak = bytes(&after("peak memory "));

    let info =
        run(trine().args(["info", "--json", "--weights", "int4-g32", "-b", "1", "-c", "2", "-m"]).arg(dir.path()));
    let info: Value = serde_json::from_str(&info.stdout).unwrap();
    let (total, file) = (info["memory"]["total"].as_f64().unwrap(), info["file"]["bytes"].as_f64().unwrap());
    // Gate and up together: bf16 in the file, and packed on the host beside the device's copy.
    let largest = (2 * INTERMEDIATE * HIDDEN) as f64 * (2.0 + 0.5625);
    // The program itself, with the demo model in it, and the threads that pack.
    let program = (24 << 20) as f64;
    println!("peak {peak}, final {total}, one matrix {largest}, file {file}");
    assert!(peak <= total + largest + program, "peak {peak}, final {total}, one matrix {largest}");
    assert!(total + largest + program < file, "the bound must be able to fail: the file has {file}");
}
