//! A model that is one GGUF file.

use std::path::Path;

use serde_json::Value;

use super::{ModelFiles, check_vocabulary};
use crate::formats::Checkpoint;
use crate::formats::gguf::{GgufFile, GgufTensors, Metadata};
use crate::model::{Config, RopeScaling};
use crate::tokens::{ChatTemplate, Tokenizer};
use crate::{Error, Result};

/// Opens the GGUF file at `path`.
///
/// # Errors
/// It is damaged, or describes something unsupported.
pub(super) fn open(path: &Path) -> Result<ModelFiles> {
    from_file(path, GgufFile::open(path)?)
}

/// The model in `file`, which `path` names.
///
/// # Errors
/// As [`open`].
pub(super) fn from_file(path: &Path, file: GgufFile) -> Result<ModelFiles> {
    let (metadata, tensors) = file.split()?;
    let config = config(&metadata, &tensors)?;
    let name = path.display().to_string();
    let (mut tokenizer, mut chat) = (None, None);
    if let Some(files) = metadata.tokenizer_files()? {
        // As text alone: as a tree it takes ten times as much, while the tokenizer's own tables are made.
        let json = files.tokenizer.to_string();
        drop(files.tokenizer);
        let read = Tokenizer::from_bytes(json.as_bytes(), Some(files.config.to_string().as_bytes()), &name)?;
        check_vocabulary(&read, &config, path)?;
        tokenizer = Some(read);
        let [bos, eos] = &files.ends;
        let template = files.chat_template.as_deref();
        chat =
            template.map(|template| ChatTemplate::new(template, bos.as_deref(), eos.as_deref(), &name)).transpose()?;
    }
    Ok(ModelFiles { path: path.to_owned(), config, checkpoint: Checkpoint::from_gguf(tensors), tokenizer, chat })
}

/// What the metadata of the file at `path` say in the words of a Hugging Face directory's files: `config.json`,
/// `tokenizer.json`, `tokenizer_config.json`.
///
/// # Errors
/// The file is damaged, or its configuration `expected` has something that `config.json` has no words for.
pub(super) fn documents(path: &Path, expected: &Config) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let (metadata, tensors) = GgufFile::open(path)?.split()?;
    let pretty = |value: &Value| format!("{value:#}\n").into_bytes();
    let config = metadata.config_json(&tensors)?;
    let read = Config::parse((path, config.to_string().as_bytes()), None)?;
    if read != *expected {
        let problem = "its biases or RoPE factors have no words in config.json: quantise its Hugging Face checkpoint";
        return Err(Error::file(path, problem));
    }
    let mut documents = vec![("config.json", pretty(&config))];
    if let Some(files) = metadata.tokenizer_files()? {
        let mut config = files.config;
        if let Value::Object(config) = &mut config {
            let [bos, eos] = &files.ends;
            for (key, value) in [("bos_token", bos), ("eos_token", eos), ("chat_template", &files.chat_template)] {
                if let Some(value) = value {
                    config.insert(key.to_owned(), value.as_str().into());
                }
            }
        }
        documents.push(("tokenizer.json", files.tokenizer.to_string().into_bytes()));
        documents.push(("tokenizer_config.json", pretty(&config)));
    }
    Ok(documents)
}

/// The configuration: what the metadata say, and what only the tensors know.
fn config(metadata: &Metadata, tensors: &GgufTensors) -> Result<Config> {
    let json = metadata.config_json(tensors)?.to_string();
    let path = metadata.path();
    let mut config = Config::parse((path, json.as_bytes()), None)?;
    let has = |tail: &str| tensors.contains(&format!("model.layers.0.{tail}.bias"));
    config.qkv_bias = has("self_attn.q_proj");
    config.output_bias = has("self_attn.o_proj");
    config.mlp_bias = has("mlp.down_proj");
    if let Some(factors) = tensors.rope_factors()? {
        config.rope.scaling = rope_factors(&config, factors).map_err(|problem| Error::file(path, problem))?;
    }
    Ok(config)
}

fn rope_factors(config: &Config, factors: Vec<f32>) -> std::result::Result<RopeScaling, String> {
    let pairs = config.heads.dim / 2;
    if factors.len() != pairs {
        return Err(format!("rope_freqs.weight: {} factors for {pairs} frequencies", factors.len()));
    }
    if let Some(factor) = factors.iter().find(|factor| **factor <= 0.0) {
        return Err(format!("rope_freqs.weight: the factor {factor} is not positive"));
    }
    match config.rope.scaling {
        RopeScaling::None => Ok(RopeScaling::Factors { divisors: factors.into() }),
        _ => Err("rope_freqs.weight together with rope.scaling is not supported".to_owned()),
    }
}
