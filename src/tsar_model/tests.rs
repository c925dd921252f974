use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;

const AP2: Engine = Engine::TSar(Dataflow::ActivationPersistent, Encoding::C2);
const AP4: Engine = Engine::TSar(Dataflow::ActivationPersistent, Encoding::C4);
const OP2: Engine = Engine::TSar(Dataflow::OutputPersistent, Encoding::C2);
const OP4: Engine = Engine::TSar(Dataflow::OutputPersistent, Encoding::C4);

fn prefill(tokens: u32) -> Phase {
    Phase::Prefill(NonZeroU32::new(tokens).unwrap())
}

fn decode(tokens: u32) -> Phase {
    Phase::Decode(NonZeroU32::new(tokens).unwrap())
}

fn bitnet() -> Shapes {
    Shapes::built_in(Shapes::DEFAULT).unwrap()
}

fn one(outputs: u64, inputs: u64) -> Shapes {
    Shapes::new("one", 1, vec![Matrix { name: "one", outputs, inputs }])
}

/// `value` rounded to the precision of `expected`, to half a unit of its last place.
fn near(value: f64, expected: f64, half_unit: f64) {
    assert!((value - expected).abs() <= half_unit, "{value} is not {expected}");
}

fn figure(report: &Report, engine: Engine, quantity: &str) -> Figure {
    let mut figures = report.figures().into_iter();
    figures.find(|figure| figure.engine == engine && figure.quantity == quantity).unwrap()
}

#[test]
fn table_requests_are_the_published_share() {
    let counts = Engine::Tl2.count(&bitnet(), prefill(128)).unwrap();
    let tables = counts.traffic(Stream::Tables).requests;
    // By hand: five matrices of ⌈2560/3⌉ = 854 indices a row, q and o of 2560 rows, k and v of 640, gate and up of
    // 6912, and down of 2560 rows of 2304.
    assert_eq!(tables, 128 * 30 * ((2 * 2560 + 2 * 640 + 2 * 6912) * 854 + 2560 * 2304));
    near(tables as f64 / 1e9, 88.97, 0.005);
    near(tables as f64 / 101.59e9 * 100.0, 87.58, 0.005);
    near(counts.requests() as f64 / 101.59e9, 1.0006, 0.00005);

    let report = Report::new(&bitnet(), prefill(128)).unwrap();
    let share = figure(&report, Engine::Tl2, "table_requests_percent_of_published");
    assert_eq!((share.source, share.published), (Source::Published, Some(87.6)));
    near(share.number.value(), 87.58, 0.005);
    near(share.deviation().unwrap(), 0.0, 0.05);
}

#[test]
fn decode_is_fitted_to_the_published_total() {
    let counts = Engine::Tl2.count(&bitnet(), decode(1)).unwrap();
    near(counts.traffic(Stream::Tables).requests as f64 / 949.3e6 * 100.0, 73.2, 0.05);
    near(counts.requests() as f64 / 949.3e6, 1.0, 0.0005);
}

#[test]
fn tsar_requests_of_the_two_dataflows() {
    let token = |engine: Engine| engine.count(&bitnet(), decode(1)).unwrap();
    near(token(AP2).requests() as f64 / 1e6, 49.0, 0.05);
    near(token(OP2).requests() as f64 / 1e6, 32.6, 0.05);
    near(AP2.count(&bitnet(), prefill(128)).unwrap().requests() as f64 / 1e9, 6.27, 0.005);
    for engine in [AP2, AP4, OP2, OP4] {
        assert_eq!(token(engine).traffic(Stream::Tables), Traffic::default(), "its tables are in registers");
    }
    // 2084044800 weights in tiles of 8 by 16: what is published are 3.58 and 3.85 requests for each.
    assert_eq!(token(AP2).tgemvs, 2_084_044_800 / 128);
    near(7.45e9 / 128.0 / token(AP2).tgemvs as f64, 3.58, 0.01);
    near(62.6e6 / token(AP2).tgemvs as f64, 3.85, 0.01);

    let report = Report::new(&bitnet(), prefill(128)).unwrap();
    let requests = figure(&report, AP2, "requests");
    assert_eq!((requests.source, requests.published), (Source::Derived, Some(7.45e9)));
    near(requests.deviation().unwrap(), -16.0, 0.5);
    let deviation = figure(&Report::new(&bitnet(), decode(1)).unwrap(), AP2, "requests").deviation();
    near(deviation.unwrap(), -22.0, 0.5);
    let ratio = figure(&report, AP2, "requests_ratio");
    assert_eq!(ratio.source, Source::Fitted);
    near(ratio.published.unwrap(), 13.6, 0.05);
}

