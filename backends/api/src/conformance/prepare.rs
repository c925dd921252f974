//! `prepare` keeps every code: each row of a prepared matrix, embedded, is what the host matrix holds.
//!
//! Dequantised values are exact in f32 (an f16 scale times a code of up to 7 bits; with a minimum one
//! rounding remains, with or without a fused multiply-add), so they must be equal.

use super::check::{Case, Checker, Failure, Report, refused};
use super::data::{DENSE, Random, integer_formats, random_matrix};
use super::device::{UNTOUCHED, open, output, prepare, read};
use crate::{Backend, HostMatrix, Row};

/// Columns that no tile divides, and some that they do.
const COLUMNS: [usize; 6] = [1, 31, 33, 96, 130, 257];
/// Rows of a table; neither a multiple of 4 nor of 8.
const VOCABULARY: usize = 67;

/// Every row of a prepared matrix of every format reads back as its host's.
pub fn prepared_weights<B: Backend>(options: &B::Options) -> Result<Report, Failure> {
    let mut random = Random::new(3);
    let formats = DENSE.into_iter().chain(integer_formats());
    let shapes = formats.flat_map(|format| COLUMNS.map(|columns| (format, columns)));
    let tables: Vec<_> = shapes.map(|(format, c)| random_matrix(&mut random, format, VOCABULARY, c)).collect();
    let mut backend = open::<B>(options)?;
    let mut checker = Checker::default();
    let mut work = Vec::new();
    for table in &tables {
        let weight = prepare(&mut backend, table)?;
        work.push((table, weight, output(&mut backend, VOCABULARY + 1, table.columns())?));
    }
    // Backwards; then a short step with the first row, the last row and repeats.
    let backwards: Vec<u32> = (0..VOCABULARY as u32).rev().collect();
    for tokens in [backwards, vec![66, 0, 66, 66, 1]] {
        backend
            .step(&rows(&tokens), |b| work.iter_mut().for_each(|(_, weight, out)| b.embed(out, weight)))
            .map_err(refused("embed", format!("{} tokens", tokens.len())))?;
        for (table, _, out) in &work {
            let columns = table.columns();
            let label = format!("{} {VOCABULARY} x {columns}, {} tokens", table.format(), tokens.len());
            let got = read(&mut backend, out, tokens.len(), columns)?;
            checker.equal(Case { op: "embed", label: &label, columns }, &got, &dequantize(table, &tokens))?;
        }
    }
    for (table, _, out) in &work {
        let columns = table.columns();
        let got = read(&mut backend, out, VOCABULARY + 1, columns)?.split_off(VOCABULARY * columns);
        let label = format!("{} {VOCABULARY} x {columns}, the row past the last", table.format());
        checker.equal(Case { op: "embed", label: &label, columns }, &got, &vec![UNTOUCHED; columns])?;
    }
    Ok(checker.report)
}

fn rows(tokens: &[u32]) -> Vec<Row> {
    let row = |(at, &token)| Row { token, sequence: 0, position: at as u32, output: true };
    tokens.iter().enumerate().map(|(at, token)| row((at, token))).collect()
}

fn dequantize(table: &HostMatrix<'_>, tokens: &[u32]) -> Vec<f32> {
    let mut want = vec![0.0; tokens.len() * table.columns()];
    for (&token, want) in tokens.iter().zip(want.chunks_mut(table.columns())) {
        table.dequantize_row(token as usize, want);
    }
    want
}
