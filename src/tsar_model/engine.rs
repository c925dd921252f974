//! The engines' loops, as counts for one matrix and one token.

use std::num::NonZeroU32;

use super::counts::{Counts, Stream, product};
use super::shapes::{Matrix, Shapes};
use crate::{Error, Result};

/// What the tokens are for, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// So many tokens of a prompt, in one step.
    Prefill(NonZeroU32),
    /// So many tokens, one after the other.
    Decode(NonZeroU32),
}

impl Phase {
    /// `prefill` or `decode`.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Prefill(_) => "prefill",
            Phase::Decode(_) => "decode",
        }
    }

    /// How many tokens.
    pub fn tokens(self) -> u32 {
        match self {
            Phase::Prefill(tokens) | Phase::Decode(tokens) => tokens.get(),
        }
    }
}

/// The order of T-SAR's loops, outermost first. Each ends in a TGEMV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dataflow {
    /// Activation-persistent: inputs, tokens, outputs. One TLUT serves all outputs; sums go through memory.
    ActivationPersistent,
    /// Output-persistent: tokens, outputs, inputs. Sums stay in a register; TLUT runs again before each TGEMV.
    OutputPersistent,
}

/// The two pairs of instructions that have an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// TLUT_2×4 and TGEMV_8×16: tables in 2 registers of 256 bits.
    C2,
    /// TLUT_4×4 and TGEMV_16×16: tables in 8.
    C4,
}

impl Encoding {
    /// c, the activations of a block.
    pub fn block(self) -> u64 {
        match self {
            Encoding::C2 => 2,
            Encoding::C4 => 4,
        }
    }

    /// k = c·s, the inputs of a tile, each an int8.
    pub fn inputs(self) -> u64 {
        self.block() * BLOCKS
    }

    /// Registers that TLUT writes, one in each cycle: s blocks, two tables of 2^c int16 each.
    pub fn table_registers(self) -> u64 {
        BLOCKS * 2 * (1 << self.block()) * ENTRY / REGISTER
    }

    /// Registers that a tile of weights fills: a dense and a sparse bit for each weight.
    pub fn weight_registers(self) -> u64 {
        self.inputs() * OUTPUTS * 2 / (8 * REGISTER)
    }
}

/// s, the blocks of a TLUT.
const BLOCKS: u64 = 4;
/// m, the outputs of a TGEMV.
const OUTPUTS: u64 = 16;
/// Bytes of a vector register.
const REGISTER: u64 = 32;
/// Bytes of a table's entry and of an accumulator.
const ENTRY: u64 = 2;
/// Cycles of a TGEMV, which does 4 outputs in each. Known for 8×16; the same for 16×16, whose lookups are as many.
const TGEMV_CYCLES: u64 = 4;

/// c of TL-2: the weights of an index.
const TL2_BLOCK: u64 = 3;
/// Bits of an index of TL-2: four choose the entry, one is its sign.
const TL2_INDEX_BITS: u64 = 5;
/// TL-2's requests besides tables for each weight. Fitted: together with one for each input and output, prefill of
/// BitNet-2B-4T with 128 tokens comes to within 0.1 % of the published total.
const TL2_OTHER_PREFILL: (u64, u64) = (3, 64);
/// The same in decode, where no formula was found. Fitted to the published total of one token.
const TL2_OTHER_DECODE: (u64, u64) = (122, 1000);

/// What does the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// TL-2 of bitnet.cpp: tables in memory, three weights to an index.
    Tl2,
    /// T-SAR: tables in registers.
    TSar(Dataflow, Encoding),
}

impl Engine {
    /// Each of them, the baseline first.
    pub const ALL: [Engine; 5] = [
        Engine::Tl2,
        Engine::TSar(Dataflow::ActivationPersistent, Encoding::C2),
        Engine::TSar(Dataflow::ActivationPersistent, Encoding::C4),
        Engine::TSar(Dataflow::OutputPersistent, Encoding::C2),
        Engine::TSar(Dataflow::OutputPersistent, Encoding::C4),
    ];

