//! Every kernel against the formulas, bit by bit, and against the oracle.

use half::{bf16, f16};
use proptest::prelude::*;
use trine_backend::activation::{self, BLOCK};
use trine_backend::oracle::Oracle;
use trine_backend::{Activation, Backend, Codes, Format, Group, HostMatrix, Int4, Int8, Row, Ternary, Zero, ZeroKind};

use super::*;
use crate::kernels;

mod published;

const GROUPS: [Group; 4] = [Group::G32, Group::G64, Group::G128, Group::Row];
const ZEROS: [ZeroKind; 3] = [ZeroKind::Symmetric, ZeroKind::Point, ZeroKind::Min];

/// All number formats.
fn formats() -> Vec<Format> {
    let mut formats = vec![Format::F32, Format::F16, Format::Bf16, Format::Ternary];
    for group in GROUPS {
        formats.push(Format::Int8 { group });
        formats.extend(ZEROS.map(|zero| Format::Int4 { group, zero }));
    }
    formats
}

/// The activations that a format may be multiplied with.
fn activations(format: Format) -> Vec<Activation> {
    match format.activation() {
        Activation::Block => vec![Activation::Block, Activation::Token],
        only => vec![only],
    }
}

/// A sequence of numbers that look random.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// -1 to 1.
    fn float(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// What the codes of a matrix are made of.
#[derive(Clone, Copy, Debug)]
enum Fill {
    Random,
    /// Every code the largest.
    Largest,
    /// Every code the smallest.
    Smallest,
}

impl Fill {
    fn pick(self, random: &mut Random, smallest: i32, largest: i32) -> i32 {
        match self {
            Fill::Random => smallest + random.below((largest - smallest + 1) as u64) as i32,
            Fill::Largest => largest,
            Fill::Smallest => smallest,
        }
    }
}

/// `unit`: scales of 1, and minima of -3.
fn matrix(format: Format, rows: usize, columns: usize, fill: Fill, unit: bool, seed: u64) -> HostMatrix<'static> {
    let mut random = Random(seed);
    let scales = |count: usize| -> Vec<f16> {
        let mut random = Random(seed + 1);
        (0..count).map(|_| if unit { f16::ONE } else { f16::from_f32(random.float() * 0.1) }).collect()
    };
    let codes = match format {
        Format::F32 => Codes::F32(random.floats(rows * columns).into()),
        Format::F16 => {
            Codes::F16((0..rows * columns).map(|_| f16::from_f32(random.float())).collect::<Vec<_>>().into())
        }
        Format::Bf16 => {
            Codes::Bf16((0..rows * columns).map(|_| bf16::from_f32(random.float())).collect::<Vec<_>>().into())
        }
        Format::Ternary => {
            let mut bytes = vec![0u8; rows * Ternary::row_bytes(columns)];
            for row in bytes.chunks_mut(Ternary::row_bytes(columns)) {
                for column in 0..columns {
                    row[column / 4] |= (fill.pick(&mut random, 0, 2) as u8) << (2 * (column % 4));
                }
            }
            let scales: Vec<f32> = (0..rows).map(|_| if unit { 1.0 } else { random.float() }).collect();
            Codes::Ternary(Ternary::new(bytes, scales))
        }
        Format::Int4 { group, zero } => {
            let mut bytes = vec![0u8; rows * Int4::row_bytes(columns)];
            for row in bytes.chunks_mut(Int4::row_bytes(columns)) {
                for column in 0..columns {
                    row[column / 2] |= (fill.pick(&mut random, 0, 15) as u8) << (4 * (column % 2));
                }
            }
            let groups = rows * group.count(columns);
            let zero = match zero {
                ZeroKind::Symmetric => Zero::Symmetric,
                ZeroKind::Point => Zero::Point((0..groups).map(|_| random.below(17) as u8).collect::<Vec<_>>().into()),
                ZeroKind::Min if unit => Zero::Min(vec![f16::from_f32(-3.0); groups].into()),
                ZeroKind::Min => {
                    Zero::Min((0..groups).map(|_| f16::from_f32(random.float())).collect::<Vec<_>>().into())
                }
            };
            Codes::Int4(Int4::new(group, bytes, scales(groups), zero))
        }
        Format::Int8 { group } => {
            let codes: Vec<i8> = (0..rows * columns).map(|_| fill.pick(&mut random, -127, 127) as i8).collect();
            Codes::Int8(Int8::new(group, codes, scales(rows * group.count(columns))))
        }
    };
    HostMatrix::new(rows, columns, codes).unwrap()
}

