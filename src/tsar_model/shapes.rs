//! Which ternary matrices a model has.

use crate::model::{Config, Heads};
use crate::shapes::Shape;

/// A matrix that turns `inputs` activations into `outputs` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// What it is in its layer: `q`, `down`.
    pub name: &'static str,
    /// M, its rows.
    pub outputs: u64,
    /// K, its columns.
    pub inputs: u64,
}

/// A model's ternary matrices: those of one layer, and how many layers there are.
///
/// Matrices that share their input count one by one here. Fused into one, they have the same table requests, tiles and
/// accumulators; T-SAR AP makes the shared input's tables only once then, well under 1 % of its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shapes {
    name: String,
    layers: u64,
    matrices: Vec<Matrix>,
}

impl Shapes {
    /// The name of the shape that T-SAR's published counts are for.
    pub const DEFAULT: &'static str = "bitnet-2b";

    /// Names that [`Shapes::built_in`] knows: those of ternary models.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Shape::known().iter().filter(|shape| shape.is_ternary()).map(|shape| shape.name)
    }

    /// A known ternary model's shapes, by name.
    pub fn built_in(name: &str) -> Option<Self> {
        let shape = Shape::find(name).filter(|shape| shape.is_ternary())?;
        let heads = Heads { query: shape.heads, kv: shape.kv_heads, dim: shape.head_dim };
        Some(Self::of(name, shape.layers, shape.hidden, shape.intermediate, heads))
    }

    /// The shapes of the model with this configuration, as if all its layers' matrices were ternary; `name` is for
    /// reports.
    pub fn from_config(config: &Config, name: &str) -> Self {
        Self::of(name, config.layers, config.hidden, config.intermediate, config.heads)
    }

    fn of(name: &str, layers: usize, hidden: usize, intermediate: usize, heads: Heads) -> Self {
        let (hidden, intermediate, dim) = (hidden as u64, intermediate as u64, heads.dim as u64);
        let (query, kv) = ((heads.query as u64).saturating_mul(dim), (heads.kv as u64).saturating_mul(dim));
        let matrix = |name, outputs, inputs| Matrix { name, outputs, inputs };
        let matrices = vec![
            matrix("q", query, hidden),
            matrix("k", kv, hidden),
            matrix("v", kv, hidden),
            matrix("o", hidden, query),
            matrix("gate", intermediate, hidden),
            matrix("up", intermediate, hidden),
            matrix("down", hidden, intermediate),
        ];
        Self::new(name, layers as u64, matrices)
    }

    /// `layers` times these matrices.
    pub fn new(name: &str, layers: u64, matrices: Vec<Matrix>) -> Self {
        Self { name: name.into(), layers, matrices }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Layers, each with all the [`Shapes::matrices`].
    pub fn layers(&self) -> u64 {
        self.layers
    }

    /// The matrices of a layer.
    pub fn matrices(&self) -> &[Matrix] {
        &self.matrices
    }
}
