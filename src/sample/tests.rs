//! The sampler as a whole: pinned ids, a naive reference, edges.

use std::collections::HashMap;

use proptest::prelude::*;

use super::rng::Rng;
use super::*;

/// Logits from integer arithmetic alone: multiples of 1/256 in [-8, 8), the same everywhere.
fn logits(vocab: usize, row: u64) -> Vec<f32> {
    let mut rng = Rng::new(row ^ 0x0074_7269_6e65);
    (0..vocab).map(|_| (rng.next_u64() >> 52) as f32 / 256.0 - 8.0).collect()
}

fn ids(options: SamplerOptions, vocab: usize, count: u64) -> Vec<u32> {
    let mut sampler = Sampler::new(options, vocab).unwrap();
    let mut next = |row| {
        let id = sampler.sample(&logits(vocab, row)).unwrap();
        sampler.accept(id);
        id
    };
    (0..count).map(&mut next).collect()
}

fn plain(temperature: f32, seed: u64) -> SamplerOptions {
    SamplerOptions { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed, ..Default::default() }
}

/// The contract with those who note down a seed: these ids hold for every version, platform and thread count. A change
/// that fails here breaks it; mend the change, not the ids.
#[test]
fn golden() {
    let seeded = |seed| SamplerOptions { seed, ..Default::default() };
    assert_eq!(ids(seeded(0), 1000, 12), [369, 401, 269, 5, 610, 30, 775, 885, 412, 63, 257, 63], "default, seed 0");
    assert_eq!(
        ids(seeded(42), 1000, 12),
        [878, 362, 976, 661, 861, 560, 153, 730, 345, 959, 575, 831],
        "default, seed 42"
    );
    assert_eq!(
        ids(seeded(u64::MAX), 1000, 12),
        [405, 796, 837, 192, 763, 381, 787, 702, 681, 839, 308, 661],
        "default, the highest seed"
    );
    assert_eq!(ids(plain(1.0, 7), 1000, 12), [96, 188, 735, 427, 973, 473, 698, 398, 981, 79, 86, 176], "no filter");
    let top_p = SamplerOptions { top_p: 0.7, ..plain(1.3, 7) };
    assert_eq!(ids(top_p, 1000, 12), [120, 204, 764, 416, 957, 452, 681, 414, 998, 79, 84, 181], "top-p alone");
    let min_p = SamplerOptions { min_p: 0.02, ..plain(1.3, 7) };
    assert_eq!(ids(min_p, 1000, 12), [88, 185, 735, 441, 972, 477, 700, 382, 981, 79, 91, 170], "min-p alone");
    let penalties = SamplerOptions {
        repeat_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        repeat_last_n: 8,
        logit_bias: vec![(3, 2.5), (5, f32::NEG_INFINITY)],
        top_k: 6,
        ..plain(0.9, 1)
    };
    assert_eq!(
        ids(penalties, 16, 24),
        [8, 10, 4, 14, 3, 9, 15, 11, 0, 2, 8, 12, 6, 3, 1, 13, 4, 11, 9, 0, 3, 14, 12, 6],
        "bias, penalties and top-k over a small vocabulary"
    );
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let of = |seed| ids(plain(1.0, seed), 500, 64);
    assert_eq!(of(5), of(5));
    assert_ne!(of(5), of(6));
}

#[test]
fn greedy_takes_the_best_and_the_lower_id_of_ties() {
    let greedy = |row: &[f32]| Sampler::new(plain(0.0, 1), row.len()).unwrap().sample(row).unwrap();
    assert_eq!(greedy(&[0.0, 2.0, 2.0, 1.0]), 1);
    assert_eq!(greedy(&[-0.0, 0.0]), 0);
    assert_eq!(greedy(&[f32::NAN, f32::NEG_INFINITY, -1e38, f32::NAN]), 2);
    assert_eq!(greedy(&[1e38, f32::INFINITY, f32::INFINITY]), 1);
    assert_eq!(greedy(&[7.0]), 0);
}

#[test]
fn minus_zero_ties_with_zero() {
    let options = SamplerOptions { top_k: 1, ..plain(1.0, 1) };
    assert_eq!(Sampler::new(options, 3).unwrap().sample(&[-1.0, -0.0, 0.0]).unwrap(), 1);
}

