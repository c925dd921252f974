//! Making a model small: its matrices in another number format, written as a Hugging Face style directory.
//!
//! Layer after layer is read, rounded and written, so that memory holds one layer and, with a calibration text, the
//! residual stream of its tokens. What the rounding knows is the caller's choice: nothing ([`Method::Nearest`],
//! [`Method::Search`]), the size of each matrix's inputs, or their products too ([`Method::Gptq`]).

mod config;
mod gptq;
mod inputs;
mod linalg;
mod rows;
mod scale;
mod shards;
mod staging;
mod walk;

use std::path::Path;

use trine_backend::{Backend, Format, HostMatrix, ZeroKind};

use crate::files::ModelFiles;
use crate::formats::{Checkpoint, Dtype, trine};
use crate::model::layout::{self, LayerSource, MatrixSource};
use crate::model::load::Fused;
use crate::model::{Config, Formats, Layer, load};
use crate::{Error, Result};
use inputs::Inputs;
pub use rows::Method;
use shards::{Planned, Shards};
use staging::Staging;
use walk::{Block, Walk};

/// Tokens of a calibration window where the model's context is not shorter.
const WINDOW: usize = 512;

/// What is wanted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Number formats; as in the model without them.
    pub formats: Formats,
    /// How INT4 codes are chosen.
    pub method: Method,
    /// Token ids of a calibration text.
    pub calibration: Option<Vec<u32>>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// Part of the work that is done, from 0 to 1.
    pub done: f64,
    /// Layers done.
    pub layer: usize,
    /// All layers.
    pub layers: usize,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number format of the layers' matrices.
    pub body: Format,
    /// Number format of embedding and lm_head.
    pub head: Format,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Tokens of the calibration text that were used.
    pub tokens: usize,
}

/// Quantises `files` into the new directory `out`; `watch` is told how far it is and ends it by returning false.
///
/// # Errors
/// The options do not fit each other or the model, the model is damaged, `out` is there already or can't be written, or
/// [`Error::Interrupted`]. Nothing stays of an unfinished directory.
pub fn quantize<B: Backend>(
    device: &B::Options,
    files: &ModelFiles,
    out: &Path,
    options: &Options,
    watch: &mut dyn FnMut(Status) -> bool,
) -> Result<Report> {
    let (config, checkpoint) = (&files.config, &files.checkpoint);
    load::check_names(checkpoint, config)?;
    let targets = Targets::new(files, options)?;
    targets.check(options)?;
    let staging = Staging::new(out)?;
    config::write(files, &targets, staging.path())?;
    let walk = match &options.calibration {
        Some(ids) => Some(Walk::new(B::open(device)?, config, ids, WINDOW.min(config.context))?),
        None => None,
    };
    let tokens = walk.as_ref().map_or(0, Walk::tokens);
    let tensors = planned(config, |source| target(source, checkpoint, config, &options.formats))?;
    let shards = Shards::new(staging.path(), tensors, shards::SHARD);
    let bytes = shards.total();
    let reference = reference(checkpoint, config)?;
    let mut run = Run { checkpoint, config, options, reference, walk, shards, watch };
    run.all()?;
    run.shards.finish()?;
    staging.finish()?;
    Ok(Report { body: targets.body, head: targets.head, bytes, tokens })
}

/// The formats that are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Targets {
    /// Of the layers' matrices.
    pub(crate) body: Format,
    /// Of embedding and lm_head.
    pub(crate) head: Format,
    /// Whether activations have one scale per token, as BitNet models were trained.
    pub(crate) per_token: bool,
}

impl Targets {
    /// The formats of layer 0's gate|up and of lm_head.
    fn new(files: &ModelFiles, options: &Options) -> Result<Self> {
        let (config, checkpoint) = (&files.config, &files.checkpoint);
        let layer = LayerSource::new(config, 0);
        let head = layout::lm_head(config).unwrap_or_else(|| layout::embedding(config));
        let body = target(&layer.gate_up, checkpoint, config, &options.formats)?;
        let head = target(&head, checkpoint, config, &options.formats)?;
        Ok(Targets { body, head, per_token: config.quantization.is_per_token() && !body.is_dense() })
    }

