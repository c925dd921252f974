//! What the topics do with every device.
//!
//! A device may replay what it recorded for a step of as many rows and outputs, so a topic records one
//! list of ops per backend that it opens, and varies tokens, sequences and positions alone.

use super::check::{Failure, refused};
use crate::Backend;

/// What output buffers hold before an op: an op must overwrite its rows and leave the others alone.
pub(super) const UNTOUCHED: f32 = -776.5;

pub(super) fn open<B: Backend>(options: &B::Options) -> Result<B, Failure> {
    B::open(options).map_err(refused("open", B::NAME))
}

/// A buffer of `[rows, columns]` full of [`UNTOUCHED`].
pub(super) fn output<B: Backend>(backend: &mut B, rows: usize, columns: usize) -> Result<B::Buf, Failure> {
    upload(backend, columns, &vec![UNTOUCHED; rows * columns])
}

pub(super) fn upload<B: Backend>(backend: &mut B, columns: usize, data: &[f32]) -> Result<B::Buf, Failure> {
    let rows = data.len() / columns;
    backend.upload(columns, data).map_err(refused("upload", format!("{rows} x {columns}")))
}

pub(super) fn prepare<B: Backend>(backend: &mut B, matrix: &crate::HostMatrix<'_>) -> Result<B::Weight, Failure> {
    let case = format!("{} {} x {}", matrix.format(), matrix.rows(), matrix.columns());
    backend.prepare(matrix.clone()).map_err(refused("prepare", case))
}

pub(super) fn read<B: Backend>(
    backend: &mut B,
    buf: &B::Buf,
    rows: usize,
    columns: usize,
) -> Result<Vec<f32>, Failure> {
    let mut out = vec![0.0; rows * columns];
    backend.read(buf, &mut out).map_err(refused("read", format!("{rows} x {columns}")))?;
    Ok(out)
}
