//! The kernels of `kernels/cuda` as the CUDA backend launches them for one row.

use trine_backend::{Format, Group, ZeroKind};

use super::device::Device;
use super::kernel::{Chain, Kernel};
use super::model::Model;
use crate::{Error, Result};

/// What is in the machine code that NVRTC 12.6 makes of `gemv.cu` for sm_87, INT4 with a scale per 32 columns: instructions of a warp for one step of
/// its 16 lanes (a unit of 32 columns each, `rows` rows), where the steps are unrolled and activations stay in registers (up to
/// [`SHORT`] steps) and where they are a loop; and for a tile beside its steps. Larger groups need no more.
struct Code {
    rows: u32,
    short: f64,
    long: f64,
    tile: f64,
    registers: u32,
    /// Steps whose pieces are on their way.
    depth: usize,
}

const CODES: [Code; 4] = [
    Code { rows: 1, short: 23.1, long: 36.6, tile: 99.0, registers: 128, depth: 8 },
    Code { rows: 2, short: 50.9, long: 60.5, tile: 122.0, registers: 127, depth: 8 },
    Code { rows: 4, short: 95.4, long: 115.3, tile: 128.0, registers: 128, depth: 3 },
    Code { rows: 8, short: 198.4, long: 222.0, tile: 113.0, registers: 198, depth: 1 },
];

/// Segments of a row, one to a lane.
const SEGMENTS: usize = 16;
/// Columns of a unit.
const UNIT: usize = 32;
/// Steps that are unrolled.
const SHORT: usize = 16;
/// Threads of a product's block.
const THREADS: u32 = 128;
/// Positions of a chunk of attention.
const CHUNK: usize = 64;
/// Instructions of a block of attention for each warp, and its threads and registers.
const ATTEND: (f64, u32, u32) = (1800.0, 256, 128);
/// Cycles of a dependent chain for a step.
const STEP: f64 = 60.0;
/// Cycles in which a block begins, and in which it adds its segments and stores.
const BEGIN: f64 = 300.0;
const END: f64 = 300.0;

/// The launches of one token with `rows` rows of a matrix for each load of activations.
///
/// # Errors
/// The weights are not INT4 without a zero point, for which the instructions were counted.
pub(super) fn kernels(model: &Model, rows: u32, depth: usize) -> Result<Vec<Kernel>> {
    let group = |format: Format| match format {
        Format::Int4 { group, zero: ZeroKind::Symmetric } => Ok(group),
        other => Err(Error::Usage(format!(
            "instructions were counted for int4 weights without a zero point, not for {other}: try --weights int4-g32 --head int4-g32"
        ))),
    };
    let (body, head) = (group(model.body)?, group(model.head)?);
    let code = CODES.iter().find(|code| code.rows == rows);
    let code = code.ok_or_else(|| Error::Usage(format!("there is no kernel for {rows} rows")))?;
    let layers = model.layers as u32;
    let hidden = model.hidden;
    Ok(vec![
        one_block("embed", 1, 2.0),
        product(code, "norm, qkv", layers, (model.heads.fused_width(), hidden, body), true),
        attention(model, depth),
        product(code, "o, add", layers, (hidden, model.heads.query_width(), body), false),
        product(code, "norm, gate_up, gate", layers, (2 * model.intermediate, hidden, body), true),
        product(code, "down, add", layers, (hidden, model.intermediate, body), false),
        product(code, "norm, lm_head", 1, (model.vocab, hidden, head), true),
        one_block("argmax", 1, 4.0),
    ])
}

/// `norm`: every block normalises and quantises the row first, from the L2 cache, and then goes on from tile to tile.
fn product(
    code: &Code,
    name: &str,
    launches: u32,
    (rows, columns, group): (usize, usize, Group),
    norm: bool,
) -> Kernel {
    let steps = columns.div_ceil(UNIT).div_ceil(SEGMENTS);
    let per_step = if steps <= SHORT { code.short } else { code.long };
    let tile = THREADS / SEGMENTS as u32 * code.rows;
    let tiles = rows.div_ceil(tile as usize) as f64;
    // A code is half a byte, a scale two bytes. Codes of the padding are read too, and with a scale per unit its scales.
    let scales = if group == Group::G32 { steps * SEGMENTS } else { group.count(columns) };
    let bytes = f64::from(tile) * (steps * SEGMENTS * UNIT / 2 + 2 * scales) as f64;
    let trips = steps.div_ceil(code.depth) as f64;
    let prologue = Chain { memory: 0.0, cache: if norm { 2.0 } else { 1.0 }, cycles: if norm { 900.0 } else { 0.0 } };
    Kernel {
        name: name.into(),
        launches,
        blocks: tiles,
        resident: Device::resident(THREADS, code.registers, 8 << 10),
        bytes,
        issue: steps as f64 * per_step + code.tile,
        chain: Chain {
            memory: trips,
            // Blocks that go from tile to tile pay this once; for the few waves that there are, it is no less.
            cache: prologue.cache,
            cycles: BEGIN + prologue.cycles + steps as f64 * STEP + END,
        },
    }
}

/// A block for each chunk and KV head; the last one of a head joins the chunks.
fn attention(model: &Model, depth: usize) -> Kernel {
    let (instructions, threads, registers) = ATTEND;
    let heads = model.heads;
    let chunks = (depth + 1).div_ceil(CHUNK);
    Kernel {
        name: "rope, store, attention".into(),
        launches: model.layers as u32,
        blocks: (chunks * heads.kv) as f64,
        resident: Device::resident(threads, registers, 24 << 10),
        // f16 keys and values.
        bytes: (2 * 2 * (depth + 1) * heads.dim) as f64 / chunks as f64,
        issue: instructions * f64::from(threads / 32) / 4.0,
        chain: Chain { memory: 2.0, cache: 6.0, cycles: BEGIN + instructions * 2.0 + END },
    }
}

fn one_block(name: &str, launches: u32, cache: f64) -> Kernel {
    let chain = Chain { memory: 1.0, cache, cycles: BEGIN + END };
    Kernel { name: name.into(), launches, blocks: 1.0, resident: 1, bytes: 0.0, issue: 0.0, chain }
}
