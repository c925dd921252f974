//! Whole tiny models: against the oracle, and against themselves when the same tokens come in another way.
//!
//! Logits may differ from the oracle's by `1e-4` of the largest for dense weights (a few thousand
//! roundings, each at most `u`), and by `3e-2` for quantised ones: there a difference of one rounding can
//! tip an activation to the next of its 127 codes. However tokens are cut into steps, one backend's logits
//! must be the same bits.

use super::check::{Case, Checker, Failure, Report};
use super::data::Random;
use super::model::{Model, Plan};
use crate::oracle::Oracle;
use crate::{Backend, Format, Gate, Group, Heads, KvFormat, Row, ZeroKind};

const SEQUENCES: usize = 9;
const CONTEXT: usize = 64;
const MOST_ROWS: usize = 40;
const PROMPT: usize = 17;
const GREEDY: usize = 24;

const PLANS: [Plan; 3] = [
    Plan {
        name: "dense Llama",
        hidden: 72,
        heads: Heads { query: 4, kv: 2, dim: 16 },
        feed_forward: 100,
        vocabulary: 131,
        embedding: Format::F16,
        body: Format::F32,
        head: Format::Bf16,
        gate: Gate::Silu,
        sub_norms: false,
        qwen: false,
        kv: KvFormat::F32,
    },
    Plan {
        name: "ternary BitNet",
        hidden: 160,
        heads: Heads { query: 6, kv: 2, dim: 32 },
        feed_forward: 300,
        vocabulary: 131,
        embedding: Format::Bf16,
        body: Format::Ternary,
        head: Format::Int8 { group: Group::G32 },
        gate: Gate::Relu2,
        sub_norms: true,
        qwen: false,
        kv: KvFormat::F16,
    },
    Plan {
        name: "int4 Qwen",
        hidden: 128,
        heads: Heads { query: 7, kv: 1, dim: 24 },
        feed_forward: 192,
        vocabulary: 131,
        embedding: Format::Int8 { group: Group::G32 },
        body: Format::Int4 { group: Group::G32, zero: ZeroKind::Symmetric },
        head: Format::Int4 { group: Group::G32, zero: ZeroKind::Symmetric },
        gate: Gate::Silu,
        sub_norms: false,
        qwen: true,
        kv: KvFormat::Int8,
    },
];

/// Three tiny models in every order of steps that a session could take.
pub fn tiny_models<B: Backend>(options: &B::Options) -> Result<Report, Failure> {
    let mut checker = Checker::default();
    for plan in PLANS {
        let mut run = Run::<B> {
            model: Model::new(options, plan, SEQUENCES, CONTEXT, MOST_ROWS)?,
            oracle: Model::new(&(), plan, 1, CONTEXT, MOST_ROWS)?,
            plan,
            checker: &mut checker,
        };
        run.all()?;
    }
    Ok(checker.report)
}

struct Run<'a, B: Backend> {
    model: Model<B>,
    oracle: Model<Oracle>,
    plan: Plan,
    checker: &'a mut Checker,
}

