//! How a model's makers generate: `generation_config.json`.

use serde_json::Value;

use super::fields::{Fields, brief};
use crate::Result;

/// More ending tokens than any model has.
const MOST_ENDS: usize = 1024;

/// The sampling that the model's makers suggest; `None` where they say nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Whether to sample at all rather than take the likeliest token.
    pub do_sample: Option<bool>,
    /// At least 0; 0 is greedy.
    pub temperature: Option<f32>,
    /// In (0, 1].
    pub top_p: Option<f32>,
    /// 0 is no limit.
    pub top_k: Option<u64>,
    /// Over 0; 1 is no penalty.
    pub repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self {
            do_sample: fields.flag("do_sample")?,
            temperature: in_range(fields, "temperature", "0 to 100", |x| (0.0..=100.0).contains(&x))?,
            top_p: in_range(fields, "top_p", "over 0 to 1", |x| x > 0.0 && x <= 1.0)?,
            top_k: fields.count("top_k")?,
            repetition_penalty: in_range(fields, "repetition_penalty", "over 0 to 100", |x| x > 0.0 && x <= 100.0)?,
        })
    }
}

fn in_range(fields: &Fields<'_>, field: &str, range: &str, inside: impl Fn(f32) -> bool) -> Result<Option<f32>> {
    match fields.number(field)?.map(|number| number as f32) {
        Some(number) if !inside(number) => Err(fields.error(field, format_args!("{number} is out of range ({range})"))),
        number => Ok(number),
    }
}

/// The tokens that begin and end a sequence: each from `generation` if it names any, else from `config`.
pub(super) fn read_ends(
    config: &Fields<'_>,
    generation: Option<&Fields<'_>>,
    vocab: usize,
) -> Result<(Option<u32>, Vec<u32>)> {
    // Both files are checked, also where only one counts.
    let read = |field| -> Result<Vec<u32>> {
        let fallback = read_ids(config, field, vocab)?;
        let wins = generation.map(|fields| read_ids(fields, field, vocab)).transpose()?.unwrap_or_default();
        Ok(if wins.is_empty() { fallback } else { wins })
    };
    Ok((read("bos_token_id")?.first().copied(), read("eos_token_id")?))
}

/// One id or a list of them, without repetitions.
fn read_ids(fields: &Fields<'_>, field: &str, vocab: usize) -> Result<Vec<u32>> {
    let values = match fields.value(field) {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) if values.len() <= MOST_ENDS => values.as_slice(),
        Some(Value::Array(values)) => {
            return Err(fields.error(field, format_args!("{} ids are over the limit of {MOST_ENDS}", values.len())));
        }
        Some(value) => std::slice::from_ref(value),
    };
    let mut ids = Vec::with_capacity(values.len());
    for value in values {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < vocab);
        let Some(id) = id else {
            let problem = format_args!("{} is not a token id below vocab_size {vocab}", brief(value));
            return Err(fields.error(field, problem));
        };
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}