/// One output of a quantised matrix by the formulas in [`crate::kernels`].
fn formula(matrix: &HostMatrix<'_>, row: usize, codes: &[i8], scales: &[f32]) -> f32 {
    let columns = codes.len();
    let dot = |at: usize, weight: &dyn Fn(usize) -> i32| -> i32 {
        let end = (at + BLOCK).min(columns);
        (at..end).map(|column| weight(column) * i32::from(codes[column])).sum()
    };
    let blocks = 0..columns.div_ceil(BLOCK);
    match matrix.codes() {
        Codes::Ternary(ternary) => {
            let mut weights = vec![0i8; columns];
            ternary.row(row, &mut weights);
            let sum: i32 = blocks.map(|block| dot(block * BLOCK, &|column| i32::from(weights[column]))).sum();
            sum as f32 * (ternary.scales()[row] * scales[0])
        }
        Codes::Int4(int4) => {
            let mut weights = vec![0u8; columns];
            int4.row(row, &mut weights);
            let (width, groups) = (int4.group().columns(columns), int4.group().count(columns));
            let mut y = 0.0f32;
            for block in blocks {
                let group = row * groups + block * BLOCK / width;
                let zero = match int4.zero() {
                    Zero::Symmetric => 8,
                    Zero::Point(points) => i32::from(points[group]),
                    Zero::Min(_) => 0,
                };
                let sum = dot(block * BLOCK, &|column| i32::from(weights[column]) - zero);
                y += sum as f32 * (int4.scales()[group].to_f32() * scales[block]);
                if let Zero::Min(minima) = int4.zero() {
                    y += dot(block * BLOCK, &|_| 1) as f32 * (minima[group].to_f32() * scales[block]);
                }
            }
            y
        }
        Codes::Int8(int8) => {
            let weights = &int8.codes()[row * columns..][..columns];
            let (width, groups) = (int8.group().columns(columns), int8.group().count(columns));
            blocks.fold(0.0, |y, block| {
                let sum = dot(block * BLOCK, &|column| i32::from(weights[column]));
                let scale = int8.scales()[row * groups + block * BLOCK / width].to_f32();
                y + sum as f32 * (scale * scales[block])
            })
        }
        _ => unreachable!("dense products have no one formula"),
    }
}

/// All outputs of a quantised matrix by the formulas.
fn expected(matrix: &HostMatrix<'_>, x: &[f32]) -> Vec<f32> {
    let mut out = Vec::new();
    for x in x.chunks(matrix.columns()) {
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; x.len().div_ceil(BLOCK)]);
        activation::quantize(x, matrix.activation(), &mut codes, &mut scales);
        out.extend((0..matrix.rows()).map(|row| formula(matrix, row, &codes, &scales)));
    }
    out
}

fn product(matrix: &HostMatrix<'_>, isa: Isa, threads: usize, x: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / matrix.columns() * matrix.rows()];
    Multiplier::new(matrix.clone(), isa, threads).unwrap().multiply(x, &mut out);
    out
}

/// What the oracle says.
fn oracle(matrix: &HostMatrix<'_>, x: &[f32]) -> Vec<f32> {
    let mut oracle = Oracle::open(&()).unwrap();
    let weight = oracle.prepare(matrix.clone()).unwrap();
    let count = x.len() / matrix.columns();
    let x = oracle.upload(matrix.columns(), x).unwrap();
    let mut values = vec![0.0; count * matrix.rows()];
    let mut out = oracle.alloc(count, matrix.rows()).unwrap();
    let rows = vec![Row { token: 0, sequence: 0, position: 0, output: true }; count];
    oracle.step(&rows, |oracle| oracle.linear(&mut out, &x, &weight)).unwrap();
    oracle.read(&out, &mut values).unwrap();
    values
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

/// The instruction sets to test; on x86 those that the CPU lacks are emulated.
fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|&isa| cfg!(target_arch = "x86_64") || isa == Isa::Neon || isa.is_available())
}

fn check_bits(matrix: &HostMatrix<'_>, x: &[f32]) {
    let expected = expected(matrix, x);
    for isa in isas() {
        let got = product(matrix, isa, 1, x);
        let wrong = got.iter().zip(&expected).position(|(got, expected)| !same(&[*got], &[*expected]));
        assert!(
            wrong.is_none() && got.len() == expected.len(),
            "{isa} {} {:?} {} x {}: output {wrong:?} is {:?}, not {:?}",
            matrix.format(),
            matrix.activation(),
            matrix.rows(),
            matrix.columns(),
            wrong.map(|at| got[at]),
            wrong.map(|at| expected[at]),
        );
    }
}

