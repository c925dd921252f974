use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::formats::test_files::{FIXTURES, fixture};
use crate::formats::words::{GptqBits, Packing};

const CONFIG: &str = "m/config.json";
const GENERATION: &str = "m/generation_config.json";

fn parse(config: &Value, generation: Option<&Value>) -> Result<Config> {
    let config = config.to_string();
    let generation = generation.map(Value::to_string);
    let generation = generation.as_ref().map(|text| (Path::new(GENERATION), text.as_bytes()));
    Config::parse((Path::new(CONFIG), config.as_bytes()), generation)
}

/// A small Llama with `changes` on top: null takes a field away.
fn llama(changes: Value) -> Value {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 500000, "hidden_act": "silu",
        "bos_token_id": 1, "eos_token_id": 2
    });
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    config
}

fn of(changes: Value) -> Result<Config> {
    parse(&llama(changes), None)
}

/// The error's text after the file's name.
fn problem(changes: Value) -> String {
    let error = of(changes.clone()).expect_err(&changes.to_string()).to_string();
    assert!(!error.contains('\n'), "{error}");
    error.strip_prefix("m/config.json: ").unwrap().to_owned()
}

fn fixture_config(name: &str) -> Config {
    Config::load(fixture(name)).unwrap()
}

/// What all fixtures have in common, for a change or two.
fn tiny(family: Family) -> Config {
    Config {
        family,
        vocab: 512,
        hidden: 128,
        intermediate: 384,
        layers: 2,
        heads: Heads { query: 4, kv: 2, dim: 32 },
        context: 512,
        eps: 1e-6,
        rope: RopeConfig { base: 1_000_000.0, scaling: RopeScaling::None },
        gate: Gate::Silu,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        qk_norm: false,
        sub_norms: false,
        tied: false,
        bos: Some(1),
        eos: vec![2],
        sampling: SamplingDefaults::default(),
        quantization: Quantization::None,
    }
}

#[test]
fn the_fixtures_are_what_they_are() {
    let rope = |scaling| RopeConfig { base: 500_000.0, scaling };
    let bitnet = |divide, online| Quantization::Bitnet { divide, online };
    let tiny_bitnet = Config {
        eps: 1e-5,
        rope: rope(RopeScaling::None),
        gate: Gate::Relu2,
        sub_norms: true,
        tied: true,
        quantization: bitnet(false, false),
        ..tiny(Family::BitNet)
    };
    assert_eq!(fixture_config("tiny-bitnet"), tiny_bitnet);
    let online = Config { quantization: bitnet(false, true), ..tiny_bitnet };
    assert_eq!(fixture_config("tiny-bitnet-online"), online);
    let b158 = Config { rope: rope(RopeScaling::None), quantization: bitnet(true, false), ..tiny(Family::Llama) };
    assert_eq!(fixture_config("tiny-llama-b158"), b158);
    let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 64 };
    assert_eq!(fixture_config("tiny-llama3-rope"), Config { rope: rope(scaling), ..tiny(Family::Llama) });
    assert_eq!(fixture_config("tiny-qwen2"), Config { qkv_bias: true, ..tiny(Family::Qwen2) });
    let heads = Heads { query: 4, kv: 2, dim: 64 };
    assert_eq!(fixture_config("tiny-qwen3"), Config { heads, qk_norm: true, tied: true, ..tiny(Family::Qwen3) });
    assert_eq!(FIXTURES.len(), 6, "a fixture is not checked here");
}

#[test]
fn the_demo_model_brings_its_sampling() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/tales-bitnet-20m");
    let config = Config::load(dir).unwrap();
    assert_eq!((config.vocab, config.hidden, config.intermediate, config.layers), (4096, 384, 1280, 10));
    assert_eq!(config.heads, Heads { query: 6, kv: 2, dim: 64 });
    assert_eq!(config.rope, RopeConfig { base: 10_000.0, scaling: RopeScaling::None });
    assert_eq!(config.quantization, Quantization::Bitnet { divide: false, online: false });
    let sampling = SamplingDefaults {
        do_sample: Some(true),
        temperature: Some(0.7),
        top_p: Some(0.9),
        top_k: None,
        repetition_penalty: None,
    };
    assert_eq!(config.sampling, sampling);
}

