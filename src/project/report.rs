//! A token's time out of its kernels' times.

use super::device::{Assumptions, Device};
use super::engine::Engine;
use super::kernel::{Bound, Kernel};
use super::model::Model;
use crate::Result;

/// A kernel's part of a token, under the likely assumptions.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its structure.
    pub kernel: Kernel,
    /// Seconds of one launch.
    pub seconds: f64,
    /// What it is bound by.
    pub bound: Bound,
}

/// What is to be expected of an engine on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// Where.
    pub device: Device,
    /// Whose kernels.
    pub engine: Engine,
    /// Kernel by kernel.
    pub lines: Vec<Line>,
    /// Tokens a second under [`Assumptions::LOW`], [`Assumptions::LIKELY`] and [`Assumptions::HIGH`].
    pub rates: [f64; 3],
    /// Bytes that a token reads from memory.
    pub bytes: f64,
    /// Seconds between kernels, and of the host, under the likely assumptions.
    pub between: f64,
}

impl Projection {
    /// Of a model with `depth` positions in its KV cache.
    ///
    /// # Errors
    /// As [`Engine::kernels`].
    pub fn new(device: Device, engine: Engine, model: &Model, depth: usize) -> Result<Self> {
        let kernels = engine.kernels(model, depth)?;
        let rate = |assumed: &Assumptions| 1.0 / seconds(&device, engine, &kernels, assumed);
        let assumed = &Assumptions::LIKELY;
        let line = |kernel: &Kernel| {
            let time = kernel.time(&device, assumed);
            Line { kernel: kernel.clone(), seconds: time.seconds, bound: time.bound }
        };
        Ok(Self {
            device,
            engine,
            rates: [rate(&Assumptions::LOW), rate(assumed), rate(&Assumptions::HIGH)],
            bytes: kernels.iter().map(|kernel| f64::from(kernel.launches) * kernel.blocks * kernel.bytes).sum(),
            between: between(engine, &kernels, assumed),
            lines: kernels.iter().map(line).collect(),
        })
    }

    /// Whether the weights leave an eighth of the memory to keys, values and everything else that runs there.
    pub fn fits(&self, model: &Model) -> bool {
        model.weight_bytes() < 0.875 * self.device.memory as f64
    }

    /// Share of the memory's peak bandwidth at the likely rate.
    pub fn share(&self) -> f64 {
        self.bytes * self.rates[1] / self.device.bandwidth
    }
}

fn seconds(device: &Device, engine: Engine, kernels: &[Kernel], assumed: &Assumptions) -> f64 {
    let busy = |kernel: &Kernel| f64::from(kernel.launches) * kernel.time(device, assumed).seconds;
    kernels.iter().map(busy).sum::<f64>() + between(engine, kernels, assumed)
}

fn between(engine: Engine, kernels: &[Kernel], assumed: &Assumptions) -> f64 {
    let gap = if engine.graph() { assumed.node } else { assumed.launch };
    let launches: u32 = kernels.iter().map(|kernel| kernel.launches).sum();
    f64::from(launches) * gap + assumed.host
}
