//! A file's vocabulary as Hugging Face's `tokenizer.json` and `tokenizer_config.json` would say it.
//!
//! Two kinds are read. `gpt2` is byte-level BPE whose pre-tokenizer `tokenizer.ggml.pre` names. `llama` is SentencePiece's
//! BPE, which joins the pair that makes the token of the highest score: merges in the order of those scores do the same.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::header::Metadata;
use crate::Result;
use crate::formats::quoted;

/// What `tokenizer.ggml.token_type` says about a token.
mod kind {
    pub(super) const NORMAL: i64 = 1;
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
}

/// SentencePiece's space.
const SPACE: &str = "▁";
/// Every way to cut a token in two is looked up: longer ones are no words.
const LONGEST_TOKEN: usize = 4096;
/// Control tokens that end a turn; files name only one of those that a model has.
const ENDS: [&str; 7] =
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<｜end▁of▁sentence｜>"];

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A vocabulary in Hugging Face's words.
#[derive(Debug)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: Json,
    /// `tokenizer_config.json`.
    pub config: Json,
    /// The chat template, where there is one.
    pub chat_template: Option<String>,
    /// The texts of the tokens that begin and end a text.
    pub ends: [Option<String>; 2],
}

impl Metadata {
    /// The vocabulary, if the file has one.
    ///
    /// # Errors
    /// It is of a kind that is not read, or its lists do not fit each other.
    pub fn tokenizer_files(&self) -> Result<Option<TokenizerFiles>> {
        let tokenizer = match self.text("tokenizer.ggml.model")? {
            None | Some("none" | "no_vocab") => return Ok(None),
            Some("gpt2") => Vocabulary::read(self)?.byte_level(self)?,
            Some("llama") => Vocabulary::read(self)?.sentence_piece(self)?,
            Some(other) => {
                let problem = format_args!("{} is not supported: gpt2, llama are", quoted(other));
                return Err(self.error("tokenizer.ggml.model", problem));
            }
        };
        let text = |id: Option<u64>| -> Result<Option<String>> {
            let tokens = self.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
            Ok(id.and_then(|id| tokens.get(usize::try_from(id).ok()?)).cloned())
        };
        let ends = [text(bos(self)?)?, text(eos(self)?)?];
        let mut config = Map::new();
        for (field, token) in ["bos_token", "eos_token"].into_iter().zip(&ends) {
            if let Some(token) = token {
                config.insert(field.to_owned(), token.as_str().into());
            }
        }
        let add_bos = match self.flag("tokenizer.ggml.add_bos_token")? {
            Some(add) => add,
            None => ends[0].is_some() && adds_bos(self)?,
        };
        config.insert("add_bos_token".to_owned(), add_bos.into());
        let add_eos = self.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        config.insert("add_eos_token".to_owned(), add_eos.into());
        let chat_template = self.text("tokenizer.chat_template")?.map(str::to_owned);
        Ok(Some(TokenizerFiles { tokenizer, config: Json::Object(config), chat_template, ends }))
    }
}

/// The token that begins a text.
///
/// # Errors
/// The key is no id.
pub(super) fn bos(metadata: &Metadata) -> Result<Option<u64>> {
    let default = (metadata.text("tokenizer.ggml.model")? == Some("llama")).then_some(1);
    Ok(metadata.int("tokenizer.ggml.bos_token_id")?.or(default))
}

fn eos(metadata: &Metadata) -> Result<Option<u64>> {
    let default = (metadata.text("tokenizer.ggml.model")? == Some("llama")).then_some(2);
    Ok(metadata.int("tokenizer.ggml.eos_token_id")?.or(default))
}

