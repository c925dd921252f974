//! The engine that the INT4 x INT8 recipe comes from (luogantt/LLM-inference-engine, branch jetson-orin-agx-super), by its
//! published sources: 13 launches a layer, a product kernel of 128 threads for 1, 2, 4 or 8 rows of a matrix.
//!
//! A product's thread loads 4 bytes of a row, unpacks 8 codes and multiplies them by two DP4As, row after row. Each row is
//! guarded by a null check, a branch, so a row's load is issued only when the row before it is done: 4 rows a block are 4 times as
//! many waits, not 4 loads in flight. That is why more rows a block gained so little there: only a block's fixed part is shared.

use super::device::Device;
use super::kernel::{Chain, Kernel};
use super::model::Model;

/// What was counted in the product kernel's machine code: rows a block, one turn of its main loop (instructions, and of these
/// those of the half-rate integer unit), a step of its tree of sums, and the rest.
struct Code {
    rows: u32,
    turn: f64,
    integer: f64,
    sum: f64,
    rest: f64,
    registers: u32,
}

/// NVRTC 12.6 for sm_87, from a kernel that was written after the description.
const CODES: [Code; 4] = [
    Code { rows: 1, turn: 34.0, integer: 17.0, sum: 10.0, rest: 92.0, registers: 19 },
    Code { rows: 2, turn: 63.0, integer: 37.0, sum: 17.0, rest: 136.0, registers: 24 },
    Code { rows: 4, turn: 117.0, integer: 71.0, sum: 25.0, rest: 202.0, registers: 30 },
    Code { rows: 8, turn: 228.0, integer: 141.0, sum: 41.0, rest: 491.0, registers: 34 },
];

/// Threads of a product's block, and columns that they take in one turn.
const THREADS: u32 = 128;
const TURN: usize = THREADS as usize * 8;
/// Threads of the kernels of one block.
const SMALL: usize = 256;
/// Loads that the compiler puts in flight at once in a plain loop.
const UNROLLED: f64 = 4.0;
/// Cycles of a dependent chain that unpacks 8 codes and multiplies them: some 25 instructions of 4 to 5 cycles.
const UNPACK: f64 = 110.0;
/// Cycles of a step of a tree of sums in shared memory: a load, an addition, a store and a barrier.
const STEP: f64 = 70.0;
/// Cycles in which a block begins.
const BEGIN: f64 = 300.0;

/// The launches of one token with `rows` rows a block, at this depth; `None` if it has no such kernel.
pub(super) fn kernels(model: &Model, rows: u32, depth: usize) -> Option<Vec<Kernel>> {
    let code = CODES.iter().find(|code| code.rows == rows)?;
    let layers = model.layers as u32;
    let (hidden, intermediate) = (model.hidden, model.intermediate);
    let mut kernels = vec![
        small("rms_norm", 2 * layers + 1, norm(hidden)),
        small("quantize hidden", 3 * layers + 1, norm(hidden)),
        small("quantize intermediate", layers, norm(intermediate)),
        product(code, "qkv", layers, model.heads.fused_width(), hidden),
        wide("rope and store", layers, model.heads.fused_width()),
        attention(model, depth),
        product(code, "o", layers, hidden, model.heads.query_width()),
        product(code, "gate_up", layers, 2 * intermediate, hidden),
        wide("silu and multiply", layers, intermediate),
        product(code, "down", layers, hidden, intermediate),
        product(code, "lm_head", 1, model.vocab, hidden),
        wide("argmax, in two parts", 2, model.vocab),
    ];
    kernels.retain(|kernel| kernel.launches > 0);
    Some(kernels)
}

fn product(code: &Code, name: &str, launches: u32, rows: usize, columns: usize) -> Kernel {
    let turns = columns as f64 / TURN as f64;
    let waits = turns.ceil() * f64::from(code.rows);
    let steps = f64::from(THREADS.ilog2());
    // Weights, one scale a row. The activations stay in the caches.
    let bytes = f64::from(code.rows) * (columns as f64 / 2.0 + 4.0);
    Kernel {
        name: name.into(),
        launches,
        blocks: rows.div_ceil(code.rows as usize) as f64,
        resident: Device::resident(THREADS, code.registers, 1024 * code.rows),
        bytes,
        // The 4 warps have a scheduler each; the integer unit takes a warp's instruction in two cycles.
        issue: turns * code.turn.max(2.0 * code.integer) + steps * code.sum + code.rest,
        // After the sums, one thread loads the scales and writes.
        chain: Chain { memory: waits + 1.0, cache: 0.0, cycles: BEGIN + waits * UNPACK + steps * STEP },
    }
}

/// A kernel of one block, with the loads that each of its threads waits for.
fn small(name: &str, launches: u32, chain: Chain) -> Kernel {
    Kernel { name: name.into(), launches, blocks: 1.0, resident: 1, bytes: 0.0, issue: 0.0, chain }
}

/// Two passes over `columns` values, the first with a sum or a maximum of the block.
fn norm(columns: usize) -> Chain {
    let turns = columns.div_ceil(SMALL) as f64;
    let steps = f64::from(SMALL.ilog2());
    Chain { memory: 0.0, cache: 2.0 * (turns / UNROLLED).ceil(), cycles: BEGIN + steps * STEP + 2.0 * turns * 8.0 }
}

/// A value a thread.
fn wide(name: &str, launches: u32, values: usize) -> Kernel {
    let blocks = values.div_ceil(SMALL) as f64;
    let chain = Chain { memory: 0.0, cache: 2.0, cycles: BEGIN + 200.0 };
    Kernel { name: name.into(), launches, blocks, resident: 6, bytes: 0.0, issue: 2.0 * 30.0, chain }
}

/// A block a head: a thread a position for the scores, then the values one position after the other.
fn attention(model: &Model, depth: usize) -> Kernel {
    let heads = model.heads;
    let turns = depth.div_ceil(SMALL) as f64;
    let scores = turns * heads.dim as f64 / UNROLLED;
    let values = depth as f64 / UNROLLED;
    Kernel {
        name: "attention".into(),
        launches: model.layers as u32,
        blocks: heads.query as f64,
        resident: 6,
        // f32 keys and values; the heads of a group find them in the cache.
        bytes: (2 * 4 * depth * heads.dim) as f64 / heads.group() as f64,
        issue: (depth * heads.dim) as f64 / 32.0,
        chain: Chain { memory: 0.0, cache: scores + values, cycles: BEGIN + 16.0 * STEP },
    }
}