#[test]
fn files_that_are_missing_or_no_json_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let load = || Config::load(dir.path()).unwrap_err().to_string();
    assert!(load().contains("config.json is missing: give a Hugging Face directory"), "{}", load());
    for (text, expected) in [("", "not valid JSON: "), ("[]", "not a JSON object"), ("{\"a\":NaN}", "not valid JSON: ")]
    {
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        assert!(load().contains(&format!("config.json: {expected}")), "{}", load());
    }
    std::fs::write(dir.path().join("config.json"), llama(json!({})).to_string()).unwrap();
    assert!(Config::load(dir.path()).is_ok());
    std::fs::write(dir.path().join("generation_config.json"), "no").unwrap();
    assert!(load().contains("generation_config.json: not valid JSON: "), "{}", load());
    let large = vec![b' '; limit::FILE as usize + 1];
    std::fs::write(dir.path().join("config.json"), large).unwrap();
    assert!(load().contains("over the limit of 16777216 for a configuration"), "{}", load());
}

#[test]
fn each_required_field_is_missed_by_name() {
    for field in [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
        "rms_norm_eps",
    ] {
        assert_eq!(problem(json!({field: null})), format!("{field}: is missing"));
    }
}

#[test]
fn sizes_have_limits() {
    for (field, most) in [
        ("vocab_size", limit::VOCAB),
        ("hidden_size", limit::HIDDEN),
        ("intermediate_size", limit::INTERMEDIATE),
        ("num_hidden_layers", limit::LAYERS),
        ("num_attention_heads", limit::HEADS),
        ("num_key_value_heads", limit::HEADS),
        ("head_dim", limit::HEAD_DIM),
        ("max_position_embeddings", limit::CONTEXT),
    ] {
        for bad in
            [json!(0), json!(-1), json!(most + 1), json!(u64::MAX), json!(1.5), json!(1e300), json!("8"), json!([8])]
        {
            let found = problem(json!({field: bad}));
            let wanted = format!("where a whole number from 1 to {most} is needed");
            assert!(found.starts_with(&format!("{field}: ")) && found.ends_with(&wanted), "{bad}: {found}");
        }
    }
}

#[test]
fn wrong_types_are_told() {
    let long = "x".repeat(1000);
    for (changes, expected) in [
        (json!({"tie_word_embeddings": 1}), "tie_word_embeddings: 1 where true or false is needed"),
        (json!({"hidden_act": 3}), "hidden_act: 3 where a string is needed"),
        (json!({"rms_norm_eps": "small"}), "rms_norm_eps: \"small\" where a number is needed"),
        (json!({"rope_theta": {}}), "rope_theta: an object where a number is needed"),
        (json!({"rope_scaling": 1}), "rope_scaling: 1 where an object is needed"),
        (
            json!({"architectures": "LlamaForCausalLM"}),
            "architectures: \"LlamaForCausalLM\" where a list of strings is needed",
        ),
        (json!({"architectures": [1]}), "architectures: a list of 1 where a list of strings is needed"),
        (json!({"quantization_config": []}), "quantization_config: a list of 0 where an object is needed"),
    ] {
        assert_eq!(problem(changes), expected);
    }
    assert!(problem(json!({"attention_bias": long})).len() < 200);
}

