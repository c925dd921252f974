//! Recognises what a path holds when it is not a Hugging Face safetensors model, so that the error can say what was
//! found and what would work.

use std::path::Path;

use crate::{Error, Result};

/// What works today.
const WANTED: &str = "give a Hugging Face directory with safetensors, or a GGUF file";

/// What `bytes`, the beginning of a file, are, if they are plainly something else than safetensors.
pub(super) fn not_safetensors(bytes: &[u8]) -> Option<String> {
    // A header of 640 bytes begins as a pickle does; what follows the length tells them apart.
    if bytes.get(8) == Some(&b'{') {
        return None;
    }
    let found = if bytes.starts_with(super::gguf::MAGIC) {
        return Some("a GGUF file: give that file itself, not the directory".to_owned());
    } else if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"\x80\x02") {
        "a PyTorch checkpoint (pickle), which is not read because it can hold code"
    } else if bytes.starts_with(b"version https://git-lfs.github.com/spec/") {
        return Some("a Git LFS pointer, not the weights: run `git lfs pull` in the model's directory".to_owned());
    } else {
        return None;
    };
    Some(format!("{found}: {WANTED}"))
}

/// Why the directory `dir`, which has neither `model.safetensors` nor its index, is no model.
///
/// # Errors
/// The directory can't be listed.
pub(super) fn why_no_model(dir: &Path) -> Result<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| Error::file(dir, error))? {
        let entry = entry.map_err(|error| Error::file(dir, error))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(describe(&names))
}

/// The line for a directory with these files, sorted by name.
fn describe(names: &[String]) -> String {
    let find = |wanted: &dyn Fn(&str) -> bool| names.iter().find(|name| wanted(name));
    let is_pytorch = |name: &str| {
        [".pt", ".pth"].iter().any(|end| name.ends_with(end))
            || (name.ends_with(".bin") && (name.starts_with("pytorch_model") || name.starts_with("model")))
    };
    let is_tokenizer = |name: &str| name.starts_with("tokenizer") || name == "vocab.json" || name == "merges.txt";
    if let Some(name) = find(&|name| name.starts_with("adapter_model.")) {
        return format!("holds an adapter ({name}), not a model: merge it into its base model and {WANTED}");
    }
    if let Some(name) = find(&|name| name.ends_with(".safetensors")) {
        return format!("holds {name} but neither model.safetensors nor model.safetensors.index.json");
    }
    if let Some(name) = find(&|name| name.to_ascii_lowercase().ends_with(".gguf")) {
        return format!("holds GGUF weights ({name}): give that file itself");
    }
    if let Some(name) = find(&is_pytorch) {
        return format!("holds PyTorch weights ({name}), which are not read because they can hold code: {WANTED}");
    }
    if let Some(name) = find(&is_tokenizer) {
        return format!("holds a tokenizer ({name}) but no weights: {WANTED}");
    }
    format!("holds no model: {WANTED} (config.json, model.safetensors, tokenizer.json)")
}
