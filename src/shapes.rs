//! Known models by name: their sizes without their weights.
//!
//! A [`Shape`] is enough to count what a model costs ([`tsar_model`](crate::tsar_model)) and, with random weights, to
//! measure it ([`ModelFiles::synthetic`](crate::files::ModelFiles::synthetic)).

use std::path::Path;

use serde_json::json;

use crate::Result;
use crate::model::Config;

/// What a model's layers are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// BitNet b1.58: ternary weights, squared ReLU, norms before attention's output and the down projection.
    BitNet,
    /// Llama's layers with ternary weights.
    TernaryLlama,
    /// Qwen2's layers with INT4 weights in groups of 32.
    Qwen2Int4,
}

/// A model's sizes, in the terms of `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What it is called here.
    pub name: &'static str,
    /// What its layers are made of.
    pub kind: Kind,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward block.
    pub intermediate: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Tokens.
    pub vocab: usize,
    /// Whether the embedding is the output head too.
    pub tied: bool,
    /// The longest sequence.
    pub context: usize,
}

const fn shape(name: &'static str, kind: Kind, sizes: [usize; 7], tied: bool, context: usize) -> Shape {
    let [hidden, intermediate, layers, heads, kv_heads, head_dim, vocab] = sizes;
    Shape { name, kind, hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, tied, context }
}

/// A size of the family that T-SAR and bitnet.cpp are measured with. Nobody has trained it: sizes are those of
/// bitnet.cpp's dummy models, with Llama 2's vocabulary.
const fn family(name: &'static str, hidden: usize, intermediate: usize, layers: usize, heads: usize) -> Shape {
    shape(name, Kind::BitNet, [hidden, intermediate, layers, heads, heads, hidden / heads, 32_000], true, 4096)
}

/// As in the models' published configurations.
#[rustfmt::skip]
const KNOWN: [Shape; 18] = [
    // name, layers' kind, [hidden, intermediate, layers, heads, kv_heads, head_dim, vocab], tied, context
    shape("bitnet-2b", Kind::BitNet, [2560, 6912, 30, 20, 5, 128, 128_256], true, 4096),
    shape("bitnet-large", Kind::BitNet, [1536, 4096, 24, 16, 16, 96, 32_002], true, 2048),
    shape("bitnet-3b", Kind::BitNet, [3200, 8640, 26, 32, 32, 100, 32_002], true, 2048),
    shape("llama-8b", Kind::TernaryLlama, [4096, 14_336, 32, 32, 8, 128, 128_256], false, 8192),
    shape("falcon3-10b", Kind::TernaryLlama, [3072, 23_040, 40, 12, 4, 256, 131_072], false, 32_768),
    family("bitnet-125m", 768, 3072, 11, 12),
    family("bitnet-350m", 1024, 3072, 24, 16),
    family("bitnet-1b", 2048, 3584, 24, 32),
    family("bitnet-1.5b", 1536, 9216, 28, 32),
    family("bitnet-2.7b", 3072, 7680, 24, 32),
    family("bitnet-3.8b", 3840, 8192, 24, 32),
    family("bitnet-7b", 4096, 12_032, 32, 32),
    family("bitnet-13b", 5120, 13_824, 40, 40),
    family("bitnet-30b", 6656, 16_384, 60, 52),
    family("bitnet-70b", 8192, 24_576, 80, 64),
    family("bitnet-100b", 8192, 45_568, 72, 64),
    shape("qwen2-1.5b", Kind::Qwen2Int4, [1536, 8960, 28, 12, 2, 128, 151_936], true, 32_768),
    shape("qwen2-7b", Kind::Qwen2Int4, [3584, 18_944, 28, 28, 4, 128, 152_064], false, 32_768),
];

impl Shape {
    /// All shapes that have a name.
    pub fn known() -> &'static [Shape] {
        &KNOWN
    }

    /// The shape called `name`.
    pub fn find(name: &str) -> Option<&'static Shape> {
        KNOWN.iter().find(|shape| shape.name == name)
    }

    /// Whether the layers' weights are ternary.
    pub fn is_ternary(&self) -> bool {
        matches!(self.kind, Kind::BitNet | Kind::TernaryLlama)
    }

    /// The configuration of a model of this shape; what costs no time (RoPE's base, the norms' epsilon) is of no
    /// model.
    ///
    /// # Errors
    /// The sizes are of no model, as read from its `config.json`; none of [`Shape::known`].
    pub fn config(&self) -> Result<Config> {
        let (architecture, act) = match self.kind {
            Kind::BitNet => ("BitNetForCausalLM", "relu2"),
            Kind::TernaryLlama => ("LlamaForCausalLM", "silu"),
            Kind::Qwen2Int4 => ("Qwen2ForCausalLM", "silu"),
        };
        let mut json = json!({
            "architectures": [architecture],
            "hidden_act": act,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
        });
        if self.is_ternary() {
            json["quantization_config"] =
                json!({ "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline" });
        }
        Config::parse((Path::new(self.name), json.to_string().as_bytes()), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, Gate, Quantization};

    #[test]
    fn every_shape_has_a_name_of_its_own_and_a_sound_configuration() {
        for (index, shape) in KNOWN.iter().enumerate() {
            assert_eq!(Shape::find(shape.name), Some(shape), "{index}");
            let config = shape.config().unwrap();
            assert_eq!((config.hidden, config.layers, config.vocab), (shape.hidden, shape.layers, shape.vocab));
            let heads = config.heads;
            assert_eq!((heads.query, heads.kv, heads.dim), (shape.heads, shape.kv_heads, shape.head_dim));
            assert_eq!((config.tied, config.context), (shape.tied, shape.context));
            assert_eq!(config.quantization.is_ternary(), shape.is_ternary());
        }
        assert_eq!(Shape::find("bitnet"), None);
    }

    #[test]
    fn kinds_are_families_of_the_graph() {
        let config = |name| Shape::find(name).unwrap().config().unwrap();
        let bitnet = config("bitnet-2b");
        assert!(bitnet.sub_norms && bitnet.gate == Gate::Relu2 && !bitnet.qkv_bias);
        let llama = config("llama-8b");
        assert!(!llama.sub_norms && llama.gate == Gate::Silu && llama.family == Family::Llama && !llama.tied);
        let qwen = config("qwen2-1.5b");
        assert!(qwen.qkv_bias && qwen.quantization == Quantization::None);
    }

    #[test]
    fn sizes_in_names_are_those_of_the_weights() {
        for shape in KNOWN {
            let Some((_, size)) = shape.name.rsplit_once('-') else { panic!("{}", shape.name) };
            let unit = if size.ends_with('m') { 1e6 } else { 1e9 };
            let Ok(size) = size.trim_end_matches(['m', 'b']).parse::<f64>() else { continue };
            let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
            let layer = shape.hidden * (2 * q + 2 * kv + 3 * shape.intermediate);
            let heads = shape.vocab * shape.hidden * if shape.tied { 1 } else { 2 };
            let weights = (layer * shape.layers + heads) as f64 / unit;
            assert!((weights / size - 1.0).abs() < 0.25, "{}: {weights}", shape.name);
        }
    }
}
