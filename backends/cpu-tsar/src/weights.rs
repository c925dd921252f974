//! Weight matrices in the layout that the kernels read.

mod layout;
mod pack;
mod published;

use half::{bf16, f16};
use trine_backend::activation::BLOCK;
use trine_backend::{Activation, Codes, Error, Format, HostMatrix, Result, ZeroKind};

pub(crate) use layout::{Layout, TILE};
pub(crate) use published::Published;

use crate::kernels::{Kernels, Selection};
use crate::memory::Aligned;
use crate::pool::Pool;

/// Bytes of tiles below which one thread fills them: waking others, which sleep while files are read, takes as long.
const FORK: usize = 1 << 19;

/// A matrix `[rows = outputs, columns = inputs]` as tiles of 8 rows (see `layout.rs`).
#[derive(Debug)]
pub struct Weight {
    rows: usize,
    columns: usize,
    activation: Activation,
    layout: Layout,
    /// How the tiles lie instead where they are for one of T-SAR's kernels.
    published: Option<Published>,
    tiles: Aligned<u8>,
    kernels: Kernels,
}

impl Weight {
    /// Chooses the kernels of a matrix and lays it out anew for them, a large one on all threads, with no second copy of it besides
    /// the result. One layout serves all instruction sets, and all kernels but T-SAR's own.
    ///
    /// Errors if the memory is not there, and for matrices wider than the integer sums allow.
    pub(crate) fn prepare(matrix: HostMatrix<'_>, selection: &Selection, pool: &Pool) -> Result<Self> {
        let (rows, columns, format) = (matrix.rows(), matrix.columns(), matrix.format());
        if columns > layout::MAX_COLUMNS {
            let most = layout::MAX_COLUMNS;
            return Err(Error::Unsupported(format!("a matrix of {columns} columns: the CPU backend takes {most}")));
        }
        let beyond = || Error::OutOfMemory(format!("a {format} matrix of {rows} x {columns} is beyond all memory"));
        let layout = Layout::new(format, columns);
        let sized = layout.and_then(|layout| Some((layout, layout.tile_bytes.checked_mul(rows.div_ceil(TILE))?)));
        let (layout, bytes) = sized.ok_or_else(beyond)?;
        let (kernels, activation) = (selection.kernels(format), matrix.activation());
        if let (Some(variant), Codes::Ternary(ternary)) = (kernels.published(), matrix.codes()) {
            let published = variant.layout(rows, columns).ok_or_else(beyond)?;
            let mut tiles = memory(published.bytes())?;
            published.pack(pool, &matrix, ternary, &mut tiles);
            return Ok(Weight { rows, columns, activation, layout, published: Some(published), tiles, kernels });
        }
        let mut tiles = memory(bytes)?;
        if bytes < FORK {
            pack::tiles(&matrix, &layout, 0, &mut tiles);
        } else {
            pool.split(&mut tiles, layout.tile_bytes, |start, part| {
                pack::tiles(&matrix, &layout, start / layout.tile_bytes, part);
            });
        }
        Ok(Weight { rows, columns, activation, layout, published: None, tiles, kernels })
    }

    /// Outputs.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// How the activations that it is multiplied with are represented.
    pub(crate) fn activation(&self) -> Activation {
        self.activation
    }

    /// The kernels that multiply with it.
    pub(crate) fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// How it lies where that is as T-SAR's authors published.
    pub(crate) fn published(&self) -> Option<&Published> {
        self.published.as_ref()
    }

    /// The shape of a tile, unless it is a published one.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The bytes of all tiles.
    pub(crate) fn tiles(&self) -> &[u8] {
        &self.tiles
    }

    /// The weights of one row as floats: the values of [`HostMatrix::dequantize_row`].
    ///
    /// # Panics
    /// If the row does not exist or `out` is not `columns` long.
    pub(crate) fn embed_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.columns, "row {row} of {} x {}", self.rows, self.columns);
        if let Some(published) = &self.published {
            let scale = published.scale(self.tiles(), row);
            for (column, out) in out.iter_mut().enumerate() {
                *out = scale * f32::from(published.weight(self.tiles(), row, column));
            }
            return;
        }
        let tile = &self.tiles()[row / TILE * self.layout.tile_bytes..][..self.layout.tile_bytes];
        if self.layout.format.is_dense() {
            let row_bytes = self.layout.tile_bytes / TILE;
            return dense_row(self.layout.format, &tile[row % TILE * row_bytes..][..row_bytes], out);
        }
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let header = &tile[self.layout.header_at(block)..][..self.layout.header];
            let codes = &tile[self.layout.codes_at(block)..][..self.layout.block_bytes];
            let value = decoder(self.layout.format, header, row % TILE);
            for (column, out) in out.iter_mut().enumerate() {
                *out = value(pack::code(codes, row % TILE, column));
            }
        }
    }
}

/// Zeros for a matrix.
fn memory(bytes: usize) -> Result<Aligned<u8>> {
    let none = |_| Error::OutOfMemory(format!("no memory for a matrix of {bytes} bytes: use a smaller model"));
    // Zeros that the system gives: each page is made when a thread writes to it, not by this one.
    let mut memory = Aligned::zeroed(bytes, "a matrix").map_err(none)?;
    memory.ask_for_huge_pages();
    Ok(memory)
}

fn dense_row(format: Format, bytes: &[u8], out: &mut [f32]) {
    let half = |bytes: &[u8]| u16::from_ne_bytes([bytes[0], bytes[1]]);
    match format {
        Format::F16 => {
            out.iter_mut().zip(bytes.chunks(2)).for_each(|(out, x)| *out = f16::from_bits(half(x)).to_f32());
        }
        Format::Bf16 => {
            out.iter_mut().zip(bytes.chunks(2)).for_each(|(out, x)| *out = bf16::from_bits(half(x)).to_f32());
        }
        _ => {
            let (words, _) = bytes.as_chunks::<4>();
            out.iter_mut().zip(words).for_each(|(out, &x)| *out = f32::from_ne_bytes(x));
        }
    }
}

/// What a code byte of a row means, given its group's header.
fn decoder(format: Format, header: &[u8], row: usize) -> impl Fn(u8) -> f32 + use<> {
    let half = |at: usize| f16::from_ne_bytes([header[at], header[at + 1]]).to_f32();
    // value = scale · (code - zero) + minimum, with only those operations that the format defines.
    let (scale, zero, minimum) = match format {
        Format::Ternary => (pack::row_scale(header, row), 1.0, None),
        Format::Int4 { zero: ZeroKind::Symmetric, .. } => (half(2 * row), 8.0, None),
        Format::Int4 { zero: ZeroKind::Point, .. } => (half(2 * row), f32::from(header[2 * TILE + row]), None),
        Format::Int4 { zero: ZeroKind::Min, .. } => (half(2 * row), 0.0, Some(half(2 * TILE + 2 * row))),
        _ => (half(2 * row), 0.0, None),
    };
    let signed = matches!(format, Format::Int8 { .. });
    move |code| {
        let code = if signed { f32::from(code as i8) } else { f32::from(code) };
        let centred = scale * (code - zero);
        minimum.map_or(centred, |minimum| centred + minimum)
    }
}
