//! A model's shape and constants, out of Hugging Face's `config.json` and `generation_config.json`.
//!
//! What differs between the families is data here: the graph asks for `qk_norm` or `sub_norms`, never for a family.
//! The meaning of each field, and each default, is transformers'.

mod fields;
mod generation;
mod quantization;
mod rope;
#[cfg(test)]
mod tests;

use std::path::Path;

use fields::Fields;
use serde_json::Value;

use crate::{Error, Result};

pub use generation::SamplingDefaults;
pub use quantization::Quantization;
pub use rope::{RopeConfig, RopeScaling};
pub use trine_backend::{Gate, Heads};

/// Limits beyond which a number is taken for damage, generous against any model that exists.
mod limit {
    pub(super) const LAYERS: usize = 10_000;
    pub(super) const HIDDEN: usize = 1 << 20;
    pub(super) const INTERMEDIATE: usize = 1 << 24;
    pub(super) const VOCAB: usize = 1 << 24;
    pub(super) const HEADS: usize = 1 << 16;
    pub(super) const HEAD_DIM: usize = 1 << 13;
    pub(super) const CONTEXT: usize = 1 << 28;
    /// Bytes of a configuration file.
    pub(super) const FILE: u64 = 16 << 20;
}

/// Everything that the graph needs to know about a model, checked: no size is zero or absurd, heads divide, ids lie
/// in the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// For display only.
    pub family: Family,
    /// Rows of the embedding table and of the output head (`vocab_size`).
    pub vocab: usize,
    /// Width of the residual stream (`hidden_size`).
    pub hidden: usize,
    /// Width of the feed-forward block (`intermediate_size`).
    pub intermediate: usize,
    /// Decoder layers (`num_hidden_layers`).
    pub layers: usize,
    /// Attention heads.
    pub heads: Heads,
    /// The longest sequence in tokens: `max_position_embeddings`, or `sliding_window` where that is smaller and some
    /// layer slides, since attention here always sees the whole sequence.
    pub context: usize,
    /// Added to the mean square in every RMS norm (`rms_norm_eps`).
    pub eps: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// The feed-forward gate's activation (`hidden_act`).
    pub gate: Gate,
    /// The query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The attention's output projection has a bias.
    pub output_bias: bool,
    /// The feed-forward projections have biases.
    pub mlp_bias: bool,
    /// Each head's query and key go through an RMS norm over `heads.dim` values before RoPE.
    pub qk_norm: bool,
    /// An RMS norm in front of the attention's output projection and one in front of the feed-forward's down
    /// projection.
    pub sub_norms: bool,
    /// The output head is the embedding table (`tie_word_embeddings`).
    pub tied: bool,
    /// The token that begins a sequence, if the model has one.
    pub bos: Option<u32>,
    /// The tokens that end one: generation_config.json's if it has any, else config.json's. May be empty.
    pub eos: Vec<u32>,
    /// How the model's makers sample.
    pub sampling: SamplingDefaults,
    /// How the linear layers' weights are stored.
    pub quantization: Quantization,
}

/// A family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama 1, 2, 3 and what has their architecture.
    Llama,
    /// Qwen 2 and 2.5, DeepSeek-R1-Distill-Qwen.
    Qwen2,
    /// Qwen 3, dense.
    Qwen3,
    /// BitNet b1.58.
    BitNet,
}

impl Family {
    const ARCHITECTURES: [(&str, Family); 5] = [
        ("LlamaForCausalLM", Family::Llama),
        ("Qwen2ForCausalLM", Family::Qwen2),
        ("Qwen3ForCausalLM", Family::Qwen3),
        ("BitNetForCausalLM", Family::BitNet),
        ("BitnetForCausalLM", Family::BitNet),
    ];
    const MODEL_TYPES: [(&str, Family); 4] =
        [("llama", Family::Llama), ("qwen2", Family::Qwen2), ("qwen3", Family::Qwen3), ("bitnet", Family::BitNet)];