    fn check(&self, options: &Options) -> Result<()> {
        let calibrated = |format| matches!(format, Format::Int4 { zero: ZeroKind::Symmetric | ZeroKind::Min, .. });
        if options.method == Method::Gptq && options.calibration.is_none() {
            return Err(Error::Usage("--method gptq needs a text: give one with --calibrate FILE".into()));
        }
        if options.calibration.is_some() && options.method == Method::Nearest {
            return Err(Error::Usage("--calibrate is of no use to --method rtn: take search or gptq".into()));
        }
        if options.calibration.is_some() && !calibrated(self.body) && !calibrated(self.head) {
            let problem = format!("--calibrate is of no use to {} weights: only int4 formats choose by it", self.body);
            return Err(Error::Usage(problem));
        }
        Ok(())
    }
}

/// The format that a matrix is written in.
fn target(source: &MatrixSource, checkpoint: &Checkpoint, config: &Config, formats: &Formats) -> Result<Format> {
    let native: Vec<_> = load::parts_of(source, checkpoint, config)?.iter().map(|part| part.format).collect();
    load::format_of(source, &native, load::body_is_coded(checkpoint, config, formats)?, formats)
}

/// Every tensor in the order in which it is written. Embedding and lm_head come last: calibration learns of their inputs
/// when it has gone through all layers.
fn planned(config: &Config, target: impl Fn(&MatrixSource) -> Result<Format>) -> Result<Vec<Planned>> {
    let mut tensors = Vec::new();
    for index in 0..config.layers {
        let layer = LayerSource::new(config, index);
        for source in layer.matrices() {
            plan_matrix(source, target(source)?, &mut tensors);
        }
        tensors.extend(layer.vectors().map(plan_vector));
    }
    tensors.push(plan_vector(&layout::final_norm(config)));
    for source in [Some(layout::embedding(config)), layout::lm_head(config)].iter().flatten() {
        plan_matrix(source, target(source)?, &mut tensors);
    }
    Ok(tensors)
}

fn plan_matrix(source: &MatrixSource, format: Format, tensors: &mut Vec<Planned>) {
    for (part, rows) in &source.parts {
        let planned = |(tail, dtype, shape)| Planned { name: format!("{part}.{tail}"), dtype, shape };
        tensors.extend(trine::tensors(format, *rows, source.columns).into_iter().map(planned));
        if source.bias {
            tensors.push(plan_vector(&(format!("{part}.bias"), *rows)));
        }
    }
}

fn plan_vector((name, length): &(String, usize)) -> Planned {
    Planned { name: name.clone(), dtype: Dtype::F32, shape: vec![*length] }
}

/// A quantisation under way.
struct Run<'a, B: Backend> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    options: &'a Options,
    /// The formats in which the model meets its calibration text before it is quantised.
    reference: Formats,
    walk: Option<Walk<B>>,
    shards: Shards,
    watch: &'a mut dyn FnMut(Status) -> bool,
}

