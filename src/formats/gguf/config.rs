//! What a file's metadata say about the model, in the words of Hugging Face's `config.json`.
//!
//! Keys and defaults are llama.cpp's. Sizes are only checked to be there: whoever reads the configuration checks them
//! anyway.

use serde_json::{Map, Value as Json, json};

use super::header::{Array, Metadata, Value};
use super::tensors::GgufTensors;
use super::tokenizer;
use crate::Result;

/// GGUF's architectures with Hugging Face's, and the feed-forward activation.
const ARCHITECTURES: [(&str, &str, &str); 6] = [
    ("llama", "LlamaForCausalLM", "silu"),
    ("qwen2", "Qwen2ForCausalLM", "silu"),
    ("qwen3", "Qwen3ForCausalLM", "silu"),
    // llama.cpp's BitNet is the first one; bitnet.cpp's models have squared ReLU.
    ("bitnet", "BitNetForCausalLM", "silu"),
    ("bitnet-b1.58", "BitNetForCausalLM", "relu2"),
    ("bitnet-25", "BitNetForCausalLM", "relu2"),
];

/// `general.architecture`.
///
/// # Errors
/// It is missing, or one that is not supported.
pub(super) fn architecture(metadata: &Metadata) -> Result<&'static str> {
    entry(metadata).map(|(arch, ..)| *arch)
}

fn entry(metadata: &Metadata) -> Result<&'static (&'static str, &'static str, &'static str)> {
    const KEY: &str = "general.architecture";
    let Some(found) = metadata.text(KEY)? else { return Err(metadata.error(KEY, "is missing")) };
    ARCHITECTURES.iter().find(|(arch, ..)| *arch == found).ok_or_else(|| {
        let supported: Vec<_> = ARCHITECTURES.iter().map(|(arch, ..)| *arch).collect();
        let found = crate::formats::quoted(found);
        metadata.error(KEY, format_args!("{found} is not supported: {} are", supported.join(", ")))
    })
}

/// Values of one head: `attention.key_length`, else what the width and the number of heads make.
///
/// # Errors
/// They are missing, or no such numbers.
pub(super) fn head_dim(metadata: &Metadata, arch: &str) -> Result<usize> {
    let keys = Keys { metadata, arch };
    let dim = match keys.int("attention.key_length")? {
        Some(dim) => dim,
        None => keys.size("embedding_length")?.checked_div(keys.heads("attention.head_count")?).unwrap_or(0),
    };
    match usize::try_from(dim) {
        Ok(dim) if dim >= 2 && dim.is_multiple_of(2) => Ok(dim),
        _ => {
            Err(keys.error("attention.head_count", format_args!("makes heads of {dim} values, where RoPE turns pairs")))
        }
    }
}

impl Metadata {
    /// The model's configuration as `config.json` has it.
    ///
    /// # Errors
    /// A key is missing or of the wrong type, or something that this engine does not have is asked for.
    pub fn config_json(&self, tensors: &GgufTensors) -> Result<Json> {
        let &(arch, class, activation) = entry(self)?;
        let keys = Keys { metadata: self, arch };
        keys.refuse_others()?;
        let dim = head_dim(self, arch)?;
        let embedding = tensors.shape("model.embed_tokens.weight")?;
        let context = keys.size("context_length")?;
        let window = keys.int("attention.sliding_window")?.filter(|&window| window > 0).unwrap_or(context);
        let heads = keys.heads("attention.head_count")?;
        let mut config = json!({
            "architectures": [class],
            "hidden_act": activation,
            // Rows may be padded: what counts is what can be looked up.
            "vocab_size": embedding.first().copied().unwrap_or(0),
            "hidden_size": keys.size("embedding_length")?,
            "intermediate_size": keys.heads("feed_forward_length")?,
            "num_hidden_layers": keys.size("block_count")?,
            "num_attention_heads": heads,
            "num_key_value_heads": keys.optional_heads("attention.head_count_kv")?.unwrap_or(heads),
            "head_dim": dim,
            "max_position_embeddings": context.min(window),
            "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| keys.error("attention.layer_norm_rms_epsilon", "is missing"))?,
            "rope_theta": keys.number("rope.freq_base")?.unwrap_or(10_000.0),
            "tie_word_embeddings": !tensors.contains("lm_head.weight"),
            "eos_token_id": tokenizer::ends(self)?,
        });
        if let Some(bos) = tokenizer::bos(self)? {
            config["bos_token_id"] = bos.into();
        }
        if let Some(scaling) = keys.rope_scaling(context)? {
            config["rope_scaling"] = scaling;
        }
        Ok(config)
    }
}

