//! `trine pull`, from a hub on this machine, and models that were pulled.

use std::path::Path;

use assert_cmd::Command;
use trine::backend::CAN_PULL;

use crate::program::{failure, project, run, trine};

// The hub's own tests use all of it.
#[allow(dead_code)]
#[path = "../hub/tests/pull/server.rs"]
mod server;

use server::{COMMIT, Fault, REPO, Server};

/// The program, with its cache here and nothing else said about hubs.
fn with_cache(cache: &Path) -> Command {
    let mut command = trine();
    for name in
        ["HF_HOME", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT"]
    {
        command.env_remove(name);
    }
    command.env("HF_HUB_CACHE", cache).env("HF_TOKEN_PATH", "/nowhere/token");
    command
}

/// A name for contents that is no checksum: those are the hub's own tests' matter.
fn tag(bytes: &[u8], large: bool) -> String {
    format!("tag-{}-{large}", bytes.len())
}

fn demo(file: &str) -> Vec<u8> {
    std::fs::read(project("models/tales-bitnet-20m").join(file)).unwrap()
}

#[test]
fn a_pulled_model_runs_by_its_name() {
    let cache = tempfile::tempdir().unwrap();
    let snapshot = cache.path().join("models--owner--some-model/snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    for file in
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
    {
        std::fs::write(snapshot.join(file), demo(file)).unwrap();
    }
    let refs = cache.path().join("models--owner--some-model/refs");
    std::fs::create_dir(&refs).unwrap();
    std::fs::write(refs.join("main"), COMMIT).unwrap();

    let text =
        |model: &[&str]| run(with_cache(cache.path()).args(["run", "Once upon", "-n", "8", "-s", "1"]).args(model));
    let ran = text(&["-m", REPO]);
    assert_eq!((ran.code, &ran.stdout), (Some(0), &text(&[]).stdout), "{ran:?}");
    // Offline it is found for pull too.
    let ran = run(with_cache(cache.path()).env("HF_HUB_OFFLINE", "1").args(["pull", REPO]));
    assert_eq!((ran.code, ran.stdout.trim_end()), (Some(0), snapshot.to_str().unwrap()), "{}", ran.stderr);

    let line = failure(with_cache(cache.path()).args(["info", "-m", "owner/other"]), 1);
    assert!(line.starts_with("owner/other: no such file, and not pulled to "), "{line}");
    assert!(line.ends_with("get it with `trine pull owner/other`"), "{line}");
    let line = failure(with_cache(cache.path()).env("HF_HUB_OFFLINE", "1").args(["pull", "owner/other"]), 1);
    assert!(line.contains("not pulled to"), "{line}");
    let line = failure(with_cache(cache.path()).args(["pull", "gpt2"]), 2);
    assert!(line.contains("'gpt2' is no model on the hub: give OWNER/NAME"), "{line}");
}

#[test]
fn a_program_without_a_network_client_says_how_to_get_one() {
    if CAN_PULL {
        println!("skipped: this program has a network client");
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let line = failure(with_cache(cache.path()).args(["pull", REPO]), 1);
    assert!(line.contains("--features pull"), "{line}");
}

#[test]
fn a_model_is_pulled_and_runs() {
    if !CAN_PULL {
        println!("skipped: built without the feature pull");
        return;
    }
    let names =
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
    let contents = names.map(demo);
    let mut files: Vec<(&str, &[u8], bool)> = names
        .iter()
        .zip(&contents)
        .map(|(&name, bytes)| (name, bytes.as_slice(), name == "model.safetensors"))
        .collect();
    files.push(("pytorch_model.bin", b"not wanted", true));
    let server = Server::start(&files, Some("hf_secret"), tag);
    let cache = tempfile::tempdir().unwrap();
    let pull = |token: &str| {
        let mut command = with_cache(cache.path());
        command.env("HF_ENDPOINT", &server.endpoint).env("HF_TOKEN", token).args(["pull", REPO]);
        command
    };
    let line = failure(&mut pull("hf_other"), 1);
    assert!(line.contains("owner/some-model@main: gated"), "{line}");
    // The four small files, then a break in the large one.
    server.fail(&[
        Fault::CloseAfter(usize::MAX),
        Fault::CloseAfter(usize::MAX),
        Fault::CloseAfter(usize::MAX),
        Fault::CloseAfter(usize::MAX),
        Fault::CloseAfter(1_000_000),
    ]);
    let ran = run(&mut pull("hf_secret"));
    let snapshot = cache.path().join("models--owner--some-model/snapshots").join(COMMIT);
    assert_eq!((ran.code, ran.stdout.trim_end()), (Some(0), snapshot.to_str().unwrap()), "{}", ran.stderr);
    let mut pulled: Vec<_> =
        std::fs::read_dir(&snapshot).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    pulled.sort();
    let mut expected = names;
    expected.sort();
    assert_eq!(pulled, expected);
    let resumed = server.seen().iter().any(|seen| seen.storage && seen.range.as_deref() == Some("bytes=1000000-"));
    assert!(resumed, "the break was gone on with");
    let run_it =
        |model: &[&str]| run(with_cache(cache.path()).args(["run", "Once upon", "-n", "8", "-s", "1"]).args(model));
    let ran = run_it(&["-m", REPO]);
    assert_eq!((ran.code, &ran.stdout), (Some(0), &run_it(&[]).stdout), "{ran:?}");
}

#[test]
fn one_of_several_gguf_files_is_chosen() {
    if !CAN_PULL {
        println!("skipped: built without the feature pull");
        return;
    }
    let server = Server::start(&[("m-Q4_0.gguf", b"GGUF four", true), ("m-Q8_0.gguf", b"GGUF eight", true)], None, tag);
    let cache = tempfile::tempdir().unwrap();
    let pull = |name: &str| {
        let mut command = with_cache(cache.path());
        command.env("HF_ENDPOINT", &server.endpoint).args(["pull", name]);
        command
    };
    let line = failure(&mut pull(REPO), 1);
    assert!(line.contains(":Q4_K_M") && line.ends_with("m-Q4_0.gguf, m-Q8_0.gguf"), "{line}");
    let ran = run(&mut pull(&format!("{REPO}:q8_0")));
    let path = Path::new(ran.stdout.trim_end());
    assert!(ran.code == Some(0) && path.ends_with(format!("{COMMIT}/m-Q8_0.gguf")), "{ran:?}");
    assert_eq!(std::fs::read(path).unwrap(), b"GGUF eight");
}
