//! Rotary position embedding (<https://arxiv.org/abs/2104.09864>) and its scalings to longer contexts.

use std::sync::Arc;

use super::fields::{Fields, list};
use super::{Family, limit};
use crate::Result;

/// Scaling by more than this is taken for damage.
const LARGEST_FACTOR: f64 = 1e6;

/// Pair `i` of a head of `dim` values turns by `position * base^(-2i / dim)`, changed by `scaling`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// `rope_theta`; over 1.
    pub base: f64,
    /// What changes the frequencies.
    pub scaling: RopeScaling,
}

/// How frequencies are changed for contexts longer than the model was first trained on. All factors are at least 1.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies are divided by `factor`.
    Linear {
        /// `factor`
        factor: f64,
    },
    /// Llama 3.1: with `turns = original_context * frequency / 2π`, frequencies under `low` turns are divided by
    /// `factor`, those over `high` kept, those between blended linearly in `turns`.
    Llama3 {
        /// `factor`
        factor: f64,
        /// `low_freq_factor`
        low: f64,
        /// `high_freq_factor`, over `low`
        high: f64,
        /// `original_max_position_embeddings`
        original_context: usize,
    },
    /// YaRN (<https://arxiv.org/abs/2309.00071>): pairs that turn more than `beta_fast` times in the original context
    /// are kept, those under `beta_slow` divided by `factor`, those between blended linearly in the pair's number.
    Yarn {
        /// `factor`
        factor: f64,
        /// `original_max_position_embeddings`, else `max_position_embeddings`
        original_context: usize,
        /// `beta_fast`, by default 32; over `beta_slow`
        beta_fast: f64,
        /// `beta_slow`, by default 1
        beta_slow: f64,
        /// What sine and cosine are multiplied by: `attention_factor`, else by `mscale` and `mscale_all_dim`, else
        /// `0.1 ln(factor) + 1`.
        attention_factor: f64,
        /// Whether the blend's ends are rounded outwards to whole pairs: `truncate`, by default true.
        truncate: bool,
    },
    /// Each frequency is divided by its own number: GGUF's form of Llama 3.1's scaling.
    Factors {
        /// One per pair, positive.
        divisors: Arc<[f32]>,
    },
}

impl RopeConfig {
    /// From `rope_theta` and `rope_scaling`, or transformers 5's `rope_parameters`, which holds both.
    pub(super) fn read(config: &Fields<'_>, family: Family, positions: usize) -> Result<Self> {
        let parameters = config.object("rope_parameters")?;
        let scaling = config.object("rope_scaling")?.filter(|scaling| !scaling.is_empty());
        let base = read_base(config, scaling.as_ref(), parameters.as_ref(), family)?;
        let mut places = vec![config];
        places.extend(&scaling);
        places.extend(&parameters);
        for place in places {
            if let Some(factor) = place.number("partial_rotary_factor")?
                && factor != 1.0
            {
                return Err(place.error("partial_rotary_factor", format_args!("{factor} is not supported: only 1 is")));
            }
        }
        let scaling = match scaling.or(parameters) {
            None => RopeScaling::None,
            Some(fields) => RopeScaling::read(&fields, positions)?,
        };
        Ok(Self { base, scaling })
    }
}

fn read_base(
    config: &Fields<'_>,
    scaling: Option<&Fields<'_>>,
    parameters: Option<&Fields<'_>>,
    family: Family,
) -> Result<f64> {
    for place in [scaling, parameters, Some(config)].into_iter().flatten() {
        if let Some(base) = place.number("rope_theta")? {
            if base > 1.0 {
                return Ok(base);
            }
            return Err(place.error("rope_theta", format_args!("{base} is not over 1")));
        }
    }
    match family {
        // The files of Llama 1 and 2 are older than the field.
        Family::Llama => Ok(10_000.0),
        _ => Err(config.error("rope_theta", "is missing, and in rope_parameters too")),
    }
}

impl RopeScaling {
    fn read(fields: &Fields<'_>, positions: usize) -> Result<Self> {
        if fields.value("full_attention").is_some() || fields.value("sliding_attention").is_some() {
            return Err(fields.error("full_attention", "RoPE that differs by layer type is not supported"));
        }
        // "type" is the older name.
        let field = if fields.value("rope_type").is_some() { "rope_type" } else { "type" };
        match fields.text(field)? {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: read_factor(fields)? }),
            Some("llama3") => Self::read_llama3(fields),
            Some("yarn") => Self::read_yarn(fields, positions),
            Some(other) => {
                let problem = format_args!("{} is not supported: default, linear, llama3, yarn are", list(&[other]));
                Err(fields.error(field, problem))
            }
        }
    }

    fn read_llama3(fields: &Fields<'_>) -> Result<Self> {
        let low = fields.required("low_freq_factor", positive(fields, "low_freq_factor")?)?;
        let high = fields.required("high_freq_factor", positive(fields, "high_freq_factor")?)?;
        if high <= low {
            return Err(fields.error("high_freq_factor", format_args!("{high} is not over low_freq_factor {low}")));
        }
        let original_context = fields.size("original_max_position_embeddings", limit::CONTEXT)?;
        Ok(RopeScaling::Llama3 { factor: read_factor(fields)?, low, high, original_context })
    }

    fn read_yarn(fields: &Fields<'_>, positions: usize) -> Result<Self> {
        let factor = read_factor(fields)?;
        let original_context =
            fields.optional_size("original_max_position_embeddings", limit::CONTEXT)?.unwrap_or(positions);
        let beta_fast = positive(fields, "beta_fast")?.unwrap_or(32.0);
        let beta_slow = positive(fields, "beta_slow")?.unwrap_or(1.0);
        if beta_fast <= beta_slow {
            return Err(fields.error("beta_fast", format_args!("{beta_fast} is not over beta_slow {beta_slow}")));
        }
        let attention_factor = read_attention_factor(fields, factor)?;
        let truncate = fields.flag("truncate")?.unwrap_or(true);
        Ok(RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, truncate })
    }
}

fn read_attention_factor(fields: &Fields<'_>, factor: f64) -> Result<f64> {
    if let Some(given) = positive(fields, "attention_factor")? {
        return Ok(given);
    }
    let magnitude = |scale: f64| 0.1 * scale * factor.ln() + 1.0;
    // Both or neither; 0 counts as absent.
    let mscale = fields.number("mscale")?.unwrap_or(0.0);
    let all_dim = fields.number("mscale_all_dim")?.unwrap_or(0.0);
    let (field, value) = if mscale != 0.0 && all_dim != 0.0 {
        ("mscale", magnitude(mscale) / magnitude(all_dim))
    } else {
        ("factor", magnitude(1.0))
    };
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(fields.error(field, format_args!("gives {value} as the factor of attention")))
}

fn read_factor(fields: &Fields<'_>) -> Result<f64> {
    let factor = fields.required("factor", fields.number("factor")?)?;
    if (1.0..=LARGEST_FACTOR).contains(&factor) {
        return Ok(factor);
    }
    Err(fields.error("factor", format_args!("{factor} is not between 1 and {LARGEST_FACTOR}")))
}

fn positive(fields: &Fields<'_>, field: &str) -> Result<Option<f64>> {
    match fields.number(field)? {
        Some(number) if number <= 0.0 => Err(fields.error(field, format_args!("{number} is not positive"))),
        number => Ok(number),
    }
}
