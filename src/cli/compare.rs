//! `trine compare`: where backends differ.

use serde_json::{Value, json};
use trine_backend::Backend;
use trine_backend::oracle::Oracle;

use super::Exit;
use super::args::{CompareArgs, Verbosity};
use super::output::{note, print, print_json};
use crate::backend::{self, COMPILED, Compiled, Job, Settings, Takes};
use crate::compare::{Comparison, Difference, Differences, OpDifference, Part, Request, TRACED, compare};
use crate::files::ModelFiles;
use crate::tokens::{Special, Tokenizer};
use crate::{Error, Result};

/// Runs the subcommand.
pub(super) fn run(args: &CompareArgs, verbosity: Verbosity) -> Result<Exit> {
    if args.prompt.is_empty() {
        return Err(Error::Usage("the prompt is empty: give one with -p".into()));
    }
    let names = names(&args.backends);
    let settings = args.device.settings();
    check_settings(&settings, &names)?;
    let files = args.model.open()?;
    let tokenizer = files.require_tokenizer()?;
    let prompt = tokenizer.encode(&args.prompt, Special::PROMPT)?;
    let request = Request {
        files: &files,
        options: args.formats.engine(),
        settings: &settings,
        prompt: &prompt,
        generate: args.n_predict,
    };
    let comparison = compare(&request, &names, |name| {
        if verbosity.shows_summary() {
            note(&format!("running {name}"));
        }
    })?;
    let report = Report { files: &files, tokenizer, prompt: &prompt, comparison: &comparison };
    if args.json {
        print_json(&report.json())?;
    } else {
        print(&report.text())?;
    }
    Ok(Exit::Success)
}

/// The backends that were asked for; without any those that there are, and the oracle where that is one.
fn names(asked: &[String]) -> Vec<String> {
    if !asked.is_empty() {
        return asked.to_vec();
    }
    let oracle = (COMPILED.len() < 2).then_some(Oracle::NAME);
    COMPILED.iter().copied().chain(oracle).map(str::to_owned).collect()
}

/// Each backend takes the settings that it knows; one that none of them knows is a mistake.
fn check_settings(settings: &Settings, names: &[String]) -> Result<()> {
    struct OfBackend;
    impl Job for OfBackend {
        type Output = Takes;
        fn run<B: Compiled>(self) -> Takes {
            B::TAKES
        }
    }
    let mut any = Takes::default();
    for name in names {
        let takes = backend::on(name, OfBackend)?;
        any =
            Takes { cpu: any.cpu || takes.cpu, kernel: any.kernel || takes.kernel, device: any.device || takes.device };
    }
    settings.check(any, &names.join(" and "))
}

struct Report<'a> {
    files: &'a ModelFiles,
    tokenizer: &'a Tokenizer,
    prompt: &'a [u32],
    comparison: &'a Comparison,
}

impl Report<'_> {
    fn text(&self) -> String {
        let first = &self.comparison.first;
        let mut text = format!(
            "model {}, {} tokens of prompt\n{}: {}\n",
            self.files.path.display(),
            self.prompt.len(),
            first.name,
            first.device.name
        );
        for other in &self.comparison.others {
            text += &self.against_first(other);
        }
        text
    }

    fn against_first(&self, other: &Differences) -> String {
        let (first, side) = (self.comparison.first.name, &other.side);
        let logits = &other.logits;
        format!(
            "{}: {}\n\n## {} against {first}\n\n\
             Logits of {} positions: relative difference {}, the largest {} at position {}, token {}.\n{}\n\n\
             Relative differences of the first {} tokens' ops, each from {first}'s inputs; drift is that of a part's \
             last result when both go on from their own.\n\n{}",
            side.name,
            side.device.name,
            side.name,
            logits.positions,
            short(logits.difference.relative),
            short(logits.difference.largest),
            logits.position,
            self.token(logits.token),
            self.greedy(other),
            self.prompt.len().min(TRACED),
            table(&other.ops)
        )
    }

    fn greedy(&self, other: &Differences) -> String {
        let same = other.greedy.same;
        let Some(fork) = &other.greedy.fork else { return format!("Greedy: the same {same} tokens.") };
        format!(
            "Greedy: the same {same} tokens, then {first} takes {} ({} above the other's choice) and {} takes {} ({} \
             above).",
            self.token(fork.first),
            fork.gap_first,
            other.side.name,
            self.token(fork.other),
            fork.gap_other,
            first = self.comparison.first.name,
        )
    }

    /// Id and text.
    fn token(&self, id: u32) -> String {
        format!("{id} {:?}", self.tokenizer.decode(&[id], false))
    }

    fn json(&self) -> Value {
        let first = &self.comparison.first;
        let others: Vec<Value> = self.comparison.others.iter().map(|other| self.json_of(other)).collect();
        json!({
            "model": self.files.path.display().to_string(),
            "prompt": self.prompt,
            "first": { "backend": first.name, "device": first.device.name },
            "others": others,
        })
    }

    fn json_of(&self, other: &Differences) -> Value {
        let (logits, greedy) = (&other.logits, &other.greedy);
        let fork = greedy.fork.as_ref().map(|fork| {
            json!({
                "first": { "token": fork.first, "gap": fork.gap_first },
                "other": { "token": fork.other, "gap": fork.gap_other },
            })
        });
        let ops: Vec<Value> = other.ops.iter().map(json_of_op).collect();
        json!({
            "backend": other.side.name,
            "device": other.side.device.name,
            "logits": {
                "positions": logits.positions,
                "largest": logits.difference.largest,
                "relative": logits.difference.relative,
                "position": logits.position,
                "token": logits.token,
            },
            "greedy": { "same": greedy.same, "fork": fork },
            "ops": ops,
        })
    }
}

