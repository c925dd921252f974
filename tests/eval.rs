//! `trine perplexity` and `trine eval` on the demo model.

use std::path::Path;

use serde_json::Value;

use crate::program::{copy_of, failure, project, run, stdout, trine};

const TEXT: &str = "Once upon a time there was a miller who had three sons, a mill, a donkey and a cat. The sons had to \
    grind, the donkey had to carry the corn, and the cat had to catch the mice. When the miller died, the sons shared \
    what he had left: the eldest took the mill, the second the donkey, and nothing was left for the third but the cat.";

/// A file with the text.
fn text() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, TEXT.repeat(2)).unwrap();
    file
}

fn json(command: &str, file: &Path, more: &[&str]) -> Value {
    let args = [&[command, "-f", file.to_str().unwrap(), "-c", "32", "-o", "json"], more].concat();
    serde_json::from_str(&stdout(&args)).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn overlapping_windows_score_each_token_once() {
    let file = text();
    let measure = |more: &[&str]| json("perplexity", file.path(), more);
    let plain = measure(&[]);
    let tokens = plain["tokens"].as_u64().unwrap();
    assert_eq!((&plain["stride"], &plain["skip"]), (&Value::from(32), &Value::from(0)));
    let overlapping = measure(&["--stride", "8"]);
    assert_eq!(overlapping["targets"], (tokens - 33) / 8 * 8 + 32);
    let skipped = measure(&["--skip", "16"]);
    assert_eq!(skipped["targets"], (tokens - 1) / 32 * 16);
    // More before a token makes it easier.
    let value = |json: &Value| number(&json["perplexity"]);
    assert!(value(&overlapping) < value(&plain), "{plain} {overlapping}");
    // A stride of the window is no overlap.
    assert_eq!(measure(&["--stride", "32"]), plain);

    let args = ["perplexity", "-f", file.path().to_str().unwrap(), "--window", "32", "--stride", "8", "--skip", "2"];
    let table = stdout(&[&args[..], &["--format", "md"]].concat());
    assert!(table.contains("| windows of 32 every 8, the first 2 of each left out |"), "{table}");
    assert!(table.lines().all(|line| line.matches('|').count() == 8), "{table}");
    for (more, part) in
        [(["--stride", "0"], "stride of 0"), (["--stride", "33"], "stride of 33"), (["--skip", "32"], "32 skipped")]
    {
        let line = failure(trine().args(&args[..5]).args(more), 2);
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn a_model_is_no_distance_from_itself() {
    let file = text();
    let alone = json("eval", file.path(), &["-t", "1"]);
    assert_eq!((&alone["against"], &alone["comparison"]), (&Value::Null, &Value::Null));
    assert_eq!(alone["model"]["perplexity"], json("perplexity", file.path(), &[])["perplexity"]);
    let same = json("eval", file.path(), &["--against", project("models/tales-bitnet-20m").to_str().unwrap()]);
    let found = &same["comparison"];
    assert_eq!(number(&found["perplexity_ratio"]["value"]), 1.0);
    assert_eq!(number(&found["kl_divergence"]["max"]), 0.0);
    assert_eq!(number(&found["top1_agreement"]["value"]), 1.0);
    assert_eq!(same["model"]["perplexity"], same["against"]["perplexity"]);
}

#[test]
fn a_format_has_its_price_also_from_saved_logits() {
    let (file, dir) = (text(), tempfile::tempdir().unwrap());
    let direct = json("eval", file.path(), &["--head", "int4-g32", "--against-head", "bf16"]);
    assert_eq!((&direct["model"]["head"], &direct["against"]["head"]), (&"int4-g32".into(), &"bf16".into()));
    let found = &direct["comparison"];
    let divergence = &found["kl_divergence"];
    let [mean, median, high, most] = ["mean", "median", "p99", "max"].map(|name| number(&divergence[name]));
    assert!(0.0 < median && median < high && high <= most && 0.0 < mean && mean < 0.5, "{divergence}");
    let share = number(&found["top1_agreement"]["value"]);
    assert!(share > 0.5 && share < 1.0, "{share}");
    let perplexity = |side: &str| number(&direct[side]["perplexity"]);
    let ratio = number(&found["perplexity_ratio"]["value"]);
    assert!((ratio - perplexity("model") / perplexity("against")).abs() < 1e-9, "{direct}");

    let saved = dir.path().join("exact.logits");
    let saved = saved.to_str().unwrap();
    json("eval", file.path(), &["--head", "bf16", "--save-logits", saved]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let later = json("eval", file.path(), &["--head", "int4-g32", "--against-logits", saved]);
    assert_eq!(later["model"], direct["model"]);
    assert_eq!(later["against"]["model"], "tales-bitnet-20m (saved: weights ternary, head bf16, KV f16)");
    let close = |a: &Value, b: &Value, by: f64| assert!((number(a) - number(b)).abs() < by, "{a} is not {b}");
    close(&later["against"]["perplexity"], &direct["against"]["perplexity"], 1e-3);
    close(&later["comparison"]["kl_divergence"]["mean"], &divergence["mean"], 1e-5 + 1e-3 * mean);
    close(&later["comparison"]["kl_divergence"]["max"], &divergence["max"], 1e-3);
    assert_eq!(later["comparison"]["top1_agreement"], found["top1_agreement"]);

    let args = ["eval", "-f", file.path().to_str().unwrap(), "-c", "32", "--against-logits", saved];
    let table = stdout(&args);
    assert!(table.contains("\n| same likeliest token | ") && table.contains("\n| KL divergence, 99 % | "), "{table}");
    // Another text, another cut, another file.
    let problem = |args: &[&str]| failure(trine().args(args), 1);
    assert!(problem(&[&args[..], &["--chars", "400"]].concat()).contains("logits of another text"));
    assert!(problem(&[&args[..], &["--stride", "16"]].concat()).contains("use --window 32 --stride 32 --skip 0"));
    let line = problem(&[&args[..6], &[file.path().to_str().unwrap()]].concat());
    assert!(line.contains("no saved logits of this version"), "{line}");
    let line = failure(trine().args(args).args(["--against-head", "bf16"]), 2);
    assert!(line.contains("cannot be used with"), "{line}");
}

#[test]
fn only_the_same_tokens_are_compared() {
    let (file, other) = (text(), copy_of("models/tales-bitnet-20m"));
    let tokenizer = other.path().join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&tokenizer).unwrap()).unwrap();
    // Without merges each character is a token.
    json["model"]["merges"] = Value::Array(Vec::new());
    std::fs::write(&tokenizer, json.to_string()).unwrap();
    let ran = run(trine().args(["eval", "-c", "32", "-f"]).arg(file.path()).arg("--against").arg(other.path()));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("its tokenizer makes other tokens of the text, from token "), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1);
}