#[test]
fn products_per_micro_op() {
    let ratio = |engine: Engine| {
        let counts = engine.count(&bitnet(), prefill(128)).unwrap();
        counts.macs as f64 / counts.micro_ops as f64
    };
    near(ratio(AP2), 32.0, 0.5);
    near(ratio(AP4), 63.0, 0.5);
    near(ratio(OP2), 21.33, 0.005);
    near(ratio(OP4), 21.33, 0.005);
    // 2 operations for ⌈K/3⌉ of K.
    near(ratio(Engine::Tl2), 1.5, 0.005);
}

#[test]
fn encodings_fill_the_registers_that_they_have() {
    let sizes = |encoding: Encoding| (encoding.inputs(), encoding.table_registers(), encoding.weight_registers());
    assert_eq!(sizes(Encoding::C2), (8, 2, 1));
    assert_eq!(sizes(Encoding::C4), (16, 8, 2));
}

#[test]
fn tiles_and_indices_are_rounded_up() {
    // 17 outputs of 17 inputs: 6 indices a row; 3 by 2 tiles of 8 by 16, 2 by 2 of 16 by 16.
    let shapes = one(17, 17);
    let table = Engine::Tl2.count(&shapes, prefill(1)).unwrap();
    assert_eq!((table.macs, table.lookups), (289, 17 * 6));
    assert_eq!(table.traffic(Stream::Tables), Traffic { requests: 102, bytes: 204 });
    assert_eq!(table.traffic(Stream::Rest), Traffic { requests: 14 + 34, bytes: 64 + 17 + 34 });

    let ap = AP2.count(&shapes, decode(1)).unwrap();
    assert_eq!((ap.macs, ap.tluts, ap.tgemvs, ap.lookups, ap.micro_ops), (289, 3, 6, 6 * 128, 6 * 4 + 3 * 2));
    assert_eq!(ap.traffic(Stream::Weights), Traffic { requests: 6, bytes: 192 });
    assert_eq!(ap.traffic(Stream::Activations), Traffic { requests: 3, bytes: 24 });
    assert_eq!(ap.traffic(Stream::AccumulatorLoads), Traffic { requests: 6, bytes: 192 });
    assert_eq!(ap.traffic(Stream::AccumulatorStores), Traffic { requests: 8, bytes: 256 });
    assert_eq!((ap.requests(), ap.bytes()), (23, 664));

    let op = OP4.count(&shapes, decode(1)).unwrap();
    assert_eq!((op.tluts, op.tgemvs, op.lookups, op.micro_ops), (4, 4, 4 * 128, 4 * 4 + 4 * 8));
    assert_eq!(op.traffic(Stream::Weights), Traffic { requests: 8, bytes: 256 });
    assert_eq!(op.traffic(Stream::Activations), Traffic { requests: 4, bytes: 64 });
    assert_eq!(op.traffic(Stream::AccumulatorLoads), Traffic::default());
    assert_eq!(op.traffic(Stream::AccumulatorStores), Traffic { requests: 2, bytes: 64 });

    // The smallest there is fills a tile as the largest that fits does, products aside.
    for engine in [AP4, OP4] {
        let (least, most) =
            (engine.count(&one(1, 1), decode(1)).unwrap(), engine.count(&one(16, 16), decode(1)).unwrap());
        assert_eq!((least.macs, most.macs), (1, 256));
        assert_eq!(Counts { macs: 256, ..least }, most);
    }
}

#[test]
fn known_shapes_have_their_models_parameters() {
    let parameters = |name: &str| {
        let shapes = Shapes::built_in(name).unwrap();
        let layer: u64 = shapes.matrices().iter().map(|matrix| matrix.outputs * matrix.inputs).sum();
        layer * shapes.layers()
    };
    // Ternary ones: the models' parameters less embedding, head and norms.
    let expected = [
        ("bitnet-2b", 2.084e9),
        ("bitnet-large", 0.679e9),
        ("bitnet-3b", 3.221e9),
        ("llama-8b", 6.979e9),
        ("falcon3-10b", 9.500e9),
        ("bitnet-125m", 0.104e9),
        ("bitnet-100b", 99.958e9),
    ];
    assert!(expected.iter().all(|(name, _)| Shapes::names().any(|known| known == *name)));
    assert!(!Shapes::names().any(|name| name.starts_with("qwen")), "it is not ternary");
    for (name, expected) in expected {
        near(parameters(name) as f64 / 1e9, expected / 1e9, 0.001);
    }
    assert_eq!((Shapes::built_in("bitnet"), Shapes::built_in("qwen2-7b")), (None, None));
}