fn quantised() -> impl Iterator<Item = (Format, Activation)> {
    let pairs = |format: Format| activations(format).into_iter().map(move |activation| (format, activation));
    formats().into_iter().filter(|format| !format.is_dense()).flat_map(pairs)
}

#[test]
fn quantised_bits_for_all_widths_heights_and_batches() {
    let widths = (1..=70).chain([95, 96, 127, 128, 129, 255, 257, 300, 511, 513, 640, 1029, 2051]);
    for (at, columns) in widths.enumerate() {
        for (which, (format, activation)) in quantised().enumerate() {
            // Heights and batches take turns, so that every format meets all of them.
            let (rows, batch) = (1 + (at * 7 + which) % 33, 1 + (at * 5 + which) % 39);
            let matrix = matrix(format, rows, columns, Fill::Random, false, (at * 100 + which) as u64);
            let matrix = matrix.with_activation(activation).unwrap();
            check_bits(&matrix, &Random(at as u64).floats(batch * columns));
        }
    }
}

#[test]
fn sums_of_extreme_codes_are_exact() {
    // Unit scales and activations of whole numbers up to 127: every output is an integer.
    for (format, activation) in quantised() {
        for fill in [Fill::Largest, Fill::Smallest, Fill::Random] {
            for columns in [31, 256, 1100] {
                let signs: [fn(usize) -> bool; 4] = [|_| true, |_| false, |c| c % 2 == 0, |c| c % 4 < 2];
                // Tokens enough for every kernel.
                let x: Vec<f32> = std::iter::repeat_n(signs, 9)
                    .flatten()
                    .flat_map(|sign| (0..columns).map(move |c| if sign(c) { 127.0 } else { -127.0 }))
                    .collect();
                let matrix = matrix(format, 17, columns, fill, true, 5).with_activation(activation).unwrap();
                check_bits(&matrix, &x);
                let exact = oracle(&matrix, &x);
                for isa in isas() {
                    assert_eq!(product(&matrix, isa, 1, &x), exact, "{isa} {format} {fill:?} {columns}");
                }
            }
        }
    }
}

#[test]
fn every_weight_is_where_it_belongs() {
    // One activation of 127: the product is 127 times a column of the matrix.
    let columns = 165;
    for (format, activation) in quantised() {
        let matrix = matrix(format, 19, columns, Fill::Random, true, 11).with_activation(activation).unwrap();
        let mut x = vec![0.0; columns * columns];
        (0..columns).for_each(|column| x[column * columns + column] = 127.0);
        let mut row_values = vec![0.0; columns];
        for isa in isas() {
            let got = product(&matrix, isa, 1, &x);
            for row in 0..matrix.rows() {
                matrix.dequantize_row(row, &mut row_values);
                let column_values = got.iter().skip(row).step_by(matrix.rows()).map(|y| y / 127.0);
                assert!(column_values.eq(row_values.iter().copied()), "{isa} {format} row {row}");
            }
        }
    }
}

#[test]
fn outputs_do_not_depend_on_batch_or_threads() {
    let (rows, columns) = (75, 421);
    let most = 39;
    let x = Random(3).floats(most * columns);
    for format in formats() {
        let matrix = matrix(format, rows, columns, Fill::Random, false, 9);
        for isa in isas() {
            let mut multiplier = Multiplier::new(matrix.clone(), isa, 1).unwrap();
            let mut single = vec![0.0; most * rows];
            for (x, out) in x.chunks(columns).zip(single.chunks_mut(rows)) {
                multiplier.multiply(x, out);
            }
            for batch in 1..=most {
                let mut out = vec![0.0; batch * rows];
                multiplier.multiply(&x[..batch * columns], &mut out);
                assert!(same(&out, &single[..batch * rows]), "{isa} {format} batch {batch}");
            }
            for threads in [2, 3, 7] {
                assert!(same(&product(&matrix, isa, threads, &x), &single), "{isa} {format} {threads} threads");
            }
        }
    }
}

