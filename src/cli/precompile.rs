//! `trine kernels`: the kernels that a model needs, compiled for a device that is not here.

use std::fs;

use trine_backend::Row;

use super::Exit;
use super::args::{KernelsArgs, Verbosity};
use super::output::print;
use super::progress;
use crate::backend::Compiled;
use crate::engine::{DEFAULT_BATCH, EngineOptions};
use crate::memory::human;
use crate::{Error, Result};

/// Texts that decode together, at most: more go through the kernels of prompts.
const SLOTS: usize = 8;

/// Runs the subcommand: a step of each kind asks for its kernels, and the backend writes them down.
///
/// # Errors
/// The backend has nothing to compile, has no compiler, or can't write; or the model's files are unsound.
pub(super) fn run<B: Compiled>(args: &KernelsArgs, verbosity: Verbosity) -> Result<Exit> {
    let device = B::elsewhere(&args.for_device, &args.folder)?;
    let files = args.model.open()?;
    let (rows, outputs) = (DEFAULT_BATCH, 2 * SLOTS);
    let options = EngineOptions { sequences: 1, batch: rows, outputs, ..args.formats.engine() };
    let mut engine = progress::load::<B>(&device, &files, &options, verbosity)?;
    let most = engine.extent().kv.context;
    for (count, outputs) in [(1, 1), (2, 2), (4, 4), (SLOTS, SLOTS), (2 * SLOTS, 2 * SLOTS), (rows, 1), (rows, 0)] {
        let count = count.min(most);
        let row = |at: usize| Row { token: 0, sequence: 0, position: at as u32, output: at + outputs >= count };
        engine.step(&(0..count).map(row).collect::<Vec<_>>())?;
        if outputs > 0 {
            engine.read_largest(&mut vec![None; outputs.min(count)])?;
        }
    }
    let written = |error| Error::file(&args.folder, error);
    let sizes: Vec<u64> = fs::read_dir(&args.folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.metadata()?.len())).collect())
        .map_err(written)?;
    let (count, size) = (sizes.len(), human(sizes.iter().sum()));
    print(&format!("{}: {count} kernels for {}, {size}\n", args.folder.display(), args.for_device))?;
    Ok(Exit::Success)
}
