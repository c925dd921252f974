//! `trine info`: what is in a model and what it takes.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use trine_backend::{Backend, KvFormat, KvShape};

use super::Exit;
use super::args::InfoArgs;
use super::output::{columns, count, print, print_json};
use crate::Result;
use crate::engine::EngineOptions;
use crate::files::ModelFiles;
use crate::formats::Checkpoint;
use crate::formats::words::Packing;
use crate::memory::{self, human};
use crate::model::{Extent, Formats, Plan, Quantization, load};

/// Runs the subcommand. Reads headers only; no weight is loaded.
pub(super) fn run<B: Backend>(args: &InfoArgs) -> Result<Exit> {
    let files = args.model.open()?;
    let options = EngineOptions { context: args.sizes.ctx_size, batch: args.sizes.batch_size, ..args.formats.engine() };
    let extent = options.extent(&files.config)?;
    let plan = Plan::new::<B>(&files.config, &files.checkpoint, &options.formats, &extent)?;
    let coded = load::body_is_coded(&files.checkpoint, &files.config, &Formats::default())?;
    let report = Report { files: &files, plan, extent, kv: args.formats.kv.name(), coded };
    if args.json {
        print_json(&report.json()?)?;
    } else {
        print(&columns(&report.rows()?))?;
    }
    Ok(Exit::Success)
}

/// Bytes of keys and values that one position takes, over all layers.
pub(super) fn kv_per_position(shape: &KvShape, format: KvFormat) -> u64 {
    KvShape { sequences: 1, context: 1, ..*shape }.bytes(format) as u64
}

struct Report<'a> {
    files: &'a ModelFiles,
    plan: Plan,
    extent: Extent,
    kv: &'static str,
    /// Whether the layers' weights are codes in the file.
    coded: bool,
}

impl Report<'_> {
    fn quantization(&self) -> &'static str {
        match self.files.config.quantization {
            Quantization::None if self.coded => "in GGUF's blocks",
            Quantization::None => "none",
            Quantization::Bitnet { online: true, .. } => "bitnet, ternarised on loading",
            Quantization::Bitnet { online: false, .. } => "bitnet, packed",
            Quantization::Trine { .. } => "trine",
            Quantization::Words { packing: Packing::Awq, .. } => "AWQ",
            Quantization::Words { packing: Packing::Gptq { .. }, .. } => "GPTQ",
        }
    }

    fn weights(&self) -> u64 {
        self.plan.body.saturating_add(self.plan.head).saturating_add(self.plan.vectors)
    }

    fn rows(&self) -> Result<Vec<(&'static str, String)>> {
        let (files, plan, config) = (self.files, &self.plan, &self.files.config);
        let dtypes: Vec<_> =
            dtypes(&files.checkpoint).iter().map(|(name, bytes)| format!("{name} {}", human(*bytes))).collect();
        let tokens = match &files.tokenizer {
            None => "none: text can't be read".to_owned(),
            Some(tokenizer) => format!("{} tokens", tokenizer.vocab_size()),
        };
        let free = memory::available().map_or(String::new(), |free| format!(", {} is free", human(free)));
        Ok(vec![
            ("model", files.path.display().to_string()),
            ("family", config.family.name().into()),
            ("parameters", count(plan.parameters)),
            ("layers", config.layers.to_string()),
            ("hidden", config.hidden.to_string()),
            ("feed-forward", config.intermediate.to_string()),
            ("heads", format!("{} query, {} key/value, of {}", config.heads.query, config.heads.kv, config.heads.dim)),
            (
                "vocabulary",
                format!("{}{}", config.vocab, if config.tied { ", lm_head tied to the embedding" } else { "" }),
            ),
            ("positions", config.context.to_string()),
            ("tokenizer", tokens),
            ("chat template", if files.chat.is_some() { "yes" } else { "no" }.into()),
            (
                "in the file",
                format!(
                    "{} ({}), quantisation {}",
                    human(files.checkpoint.total_bytes()),
                    dtypes.join(", "),
                    self.quantization()
                ),
            ),
            ("layers as", format!("{}, {}", plan.body_format, human(plan.body))),
            ("head as", format!("{}, {}", plan.head_format, human(plan.head))),
            ("norms and RoPE", human(plan.vectors)),
            ("KV cache", format!("{} for {} tokens of {}", human(plan.kv), self.extent.kv.context, self.kv)),
            ("activations", format!("{} for steps of {} tokens", human(plan.activations), self.extent.rows)),
            ("memory", format!("{}{free}", human(plan.total()))),
            (
                "read per token",
                format!(
                    "{} of weights, and {} of KV cache for each token before",
                    human(plan.read_per_token),
                    human(kv_per_position(&self.extent.kv, self.extent.kv_format))
                ),
            ),
        ])
    }

    fn json(&self) -> Result<Value> {
        let (files, plan, config) = (self.files, &self.plan, &self.files.config);
        let tokenizer = files.tokenizer.as_ref().map(
            |tokenizer| json!({ "tokens": tokenizer.vocab_size(), "bos": tokenizer.bos(), "eos": tokenizer.eos() }),
        );
        Ok(json!({
            "model": files.path.display().to_string(),
            "family": config.family.name(),
            "parameters": plan.parameters,
            "layers": config.layers,
            "hidden": config.hidden,
            "intermediate": config.intermediate,
            "heads": { "query": config.heads.query, "kv": config.heads.kv, "dim": config.heads.dim },
            "vocab": config.vocab,
            "tied": config.tied,
            "positions": config.context,
            "bos": config.bos,
            "eos": config.eos,
            "tokenizer": tokenizer,
            "chat_template": files.chat.is_some(),
            "sampling": {
                "do_sample": config.sampling.do_sample,
                "temperature": config.sampling.temperature,
                "top_p": config.sampling.top_p,
                "top_k": config.sampling.top_k,
                "repetition_penalty": config.sampling.repetition_penalty,
            },
            "file": {
                "bytes": files.checkpoint.total_bytes(),
                "dtypes": dtypes(&files.checkpoint),
                "quantization": self.quantization(),
            },
            "weights": plan.body_format.to_string(),
            "head": plan.head_format.to_string(),
            "kv": self.kv,
            "context": self.extent.kv.context,
            "batch": self.extent.rows,
            "memory": {
                "layers": plan.body,
                "head": plan.head,
                "vectors": plan.vectors,
                "weights": self.weights(),
                "kv": plan.kv,
                "activations": plan.activations,
                "total": plan.total(),
                "available": memory::available(),
            },
            "read_per_token": plan.read_per_token,
            "kv_bytes_per_position": kv_per_position(&self.extent.kv, self.extent.kv_format),
        }))
    }
}

/// Bytes of each dtype in the file.
fn dtypes(checkpoint: &Checkpoint) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    for (_, dtype, size) in checkpoint.stored() {
        *bytes.entry(dtype).or_default() += size;
    }
    bytes
}
