//! Loading: a checkpoint's tensors become the device's weights, one matrix at a time.
//!
//! A matrix is read row by row through the mapped file, packed on all cores, handed to the backend and
//! forgotten, so that at any time there is one host matrix besides what is on the device.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::thread;

use trine_backend::{Activation, Backend, CodedRow, Format, Group, HostMatrix};

use super::layout::{self, LayerSource, MatrixSource, Role};
use super::weights::{Layer, Linear, Weights};
use super::{Config, Quantization, rope};
use crate::formats::Checkpoint;
use crate::formats::part::{self, Part, PartInfo};
use crate::{Error, Result};

/// The number formats that a user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    /// Matrices inside the layers; without it they stay what the checkpoint has.
    pub body: Option<Format>,
    /// Embedding and lm_head; without it what the checkpoint has, but INT8 for dense ones where the body is quantised.
    pub head: Option<Format>,
    /// What INT4 and INT8 matrices are multiplied with; without it one scale per 32 columns, or per token where the model was
    /// trained so.
    pub activation: Option<Activation>,
}

/// The parts of a matrix as the checkpoint's headers describe them.
pub(crate) fn parts_of(source: &MatrixSource, checkpoint: &Checkpoint, config: &Config) -> Result<Vec<PartInfo>> {
    source.parts.iter().map(|(name, _)| checkpoint.part_info(name, storage(source, config))).collect()
}

pub(crate) fn storage(source: &MatrixSource, config: &Config) -> Quantization {
    match source.role {
        Role::Body => config.quantization,
        Role::Head => config.quantization.of_head(),
    }
}

/// Whether the layers' weights will be codes: asked for, or so in the checkpoint.
pub(crate) fn body_is_coded(checkpoint: &Checkpoint, config: &Config, formats: &Formats) -> Result<bool> {
    if let Some(format) = formats.body {
        return Ok(!format.is_dense());
    }
    // What `trine quantize` wrote has the head that was chosen then.
    if matches!(config.quantization, Quantization::Trine { .. }) {
        return Ok(false);
    }
    // The down projection: a single part, and never left out of a quantisation.
    let down = LayerSource::new(config, 0).down;
    Ok(parts_of(&down, checkpoint, config)?.iter().any(|part| !part.format.is_dense()))
}

/// The number format that a matrix gets, whose parts come in the formats `native`.
///
/// lm_head costs as much memory traffic as the whole body of a small ternary model when it is left in bf16; INT8 codes
/// change its logits by less than a percent of their spread. So dense heads of coded models become INT8.
pub(crate) fn format_of(
    source: &MatrixSource,
    native: &[Format],
    body_is_coded: bool,
    formats: &Formats,
) -> Result<Format> {
    const INT8: Format = Format::Int8 { group: Group::G32 };
    // INT8 is what loses least of a mixture that no format holds.
    let common = Format::common(native).unwrap_or(INT8);
    let wanted = match source.role {
        Role::Body => formats.body,
        Role::Head => formats.head.or((common.is_dense() && body_is_coded).then_some(INT8)),
    };
    match wanted {
        Some(Format::Ternary) if common != Format::Ternary => Err(Error::Usage(format!(
            "{} has no ternary weights: quantise to one of int4-g32, int4-g64, int4-g128, int4-row, int8",
            source.parts[0].0
        ))),
        Some(format) => Ok(format),
        None => Ok(common),
    }
}