impl<B: Backend> Run<'_, B> {
    fn all(&mut self) -> Result<()> {
        let config = self.config;
        let embedding = layout::embedding(config);
        if let Some(walk) = &mut self.walk {
            let format = target(&embedding, self.checkpoint, config, &self.reference)?;
            let fused = Fused::open(&embedding, self.checkpoint, load::storage(&embedding, config))?;
            walk.embed(fused.host(&embedding, format)?)?;
            fused.release();
        }
        for index in 0..config.layers {
            self.layer(index)?;
        }
        let norm = layout::final_norm(config);
        self.vector(&norm)?;
        let mut inputs = None;
        if let Some(walk) = &mut self.walk {
            let values = self.checkpoint.vector(&norm.0, norm.1)?;
            let norm = walk.backend.upload(config.hidden, &values)?;
            walk.head_inputs(&norm, inputs.insert(Inputs::new(config.hidden, false)))?;
        }
        // A tied embedding is lm_head, whose errors reach every logit; one of its own is only looked up.
        let lm_head = layout::lm_head(config);
        let table_inputs = if lm_head.is_none() { inputs.take() } else { None };
        self.matrix(&embedding, table_inputs)?;
        if let Some(lm_head) = lm_head {
            self.matrix(&lm_head, inputs)?;
        }
        self.tell(config.layers, 1.0)
    }

    /// Quantises and writes a layer, and takes the calibration text through it.
    fn layer(&mut self, index: usize) -> Result<()> {
        let source = LayerSource::new(self.config, index);
        self.tell(index, 0.0)?;
        match self.walk.take() {
            None => {
                for (done, source) in source.matrices().into_iter().enumerate() {
                    self.matrix(source, None)?;
                    self.tell(index, (done + 1) as f64 / 4.0)?;
                }
            }
            Some(mut walk) => {
                let (checkpoint, formats) = (self.checkpoint, &self.reference);
                let mut layer = load::layer(&mut walk.backend, checkpoint, self.config, formats, index)?;
                let first = [&source.qkv, &source.attention_output];
                self.block(&mut walk, Block::Attention, &mut layer, first, (index, 0.0))?;
                let second = [&source.gate_up, &source.down];
                self.block(&mut walk, Block::FeedForward, &mut layer, second, (index, 0.5))?;
                self.walk = Some(walk);
            }
        }
        source.vectors().try_for_each(|vector| self.vector(vector))
    }

    /// Runs a block on the calibration text, quantises its two matrices, and with GPTQ runs it again as it has become:
    /// the layers behind it then make up for its errors.
    fn block(
        &mut self,
        walk: &mut Walk<B>,
        block: Block,
        layer: &mut Layer<B>,
        sources: [&MatrixSource; 2],
        (index, done): (usize, f64),
    ) -> Result<()> {
        let again = self.options.method == Method::Gptq;
        let mut inputs = sources.map(|source| Inputs::new(source.columns, again));
        let part = if again { 0.125 } else { 0.25 };
        walk.run(block, layer, Some(&mut inputs), !again, &mut |x| self.tell(index, done + part * x))?;
        let places = match block {
            Block::Attention => [&mut layer.qkv, &mut layer.attention_output],
            Block::FeedForward => [&mut layer.gate_up, &mut layer.down],
        };
        for ((source, inputs), place) in sources.into_iter().zip(inputs).zip(places) {
            let matrix = self.matrix(source, Some(inputs))?;
            if again {
                place.weight = walk.backend.prepare(matrix)?;
            }
            self.tell(index, done + 0.25)?;
        }
        if again {
            walk.run(block, layer, None, true, &mut |x| self.tell(index, done + 0.25 + 0.25 * x))?;
        }
        Ok(())
    }

    /// Quantises and writes a matrix, its parts one after the other, with their biases.
    fn matrix(&mut self, source: &MatrixSource, inputs: Option<Inputs>) -> Result<HostMatrix<'static>> {
        let format = target(source, self.checkpoint, self.config, &self.options.formats)?;
        let fused = Fused::open(source, self.checkpoint, load::storage(source, self.config))?;
        let (rows, columns) = (source.rows(), source.columns);
        let held = fused.formats().iter().all(|native| !native.is_dense() && format.holds(*native));
        let matrix = if held {
            fused.host(source, format)?.into_owned()
        } else {
            let read = |row: usize, out: &mut [f32]| fused.floats(row, out);
            fused.with_activation(rows::quantize(rows, columns, format, self.options.method, inputs, read)?)?
        };
        fused.release();
        let mut first = 0;
        for (part, rows) in &source.parts {
            let names = trine::tensors(format, *rows, source.columns);
            for ((tail, _, _), bytes) in names.iter().zip(trine::bytes(&matrix, first, *rows)) {
                self.shards.write(&format!("{part}.{tail}"), &bytes)?;
            }
            if source.bias {
                self.vector(&(format!("{part}.bias"), *rows))?;
            }
            first += rows;
        }
        Ok(matrix)
    }

    fn vector(&mut self, vector: &(String, usize)) -> Result<()> {
        let values = self.checkpoint.vector(&vector.0, vector.1)?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.shards.write(&vector.0, &bytes)
    }

    fn tell(&mut self, layer: usize, part: f64) -> Result<()> {
        let layers = self.config.layers;
        // The head takes about as long as a layer.
        let done = (layer as f64 + part) / (layers + 1) as f64;
        match (self.watch)(Status { done, layer, layers }) {
            true => Ok(()),
            false => Err(Error::Interrupted),
        }
    }
}

/// The formats in which a model meets its calibration text before it is quantised: INT8 is as good as floats for
/// statistics of activations, and several times as fast; codes stay what they are.
fn reference(checkpoint: &Checkpoint, config: &Config) -> Result<Formats> {
    let coded = load::body_is_coded(checkpoint, config, &Formats::default())?;
    let int8 = "int8".parse().expect("int8 is a format");
    Ok(Formats { body: (!coded).then_some(int8), head: None, ..Formats::default() })
}
