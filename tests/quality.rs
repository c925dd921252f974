//! What the number formats cost: perplexity of the demo model on held-out tales.

use std::path::Path;

use trine::engine::{Engine, EngineOptions};
use trine::files::ModelFiles;
use trine::model::Formats;
use trine::perplexity::perplexity;
use trine::tokens::Special;
use trine_backend::KvFormat;
use trine_cpu_tsar::{CpuTsar, Options};

/// By transformers in float32: the first 60,000 characters tokenised at once, windows of 512.
const REFERENCE: f64 = 23.716;

#[test]
fn perplexity_of_the_demo_model() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/text/tales-val.txt");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: {} is not there (third-party text)", path.display());
        return;
    };
    let text: String = text.chars().take(60_000).collect();
    let files = ModelFiles::demo().unwrap();
    let ids = files.require_tokenizer().unwrap().encode(&text, Special::PROMPT).unwrap();
    let measure = |head: Option<&str>, kv| {
        let formats = Formats { body: None, head: head.map(|name| name.parse().unwrap()), ..Formats::default() };
        let options = EngineOptions { formats, kv, outputs: 512, context: Some(512), ..EngineOptions::default() };
        let mut engine = Engine::<CpuTsar>::load(&Options::default(), &files, &options, &mut |_| {}).unwrap();
        let result = perplexity(&mut engine, &ids, 512, |_, _, _| {}).unwrap();
        println!("head {head:?}, KV {kv:?}: {:.3} over {} targets", result.value(), result.targets);
        assert_eq!(result.targets, 15_872);
        result.value()
    };
    let exact = measure(Some("bf16"), KvFormat::F32);
    assert!((exact / REFERENCE - 1.0).abs() < 0.005, "{exact} where the reference has {REFERENCE}");
    // The default: INT8 embedding and lm_head, f16 KV cache.
    let default = measure(None, KvFormat::F16);
    assert!((default / REFERENCE - 1.0).abs() < 0.005, "{default} where the reference has {REFERENCE}");
}
