//! Quantised models: what is written loads as what was meant, and nothing is left of what was not finished.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use trine::Error;
use trine::engine::{Engine, EngineOptions};
use trine::files::ModelFiles;
use trine::model::Formats;
use trine::quantize::{Method, Options, Report, quantize};
use trine_backend::{Format, KvFormat, Row};
use trine_cpu_tsar::CpuTsar;

use crate::program::{copy_of, failure, project, run, stdout, trine};

const DENSE: [&str; 3] = ["tests/fixtures/tiny-qwen2", "tests/fixtures/tiny-qwen3", "tests/fixtures/tiny-llama3-rope"];

fn format(name: &str) -> Format {
    name.parse().unwrap()
}

fn formats(body: Option<&str>, head: Option<&str>) -> Formats {
    Formats { body: body.map(format), head: head.map(format), ..Formats::default() }
}

fn open(dir: &Path) -> ModelFiles {
    ModelFiles::open(dir).unwrap()
}

/// Logits of `ids`, all in one step.
fn logits(files: &ModelFiles, formats: Formats, ids: &[u32]) -> Vec<f32> {
    let options = EngineOptions { formats, kv: KvFormat::F32, outputs: ids.len(), ..EngineOptions::default() };
    let mut engine = Engine::<CpuTsar>::load(&Default::default(), files, &options, &mut |_| {}).unwrap();
    let row = |(position, &token): (usize, &u32)| Row { token, sequence: 0, position: position as u32, output: true };
    let rows: Vec<Row> = ids.iter().enumerate().map(row).collect();
    engine.step(&rows).unwrap();
    let mut logits = vec![0.0; ids.len() * files.config.vocab];
    engine.read_logits(&mut logits).unwrap();
    logits
}

/// Token ids without a pattern.
fn ids(count: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % vocab as u32
    };
    (0..count).map(|_| next()).collect()
}

fn written(files: &ModelFiles, out: &Path, options: &Options) -> Report {
    let mut last = 0.0;
    let report = quantize::<CpuTsar>(&Default::default(), files, out, options, &mut |status| {
        assert!((last..=1.0).contains(&status.done), "{status:?} after {last}");
        last = status.done;
        true
    });
    assert_eq!(last, 1.0);
    report.unwrap()
}

#[test]
fn what_is_written_loads_as_quantising_on_loading_does() {
    for (name, body, head) in [
        (DENSE[0], "int4-g32", "int8"),
        (DENSE[0], "int4-row", "int4-g64"),
        (DENSE[0], "int4-g32-min", "int4-row-min"),
        (DENSE[1], "int8", "int8-row"),
        (DENSE[1], "int4-g128", "bf16"),
        (DENSE[2], "int8-row", "f32"),
        ("tests/fixtures/tiny-bitnet", "ternary", "int8"),
        ("tests/fixtures/tiny-bitnet", "int4-row", "int8"),
        ("tests/fixtures/tiny-llama-b158", "int8", "bf16"),
        ("tests/fixtures/tiny-bitnet-online", "ternary", "int4-g32"),
    ] {
        let files = open(&project(name));
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let asked = formats(Some(body), Some(head));
        let options = Options { formats: asked, method: Method::Nearest, calibration: None };
        let report = written(&files, &out, &options);
        assert_eq!((report.body, report.head, report.tokens), (format(body), format(head), 0));
        let back = open(&out);
        assert_eq!(back.checkpoint.total_bytes(), report.bytes);
        let ids = ids(20, files.config.vocab, 1);
        assert_eq!(logits(&back, Formats::default(), &ids), logits(&files, asked, &ids), "{name} {body} {head}");
        // Once more, from what is quantised: the codes stay.
        let again = dir.path().join("again");
        written(&back, &again, &Options::default());
        assert_eq!(
            fs::read(again.join("model.safetensors")).unwrap(),
            fs::read(out.join("model.safetensors")).unwrap()
        );
    }
}

/// Relative squared distance to the logits of the dense model.
fn distance(found: &[f32], dense: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x * x);
    let difference: f64 = found.iter().zip(dense).map(|(a, b)| square(a - b)).sum();
    difference / dense.iter().map(|&x| square(x)).sum::<f64>()
}