#[test]
fn top_p_ends_where_it_is_reached() {
    for (p, kept) in [(0.0, 1), (0.25, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.76, 4)] {
        let mut candidates = Vec::new();
        filter::list_top_k(&mut candidates, &[1.0; 4], 0);
        filter::top_p_min_p(&mut candidates, 1.0, p, 0.0);
        assert_eq!(candidates.len(), kept, "{p}");
    }
}

#[test]
fn a_weight_of_zero_is_never_drawn() {
    let sums = [0.0, 1.0, 1.0, 3.0, 3.0];
    for (target, id) in [(0.0, 1), (0.99, 1), (1.0, 3), (2.99, 3), (3.0, 3)] {
        assert_eq!(place(&sums, target), id, "{target}");
    }
}

#[test]
fn greedy_heeds_bias_and_penalties() {
    let options = SamplerOptions { logit_bias: vec![(0, -1.0), (0, -1.5), (1, f32::NEG_INFINITY)], ..plain(0.0, 1) };
    assert_eq!(Sampler::new(options, 3).unwrap().sample(&[3.0, 9.0, 1.0]).unwrap(), 2);

    let mut sampler = Sampler::new(SamplerOptions { repeat_penalty: 4.0, ..plain(0.0, 1) }, 3).unwrap();
    assert_eq!(sampler.sample(&[3.0, 2.0, 1.0]).unwrap(), 0);
    sampler.accept(0);
    assert_eq!(sampler.sample(&[3.0, 2.0, 1.0]).unwrap(), 1);
}

#[test]
fn nan_and_banned_tokens_are_never_drawn() {
    for filters in [plain(50.0, 3), SamplerOptions { temperature: 50.0, top_k: 3, min_p: 0.0, ..Default::default() }] {
        let options = SamplerOptions { logit_bias: vec![(4, f32::NEG_INFINITY)], ..filters };
        let mut sampler = Sampler::new(options, 6).unwrap();
        let row = [f32::NAN, 1.0, f32::NEG_INFINITY, 1.5, f32::INFINITY, -2.0];
        let drawn: Vec<u32> = (0..400).map(|_| sampler.sample(&row).unwrap()).collect();
        assert!([1, 3].iter().all(|id| drawn.contains(id)));
        assert!(drawn.iter().all(|id| [1, 3, 5].contains(id)), "{drawn:?}");
    }
}

#[test]
fn extreme_logits_and_temperatures_draw_the_best() {
    for temperature in [1e-45, 1e-3, 1.0] {
        for row in [[f32::MIN, f32::MAX, 0.0], [0.0, f32::INFINITY, f32::MAX], [-1e30, -1e29, f32::MIN]] {
            let mut sampler = Sampler::new(plain(temperature, 9), 3).unwrap();
            assert!((0..50).all(|_| sampler.sample(&row).unwrap() == 1), "{temperature} {row:?}");
        }
    }
    let mut hot = Sampler::new(plain(f32::MAX, 9), 3).unwrap();
    let drawn: Vec<u32> = (0..300).map(|_| hot.sample(&[9.0, 0.0, -9.0]).unwrap()).collect();
    assert!((0..3).all(|id| drawn.iter().filter(|&&d| d == id).count() > 60));
}

#[test]
fn rows_that_leave_no_choice_are_errors() {
    let line = |options, row: &[f32], vocab| {
        let error = Sampler::new(options, vocab).unwrap().sample(row).unwrap_err();
        assert_eq!(error.exit_code(), 1);
        error.to_string()
    };
    for temperature in [0.0, 0.8] {
        let nan = line(plain(temperature, 1), &[f32::NAN, f32::NAN, f32::NEG_INFINITY], 3);
        assert!(nan.contains("of the model's 3 logits 2 are NaN and 1 are -inf"), "{nan}");
        let banned = SamplerOptions { logit_bias: vec![(0, f32::NEG_INFINITY)], ..plain(temperature, 1) };
        assert!(line(banned, &[1.0], 1).starts_with("logit-bias and penalties leave none"));
        assert_eq!(line(plain(temperature, 1), &[1.0; 4], 3), "4 logits to sample from: the vocabulary has 3 tokens");
    }
}

#[test]
fn an_error_draws_nothing() {
    let row = logits(50, 1);
    let (mut a, mut b) = (Sampler::new(plain(1.0, 4), 50).unwrap(), Sampler::new(plain(1.0, 4), 50).unwrap());
    assert!(a.sample(&[f32::NAN; 50]).is_err() && a.sample(&[]).is_err());
    let many = |sampler: &mut Sampler| (0..20).map(|_| sampler.sample(&row).unwrap()).collect::<Vec<_>>();
    assert_eq!(many(&mut a), many(&mut b));
}

