//! The memory plan: what a model will take before any of it is loaded.

use trine_backend::{Format, KvFormat, KvShape};

use super::Config;
use super::forward::Activations;
use super::layout::{self, LayerSource, MatrixSource, Role};
use super::load::{Formats, body_is_coded, format_of, parts_of};
use crate::formats::{Checkpoint, PartInfo, quoted};
use crate::memory::human;
use crate::{Error, Result};

/// Bytes on the device, and what a token costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Matrices inside the layers.
    pub body: u64,
    /// Number format of most of the body.
    pub body_format: Format,
    /// Embedding and lm_head.
    pub head: u64,
    /// Number format of the matrix that makes logits.
    pub head_format: Format,
    /// Norms, biases and RoPE table.
    pub vectors: u64,
    /// KV cache.
    pub kv: u64,
    /// Activations of the largest step.
    pub activations: u64,
    /// Weights of body, embedding and lm_head, counted as parameters.
    pub parameters: u64,
    /// Bytes of weights that decoding one token reads.
    pub read_per_token: u64,
    /// A line for each type of the file that no format of ours holds and nobody asked to convert: what became of it.
    pub requantised: Vec<String>,
}

/// The sizes that a plan depends on, besides the model's own.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// KV cache.
    pub kv: KvShape,
    /// Its format.
    pub kv_format: KvFormat,
    /// Tokens of the largest step.
    pub rows: usize,
    /// Rows of logits of the largest step.
    pub outputs: usize,
}

impl Plan {
    /// Adds up a model; reads only headers.
    ///
    /// # Errors
    /// A tensor is missing or no float where floats are needed, a format does not fit the weights, or the sizes
    /// are beyond 64 bits.
    pub fn new<B: trine_backend::Backend>(
        config: &Config,
        checkpoint: &Checkpoint,
        formats: &Formats,
        extent: &Extent,
    ) -> Result<Self> {
        let body_is_coded = body_is_coded(checkpoint, config, formats)?;
        let mut requantised = Requantised::default();
        let mut size = |source: &MatrixSource| -> Result<(Format, u64)> {
            let parts = parts_of(source, checkpoint, config)?;
            let native: Vec<_> = parts.iter().map(|part| part.format).collect();
            let format = format_of(source, &native, body_is_coded, formats)?;
            let asked = if source.role == Role::Body { formats.body } else { formats.head };
            if asked.is_none() {
                parts.iter().for_each(|part| requantised.add(part, format));
            }
            let bytes = format.bytes(source.rows(), source.columns);
            Ok((format, bytes.ok_or_else(|| too_large(checkpoint))?))
        };
        // Layers have the same shapes, but maybe not the same formats.
        let layer = LayerSource::new(config, 0);
        let layers = config.layers as u64;
        let mut body = 0u64;
        let mut shares: Vec<(Format, u64)> = Vec::new();
        for index in 0..config.layers {
            for source in LayerSource::new(config, index).matrices() {
                let (format, bytes) = size(source)?;
                body = body.checked_add(bytes).ok_or_else(|| too_large(checkpoint))?;
                match shares.iter_mut().find(|(known, _)| *known == format) {
                    Some((_, share)) => *share += source.weights(),
                    None => shares.push((format, source.weights())),
                }
            }
        }
        let most = shares.iter().max_by_key(|(_, weights)| *weights).map(|&(format, _)| format);
        let embedding = layout::embedding(config);
        let lm_head = layout::lm_head(config);
        let (head_format, head_bytes) = size(lm_head.as_ref().unwrap_or(&embedding))?;
        let table = if lm_head.is_some() { size(&embedding)?.1 } else { 0 };
        let body_weights: u64 = layer.matrices().iter().map(|source| source.weights()).sum();
        let vectors: usize = layer.vectors().map(|(_, length)| length).sum();
        let (per_row, per_output) = Activations::<B>::values_per_row(config);
        Ok(Plan {
            body,
            body_format: most.unwrap_or(head_format),
            head: head_bytes + table,
            head_format,
            vectors: 4 * (vectors as u64 * layers + (extent.kv.context * config.heads.dim) as u64),
            kv: extent.kv.bytes(extent.kv_format) as u64,
            activations: 4 * (per_row as u64 * extent.rows as u64 + per_output as u64 * extent.outputs as u64),
            parameters: body_weights * layers + embedding.weights() * (1 + u64::from(lm_head.is_some())),
            read_per_token: body.saturating_add(head_bytes),
            requantised: requantised.lines(),
        })
    }

