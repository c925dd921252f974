//! Tokenizers for tests.

use serde_json::{Value, json};

use super::Tokenizer;

impl Tokenizer {
    /// The library's own decoding, to compare with.
    pub(in crate::tokens) fn library_decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.inner.decode(ids, skip_special).unwrap()
    }
}

/// The file `name` of the demo model.
pub(in crate::tokens) fn demo_file(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/models/tales-bitnet-20m/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The demo model's byte-level BPE.
pub(in crate::tokens) fn demo() -> Tokenizer {
    let config = demo_file("tokenizer_config.json");
    Tokenizer::from_bytes(&demo_file("tokenizer.json"), Some(&config), "demo").unwrap()
}

/// `tokenizer.json` in the style of Llama 2: SentencePiece with a dummy prefix and byte fallback; no post-processor.
pub(in crate::tokens) fn byte_fallback_json() -> Value {
    let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    vocab.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    vocab.extend(["▁", "a", "b", "▁a", "▁b", "ab"].map(String::from));
    let ids: serde_json::Map<_, _> = vocab.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    json!({
        "added_tokens": (0..3).zip(["<unk>", "<s>", "</s>"]).map(|(id, token)| added(id, token, true)).collect::<Vec<_>>(),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": ids,
            "merges": [["▁", "a"], ["▁", "b"], ["a", "b"]],
        },
    })
}

/// [`byte_fallback_json`] with the config `config`.
pub(in crate::tokens) fn byte_fallback_with(config: Value) -> Tokenizer {
    read(&byte_fallback_json(), Some(&config)).unwrap()
}

/// [`byte_fallback_json`] with BOS and EOS as Llama 2 has them.
pub(in crate::tokens) fn byte_fallback() -> Tokenizer {
    byte_fallback_with(json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true}))
}

/// A unigram tokenizer that marks words by Metaspace, ids 0 to 5.
pub(in crate::tokens) fn metaspace() -> Tokenizer {
    let marks = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"});
    let json = json!({
        "added_tokens": [added(1, "</s>", true)],
        "pre_tokenizer": marks,
        "decoder": marks,
        "model": {"type": "Unigram", "unk_id": 0, "vocab":
            [["<unk>", 0.0], ["</s>", 0.0], ["▁", -2.0], ["▁a", -1.0], ["▁b", -1.0], ["▁a▁b", -9.0]]},
    });
    read(&json, None).unwrap()
}

/// An entry of `added_tokens`.
pub(in crate::tokens) fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "special": special,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
}

/// Reads `json` and `config` under the name `t.json`.
pub(in crate::tokens) fn read(json: &Value, config: Option<&Value>) -> crate::Result<Tokenizer> {
    let config = config.map(Value::to_string);
    Tokenizer::from_bytes(json.to_string().as_bytes(), config.as_deref().map(str::as_bytes), "t.json")
}
