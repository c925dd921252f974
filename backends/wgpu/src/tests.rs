//! The conformance suite on the machine's GPU, with and without subgroups, and with split matrices.

use std::sync::OnceLock;

use trine_backend::conformance::{self, Topic};

use super::*;

/// Whether there is a device. Without one tests say that they are skipped, unless `TRINE_REQUIRE` lists wgpu.
fn device() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| !adapters().is_empty());
    if !found {
        let required = std::env::var("TRINE_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|name| name == "wgpu"), "TRINE_REQUIRE lists wgpu, and there is no GPU");
        eprintln!("skipped: wgpu finds no GPU");
    }
    found
}

fn check(topic: Topic<Wgpu>, options: &Options) {
    if !device() {
        return;
    }
    match topic(options) {
        Ok(report) => assert!(report.values > 0),
        Err(failure) => panic!("{failure}"),
    }
}

macro_rules! topics {
    ($options:expr, $($topic:ident)+) => {
        $(
            #[test]
            fn $topic() {
                check(conformance::$topic::<Wgpu>, &$options);
            }
        )+
    };
}

mod as_it_is {
    use super::*;
    topics!(
        Options::default(),
        prepared_weights integer_products scaled_products float_ops attention batch_invariance tiny_models
    );
}

mod without_subgroups {
    use super::*;
    topics!(
        Options { without_subgroups: true, ..Options::default() },
        prepared_weights scaled_products float_ops attention batch_invariance tiny_models
    );
}

/// A matrix in several parts gives the bits of the same matrix in one, and bad requests are errors.
mod limits {
    use trine_backend::{Backend, Codes, Gate, Group, HostMatrix, Int4, KvFormat, KvShape, Row, Zero};

    use super::*;

    const ROWS: usize = 200;
    const COLUMNS: usize = 256;