#[test]
fn only_what_was_measured_has_published_figures() {
    let (bitnet, llama) = (bitnet(), Shapes::built_in("llama-8b").unwrap());
    assert!(Published::find(&bitnet, prefill(128)).is_some() && Published::find(&bitnet, decode(1)).is_some());
    for phase in [prefill(127), prefill(1), decode(2), decode(128)] {
        assert_eq!(Published::find(&bitnet, phase), None);
    }
    assert_eq!(Published::find(&llama, prefill(128)), None);
    let renamed = Shapes::new("mine", 30, bitnet.matrices().to_vec());
    assert!(Published::find(&renamed, decode(1)).is_some(), "the shape matters, not its name");
    assert_eq!(Published::find(&Shapes::new("mine", 29, bitnet.matrices().to_vec()), decode(1)), None);
}

#[test]
fn figures_are_complete_and_finite() {
    for phase in [prefill(128), decode(7)] {
        let report = Report::new(&bitnet(), phase).unwrap();
        let figures = report.figures();
        for (engine, counts) in &report.engines {
            let of = |end: &str| {
                let parts = figures.iter().filter(|figure| figure.engine == *engine && figure.quantity.ends_with(end));
                parts.map(|figure| figure.number.value()).sum::<f64>()
            };
            assert_eq!(of("_requests"), counts.requests() as f64);
            assert_eq!(of("_bytes"), counts.bytes() as f64);
        }
        assert!(figures.iter().all(|figure| figure.number.value().is_finite() && figure.number.value() > 0.0));
        let fitted = figures.iter().filter(|figure| figure.source == Source::Fitted);
        let fitted: std::collections::BTreeSet<_> = fitted.map(|figure| figure.quantity.as_str()).collect();
        assert!(fitted.iter().eq(&["other_requests", "requests", "requests_ratio", "table_requests_percent"]));
    }
    let empty = Report::new(&Shapes::new("empty", 0, vec![]), decode(1)).unwrap();
    assert!(empty.figures().iter().all(|figure| figure.number == Number::Count(0)), "nothing is divided by zero");
}

#[test]
fn counts_over_64_bits_are_refused() {
    let error = |shapes: &Shapes| Report::new(shapes, prefill(u32::MAX)).unwrap_err().to_string();
    assert_eq!(error(&one(u64::MAX, 1)), "one with 4294967295 tokens: counts are over 64 bits; use fewer tokens");
    for shapes in
        [one(1, u64::MAX), one(1 << 20, 1 << 20), Shapes::new("deep", u64::MAX, vec![one(1, 1).matrices()[0]])]
    {
        assert!(error(&shapes).contains("over 64 bits"));
    }
    // 2^54 tiles of 64 bytes of weights, 32 of sums to read and 64 to write: in 7 tokens each kind fits, and so do the
    // 128 lookups of each, but not the bytes together.
    let wide = one(1 << 58, 1);
    assert!(AP4.count(&wide, decode(6)).is_ok());
    assert!(AP4.count(&wide, decode(7)).is_err());
}

proptest! {
    #[test]
    fn tokens_and_layers_scale_and_matrices_add(
        sizes in prop::collection::vec((1u64..5000, 1u64..5000), 1..5), layers in 1u64..50, tokens in 1u32..300,
    ) {
        let matrices: Vec<_> = sizes.iter().map(|&(outputs, inputs)| Matrix { name: "any", outputs, inputs }).collect();
        for phase in [prefill, decode] {
            for engine in Engine::ALL {
                let all = engine.count(&Shapes::new("all", layers, matrices.clone()), phase(tokens)).unwrap();
                let mut sum = Counts::default();
                for matrix in &matrices {
                    let single = engine.count(&Shapes::new("one", 1, vec![*matrix]), phase(1)).unwrap();
                    for _ in 0..layers {
                        sum = sum.checked_add(single).unwrap();
                    }
                }
                prop_assert_eq!(all, sum.checked_mul(tokens.into()).unwrap());
            }
        }
    }

    #[test]
    fn fused_matrices_have_the_same_tables_and_tiles(rows in prop::collection::vec(1u64..300, 1..5), inputs in 1u64..5000) {
        // Rows in whole tiles, as heads are.
        let matrix = |outputs| Matrix { name: "any", outputs, inputs };
        let split = Shapes::new("split", 1, rows.iter().map(|rows| matrix(rows * 16)).collect());
        let fused = Shapes::new("fused", 1, vec![matrix(rows.iter().sum::<u64>() * 16)]);
        for engine in Engine::ALL {
            let (split, fused) = (engine.count(&split, decode(1)).unwrap(), engine.count(&fused, decode(1)).unwrap());
            prop_assert_eq!(split.tgemvs, fused.tgemvs);
            for stream in [Stream::Tables, Stream::Weights, Stream::AccumulatorLoads, Stream::AccumulatorStores] {
                prop_assert_eq!(split.traffic(stream), fused.traffic(stream));
            }
        }
    }
}
