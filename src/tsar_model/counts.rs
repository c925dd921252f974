//! Sums that do not wrap.

/// What memory is read or written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Entries of tables in memory.
    Tables,
    /// Whatever a table engine accesses besides: weights, activations, outputs, the making of tables.
    Rest,
    /// Tiles of weights.
    Weights,
    /// Activations, to make tables in registers.
    Activations,
    /// Accumulators that are read back.
    AccumulatorLoads,
    /// Accumulators that are written.
    AccumulatorStores,
}

impl Stream {
    /// Each of them, in the order of reports.
    pub const ALL: [Stream; 6] = [
        Stream::Tables,
        Stream::Rest,
        Stream::Weights,
        Stream::Activations,
        Stream::AccumulatorLoads,
        Stream::AccumulatorStores,
    ];

    /// A name for tables and fields.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Tables => "table",
            Stream::Rest => "other",
            Stream::Weights => "weight",
            Stream::Activations => "activation",
            Stream::AccumulatorLoads => "accumulator_load",
            Stream::AccumulatorStores => "accumulator_store",
        }
    }
}

/// Memory accesses of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Accesses, each of one instruction.
    pub requests: u64,
    /// Bytes that they ask for together.
    pub bytes: u64,
}

/// What an engine does for some matrices and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Products of an activation and a weight that the results stand for; filling at a tile's edge is not among them.
    pub macs: u64,
    /// Table entries that are looked up, in memory or in registers.
    pub lookups: u64,
    /// Executions of TLUT.
    pub tluts: u64,
    /// Executions of TGEMV.
    pub tgemvs: u64,
    /// Micro-ops that compute; loads and stores of T-SAR are requests, not micro-ops.
    pub micro_ops: u64,
    /// By [`Stream`], in the order of [`Stream::ALL`].
    pub(super) traffic: [Traffic; Stream::ALL.len()],
}

impl Counts {
    /// The accesses of one kind.
    pub fn traffic(&self, stream: Stream) -> Traffic {
        self.traffic[stream as usize]
    }

    /// Memory accesses of all kinds; `u64::MAX` for more than that, which no counts of an engine reach.
    pub fn requests(&self) -> u64 {
        self.traffic.iter().fold(0, |sum, traffic| sum.saturating_add(traffic.requests))
    }

    /// Bytes that they ask for, with the same limit.
    pub fn bytes(&self) -> u64 {
        self.traffic.iter().fold(0, |sum, traffic| sum.saturating_add(traffic.bytes))
    }

    /// The same with the accesses of a kind set.
    pub(super) fn with(mut self, stream: Stream, requests: u64, bytes: u64) -> Self {
        self.traffic[stream as usize] = Traffic { requests, bytes };
        self
    }

    /// Both together.
    pub(super) fn checked_add(self, other: Self) -> Option<Self> {
        self.zip(other, u64::checked_add)
    }

    /// So many times this.
    pub(super) fn checked_mul(self, times: u64) -> Option<Self> {
        self.zip(self, |count, _| count.checked_mul(times))
    }

    fn zip(self, other: Self, op: impl Fn(u64, u64) -> Option<u64>) -> Option<Self> {
        let mut traffic = self.traffic;
        for (one, other) in traffic.iter_mut().zip(other.traffic) {
            one.requests = op(one.requests, other.requests)?;
            one.bytes = op(one.bytes, other.bytes)?;
        }
        Some(Counts {
            macs: op(self.macs, other.macs)?,
            lookups: op(self.lookups, other.lookups)?,
            tluts: op(self.tluts, other.tluts)?,
            tgemvs: op(self.tgemvs, other.tgemvs)?,
            micro_ops: op(self.micro_ops, other.micro_ops)?,
            traffic,
        })
    }
}

/// A product; `None` where it is more than 64 bits hold.
pub(super) fn product(factors: &[u64]) -> Option<u64> {
    factors.iter().try_fold(1u64, |product, &factor| product.checked_mul(factor))
}
