//! Integer products, bit for bit.
//!
//! Weight scales are powers of two, activations are integers (or halfway between two) with ±127 in every
//! span, times a power of two for the token: activation scales are then powers of two as well, and since
//! every partial sum, in whatever order, is a whole number of units below 2^24, f32 holds it exactly. All
//! that is left to differ is the integer arithmetic, which must not.

use super::check::{Checker, Failure, Report};
use super::data::{Parts, Random, activations, code_range, groups, integer_formats};
use super::products::{Product, multiply};
use crate::activation::BLOCK;
use crate::oracle::Oracle;
use crate::{Backend, Format, HostMatrix, ZeroKind};

/// Rows, columns, batch: around the widths that kernels tile by, and long rows that overflow 16-bit sums.
const SHAPES: [(usize, usize, usize); 23] = [
    (1, 1, 1),
    (2, 3, 2),
    (3, 31, 3),
    (4, 32, 4),
    (5, 33, 5),
    (7, 63, 7),
    (8, 64, 8),
    (9, 96, 9),
    (31, 127, 16),
    (32, 128, 17),
    (33, 129, 3),
    (63, 255, 2),
    (17, 256, 33),
    (257, 257, 4),
    (65, 65, 9),
    (257, 64, 1),
    (8, 384, 64),
    (16, 320, 1),
    (7, 1040, 7),
    (9, 1280, 4),
    (14, 2560, 1),
    (7, 2592, 7),
    (7, 6912, 5),
];

/// The shapes of a BitNet 2B4T block, a few rows at a time.
const TERNARY_SHAPES: [(usize, usize, usize); 3] = [(257, 2560, 2), (33, 6912, 3), (128, 2048, 1)];

/// `linear` on integers equals the oracle's bit for bit.
pub fn integer_products<B: Backend>(options: &B::Options) -> Result<Report, Failure> {
    let products = cases();
    let got = multiply::<B>(options, &products)?;
    let mut checker = Checker::default();
    for (product, got) in products.iter().zip(&got) {
        let want = &multiply::<Oracle>(&(), std::slice::from_ref(product))?[0];
        checker.equal(product.case(), got, want)?;
    }
    Ok(checker.report)
}

fn cases() -> Vec<Product> {
    let mut random = Random::new(1);
    let mut products = Vec::new();
    for format in integer_formats() {
        for &activation in activations(format) {
            let more: &[_] = if format == Format::Ternary { &TERNARY_SHAPES } else { &[] };
            for (at, &(rows, columns, batch)) in SHAPES.iter().chain(more).enumerate() {
                let matrix = matrix(&mut random, format, rows, columns, at);
                let matrix = matrix.with_activation(activation).expect("a combination from the list");
                let x = (0..batch).flat_map(|token| activations_of(&mut random, columns, token + at)).collect();
                products.push(Product::new(matrix, x, "integers"));
            }
        }
    }
    products
}

/// A matrix whose rows go through the patterns of [`codes_of`], starting with number `first`.
fn matrix(random: &mut Random, format: Format, rows: usize, columns: usize, first: usize) -> HostMatrix<'static> {
    let (low, high) = code_range(format);
    // The largest |weight| in units of its scale, and the unit: long INT8 rows take multiples of 64.
    let (largest, unit) = match format {
        Format::Ternary => (1, 1),
        Format::Int4 { zero: ZeroKind::Symmetric, .. } => (8, 1),
        Format::Int4 { .. } => (16, 1),
        _ if 127 * 127 * columns < 1 << 24 => (127, 1),
        _ => (1, 64),
    };
    let headroom = (1usize << 24) / (largest * 127 * columns);
    assert!(headroom > 0, "{columns} columns of {format} have sums beyond 2^24");
    let count = rows * groups(format, columns);
    let exponents = headroom.ilog2().min(3) as usize;
    let scales = (0..count).map(|_| (1 << random.below(exponents + 1)) as f32).collect();
    let zeros: Vec<f32> = match format {
        Format::Int4 { zero: ZeroKind::Min, .. } => (0..count).map(|_| random.integer(-8, 0) as f32).collect(),
        _ => (0..count).map(|_| random.integer(0, 16) as f32).collect(),
    };
    let mut codes = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        let zero = match format {
            Format::Int4 { zero: ZeroKind::Symmetric, .. } => 8,
            Format::Int4 { zero: ZeroKind::Point, .. } => zeros[row * groups(format, columns)] as i32,
            _ => 0,
        };
        let range = [low.max(-127 / unit), zero.min(high / unit), high.min(127 / unit)];
        codes.extend(codes_of(random, columns, row + first, range).into_iter().map(|code| code * unit));
    }
    Parts { rows, columns, codes, scales, zeros }.pack(format)
}

/// Codes of one row; `range` is the lowest code, the one that means zero, and the highest.
fn codes_of(random: &mut Random, columns: usize, pattern: usize, [low, zero, high]: [i32; 3]) -> Vec<i32> {
    let hot = random.below(columns);
    (0..columns)
        .map(|column| match pattern % 7 {
            0 => random.integer(low, high),
            1 => high,
            2 => low,
            3 => [high, low][column % 2],
            4 => zero,
            5 => [zero, high][usize::from(column == hot)],
            _ => [low, high][random.below(2)],
        })
        .collect()
}

/// One token's activations.
fn activations_of(random: &mut Random, columns: usize, pattern: usize) -> Vec<f32> {
    let hot = random.below(columns);
    let mut x: Vec<f32> = (0..columns)
        .map(|column| match pattern % 7 {
            0 => random.integer(-127, 127) as f32,
            1 => 127.0,
            2 => [127.0, -127.0][column % 2],
            3 => [0.0, -127.0][usize::from(column == hot)],
            // Ties: the nearest even code is asked.
            4 => random.integer(-126, 125) as f32 + 0.5,
            5 => -127.0,
            _ => 127.0 * random.sign(),
        })
        .collect();
    if pattern % 7 != 3 {
        for block in x.chunks_mut(BLOCK) {
            let at = random.below(block.len());
            block[at] = 127.0 * random.sign();
        }
    }
    let token_scale = 2.0f32.powi(random.integer(-3, 3));
    x.iter_mut().for_each(|x| *x *= token_scale);
    x
}