#[test]
fn heads_must_divide() {
    assert_eq!(of(json!({"num_key_value_heads": null})).unwrap().heads, Heads { query: 4, kv: 4, dim: 16 });
    assert_eq!(of(json!({"head_dim": 6})).unwrap().heads, Heads { query: 4, kv: 2, dim: 6 });
    assert_eq!(
        problem(json!({"num_key_value_heads": 3})),
        "num_key_value_heads: 3 does not divide num_attention_heads 4"
    );
    assert_eq!(
        problem(json!({"num_key_value_heads": 8})),
        "num_key_value_heads: 8 does not divide num_attention_heads 4"
    );
    let found = problem(json!({"hidden_size": 66}));
    assert_eq!(found, "hidden_size: 66 is not a multiple of num_attention_heads 4 and head_dim is missing");
    assert!(of(json!({"hidden_size": 66, "head_dim": 16})).is_ok());
    assert_eq!(problem(json!({"head_dim": 7})), "head_dim: 7 is odd, and RoPE turns pairs");
    assert_eq!(
        problem(json!({"hidden_size": 60, "num_key_value_heads": 4})),
        "head_dim: 15 is odd, and RoPE turns pairs"
    );
    let found = problem(json!({"num_attention_heads": 65536, "head_dim": 8192}));
    assert_eq!(found, "head_dim: 65536 heads of 8192 are over the limit of 16777216 values");
}

#[test]
fn eps_is_small_and_positive() {
    for bad in [json!(0), json!(-1e-5), json!(1), json!(1e-60)] {
        let found = problem(json!({"rms_norm_eps": bad}));
        assert!(found.starts_with("rms_norm_eps: ") && found.ends_with("is not between 0 and 1"), "{found}");
    }
}

#[test]
fn families_follow_architecture_then_model_type() {
    let family = |changes: Value| of(changes).unwrap().family;
    assert_eq!(family(json!({"architectures": ["Qwen2ForCausalLM"]})), Family::Qwen2);
    assert_eq!(family(json!({"architectures": ["BitnetForCausalLM"]})), Family::BitNet);
    assert_eq!(family(json!({"architectures": null, "model_type": "qwen3"})), Family::Qwen3);
    assert_eq!(family(json!({"architectures": [], "model_type": "bitnet"})), Family::BitNet);
    let known = "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, BitNetForCausalLM, BitnetForCausalLM are";
    let found = problem(json!({"architectures": ["MistralForCausalLM"]}));
    assert_eq!(found, format!("architectures: \"MistralForCausalLM\" is not supported: {known}"));
    let found = problem(json!({"architectures": null, "model_type": "gpt2"}));
    assert_eq!(found, "model_type: \"gpt2\" is not supported: llama, qwen2, qwen3, bitnet are");
    assert_eq!(problem(json!({"architectures": null, "model_type": null})), "model_type: is missing");
}

#[test]
fn biases_are_the_family_s_or_the_file_s() {
    let biases = |architecture: &str, flags: bool| {
        let changes = json!({"architectures": [architecture], "attention_bias": flags, "mlp_bias": flags});
        let config = of(changes).unwrap();
        (config.qkv_bias, config.output_bias, config.mlp_bias)
    };
    assert_eq!(biases("LlamaForCausalLM", false), (false, false, false));
    assert_eq!(biases("LlamaForCausalLM", true), (true, true, true));
    assert_eq!(biases("Qwen2ForCausalLM", false), (true, false, false));
    assert_eq!(biases("Qwen2ForCausalLM", true), (true, false, false));
    assert_eq!(biases("Qwen3ForCausalLM", true), (true, true, false));
    assert_eq!(biases("BitNetForCausalLM", true), (true, true, false));
}

#[test]
fn gates_are_named() {
    let bitnet = json!(["BitNetForCausalLM"]);
    assert_eq!(of(json!({"hidden_act": "relu2"})).unwrap().gate, Gate::Relu2);
    assert_eq!(of(json!({"hidden_act": null})).unwrap().gate, Gate::Silu);
    assert_eq!(of(json!({"hidden_act": null, "architectures": bitnet})).unwrap().gate, Gate::Relu2);
    assert_eq!(problem(json!({"hidden_act": "gelu"})), "hidden_act: \"gelu\" is not supported: silu, relu2 are");
}

