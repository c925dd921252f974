//! The scheduler on the demo model, without HTTP and round by round.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc::error::TryRecvError;

use super::super::grammar::{Grammars, Part, Shape};
use super::super::job::{Event, Job, JobOptions, Outcome, Ticket};
use super::super::queue::Refusal;
use super::*;
use crate::backend::{Active, Compiled, Settings};
use crate::engine::EngineOptions;
use crate::files::ModelFiles;
use crate::generation::{TextOptions, generate};
use crate::sample::SamplerOptions;
use crate::session::{End, Session};
use crate::tokens::{Special, Tokenizer};

const LONG: &str =
    "The old miller had three sons, a mill, a donkey and a cat; the sons had to grind, the donkey to carry. ";

struct Bench {
    scheduler: Scheduler<Active>,
    tokenizer: Arc<Tokenizer>,
    queue: Arc<Queue>,
    vocab: usize,
}

fn engine(options: EngineOptions) -> (Engine<Active>, Tokenizer) {
    let files = ModelFiles::demo().unwrap();
    let device = Active::options(&Settings { threads: Some(1), ..Settings::default() }).unwrap();
    let engine = Engine::load(&device, &files, &options, &mut |_| {}).unwrap();
    (engine, files.tokenizer.unwrap())
}

impl Bench {
    fn new(slots: usize, batch: usize) -> Self {
        Self::with(EngineOptions { sequences: slots, outputs: slots, batch, ..EngineOptions::default() }, 100)
    }

    fn with(options: EngineOptions, limit: usize) -> Self {
        let (engine, tokenizer) = engine(options);
        let (queue, metrics, vocab) = (Arc::new(Queue::new(limit)), Arc::default(), engine.config().vocab);
        let scheduler = Scheduler::new(engine, queue.clone(), metrics).unwrap();
        Bench { scheduler, tokenizer: Arc::new(tokenizer), queue, vocab }
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, Special::PROMPT).unwrap()
    }

    fn push(&self, prompt: &str, text: &TextOptions, options: JobOptions) -> Ticket {
        let (job, ticket) = self.job(self.ids(prompt), text, options);
        self.queue.push(job).unwrap();
        ticket
    }

    fn job(&self, prompt: Vec<u32>, text: &TextOptions, options: JobOptions) -> (Job, Ticket) {
        Job::new(self.tokenizer.clone(), prompt, text, self.vocab, options).unwrap()
    }

    /// Rounds until there is nothing to do, of which there are few enough, with readers that read.
    fn finish(&mut self, tickets: &mut [Ticket]) -> Vec<(String, std::result::Result<Outcome, Failure>)> {
        let mut all: Vec<_> = tickets.iter().map(|_| (String::new(), None)).collect();
        for _ in 0..5000 {
            let tick = self.scheduler.tick();
            for (ticket, (text, outcome)) in tickets.iter_mut().zip(&mut all) {
                let (more, ended) = read(ticket);
                text.push_str(&more);
                *outcome = outcome.take().or(ended);
            }
            if tick == Tick::Idle {
                return all.into_iter().map(|(text, outcome)| (text, outcome.expect("it has ended"))).collect();
            }
        }
        panic!("it does not end");
    }

    /// One job to its end.
    fn one(&mut self, prompt: &str, text: &TextOptions, options: JobOptions) -> (String, Outcome) {
        let mut tickets = [self.push(prompt, text, options)];
        let (text, outcome) = self.finish(&mut tickets).remove(0);
        (text, outcome.expect("it went well"))
    }
}

fn text(seed: u64, limit: usize) -> TextOptions {
    let sampling = SamplerOptions { seed, ..SamplerOptions::default() };
    TextOptions { limit: Some(limit), ignore_end: true, sampling, continues: true, ..TextOptions::default() }
}

/// The text so far, and the outcome if there is one.
fn read(ticket: &mut Ticket) -> (String, Option<std::result::Result<Outcome, Failure>>) {
    let mut text = String::new();
    loop {
        match ticket.events.try_recv() {
            Ok(Event::Started) => {}
            Ok(Event::Piece(piece)) => text += &piece.text,
            Err(TryRecvError::Empty) => return (text, None),
            Err(TryRecvError::Disconnected) => break,
        }
    }
    if ticket.done.is_terminated() {
        return (text, None);
    }
    let outcome = ticket.done.try_recv().expect("events end with an outcome");
    if let Ok(outcome) = &outcome {
        text += &outcome.rest.text;
    }
    (text, Some(outcome))
}

