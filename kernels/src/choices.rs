//! The choices that each kernel has, and the launches that fit them.

use trine_backend::{Activation, Format, Group, KvFormat, ZeroKind};

use crate::kernel::{Kernel, Launch};
use crate::pack::{LANES, TOKENS, UNIT, is_integer};

/// What a product does with its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// They are stored.
    Store,
    /// They are added to what is there.
    Add,
    /// Rows are gate, then up: `gate(g) · u` is stored, quantised by 32 columns.
    Gated,
}

/// How a kernel quantises its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantize {
    /// Not at all.
    No,
    /// With a scale for each row.
    Token,
    /// With a scale for each 32 columns.
    Block,
}

impl Quantize {
    /// What a product with these activations needs.
    pub fn from_activation(activation: Activation) -> Quantize {
        match activation {
            Activation::Float => Quantize::No,
            Activation::Token => Quantize::Token,
            Activation::Block => Quantize::Block,
        }
    }
}

fn format_constants(format: Format) -> [(&'static str, u32); 3] {
    let group = |group| match group {
        Group::G32 => 1,
        Group::G64 => 2,
        Group::G128 => 4,
        Group::Row => 0,
    };
    let (code, zero, group) = match format {
        Format::Ternary => (0, 0, 0),
        Format::Int4 { group: g, zero } => {
            let zero = match zero {
                ZeroKind::Symmetric => 0,
                ZeroKind::Point => 1,
                ZeroKind::Min => 2,
            };
            (1, zero, group(g))
        }
        Format::Int8 { group: g } => (2, 0, group(g)),
        Format::F32 => (3, 0, 0),
        Format::F16 => (4, 0, 0),
        Format::Bf16 => (5, 0, 0),
    };
    [("FORMAT", code), ("ZERO", zero), ("GROUP", group)]
}

fn cache_constant(format: KvFormat) -> (&'static str, u32) {
    let value = match format {
        KvFormat::F32 => 0,
        KvFormat::F16 => 1,
        KvFormat::Int8 => 2,
    };
    ("CACHE", value)
}

fn epilogue_constant(epilogue: Epilogue) -> (&'static str, u32) {
    let value = match epilogue {
        Epilogue::Store => 0,
        Epilogue::Add => 1,
        Epilogue::Gated => 2,
    };
    ("EPILOGUE", value)
}

fn quantize_constant(quantize: Quantize) -> (&'static str, u32) {
    let value = match quantize {
        Quantize::No => 0,
        Quantize::Token => 1,
        Quantize::Block => 2,
    };
    ("QUANTIZE", value)
}

/// A product of a quantised matrix with up to 8 rows of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemv {
    /// The matrix's format, not a dense one.
    pub format: Format,
    /// The activations that it is multiplied with.
    pub activation: Activation,
    /// Rows that share each load of activations: 1, 2, 4 or 8.
    pub rows: u32,
    /// Rows of activations, at most: 1, 2, 4 or 8.
    pub tokens: u32,
    /// What is done with the results.
    pub epilogue: Epilogue,
    /// Whether the activations are made here, by RMSNorm of floats; for one token.
    pub norm: bool,
    /// Units of a segment, where the kernel is to be made for one width.
    pub per: Option<u32>,
    /// Threads of a block.
    pub threads: u32,
}

impl Gemv {
    /// Columns of the widest row that can be normalised by a kernel that is not made for one width.
    pub const MOST_NORM_COLUMNS: usize = 8192;

    /// A gated product has 64 rows to a block: the threads for so many rows to a lane group.
    pub fn gated_threads(rows: u32) -> u32 {
        64 * LANES as u32 / rows
    }

    /// The kernel. `overlap`: launches overlap (`PDL`).
    pub fn kernel(&self, overlap: bool) -> Kernel {
        let mut defines = format_constants(self.format).to_vec();
        defines.extend([
            ("INTEGER", u32::from(is_integer(self.format, self.activation))),
            ("ROWS", self.rows),
            ("TOKENS", self.tokens),
            epilogue_constant(self.epilogue),
            ("NORM", u32::from(self.norm)),
            ("PER", self.per.unwrap_or(0)),
            ("THREADS", self.threads),
            ("PDL", u32::from(overlap)),
        ]);
        Kernel::new("gemv", defines)
    }

    /// Rows of a block's tile.
    pub fn tile(&self) -> usize {
        self.threads as usize / LANES * self.rows as usize
    }

    /// Its launch for a matrix of `rows` on so many multiprocessors. With a norm there are no more blocks than run at a
    /// time, so that each makes its activations once.
    pub fn launch(&self, rows: usize, multiprocessors: usize) -> Option<Launch> {
        let tiles = rows.div_ceil(self.tile());
        let at_once = multiprocessors.max(1) * (512 / self.threads as usize).max(1);
        let blocks = if self.norm { tiles.min(at_once) } else { tiles };
        Launch::new([blocks, 1, 1], self.threads)
    }
}