/// All tokens that end a text or a turn.
///
/// # Errors
/// A key or the vocabulary is malformed.
pub(super) fn ends(metadata: &Metadata) -> Result<Vec<u64>> {
    let mut ends: Vec<u64> = eos(metadata)?.into_iter().collect();
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(metadata.int(key)?);
    }
    let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let kinds = metadata.ints("tokenizer.ggml.token_type")?.unwrap_or_default();
    let control = tokens.iter().zip(kinds).enumerate().filter(|(_, (_, kind))| **kind == kind::CONTROL);
    ends.extend(control.filter(|(_, (token, _))| ENDS.contains(&token.as_str())).map(|(id, _)| id as u64));
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

/// The pre-tokenizer's name. bitnet.cpp's files do not say that theirs is Llama 3's.
fn pre(metadata: &Metadata) -> Result<&str> {
    let bitnet = metadata.text("general.architecture")?.is_some_and(|arch| arch.starts_with("bitnet-"));
    Ok(metadata.text("tokenizer.ggml.pre")?.unwrap_or(if bitnet { "llama-bpe" } else { "default" }))
}

fn is_llama3(pre: &str) -> bool {
    matches!(pre, "llama3" | "llama-v3" | "llama-bpe" | "falcon3")
}

/// Whether a text begins with BOS where the file does not say so.
fn adds_bos(metadata: &Metadata) -> Result<bool> {
    Ok(metadata.text("tokenizer.ggml.model")? == Some("llama") || is_llama3(pre(metadata)?))
}

/// Normalizer and pre-tokenizer of byte-level BPE, and whether a word that is a token is taken as it is.
fn byte_level_parts(metadata: &Metadata) -> Result<(Json, Json, bool)> {
    let split =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let sequence = |parts: Vec<Json>| json!({"type": "Sequence", "pretokenizers": parts});
    let nfc = json!({"type": "NFC"});
    Ok(match pre(metadata)? {
        name if is_llama3(name) => (Json::Null, sequence(vec![split(LLAMA3), bytes(false)]), true),
        "qwen2" => (nfc, sequence(vec![split(QWEN2), bytes(false)]), false),
        "deepseek-r1-qwen" => (Json::Null, sequence(vec![split(QWEN2), bytes(false)]), false),
        "smollm" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            (Json::Null, sequence(vec![digits, bytes(true)]), false)
        }
        "gpt-2" => (Json::Null, bytes(true), false),
        "default" => {
            // llama.cpp's choice where a file does not say: each expression cuts what the one before left.
            let mut parts: Vec<_> = [
                r"[\p{P}\$\+<=>\^~\|]+",
                r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
                r"\p{N}+",
                r"[0-9][0-9][0-9]",
            ]
            .map(split)
            .into();
            parts.push(bytes(false));
            (Json::Null, sequence(parts), false)
        }
        other => {
            let problem = format_args!(
                "{} is not supported: llama-bpe, falcon3, qwen2, deepseek-r1-qwen, smollm, gpt-2, default are",
                quoted(other)
            );
            return Err(metadata.error("tokenizer.ggml.pre", problem));
        }
    })
}