#[test]
fn windows_limit_the_context() {
    let context = |changes: Value| {
        let mut config = llama(json!({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 100}));
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        parse(&config, None).map(|config| config.context)
    };
    assert_eq!(context(json!({})).unwrap(), 256);
    assert_eq!(context(json!({"use_sliding_window": false})).unwrap(), 256);
    assert_eq!(context(json!({"use_sliding_window": true})).unwrap(), 100);
    assert_eq!(context(json!({"use_sliding_window": true, "sliding_window": 1000})).unwrap(), 256);
    assert_eq!(context(json!({"use_sliding_window": true, "max_window_layers": 2})).unwrap(), 100);
    assert_eq!(context(json!({"use_sliding_window": true, "max_window_layers": 3})).unwrap(), 256);
    let full = json!(["full_attention", "full_attention", "full_attention"]);
    assert_eq!(context(json!({"use_sliding_window": true, "layer_types": full})).unwrap(), 256);
    let mixed = json!(["full_attention", "sliding_attention", "full_attention"]);
    assert_eq!(context(json!({"use_sliding_window": true, "layer_types": mixed})).unwrap(), 100);
    let missing = context(json!({"use_sliding_window": true, "sliding_window": null})).unwrap_err().to_string();
    assert_eq!(missing, "m/config.json: sliding_window: is missing");
    let linear = context(json!({"layer_types": ["linear_attention"]})).unwrap_err().to_string();
    assert_eq!(linear, "m/config.json: layer_types: \"linear_attention\" is not supported");
}

#[test]
fn rope_is_read_in_its_old_and_its_new_form() {
    let rope = |changes: Value| of(changes).unwrap().rope;
    let plain = RopeConfig { base: 500_000.0, scaling: RopeScaling::None };
    assert_eq!(rope(json!({})), plain);
    assert_eq!(rope(json!({"rope_scaling": {}})), plain);
    assert_eq!(rope(json!({"rope_scaling": {"rope_type": "default"}, "pretraining_tp": 4})), plain);
    assert_eq!(rope(json!({"rope_theta": null})), RopeConfig { base: 10_000.0, ..plain.clone() });
    let linear = RopeScaling::Linear { factor: 2.5 };
    assert_eq!(
        rope(json!({"rope_scaling": {"type": "linear", "factor": 2.5}})),
        RopeConfig { scaling: linear.clone(), ..plain.clone() }
    );
    let parameters = json!({"rope_type": "linear", "factor": 2.5, "rope_theta": 70});
    let expected = RopeConfig { base: 70.0, scaling: linear };
    assert_eq!(rope(json!({"rope_theta": null, "rope_parameters": parameters})), expected);
    let qwen = problem(json!({"architectures": ["Qwen2ForCausalLM"], "rope_theta": null}));
    assert_eq!(qwen, "rope_theta: is missing, and in rope_parameters too");
    for factor in [json!(1), json!(1.0)] {
        assert_eq!(rope(json!({"partial_rotary_factor": factor})), plain);
    }
}

#[test]
fn yarn_has_defaults() {
    let yarn = |changes: Value| {
        let mut scaling = json!({"rope_type": "yarn", "factor": 4.0});
        scaling.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        of(json!({"rope_scaling": scaling})).map(|config| config.rope.scaling)
    };
    let attention = 0.1 * 4f64.ln() + 1.0;
    let expected = |original_context, beta_fast, beta_slow, attention_factor, truncate| RopeScaling::Yarn {
        factor: 4.0,
        original_context,
        beta_fast,
        beta_slow,
        attention_factor,
        truncate,
    };
    assert_eq!(yarn(json!({})).unwrap(), expected(256, 32.0, 1.0, attention, true));
    let changes = json!({"original_max_position_embeddings": 64, "beta_fast": 20, "beta_slow": 2,
        "attention_factor": 1.5, "truncate": false});
    assert_eq!(yarn(changes).unwrap(), expected(64, 20.0, 2.0, 1.5, false));
    let by_scales = (0.1 * 2.0 * 4f64.ln() + 1.0) / attention;
    assert_eq!(yarn(json!({"mscale": 2, "mscale_all_dim": 1})).unwrap(), expected(256, 32.0, 1.0, by_scales, true));
    assert_eq!(yarn(json!({"mscale": 2, "mscale_all_dim": 0})).unwrap(), expected(256, 32.0, 1.0, attention, true));
    let error = |changes: Value| yarn(changes).unwrap_err().to_string();
    assert!(error(json!({"beta_slow": 32})).ends_with("rope_scaling.beta_fast: 32 is not over beta_slow 32"));
    assert!(error(json!({"beta_slow": -1})).ends_with("rope_scaling.beta_slow: -1 is not positive"));
    assert!(error(json!({"mscale": -100, "mscale_all_dim": 1})).contains("rope_scaling.mscale: gives -"));
}