fn heads_constants(heads: Option<(u32, u32)>) -> [(&'static str, u32); 2] {
    let (dim, group) = heads.unwrap_or((0, 0));
    // A block has no more than eight query heads.
    [("DIM", dim), ("QUERIES", if group <= 8 { group } else { 0 })]
}

fn overlap_constant(overlap: bool) -> (&'static str, u32) {
    ("PDL", u32::from(overlap))
}

impl Kernel {
    /// A product of a quantised matrix with many rows of activations; `tile`: rows of the matrix for a block, 64 or 128;
    /// `epilogue` is not the gated one.
    pub fn gemm(format: Format, activation: Activation, tile: u32, epilogue: Epilogue, overlap: bool) -> Kernel {
        let mut defines = format_constants(format).to_vec();
        let integer = ("INTEGER", u32::from(is_integer(format, activation)));
        defines.extend([integer, ("TILE_ROWS", tile), epilogue_constant(epilogue), overlap_constant(overlap)]);
        Kernel::new("gemm", defines)
    }

    /// A product with a matrix of floats; `epilogue` is not the gated one.
    pub fn dense(format: Format, epilogue: Epilogue, overlap: bool) -> Kernel {
        let [format, _, _] = format_constants(format);
        Kernel::new("dense", [format, epilogue_constant(epilogue), overlap_constant(overlap)])
    }

    /// Rows of a table.
    pub fn embed(format: Format, overlap: bool) -> Kernel {
        let [format, zero, group] = format_constants(format);
        Kernel::new("embed", [format, zero, group, overlap_constant(overlap)])
    }

    /// Activations to INT8.
    pub fn quantize(quantize: Quantize, overlap: bool) -> Kernel {
        Kernel::new("quantize", [quantize_constant(quantize), overlap_constant(overlap)])
    }

    /// RMSNorm, with an addition before it where there is something to add.
    pub fn rms_norm(quantize: Quantize, overlap: bool) -> Kernel {
        Kernel::new("rms_norm", [quantize_constant(quantize), overlap_constant(overlap)])
    }

    /// `gate(g) · u`; not by token.
    pub fn gated(quantize: Quantize, overlap: bool) -> Kernel {
        Kernel::new("gated", [quantize_constant(quantize), overlap_constant(overlap)])
    }

    /// Rotary position embedding, the store of keys and values, or both.
    pub fn rope_store_kv(rope: bool, store: bool, cache: KvFormat, overlap: bool) -> Kernel {
        let flags = [("ROPE", u32::from(rope)), ("STORE", u32::from(store))];
        Kernel::new("rope_store_kv", [flags[0], flags[1], cache_constant(cache), overlap_constant(overlap)])
    }

    /// Attention; `rope`: of a step of one row, with what `rope_store_kv` does; not quantised by token. `heads`: the columns
    /// of a head and the query heads that share a key/value head, where the kernel is to be made for them.
    pub fn attend(rope: bool, cache: KvFormat, quantize: Quantize, heads: Option<(u32, u32)>, overlap: bool) -> Kernel {
        // With fewer registers more blocks run at a time, which several rows have.
        let [dim, queries] = heads_constants(heads);
        let queries = if rope { queries } else { ("QUERIES", 0) };
        let rope = ("ROPE", u32::from(rope));
        let constants =
            [rope, cache_constant(cache), quantize_constant(quantize), dim, queries, overlap_constant(overlap)];
        Kernel::new("attend", constants)
    }

    /// Attention of many rows, as [`Kernel::attend`] without `rope`.
    pub fn attend_rows(cache: KvFormat, quantize: Quantize, heads: Option<(u32, u32)>, overlap: bool) -> Kernel {
        let [dim, queries] = heads_constants(heads);
        let constants = [cache_constant(cache), quantize_constant(quantize), dim, queries, overlap_constant(overlap)];
        Kernel::new("attend_rows", constants)
    }

    /// A kernel without choices: `add`, `argmax`, `copy`, `head_norm`, `select_rows`.
    pub fn plain(file: &'static str, overlap: bool) -> Kernel {
        Kernel::new(file, [overlap_constant(overlap)])
    }
}

impl Launch {
    /// `gemm`; `tile`: as in [`Kernel::gemm`].
    pub fn gemm(rows: usize, tokens: usize, tile: u32) -> Option<Launch> {
        Launch::new([rows.div_ceil(tile as usize), tokens.div_ceil(TOKENS), 1], 2 * tile)
    }

    /// `dense`.
    pub fn dense(rows: usize, tokens: usize) -> Option<Launch> {
        Launch::new([rows.div_ceil(8), tokens.div_ceil(8), 1], 256)
    }

    /// Kernels whose threads have a column each: `embed`, `add`, `select_rows`.
    pub fn columns(columns: usize, rows: usize) -> Option<Launch> {
        Launch::new([columns.div_ceil(256), rows, 1], 256)
    }

    /// Kernels that have a row in a block: `rms_norm`, `quantize` by token.
    pub fn rows(rows: usize) -> Option<Launch> {
        Launch::new([1, rows, 1], 256)
    }

    /// Kernels that have 32 units of 32 columns in a block: `quantize` by block, `gated`.
    pub fn units(columns: usize, rows: usize) -> Option<Launch> {
        Launch::new([columns.div_ceil(UNIT).div_ceil(32), rows, 1], 256)
    }

    /// Kernels that have a head of a row in a block: `head_norm` (query and key heads), `rope_store_kv` (all).
    pub fn heads(heads: usize, rows: usize) -> Option<Launch> {
        Launch::new([heads, rows, 1], 128)
    }

    /// `attend`; `group`: query heads that share a key/value head.
    pub fn attend(chunks: usize, kv_heads: usize, group: usize, rows: usize) -> Option<Launch> {
        Launch::new([chunks, kv_heads * group.div_ceil(8), rows], 256)
    }

    /// `attend_rows`.
    pub fn attend_rows(chunks: usize, kv_heads: usize, group: usize, rows: usize) -> Option<Launch> {
        Launch::new([chunks, kv_heads * group.div_ceil(8), rows.div_ceil(4)], 256)
    }

    /// `argmax`: blocks of a row.
    pub fn argmax(columns: usize, rows: usize) -> Option<Launch> {
        Launch::new([columns.div_ceil(2048).clamp(1, 128), rows, 1], 256)
    }

    /// `copy`.
    pub fn copy(blocks: usize) -> Option<Launch> {
        Launch::new([blocks, 1, 1], 256)
    }
}
