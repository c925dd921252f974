//! T-SAR's variants: the same bits as all other ternary kernels.

use super::*;

const VARIANTS: [&str; 4] = ["tsar-2x4-ap", "tsar-2x4-op", "tsar-4x4-ap", "tsar-4x4-op"];

fn product(matrix: &HostMatrix<'_>, isa: Isa, threads: usize, kernel: &str, x: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / matrix.columns() * matrix.rows()];
    let mut multiplier = Multiplier::with_kernel(matrix.clone(), isa, threads, Some(kernel)).unwrap();
    assert_eq!(multiplier.kernels().iter().map(|kernel| kernel.name).collect::<Vec<_>>(), [kernel]);
    assert!(multiplier.weight.published().is_some());
    multiplier.multiply(x, &mut out);
    out
}

#[track_caller]
fn check(matrix: &HostMatrix<'_>, threads: usize, x: &[f32]) {
    let expected = expected(matrix, x);
    for isa in isas() {
        for kernel in VARIANTS {
            let got = product(matrix, isa, threads, kernel, x);
            let wrong = got.iter().zip(&expected).position(|(got, expected)| !same(&[*got], &[*expected]));
            let (rows, columns) = (matrix.rows(), matrix.columns());
            assert_eq!(wrong, None, "{isa} {kernel} {rows} x {columns}, {threads} threads");
        }
    }
}

#[test]
fn bits_for_all_widths_heights_and_batches() {
    let widths = (1..=70).chain([127, 129, 255, 256, 257, 258, 272, 300, 511, 513, 1029, 2051]);
    for (at, columns) in widths.enumerate() {
        let (rows, batch) = (1 + at * 7 % 37, 1 + at % 4);
        let matrix = matrix(Format::Ternary, rows, columns, Fill::Random, false, at as u64);
        check(&matrix, 1, &Random(at as u64).floats(batch * columns));
    }
}

#[test]
fn sums_of_extreme_codes_are_exact() {
    // Wider than what int16 holds: 127 · 258 is 32,766.
    for columns in [256, 257, 258, 259, 264, 300, 1100] {
        for fill in [Fill::Largest, Fill::Smallest, Fill::Random] {
            let signs: [fn(usize) -> bool; 4] = [|_| true, |_| false, |c| c % 2 == 0, |c| c % 4 < 2];
            let codes =
                signs.map(|sign| (0..columns).map(|c| if sign(c) { 127.0 } else { -127.0 }).collect::<Vec<_>>());
            let x = codes.concat();
            let matrix = matrix(Format::Ternary, 17, columns, fill, true, 5);
            check(&matrix, 1, &x);
            assert_eq!(product(&matrix, Isa::detect(), 1, VARIANTS[0], &x), oracle(&matrix, &x));
        }
    }
}

#[test]
fn the_dense_part_does_not_overflow_while_the_sparse_one_is_in() {
    // 255 weights of +1 with 127 bring a sum to 32,385; what counts as +1 and then as 0 is last in its block.
    for last in 0..=16 {
        let columns = 256;
        let mut codes = vec![0xaau8; Ternary::row_bytes(columns)];
        for column in columns - last..columns {
            codes[column / 4] ^= 0b11 << (2 * (column % 4));
        }
        let matrix = HostMatrix::new(1, columns, Codes::Ternary(Ternary::new(codes, vec![1.0]))).unwrap();
        check(&matrix, 1, &vec![127.0; columns]);
    }
}

#[test]
fn outputs_do_not_depend_on_batch_or_threads() {
    // Enough weights to be worth a fork.
    let (rows, columns) = (201, 2501);
    let matrix = matrix(Format::Ternary, rows, columns, Fill::Random, false, 9);
    let x = Random(3).floats(5 * columns);
    for threads in 1..=3 {
        for batch in [1, 2, 5] {
            check(&matrix, threads, &x[..batch * columns]);
        }
    }
}

#[test]
fn more_rows_than_a_room_has_sums_for() {
    let (rows, columns) = (kernels::tsar::MOST_TILES * kernels::tsar::OUTPUTS + 21, 9);
    let matrix = matrix(Format::Ternary, rows, columns, Fill::Random, false, 4);
    check(&matrix, 1, &Random(3).floats(2 * columns));
}

#[test]
fn faulty_activations_show() {
    let matrix = matrix(Format::Ternary, 9, 100, Fill::Random, false, 2);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = Random(8).floats(3 * 100);
        x[170] = bad;
        check(&matrix, 1, &x);
    }
}

#[test]
fn rows_come_back_as_they_were() {
    for kernel in VARIANTS {
        for (rows, columns) in [(1, 1), (8, 32), (21, 37), (33, 257)] {
            let matrix = matrix(Format::Ternary, rows, columns, Fill::Random, false, 1);
            let selection = Selection::new(Isa::detect(), Some(kernel)).unwrap();
            let weight = Weight::prepare(matrix.clone(), &selection, &Pool::new(2).unwrap()).unwrap();
            let (mut got, mut expected) = (vec![0.0; columns], vec![0.0; columns]);
            for row in 0..rows {
                weight.embed_row(row, &mut got);
                matrix.dequantize_row(row, &mut expected);
                assert!(same(&got, &expected), "{kernel} row {row} of {rows} x {columns}");
            }
        }
    }
}

#[test]
fn other_formats_choose_as_usual() {
    for format in formats().into_iter().filter(|&format| format != Format::Ternary) {
        let matrix = matrix(format, 20, 100, Fill::Random, false, 3);
        let x = Random(1).floats(300);
        let mut named = Multiplier::with_kernel(matrix.clone(), Isa::detect(), 1, Some(VARIANTS[1])).unwrap();
        let mut out = vec![0.0; 60];
        named.multiply(&x, &mut out);
        assert!(same(&out, &super::product(&matrix, Isa::detect(), 1, &x)), "{format}");
    }
}

#[test]
fn named_kernels_of_every_format_give_the_same_bits() {
    for (format, activation) in quantised() {
        let matrix = matrix(format, 41, 300, Fill::Random, false, 3).with_activation(activation).unwrap();
        for batch in [1, 5, 33] {
            let x = Random(1).floats(batch * 300);
            let expected = expected(&matrix, &x);
            for isa in isas() {
                for kernel in kernels::kernels(isa, kernels::Family::from(format)) {
                    let mut multiplier = Multiplier::with_kernel(matrix.clone(), isa, 1, Some(kernel.name)).unwrap();
                    let mut out = vec![0.0; batch * 41];
                    multiplier.multiply(&x, &mut out);
                    assert!(same(&out, &expected), "{} {format} {batch}", kernel.name);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn random_products_are_exact(
        rows in 1..60usize, columns in 1..700usize, batch in 1..4usize, threads in 1..4usize, seed in any::<u32>(),
    ) {
        let matrix = matrix(Format::Ternary, rows, columns, Fill::Random, false, u64::from(seed));
        check(&matrix, threads, &Random(u64::from(seed)).floats(batch * columns));
    }
}
