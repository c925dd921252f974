//! Random matrices of every format.

use half::{bf16, f16};
use trine_backend::{Activation, Codes, Format, Group, HostMatrix, Int4, Int8, Ternary, Zero, ZeroKind};
use trine_kernels::Planes;
use trine_kernels::args::{Address, Product};

use crate::device::{Random, upload};

pub(crate) const DENSE: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

/// Quantised formats with the activations that they can be multiplied with.
pub(crate) fn quantised() -> Vec<(Format, Activation)> {
    let mut all = vec![(Format::Ternary, Activation::Token)];
    for activation in [Activation::Block, Activation::Token] {
        for group in [Group::G32, Group::G64, Group::G128, Group::Row] {
            for zero in [ZeroKind::Symmetric, ZeroKind::Point, ZeroKind::Min] {
                all.push((Format::Int4 { group, zero }, activation));
            }
            all.push((Format::Int8 { group }, activation));
        }
    }
    all
}

pub(crate) fn random_matrix(
    random: &mut Random,
    format: Format,
    activation: Activation,
    rows: usize,
    columns: usize,
) -> HostMatrix<'static> {
    let halves = |random: &mut Random, count: usize, largest: f32| -> Vec<f16> {
        random.floats(count, largest).into_iter().map(f16::from_f32).collect()
    };
    let codes = match format {
        Format::F32 => Codes::F32(random.floats(rows * columns, 0.1).into()),
        Format::F16 => Codes::F16(halves(random, rows * columns, 0.1).into()),
        Format::Bf16 => Codes::Bf16(random.floats(rows * columns, 0.1).into_iter().map(bf16::from_f32).collect()),
        Format::Ternary => {
            let mut codes = vec![0u8; rows * columns.div_ceil(4)];
            for row in 0..rows {
                for column in 0..columns {
                    codes[row * columns.div_ceil(4) + column / 4] |= ((random.next() % 3) as u8) << (2 * (column % 4));
                }
            }
            Codes::Ternary(Ternary::new(codes, random.floats(rows, 0.1)))
        }
        Format::Int8 { group } => {
            let codes: Vec<i8> = (0..rows * columns).map(|_| (random.next() % 255) as i32 as i8).collect();
            let codes: Vec<i8> = codes.into_iter().map(|code| code.max(-127)).collect();
            Codes::Int8(Int8::new(group, codes, halves(random, rows * group.count(columns), 0.001)))
        }
        Format::Int4 { group, zero } => {
            let mut codes = vec![0u8; rows * columns.div_ceil(2)];
            for row in 0..rows {
                for column in 0..columns {
                    codes[row * columns.div_ceil(2) + column / 2] |= ((random.next() % 16) as u8) << (4 * (column % 2));
                }
            }
            let count = rows * group.count(columns);
            let zero = match zero {
                ZeroKind::Symmetric => Zero::Symmetric,
                ZeroKind::Point => Zero::Point((0..count).map(|_| (random.next() % 17) as u8).collect()),
                ZeroKind::Min => Zero::Min(halves(random, count, 0.05).into()),
            };
            Codes::Int4(Int4::new(group, codes, halves(random, count, 0.01), zero))
        }
    };
    HostMatrix::new(rows, columns, codes).unwrap().with_activation(activation).unwrap()
}

/// A matrix on the device: codes, scales, zeros.
pub(crate) fn send(matrix: &HostMatrix<'_>) -> [Address; 3] {
    let planes = Planes::new(matrix);
    let address = |plane: Option<trine_kernels::Plane<'_>>| plane.map_or(0, |plane| upload(&plane.bytes()));
    [address(Some(planes.codes)), address(planes.scales), address(planes.zeros)]
}

/// What all products with a matrix have in common.
pub(crate) fn product(matrix: &HostMatrix<'_>) -> Product {
    let [codes, scales, zeros] = send(matrix);
    let per = trine_kernels::segment(matrix.columns()) as u32;
    let slots = trine_kernels::slots(matrix.format(), matrix.columns()) as u32;
    let (rows, columns) = (matrix.rows() as u32, matrix.columns() as u32);
    Product { codes, scales, zeros, rows, columns, per, slots, out_pitch: rows, ..Product::default() }
}
