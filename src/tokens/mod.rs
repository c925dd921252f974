//! Text to token ids and back.
//!
//! ```text
//! messages --ChatTemplate--> text --Tokenizer::encode--> ids -> ... -> id --Detokenizer::push--> text
//! ```
//!
//! - [`Tokenizer`] reads `tokenizer.json` and `tokenizer_config.json`. `tokenizer.rs` is the only file that names the
//!   tokenizer library.
//! - [`Detokenizer`] turns ids back into text one at a time; [`Tokenizer::decode`] is the same thing run to its end, so
//!   streamed and whole text agree by construction.
//! - [`ChatTemplate`] renders a conversation with the model's own Jinja template.
//!
//! `pieces.rs` holds every token's bytes and the rules by which they join; `python.rs` prints template values as Python
//! does, which is what chat templates are written for.

mod chat;
mod pieces;
mod python;
mod stream;
mod tokenizer;

pub use chat::{ChatTemplate, Message};
pub use stream::Detokenizer;
pub use tokenizer::{Special, Tokenizer};

/// A library's error text, which may run over several lines, as one line.
fn one_line(text: impl std::fmt::Display) -> String {
    text.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