#[test]
fn bad_vocabularies_and_options_are_refused() {
    assert!(Sampler::new(SamplerOptions::default(), 0).is_err());
    #[cfg(target_pointer_width = "64")]
    assert!(Sampler::new(SamplerOptions::default(), usize::MAX).unwrap_err().to_string().contains("vocabulary"));
    assert!(Sampler::new(SamplerOptions { top_p: f32::NAN, ..Default::default() }, 5).is_err());
    let outside = SamplerOptions { logit_bias: vec![(4, 1.0), (5, 1.0)], ..Default::default() };
    let line = Sampler::new(outside, 5).unwrap_err().to_string();
    assert_eq!(line, "logit-bias of token 5: no such token, use an id from 0 to 4");
}

#[test]
fn draws_follow_the_softmax_at_the_temperature() {
    // Weights 1, 2, 4 and 8 at temperature 2.
    let row: Vec<f32> = (0..4).map(|i| 2.0 * std::f32::consts::LN_2 * i as f32).collect();
    let mut sampler = Sampler::new(plain(2.0, 11), 4).unwrap();
    let mut seen = [0f64; 4];
    for _ in 0..60_000 {
        seen[sampler.sample(&row).unwrap() as usize] += 1.0;
    }
    for (id, n) in seen.iter().enumerate() {
        let p = f64::from(1 << id) / 15.0;
        // Five standard deviations.
        assert!((n - 60_000.0 * p).abs() < 5.0 * (60_000.0 * p * (1.0 - p)).sqrt(), "{id}: {n}");
    }
}

#[test]
fn sampling_reuses_its_buffers() {
    let buffers = |s: &Sampler| {
        let places = (s.logits.as_ptr(), s.candidates.as_ptr(), s.sums.as_ptr());
        (places, s.logits.capacity(), s.candidates.capacity(), s.sums.capacity())
    };
    let filtered = SamplerOptions { top_p: 0.9, min_p: 0.01, ..plain(1.0, 1) };
    for base in [plain(1.0, 1), plain(0.0, 1), filtered, SamplerOptions::default()] {
        let mut sampler = Sampler::new(SamplerOptions { repeat_penalty: 1.1, repeat_last_n: 16, ..base }, 900).unwrap();
        let before = buffers(&sampler);
        // Rising logits make top-k gather the most.
        let rising: Vec<f32> = (0..900).map(|i| i as f32 * 0.01).collect();
        for row in 0..50 {
            let id = sampler.sample(&logits(900, row)).unwrap();
            sampler.accept(id);
            sampler.sample(&rising).unwrap();
        }
        assert_eq!(buffers(&sampler), before);
    }
}

/// The order of the module's documentation, each step spelled out over the whole row and fully sorted. Gives the id.
fn reference(options: &SamplerOptions, accepted: &[u32], row: &[f32], uniform: f64) -> u32 {
    let mut row = row.to_vec();
    for &(id, bias) in &options.logit_bias {
        row[id as usize] += bias;
    }
    let mut counts = HashMap::new();
    for &id in accepted.iter().rev().take(options.repeat_last_n) {
        *counts.entry(id).or_insert(0u32) += 1;
    }
    for (id, count) in counts {
        let logit = &mut row[id as usize];
        *logit = if *logit > 0.0 { *logit / options.repeat_penalty } else { *logit * options.repeat_penalty };
        *logit -= count as f32 * options.frequency_penalty + options.presence_penalty;
    }
    let mut left: Vec<(usize, f32)> = row.into_iter().enumerate().filter(|(_, l)| *l > f32::NEG_INFINITY).collect();
    let by_id = left.clone();
    left.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    let max = left[0].1;
    if options.temperature == 0.0 {
        return left[0].0 as u32;
    }
    let weight = |logit: f32, temperature: f32| math::exp((f64::from(logit) - f64::from(max)) / f64::from(temperature));
    let cut = options.top_k > 0 && options.top_k < left.len();
    left.truncate(if cut { options.top_k } else { left.len() });
    if options.top_p < 1.0 {
        let total: f64 = if cut { &left } else { &by_id }.iter().map(|c| weight(c.1, 1.0)).sum();
        let mut mass = 0.0;
        let mut keep = 0;
        while keep < left.len() && (keep == 0 || mass < f64::from(options.top_p) * total) {
            mass += weight(left[keep].1, 1.0);
            keep += 1;
        }
        left.truncate(keep);
    }
    left.retain(|c| weight(c.1, 1.0) >= f64::from(options.min_p));
    left.sort_by_key(|c| c.0);
    let total: f64 = left.iter().map(|c| weight(c.1, options.temperature)).sum();
    let mut sum = 0.0;
    for &(id, logit) in &left {
        sum += weight(logit, options.temperature);
        if sum > uniform * total {
            return id as u32;
        }
    }
    left.last().unwrap().0 as u32
}

