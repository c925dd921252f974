//! The small files of a quantised model: the source's own, with a `config.json` that says how the weights are stored.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::Targets;
use crate::files::ModelFiles;
use crate::{Error, Result};

/// Writes them into `dir`.
///
/// # Errors
/// One can't be read or written.
pub(super) fn write(files: &ModelFiles, targets: &Targets, dir: &Path) -> Result<()> {
    for (name, bytes) in files.documents()? {
        let bytes = if name == "config.json" { with_quantization(&files.path, &bytes, targets)? } else { bytes };
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|error| Error::file(&path, error))?;
    }
    Ok(())
}

/// The `config.json` with our `quantization_config`, or with none where all weights are floats.
fn with_quantization(model: &Path, text: &[u8], targets: &Targets) -> Result<Vec<u8>> {
    let mut config: Map<String, Value> = serde_json::from_slice(text)
        .map_err(|error| Error::file(model.join("config.json"), format_args!("not a JSON object: {error}")))?;
    config.remove("quantization_config");
    if !targets.body.is_dense() || !targets.head.is_dense() {
        let quantization = json!({
            "quant_method": "trine",
            "version": 1,
            "weights": targets.body.to_string(),
            "head": targets.head.to_string(),
            "activations": if targets.per_token { "token" } else { "block" },
        });
        config.insert("quantization_config".to_owned(), quantization);
    }
    Ok(format!("{:#}\n", Value::Object(config)).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, body: &str, head: &str) -> Value {
        let targets = Targets { body: body.parse().unwrap(), head: head.parse().unwrap(), per_token: false };
        serde_json::from_slice(&with_quantization(Path::new("m"), text.as_bytes(), &targets).unwrap()).unwrap()
    }

    #[test]
    fn only_the_quantisation_changes() {
        let found = written(
            r#"{"vocab_size": 5, "quantization_config": {"quant_method": "awq"}, "x": [1]}"#,
            "int4-g32",
            "int8",
        );
        let expected = json!({"vocab_size": 5, "x": [1], "quantization_config": {"quant_method": "trine", "version": 1,
            "weights": "int4-g32", "head": "int8", "activations": "block"}});
        assert_eq!(found, expected);
        assert_eq!(written(r#"{"quantization_config": {}}"#, "bf16", "f32"), json!({}));
    }

    #[test]
    fn a_broken_config_is_told() {
        let targets = Targets { body: "int8".parse().unwrap(), head: "int8".parse().unwrap(), per_token: false };
        let problem = with_quantization(Path::new("m"), b"[1]", &targets).unwrap_err().to_string();
        assert!(problem.starts_with("m/config.json: not a JSON object: "), "{problem}");
    }
}
