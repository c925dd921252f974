//! Loading: a checkpoint's tensors become the device's weights, one matrix at a time.
//!
//! A matrix is read row by row through the mapped file, packed on all cores, handed to the backend and
//! forgotten, so that at any time there is one host matrix besides what is on the device.

use std::collections::BTreeSet;

use trine_backend::{Activation, Backend, Format, HostMatrix};

use super::layout::{self, LayerSource, MatrixSource, Role};
use super::weights::{Layer, Linear, Weights};
use super::{Config, Quantization, rope};
use crate::formats::bitnet::{self, OnlineTernary, PackedTernary};
use crate::formats::{Checkpoint, Dtype, Tensor, check_finite};
use crate::{Error, Result};

/// The number formats that a user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    /// Matrices inside the layers; without it they stay what the checkpoint has.
    pub body: Option<Format>,
    /// Embedding and lm_head; without it INT8 where the body is quantised, else what the checkpoint has.
    pub head: Option<Format>,
}

/// The number format that a matrix gets.
pub(super) fn format_of(
    source: &MatrixSource,
    checkpoint: &Checkpoint,
    config: &Config,
    formats: &Formats,
) -> Result<Format> {
    let wanted = match source.role {
        Role::Body => formats.body,
        Role::Head => formats.head.or_else(|| quantised_head(config, formats)),
    };
    let native = native_format(source, checkpoint, config)?;
    match wanted {
        Some(Format::Ternary) if native != Format::Ternary => Err(Error::Usage(format!(
            "{} has no ternary weights: quantise to one of int4-g32, int4-g64, int4-g128, int4-row, int8",
            source.parts[0].0
        ))),
        Some(format) => Ok(format),
        None => Ok(native),
    }
}

/// lm_head costs as much memory traffic as the whole body of a small ternary model when it is left in
/// bf16; INT8 codes change its logits by less than a percent of their spread.
fn quantised_head(config: &Config, formats: &Formats) -> Option<Format> {
    let quantised = formats.body.map_or(config.quantization.is_ternary(), |format| !format.is_dense());
    quantised.then(|| "int8".parse().expect("int8 is a format"))
}

fn native_format(source: &MatrixSource, checkpoint: &Checkpoint, config: &Config) -> Result<Format> {
    if source.role == Role::Body && config.quantization.is_ternary() {
        return Ok(Format::Ternary);
    }
    let tensor = weight(checkpoint, &source.parts[0].0)?;
    match tensor.dtype() {
        Dtype::F32 => Ok(Format::F32),
        Dtype::F16 => Ok(Format::F16),
        Dtype::BF16 => Ok(Format::Bf16),
        other => Err(tensor.error(format_args!("dtype {other} where F32, F16 or BF16 is needed"))),
    }
}

fn weight<'a>(checkpoint: &'a Checkpoint, part: &str) -> Result<Tensor<'a>> {
    checkpoint.tensor(&format!("{part}.weight"))
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
    let mut loader = Loader { backend, checkpoint, config, formats, progress };
    Ok(Weights {
        embedding: loader.matrix(&layout::embedding(config))?,
        layers: (0..config.layers).map(|index| loader.layer(index)).collect::<Result<_>>()?,
        final_norm: loader.vector(&layout::final_norm(config))?,
        lm_head: layout::lm_head(config).map(|source| loader.matrix(&source)).transpose()?,
        rope: loader.backend.upload(config.heads.dim, &rope::table(config, context))?,
    })
}

/// Refuses a checkpoint with tensors that the graph would leave out: its config describes another model.
fn check_names(checkpoint: &Checkpoint, config: &Config) -> Result<()> {
    let mut known = BTreeSet::new();
    let mut add = |source: &MatrixSource| {
        for (part, _) in &source.parts {
            known.insert(format!("{part}.weight"));
            if source.role == Role::Body && matches!(config.quantization, Quantization::Bitnet { online: false, .. }) {
                known.insert(format!("{part}.weight_scale"));
            }
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
            return Err(checkpoint.tensor(name)?.error(problem));
        }
    }
    Ok(())
}

