//! The devices, and what is assumed about them.

/// A Jetson module in its fastest power mode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// As on the command line.
    pub name: &'static str,
    /// Streaming multiprocessors, each with 4 schedulers that issue one instruction of a warp a cycle.
    pub multiprocessors: u32,
    /// GPU cycles a second.
    pub clock: f64,
    /// Peak bytes a second of the memory, shared with the CPU.
    pub bandwidth: f64,
    /// Bytes of memory, shared with the CPU.
    pub memory: u64,
}

const GIB: u64 = 1 << 30;

impl Device {
    /// By the data sheets of the modules; `-super` is the power mode that JetPack 6.2 brought.
    pub const ALL: [Device; 8] = [
        Device::new("agx-orin-64", 16, 1.300e9, 204.8e9, 64 * GIB),
        Device::new("agx-orin-32", 14, 0.930e9, 204.8e9, 32 * GIB),
        Device::new("orin-nx-16", 8, 0.918e9, 102.4e9, 16 * GIB),
        Device::new("orin-nx-16-super", 8, 1.173e9, 102.4e9, 16 * GIB),
        Device::new("orin-nx-8-super", 8, 1.173e9, 102.4e9, 8 * GIB),
        Device::new("orin-nano-8", 8, 0.625e9, 68.3e9, 8 * GIB),
        Device::new("orin-nano-8-super", 8, 1.020e9, 102.4e9, 8 * GIB),
        Device::new("orin-nano-4-super", 4, 1.020e9, 51.2e9, 4 * GIB),
    ];

    /// Threads that a multiprocessor of compute capability 8.7 holds.
    pub const THREADS: u32 = 1536;
    /// Blocks that it holds.
    pub const BLOCKS: u32 = 16;
    /// 32-bit registers that it has; a warp takes them in units of 256.
    pub const REGISTERS: u32 = 65536;
    /// Bytes of its shared memory that blocks can have.
    pub const SHARED: u32 = 163 << 10;

    const fn new(name: &'static str, multiprocessors: u32, clock: f64, bandwidth: f64, memory: u64) -> Self {
        Self { name, multiprocessors, clock, bandwidth, memory }
    }

    /// The device of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|device| device.name == name)
    }

    /// Blocks of `threads` with `registers` a thread and `shared` bytes that a multiprocessor holds at once.
    pub fn resident(threads: u32, registers: u32, shared: u32) -> u32 {
        let warps = threads.div_ceil(32);
        let by_registers = Self::REGISTERS / (warps * (registers.max(1) * 32).next_multiple_of(256));
        let by_shared = Self::SHARED.checked_div(shared).unwrap_or(Self::BLOCKS);
        (Self::THREADS / threads).min(by_registers).min(by_shared).clamp(1, Self::BLOCKS)
    }
}

/// What no data sheet says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumptions {
    /// Share of the peak bandwidth that a stream of reads reaches. The best engines on Orin reach 76 to 80 % over a whole
    /// token (MLC 76 to 80, TensorRT-LLM 79 to 80), llama.cpp 57 to 65.
    pub share: f64,
    /// Seconds from a load's issue to its data, from memory with little load on it.
    pub latency: f64,
    /// Cycles from a load's issue to its data, from the L2 cache.
    pub cache: f64,
    /// Seconds between the end of a kernel and the start of the next one in a stream.
    pub launch: f64,
    /// The same inside a graph.
    pub node: f64,
    /// Seconds that the host takes between two tokens.
    pub host: f64,
}

impl Assumptions {
    /// What is most likely.
    pub const LIKELY: Assumptions =
        Assumptions { share: 0.77, latency: 700e-9, cache: 300.0, launch: 3e-6, node: 1.5e-6, host: 500e-6 };
    /// The worst that is plausible.
    pub const LOW: Assumptions =
        Assumptions { share: 0.65, latency: 800e-9, cache: 400.0, launch: 6e-6, node: 3e-6, host: 1000e-6 };
    /// The best that is plausible.
    pub const HIGH: Assumptions =
        Assumptions { share: 0.80, latency: 600e-9, cache: 250.0, launch: 2e-6, node: 1e-6, host: 100e-6 };
}
