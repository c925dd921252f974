//! Which files of a repository make a model.

use std::collections::BTreeMap;

/// What a model consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A directory with these files.
    Directory(Vec<String>),
    /// One GGUF file, its first part here where it has several.
    Files(Vec<String>),
}

impl Choice {
    /// The files.
    pub fn files(self) -> Vec<String> {
        let (Choice::Directory(files) | Choice::Files(files)) = self;
        files
    }
}

/// More names than this nobody reads.
const MOST_NAMES: usize = 24;

/// The model among the files `names` of a repository. Without `choice` its safetensors with configuration and tokenizer,
/// else its only GGUF file; `choice` is a file's name, or the number format in that of a GGUF file, as Q4_K_M.
///
/// # Errors
/// What is wrong with the choice and what could be chosen, as a sentence.
pub fn choose(names: &[&str], choice: Option<&str>) -> Result<Choice, String> {
    let models = gguf_models(names);
    if let Some(choice) = choice {
        return chosen(names, models, choice);
    }
    let mut files: Vec<String> = names.iter().filter(|name| is_companion(name)).map(|&name| name.to_owned()).collect();
    let weights = safetensors(names);
    if !weights.is_empty() {
        files.extend(weights.into_iter().map(str::to_owned));
        return Ok(Choice::Directory(files));
    }
    match models.len() {
        0 => Err(format!("there are no safetensors and no GGUF files, only {}", list(names.iter().copied()))),
        1 => whole(models),
        _ => {
            let firsts = models.values().map(|parts| parts[0]);
            Err(format!("there are only GGUF files: choose one with :FILE, or a format as :Q4_K_M: {}", list(firsts)))
        }
    }
}

fn chosen(names: &[&str], mut models: BTreeMap<String, Vec<&str>>, choice: &str) -> Result<Choice, String> {
    let is_it = |parts: &Vec<&str>| parts.contains(&choice);
    if !models.values().any(is_it) && names.contains(&choice) {
        return Ok(Choice::Files(vec![choice.to_owned()]));
    }
    if models.values().any(is_it) {
        models.retain(|_, parts| is_it(parts));
        return whole(models);
    }
    let all = list(models.values().map(|parts| parts[0]));
    models.retain(|stem, _| has_format(stem, choice));
    match models.len() {
        0 if all.is_empty() => Err(format!("there is no file {choice}, and no GGUF file")),
        0 => Err(format!("there is no file {choice} and no GGUF file in that format, but {all}")),
        1 => whole(models),
        _ => Err(format!("{choice} is several files, choose one: {}", list(models.values().map(|parts| parts[0])))),
    }
}

/// The one model that is left, if it has all of its parts.
fn whole(models: BTreeMap<String, Vec<&str>>) -> Result<Choice, String> {
    let parts = models.into_values().next().unwrap_or_default();
    if let Some((_, _, count)) = parts.first().and_then(|first| split_part(first))
        && (parts.len() != count || parts.iter().zip(1..).any(|(part, n)| split_part(part).is_none_or(|p| p.1 != n)))
    {
        return Err(format!("{} has {} of {count} parts", parts[0], parts.len()));
    }
    Ok(Choice::Files(parts.into_iter().map(str::to_owned).collect()))
}

/// What belongs to a model beside its weights.
fn is_companion(name: &str) -> bool {
    const NAMES: [&str; 6] = [
        "config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "quantize_config.json",
        "quant_config.json",
    ];
    let is_json = name.ends_with(".json");
    !name.contains('/')
        && (NAMES.contains(&name)
            || (name.starts_with("tokenizer") && is_json)
            || (name.starts_with("chat_template") && (is_json || name.ends_with(".jinja"))))
}

/// The weights in safetensors: one file, else shards with their index, else whatever there is. Some repositories have
/// them twice, under the names of different programs.
fn safetensors<'a>(names: &[&'a str]) -> Vec<&'a str> {
    const SINGLE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    let top = names.iter().copied().filter(|name| !name.contains('/') && name.ends_with(".safetensors"));
    if let Some(single) = names.iter().find(|name| **name == SINGLE) {
        return vec![single];
    }
    match names.iter().find(|name| **name == INDEX) {
        Some(index) => [*index].into_iter().chain(top.filter(|name| name.starts_with("model-"))).collect(),
        None => top.collect(),
    }
}

/// GGUF models by their names without ending and number of the part; each with its parts in order.
fn gguf_models<'a>(names: &[&'a str]) -> BTreeMap<String, Vec<&'a str>> {
    let mut models: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in names {
        let base = name.rsplit('/').next().unwrap_or(name);
        let other = base.starts_with("mmproj") || base.contains("imatrix");
        if let Some(stem) = name.strip_suffix(".gguf").filter(|_| !other) {
            let stem = split_part(name).map_or(stem, |(stem, ..)| stem);
            models.entry(stem.to_owned()).or_default().push(name);
        }
    }
    models.values_mut().for_each(|parts| parts.sort_unstable());
    models
}

