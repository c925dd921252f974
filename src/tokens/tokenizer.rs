//! The tokenizer: `tokenizer.json` read by the `tokenizers` crate, which no other file names.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde_json::Value;
use tokenizers as hf;
use tokenizers::{Decoder, DecoderWrapper, Model, OffsetReferential, OffsetType, PreTokenizer};

use super::Detokenizer;
use super::one_line;
use super::pieces::{Joining, Pieces, byte_level_bytes, fallback_byte};
use crate::{Error, Result};

/// The highest token id taken. The largest vocabularies in use hold about 262 000 tokens.
const MAX_ID: u32 = (1 << 22) - 1;

/// How special tokens are treated when text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// Adds what the model expects around a text, usually BOS in front. Never doubles a BOS that is there already.
    pub add: bool,
    /// Reads special-token text inside the text, such as `<|im_start|>`, as that token. Without it such text is text
    /// like any other, which is what untrusted text needs.
    pub parse: bool,
}

impl Special {
    /// A bare prompt, as Hugging Face encodes it: BOS is added and special-token text is parsed.
    pub const PROMPT: Special = Special { add: true, parse: true };
    /// What a chat template rendered: it writes its own BOS and special tokens.
    pub const TEMPLATE: Special = Special { add: false, parse: true };
    /// Text alone: nothing added, nothing parsed.
    pub const TEXT: Special = Special { add: false, parse: false };
}

/// Text to token ids and back, for one model.
pub struct Tokenizer {
    inner: hf::Tokenizer,
    /// The added tokens with special ones left out of parsing, for [`Special::parse`] false.
    unparsed: hf::AddedVocabulary,
    /// What [`Special::add`] puts before and after a text.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// The bytes of each id. `None` in `kinds` marks an id that names no token.
    pieces: Pieces,
    kinds: Vec<Option<Kind>>,
    joining: Joining,
    bos: Option<(String, u32)>,
    eos: Option<(String, u32)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Special,
}

/// What is read of `tokenizer_config.json`.
#[derive(Deserialize, Default)]
struct Config {
    bos_token: Option<TokenText>,
    eos_token: Option<TokenText>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
}

/// A token in `tokenizer_config.json`: its text, or an object that holds it.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenText {
    Text(String),
    Object { content: String },
}

