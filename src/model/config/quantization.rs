//! How a checkpoint stores its linear layers: `quantization_config`.

use super::fields::{Fields, brief, list};
use crate::Result;
pub use crate::formats::Quantization;
use crate::formats::words::{GptqBits, GroupSize, Packing, is_group_size};

impl Quantization {
    pub(super) fn read(config: &Fields<'_>) -> Result<Self> {
        let Some(fields) = config.object("quantization_config")? else { return Ok(Quantization::None) };
        let method = fields.required("quant_method", fields.text("quant_method")?)?;
        match method {
            "bitnet" => {}
            "trine" => return read_trine(&fields),
            "awq" => return read_awq(&fields),
            "gptq" => return read_gptq(&fields),
            _ => {
                let problem = format_args!(
                    "{} is not supported: awq, bitnet, gptq and trine are, and models without quantisation",
                    list(&[method])
                );
                return Err(fields.error("quant_method", problem));
            }
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

/// Our own layout: the tensors say the rest.
fn read_trine(fields: &Fields<'_>) -> Result<Quantization> {
    match fields.required("version", fields.count("version")?)? {
        1 => {}
        other => {
            let problem = format_args!("{other} is not supported: 1 is; this file is from a newer version");
            return Err(fields.error("version", problem));
        }
    }
    Ok(Quantization::Trine { per_token: choice(fields, "activations", ["block", "token"])? == "token" })
}

fn read_awq(fields: &Fields<'_>) -> Result<Quantization> {
    check_exceptions(fields)?;
    let (_, group) = bits_and_group(fields, ["w_bit", "q_group_size"], &[4])?;
    if fields.flag("zero_point")? == Some(false) {
        return Err(fields.error("zero_point", "false is not supported: AWQ's weights with zero points are"));
    }
    match fields.text("version")?.map(str::to_ascii_lowercase).as_deref() {
        None | Some("gemm") => Ok(Quantization::Words { packing: Packing::Awq, group }),
        Some(other) => {
            let problem = format_args!("{} is not supported: gemm is", list(&[other]));
            Err(fields.error("version", problem))
        }
    }
}

fn read_gptq(fields: &Fields<'_>) -> Result<Quantization> {
    check_exceptions(fields)?;
    let (bits, group) = bits_and_group(fields, ["bits", "group_size"], &[4, 8])?;
    let bits = if bits == 8 { GptqBits::Eight } else { GptqBits::Four };
    for field in ["is_marlin_format", "lm_head"] {
        if fields.flag(field)?.unwrap_or(false) {
            return Err(fields.error(field, "true is not supported"));
        }
    }
    if fields.object("dynamic")?.is_some_and(|dynamic| !dynamic.is_empty()) {
        return Err(fields.error("dynamic", "layers of different kinds are not supported"));
    }
    let less_one = match fields.text("checkpoint_format")? {
        None | Some("gptq") => true,
        Some("gptq_v2") => false,
        Some(other) => {
            let problem = format_args!("{} is not supported: gptq, gptq_v2 are", list(&[other]));
            return Err(fields.error("checkpoint_format", problem));
        }
    };
    Ok(Quantization::Words { packing: Packing::Gptq { bits, less_one }, group })
}

/// Reads the bits of a code, which must be among `supported`, and the size of a group, where -1 is a whole row; both
/// fields have older names.
fn bits_and_group(
    fields: &Fields<'_>,
    [old_bits, old_group]: [&str; 2],
    supported: &[u64],
) -> Result<(u64, GroupSize)> {
    let either =
        |new: &'static str, old: &str| if fields.value(new).is_some() { new.to_owned() } else { old.to_owned() };
    let (bits, group) = (either("bits", old_bits), either("group_size", old_group));
    let found = fields.required("bits", fields.count(&bits)?)?;
    if !supported.contains(&found) {
        let known = if supported.len() == 1 { "4 is" } else { "4 and 8 are" };
        return Err(fields.error(&bits, format_args!("{found} is not supported: {known}")));
    }
    match fields.required("group_size", fields.number(&group)?)? {
        -1.0 => Ok((found, None)),
        size if size.fract() == 0.0 && size <= f64::from(1 << 20) && is_group_size(size as usize) => {
            Ok((found, Some(size as usize)))
        }
        _ => {
            let found = fields.value(&group).map(brief).unwrap_or_default();
            Err(fields.error(&group, format_args!("{found} is not supported: multiples of 32 are, and -1")))
        }
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
