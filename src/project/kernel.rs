//! A kernel's structure, and the time that follows from it.

use super::device::{Assumptions, Device};
use super::queue;

/// What a block waits for, one after the other, beside its turn at what it shares with others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Chain {
    /// Loads from memory that each wait for the one before.
    pub memory: f64,
    /// The same from the L2 cache.
    pub cache: f64,
    /// Cycles of dependent instructions and barriers.
    pub cycles: f64,
}

/// Launches of a kernel for one token.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// What it computes.
    pub name: String,
    /// How many times a token launches it.
    pub launches: u32,
    /// Blocks of a launch.
    pub blocks: f64,
    /// Blocks that a multiprocessor holds.
    pub resident: u32,
    /// Bytes that a block reads from memory.
    pub bytes: f64,
    /// Cycles in which a block keeps one of the schedulers busy, the 4 in the mean.
    pub issue: f64,
    /// What it waits for.
    pub chain: Chain,
}

/// What a kernel's time goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The bytes over the bandwidth are at least 80 % of it.
    Memory,
    /// The instructions are.
    Issue,
    /// Neither: blocks wait for their own chains, and there are too few of them.
    Latency,
}

impl Bound {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory",
            Bound::Issue => "issue",
            Bound::Latency => "latency",
        }
    }
}

/// The time of one launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Time {
    /// Seconds from its first block's start to its last block's end.
    pub seconds: f64,
    /// What they go to.
    pub bound: Bound,
}

impl Kernel {
    /// The time of one launch on a device.
    pub fn time(&self, device: &Device, assumed: &Assumptions) -> Time {
        let share = self.blocks / f64::from(device.multiprocessors);
        let present = (share.ceil() as u32).clamp(1, self.resident);
        let bytes_a_cycle = assumed.share * device.bandwidth / f64::from(device.multiprocessors) / device.clock;
        let memory = self.bytes / bytes_a_cycle;
        let think =
            self.chain.memory * assumed.latency * device.clock + self.chain.cache * assumed.cache + self.chain.cycles;
        let rate = queue::throughput(present, think, [memory, self.issue]);
        // Where all blocks fit at once, the busiest multiprocessor has `present` of them.
        let cycles = share.max(f64::from(present)) / rate;
        let bound = match (share * memory / cycles, share * self.issue / cycles) {
            (memory, issue) if memory >= 0.8 && memory >= issue => Bound::Memory,
            (_, issue) if issue >= 0.8 => Bound::Issue,
            _ => Bound::Latency,
        };
        Time { seconds: cycles / device.clock, bound }
    }
}