/// Brings all weights to the device. `context` positions get RoPE angles; `progress` is told the bytes of
/// the checkpoint that each finished matrix took.
///
/// # Errors
/// A tensor is missing, has another shape or dtype than the config says, holds NaN, infinity or an
/// invalid code, or is one that the graph does not know; or the device has too little memory.
pub fn load<B: Backend>(
    backend: &mut B,
    checkpoint: &Checkpoint,
    config: &Config,
    formats: &Formats,
    context: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Weights<B>> {
    check_names(checkpoint, config)?;
    let body_is_coded = body_is_coded(checkpoint, config, formats)?;
    thread::scope(|scope| {
        // Some hundred thousand sines, while matrices are read.
        let table = || rope::table(config, context);
        let angles = thread::Builder::new().name("rope".into()).spawn_scoped(scope, table);
        let mut loader = Loader { backend, checkpoint, config, formats, body_is_coded, progress };
        Ok(Weights {
            embedding: loader.matrix(&layout::embedding(config))?,
            layers: (0..config.layers).map(|index| loader.layer(index)).collect::<Result<_>>()?,
            final_norm: loader.vector(&layout::final_norm(config))?,
            lm_head: layout::lm_head(config).map(|source| loader.matrix(&source)).transpose()?,
            rope: {
                let angles = angles
                    .map_or_else(|_| table(), |thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
                loader.backend.upload(config.heads.dim, &angles)?
            },
        })
    })
}

/// Refuses a checkpoint with tensors that the graph would leave out: its config describes another model.
pub(crate) fn check_names(checkpoint: &Checkpoint, config: &Config) -> Result<()> {
    let mut known = BTreeSet::new();
    let mut add = |source: &MatrixSource| {
        for (part, _) in &source.parts {
            known.extend(storage(source, config).tensors().iter().map(|tail| format!("{part}.{tail}")));
            if source.bias {
                known.insert(format!("{part}.bias"));
            }
        }
    };
    add(&layout::embedding(config));
    layout::lm_head(config).iter().for_each(&mut add);
    let layers: Vec<_> = (0..config.layers).map(|index| LayerSource::new(config, index)).collect();
    layers.iter().flat_map(LayerSource::matrices).for_each(&mut add);
    known.extend(layers.iter().flat_map(LayerSource::vectors).map(|(name, _)| name.clone()));
    known.insert(layout::final_norm(config).0);
    for name in checkpoint.names() {
        if !known.contains(name) && !layout::is_harmless(name, config) {
            let problem = format_args!(
                "has no place in a {} of {} layers: config.json and weights are of different models",
                config.family.name(),
                config.layers
            );
            return Err(checkpoint.error(name, problem));
        }
    }
    Ok(())
}

/// Brings layer `index` alone to the device.
///
/// # Errors
/// As [`load`].
pub(crate) fn layer<B: Backend>(
    backend: &mut B,
    checkpoint: &Checkpoint,
    config: &Config,
    formats: &Formats,
    index: usize,
) -> Result<Layer<B>> {
    let body_is_coded = body_is_coded(checkpoint, config, formats)?;
    Loader { backend, checkpoint, config, formats, body_is_coded, progress: &mut |_| () }.layer(index)
}

struct Loader<'a, B: Backend> {
    backend: &'a mut B,
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    formats: &'a Formats,
    body_is_coded: bool,
    progress: &'a mut dyn FnMut(u64),
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&mut self, index: usize) -> Result<Layer<B>> {
        let source = LayerSource::new(self.config, index);
        let mut optional = |pair: &Option<[(String, usize); 2]>| match pair {
            None => Ok::<_, Error>((None, None)),
            Some([a, b]) => Ok((Some(self.vector(a)?), Some(self.vector(b)?))),
        };
        let (query_norm, key_norm) = optional(&source.head_norms)?;
        let (attention_norm, feed_forward_norm) = optional(&source.sub_norms)?;
        Ok(Layer {
            input_norm: self.vector(&source.input_norm)?,
            qkv: self.linear(&source.qkv)?,
            head_norms: query_norm.zip(key_norm),
            attention_norm,
            attention_output: self.linear(&source.attention_output)?,
            post_attention_norm: self.vector(&source.post_attention_norm)?,
            gate_up: self.linear(&source.gate_up)?,
            feed_forward_norm,
            down: self.linear(&source.down)?,
        })
    }

    fn vector(&mut self, (name, length): &(String, usize)) -> Result<B::Buf> {
        let values = self.checkpoint.vector(name, *length)?;
        Ok(self.backend.upload(*length, &values)?)
    }

    fn linear(&mut self, source: &MatrixSource) -> Result<Linear<B>> {
        Ok(Linear { weight: self.matrix(source)?, bias: self.bias(source)? })
    }

    fn bias(&mut self, source: &MatrixSource) -> Result<Option<B::Buf>> {
        if !source.bias {
            return Ok(None);
        }
        let mut fused = Vec::with_capacity(source.rows());
        for (part, rows) in &source.parts {
            fused.extend(self.checkpoint.vector(&format!("{part}.bias"), *rows)?);
        }
        Ok(Some(self.backend.upload(fused.len(), &fused)?))
    }

    fn matrix(&mut self, source: &MatrixSource) -> Result<B::Weight> {
        let fused = Fused::open(source, self.checkpoint, storage(source, self.config))?;
        let format = format_of(source, &fused.formats(), self.body_is_coded, self.formats)?;
        let host = fused.host(source, format)?;
        let host = match self.formats.activation {
            Some(activation) if matches!(format, Format::Int4 { .. } | Format::Int8 { .. }) => {
                host.with_activation(activation)?
            }
            _ => host,
        };
        let weight = self.backend.prepare(host)?;
        (self.progress)(fused.release());
        Ok(weight)
    }
}