#[test]
fn rope_that_is_not_there_is_refused() {
    let llama3 = |low: f64, high: f64| {
        json!({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": low,
            "high_freq_factor": high, "original_max_position_embeddings": 64}})
    };
    let known = "default, linear, llama3, yarn are";
    for (changes, expected) in [
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2}}),
            format!("rope_scaling.type: \"dynamic\" is not supported: {known}"),
        ),
        (
            json!({"rope_parameters": {"rope_type": "longrope"}}),
            format!("rope_parameters.rope_type: \"longrope\" is not supported: {known}"),
        ),
        (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor: is missing".to_owned()),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 0.5}}),
            "rope_scaling.factor: 0.5 is not between 1 and 1000000".to_owned(),
        ),
        (json!({"rope_theta": 1}), "rope_theta: 1 is not over 1".to_owned()),
        (json!({"rope_theta": -5}), "rope_theta: -5 is not over 1".to_owned()),
        (llama3(4.0, 4.0), "rope_scaling.high_freq_factor: 4 is not over low_freq_factor 4".to_owned()),
        (llama3(0.0, 4.0), "rope_scaling.low_freq_factor: 0 is not positive".to_owned()),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor: 0.5 is not supported: only 1 is".to_owned()),
        (
            json!({"rope_parameters": {"partial_rotary_factor": 0.25}}),
            "rope_parameters.partial_rotary_factor: 0.25 is not supported: only 1 is".to_owned(),
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_theta": 5}}}),
            "rope_parameters.full_attention: RoPE that differs by layer type is not supported".to_owned(),
        ),
    ] {
        assert_eq!(problem(changes), expected);
    }
}

#[test]
fn ids_lie_in_the_vocabulary() {
    let ends = |config: Value, generation: Value| {
        parse(&llama(config), Some(&generation)).map(|config| (config.bos, config.eos)).map_err(|e| e.to_string())
    };
    assert_eq!(ends(json!({}), json!({})), Ok((Some(1), vec![2])));
    assert_eq!(ends(json!({"eos_token_id": [5, 6, 5]}), json!({})), Ok((Some(1), vec![5, 6])));
    assert_eq!(ends(json!({"eos_token_id": 5}), json!({"eos_token_id": [7, 8]})), Ok((Some(1), vec![7, 8])));
    assert_eq!(ends(json!({"bos_token_id": null, "eos_token_id": null}), json!({})), Ok((None, vec![])));
    assert_eq!(ends(json!({}), json!({"bos_token_id": 999, "eos_token_id": null})), Ok((Some(999), vec![2])));
    for bad in [json!(1000), json!(-1), json!("2"), json!([2, 1000]), json!([[2]]), json!(2.0), json!(1u64 << 40)] {
        let found = problem(json!({"eos_token_id": bad}));
        assert!(
            found.starts_with("eos_token_id: ") && found.ends_with("is not a token id below vocab_size 1000"),
            "{found}"
        );
        let found = ends(json!({}), json!({"bos_token_id": bad})).unwrap_err();
        assert!(found.starts_with("m/generation_config.json: bos_token_id: "), "{found}");
    }
    let many = vec![1; 1025];
    assert_eq!(problem(json!({"eos_token_id": many})), "eos_token_id: 1025 ids are over the limit of 1024");
}

