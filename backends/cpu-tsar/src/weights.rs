//! Weight matrices.

use trine_backend::{HostMatrix, Result};

use crate::isa::Isa;
use crate::pool::Pool;

/// A matrix.
#[derive(Debug)]
pub struct Weight(pub(crate) HostMatrix<'static>);

impl Weight {
    pub(crate) fn prepare(matrix: HostMatrix<'_>, _: Isa, _: &Pool) -> Result<Self> {
        Ok(Weight(matrix.into_owned()))
    }

    pub(crate) fn embed_row(&self, row: usize, out: &mut [f32]) {
        self.0.dequantize_row(row, out);
    }
}