    fn matrix() -> HostMatrix<'static> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let codes: Vec<u8> = (0..ROWS * COLUMNS / 2).map(|_| next() as u8).collect();
        let scales: Vec<_> =
            (0..ROWS * COLUMNS / 32).map(|_| half::f16::from_f32((next() % 100) as f32 * 1e-3)).collect();
        HostMatrix::new(ROWS, COLUMNS, Codes::Int4(Int4::new(Group::G32, codes, scales, Zero::Symmetric))).unwrap()
    }

    fn products(options: &Options, tokens: usize) -> (usize, Vec<f32>) {
        let mut backend = Wgpu::open(options).unwrap();
        let weight = backend.prepare(matrix()).unwrap();
        let mut x = backend.alloc(tokens, COLUMNS).unwrap();
        let mut out = backend.alloc(tokens, ROWS).unwrap();
        // Tokens from both ends of the table.
        let token = |at: usize| (if at.is_multiple_of(2) { at } else { ROWS - at }) as u32;
        let row = |at: usize| Row { token: token(at), sequence: 0, position: at as u32, output: true };
        let rows: Vec<Row> = (0..tokens).map(row).collect();
        backend
            .step(&rows, |b| {
                b.embed(&mut x, &weight);
                b.linear(&mut out, &x, &weight);
            })
            .unwrap();
        let mut result = vec![0.0; tokens * ROWS];
        backend.read(&out, &mut result).unwrap();
        (weight.parts.len(), result)
    }

    #[test]
    fn split_matrices_give_the_same_bits() {
        if !device() {
            return;
        }
        for tokens in [1, 5, 20] {
            // A tile of 8 rows takes 1 KiB.
            let split = Options { binding_limit: Some(24 << 10), ..Options::default() };
            let (parts, got) = products(&split, tokens);
            let (whole, want) = products(&Options::default(), tokens);
            assert_eq!((parts, whole), (2, 1));
            assert_eq!(got, want, "{tokens} tokens");
            assert!(want.iter().any(|value| *value != 0.0));
        }
    }

    /// From 16384 rows on tiles have 16 of them.
    #[test]
    fn a_gate_in_a_wide_product_gives_the_bits_of_one_that_follows_it() {
        if !device() {
            return;
        }
        const INNER: usize = 8192;
        let codes = |seed: usize, rows: usize, columns: usize| {
            let code = |at: usize| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 7) as u8;
            let scale = |at: usize| half::f16::from_f32((at % 89) as f32 * 1e-3);
            let codes: Vec<u8> = (0..rows * columns / 2).map(code).collect();
            let scales: Vec<_> = (0..rows * columns / 32).map(scale).collect();
            HostMatrix::new(rows, columns, Codes::Int4(Int4::new(Group::G32, codes, scales, Zero::Symmetric))).unwrap()
        };
        let mut backend = Wgpu::open(&Options::default()).unwrap();
        let up = backend.prepare(codes(1, 2 * INNER, COLUMNS)).unwrap();
        let down = backend.prepare(codes(2, ROWS, INNER)).unwrap();
        let mut x = backend.alloc(2, COLUMNS).unwrap();
        let mut gate_up = backend.alloc(2, 2 * INNER).unwrap();
        let mut gated = backend.alloc(2, INNER).unwrap();
        let mut out = backend.alloc(2, ROWS).unwrap();
        let mut results = |tokens: &[u32]| {
            let row = |&token: &u32| Row { token, sequence: 0, position: token, output: true };
            let rows: Vec<Row> = tokens.iter().map(row).collect();
            let step = backend.step(&rows, |b| {
                b.embed(&mut x, &up);
                b.linear(&mut gate_up, &x, &up);
                b.gated(&mut gated, &gate_up, Gate::Silu);
                b.linear(&mut out, &gated, &down);
                b.discard(&mut gate_up);
            });
            step.unwrap();
            let (mut a, mut b) = (vec![0.0; tokens.len() * INNER], vec![0.0; tokens.len() * ROWS]);
            backend.read(&gated, &mut a).unwrap();
            backend.read(&out, &mut b).unwrap();
            (a, b)
        };
        let (both_gated, both) = results(&[7, 3000]);
        for (at, token) in [7, 3000].into_iter().enumerate() {
            let (gated, one) = results(&[token]);
            assert!(one.iter().chain(&gated).any(|value| *value != 0.0));
            assert_eq!(gated, both_gated[at * INNER..][..INNER], "the gate of token {token}");
            assert_eq!(one, both[at * ROWS..][..ROWS], "token {token}");
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error_in_one_line() {
        if !device() {
            return;
        }
        let mut backend = Wgpu::open(&Options { binding_limit: Some(512), ..Options::default() }).unwrap();
        let refused = |error: trine_backend::Error, words: &[&str]| {
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)) && !text.contains('\n'), "{text}");
        };
        refused(backend.alloc(100, 100).map(|_| ()).unwrap_err(), &["100 x 100", "40000", "512"]);
        refused(backend.alloc(0, 100).map(|_| ()).unwrap_err(), &["0 x 100"]);
        refused(backend.alloc(1 << 17, 1).map(|_| ()).unwrap_err(), &["65535"]);
        refused(backend.prepare(matrix()).map(|_| ()).unwrap_err(), &["256 columns", "512"]);
        let shape = KvShape { layers: 1, sequences: 1, context: 100, kv_heads: 1, head_dim: 64 };
        refused(backend.kv(shape, KvFormat::F16).map(|_| ()).unwrap_err(), &["keys", "context"]);
        let wide = KvShape { head_dim: 320, ..shape };
        refused(backend.kv(wide, KvFormat::F16).map(|_| ()).unwrap_err(), &["320", "192"]);
        refused(backend.step(&[], |_| ()).unwrap_err(), &["rows"]);
        let unknown = Options { device: Some("no such device".into()), ..Options::default() };
        refused(Wgpu::open(&unknown).err().unwrap(), &["no such device", "0 ("]);
    }
}
