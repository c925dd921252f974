//! Weight matrices in the layout that the kernels read.

mod aligned;
mod layout;
mod pack;

use half::{bf16, f16};
use trine_backend::activation::BLOCK;
use trine_backend::{Activation, Error, Format, HostMatrix, Result, ZeroKind};

pub(crate) use layout::{Layout, TILE};

use crate::isa::Isa;
use crate::pool::Pool;
use aligned::Aligned;

/// A matrix `[rows = outputs, columns = inputs]` as tiles of 8 rows (see `layout.rs`).
#[derive(Debug)]
pub struct Weight {
    rows: usize,
    columns: usize,
    activation: Activation,
    layout: Layout,
    tiles: Aligned,
}

impl Weight {
    /// Lays a matrix out anew, on all threads, with no second copy of it besides the result. One layout
    /// serves all instruction sets.
    ///
    /// Errors if the memory is not there, and for matrices wider than the integer sums allow.
    pub(crate) fn prepare(matrix: HostMatrix<'_>, _isa: Isa, pool: &Pool) -> Result<Self> {
        let (rows, columns, format) = (matrix.rows(), matrix.columns(), matrix.format());
        if columns > layout::MAX_COLUMNS {
            let most = layout::MAX_COLUMNS;
            return Err(Error::Unsupported(format!("a matrix of {columns} columns: the CPU backend takes {most}")));
        }
        let layout = Layout::new(format, columns);
        let sized = layout.and_then(|layout| Some((layout, layout.tile_bytes.checked_mul(rows.div_ceil(TILE))?)));
        let Some((layout, bytes)) = sized else {
            return Err(Error::OutOfMemory(format!("a {format} matrix of {rows} x {columns} is beyond all memory")));
        };
        let mut tiles = Aligned::zeroed(bytes)?;
        pool.split(tiles.bytes_mut(), layout.tile_bytes, |start, part| {
            pack::tiles(&matrix, &layout, start / layout.tile_bytes, part);
        });
        Ok(Weight { rows, columns, activation: matrix.activation(), layout, tiles })
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

    /// The shape of a tile.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The bytes of all tiles.
    pub(crate) fn tiles(&self) -> &[u8] {
        self.tiles.bytes()
    }

    /// The weights of one row as floats: the values of [`HostMatrix::dequantize_row`].
    ///
    /// # Panics
    /// If the row does not exist or `out` is not `columns` long.
    pub(crate) fn embed_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.columns, "row {row} of {} x {}", self.rows, self.columns);
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