    /// All bytes together.
    pub fn total(&self) -> u64 {
        [self.body, self.head, self.vectors, self.kv, self.activations].iter().fold(0, |sum, &x| sum.saturating_add(x))
    }

    /// Refuses a model that is larger than what is free, and shows the sum.
    ///
    /// # Errors
    /// [`Error::Request`] when `available` is known and too small.
    pub fn check(&self, available: Option<u64>) -> Result<()> {
        match available {
            Some(available) if self.total() > available => Err(Error::Request(format!(
                "the model needs {} (weights {}, KV cache {}, activations {}) but {} is free: use a smaller --weights format, -c or -b, or a smaller model",
                human(self.total()),
                human(self.body.saturating_add(self.head).saturating_add(self.vectors)),
                human(self.kv),
                human(self.activations),
                human(available)
            ))),
            _ => Ok(()),
        }
    }
}

/// The tensors that are quantised anew, gathered by what they are and what they become.
#[derive(Default)]
struct Requantised(Vec<(String, Format, Vec<String>)>);

impl Requantised {
    /// Notes the part of a matrix of `format`. A dense head that becomes INT8 is the rule and no news.
    fn add(&mut self, part: &PartInfo, format: Format) {
        if part.exact && (format.holds(part.format) || part.format.is_dense()) {
            return;
        }
        match self.0.iter_mut().find(|(stored, to, _)| *stored == part.stored && *to == format) {
            Some((_, _, tensors)) => tensors.push(part.tensor.clone()),
            None => self.0.push((part.stored.clone(), format, vec![part.tensor.clone()])),
        }
    }

    fn lines(&self) -> Vec<String> {
        let line = |(stored, format, tensors): &(String, Format, Vec<String>)| {
            let rest = if tensors.len() > 1 { format!(" and {} more", tensors.len() - 1) } else { String::new() };
            format!("{stored} weights are quantised anew, to {format}: {}{rest}", quoted(&tensors[0]))
        };
        self.0.iter().map(line).collect()
    }
}

/// A matrix that the forward pass multiplies with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// Its tensors' names in the first layer, without what they share.
    pub name: String,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// Number format on the device.
    pub format: Format,
    /// How often it is there.
    pub count: usize,
}

/// The matrices of a model, those of all layers as one, in the order in which they are used; reads only headers.
///
/// # Errors
/// A tensor is missing or no float where floats are needed, or a format does not fit the weights.
pub fn products(config: &Config, checkpoint: &Checkpoint, formats: &Formats) -> Result<Vec<Product>> {
    let coded = body_is_coded(checkpoint, config, formats)?;
    let product = |source: &MatrixSource, count: usize| -> Result<Product> {
        let part = |(name, _): &(String, usize)| name.rsplit('.').next().unwrap_or(name).to_owned();
        let name = source.parts.iter().map(part).collect::<Vec<_>>().join("|");
        let native: Vec<_> = parts_of(source, checkpoint, config)?.iter().map(|part| part.format).collect();
        let format = format_of(source, &native, coded, formats)?;
        Ok(Product { name, rows: source.rows(), columns: source.columns, format, count })
    };
    let layer = LayerSource::new(config, 0);
    let head = layout::lm_head(config).unwrap_or_else(|| layout::embedding(config));
    let body = layer.matrices().into_iter().map(|source| product(source, config.layers));
    body.chain([product(&head, 1)]).collect()
}

fn too_large(checkpoint: &Checkpoint) -> Error {
    Error::file(checkpoint.path(), "its config.json describes a model larger than any memory")
}