#[test]
fn streams_have_every_tile_once() {
    for (at, apart) in (0..160).flat_map(|at| [false, true].map(|apart| (at, apart))) {
        let (tiles, count) = (at / 4, at % 4 + 1);
        let streams = Streams { tiles, count, apart };
        let tiles_of = |column| {
            let [first, apart, here] = streams.column(column);
            (0..here).map(move |at| first + at * apart)
        };
        let mut all: Vec<usize> = (0..streams.columns()).flat_map(tiles_of).collect();
        let step = if apart { 1 } else { count };
        let firsts = (0..tiles / count).map(|column| streams.column(column)[0]);
        assert!(firsts.eq((0..tiles / count).map(|column| step * column)), "streams are gone over in order");
        all.sort_unstable();
        assert!(all.into_iter().eq(0..tiles), "{tiles} tiles as {count} streams");
        for (tokens, workers) in [(1, 1), (1, 2), (15, 3), (16, 3), (500, 3)] {
            assert!(streams.piece(5000, tokens, workers) > 0);
        }
    }
}

#[test]
fn sweeps_are_the_same_in_any_parts() {
    // More tiles than one sweep takes, and tiles enough for each thread to have several.
    for (rows, columns) in [(8 * kernels::SWEEP + 100, 40), (1100, 72)] {
        let x = Random(4).floats(70 * columns);
        let matrix = matrix(Format::Ternary, rows, columns, Fill::Random, false, 13);
        for isa in isas() {
            let mut multiplier = Multiplier::new(matrix.clone(), isa, 1).unwrap();
            let mut single = vec![0.0; 70 * rows];
            for (x, out) in x.chunks(columns).zip(single.chunks_mut(rows)) {
                multiplier.multiply(x, out);
            }
            for threads in [1, 2, 5] {
                assert!(same(&product(&matrix, isa, threads, &x), &single), "{isa} {rows} rows, {threads} threads");
            }
        }
    }
}

#[test]
fn several_sweeps_give_the_bits_of_single_tokens() {
    // More tiles and tokens than any sweep takes, an odd tile at the end, and several panels of columns.
    let (rows, columns, most) = (8 * 2 * 64 + 3, 801, 2 * 64 + 11);
    let x = Random(8).floats(most * columns);
    let int4 = |group, zero| Format::Int4 { group, zero };
    let formats = [
        Format::Ternary,
        int4(Group::G32, ZeroKind::Symmetric),
        int4(Group::G64, ZeroKind::Point),
        int4(Group::G128, ZeroKind::Min),
        Format::Int8 { group: Group::G32 },
    ];
    for format in formats {
        let matrix = matrix(format, rows, columns, Fill::Random, false, 13);
        let mut multiplier = Multiplier::new(matrix.clone(), Isa::detect(), 1).unwrap();
        let mut single = vec![0.0; most * rows];
        for (x, out) in x.chunks(columns).zip(single.chunks_mut(rows)) {
            multiplier.multiply(x, out);
        }
        for batch in [13, 64, 65, 100, most] {
            let mut out = vec![f32::NAN; batch * rows];
            multiplier.multiply(&x[..batch * columns], &mut out);
            assert!(same(&out, &single[..batch * rows]), "{format} batch {batch}");
        }
        for threads in [2, 3] {
            assert!(same(&product(&matrix, Isa::detect(), threads, &x), &single), "{format} {threads} threads");
        }
    }
}

#[test]
fn agrees_with_the_oracle() {
    for format in formats() {
        for activation in activations(format) {
            for (rows, columns) in [(1, 1), (9, 33), (33, 333), (16, 1536)] {
                let matrix =
                    matrix(format, rows, columns, Fill::Random, false, 21).with_activation(activation).unwrap();
                let x = Random(4).floats(3 * columns);
                let exact = oracle(&matrix, &x);
                let mut weights = vec![0.0; columns];
                for isa in isas() {
                    let got = product(&matrix, isa, 2, &x);
                    for (at, (got, exact)) in got.iter().zip(&exact).enumerate() {
                        // Rounding of each addition, relative to the sum of magnitudes.
                        matrix.dequantize_row(at % rows, &mut weights);
                        let x = &x[at / rows * columns..][..columns];
                        let size: f32 = weights.iter().zip(x).map(|(w, x)| (w * x).abs() + w.abs() * 0.02).sum();
                        let bound = size * 4.0 * f32::EPSILON * (columns as f32).sqrt();
                        assert!((got - exact).abs() <= bound, "{isa} {format} {rows} x {columns}: {got} for {exact}");
                    }
                }
            }
        }
    }
}

#[test]
fn faulty_activations_show() {
    for (format, activation) in quantised() {
        let matrix = matrix(format, 9, 100, Fill::Random, false, 2).with_activation(activation).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = Random(8).floats(33 * 100);
            x[2 * 100 + 70] = bad;
            check_bits(&matrix, &x);
            let out = product(&matrix, Isa::detect(), 1, &x);
            assert!(out.chunks(9).enumerate().all(|(token, out)| out.iter().all(|y| y.is_nan() == (token == 2))));
        }
    }
}

