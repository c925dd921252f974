//! Which ternary matrices a model has.

use crate::model::Config;

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

/// A model's sizes in the terms of `config.json`.
struct Sizes {
    name: &'static str,
    hidden: u64,
    intermediate: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
}

/// As in the models' published configurations.
const BUILT_IN: [Sizes; 5] = [
    Sizes { name: "bitnet-2b-4t", hidden: 2560, intermediate: 6912, layers: 30, heads: 20, kv_heads: 5, head_dim: 128 },
    Sizes {
        name: "bitnet-b1.58-large",
        hidden: 1536,
        intermediate: 4096,
        layers: 24,
        heads: 16,
        kv_heads: 16,
        head_dim: 96,
    },
    Sizes {
        name: "bitnet-b1.58-3b",
        hidden: 3200,
        intermediate: 8640,
        layers: 26,
        heads: 32,
        kv_heads: 32,
        head_dim: 100,
    },
    Sizes {
        name: "llama-b1.58-8b",
        hidden: 4096,
        intermediate: 14336,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
    },
    Sizes { name: "falcon3-10b", hidden: 3072, intermediate: 23040, layers: 40, heads: 12, kv_heads: 4, head_dim: 256 },
];

impl Shapes {
    /// The name of the shape that T-SAR's published counts are for.
    pub const DEFAULT: &'static str = "bitnet-2b-4t";

    /// Names that [`Shapes::built_in`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|sizes| sizes.name)
    }

    /// A known model's shapes, by name.
    pub fn built_in(name: &str) -> Option<Self> {
        BUILT_IN.iter().find(|sizes| sizes.name == name).map(|sizes| Self::of(sizes, name))
    }

    /// The shapes of the model with this configuration, as if all its layers' matrices were ternary; `name` is for
    /// reports.
    pub fn from_config(config: &Config, name: &str) -> Self {
        let sizes = Sizes {
            name: "",
            hidden: config.hidden as u64,
            intermediate: config.intermediate as u64,
            layers: config.layers as u64,
            heads: config.heads.query as u64,
            kv_heads: config.heads.kv as u64,
            head_dim: config.heads.dim as u64,
        };
        Self::of(&sizes, name)
    }

    fn of(sizes: &Sizes, name: &str) -> Self {
        let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
        let (query, kv) = (sizes.heads.saturating_mul(sizes.head_dim), sizes.kv_heads.saturating_mul(sizes.head_dim));
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
        Self::new(name, sizes.layers, matrices)
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
