//! A calibration text's way through a model, one block of one layer at a time.
//!
//! The residual stream of all tokens is kept on the host and goes through each block in turn. So no more than one layer
//! is on the device, whatever the model's size, and a layer can be run on what the layers before it make after they were
//! quantised. Between the steps the inputs of its matrices are read, as [`Backend::read`] allows on any device.

use trine_backend::{Backend, HostMatrix, KvFormat, KvShape, Row};

use super::inputs::Inputs;
use crate::model::forward::{attention_block, feed_forward_block, norm_block};
use crate::model::{Activations, Config, Layer, rope};
use crate::{Error, Result};

/// The calibration text and how far it has come.
pub(super) struct Walk<B: Backend> {
    /// The device.
    pub(super) backend: B,
    config: Config,
    activations: Activations<B>,
    /// Of one layer, which every layer uses in its turn.
    kv: B::Kv,
    rope: B::Buf,
    /// Tokens of a window; each window is a sequence of its own.
    window: usize,
    ids: Vec<u32>,
    /// `[ids, hidden]`: the residual stream.
    hidden: Vec<f32>,
}

/// A half of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// q|k|v and the output projection.
    Attention,
    /// gate|up and the down projection.
    FeedForward,
}

impl<B: Backend> Walk<B> {
    /// A text of `ids` in windows of `window` tokens; what is left after the last whole window is not used.
    ///
    /// # Errors
    /// The text is shorter than a window, or the device fails.
    pub(super) fn new(mut backend: B, config: &Config, ids: &[u32], window: usize) -> Result<Self> {
        let windows = ids.len() / window;
        if windows == 0 {
            let problem = format!("the calibration text has {} tokens: give one of at least {window}", ids.len());
            return Err(Error::Request(problem));
        }
        let shape =
            KvShape { layers: 1, sequences: 1, context: window, kv_heads: config.heads.kv, head_dim: config.heads.dim };
        let ids = ids[..windows * window].to_vec();
        Ok(Walk {
            activations: Activations::new(&mut backend, config, window, 1)?,
            kv: backend.kv(shape, KvFormat::F32)?,
            rope: backend.upload(config.heads.dim, &rope::table(config, window))?,
            hidden: vec![0.0; ids.len() * config.hidden],
            config: config.clone(),
            backend,
            window,
            ids,
        })
    }

    /// Tokens in all windows.
    pub(super) fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Begins: the residual stream becomes the tokens' rows of the embedding.
    pub(super) fn embed(&mut self, table: HostMatrix<'_>) -> Result<()> {
        let table = self.backend.prepare(table)?;
        for window in 0..self.windows() {
            let rows = self.rows(window);
            let activations = &mut self.activations;
            self.backend.step(&rows, |b| b.embed(activations.residual(), &table))?;
            self.keep(window)?;
        }
        Ok(())
    }

    /// Runs a block. `inputs` gets what its two matrices were multiplied with; with `advance` the residual stream
    /// becomes what the block makes of it, without it stays. `watch` is told the part that is done before each window.
    pub(super) fn run(
        &mut self,
        block: Block,
        layer: &Layer<B>,
        mut inputs: Option<&mut [Inputs; 2]>,
        advance: bool,
        watch: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<()> {
        for window in 0..self.windows() {
            watch(window as f64 / self.windows() as f64)?;
            self.load(window)?;
            let rows = self.rows(window);
            let Walk { backend, config, activations, kv, rope, .. } = self;
            backend.step(&rows, |b| match block {
                Block::Attention => attention_block(b, config, rope, layer, activations, kv),
                Block::FeedForward => feed_forward_block(b, config, layer, activations),
            })?;
            if let Some(inputs) = &mut inputs {
                let buffers = match block {
                    Block::Attention => self.activations.attention_inputs(),
                    Block::FeedForward => self.activations.feed_forward_inputs(),
                };
                for (inputs, buffer) in inputs.iter_mut().zip(buffers) {
                    observe(&mut self.backend, buffer, self.window, inputs)?;
                }
            }
            if advance {
                self.keep(window)?;
            }
        }
        Ok(())
    }

    /// What lm_head is multiplied with, at the end.
    pub(super) fn head_inputs(&mut self, norm: &B::Buf, inputs: &mut Inputs) -> Result<()> {
        for window in 0..self.windows() {
            self.load(window)?;
            let rows = self.rows(window);
            let Walk { backend, config, activations, .. } = self;
            backend.step(&rows, |b| norm_block(b, config, norm, activations))?;
            let [normed, _] = self.activations.attention_inputs();
            observe(&mut self.backend, normed, self.window, inputs)?;
        }
        Ok(())
    }

    fn windows(&self) -> usize {
        self.ids.len() / self.window
    }

    fn rows(&self, window: usize) -> Vec<Row> {
        let ids = &self.ids[window * self.window..][..self.window];
        let row =
            |(position, &token): (usize, &u32)| Row { token, sequence: 0, position: position as u32, output: false };
        ids.iter().enumerate().map(row).collect()
    }

    fn load(&mut self, window: usize) -> Result<()> {
        let width = self.window * self.config.hidden;
        let values = &self.hidden[window * width..][..width];
        *self.activations.residual() = self.backend.upload(self.config.hidden, values)?;
        Ok(())
    }

    fn keep(&mut self, window: usize) -> Result<()> {
        let width = self.window * self.config.hidden;
        let values = &mut self.hidden[window * width..][..width];
        self.backend.read(self.activations.residual(), values)?;
        finite(values)
    }
}

fn observe<B: Backend>(backend: &mut B, buffer: &B::Buf, rows: usize, inputs: &mut Inputs) -> Result<()> {
    let mut values = vec![0.0; rows * inputs.columns()];
    backend.read(buffer, &mut values)?;
    finite(&values)?;
    inputs.add(&values);
    Ok(())
}

fn finite(values: &[f32]) -> Result<()> {
    if values.iter().all(|value| value.is_finite()) {
        return Ok(());
    }
    Err(Error::Request(
        "the model's activations are not finite on the calibration text: its weights are damaged".into(),
    ))
}