#[test]
fn sampling_has_ranges() {
    let sampling = |generation: Value| parse(&llama(json!({})), Some(&generation)).map(|config| config.sampling);
    let all = json!({"do_sample": false, "temperature": 0, "top_p": 1, "top_k": 0, "repetition_penalty": 1.05});
    let expected = SamplingDefaults {
        do_sample: Some(false),
        temperature: Some(0.0),
        top_p: Some(1.0),
        top_k: Some(0),
        repetition_penalty: Some(1.05),
    };
    assert_eq!(sampling(all).unwrap(), expected);
    assert_eq!(sampling(json!({"temperature": null, "top_k": null})).unwrap(), SamplingDefaults::default());
    for (field, bad) in [
        ("temperature", json!(-0.1)),
        ("temperature", json!(1e9)),
        ("top_p", json!(0)),
        ("top_p", json!(1.01)),
        ("top_k", json!(-1)),
        ("repetition_penalty", json!(0)),
        ("do_sample", json!("yes")),
    ] {
        let found = sampling(json!({field: bad})).unwrap_err().to_string();
        assert!(found.starts_with(&format!("m/generation_config.json: {field}: ")), "{found}");
    }
}

#[test]
fn quantisation_is_bitnet_or_refused() {
    let quantization = |fields: Value| of(json!({"quantization_config": fields})).map(|config| config.quantization);
    let bitnet = |divide, online| Quantization::Bitnet { divide, online };
    // As in the first Llama3-8B-1.58 files.
    let old = json!({"quant_method": "bitnet", "modules_to_not_convert": null});
    assert_eq!(quantization(old).unwrap(), bitnet(true, false));
    let auto = json!({"quant_method": "bitnet", "linear_class": "autobitlinear", "modules_to_not_convert": ["lm_head"],
        "use_rms_norm": false, "rms_norm_eps": 1e-6});
    assert_eq!(quantization(auto).unwrap(), bitnet(false, false));
    let online = json!({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"});
    assert_eq!(quantization(online).unwrap(), bitnet(false, true));
    let trine = |activations| json!({"quant_method": "trine", "version": 1, "activations": activations});
    assert_eq!(quantization(trine("block")).unwrap(), Quantization::Trine { per_token: false });
    assert_eq!(quantization(trine("token")).unwrap(), Quantization::Trine { per_token: true });
    let words = |packing, group| Quantization::Words { packing, group };
    let awq = json!({"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "version": "GEMM", "zero_point": true,
        "modules_to_not_convert": null});
    assert_eq!(quantization(awq).unwrap(), words(Packing::Awq, Some(128)));
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": true});
    assert_eq!(quantization(gptq).unwrap(), words(Packing::Gptq { bits: GptqBits::Four, less_one: true }, None));
    let second = json!({"quant_method": "gptq", "bits": 8, "group_size": 64, "checkpoint_format": "gptq_v2"});
    assert_eq!(
        quantization(second).unwrap(),
        words(Packing::Gptq { bits: GptqBits::Eight, less_one: false }, Some(64))
    );
    for (fields, expected) in [
        (json!({}), "quant_method: is missing"),
        (
            json!({"quant_method": "fp8"}),
            "quant_method: \"fp8\" is not supported: awq, bitnet, gptq and trine are, and models without quantisation",
        ),
        (json!({"quant_method": "trine"}), "version: is missing"),
        (
            json!({"quant_method": "trine", "version": 2}),
            "version: 2 is not supported: 1 is; this file is from a newer version",
        ),
        (
            json!({"quant_method": "trine", "version": 1, "activations": "row"}),
            "activations: \"row\" is not supported: block, token are",
        ),
        (json!({"quant_method": "awq"}), "bits: is missing"),
        (json!({"quant_method": "awq", "bits": 8, "group_size": 128}), "bits: 8 is not supported: 4 is"),
        (json!({"quant_method": "gptq", "bits": 3, "group_size": 128}), "bits: 3 is not supported: 4 and 8 are"),
        (json!({"quant_method": "awq", "w_bit": 4}), "group_size: is missing"),
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 48}),
            "group_size: 48 is not supported: multiples of 32 are, and -1",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 1.5}),
            "group_size: 1.5 is not supported: multiples of 32 are, and -1",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}),
            "version: \"gemv\" is not supported: gemm is",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": false}),
            "zero_point: false is not supported: AWQ's weights with zero points are",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}),
            "checkpoint_format: \"marlin\" is not supported: gptq, gptq_v2 are",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*": {}}}),
            "dynamic: layers of different kinds are not supported",
        ),
        (
            json!({"quant_method": "bitnet", "linear_class": "trilinear"}),
            "linear_class: \"trilinear\" is not supported: bitlinear, autobitlinear are",
        ),
        (
            json!({"quant_method": "bitnet", "quantization_mode": "later"}),
            "quantization_mode: \"later\" is not supported: offline, online are",
        ),
        (
            json!({"quant_method": "bitnet", "linear_class": "bitlinear", "quantization_mode": "online"}),
            "quantization_mode: bitlinear weights are packed: online needs autobitlinear",
        ),
        (
            json!({"quant_method": "bitnet", "use_rms_norm": true}),
            "use_rms_norm: norms inside the linear layers are not supported",
        ),
        (
            json!({"quant_method": "bitnet", "modules_to_not_convert": ["lm_head", "model.layers.0.mlp"]}),
            "modules_to_not_convert: \"model.layers.0.mlp\" is not supported: only lm_head and the embeddings stay floats",
        ),
    ] {
        assert_eq!(problem(json!({"quantization_config": fields})), format!("quantization_config.{expected}"));
    }
}

