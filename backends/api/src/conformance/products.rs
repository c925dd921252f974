//! Matrix products on any backend: what the two topics on `linear` share.

use super::check::{Case, Failure, refused};
use super::data::plain_rows;
use super::device::{open, output, prepare, read, upload};
use crate::{Backend, HostMatrix};

/// A product of a matrix with `batch` rows.
pub(super) struct Product {
    pub(super) matrix: HostMatrix<'static>,
    /// `[batch, columns]`.
    pub(super) x: Vec<f32>,
    pub(super) batch: usize,
    pub(super) label: String,
}

impl Product {
    pub(super) fn new(matrix: HostMatrix<'static>, x: Vec<f32>, what: &str) -> Self {
        let (rows, columns, batch) = (matrix.rows(), matrix.columns(), x.len() / matrix.columns());
        let (format, activation) = (matrix.format(), matrix.activation());
        let label = format!("{format} {rows} x {columns}, {activation:?} activations, batch {batch}, {what}");
        Product { matrix, x, batch, label }
    }

    pub(super) fn case(&self) -> Case<'_> {
        Case { op: "linear", label: &self.label, columns: self.matrix.rows() }
    }
}

/// Every product as `[batch + 1, rows]`, the last row untouched; products of one batch size share a step.
pub(super) fn multiply<B: Backend>(options: &B::Options, products: &[Product]) -> Result<Vec<Vec<f32>>, Failure> {
    let mut backend = open::<B>(options)?;
    let mut results = vec![Vec::new(); products.len()];
    let mut batches: Vec<usize> = products.iter().map(|product| product.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    for batch in batches {
        let mut work = Vec::new();
        for (at, product) in products.iter().enumerate().filter(|(_, product)| product.batch == batch) {
            let weight = prepare(&mut backend, &product.matrix)?;
            let x = upload(&mut backend, product.matrix.columns(), &product.x)?;
            let out = output(&mut backend, batch + 1, product.matrix.rows())?;
            work.push((at, weight, x, out));
        }
        backend
            .step(&plain_rows(batch), |b| {
                work.iter_mut().for_each(|(_, weight, x, out)| b.linear(out, x, weight));
            })
            .map_err(refused("linear", format!("batch {batch}")))?;
        for (at, _, _, out) in &work {
            results[*at] = read(&mut backend, out, batch + 1, products[*at].matrix.rows())?;
        }
    }
    Ok(results)
}
