//! Where the graph's matrices and vectors are in a Hugging Face checkpoint: tensor names and shapes.

use super::Config;

/// A matrix of the graph, made of the rows of one or several tensors under each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MatrixSource {
    /// Tensor name without `.weight`, and its rows.
    pub(crate) parts: Vec<(String, usize)>,
    /// Inputs.
    pub(crate) columns: usize,
    /// Whether every part has a `.bias`.
    pub(crate) bias: bool,
    /// What the matrix is for, which decides its number format.
    pub(crate) role: Role,
}

/// What a matrix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// A projection inside a layer.
    Body,
    /// Embedding or lm_head.
    Head,
}

impl MatrixSource {
    fn body(parts: Vec<(String, usize)>, columns: usize, bias: bool) -> Self {
        MatrixSource { parts, columns, bias, role: Role::Body }
    }

    /// Outputs.
    pub(crate) fn rows(&self) -> usize {
        self.parts.iter().map(|(_, rows)| rows).sum()
    }

    /// Weights.
    pub(crate) fn weights(&self) -> u64 {
        self.rows() as u64 * self.columns as u64
    }
}

/// The matrices and vectors of one layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerSource {
    /// Fused query, key and value projections.
    pub(crate) qkv: MatrixSource,
    /// Attention's output projection.
    pub(crate) attention_output: MatrixSource,
    /// Fused gate and up projections.
    pub(crate) gate_up: MatrixSource,
    /// The down projection.
    pub(crate) down: MatrixSource,
    /// Vectors, as name and length.
    pub(crate) input_norm: (String, usize),
    /// As above.
    pub(crate) post_attention_norm: (String, usize),
    /// Query and key norms of each head.
    pub(crate) head_norms: Option<[(String, usize); 2]>,
    /// Sub-norms before the output and down projections.
    pub(crate) sub_norms: Option<[(String, usize); 2]>,
}

impl LayerSource {
    /// The sources of layer `index`.
    pub(crate) fn new(config: &Config, index: usize) -> Self {
        let name = |tail: &str| format!("model.layers.{index}.{tail}");
        let (hidden, inner, heads) = (config.hidden, config.intermediate, config.heads);
        let (q, kv) = (heads.query_width(), heads.kv_width());
        LayerSource {
            qkv: MatrixSource::body(
                vec![(name("self_attn.q_proj"), q), (name("self_attn.k_proj"), kv), (name("self_attn.v_proj"), kv)],
                hidden,
                config.qkv_bias,
            ),
            attention_output: MatrixSource::body(vec![(name("self_attn.o_proj"), hidden)], q, config.output_bias),
            gate_up: MatrixSource::body(
                vec![(name("mlp.gate_proj"), inner), (name("mlp.up_proj"), inner)],
                hidden,
                config.mlp_bias,
            ),
            down: MatrixSource::body(vec![(name("mlp.down_proj"), hidden)], inner, config.mlp_bias),
            input_norm: (name("input_layernorm.weight"), hidden),
            post_attention_norm: (name("post_attention_layernorm.weight"), hidden),
            head_norms: config
                .qk_norm
                .then(|| [(name("self_attn.q_norm.weight"), heads.dim), (name("self_attn.k_norm.weight"), heads.dim)]),
            sub_norms: config
                .sub_norms
                .then(|| [(name("self_attn.attn_sub_norm.weight"), q), (name("mlp.ffn_sub_norm.weight"), inner)]),
        }
    }

    /// The layer's matrices, in the order in which they are used.
    pub(crate) fn matrices(&self) -> [&MatrixSource; 4] {
        [&self.qkv, &self.attention_output, &self.gate_up, &self.down]
    }

    /// The layer's norm vectors.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = &(String, usize)> {
        [&self.input_norm, &self.post_attention_norm]
            .into_iter()
            .chain(self.head_norms.iter().flatten())
            .chain(self.sub_norms.iter().flatten())
    }
}

/// The token embedding.
pub(crate) fn embedding(config: &Config) -> MatrixSource {
    head_matrix("model.embed_tokens", config)
}

/// lm_head, where it is a matrix of its own.
pub(crate) fn lm_head(config: &Config) -> Option<MatrixSource> {
    (!config.tied).then(|| head_matrix("lm_head", config))
}

fn head_matrix(name: &str, config: &Config) -> MatrixSource {
    MatrixSource { parts: vec![(name.to_owned(), config.vocab)], columns: config.hidden, bias: false, role: Role::Head }
}

/// The norm before lm_head.
pub(crate) fn final_norm(config: &Config) -> (String, usize) {
    ("model.norm.weight".to_owned(), config.hidden)
}

/// Tensors that checkpoints carry without the graph needing them: RoPE tables of old exports, and the
/// copy of a tied embedding.
pub(crate) fn is_harmless(name: &str, config: &Config) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (config.tied && name == "lm_head.weight")
}