#[test]
fn bitnet_has_norms_as_wide_as_its_heads() {
    let bitnet = |changes: Value| {
        let mut config = llama(json!({"architectures": ["BitNetForCausalLM"]}));
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        parse(&config, None)
    };
    assert!(bitnet(json!({})).unwrap().sub_norms);
    let found = bitnet(json!({"head_dim": 32})).unwrap_err().to_string();
    let expected = "head_dim: 4 heads of 32 are not hidden_size 64, the width of the norm after attention";
    assert_eq!(found, format!("m/config.json: {expected}"));
    let found = bitnet(json!({"weight_bits": 1, "input_bits": 8})).unwrap_err().to_string();
    assert!(found.starts_with("m/config.json: weight_bits: checkpoints of the first b1.58 code"), "{found}");
}

#[test]
fn qwen3_heads_do_not_follow_from_the_width() {
    let config = of(json!({"architectures": ["Qwen3ForCausalLM"]})).unwrap();
    assert_eq!(config.heads.dim, 128);
    assert!(config.qk_norm);
}

/// Some JSON value, mostly of a wrong type or size.
fn some_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..300).prop_map(Value::from),
        any::<f64>().prop_map(|x| json!(x)),
        "[a-z]{0,8}".prop_map(Value::from),
        Just(json!({"rope_type": "yarn", "factor": 1e5, "mscale": -1, "mscale_all_dim": 1e-300})),
        Just(json!([1, "two", null])),
    ]
}

proptest! {
    /// Whatever stands in whichever fields: no panic, one line with the file's name, and what is accepted is sane.
    #[test]
    fn any_field_may_hold_anything(fixture_index in 0..FIXTURES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), some_value()), 1..4)) {
        let text = std::fs::read(fixture(FIXTURES[fixture_index]).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        let fields: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        for (index, value) in changes {
            config[&fields[index.index(fields.len())]] = value;
        }
        match parse(&config, Some(&config)) {
            Ok(config) => {
                prop_assert!(config.context >= 1 && config.heads.query % config.heads.kv == 0);
                prop_assert!(config.eos.iter().chain(&config.bos).all(|&id| (id as usize) < config.vocab));
            }
            Err(error) => {
                let error = error.to_string();
                prop_assert!(error.starts_with("m/") && !error.contains('\n'), "{}", error);
            }
        }
    }
}