/// The tokens with what the file says about each.
struct Vocabulary<'a> {
    tokens: &'a [String],
    kinds: Vec<i64>,
    ids: HashMap<&'a str, usize>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const KINDS: &str = "tokenizer.ggml.token_type";
        let tokens = metadata.texts(TOKENS)?.ok_or_else(|| metadata.error(TOKENS, "is missing"))?;
        let kinds = match metadata.ints(KINDS)? {
            None => vec![kind::NORMAL; tokens.len()],
            Some(kinds) if kinds.len() == tokens.len() => kinds.to_vec(),
            Some(kinds) => {
                return Err(metadata.error(KINDS, format_args!("{} types for {} tokens", kinds.len(), tokens.len())));
            }
        };
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if token.len() > LONGEST_TOKEN {
                let problem = format_args!("token {id} has {} bytes, over the limit of {LONGEST_TOKEN}", token.len());
                return Err(metadata.error(TOKENS, problem));
            }
            if let Some(first) = ids.insert(token.as_str(), id) {
                let problem = format_args!("tokens {first} and {id} are both {}", quoted(token));
                return Err(metadata.error(TOKENS, problem));
            }
        }
        Ok(Vocabulary { tokens, kinds, ids })
    }

    fn byte_level(&self, metadata: &Metadata) -> Result<Json> {
        const MERGES: &str = "tokenizer.ggml.merges";
        let (normalizer, pre_tokenizer, ignore_merges) = byte_level_parts(metadata)?;
        let listed = metadata.texts(MERGES)?.ok_or_else(|| metadata.error(MERGES, "is missing"))?;
        let mut merges = Vec::with_capacity(listed.len());
        for (number, merge) in listed.iter().enumerate() {
            let Some((left, right)) = merge.split_once(' ') else {
                return Err(metadata.error(MERGES, format_args!("merge {number} is {}, no two tokens", quoted(merge))));
            };
            merges.push(json!([left, right]));
        }
        let mut model = json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges,
        });
        // What is put into the macro is copied, and these are large.
        model["vocab"] = self.vocab();
        model["merges"] = Json::Array(merges);
        let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        Ok(self.file(normalizer, pre_tokenizer, decoder, model))
    }

    fn sentence_piece(&self, metadata: &Metadata) -> Result<Json> {
        let prefix = metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let mut normalizers = vec![replace(" ", SPACE)];
        let mut decoders = vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        if prefix {
            normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let unknown = metadata.int("tokenizer.ggml.unknown_token_id")?.unwrap_or(0);
        let unknown = usize::try_from(unknown).ok().and_then(|id| self.tokens.get(id));
        let mut model = json!({
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        });
        model["vocab"] = self.vocab();
        model["merges"] = Json::Array(self.merges_of_scores(metadata)?);
        let normalizer = json!({"type": "Sequence", "normalizers": normalizers});
        Ok(self.file(normalizer, Json::Null, json!({"type": "Sequence", "decoders": decoders}), model))
    }

    /// Every way to make a normal token of two others, the likeliest token first, then the pair of lower ids.
    fn merges_of_scores(&self, metadata: &Metadata) -> Result<Vec<Json>> {
        const SCORES: &str = "tokenizer.ggml.scores";
        let scores = metadata.numbers(SCORES)?.ok_or_else(|| metadata.error(SCORES, "is missing"))?;
        if scores.len() != self.tokens.len() {
            let problem = format_args!("{} scores for {} tokens", scores.len(), self.tokens.len());
            return Err(metadata.error(SCORES, problem));
        }
        let mut merges = Vec::new();
        for (id, token) in self.tokens.iter().enumerate().filter(|(id, _)| self.kinds[*id] == kind::NORMAL) {
            for (cut, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(cut);
                if let (Some(&left), Some(&right)) = (self.ids.get(left), self.ids.get(right)) {
                    merges.push((scores[id], left, right));
                }
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        Ok(merges.iter().map(|&(_, left, right)| json!([self.tokens[left], self.tokens[right]])).collect())
    }

    fn vocab(&self) -> Json {
        let named = |(id, token): (usize, &String)| (token.clone(), Json::from(id));
        Json::Object(self.tokens.iter().enumerate().map(named).collect())
    }

    /// Tokens that are found in the text before anything else is done with it.
    fn added(&self) -> Vec<Json> {
        let is_added = |kind: i64| matches!(kind, kind::UNKNOWN | kind::CONTROL | kind::USER_DEFINED);
        let tokens =
            self.tokens.iter().enumerate().filter(|(id, token)| is_added(self.kinds[*id]) && !token.is_empty());
        tokens
            .map(|(id, token)| {
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": self.kinds[id] != kind::USER_DEFINED,
                })
            })
            .collect()
    }

    fn file(&self, normalizer: Json, pre_tokenizer: Json, decoder: Json, model: Json) -> Json {
        let mut file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": self.added(),
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": decoder,
        });
        file["model"] = model;
        file
    }
}