    /// The family's name for people.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "Llama",
            Family::Qwen2 => "Qwen2",
            Family::Qwen3 => "Qwen3",
            Family::BitNet => "BitNet",
        }
    }

    /// By `architectures`, or where there are none by `model_type`.
    fn read(config: &Fields<'_>) -> Result<Self> {
        let architectures = config.texts("architectures")?.unwrap_or_default();
        let (field, names, known) = if architectures.is_empty() {
            let model_type = config.required("model_type", config.text("model_type")?)?;
            ("model_type", vec![model_type], Self::MODEL_TYPES.as_slice())
        } else {
            ("architectures", architectures, Self::ARCHITECTURES.as_slice())
        };
        let family = |name: &&str| known.iter().find(|(known, _)| known == name).map(|&(_, family)| family);
        names.iter().find_map(family).ok_or_else(|| {
            let supported = known.iter().map(|&(name, _)| name).collect::<Vec<_>>().join(", ");
            config.error(field, format_args!("{} is not supported: {supported} are", fields::list(&names)))
        })
    }
}

impl Config {
    /// Reads `config.json` and, if there is one, `generation_config.json` in the directory `dir`.
    ///
    /// # Errors
    /// A file can't be read, a field is missing, of the wrong type or out of range, or something that this engine does
    /// not have is asked for: one line with file and field.
    pub fn load(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let config = dir.join("config.json");
        if !config.exists() {
            return Err(Error::file(dir, "config.json is missing: give a Hugging Face directory with safetensors"));
        }
        let generation = dir.join("generation_config.json");
        let generation_text = if generation.exists() { Some(read(&generation)?) } else { None };
        let generation = generation_text.as_deref().map(|text| (generation.as_path(), text));
        Self::parse((&config, &read(&config)?), generation)
    }

    /// Reads the contents of `config.json` and `generation_config.json`, each with the path that errors name.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(config: (&Path, &[u8]), generation: Option<(&Path, &[u8])>) -> Result<Self> {
        let (path, text) = config;
        let object = parse_object(path, text)?;
        let config = Fields::new(path, &object);
        let generation_object = match generation {
            Some((path, text)) => Some((path, parse_object(path, text)?)),
            None => None,
        };
        let generation = generation_object.as_ref().map(|(path, object)| Fields::new(path, object));
        Self::read(&config, generation.as_ref())
    }

    fn read(config: &Fields<'_>, generation: Option<&Fields<'_>>) -> Result<Self> {
        let family = Family::read(config)?;
        let vocab = config.size("vocab_size", limit::VOCAB)?;
        let hidden = config.size("hidden_size", limit::HIDDEN)?;
        let layers = config.size("num_hidden_layers", limit::LAYERS)?;
        let positions = config.size("max_position_embeddings", limit::CONTEXT)?;
        let sub_norms = family == Family::BitNet;
        let heads = read_heads(config, family, hidden)?;
        if sub_norms && heads.query * heads.dim != hidden {
            let problem = format_args!(
                "{} heads of {} are not hidden_size {hidden}, the width of the norm after attention",
                heads.query, heads.dim
            );
            return Err(config.error("head_dim", problem));
        }
        // Qwen2's biases are part of the architecture; the others ask the file.
        let attention_bias = config.flag("attention_bias")?.unwrap_or(false);
        let (qkv_bias, output_bias) =
            if family == Family::Qwen2 { (true, false) } else { (attention_bias, attention_bias) };
        let mlp_bias = family == Family::Llama && config.flag("mlp_bias")?.unwrap_or(false);
        let quantization = Quantization::read(config)?;
        if family == Family::BitNet && quantization == Quantization::None && config.value("weight_bits").is_some() {
            let problem =
                "checkpoints of the first b1.58 code are not supported: convert to one with quantization_config";
            return Err(config.error("weight_bits", problem));
        }
        let (bos, eos) = generation::read_ends(config, generation, vocab)?;
        Ok(Self {
            family,
            vocab,
            hidden,
            intermediate: config.size("intermediate_size", limit::INTERMEDIATE)?,
            layers,
            heads,
            context: limit_to_window(config, family, layers, positions)?,
            eps: read_eps(config)?,
            rope: RopeConfig::read(config, family, positions)?,
            gate: read_gate(config, family)?,
            qkv_bias,
            output_bias,
            mlp_bias,
            qk_norm: family == Family::Qwen3,
            sub_norms,
            tied: config.flag("tie_word_embeddings")?.unwrap_or(false),
            bos,
            eos,
            sampling: generation.map(SamplingDefaults::read).transpose()?.unwrap_or_default(),
            quantization,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let size = std::fs::metadata(path).map_err(|error| Error::file(path, error))?.len();
    if size > limit::FILE {
        return Err(Error::file(
            path,
            format_args!("{size} bytes are over the limit of {} for a configuration", limit::FILE),
        ));
    }
    std::fs::read(path).map_err(|error| Error::file(path, error))
}

fn parse_object(path: &Path, text: &[u8]) -> Result<serde_json::Map<String, Value>> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Error::file(path, "not a JSON object")),
        Err(error) => Err(Error::file(path, format_args!("not valid JSON: {error}"))),
    }
}