/// The rows of a fused matrix, out of the parts that it is made of.
pub(crate) struct Fused<'a> {
    /// First row and reader of each part.
    parts: Vec<(usize, Box<dyn Part + 'a>)>,
}

impl<'a> Fused<'a> {
    pub(crate) fn open(source: &MatrixSource, checkpoint: &'a Checkpoint, storage: Quantization) -> Result<Self> {
        let mut first = 0;
        let mut parts = Vec::with_capacity(source.parts.len());
        for (name, rows) in &source.parts {
            parts.push((first, checkpoint.part(name, [*rows, source.columns], storage)?));
            first += rows;
        }
        Ok(Fused { parts })
    }

    /// The matrix in `format`: as the file has it where it can be used so, code by code where the format holds the parts'
    /// codes, else quantised anew.
    pub(crate) fn host(&self, source: &MatrixSource, format: Format) -> Result<HostMatrix<'_>> {
        let (rows, columns) = (source.rows(), source.columns);
        if let [(_, part)] = self.parts.as_slice()
            && part.format() == format
            && let Some(host) = part.borrowed()
        {
            return self.with_activation(host);
        }
        let host = if format.is_dense() {
            HostMatrix::quantize(rows, columns, format, |row, out| self.floats(row, out))?
        } else {
            HostMatrix::coded(rows, columns, format, |row, out| self.codes(row, columns, format, out))?
        };
        self.with_activation(host)
    }

    /// BitNet models were trained with one activation scale per token, whatever holds their codes.
    pub(crate) fn with_activation<'m>(&self, host: HostMatrix<'m>) -> Result<HostMatrix<'m>> {
        let per_token = self.is_ternary() && !host.format().is_dense();
        Ok(if per_token { host.with_activation(Activation::Token)? } else { host })
    }

    pub(crate) fn formats(&self) -> Vec<Format> {
        self.parts.iter().map(|(_, part)| part.format()).collect()
    }

    pub(crate) fn is_ternary(&self) -> bool {
        self.parts.iter().all(|(_, part)| part.is_ternary())
    }

    fn part(&self, row: usize) -> (usize, &dyn Part) {
        let (first, part) = self.parts.iter().rfind(|(first, _)| *first <= row).expect("the first part starts at 0");
        (row - first, part.as_ref())
    }

    pub(crate) fn floats(&self, row: usize, out: &mut [f32]) -> Result<()> {
        let (row, part) = self.part(row);
        part.floats(row, out)
    }

    fn codes(&self, row: usize, columns: usize, format: Format, out: CodedRow<'_>) -> Result<()> {
        let (row, part) = self.part(row);
        part::write_row(part, row, columns, format, out)
    }

    /// Gives the file's pages back to the system; returns their bytes.
    pub(crate) fn release(&self) -> u64 {
        self.parts.iter().map(|(_, part)| part.release()).sum()
    }
}
