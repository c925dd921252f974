//! A model of a known shape with random weights: what it says is noise, but it takes the time and memory of the real one.

use crate::Result;
use crate::formats::Checkpoint;
use crate::formats::synthetic::{Random, SyntheticTensors};
use crate::model::Config;
use crate::model::layout::{self, LayerSource, MatrixSource, Role};
use crate::shapes::Shape;

use super::ModelFiles;

/// The files of a model of this shape, without a tokenizer.
///
/// # Errors
/// The shape is of no model.
pub(super) fn model(shape: &Shape, seed: u64) -> Result<ModelFiles> {
    let path = format!("{} (random weights)", shape.name);
    let config = shape.config()?;
    let mut tensors = SyntheticTensors::new(&path, seed);
    add(&mut tensors, &config, if shape.is_ternary() { Random::Ternary } else { Random::Int4 });
    let checkpoint = Checkpoint::synthetic(tensors);
    Ok(ModelFiles { path: path.into(), config, checkpoint, tokenizer: None, chat: None })
}

/// Adds all that the graph asks for, the matrices inside the layers with `body` weights.
fn add(tensors: &mut SyntheticTensors, config: &Config, body: Random) {
    let mut matrix = |source: &MatrixSource| {
        let weights = if source.role == Role::Body { body } else { Random::Dense };
        for (name, rows) in &source.parts {
            tensors.add_matrix(name, [*rows, source.columns], weights);
            if source.bias {
                tensors.add_vector(&format!("{name}.bias"), *rows);
            }
        }
    };
    matrix(&layout::embedding(config));
    layout::lm_head(config).iter().for_each(&mut matrix);
    let layers: Vec<_> = (0..config.layers).map(|index| LayerSource::new(config, index)).collect();
    layers.iter().flat_map(LayerSource::matrices).for_each(&mut matrix);
    let (name, length) = layout::final_norm(config);
    tensors.add_vector(&name, length);
    layers.iter().flat_map(LayerSource::vectors).for_each(|(name, length)| tensors.add_vector(name, *length));
}

#[cfg(test)]
mod tests {
    use trine_backend::oracle::Oracle;
    use trine_backend::{Format, KvFormat};

    use super::*;
    use crate::engine::{Engine, EngineOptions};
    use crate::model::{Formats, Plan};
    use crate::session::Session;
    use crate::shapes::Kind;

    fn tiny(kind: Kind, tied: bool) -> Shape {
        Shape {
            name: "tiny",
            kind,
            hidden: 96,
            intermediate: 160,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 24,
            vocab: 50,
            tied,
            context: 64,
        }
    }

    fn logits(shape: &Shape, seed: u64, formats: Formats) -> Vec<f32> {
        let options = EngineOptions { formats, ..EngineOptions::default() };
        let files = model(shape, seed).unwrap();
        let engine = Engine::<Oracle>::load(&Default::default(), &files, &options, &mut |_| ()).unwrap();
        let mut session = Session::new(engine);
        session.prefill(&[1, 7, 49, 3], || true).unwrap();
        session.logits().to_vec()
    }

    #[test]
    fn a_seed_is_a_model() {
        for shape in [tiny(Kind::BitNet, true), tiny(Kind::TernaryLlama, false), tiny(Kind::Qwen2Int4, true)] {
            let first = logits(&shape, 1, Formats::default());
            assert!(first.iter().all(|logit| logit.is_finite()) && first.iter().any(|logit| *logit != first[0]));
            assert_eq!(first, logits(&shape, 1, Formats::default()), "{shape:?}");
            assert_ne!(first, logits(&shape, 2, Formats::default()), "{shape:?}");
        }
    }

    #[test]
    fn formats_are_those_of_the_real_model_or_what_was_asked_for() {
        let plan = |shape: &Shape, formats| {
            let options = EngineOptions { formats, kv: KvFormat::Int8, ..EngineOptions::default() };
            let files = model(shape, 1).unwrap();
            let extent = options.extent(&files.config).unwrap();
            let plan = Plan::new::<Oracle>(&files.config, &files.checkpoint, &formats, &extent).unwrap();
            assert_eq!(plan.requantised, Vec::<String>::new());
            (plan.body_format.to_string(), plan.head_format.to_string())
        };
        let pair = |body: &str, head: &str| (body.to_owned(), head.to_owned());
        let (bitnet, qwen) = (tiny(Kind::BitNet, true), tiny(Kind::Qwen2Int4, false));
        assert_eq!(plan(&bitnet, Formats::default()), pair("ternary", "int8"));
        assert_eq!(plan(&qwen, Formats::default()), pair("int4-g32", "int8"));
        let format = |name: &str| Some(name.parse::<Format>().unwrap());
        let asked = Formats { body: format("int8"), head: format("int4-g32"), ..Formats::default() };
        for shape in [bitnet, qwen] {
            assert_eq!(plan(&shape, asked), pair("int8", "int4-g32"));
            assert_eq!(logits(&shape, 1, asked).len(), 50);
            let floats = Formats { body: format("f32"), head: format("bf16"), ..Formats::default() };
            assert_eq!(plan(&shape, floats), pair("f32", "bf16"));
            assert!(logits(&shape, 1, floats).iter().all(|logit| logit.is_finite()));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_sum() {
        let files = model(Shape::find("bitnet-100b").unwrap(), 0).unwrap();
        let options = EngineOptions::default();
        let extent = options.extent(&files.config).unwrap();
        let plan = Plan::new::<Oracle>(&files.config, &files.checkpoint, &options.formats, &extent).unwrap();
        // Two bits for each of 99.96 G weights, and a scale for each row.
        assert!((24_989_663_232..25_100_000_000).contains(&plan.body), "{}", plan.body);
        let line = plan.check(Some(16 << 30)).unwrap_err().to_string();
        assert!(line.contains("(weights 23.6 GiB, KV cache") && line.contains("16.0 GiB is free"), "{line}");
        assert!(plan.check(Some(64 << 30)).is_ok());
    }
}
