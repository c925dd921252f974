//! Sessions on the demo model: chunking, prefix reuse, and how generations end.

use std::ops::ControlFlow;

use trine::engine::{Engine, EngineOptions};
use trine::files::ModelFiles;
use trine::sample::{Sampler, SamplerOptions};
use trine::session::{End, Session};
use trine_backend::KvFormat;
use trine_cpu_tsar::{CpuTsar, Options};

fn session(threads: usize, options: &EngineOptions) -> Session<CpuTsar> {
    let files = ModelFiles::demo().unwrap();
    let device = Options { threads: Some(threads), ..Options::default() };
    Session::new(Engine::load(&device, &files, options, &mut |_| {}).unwrap())
}

/// Token ids that are spread over the vocabulary, BOS first.
fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| if i == 0 { 1 } else { 3 + i * 2_654_435 % 4093 }).collect()
}

fn greedy() -> Sampler {
    Sampler::new(SamplerOptions { temperature: 0.0, ..SamplerOptions::default() }, 4096).unwrap()
}

fn generate(session: &mut Session<CpuTsar>, limit: usize) -> (Vec<u32>, End) {
    let mut tokens = Vec::new();
    let end = session.generate(&mut greedy(), Some(limit), true, |token| {
        tokens.push(token);
        Ok(ControlFlow::Continue(()))
    });
    (tokens, end.unwrap())
}

#[test]
fn logits_do_not_depend_on_batch_size_or_threads() {
    let prompt = prompt(530);
    for kv in [KvFormat::F32, KvFormat::F16, KvFormat::Int8] {
        let mut expected: Option<Vec<f32>> = None;
        for (batch, threads) in [(512, 1), (512, 2), (64, 2), (7, 2), (1, 1)] {
            let mut session = session(threads, &EngineOptions { batch, kv, ..EngineOptions::default() });
            assert_eq!(session.prefill(&prompt, || true).unwrap(), Some(530));
            let expected = expected.get_or_insert_with(|| session.logits().to_vec());
            assert!(session.logits() == expected, "{kv:?}, batch {batch}, {threads} threads");
        }
    }
}

#[test]
fn a_common_beginning_is_reused_and_changes_nothing() {
    let mut fresh = session(1, &EngineOptions::default());
    let mut used = session(1, &EngineOptions::default());
    let (long, mut other) = (prompt(100), prompt(60));
    other.extend([7, 8, 9]);
    used.prefill(&long, || true).unwrap();
    generate(&mut used, 5);
    assert_eq!(used.prefill(&other, || true).unwrap(), Some(3));
    assert_eq!(fresh.prefill(&other, || true).unwrap(), Some(63));
    assert!(used.logits() == fresh.logits());
    // The same prompt again: nothing to compute while the logits are there, one token after a truncation.
    assert_eq!(used.prefill(&other, || true).unwrap(), Some(0));
    used.truncate(40);
    assert_eq!(used.prefill(&other[..40], || true).unwrap(), Some(1));
    fresh.prefill(&other[..40], || true).unwrap();
    assert!(used.logits() == fresh.logits());
}

#[test]
fn prefill_stops_between_steps() {
    let mut session = session(1, &EngineOptions { batch: 16, ..EngineOptions::default() });
    let mut steps = 0;
    let stopped = session.prefill(&prompt(100), || {
        steps += 1;
        steps <= 2
    });
    assert_eq!((stopped.unwrap(), session.tokens().len()), (None, 32));
    let error = session.generate(&mut greedy(), None, true, |_| Ok(ControlFlow::Continue(()))).unwrap_err();
    assert!(error.to_string().contains("prefill"), "{error}");
    // What was done is kept.
    assert_eq!(session.prefill(&prompt(100), || true).unwrap(), Some(68));
}

#[test]
fn generations_end_for_the_reason_they_say() {
    let options = EngineOptions { context: Some(24), ..EngineOptions::default() };
    let mut session = session(1, &options);
    session.prefill(&prompt(20), || true).unwrap();
    assert_eq!(generate(&mut session, 0), (vec![], End::Limit));
    assert_eq!(generate(&mut session, 2).1, End::Limit);
    // Places for the 20 tokens of the prompt and 4 more; the token after the last place needs none.
    session.prefill(&prompt(20), || true).unwrap();
    let (tokens, end) = generate(&mut session, 100);
    assert_eq!((tokens.len(), end), (5, End::ContextFull));
    session.prefill(&prompt(20), || true).unwrap();
    let stopped = session.generate(&mut greedy(), None, true, |_| Ok(ControlFlow::Break(End::Stopped)));
    assert_eq!(stopped.unwrap(), End::Stopped);
    // A sampler that is biased to the end token.
    let biased = SamplerOptions { temperature: 0.0, logit_bias: vec![(2, 1e9)], ..SamplerOptions::default() };
    session.prefill(&prompt(20), || true).unwrap();
    let end = session.generate(&mut Sampler::new(biased, 4096).unwrap(), None, false, |_| panic!("an end token"));
    assert_eq!(end.unwrap(), End::EndToken);
}

#[test]
fn greedy_tokens_are_the_samplers_and_leave_the_logits_behind() {
    let (mut shortcut, mut sampled) = (session(1, &EngineOptions::default()), session(1, &EngineOptions::default()));
    let prompt = prompt(20);
    shortcut.prefill(&prompt, || true).unwrap();
    sampled.prefill(&prompt, || true).unwrap();
    let (tokens, _) = generate(&mut shortcut, 12);
    // A penalty of 1 changes nothing, and a bias of 0 neither, but the sampler looks at the logits then.
    let options = SamplerOptions { temperature: 0.0, logit_bias: vec![(5, 0.0)], ..SamplerOptions::default() };
    assert!(!options.takes_the_largest());
    let mut sampler = Sampler::new(options, 4096).unwrap();
    let mut expected = Vec::new();
    let end = sampled.generate(&mut sampler, Some(12), true, |token| {
        expected.push(token);
        Ok(ControlFlow::Continue(()))
    });
    assert_eq!((tokens, End::Limit), (expected, end.unwrap()));
    assert!(shortcut.tokens() == sampled.tokens() && shortcut.logits() == sampled.logits());
    // And on it goes, with either.
    assert_eq!(generate(&mut shortcut, 3), generate(&mut sampled, 3));
    let next = sampled.follow(7).unwrap();
    shortcut.advance(7).unwrap();
    assert_eq!(next, trine_backend::largest(shortcut.logits()));
}

#[test]
fn prompts_that_do_not_fit_are_refused() {
    let mut session = session(1, &EngineOptions { context: Some(24), ..EngineOptions::default() });
    assert_eq!(session.prefill(&[], || true).unwrap_err().exit_code(), 2);
    let error = session.prefill(&prompt(25), || true).unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert!(error.to_string().contains("25 tokens and the context 24"), "{error}");
    let error = session.prefill(&[1, 4096], || true).unwrap_err();
    assert!(error.to_string().contains("token 4096"), "{error}");
    let too_long = EngineOptions { context: Some(1025), ..EngineOptions::default() };
    let files = ModelFiles::demo().unwrap();
    let error = Engine::<CpuTsar>::load(&Options::default(), &files, &too_long, &mut |_| {}).err().unwrap();
    assert_eq!((error.exit_code(), error.to_string().contains("1024 positions")), (2, true), "{error}");
}