fn done(ticket: &mut Ticket) -> (String, Outcome) {
    let (text, outcome) = read(ticket);
    (text, outcome.expect("it has ended").expect("it went well"))
}

/// Jobs of all kinds: prompts short and long, greedy and drawn, with stops, penalties and biases.
fn requests() -> Vec<(String, TextOptions)> {
    let mut requests: Vec<_> = (0..6).map(|i| (format!("Once upon a time there was a {i}"), text(i, 30))).collect();
    requests.push((LONG.repeat(9), text(7, 40)));
    requests.push(("The king said".into(), {
        let sampling = SamplerOptions { temperature: 0.0, repeat_penalty: 1.3, ..SamplerOptions::default() };
        TextOptions { sampling, ..text(0, 60) }
    }));
    requests.push((LONG.repeat(5), TextOptions { stop: vec!["the".into(), ".".into()], ..text(9, 50) }));
    requests.push(("A fox".into(), {
        let sampling = SamplerOptions {
            seed: 10,
            temperature: 1.5,
            top_k: 0,
            presence_penalty: 0.5,
            logit_bias: vec![(300, 4.0), (301, f32::NEG_INFINITY)],
            ..SamplerOptions::default()
        };
        TextOptions { sampling, ignore_end: false, ..text(0, 80) }
    }));
    requests
}

/// What one user alone gets.
fn alone(requests: &[(String, TextOptions)]) -> Vec<(String, End, usize)> {
    let (engine, tokenizer) = engine(EngineOptions::default());
    let mut session = Session::new(engine);
    let mut one = |(prompt, options): &(String, TextOptions)| {
        let (ids, mut text) = (tokenizer.encode(prompt, Special::PROMPT).unwrap(), String::new());
        let outcome = generate(
            &mut session,
            &tokenizer,
            &ids,
            options,
            || false,
            |piece| {
                text += piece;
                Ok(())
            },
        );
        let outcome = outcome.unwrap();
        (text, outcome.end, outcome.tokens)
    };
    requests.iter().map(&mut one).collect()
}

#[test]
fn a_text_does_not_depend_on_what_else_is_in_the_batch() {
    let requests = requests();
    let expected = alone(&requests);
    assert!(expected.iter().any(|(_, end, _)| *end == End::Stopped), "{expected:?}");
    for (slots, batch, rounds_between) in [(1, 512, 0), (3, 64, 0), (3, 17, 5), (8, 512, 2)] {
        let mut bench = Bench::new(slots, batch);
        // Two times, so that the second time finds the first one's tokens in the cache.
        for _ in 0..2 {
            let mut tickets = Vec::new();
            for (prompt, options) in &requests {
                tickets.push(bench.push(prompt, options, JobOptions::default()));
                for _ in 0..rounds_between {
                    bench.scheduler.tick();
                }
            }
            for ((text, outcome), expected) in bench.finish(&mut tickets).into_iter().zip(&expected) {
                let outcome = outcome.unwrap();
                assert_eq!((text, outcome.end, outcome.tokens), *expected, "{slots} slots, steps of {batch}");
            }
        }
    }
}

#[test]
fn a_reader_that_leaves_frees_its_slot_within_one_round() {
    let mut bench = Bench::new(1, 512);
    let ticket = bench.push("Once", &text(1, 500), JobOptions::default());
    let mut next = bench.push("Twice", &text(2, 1), JobOptions::default());
    let gone = bench.push("Thrice", &text(3, 1), JobOptions::default());
    assert_eq!(bench.scheduler.tick(), Tick::Stepped);
    assert_eq!(read(&mut next), (String::new(), None));
    drop((ticket, gone));
    assert_eq!(bench.scheduler.tick(), Tick::Stepped);
    assert_eq!(done(&mut next).1.end, End::Limit);
    assert_eq!(bench.scheduler.tick(), Tick::Idle);
    let metrics = bench.scheduler.metrics.render();
    assert!(metrics.contains("trine_requests_cancelled_total 2\n"), "{metrics}");
}