#[test]
fn each_method_comes_closer_to_the_dense_model() {
    // A real model's inputs are correlated; random weights' are not, so the fixtures would show little.
    let files = ModelFiles::demo().unwrap();
    let text = "Once upon a time there was a poor woodcutter who lived with his wife and two children at the edge of a \
        great forest. They had little to eat, and when a famine came over the land he could no longer find their daily \
        bread. As he lay in bed one night and turned about for worry, he sighed and said to his wife: what is to become \
        of us? How can we feed our poor children, when we have nothing left for ourselves? ";
    let tokenizer = files.require_tokenizer().unwrap();
    let encode = |text: &str| tokenizer.encode(text, trine::tokens::Special::PROMPT).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The demo model's own weights are ternary: only its head is dense, and head inputs come last in the walk.
    let other = encode("The king had a daughter who was so beautiful that the sun itself wondered at her face.");
    let dense = logits(&files, formats(None, Some("bf16")), &other);
    let distances: Vec<f64> =
        [(Method::Nearest, None), (Method::Search, None), (Method::Search, Some(encode(&text.repeat(8))))]
            .into_iter()
            .enumerate()
            .map(|(index, (method, calibration))| {
                let out = dir.path().join(index.to_string());
                let options = Options { formats: formats(None, Some("int4-g32")), method, calibration };
                let report = written(&files, &out, &options);
                assert_eq!(report.tokens, if index == 2 { 512 } else { 0 });
                distance(&logits(&open(&out), Formats::default(), &other), &dense)
            })
            .collect();
    println!("rtn, search, calibrated: {distances:?}");
    assert!(distances[1] < 1.02 * distances[0] && distances[2] < distances[0], "{distances:?}");
}

#[test]
fn gptq_comes_closest_on_its_text() {
    for name in DENSE {
        let files = open(&project(name));
        let window = files.config.context.min(512);
        let text = ids(2 * window, files.config.vocab, 3);
        let dense = logits(&files, formats(Some("f32"), Some("bf16")), &text[..window]);
        let dir = tempfile::tempdir().unwrap();
        let measure = |label: &str, method, calibration: Option<&[u32]>| {
            let out = dir.path().join(label);
            let calibration = calibration.map(<[u32]>::to_vec);
            let options = Options { formats: formats(Some("int4-row"), Some("bf16")), method, calibration };
            written(&files, &out, &options);
            distance(&logits(&open(&out), Formats::default(), &text[..window]), &dense)
        };
        let nearest = measure("rtn", Method::Nearest, None);
        let gptq = measure("gptq", Method::Gptq, Some(&text));
        println!("{name}: rtn {nearest:.5}, gptq {gptq:.5}");
        assert!(gptq < nearest, "{name}: {gptq} against {nearest}");
    }
}

/// A directory with the dense weights that a fixture of words stands for.
fn twin(folder: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(folder.join("config.json")).unwrap();
    let mut config: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    config.remove("quantization_config");
    fs::write(dir.path().join("config.json"), Value::Object(config).to_string()).unwrap();
    fs::copy(folder.join("dense.safetensors"), dir.path().join("model.safetensors")).unwrap();
    dir
}