impl TokenText {
    fn into_text(self) -> String {
        match self {
            TokenText::Text(text) | TokenText::Object { content: text } => text,
        }
    }
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json` and, if there is one, of the `tokenizer_config.json` beside it. `name`
    /// stands for the file in errors.
    ///
    /// # Errors
    /// [`Error::File`] if either is malformed or holds a part that is not supported.
    pub fn from_bytes(tokenizer_json: &[u8], config: Option<&[u8]>, name: &str) -> Result<Self> {
        let config = match config {
            Some(bytes) => serde_json::from_slice::<Config>(bytes)
                .map_err(|e| Error::file(name, format!("tokenizer_config.json: {}", one_line(e))))?,
            None => Config::default(),
        };
        // The library trusts some of what it reads; a file that breaks its assumptions must not end the program.
        catch_unwind(AssertUnwindSafe(|| Self::build(tokenizer_json, config)))
            .unwrap_or_else(|_| Err("the tokenizer library does not cope with this file".into()))
            .map_err(|problem| Error::file(name, problem))
    }

    fn build(tokenizer_json: &[u8], config: Config) -> std::result::Result<Self, String> {
        let mut inner = parse(tokenizer_json)?;
        // A file may carry the truncation and padding of its training run; a prompt is never silently cut.
        inner.with_truncation(None).map_err(one_line)?;
        inner.with_padding(None);
        check_added_tokens(&inner, tokenizer_json)?;
        check_post_processor(&serde_json::to_value(inner.get_post_processor()).map_err(one_line)?)?;

        let (joining, decoders) = decoding(inner.get_decoder())?;
        let (pieces, kinds) = pieces(&inner, &decoders)?;
        let mut unparsed = inner.get_added_vocabulary().clone();
        unparsed.set_encode_special_tokens(true);

        let find = |text: Option<TokenText>| {
            let text = text?.into_text();
            inner.token_to_id(&text).map(|id| (text, id))
        };
        let (bos, eos) = (find(config.bos_token), find(config.eos_token));
        let (mut prefix, mut suffix) = surroundings(&inner)?;
        let id = |token: &Option<(String, u32)>| token.as_ref().map(|&(_, id)| id);
        match (config.add_bos_token, id(&bos)) {
            (Some(true), Some(bos)) if prefix.first() != Some(&bos) => prefix.insert(0, bos),
            (Some(true), None) => return Err("add_bos_token is set, but bos_token names no token".into()),
            (Some(false), Some(bos)) if prefix.first() == Some(&bos) => drop(prefix.remove(0)),
            _ => {}
        }
        match (config.add_eos_token, id(&eos)) {
            (Some(true), Some(eos)) if suffix.last() != Some(&eos) => suffix.push(eos),
            (Some(false), Some(eos)) if suffix.last() == Some(&eos) => drop(suffix.pop()),
            _ => {}
        }
        Ok(Tokenizer { inner, unparsed, prefix, suffix, pieces, kinds, joining, bos, eos })
    }

    /// The ids of `text`.
    ///
    /// # Errors
    /// [`Error::Request`] if the vocabulary cannot express the text.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        let ids = if special.parse { encode(&self.inner, text) } else { self.encode_unparsed(text) };
        let mut ids = ids.map_err(|e| Error::Request(format!("the text cannot be tokenized: {}", one_line(e))))?;
        if special.add {
            if !ids.starts_with(&self.prefix) {
                ids.splice(0..0, self.prefix.iter().copied());
            }
            ids.extend(&self.suffix);
        }
        Ok(ids)
    }

    /// The steps of the library's own encoding, with another table of added tokens.
    fn encode_unparsed(&self, text: &str) -> hf::Result<Vec<u32>> {
        let mut split = self.unparsed.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut split)?;
        }
        split.tokenize(|part| self.inner.get_model().tokenize(part.get()))?;
        let splits = split.get_splits(OffsetReferential::Original, OffsetType::None);
        Ok(splits.into_iter().filter_map(|(_, _, tokens)| tokens.as_ref()).flatten().map(|token| token.id).collect())
    }

    /// The text of `ids`. `skip_special` leaves special tokens out. Bytes that are no UTF-8 become U+FFFD: one for each
    /// broken character, or one for each byte if the vocabulary falls back to bytes. Ids that name no token have no text.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = Detokenizer::new(self, skip_special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(stream.push(id));
        }
        text + &stream.finish()
    }

    /// The bytes that `id` stands for anywhere but at the start of a text; part of a character, perhaps. Empty for an id
    /// that names no token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.pieces.get(id)
    }

    /// The id of a token by its name in the vocabulary, such as `<|im_end|>`.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The highest id plus one, added tokens included. A model's logits may be wider.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// The id of `bos_token` in `tokenizer_config.json`.
    pub fn bos(&self) -> Option<u32> {
        self.bos.as_ref().map(|&(_, id)| id)
    }

    /// The id of `eos_token` in `tokenizer_config.json`.
    pub fn eos(&self) -> Option<u32> {
        self.eos.as_ref().map(|&(_, id)| id)
    }

    /// Whether `id` is a special token: one that means something to the model and is no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.kind(id) == Some(Kind::Special)
    }

    /// Whether `id` names a token.
    pub(super) fn has_token(&self, id: u32) -> bool {
        self.kind(id).is_some()
    }

    fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied().flatten()
    }

    pub(super) fn joining(&self) -> &Joining {
        &self.joining
    }

    /// The text of `id` as the first token of a text, where that differs from [`Self::token_bytes`].
    pub(super) fn first_piece(&self, id: u32) -> Option<String> {
        let drops = self.joining.first_drops?;
        let token = token_text(&self.inner, id)?;
        (token.contains(drops) && fallback_byte(&token).is_none()).then(|| token.replace(drops, ""))
    }
}

/// The library's tokenizer. It reads a model whose kind it does not know yet into two trees of JSON one after the other; as
/// nearly all are BPE, that is tried first, straight from the bytes. What is none, or is wrong, the library reads as it does.
fn parse(tokenizer_json: &[u8]) -> std::result::Result<hf::Tokenizer, String> {
    type Bpe = hf::TokenizerImpl<
        hf::models::bpe::BPE,
        hf::NormalizerWrapper,
        hf::PreTokenizerWrapper,
        hf::PostProcessorWrapper,
        DecoderWrapper,
    >;
    match serde_json::from_slice::<Bpe>(tokenizer_json) {
        Ok(bpe) => Ok(bpe.into()),
        Err(_) => hf::Tokenizer::from_bytes(tokenizer_json).map_err(one_line),
    }
}

fn encode(inner: &hf::Tokenizer, text: &str) -> hf::Result<Vec<u32>> {
    Ok(inner.encode_fast(text, false)?.get_ids().to_vec())
}

/// The name of `id` in the vocabulary, in the form that decoders expect.
fn token_text(inner: &hf::Tokenizer, id: u32) -> Option<String> {
    inner.get_added_vocabulary().simple_id_to_token(id).or_else(|| inner.get_model().id_to_token(id))
}

/// What the post-processor puts before and after a text, seen on a text of one token or more.
fn surroundings(inner: &hf::Tokenizer) -> std::result::Result<(Vec<u32>, Vec<u32>), String> {
    // A vocabulary may lack any one letter, so several are tried; without any of them nothing can be encoded anyway.
    for text in ["a", "e", " ", "0", "."] {
        let bare = encode(inner, text).map_err(one_line)?;
        let full = inner.encode_fast(text, true).map_err(one_line)?.get_ids().to_vec();
        if let Some(at) = full.windows(bare.len().max(1)).position(|window| window == bare) {
            return Ok((full[..at].to_vec(), full[at + bare.len()..].to_vec()));
        }
    }
    Err("the post-processor does not keep the text's tokens together".into())
}

/// Refuses a file whose added tokens got other ids than it states: the library numbers them on from the end of the
/// vocabulary, so a gap before them would shift every one.
fn check_added_tokens(inner: &hf::Tokenizer, tokenizer_json: &[u8]) -> std::result::Result<(), String> {
    #[derive(Deserialize)]
    struct Added {
        id: u32,
        content: String,
    }
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        added_tokens: Vec<Added>,
    }
    let file: File = serde_json::from_slice(tokenizer_json).map_err(one_line)?;
    for Added { id, content } in file.added_tokens {
        match inner.token_to_id(&content) {
            // The library leaves out tokens without text.
            _ if content.is_empty() => {}
            Some(given) if given == id => {}
            _ => {
                return Err(format!(
                    "added_tokens: {content:?} has the id {id}, which does not follow the vocabulary without a gap"
                ));
            }
        }
    }
    Ok(())
}

/// Refuses a template post-processor that names special tokens which it does not define.
fn check_post_processor(processor: &Value) -> std::result::Result<(), String> {
    for part in processor["processors"].as_array().into_iter().flatten() {
        check_post_processor(part)?;
    }
    for piece in processor["single"].as_array().into_iter().flatten() {
        if let Some(id) = piece["SpecialToken"]["id"].as_str()
            && processor["special_tokens"].get(id).is_none()
        {
            return Err(format!("post_processor: the template uses {id:?}, which special_tokens does not define"));
        }
    }
    Ok(())
}

/// What a decoder does to one token before tokens are joined.
enum TokenStep<'a> {
    /// A decoder that treats every token alike and on its own.
    Each(&'a DecoderWrapper),
    /// The dummy prefix character of Metaspace becomes a space.
    Space(char),
    /// `<0x0A>` becomes the byte 10.
    ByteFallback,
    /// The byte alphabet becomes bytes.
    ByteLevel,
}

/// The decoder as steps on single tokens and rules for joining them. Decoders that look at several tokens at once in
/// another way (WordPiece, CTC) belong to other kinds of model and are refused.
fn decoding(decoder: Option<&DecoderWrapper>) -> std::result::Result<(Joining, Vec<TokenStep<'_>>), String> {
    let (mut joining, mut steps) = (Joining::default(), Vec::new());
    let Some(decoder) = decoder else {
        return Ok((Joining { spaced: true, ..joining }, steps));
    };
    let mut fused = false;
    let refuse = |what: &str| {
        Err(format!("decoder: {what} is not supported; ByteLevel, Metaspace and SentencePiece's byte fallback are"))
    };
    for part in flatten(decoder) {
        match part {
            DecoderWrapper::Fuse(_) => fused = true,
            DecoderWrapper::Strip(strip) if strip.stop > 0 => return refuse("Strip at the end"),
            DecoderWrapper::Strip(strip) if fused && joining.strip_start.is_none() => {
                joining.strip_start = Some((strip.content, strip.start));
            }
            _ if fused => return refuse("a step after Fuse or ByteLevel other than Strip"),
            DecoderWrapper::Replace(_) | DecoderWrapper::Strip(_) => steps.push(TokenStep::Each(part)),
            DecoderWrapper::ByteFallback(_) => {
                joining.mark_each_byte = true;
                steps.push(TokenStep::ByteFallback);
            }
            DecoderWrapper::ByteLevel(_) => {
                fused = true;
                steps.push(TokenStep::ByteLevel);
            }
            DecoderWrapper::Metaspace(metaspace) => {
                if metaspace.get_prepend_scheme() != hf::pre_tokenizers::metaspace::PrependScheme::Never {
                    joining.first_drops = Some(metaspace.get_replacement());
                }
                steps.push(TokenStep::Space(metaspace.get_replacement()));
            }
            DecoderWrapper::WordPiece(_) => return refuse("WordPiece"),
            DecoderWrapper::BPE(_) => return refuse("BPEDecoder"),
            DecoderWrapper::CTC(_) => return refuse("CTC"),
            DecoderWrapper::Sequence(_) => return refuse("Sequence in a Sequence"),
        }
    }
    Ok((joining, steps))
}

/// The parts of a sequence, or the one decoder.
fn flatten(decoder: &DecoderWrapper) -> &[DecoderWrapper] {
    match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
        one => std::slice::from_ref(one),
    }
}

/// The bytes and the kind of every id.
fn pieces(inner: &hf::Tokenizer, steps: &[TokenStep]) -> std::result::Result<(Pieces, Vec<Option<Kind>>), String> {
    let highest = highest_id(inner).ok_or("the vocabulary is empty")?;
    if highest > MAX_ID {
        return Err(format!("the vocabulary holds the token id {highest}; ids up to {MAX_ID} are supported"));
    }
    let (mut pieces, mut kinds) = (Pieces::new(), Vec::new());
    for id in 0..=highest {
        let token = token_text(inner, id);
        kinds.push(token.as_deref().map(|token| match inner.get_added_vocabulary().is_special_token(token) {
            true => Kind::Special,
            false => Kind::Plain,
        }));
        pieces.push(&token.map_or(Ok(Vec::new()), |token| piece(token, steps))?);
    }
    Ok((pieces, kinds))
}

/// The highest id of the vocabulary and of the added tokens.
fn highest_id(inner: &hf::Tokenizer) -> Option<u32> {
    let model = inner.get_model();
    let tokens = model.get_vocab_size();
    // Nearly always the ids are 0, 1, … The library's vocabulary is a copy of every token: it is asked where they are not.
    let last = u32::try_from(tokens).ok()?.checked_sub(1);
    let dense = last.is_some_and(|last| (0..=last).all(|id| model.id_to_token(id).is_some()));
    let highest = if dense { last } else { model.get_vocab().into_values().max() };
    highest.max(inner.get_added_vocabulary().get_added_tokens_decoder().keys().copied().max())
}

fn piece(mut token: String, steps: &[TokenStep]) -> std::result::Result<Vec<u8>, String> {
    for step in steps {
        match step {
            TokenStep::Each(decoder) => token = decoder.decode_chain(vec![token]).map_err(one_line)?.concat(),
            TokenStep::Space(replacement) => token = token.replace(*replacement, " "),
            TokenStep::ByteFallback => {
                if let Some(byte) = fallback_byte(&token) {
                    return Ok(vec![byte]);
                }
            }
            TokenStep::ByteLevel => return Ok(byte_level_bytes(&token)),
        }
    }
    Ok(token.into_bytes())
}

#[cfg(test)]
pub(super) mod fixtures;
#[cfg(test)]
mod tests;