#[test]
fn a_prompt_that_is_read_can_be_abandoned() {
    let mut bench = Bench::new(1, 16);
    let ticket = bench.push(&LONG.repeat(9), &text(1, 5), JobOptions::default());
    bench.scheduler.tick();
    assert_eq!(bench.scheduler.cached(0).len(), 16);
    drop(ticket);
    assert_eq!(bench.scheduler.tick(), Tick::Idle);
    // What was read is of use for the same prompt.
    assert_eq!(bench.one(&LONG.repeat(9), &text(1, 5), JobOptions::default()).1.cached_tokens, 16);
}

#[test]
fn a_request_takes_the_slot_that_has_most_of_its_prompt() {
    let mut bench = Bench::new(3, 512);
    let prompts = [LONG.repeat(2), format!("{LONG}But one day the mill burnt down"), "Once upon a time".into()];
    let mut tickets: Vec<_> = prompts.iter().map(|p| bench.push(p, &text(1, 3), JobOptions::default())).collect();
    let first: Vec<_> = bench.finish(&mut tickets).into_iter().map(|(_, outcome)| outcome.unwrap()).collect();
    assert!(first.iter().all(|outcome| outcome.cached_tokens == 0), "{first:?}");
    let again = format!("{} and nobody wept.", prompts[1]);
    let outcome = bench.one(&again, &text(1, 3), JobOptions::default()).1;
    assert!(outcome.cached_tokens >= first[1].prompt_tokens - 1, "{outcome:?}, {first:?}");
    // The same prompt: all but its last token is there.
    let outcome = bench.one(&again, &text(1, 3), JobOptions::default()).1;
    assert_eq!(outcome.cached_tokens, outcome.prompt_tokens - 1);
    // Nothing in common but BOS: the slot unused for longest, which is the first.
    let _zebras = bench.push("Zebras", &text(1, 3), JobOptions::default());
    bench.scheduler.tick();
    assert!(bench.scheduler.slots[0].is_busy());
}

#[test]
fn a_long_prompt_does_not_stop_other_texts() {
    let mut bench = Bench::new(2, 512);
    let mut writer = bench.push("Once", &text(1, 400), JobOptions::default());
    bench.scheduler.tick();
    let mut reader = bench.push(&LONG.repeat(20), &text(2, 3), JobOptions::default());
    // A row of the long prompt costs a millisecond, so a hundred of them are as much as the other text may wait.
    bench.scheduler.pace.learn(100, Duration::from_millis(100));
    let (mut rounds, mut tokens) = (0, bench.scheduler.cached(0).len());
    while read(&mut reader).1.is_none() {
        bench.scheduler.tick();
        rounds += 1;
        let now = bench.scheduler.cached(0).len();
        assert_eq!(now, tokens + 1, "a token in each round");
        assert!(bench.scheduler.rows.len() < 512);
        tokens = now;
        read(&mut writer);
    }
    assert!(rounds > 3, "{rounds} rounds");
}

#[test]
fn prompts_share_a_step_fairly() {
    let mut bench = Bench::new(3, 60);
    let tickets = [&LONG.repeat(9), "Once upon a time", &LONG.repeat(8)]
        .map(|prompt| bench.push(prompt, &text(1, 5), JobOptions::default()));
    bench.scheduler.tick();
    let short = bench.ids("Once upon a time").len();
    let read: Vec<_> = (0..3).map(|slot| bench.scheduler.cached(slot).len()).collect();
    assert_eq!(read.iter().sum::<usize>(), 60);
    assert!(read[0] == 20 && read[1] == short && read[2] == 40 - short, "{read:?}");
    drop(tickets);
}

#[test]
fn a_slow_reader_pauses_alone() {
    let expected = alone(&[("Once".into(), text(1, 300)), ("Twice".into(), text(2, 300))]);
    let mut bench = Bench::new(2, 512);
    let mut slow = bench.push("Once", &text(1, 300), JobOptions::default());
    let mut quick = bench.push("Twice", &text(2, 300), JobOptions::default());
    let (mut quick_text, mut quick_outcome) = (String::new(), None);
    while quick_outcome.is_none() {
        assert_eq!(bench.scheduler.tick(), Tick::Stepped);
        let (more, outcome) = read(&mut quick);
        (quick_text, quick_outcome) = (quick_text + &more, outcome);
    }
    assert_eq!(quick_text, expected[1].0);
    // The slow one has filled its channel and waits, for as long as it takes.
    let used = bench.scheduler.cached(0).len();
    assert!(used < 200, "{used}");
    assert_eq!((bench.scheduler.tick(), bench.scheduler.tick()), (Tick::ReadersLag, Tick::ReadersLag));
    let mut slow_text = String::new();
    loop {
        let (text, outcome) = read(&mut slow);
        slow_text += &text;
        if let Some(outcome) = outcome {
            assert_eq!(outcome.unwrap().end, End::Limit);
            break;
        }
        assert_ne!(bench.scheduler.tick(), Tick::Idle, "no end: {slow_text}");
    }
    assert_eq!(slow_text, expected[0].0);
}

