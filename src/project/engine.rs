//! Whose kernels.

use std::fmt;
use std::str::FromStr;

use super::kernel::Kernel;
use super::model::Model;
use super::seed;
use super::trine;
use crate::{Error, Result};

/// An engine whose kernels' structure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// This program on CUDA, with so many rows of a matrix for each load of activations.
    Trine(u32),
    /// The engine that published its figures on an AGX Orin, with so many rows of a matrix to a block.
    Seed(u32),
}

impl Engine {
    /// All of them.
    pub const ALL: [Engine; 8] = [
        Engine::Trine(1),
        Engine::Trine(2),
        Engine::Trine(4),
        Engine::Trine(8),
        Engine::Seed(1),
        Engine::Seed(2),
        Engine::Seed(4),
        Engine::Seed(8),
    ];

    /// Its launches for one token when `depth` positions are in the KV cache.
    ///
    /// # Errors
    /// It can't run a model of this model.
    pub fn kernels(self, model: &Model, depth: usize) -> Result<Vec<Kernel>> {
        match self {
            Engine::Trine(rows) => trine::kernels(model, rows, depth),
            Engine::Seed(rows) => {
                seed::kernels(model, rows, depth).ok_or_else(|| Error::Usage(format!("{self} has no such kernel")))
            }
        }
    }

    /// Whether a token is one launch of a graph.
    pub fn graph(self) -> bool {
        matches!(self, Engine::Trine(_))
    }

    /// Tokens a second that were measured on an AGX Orin 64 GB with DeepSeek-R1-Distill-Qwen-7B, 474 tokens after a short prompt.
    pub fn published(self) -> Option<f64> {
        match self {
            Engine::Seed(1) => Some(19.6),
            Engine::Seed(2) => Some(22.54),
            Engine::Seed(4) => Some(23.99),
            Engine::Seed(8) => Some(18.01),
            Engine::Seed(_) | Engine::Trine(_) => None,
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Trine(rows) => write!(f, "trine-o{rows}"),
            Engine::Seed(rows) => write!(f, "seed-o{rows}"),
        }
    }
}

impl FromStr for Engine {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = || Self::ALL.map(|engine| engine.to_string()).join(", ");
        let engine = Self::ALL.into_iter().find(|engine| engine.to_string() == name);
        engine.ok_or_else(|| Error::Usage(format!("no engine is named '{name}': there are {}", known())))
    }
}
