//! A kernel with its choices made, and how it is launched.

use sha2::{Digest, Sha256};

use crate::source;

/// A file of `cuda/` with its constants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The file's name without its ending, which is the entry point's name.
    pub file: &'static str,
    /// `-D` constants.
    pub defines: Vec<(&'static str, u32)>,
}

impl Kernel {
    pub(crate) fn new(file: &'static str, defines: impl Into<Vec<(&'static str, u32)>>) -> Kernel {
        Kernel { file, defines: defines.into() }
    }

    /// Every file that is a kernel.
    pub fn files() -> Vec<&'static str> {
        source::kernels()
    }

    /// The same kernel, with the activations that it quantises in the order that `gemm` reads.
    #[must_use]
    pub fn for_gemm(mut self) -> Kernel {
        self.defines.push(("PLAIN", 1));
        self
    }

    /// The kernel for each size of tile, where it is one that comes in several ([`Kernel::gemm`]); else the kernel.
    pub fn tiles(&self) -> Vec<Kernel> {
        let tile = |size: u32| {
            let define = |&(name, value)| (name, if name == "TILE_ROWS" { size } else { value });
            Kernel { file: self.file, defines: self.defines.iter().map(define).collect() }
        };
        let some = self.defines.iter().any(|(name, _)| *name == "TILE_ROWS");
        if some { vec![tile(64), tile(128)] } else { vec![self.clone()] }
    }

    /// The whole text.
    pub fn source(&self) -> String {
        source::whole(self.file)
    }

    /// The constants as a compiler takes them.
    pub fn options(&self) -> Vec<String> {
        self.defines.iter().map(|(name, value)| format!("-D{name}={value}")).collect()
    }

    /// A name for what comes of compiling this with `more` options: it differs wherever any of them does.
    pub(crate) fn key(&self, more: &[&str]) -> String {
        let (source, options) = (self.source(), self.options());
        let parts: Vec<&str> = [source.as_str()].into_iter().chain(options.iter().map(String::as_str)).collect();
        format!("{}-{}", self.file, digest(&[&parts[..], more].concat()))
    }
}

/// 32 hexadecimal digits that differ wherever any of the texts does.
pub(crate) fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Blocks and threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in three directions.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
}

impl Launch {
    /// A launch, unless a direction has no blocks or more than a device takes.
    pub(crate) fn new(grid: [usize; 3], threads: u32) -> Option<Launch> {
        let most = [i32::MAX as usize, 65535, 65535];
        let fits = grid.iter().zip(most).all(|(&blocks, most)| (1..=most).contains(&blocks));
        fits.then(|| Launch { grid: grid.map(|blocks| blocks as u32), threads })
    }
}