#[test]
fn a_stop_ends_what_runs_and_refuses_what_waits() {
    let mut bench = Bench::new(1, 512);
    let mut running = bench.push("Once", &text(1, 500), JobOptions::default());
    let mut waiting = bench.push("Twice", &text(1, 500), JobOptions::default());
    bench.scheduler.tick();
    bench.queue.stop(Duration::from_secs(3600));
    // It may go on, but nothing begins any more.
    assert_eq!(bench.scheduler.tick(), Tick::Stepped);
    assert_eq!(read(&mut waiting).1, Some(Err(Failure::Stopping)));
    assert!(read(&mut running).1.is_none());
    let (job, _ticket) = bench.job(vec![1], &text(1, 1), JobOptions::default());
    assert_eq!(bench.queue.push(job).unwrap_err(), Refusal::Stopping);

    let mut bench = Bench::new(1, 512);
    let mut running = bench.push("Once", &text(1, 500), JobOptions::default());
    bench.scheduler.tick();
    bench.queue.stop(Duration::ZERO);
    assert_eq!(bench.scheduler.tick(), Tick::Idle);
    let (text, outcome) = done(&mut running);
    assert_eq!((outcome.end, outcome.tokens), (End::Interrupted, 1));
    assert!(!text.is_empty());
    // On its thread it ends by itself.
    bench.scheduler.run();
}

#[test]
fn a_job_has_so_much_time() {
    let mut bench = Bench::new(1, 512);
    let timeout = Some(Duration::from_millis(50));
    let mut running = bench.push("Once", &text(1, 1000), JobOptions { timeout, ..JobOptions::default() });
    let mut waiting = bench.push("Twice", &text(1, 5), JobOptions { timeout, ..JobOptions::default() });
    bench.scheduler.tick();
    std::thread::sleep(Duration::from_millis(60));
    bench.scheduler.tick();
    assert_eq!(done(&mut running).1.end, End::Interrupted);
    assert_eq!(read(&mut waiting).1, Some(Err(Failure::Late)));
}

#[test]
fn the_queue_has_a_limit_that_abandoned_jobs_do_not_count_for() {
    let options = EngineOptions { sequences: 1, outputs: 1, ..EngineOptions::default() };
    let bench = Bench::with(options, 2);
    let _first = bench.push("a", &text(1, 1), JobOptions::default());
    let second = bench.push("b", &text(1, 1), JobOptions::default());
    let (job, _ticket) = bench.job(vec![1], &text(1, 1), JobOptions::default());
    assert_eq!(bench.queue.push(job).unwrap_err(), Refusal::Full(2));
    drop(second);
    let (job, _ticket) = bench.job(vec![1], &text(1, 1), JobOptions::default());
    bench.queue.push(job).unwrap();
}

#[test]
fn prompts_that_cannot_be_read_are_refused() {
    let mut bench = Bench::new(1, 512);
    for (prompt, word) in [(vec![], "no tokens"), (vec![1; 1025], "1025 tokens"), (vec![1, 4096], "token 4096")] {
        let (job, mut ticket) = bench.job(prompt, &text(1, 1), JobOptions::default());
        bench.queue.push(job).unwrap();
        bench.scheduler.tick();
        match read(&mut ticket).1 {
            Some(Err(Failure::Impossible(line))) => assert!(line.contains(word), "{line}"),
            other => panic!("{other:?}"),
        }
    }
    // A prompt that fills the context has room for one token.
    let (job, mut ticket) = bench.job(vec![5; 1024], &text(1, 9), JobOptions::default());
    bench.queue.push(job).unwrap();
    while bench.scheduler.tick() == Tick::Stepped {}
    assert_eq!((done(&mut ticket).1.end, bench.scheduler.cached(0).len()), (End::ContextFull, 1024));
    assert!(Job::new(bench.tokenizer, vec![1], &text(1, 0), 4096, JobOptions::default()).is_err());
}