fn any_options(vocab: u32) -> impl Strategy<Value = SamplerOptions> {
    let filters = (
        prop_oneof![Just(0.0f32), 0.05f32..3.0],
        prop_oneof![Just(0usize), 1usize..12, Just(usize::MAX)],
        prop_oneof![Just(1.0f32), 0.0f32..1.0],
        prop_oneof![Just(0.0f32), Just(1.0f32), 0.0f32..0.3],
    );
    let penalties = (prop_oneof![Just(1.0f32), 0.5f32..2.0], 0usize..12, -1.0f32..1.0, -1.0f32..1.0);
    let bias = prop_oneof![3 => -3.0f32..3.0, 1 => Just(f32::NEG_INFINITY)];
    // Token 0 stays free, so that something is always possible.
    let biases = proptest::collection::vec((1..vocab, bias), 0..4);
    (filters, penalties, biases, any::<u64>()).prop_map(|(filters, penalties, logit_bias, seed)| SamplerOptions {
        temperature: filters.0,
        top_k: filters.1,
        top_p: filters.2,
        min_p: filters.3,
        repeat_penalty: penalties.0,
        repeat_last_n: penalties.1,
        presence_penalty: penalties.2,
        frequency_penalty: penalties.3,
        logit_bias,
        seed,
    })
}

/// Rows with many ties, some impossible tokens, and sizes past the first piece that top-p ranks.
fn any_row() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => (-12i8..12).prop_map(|x| f32::from(x) * 0.5),
        8 => -6.0f32..6.0,
        1 => Just(f32::NAN),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(-0.0f32),
    ];
    prop_oneof![3 => proptest::collection::vec(logit.clone(), 8..30), 1 => proptest::collection::vec(logit, 300..700)]
        .prop_map(|mut row| {
            row[0] = 0.25;
            row
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_sampler_agrees_with_the_reference(
        options in any_options(8), row in any_row(), prompt in proptest::collection::vec(0u32..8, 0..20)
    ) {
        let mut sampler = Sampler::new(options.clone(), row.len()).unwrap();
        prompt.iter().for_each(|&id| sampler.accept(id));
        let mut accepted = prompt;
        let mut rng = Rng::new(options.seed);
        for _ in 0..6 {
            let uniform = rng.uniform();
            let id = sampler.sample(&row).unwrap();
            prop_assert_eq!(id, reference(&options, &accepted, &row, uniform));
            sampler.accept(id);
            accepted.push(id);
        }
    }

    #[test]
    fn filters_keep_what_their_definitions_say(row in any_row(), k in 1usize..50, p in 0.0f32..1.0, min_p in 0.0f32..1.0) {
        let mut all = Vec::new();
        let max = filter::list_top_k(&mut all, &row, 0).unwrap().logit;
        let mut ranked = all.clone();
        ranked.sort_by(filter::best_first);

        let mut top = Vec::new();
        prop_assert_eq!(filter::list_top_k(&mut top, &row, k), Some(ranked[0]));
        if k < all.len() {
            prop_assert_eq!(&top[..], &ranked[..k]);
        } else {
            prop_assert_eq!(&top, &all);
        }

        let total: f64 = all.iter().map(|c| c.weight(max, 1.0)).sum();
        let mass = |n: usize| ranked[..n].iter().map(|c| c.weight(max, 1.0)).sum::<f64>();
        let mut nucleus = all.clone();
        filter::top_p_min_p(&mut nucleus, max, p, 0.0);
        let kept = nucleus.len();
        prop_assert_eq!(&nucleus[..], &ranked[..kept]);
        prop_assert!(mass(kept) >= f64::from(p) * total && (kept == 1 || mass(kept - 1) < f64::from(p) * total));

        let mut likely = all.clone();
        filter::top_p_min_p(&mut likely, max, 1.0, min_p);
        all.retain(|c| c.weight(max, 1.0) >= f64::from(min_p));
        prop_assert_eq!(likely, all);
    }
}
