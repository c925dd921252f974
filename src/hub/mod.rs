//! Models of the Hugging Face hub: what they are called, where they are kept, and which of their files are needed.
//!
//! The cache is the one of Python's `huggingface_hub`, so that both find what either has downloaded. Finding needs no
//! network; downloading is [`crate::backend::pull`].

mod choose;
mod find;
mod name;
mod settings;

pub use choose::{Choice, choose};
pub use find::{find, resolve};
pub use name::Reference;
pub use settings::Settings;

use crate::Result;

/// Picks the files to download from all files of a repository.
pub type Choose<'a> = dyn FnMut(&[&str]) -> Result<Vec<String>> + 'a;

/// Told the bytes that are there and all bytes; false stops the download.
pub type Progress<'a> = dyn FnMut(u64, u64) -> bool + 'a;