struct Loader<'a, B: Backend> {
    backend: &'a mut B,
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    formats: &'a Formats,
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
        let tensor = self.checkpoint.tensor_of_shape(name, &[*length])?;
        let values = tensor.to_f32()?;
        check_finite(&values, &tensor, 0)?;
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
            let tensor = self.checkpoint.tensor_of_shape(&format!("{part}.bias"), &[*rows])?;
            let values = tensor.to_f32()?;
            check_finite(&values, &tensor, 0)?;
            fused.extend(values);
        }
        Ok(Some(self.backend.upload(fused.len(), &fused)?))
    }

    fn matrix(&mut self, source: &MatrixSource) -> Result<B::Weight> {
        let format = format_of(source, self.checkpoint, self.config, self.formats)?;
        let reader = FusedReader::new(source, self.checkpoint, self.config)?;
        let (rows, columns) = (source.rows(), source.columns);
        let host = match format {
            Format::Ternary => HostMatrix::ternary(rows, columns, |row, out| reader.ternary(row, out))?,
            _ => HostMatrix::quantize(rows, columns, format, |row, out| reader.floats(row, out))?,
        };
        // BitNet models were trained with one activation scale per token, whatever holds their codes.
        let per_token = source.role == Role::Body && self.config.quantization.is_ternary() && !format.is_dense();
        let host = if per_token { host.with_activation(Activation::Token)? } else { host };
        let weight = self.backend.prepare(host)?;
        (self.progress)(reader.release());
        Ok(weight)
    }
}

/// The rows of a fused matrix, out of the tensors that it is made of.
struct FusedReader<'a> {
    /// First row and reader of each part.
    parts: Vec<(usize, Part<'a>)>,
}

/// One tensor's rows.
enum Part<'a> {
    Dense(Tensor<'a>),
    Packed(PackedTernary<'a>, f32),
    Online(OnlineTernary<'a>),
}

impl<'a> FusedReader<'a> {
    fn new(source: &MatrixSource, checkpoint: &'a Checkpoint, config: &Config) -> Result<Self> {
        let mut first = 0;
        let mut parts = Vec::with_capacity(source.parts.len());
        for (name, rows) in &source.parts {
            let tensor = weight(checkpoint, name)?;
            let quantization = match source.role {
                Role::Body => config.quantization,
                Role::Head => Quantization::None,
            };
            let part = match quantization {
                Quantization::None => Part::Dense(tensor.expect_shape(&[*rows, source.columns])?),
                Quantization::Bitnet { online: true, .. } => {
                    Part::Online(OnlineTernary::new(tensor.expect_shape(&[*rows, source.columns])?)?)
                }
                Quantization::Bitnet { divide, .. } => {
                    if rows % 4 != 0 {
                        return Err(tensor.error(format_args!("{rows} rows can't be packed four to a byte")));
                    }
                    let packed = PackedTernary::new(tensor.expect_shape(&[rows / 4, source.columns])?)?;
                    let scale = checkpoint.tensor(&format!("{name}.weight_scale"))?;
                    Part::Packed(packed, bitnet::scale(divide, &scale)?)
                }
            };
            parts.push((first, part));
            first += rows;
        }
        Ok(FusedReader { parts })
    }

    fn part(&self, row: usize) -> (usize, &Part<'a>) {
        let (first, part) = self.parts.iter().rfind(|(first, _)| *first <= row).expect("the first part starts at 0");
        (row - first, part)
    }

    /// A row as -1, 0, 1; returns its scale.
    fn ternary(&self, row: usize, out: &mut [i8]) -> Result<f32> {
        match self.part(row) {
            (row, Part::Packed(packed, scale)) => packed.row(row, out).map(|()| *scale),
            (row, Part::Online(online)) => online.row(row, out).map(|()| online.scale()),
            (_, Part::Dense(tensor)) => Err(tensor.error("dense weights where ternary ones are needed")),
        }
    }

    /// A row as floats, none of them NaN or infinite.
    fn floats(&self, row: usize, out: &mut [f32]) -> Result<()> {
        if let (row, Part::Dense(tensor)) = self.part(row) {
            tensor.row_f32(row, out)?;
            return check_finite(out, tensor, row);
        }
        let mut values = vec![0i8; out.len()];
        let scale = self.ternary(row, &mut values)?;
        out.iter_mut().zip(values).for_each(|(out, value)| *out = scale * f32::from(value));
        Ok(())
    }

    /// Gives the file's pages back to the system; returns their bytes.
    fn release(&self) -> u64 {
        let mut bytes = 0;
        for (_, part) in &self.parts {
            let tensor = match part {
                Part::Dense(tensor) => tensor,
                Part::Packed(packed, _) => packed.tensor(),
                Part::Online(online) => online.tensor(),
            };
            tensor.release();
            bytes += tensor.bytes().len() as u64;
        }
        bytes
    }
}