#[test]
fn rows_come_back_as_they_were() {
    let pool = Pool::new(3).unwrap();
    let selection = Selection::new(Isa::detect(), None).unwrap();
    for format in formats() {
        for (rows, columns) in [(1, 1), (8, 32), (21, 37), (33, 257)] {
            let matrix = matrix(format, rows, columns, Fill::Random, false, 1);
            let weight = Weight::prepare(matrix.clone(), &selection, &pool).unwrap();
            let (mut got, mut expected) = (vec![0.0; columns], vec![0.0; columns]);
            for row in 0..rows {
                weight.embed_row(row, &mut got);
                matrix.dequantize_row(row, &mut expected);
                assert!(same(&got, &expected), "{format} row {row} of {rows} x {columns}");
            }
        }
    }
}

#[test]
fn quantisers_agree() {
    let mut random = Random(6);
    for columns in (1..=70).chain([300]) {
        for case in 0..12 {
            let mut x = random.floats(columns);
            match case {
                0 => x.fill(0.0),
                1 => x[columns / 2] = f32::NAN,
                2 => x[columns - 1] = f32::NEG_INFINITY,
                3 => x.iter_mut().for_each(|x| *x *= 1e-40),
                4 => x.iter_mut().for_each(|x| *x *= f32::MIN_POSITIVE * 100.0),
                5 => x.iter_mut().for_each(|x| *x *= f32::MAX),
                // Ties: multiples of a half, with a largest magnitude of 127.
                6 => {
                    x.iter_mut().for_each(|x| *x = (*x * 254.0).round() / 2.0);
                    x[0] = -127.0;
                }
                7 => x.fill(-0.0),
                _ => x[0] *= 1000.0,
            }
            for activation in [Activation::Token, Activation::Block] {
                let blocks = columns.div_ceil(BLOCK);
                let mut plain = (vec![[7; 8]; blocks], vec![7.0; blocks], vec![7; blocks]);
                crate::activations::quantize_plain(&x, activation, &mut plain.0, &mut plain.1, &mut plain.2);
                for isa in isas() {
                    let mut got = (vec![[9; 8]; blocks], vec![9.0; blocks], vec![9; blocks]);
                    kernels::quantize(isa)(&x, activation, &mut got.0, &mut got.1, &mut got.2);
                    assert_eq!((&got.0, &got.2), (&plain.0, &plain.2), "{isa} {activation:?} {x:?}");
                    assert!(same(&got.1, &plain.1), "{isa} {activation:?} {x:?}");
                }
            }
        }
    }
}

#[test]
fn scratch_is_reserved_once() {
    let mut scratch = Scratch::default();
    scratch.reserve(4, 100).unwrap();
    scratch.reserve(1, 500).unwrap();
    let before = format!("{scratch:?}").len();
    scratch.reserve(4, 128).unwrap();
    assert_eq!(format!("{scratch:?}").len(), before);
    assert!(scratch.reserve(usize::MAX, 64).is_err());
    assert!(scratch.reserve(1 << 40, 1 << 14).is_err());
}

#[test]
fn too_wide_a_matrix_is_an_error() {
    let columns = (1 << 22) + 1;
    let matrix =
        HostMatrix::new(1, columns, Codes::Int8(Int8::new(Group::Row, vec![0; columns], vec![f16::ONE]))).unwrap();
    let selection = Selection::new(Isa::detect(), None).unwrap();
    let error = Weight::prepare(matrix, &selection, &Pool::new(1).unwrap()).unwrap_err();
    assert!(error.to_string().contains("4194305 columns"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_products_are_exact(
        which in 0..16usize, token in any::<bool>(), rows in 1..40usize, columns in 1..700usize, batch in 1..40usize,
        seed in any::<u32>(), outlier in prop::option::of(-1e6f32..1e6),
    ) {
        let format = formats().into_iter().filter(|format| !format.is_dense()).cycle().nth(which).unwrap();
        let activation = *activations(format).get(usize::from(token)).unwrap_or(&format.activation());
        let matrix = matrix(format, rows, columns, Fill::Random, false, u64::from(seed)).with_activation(activation).unwrap();
        let mut x = Random(u64::from(seed)).floats(batch * columns);
        if let Some(outlier) = outlier {
            x[seed as usize % (batch * columns)] = outlier;
        }
        check_bits(&matrix, &x);
    }
}
