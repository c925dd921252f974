//! GGUF's tensor names and row orders, and Hugging Face's.

/// Prefixes of GGUF's names with what the graph calls them.
const WHOLE: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// The same below `blk.N.` and `model.layers.N.`.
const OF_LAYER: [(&str, &str); 13] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_sub_norm", "self_attn.attn_sub_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_sub_norm", "mlp.ffn_sub_norm"),
];

/// Frequency factors of RoPE, a tensor that the graph has no place for: they are part of the configuration.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The graph's name of the tensor that GGUF calls `name`; `name` itself where the graph has none.
pub(super) fn graph_name(name: &str) -> String {
    let translate = || {
        let (stem, tail) = name.rsplit_once('.').filter(|(_, tail)| matches!(*tail, "weight" | "bias"))?;
        let find = |table: &[(&str, &'static str)], stem: &str| {
            table.iter().find(|(known, _)| *known == stem).map(|&(_, name)| name)
        };
        let Some((layer, stem)) = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
            return Some(format!("{}.{tail}", find(&WHOLE, stem)?));
        };
        // `blk.01.` would be another name for layer 1.
        let number: usize = layer.parse().ok().filter(|number: &usize| number.to_string() == layer)?;
        Some(format!("model.layers.{number}.{}.{tail}", find(&OF_LAYER, stem)?))
    };
    translate().unwrap_or_else(|| name.to_owned())
}

/// In what order a matrix's rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// As the graph has them.
    Same,
    /// In each head of `dim` rows, row `i` of the first half is followed by row `i` of the second: llama.cpp's RoPE turns
    /// neighbouring values, the graph's those half a head apart.
    Interleaved { dim: usize },
}

impl RowOrder {
    /// The stored row that is the graph's row `row`.
    pub(super) fn stored(self, row: usize) -> usize {
        match self {
            RowOrder::Same => row,
            RowOrder::Interleaved { dim } => {
                let (head, within) = (row / dim, row % dim);
                head * dim + 2 * (within % (dim / 2)) + within / (dim / 2)
            }
        }
    }
}

/// The order of the rows of the tensor that the graph calls `name`, in a model of architecture `arch` with heads of `dim`.
pub(super) fn row_order(arch: &str, name: &str, dim: usize) -> RowOrder {
    let of_rope = [".self_attn.q_proj.", ".self_attn.k_proj."].iter().any(|part| name.contains(part));
    if arch == "llama" && of_rope && dim >= 2 { RowOrder::Interleaved { dim } } else { RowOrder::Same }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_translated_and_unknown_ones_kept() {
        for (gguf, graph) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
            ("blk.0.ffn_sub_norm.weight", "model.layers.0.mlp.ffn_sub_norm.weight"),
            ("blk.01.attn_q.weight", "blk.01.attn_q.weight"),
            ("blk.+1.attn_q.weight", "blk.+1.attn_q.weight"),
            ("blk.0.attn_q.scale", "blk.0.attn_q.scale"),
            ("blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp.weight"),
            ("model.norm.weight", "model.norm.weight"),
            ("", ""),
        ] {
            assert_eq!(graph_name(gguf), graph);
        }
    }

    #[test]
    fn interleaved_rows_are_every_row_once() {
        let order = row_order("llama", "model.layers.0.self_attn.k_proj.weight", 8);
        let rows: Vec<_> = (0..16).map(|row| order.stored(row)).collect();
        assert_eq!(rows, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
        for (arch, name) in [("qwen2", "model.layers.0.self_attn.k_proj.weight"), ("llama", "model.norm.weight")] {
            assert_eq!(row_order(arch, name, 8), RowOrder::Same);
        }
    }
}