    /// A name for tables and fields.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Tl2 => "TL-2",
            Engine::TSar(Dataflow::ActivationPersistent, Encoding::C2) => "T-SAR AP 2x4",
            Engine::TSar(Dataflow::ActivationPersistent, Encoding::C4) => "T-SAR AP 4x4",
            Engine::TSar(Dataflow::OutputPersistent, Encoding::C2) => "T-SAR OP 2x4",
            Engine::TSar(Dataflow::OutputPersistent, Encoding::C4) => "T-SAR OP 4x4",
        }
    }

    /// What it does for all the model's matrices and the phase's tokens.
    ///
    /// # Errors
    /// [`Error::Request`] where a count is more than 64 bits hold.
    pub fn count(self, shapes: &Shapes, phase: Phase) -> Result<Counts> {
        let layer = shapes
            .matrices()
            .iter()
            .try_fold(Counts::default(), |sum, matrix| sum.checked_add(self.per_token(matrix, phase)?));
        let total = layer.and_then(|layer| layer.checked_mul(shapes.layers())?.checked_mul(phase.tokens().into()));
        // The sums over all kinds of traffic have to fit as well.
        let fitting = total.filter(|total| total.requests() < u64::MAX && total.bytes() < u64::MAX);
        fitting.ok_or_else(|| {
            let (name, tokens) = (shapes.name(), phase.tokens());
            Error::Request(format!("{name} with {tokens} tokens: counts are over 64 bits; use fewer tokens"))
        })
    }

    fn per_token(self, matrix: &Matrix, phase: Phase) -> Option<Counts> {
        match self {
            Engine::Tl2 => tl2(matrix, phase),
            Engine::TSar(dataflow, encoding) => tsar(matrix, dataflow, encoding),
        }
    }
}

/// A table request for each index, and what was fitted. A lookup is taken for a scalar one: a load and an addition.
/// The bytes of the rest are those of the packed weights, int8 activations and int16 outputs, each accessed once.
fn tl2(matrix: &Matrix, phase: Phase) -> Option<Counts> {
    let (m, k) = (matrix.outputs, matrix.inputs);
    let macs = product(&[m, k])?;
    let lookups = product(&[m, k.div_ceil(TL2_BLOCK)])?;
    let vectors = m.checked_add(k)?;
    let share = |(part, of): (u64, u64)| Some(product(&[macs, part])?.div_ceil(of));
    let other = match phase {
        Phase::Prefill(_) => share(TL2_OTHER_PREFILL)?.checked_add(vectors)?,
        Phase::Decode(_) => share(TL2_OTHER_DECODE)?,
    };
    let weight_bytes = product(&[lookups, TL2_INDEX_BITS])?.div_ceil(8);
    let other_bytes = weight_bytes.checked_add(k)?.checked_add(product(&[m, ENTRY])?)?;
    let counts = Counts { macs, lookups, micro_ops: product(&[lookups, 2])?, ..Counts::default() };
    let table_bytes = product(&[lookups, ENTRY])?;
    Some(counts.with(Stream::Tables, lookups, table_bytes).with(Stream::Rest, other, other_bytes))
}

/// One TGEMV for each tile, with a load for each of its registers of weights. AP reads and writes the tile's
/// accumulators around each TGEMV, having written zeros to them first; OP writes them once, at the end.
fn tsar(matrix: &Matrix, dataflow: Dataflow, encoding: Encoding) -> Option<Counts> {
    let (columns, rows) = (matrix.inputs.div_ceil(encoding.inputs()), matrix.outputs.div_ceil(OUTPUTS));
    let tiles = product(&[columns, rows])?;
    let (tluts, loads, stores) = match dataflow {
        Dataflow::ActivationPersistent => (columns, tiles, tiles.checked_add(rows)?),
        Dataflow::OutputPersistent => (tiles, 0, rows),
    };
    let tlut_cycles = product(&[tluts, encoding.table_registers()])?;
    let counts = Counts {
        macs: product(&[matrix.outputs, matrix.inputs])?,
        // Each block of each output has a dense and a sparse one.
        lookups: product(&[tiles, OUTPUTS, BLOCKS, 2])?,
        tluts,
        tgemvs: tiles,
        micro_ops: product(&[tiles, TGEMV_CYCLES])?.checked_add(tlut_cycles)?,
        ..Counts::default()
    };
    let weights = product(&[tiles, encoding.weight_registers()])?;
    let registers = |count| product(&[count, REGISTER]);
    Some(
        counts
            .with(Stream::Weights, weights, registers(weights)?)
            .with(Stream::Activations, tluts, product(&[tluts, encoding.inputs()])?)
            .with(Stream::AccumulatorLoads, loads, registers(loads)?)
            .with(Stream::AccumulatorStores, stores, registers(stores)?),
    )
}