impl<B: Backend> Run<'_, B> {
    fn all(&mut self) -> Result<(), Failure> {
        let mut random = Random::new(14);
        let mut prompt = || -> Vec<u32> { (0..PROMPT).map(|_| random.below(self.plan.vocabulary) as u32).collect() };
        let (prompt, other) = (prompt(), prompt());
        let want = one_by_one(&mut self.oracle, &prompt, 0)?;
        let alone = one_by_one(&mut self.model, &prompt, 0)?;
        self.close("token by token", &alone, &want)?;
        self.chunks(&prompt, &alone)?;
        self.interleaved(&prompt, &other, &alone)?;
        self.greedy(&prompt, &want)?;
        self.stepped_back(&prompt, &alone)
    }

    fn case<'a>(&self, label: &'a str) -> Case<'a> {
        Case { op: "model", label, columns: self.plan.vocabulary }
    }

    fn same(&mut self, label: &str, got: &[f32], want: &[f32]) -> Result<(), Failure> {
        let label = format!("{}, {label}", self.plan.name);
        self.checker.identical(self.case(&label), got, want)
    }

    /// The largest difference from the oracle's `logits`.
    fn bound(&self, logits: &[f32]) -> f64 {
        let largest = logits.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        f64::from(largest) * if self.plan.body.is_dense() { 1e-4 } else { 3e-2 }
    }

    fn close(&mut self, label: &str, got: &[f32], want: &[f32]) -> Result<(), Failure> {
        let label = format!("{}, {label}", self.plan.name);
        let bound = self.bound(want);
        self.checker.within(self.case(&label), got, want, |_| bound)
    }

    /// The prompt in chunks, with all outputs or the last one's alone.
    fn chunks(&mut self, prompt: &[u32], alone: &[f32]) -> Result<(), Failure> {
        let last = &alone[(PROMPT - 1) * self.plan.vocabulary..];
        for (sequence, size) in [(1, 3), (2, 7), (3, PROMPT)] {
            let rows = rows(prompt, sequence, 0);
            let mut got = Vec::new();
            for chunk in rows.chunks(size) {
                got.extend(self.model.step(chunk)?);
            }
            self.same(&format!("chunks of {size} against token by token"), &got, alone)?;
        }
        for (sequence, size) in [(4, 7), (5, PROMPT)] {
            let mut rows = rows(prompt, sequence, 0);
            rows.iter_mut().for_each(|row| row.output = row.position as usize == PROMPT - 1);
            let mut got = Vec::new();
            for chunk in rows.chunks(size) {
                got.extend(self.model.step(chunk)?);
            }
            self.same(&format!("chunks of {size}, the last row's output"), &got, last)?;
        }
        Ok(())
    }

    /// Two sequences in one step, row by row in turns.
    fn interleaved(&mut self, prompt: &[u32], other: &[u32], alone: &[f32]) -> Result<(), Failure> {
        let other_alone = one_by_one(&mut self.model, other, 6)?;
        let turns = rows(prompt, 7, 0).into_iter().zip(rows(other, 8, 0)).flat_map(|(a, b)| [a, b]);
        let logits = self.model.step(&turns.collect::<Vec<_>>())?;
        let of = |turn: usize| -> Vec<f32> {
            logits.chunks(self.plan.vocabulary).skip(turn).step_by(2).flatten().copied().collect()
        };
        let (first, second) = (of(0), of(1));
        self.same("the first of two sequences in one step against it alone", &first, alone)?;
        self.same("the second of two sequences in one step against it alone", &second, &other_alone)
    }

    /// The oracle's greedy continuation of sequence 0: the same choice at every step whose best two
    /// logits are further apart than both may err.
    fn greedy(&mut self, prompt: &[u32], logits: &[f32]) -> Result<(), Failure> {
        let mut want = logits[(prompt.len() - 1) * self.plan.vocabulary..].to_vec();
        for at in 0..GREEDY {
            let token = best(&want).0;
            let rows = rows(&[token], 0, prompt.len() + at);
            want = self.oracle.step(&rows)?;
            let got = self.model.step(&rows)?;
            self.close(&format!("greedy token {at}"), &got, &want)?;
            let (choice, chosen, bound) = (best(&got).0, best(&want), self.bound(&want));
            if f64::from(chosen.1) > 2.0 * bound {
                let label = format!("{}, choice of greedy token {}", self.plan.name, at + 1);
                let case = Case { op: "model", label: &label, columns: 1 };
                self.checker.equal(case, &[choice as f32], &[chosen.0 as f32])?;
            }
        }
        Ok(())
    }

    /// Sequence 0 has gone on beyond the prompt; from its middle again, the logits are those of before.
    fn stepped_back(&mut self, prompt: &[u32], alone: &[f32]) -> Result<(), Failure> {
        let from = 10;
        let label = format!("from position {from} again after position {}", PROMPT + GREEDY - 1);
        let got = self.model.step(&rows(&prompt[from..], 0, from))?;
        self.same(&label, &got, &alone[from * self.plan.vocabulary..])?;
        let got = self.model.step(&rows(&prompt[3..4], 0, 3))?;
        let want = &alone[3 * self.plan.vocabulary..4 * self.plan.vocabulary];
        self.same("position 3 again", &got, want)?;
        // The other prompt is in sequence 6: what was stored there must give way.
        let got = self.model.step(&rows(prompt, 6, 0))?;
        self.same("a sequence that held other tokens", &got, alone)
    }
}

fn rows(tokens: &[u32], sequence: u32, start: usize) -> Vec<Row> {
    let row = |(at, &token)| Row { token, sequence, position: (start + at) as u32, output: true };
    tokens.iter().enumerate().map(row).collect()
}

fn one_by_one<B: Backend>(model: &mut Model<B>, tokens: &[u32], sequence: u32) -> Result<Vec<f32>, Failure> {
    let mut logits = Vec::new();
    for row in rows(tokens, sequence, 0) {
        logits.extend(model.step(&[row])?);
    }
    Ok(logits)
}

/// The index of the largest logit, and how far it is ahead of the second.
fn best(logits: &[f32]) -> (u32, f32) {
    let (mut index, mut first, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (at, &logit) in logits.iter().enumerate() {
        if logit > first {
            (index, first, second) = (at, logit, first);
        } else {
            second = second.max(logit);
        }
    }
    (index as u32, first - second)
}
