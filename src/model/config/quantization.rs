//! How a checkpoint stores its linear layers: `quantization_config`.

use super::fields::{Fields, list};
use crate::Result;
pub use crate::formats::Quantization;

impl Quantization {
    pub(super) fn read(config: &Fields<'_>) -> Result<Self> {
        let Some(fields) = config.object("quantization_config")? else { return Ok(Quantization::None) };
        let method = fields.required("quant_method", fields.text("quant_method")?)?;
        if method != "bitnet" {
            let problem =
                format_args!("{} is not supported: bitnet is, and models without quantisation", list(&[method]));
            return Err(fields.error("quant_method", problem));
        }
        check_exceptions(&fields)?;
        if fields.flag("use_rms_norm")?.unwrap_or(false) {
            return Err(fields.error("use_rms_norm", "norms inside the linear layers are not supported"));
        }
        // Files older than the field mean bitlinear.
        let divide = choice(&fields, "linear_class", ["bitlinear", "autobitlinear"])? == "bitlinear";
        let online = choice(&fields, "quantization_mode", ["offline", "online"])? == "online";
        if divide && online {
            return Err(fields.error("quantization_mode", "bitlinear weights are packed: online needs autobitlinear"));
        }
        Ok(Quantization::Bitnet { divide, online })
    }
}

/// One of two words, by default the first.
fn choice(fields: &Fields<'_>, field: &str, words: [&'static str; 2]) -> Result<&'static str> {
    let Some(found) = fields.text(field)? else { return Ok(words[0]) };
    words.into_iter().find(|word| *word == found).ok_or_else(|| {
        let problem = format_args!("{} is not supported: {}, {} are", list(&[found]), words[0], words[1]);
        fields.error(field, problem)
    })
}

/// `modules_to_not_convert` may name what is never converted anyway; other exceptions would need a layer-by-layer
/// mixture that no published model has.
fn check_exceptions(fields: &Fields<'_>) -> Result<()> {
    let never_converted = ["lm_head", "embed_tokens", "model.embed_tokens", "model.norm"];
    let names = fields.texts("modules_to_not_convert")?.unwrap_or_default();
    match names.iter().find(|name| !never_converted.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let problem =
                format_args!("{} is not supported: only lm_head and the embeddings stay floats", list(&[name]));
            Err(fields.error("modules_to_not_convert", problem))
        }
    }
}