/// Keys that begin with the architecture's name.
struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, tail: &str) -> String {
        format!("{}.{tail}", self.arch)
    }

    fn error(&self, tail: &str, problem: impl std::fmt::Display) -> crate::Error {
        self.metadata.error(&self.key(tail), problem)
    }

    fn int(&self, tail: &str) -> Result<Option<u64>> {
        self.metadata.int(&self.key(tail))
    }

    fn number(&self, tail: &str) -> Result<Option<f64>> {
        self.metadata.number(&self.key(tail))
    }

    fn size(&self, tail: &str) -> Result<u64> {
        self.int(tail)?.ok_or_else(|| self.error(tail, "is missing"))
    }

    /// A number that may be listed for each layer, as long as all layers have the same.
    fn optional_heads(&self, tail: &str) -> Result<Option<u64>> {
        let Some(Value::Array(Array::Ints(layers))) = self.metadata.get(&self.key(tail)) else { return self.int(tail) };
        match layers.split_first() {
            Some((&first, rest)) if first >= 0 && rest.iter().all(|&other| other == first) => Ok(Some(first as u64)),
            _ => Err(self.error(tail, "layers of different sizes are not supported")),
        }
    }

    fn heads(&self, tail: &str) -> Result<u64> {
        self.optional_heads(tail)?.ok_or_else(|| self.error(tail, "is missing"))
    }

    /// Refuses what the graph does not have.
    fn refuse_others(&self) -> Result<()> {
        if let Some(experts) = self.int("expert_count")?.filter(|&experts| experts > 0) {
            return Err(self.error("expert_count", format_args!("{experts} experts: mixtures are not supported")));
        }
        let dim = head_dim(self.metadata, self.arch)? as u64;
        for tail in ["rope.dimension_count", "attention.value_length"] {
            if let Some(other) = self.int(tail)?.filter(|&other| other != dim) {
                let problem = format_args!("{other} is not supported: only {dim}, the size of a head, is");
                return Err(self.error(tail, problem));
            }
        }
        Ok(())
    }

    fn rope_scaling(&self, context: u64) -> Result<Option<Json>> {
        let kind = self.metadata.text(&self.key("rope.scaling.type"))?;
        let factor = self.number("rope.scaling.factor")?;
        match kind {
            None => {
                // Files older than the types.
                let factor = self.number("rope.scale_linear")?.filter(|&factor| factor != 1.0);
                Ok(factor.map(|factor| json!({ "rope_type": "linear", "factor": factor })))
            }
            Some("none") => Ok(None),
            Some("linear") => Ok(factor.map(|factor| json!({ "rope_type": "linear", "factor": factor }))),
            Some("yarn") => self.yarn(factor.unwrap_or(1.0), context).map(Some),
            Some(other) => {
                let other = crate::formats::quoted(other);
                Err(self.error("rope.scaling.type", format_args!("{other} is not supported: none, linear, yarn are")))
            }
        }
    }

    fn yarn(&self, factor: f64, context: u64) -> Result<Json> {
        let mut scaling = Map::new();
        scaling.insert("rope_type".to_owned(), "yarn".into());
        scaling.insert("factor".to_owned(), factor.into());
        let original = self.int("rope.scaling.original_context_length")?.unwrap_or(context);
        scaling.insert("original_max_position_embeddings".to_owned(), original.into());
        for (tail, field) in
            [("rope.scaling.yarn_beta_fast", "beta_fast"), ("rope.scaling.yarn_beta_slow", "beta_slow")]
        {
            if let Some(beta) = self.number(tail)? {
                scaling.insert(field.to_owned(), beta.into());
            }
        }
        // Theirs multiplies what the factor makes, Hugging Face's replaces it.
        if let Some(attention) = self.number("rope.scaling.attn_factor")?.filter(|&attention| attention != 1.0) {
            scaling.insert("attention_factor".to_owned(), (attention * (0.1 * factor.ln() + 1.0)).into());
        }
        Ok(Json::Object(scaling))
    }
}
