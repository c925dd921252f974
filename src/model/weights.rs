//! The weights of a model on its device.

use trine_backend::Backend;

/// Everything that the forward pass reads.
pub struct Weights<B: Backend> {
    /// `[vocab, hidden]`.
    pub embedding: B::Weight,
    /// One for each transformer layer.
    pub layers: Vec<Layer<B>>,
    /// `[hidden]`.
    pub final_norm: B::Buf,
    /// `[vocab, hidden]`, or none where the embedding serves (tied).
    pub lm_head: Option<B::Weight>,
    /// `[context, head_dim]`: cosines and sines, see [`Backend::rope`].
    pub rope: B::Buf,
}

impl<B: Backend> Weights<B> {
    /// The matrix that makes logits.
    pub fn head(&self) -> &B::Weight {
        self.lm_head.as_ref().unwrap_or(&self.embedding)
    }
}

/// One transformer layer. What a family lacks is `None`.
pub struct Layer<B: Backend> {
    /// `[hidden]`: RMSNorm before attention.
    pub input_norm: B::Buf,
    /// `[(heads + 2 kv_heads) * head_dim, hidden]`: query, key and value rows under each other.
    pub qkv: Linear<B>,
    /// `[head_dim]` each: RMSNorm of query and key heads (Qwen3).
    pub head_norms: Option<(B::Buf, B::Buf)>,
    /// `[heads * head_dim]`: RMSNorm before the output projection (BitNet).
    pub attention_norm: Option<B::Buf>,
    /// `[hidden, heads * head_dim]`.
    pub attention_output: Linear<B>,
    /// `[hidden]`: RMSNorm before the feed-forward block.
    pub post_attention_norm: B::Buf,
    /// `[2 * intermediate, hidden]`: gate rows, then up rows.
    pub gate_up: Linear<B>,
    /// `[intermediate]`: RMSNorm before the down projection (BitNet).
    pub feed_forward_norm: Option<B::Buf>,
    /// `[hidden, intermediate]`.
    pub down: Linear<B>,
}

/// A matrix with its bias, if it has one.
pub struct Linear<B: Backend> {
    /// `[outputs, inputs]`.
    pub weight: B::Weight,
    /// `[outputs]`.
    pub bias: Option<B::Buf>,
}