#[test]
fn tokens_come_with_their_probabilities() {
    let mut bench = Bench::new(2, 512);
    let greedy = SamplerOptions { temperature: 0.0, ..SamplerOptions::default() };
    let options = TextOptions { sampling: greedy, ..text(1, 12) };
    let mut ticket = bench.push("Once upon a", &options, JobOptions { logprobs: Some(3), ..JobOptions::default() });
    while bench.scheduler.tick() == Tick::Stepped {}
    let (mut pieces, mut bytes) = (Vec::new(), Vec::new());
    while let Ok(event) = ticket.events.try_recv() {
        if let Event::Piece(piece) = event {
            pieces.extend(piece.logprobs);
            bytes.extend(piece.text.into_bytes());
        }
    }
    let outcome = ticket.done.try_recv().unwrap().unwrap();
    pieces.extend(outcome.rest.logprobs);
    bytes.extend(outcome.rest.text.into_bytes());
    assert_eq!(pieces.len(), 12);
    for token in &pieces {
        assert_eq!((token.top[0].0, token.top[0].1), (token.token, token.logprob), "greedy takes the best");
        assert!(token.top.len() == 3 && token.logprob < 0.0);
    }
    let tokens: Vec<u8> = pieces.iter().flat_map(|token| bench.tokenizer.token_bytes(token.token).to_vec()).collect();
    assert_eq!(tokens, bytes);
}

#[test]
fn a_grammar_holds_even_for_a_model_that_knows_nothing_of_it() {
    let mut bench = Bench::new(4, 512);
    let grammars = Grammars::new(&bench.tokenizer, bench.vocab, &bench.scheduler.engine.config().eos.clone()).unwrap();
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["fox", "bear"]},
            "legs": {"type": "integer", "minimum": 2, "maximum": 8},
            "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}, "maxItems": 2}
        },
        "required": ["name", "kind", "legs", "friends"],
        "additionalProperties": false,
        "$defs": {"friend": {"type": "string", "maxLength": 5}}
    });
    let whole = Shape::json(schema.clone());
    let around = |text: &str| Part::Text(text.into());
    let call = Shape(vec![vec![around("<tool_call>\n"), Part::Schema(schema), around("\n</tool_call>")]]);
    let mut tickets = Vec::new();
    for seed in 0..6 {
        let shape = if seed % 2 == 0 { &whole } else { &call };
        let options = TextOptions { ignore_end: false, ..text(seed, 300) };
        let grammar = Some(grammars.make(shape).unwrap());
        tickets.push(bench.push("Once upon a time", &options, JobOptions { grammar, ..JobOptions::default() }));
    }
    // Others are not held to it.
    tickets.push(bench.push("Once upon a time", &text(1, 30), JobOptions::default()));
    let mut done = bench.finish(&mut tickets);
    assert_eq!(done.pop().unwrap().0, alone(&[("Once upon a time".into(), text(1, 30))])[0].0);
    for (seed, (text, outcome)) in done.into_iter().enumerate() {
        assert_eq!(outcome.unwrap().end, End::EndToken, "{text}");
        let json = match seed % 2 {
            0 => Some(text.as_str()),
            _ => text.strip_prefix("<tool_call>\n").and_then(|text| text.strip_suffix("\n</tool_call>")),
        };
        let value: Value = serde_json::from_str(json.expect("the texts around")).unwrap();
        assert!(["fox", "bear"].contains(&value["kind"].as_str().unwrap()), "{text}");
        assert!((2..=8).contains(&value["legs"].as_i64().unwrap()), "{text}");
        assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{text}");
        assert!(value["friends"].as_array().unwrap().len() <= 2, "{text}");
    }
}

#[test]
fn schemas_that_cannot_be_kept_are_refused() {
    let bench = Bench::new(1, 512);
    let grammars = Grammars::new(&bench.tokenizer, bench.vocab, &[2]).unwrap();
    let nested = (0..100).fold(json!({"type": "null"}), |schema, _| json!({"type": "array", "items": schema}));
    grammars.make(&Shape::json(nested)).unwrap();
    for bad in [
        json!({"type": "wolf"}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"type": "string", "pattern": "("}),
        json!({"$ref": "https://example.org/schema.json"}),
        json!(7),
    ] {
        let line = grammars.make(&Shape::json(bad.clone())).err().unwrap_or_else(|| panic!("{bad} is taken"));
        assert!(!line.is_empty() && !line.contains('\n'), "{line}");
    }
}