fn read_heads(config: &Fields<'_>, family: Family, hidden: usize) -> Result<Heads> {
    let query = config.size("num_attention_heads", limit::HEADS)?;
    let kv = config.optional_size("num_key_value_heads", limit::HEADS)?.unwrap_or(query);
    if !query.is_multiple_of(kv) {
        let problem = format_args!("{kv} does not divide num_attention_heads {query}");
        return Err(config.error("num_key_value_heads", problem));
    }
    let dim = match config.optional_size("head_dim", limit::HEAD_DIM)? {
        Some(dim) => dim,
        // Qwen3's default does not follow from the width.
        None if family == Family::Qwen3 => 128,
        None if hidden.is_multiple_of(query) => hidden / query,
        None => {
            let problem =
                format_args!("{hidden} is not a multiple of num_attention_heads {query} and head_dim is missing");
            return Err(config.error("hidden_size", problem));
        }
    };
    if !dim.is_multiple_of(2) {
        return Err(config.error("head_dim", format_args!("{dim} is odd, and RoPE turns pairs")));
    }
    if query * dim > limit::INTERMEDIATE {
        let problem = format_args!("{query} heads of {dim} are over the limit of {} values", limit::INTERMEDIATE);
        return Err(config.error("head_dim", problem));
    }
    Ok(Heads { query, kv, dim })
}

/// Qwen2 and Qwen3 may let layers see only the last `sliding_window` tokens. Up to that many, sliding and full
/// attention are the same.
fn limit_to_window(config: &Fields<'_>, family: Family, layers: usize, positions: usize) -> Result<usize> {
    let layer_types = config.texts("layer_types")?.unwrap_or_default();
    let known = |name: &&&str| matches!(**name, "full_attention" | "sliding_attention");
    if let Some(other) = layer_types.iter().find(|name| !known(name)) {
        return Err(config.error("layer_types", format_args!("{} is not supported", fields::list(&[other]))));
    }
    let may_slide =
        matches!(family, Family::Qwen2 | Family::Qwen3) && config.flag("use_sliding_window")?.unwrap_or(false);
    let slides = if layer_types.is_empty() {
        let first = config.count("max_window_layers")?.unwrap_or(0);
        first < layers as u64
    } else {
        layer_types.contains(&"sliding_attention")
    };
    if !may_slide || !slides {
        return Ok(positions);
    }
    Ok(positions.min(config.size("sliding_window", limit::CONTEXT)?))
}

fn read_eps(config: &Fields<'_>) -> Result<f32> {
    let eps = config.required("rms_norm_eps", config.number("rms_norm_eps")?)? as f32;
    if eps > 0.0 && eps < 1.0 {
        return Ok(eps);
    }
    Err(config.error("rms_norm_eps", format_args!("{eps} is not between 0 and 1")))
}

fn read_gate(config: &Fields<'_>, family: Family) -> Result<Gate> {
    match config.text("hidden_act")? {
        Some("silu") => Ok(Gate::Silu),
        Some("relu2") => Ok(Gate::Relu2),
        None if family == Family::BitNet => Ok(Gate::Relu2),
        None => Ok(Gate::Silu),
        Some(other) => {
            Err(config
                .error("hidden_act", format_args!("{} is not supported: silu, relu2 are", fields::list(&[other]))))
        }
    }
}