/// Stem, number and count of `STEM-00001-of-00003.gguf`.
fn split_part(name: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let number_of = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    Some((stem, number_of(number)?, number_of(count)?))
}

/// Whether a name without its ending has `format` as a word: Q4_K is not in Q4_K_M.
fn has_format(stem: &str, format: &str) -> bool {
    let (stem, format) = (stem.to_ascii_lowercase(), format.to_ascii_lowercase());
    stem.match_indices(&format).any(|(at, _)| {
        let before = stem[..at].chars().next_back();
        let after = stem[at + format.len()..].chars().next();
        before.is_none_or(|c| matches!(c, '-' | '.' | '_' | '/')) && after.is_none_or(|c| matches!(c, '-' | '.' | '/'))
    })
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str], choice: Option<&str>) -> Vec<String> {
        choose(names, choice).unwrap().files()
    }

    #[test]
    fn a_model_is_its_safetensors_and_what_goes_with_them() {
        let names = [
            ".gitattributes",
            "README.md",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "merges.txt",
            "model.safetensors",
            "onnx/model.onnx",
            "original/consolidated.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
            "tf_model.h5",
            "x-Q4_0.gguf",
            "training_args.bin",
        ];
        let expected = [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors",
        ];
        assert_eq!(choose(&names, None), Ok(Choice::Directory(expected.map(str::to_owned).to_vec())));
    }

    #[test]
    fn shards_come_with_their_index() {
        let names = [
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        assert_eq!(files(&names, None), [names[0], names[4], names[2], names[3]]);
        assert_eq!(files(&["config.json", "weights.safetensors"], None), ["config.json", "weights.safetensors"]);
    }

    const GGUF: [&str; 7] = [
        "README.md",
        "m-Q4_K_M.gguf",
        "m-q4_k_s.gguf",
        "m-IQ4_XS.gguf",
        "mmproj-m-f16.gguf",
        "Q8_0/m-Q8_0-00001-of-00002.gguf",
        "Q8_0/m-Q8_0-00002-of-00002.gguf",
    ];

    #[test]
    fn a_gguf_file_is_chosen_by_format_or_name() {
        assert_eq!(files(&GGUF, Some("Q4_K_M")), ["m-Q4_K_M.gguf"]);
        assert_eq!(files(&GGUF, Some("q4_k_m")), ["m-Q4_K_M.gguf"]);
        assert_eq!(files(&GGUF, Some("Q4_K_S")), ["m-q4_k_s.gguf"]);
        assert_eq!(files(&GGUF, Some("m-IQ4_XS.gguf")), ["m-IQ4_XS.gguf"]);
        assert_eq!(files(&GGUF, Some("README.md")), ["README.md"]);
        // All parts, of which the first is opened.
        assert_eq!(files(&GGUF, Some("Q8_0")), GGUF[5..]);
        assert_eq!(files(&GGUF, Some(GGUF[6])), GGUF[5..]);
        assert_eq!(files(&["m.gguf", "imatrix.gguf"], None), ["m.gguf"]);
    }

    #[test]
    fn a_choice_that_is_none_says_what_there_is() {
        let problem = |names: &[&str], choice| choose(names, choice).unwrap_err();
        let line = problem(&GGUF, None);
        assert!(line.contains(":Q4_K_M") && line.contains("m-q4_k_s.gguf") && !line.contains("mmproj"), "{line}");
        // Q4_K is neither Q4_K_M nor Q4_K_S.
        assert!(
            problem(&GGUF, Some("Q4_K")).starts_with("there is no file Q4_K and no GGUF file in that format, but ")
        );
        assert!(
            problem(&["a-Q4_0.gguf", "b-Q4_0.gguf"], Some("Q4_0"))
                .contains("several files, choose one: a-Q4_0.gguf, b")
        );
        assert!(problem(&["config.json", "pytorch_model.bin"], None).contains("only config.json, pytorch_model.bin"));
        assert!(problem(&["config.json"], Some("x")).contains("no GGUF file"));
        assert_eq!(problem(&GGUF[..6], Some("Q8_0")), "Q8_0/m-Q8_0-00001-of-00002.gguf has 1 of 2 parts");
        assert!(problem(&[GGUF[6]], None).contains("has 1 of 2 parts"));
        assert!(problem(&["x.bin"; 100], None).ends_with("x.bin and 76 more"));
        assert!(problem(&[], None).starts_with("there are no safetensors"));
    }
}
