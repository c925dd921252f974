//! Constrained decoding: which tokens keep a text within a grammar. The work is done by `llguidance`, which no other
//! file names.

use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::tokens::Tokenizer;
use crate::{Error, Result};

/// What a grammar may cost. A schema of a few hundred kilobytes stays below; a state takes one or two kilobytes.
const MOST_STATES: usize = 20_000;
const MOST_SYMBOLS: usize = 100_000;

/// Makes grammars for one model's tokens.
pub struct Grammars {
    factory: ParserFactory,
}

/// How far a text is in its grammar.
pub struct Grammar {
    matcher: Matcher,
}

/// What a text must be: one of these, each made of parts one after another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape(pub Vec<Vec<Part>>);

/// A part of a [`Shape`].
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// This text.
    Text(String),
    /// A JSON value of this schema.
    Schema(Value),
}

impl Shape {
    /// A JSON value of this schema.
    pub fn json(schema: Value) -> Self {
        Shape(vec![vec![Part::Schema(schema)]])
    }
}

impl Grammars {
    /// For a model of `vocab` logits that ends its texts with any of `eos`.
    ///
    /// # Errors
    /// The vocabulary is of no use for it.
    pub fn new(tokenizer: &Tokenizer, vocab: usize, eos: &[u32]) -> Result<Self> {
        let wrong = |error: &dyn std::fmt::Display| Error::Request(format!("grammars for this vocabulary: {error}"));
        let vocab = u32::try_from(vocab).map_err(|error| wrong(&error))?;
        let end = eos.first().copied().or(tokenizer.eos()).unwrap_or_default();
        let info = TokRxInfo::new(vocab, end);
        // Special tokens are no text: the marker keeps them apart from any.
        let bytes = |id: u32| match tokenizer.is_special(id) {
            true => [&[TokTrie::SPECIAL_TOKEN_MARKER][..], format!("<special {id}>").as_bytes()].concat(),
            false => tokenizer.token_bytes(id).to_vec(),
        };
        let words: Vec<_> = (0..vocab).map(bytes).collect();
        let mut trie = TokTrie::from(&info, &words);
        if !eos.is_empty() {
            trie = trie.with_eos_tokens(eos);
        }
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &[]).map_err(|e| wrong(&e))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            max_lexer_states: MOST_STATES,
            max_grammar_size: MOST_SYMBOLS,
            precompute_large_lexemes: false,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Grammars { factory })
    }

    /// The grammar of `shape`.
    ///
    /// # Errors
    /// A schema is malformed, uses what is not supported, or is too large: in one line.
    pub fn make(&self, shape: &Shape) -> std::result::Result<Grammar, String> {
        let grammar = GrammarWithLexer::from_lark(lark(&shape.0));
        let parser = self.factory.create_parser(TopLevelGrammar::from_grammar(grammar));
        let matcher = Matcher::new(parser);
        match matcher.get_error() {
            Some(error) => Err(one_line(&error)),
            None => Ok(Grammar { matcher }),
        }
    }
}

impl Grammar {
    /// Copies `logits` to `masked` (both `[vocab]`) but for tokens that would leave the grammar, which become -inf.
    ///
    /// # Errors
    /// The grammar has become too complex.
    pub fn mask(&mut self, logits: &[f32], masked: &mut [f32]) -> Result<()> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|error| failure(&error))?;
        masked.fill(f32::NEG_INFINITY);
        allowed.iter_set_entries(|id| {
            if let (Some(to), Some(from)) = (masked.get_mut(id), logits.get(id)) {
                *to = *from;
            }
        });
        Ok(())
    }

    /// Takes a token that the mask allowed. Returns whether the text is complete and nothing can follow.
    ///
    /// # Errors
    /// The token leaves the grammar, or the grammar has become too complex.
    pub fn accept(&mut self, token: u32) -> Result<bool> {
        self.matcher.consume_token(token).map_err(|error| failure(&error))?;
        Ok(self.matcher.is_stopped())
    }
}

fn failure(error: &dyn std::fmt::Display) -> Error {
    Error::Request(format!("the text can't be kept within its grammar: {}", one_line(&error.to_string())))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The schema with one fixed way to write separators. Were whitespace free, a weak model could write it for ever.
fn plain(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        // true and false are schemas too.
        other => json!({ "allOf": [other] }),
    };
    schema["x-guidance"] = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    schema
}

/// A grammar in the library's variant of Lark.
fn lark(alternatives: &[Vec<Part>]) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => Value::from(text.as_str()).to_string(),
        Part::Schema(schema) => format!("%json {}", plain(schema)),
    };
    let sequence = |parts: &Vec<Part>| parts.iter().map(part).collect::<Vec<_>>().join(" ");
    format!("start: {}", alternatives.iter().map(sequence).collect::<Vec<_>>().join(" | "))
}