#[test]
fn awq_and_gptq_run_as_they_are() {
    for (folder, native) in [("awq", "int4-g32-point"), ("gptq", "int4-g32-point"), ("gptq-sorted", "int8")] {
        let folder = project("tests/fixtures/words").join(folder);
        let (files, twin) = (open(&folder), twin(&folder));
        let dense = open(twin.path());
        let ids = ids(30, files.config.vocab, 5);
        let floats = formats(Some("f32"), Some("f16"));
        let expected = logits(&dense, floats, &ids);
        assert_eq!(logits(&files, floats, &ids), expected, "{}", folder.display());
        let found = logits(&files, formats(None, Some("f16")), &ids);
        // Activations are rounded to int8, and the sorted one's weights too.
        let off = distance(&found, &expected);
        assert!(off < 1e-3, "{}: {off}", folder.display());

        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let options = Options { formats: formats(None, Some("f16")), ..Options::default() };
        let report = written(&files, &out, &options);
        assert_eq!(report.body.to_string(), native);
        assert_eq!(logits(&open(&out), Formats::default(), &ids), found, "{}", folder.display());
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let files = open(&project(DENSE[0]));
    let dir = tempfile::tempdir().unwrap();
    let calibration = Some(ids(files.config.context.min(512), files.config.vocab, 7));
    for (method, calibration) in [(Method::Search, None), (Method::Gptq, calibration)] {
        let options = Options { formats: formats(Some("int4-g32"), None), method, calibration };
        let mut seen = false;
        let result =
            quantize::<CpuTsar>(&Default::default(), &files, &dir.path().join("out"), &options, &mut |status| {
                seen |= !entries(dir.path()).is_empty();
                status.done < 0.5
            });
        assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
        assert!(seen && entries(dir.path()).is_empty(), "{:?}", entries(dir.path()));
    }
}

#[test]
fn a_damaged_model_leaves_nothing() {
    let copy = copy_of(DENSE[0]);
    let path = copy.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 64..].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut command = trine();
    let line = failure(command.args(["quantize", "--to", "int8"]).arg(copy.path()).arg(&out), 1);
    assert!(line.contains("model.safetensors: tensor ") && line.contains("NaN"), "{line}");
    assert!(entries(dir.path()).is_empty());
}

#[test]
fn the_program_quantises_and_runs_the_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("small");
    let (out_text, text) = (out.to_str().unwrap(), dir.path().join("text"));
    fs::write(&text, "There was once a king who had three sons. ".repeat(60)).unwrap();
    let ran = run(trine().args(["quantize", "demo", out_text, "--head", "int4-g32", "--calibrate"]).arg(&text));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
    assert!(
        ran.stderr.contains("small: weights ternary, head int4-g32, ") && ran.stderr.lines().count() == 1,
        "{ran:?}"
    );
    let info: Value = serde_json::from_str(&stdout(&["info", "-m", out_text, "--json"])).unwrap();
    assert_eq!((&info["weights"], &info["head"]), (&"ternary".into(), &"int4-g32".into()));
    assert_eq!(info["file"]["quantization"], "trine");
    let story = stdout(&["run", "-m", out_text, "-n", "20", "--temp", "0", "Once upon a time"]);
    assert!(story.split_whitespace().count() > 8, "{story}");
    let mut names: Vec<_> = entries(&out).iter().map(|path| path.file_name().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(
        names,
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    );
    assert_eq!(
        failure(trine().args(["quantize", "demo", out_text]), 1),
        format!("{out_text}: is there and not empty: name a new directory, or remove it first")
    );
}

#[test]
fn what_does_not_fit_is_refused_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let problem = |args: &[&str], code| failure(trine().arg("quantize").args(args).arg(&out), code);
    let dense = project(DENSE[0]);
    let dense = dense.to_str().unwrap();
    let line = problem(&[dense, "--to", "ternary"], 2);
    assert!(
        line.ends_with("has no ternary weights: quantise to one of int4-g32, int4-g64, int4-g128, int4-row, int8"),
        "{line}"
    );
    let line = problem(&[dense, "--to", "int4-g32", "--method", "gptq"], 2);
    assert_eq!(line, "--method gptq needs a text: give one with --calibrate FILE");
    let text = dir.path().join("text");
    fs::write(&text, "a short text").unwrap();
    let text = text.to_str().unwrap();
    let line = problem(&["demo", "--calibrate", text], 2);
    assert_eq!(line, "--calibrate is of no use to ternary weights: only int4 formats choose by it");
    let line = problem(&["demo", "--head", "int4-g32", "--calibrate", text], 1);
    assert!(
        line.starts_with("the calibration text has ") && line.ends_with("tokens: give one of at least 512"),
        "{line}"
    );
    let line = problem(&[dense, "--to", "int4-g32", "--calibrate", text], 1);
    assert!(line.ends_with("tokenizer.json is missing: text can't be read"), "{line}");
    assert!(problem(&[dense, "--to", "int4-g31"], 2).contains("'int4-g31' is no weight format"));
    assert!(problem(&[dense, "--method", "awq"], 2).contains("'awq' is no method: it is one of rtn, search, gptq"));
    assert!(problem(&["none"], 1).starts_with("none: No such file"));
    assert_eq!(entries(dir.path()).len(), 1);
}