/// Numbers that are none (NaN, infinity) are null in JSON.
fn json_of_op(op: &OpDifference) -> Value {
    let difference = |difference: &Difference| {
        json!({
            "largest": difference.largest,
            "relative": difference.relative,
            "row": difference.at / op.columns,
            "column": difference.at % op.columns,
        })
    };
    json!({
        "part": part_name(op.part),
        "name": op.name,
        "op": op.op,
        "rows": op.rows,
        "columns": op.columns,
        "own": difference(&op.own),
        "drift": difference(&op.drift),
    })
}

fn part_name(part: Part) -> String {
    match part {
        Part::Embedding => "embedding".into(),
        Part::Layer(layer) => layer.to_string(),
        Part::Head => "head".into(),
    }
}

/// Markdown: a row for each part of the graph, a column for each op of it; the first layer's start differs, and a new
/// head line begins wherever the ops are other ones.
fn table(ops: &[OpDifference]) -> String {
    let mut text = String::new();
    let mut before: Vec<&str> = Vec::new();
    for part in ops.chunk_by(|a, b| a.part == b.part) {
        let names: Vec<_> = part.iter().map(|op| op.name).collect();
        if names != before {
            let gap = if before.is_empty() { "" } else { "\n" };
            text += &format!("{gap}{}", line("layer", names.iter().map(|&name| name.to_owned()), "drift"));
            text += &format!("|---|{}---:|\n", "---:|".repeat(names.len()));
            before = names;
        }
        let drift = part.last().map_or(0.0, |op| op.drift.relative);
        text += &line(&part_name(part[0].part), part.iter().map(|op| short(op.own.relative)), &short(drift));
    }
    text
}

fn line(first: &str, middle: impl Iterator<Item = String>, last: &str) -> String {
    let middle: String = middle.map(|cell| format!(" {cell:>7} |")).collect();
    format!("| {first:<9} |{middle} {last:>7} |\n")
}

/// Two digits; an exact 0 is `0`.
fn short(value: f64) -> String {
    if value == 0.0 { "0".into() } else { format!("{value:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(part: Part, name: &'static str, own: f64, drift: f64) -> OpDifference {
        let difference = |relative| Difference { largest: relative, at: 5, relative };
        OpDifference { part, name, op: "linear", rows: 2, columns: 3, own: difference(own), drift: difference(drift) }
    }

    #[test]
    fn equal_parts_share_a_head_line() {
        let ops = [
            op(Part::Embedding, "embed", 0.0, 0.0),
            op(Part::Layer(0), "norm", 1.24e-7, 1e-7),
            op(Part::Layer(0), "qkv", 0.0, 2e-7),
            op(Part::Layer(1), "norm", 0.0, 0.0),
            op(Part::Layer(1), "qkv", f64::NAN, 0.5),
        ];
        let expected = "\
            | layer     |   embed |   drift |\n\
            |---|---:|---:|\n\
            | embedding |       0 |       0 |\n\
            \n\
            | layer     |    norm |     qkv |   drift |\n\
            |---|---:|---:|---:|\n\
            | 0         |  1.2e-7 |       0 |  2.0e-7 |\n\
            | 1         |       0 |     NaN |  5.0e-1 |\n";
        assert_eq!(table(&ops), expected);
        let json = json_of_op(&ops[4]);
        assert_eq!((&json["part"], &json["own"]["relative"]), (&json!("1"), &Value::Null));
        assert_eq!((&json["drift"]["row"], &json["drift"]["column"]), (&json!(1), &json!(2)));
    }

    #[test]
    fn there_are_two_backends_unless_others_are_asked_for() {
        assert!(names(&[]).len() >= 2);
        assert_eq!(names(&["x".to_owned()]), ["x"]);
    }

    #[test]
    fn a_setting_that_no_backend_has_is_refused() {
        let settings = Settings { threads: Some(1), ..Settings::default() };
        let oracle = "oracle".to_owned();
        let line = check_settings(&settings, &[oracle.clone(), oracle]).unwrap_err().to_string();
        assert_eq!(line, "--threads means nothing to oracle and oracle: leave it out");
    }
}
