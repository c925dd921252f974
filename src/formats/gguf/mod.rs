//! GGUF files: metadata, tensors and the block formats of their weights.
//!
//! The format is <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. `header.rs` reads the bytes,
//! `types.rs` knows the sizes of types, `blocks/` what blocks mean, `names.rs` where the graph's tensors are,
//! `config.rs` and `tokenizer.rs` turn metadata into what Hugging Face's files would say, `part.rs` gives rows to the
//! loader.

mod blocks;
mod config;
mod header;
mod names;
mod part;
mod tensors;
mod tokenizer;
mod types;

#[cfg(test)]
mod tests;

pub use header::{Array, GgufFile, Metadata, Value};
pub use tensors::GgufTensors;
pub use tokenizer::TokenizerFiles;
pub use types::GgmlType;

/// The four bytes that a GGUF file starts with.
pub const MAGIC: &[u8; 4] = b"GGUF";

/// Whether the file at `path` begins as GGUF does.
pub fn is_gguf(path: &std::path::Path) -> bool {
    use std::io::Read;
    let mut start = [0; 4];
    // Asked before opening: opening a named pipe waits for a writer.
    path.is_file()
        && std::fs::File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok())
        && &start == MAGIC
}
