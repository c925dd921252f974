//! What of a model the time of its decode depends on.

use trine_backend::{Format, Heads};

use crate::model::Config;

/// A model's sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// For reports.
    pub name: String,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward block.
    pub intermediate: usize,
    /// Rows of the output head.
    pub vocab: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Format of the layers' weights.
    pub body: Format,
    /// Format of the output head.
    pub head: Format,
}

impl Model {
    /// The shape of a configuration with its weights in these formats.
    pub fn new(config: &Config, name: &str, body: Format, head: Format) -> Self {
        Self {
            name: name.into(),
            layers: config.layers,
            hidden: config.hidden,
            intermediate: config.intermediate,
            vocab: config.vocab,
            heads: config.heads,
            body,
            head,
        }
    }

    /// Bytes of the weights that a token reads: all but the embedding table's other rows.
    pub fn weight_bytes(&self) -> f64 {
        let bytes =
            |format: Format, rows: usize, columns: usize| format.bytes(rows, columns).map_or(f64::NAN, |x| x as f64);
        let (hidden, intermediate) = (self.hidden, self.intermediate);
        let layer = bytes(self.body, self.heads.fused_width(), hidden)
            + bytes(self.body, hidden, self.heads.query_width())
            + bytes(self.body, 2 * intermediate, hidden)
            + bytes(self.body, hidden, intermediate);
        self.layers as f64 * layer + bytes(self.head, self.vocab, hidden)
    }
}
