//! The engine: a model on its device, with its KV cache, taking one step at a time.

use trine_backend::{Backend, KvFormat, KvShape, Row};

use crate::files::ModelFiles;
use crate::memory;
use crate::model::{self, Activations, Config, Extent, Formats, Plan, Weights};
use crate::{Error, Result};

/// What can be set when a model is brought to a device.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Number formats of the weights.
    pub formats: Formats,
    /// Positions of each sequence; the model's own, up to [`DEFAULT_CONTEXT`], without it.
    pub context: Option<usize>,
    /// Sequences kept at the same time.
    pub sequences: usize,
    /// Tokens of the largest step.
    pub batch: usize,
    /// Rows of logits of the largest step.
    pub outputs: usize,
    /// Format of the KV cache.
    pub kv: KvFormat,
}

/// Positions that a model gets when nobody asks: long contexts cost memory before they are used.
pub const DEFAULT_CONTEXT: usize = 4096;

/// Tokens of a prefill step when nobody asks.
pub const DEFAULT_BATCH: usize = 512;

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            formats: Formats::default(),
            context: None,
            sequences: 1,
            batch: DEFAULT_BATCH,
            outputs: 1,
            kv: KvFormat::F16,
        }
    }
}

impl EngineOptions {
    /// Positions that a model of `config` gets.
    ///
    /// # Errors
    /// More are asked for than the model has.
    pub fn context_of(&self, config: &Config) -> Result<usize> {
        match self.context {
            Some(0) => Err(Error::Usage("-c 0: the context needs at least one token".into())),
            Some(asked) if asked > config.context => {
                Err(Error::Usage(format!("-c {asked}: the model has {} positions", config.context)))
            }
            Some(asked) => Ok(asked),
            None => Ok(config.context.min(DEFAULT_CONTEXT)),
        }
    }

    /// The sizes of everything but the weights.
    ///
    /// # Errors
    /// As [`EngineOptions::context_of`], and for a batch of 0.
    pub fn extent(&self, config: &Config) -> Result<Extent> {
        if self.batch == 0 {
            return Err(Error::Usage("-b 0: a step needs at least one token".into()));
        }
        let context = self.context_of(config)?;
        let kv = KvShape {
            layers: config.layers,
            sequences: self.sequences,
            context,
            kv_heads: config.heads.kv,
            head_dim: config.heads.dim,
        };
        // A step never has more tokens than the cache has places.
        let rows = self.batch.min(context.saturating_mul(self.sequences));
        Ok(Extent { kv, kv_format: self.kv, rows, outputs: self.outputs.min(rows) })
    }
}

/// A model that is ready to step.
pub struct Engine<B: Backend> {
    backend: B,
    config: Config,
    weights: Weights<B>,
    activations: Activations<B>,
    kv: B::Kv,
    extent: Extent,
    plan: Plan,
}

impl<B: Backend> Engine<B> {
    /// Opens the device and loads the model; `progress` is told the bytes of the checkpoint that each
    /// finished matrix took.
    ///
    /// # Errors
    /// The model does not fit in memory (refused before loading), its files are damaged, or the device fails.
    pub fn load(
        device: &B::Options,
        files: &ModelFiles,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let config = files.config.clone();
        let extent = options.extent(&config)?;
        let plan = Plan::new::<B>(&config, &files.checkpoint, &options.formats, &extent)?;
        let mut backend = B::open(device)?;
        plan.check(backend.info().free_memory.or_else(memory::available))?;
        // Before the weights: memory that host matrices had and gave back would have to be cleared, whereas new memory is
        // zero, and is not even there until it is used.
        let activations = Activations::new(&mut backend, &config, extent.rows, extent.outputs)?;
        let kv = backend.kv(extent.kv, extent.kv_format)?;
        let weights =
            model::load(&mut backend, &files.checkpoint, &config, &options.formats, extent.kv.context, progress)?;
        Ok(Engine { backend, config, weights, activations, kv, extent, plan })
    }

    /// Runs one step: keys and values of `rows` go into the cache, logits of those that ask for them can be
    /// read afterwards. At most [`Extent::rows`] rows and [`Extent::outputs`] outputs.
    ///
    /// # Errors
    /// The device fails, or a row is outside of what was set up.
    pub fn step(&mut self, rows: &[Row]) -> Result<()> {
        let outputs = rows.iter().filter(|row| row.output).count();
        let Extent { kv, rows: most, outputs: most_outputs, .. } = self.extent;
        if rows.len() > most || outputs > most_outputs {
            return Err(Error::Request(format!(
                "a step of {} tokens and {outputs} outputs is above {most} and {most_outputs}",
                rows.len()
            )));
        }
        for row in rows {
            let fits = (row.token as usize) < self.config.vocab
                && (row.position as usize) < kv.context
                && (row.sequence as usize) < kv.sequences;
            if !fits {
                return Err(Error::Request(format!(
                    "token {} at position {} of sequence {} is outside of {} tokens, {} positions, {} sequences",
                    row.token, row.position, row.sequence, self.config.vocab, kv.context, kv.sequences
                )));
            }
        }
        let Engine { backend, config, weights, activations, kv, .. } = self;
        backend.step(rows, |b| model::forward(b, config, weights, activations, kv, outputs > 0))?;
        Ok(())
    }

    /// Waits for the device and copies the logits of the last step's outputs, `[outputs, vocab]`, to `out`.
    ///
    /// # Errors
    /// The device fails.
    pub fn read_logits(&mut self, out: &mut [f32]) -> Result<()> {
        Ok(self.backend.read(self.activations.logits(), out)?)
    }

    /// Waits for the device and finds the most probable token of each of the last step's outputs: the lowest id of equal
    /// ones, `None` where no token is possible.
    ///
    /// # Errors
    /// The device fails.
    pub fn read_largest(&mut self, out: &mut [Option<u32>]) -> Result<()> {
        Ok(self.backend.read_largest(self.activations.logits(), self.config.vocab, out)?)
    }

    /// Shapes and constants of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sizes that were set up.
    pub fn extent(&self) -> &Extent {
        &self.extent
    }

    /// What the model takes.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The device, to be asked what takes it time.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }
}
