//! Matrix-vector products by the integer contract.

use crate::activation::{self, BLOCK};
use crate::{Activation, Codes, HostMatrix, Int4, Int8, Ternary, Zero};

/// `out = W · x`, with `x` quantised as the matrix asks.
pub(super) fn linear(weight: &HostMatrix<'_>, x: &[f32], out: &mut [f32]) {
    assert_eq!((weight.columns(), weight.rows()), (x.len(), out.len()));
    let mut codes = vec![0i8; x.len()];
    let mut scales = vec![0.0f32; x.len().div_ceil(BLOCK)];
    if weight.activation() != Activation::Float {
        activation::quantize(x, weight.activation(), &mut codes, &mut scales);
    }
    for (row, out) in out.iter_mut().enumerate() {
        *out = match weight.codes() {
            Codes::Ternary(ternary) => ternary_row(ternary, row, &codes, scales[0]),
            Codes::Int4(int4) => int4_row(int4, row, &codes, &scales),
            Codes::Int8(int8) => int8_row(int8, row, &codes, &scales),
            Codes::F32(_) | Codes::F16(_) | Codes::Bf16(_) => dense_row(weight, row, x),
        } as f32;
    }
}

/// One integer sum over the whole row, scaled once.
fn ternary_row(ternary: &Ternary<'_>, row: usize, codes: &[i8], scale: f32) -> f64 {
    let mut weights = vec![0i8; codes.len()];
    ternary.row(row, &mut weights);
    f64::from(dot(&weights, codes)) * f64::from(ternary.scales()[row]) * f64::from(scale)
}

/// Integer sums over blocks of [`BLOCK`] columns, none of which straddles a group, each scaled by its
/// group and its activations.
fn int4_row(int4: &Int4<'_>, row: usize, codes: &[i8], scales: &[f32]) -> f64 {
    let columns = codes.len();
    let mut raw = vec![0u8; columns];
    int4.row(row, &mut raw);
    let (width, groups) = (int4.group().columns(columns), int4.group().count(columns));
    let mut sum = 0.0;
    for (block, (raw, codes)) in raw.chunks(BLOCK).zip(codes.chunks(BLOCK)).enumerate() {
        let at = row * groups + block * BLOCK / width;
        let scale = int4.scales()[at].to_f64();
        let centred = |zero: u8| {
            let weights: Vec<i8> = raw.iter().map(|&u| u as i8 - zero as i8).collect();
            scale * f64::from(dot(&weights, codes))
        };
        let product = match int4.zero() {
            Zero::Symmetric => centred(8),
            Zero::Point(points) => centred(points[at]),
            Zero::Min(minima) => {
                let activations: i32 = codes.iter().map(|&code| i32::from(code)).sum();
                centred(0) + minima[at].to_f64() * f64::from(activations)
            }
        };
        sum += product * f64::from(scales[block]);
    }
    sum
}

fn int8_row(int8: &Int8<'_>, row: usize, codes: &[i8], scales: &[f32]) -> f64 {
    let columns = codes.len();
    let (width, groups) = (int8.group().columns(columns), int8.group().count(columns));
    let weights = &int8.codes()[row * columns..(row + 1) * columns];
    let blocks = weights.chunks(BLOCK).zip(codes.chunks(BLOCK)).enumerate();
    let product = |(block, (weights, codes)): (usize, (&[i8], &[i8]))| {
        let scale = int8.scales()[row * groups + block * BLOCK / width].to_f64();
        scale * f64::from(dot(weights, codes)) * f64::from(scales[block])
    };
    blocks.map(product).sum()
}

fn dense_row(weight: &HostMatrix<'_>, row: usize, x: &[f32]) -> f64 {
    let mut weights = vec![0.0f32; x.len()];
    weight.dequantize_row(row, &mut weights);
    weights.iter().zip(x).map(|(&weight, &x)| f64::from(weight) * f64::from(x)).sum()
}

fn dot(weights: &[i8], codes: &[i8]) -> i32 {
    weights.iter().zip(codes).map(|(&weight, &code)| i32::from(weight) * i32::from(code)).sum()
}
