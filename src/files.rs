//! The files of a model: a Hugging Face directory, a GGUF file, the demo model that is compiled into the program,
//! or none: random weights of a known shape.

mod gguf;
mod synthetic;

use std::path::{Path, PathBuf};

use crate::formats::Checkpoint;
use crate::model::Config;
use crate::shapes::Shape;
use crate::tokens::{ChatTemplate, Tokenizer};
use crate::{Error, Result};

/// A model's weights, configuration and tokens, read but not yet on a device.
pub struct ModelFiles {
    /// The directory or file, or the demo model's name.
    pub path: PathBuf,
    /// Shapes and constants.
    pub config: Config,
    /// The tensors.
    pub checkpoint: Checkpoint,
    /// The tokenizer, where the directory has one.
    pub tokenizer: Option<Tokenizer>,
    /// How a conversation becomes text, where the model says so.
    pub chat: Option<ChatTemplate>,
}

/// Name of the demo model.
pub const DEMO: &str = "tales-bitnet-20m";

/// What a Hugging Face directory may have besides weights that belongs to the model.
const DOCUMENTS: [&str; 14] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
    "README.md",
];

macro_rules! demo {
    ($file:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/models/tales-bitnet-20m/", $file))
    };
}

impl ModelFiles {
    /// The demo model: BitNet b1.58, 20 M parameters, English tales.
    ///
    /// # Errors
    /// None on a sound build.
    pub fn demo() -> Result<Self> {
        let config: &[u8] = demo!("config.json");
        let generation: &[u8] = demo!("generation_config.json");
        let weights: &'static [u8] = demo!("model.safetensors");
        let name = |file: &str| PathBuf::from(format!("{DEMO}/{file}"));
        Ok(ModelFiles {
            path: DEMO.into(),
            config: Config::parse((&name("config.json"), config), Some((&name("generation_config.json"), generation)))?,
            checkpoint: Checkpoint::from_bytes(name("model.safetensors"), weights)?,
            tokenizer: Some(Tokenizer::from_bytes(
                demo!("tokenizer.json"),
                Some(demo!("tokenizer_config.json")),
                "tales-bitnet-20m/tokenizer.json",
            )?),
            chat: None,
        })
    }

    /// A model of this shape with random weights, the same for the same seed; without a tokenizer. Weights are made when
    /// they are brought to a device.
    ///
    /// # Errors
    /// The shape is of no model.
    pub fn synthetic(shape: &Shape, seed: u64) -> Result<Self> {
        synthetic::model(shape, seed)
    }

    /// Opens a Hugging Face directory, or one GGUF file.
    ///
    /// # Errors
    /// It is missing, or is neither (says what it is), or one of its files is damaged or describes something
    /// unsupported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let dir = path.as_ref();
        if crate::formats::gguf::is_gguf(dir) {
            return gguf::open(dir);
        }
        // The weights first: they know best what a path really is (GGUF, PyTorch, nothing at all).
        let checkpoint = Checkpoint::open(dir)?;
        let config = Config::load(dir)?;
        let tokenizer_config = optional(&dir.join("tokenizer_config.json"))?;
        let tokenizer_path = dir.join("tokenizer.json");
        let tokenizer = optional(&tokenizer_path)?
            .map(|json| {
                Tokenizer::from_bytes(&json, tokenizer_config.as_deref(), &tokenizer_path.display().to_string())
            })
            .transpose()?;
        if let Some(tokenizer) = &tokenizer {
            check_vocabulary(tokenizer, &config, &tokenizer_path)?;
        }
        let template_path = dir.join("chat_template.jinja");
        let jinja = optional(&template_path)?
            .map(|bytes| String::from_utf8(bytes).map_err(|_| Error::file(&template_path, "not UTF-8")))
            .transpose()?;
        let chat = ChatTemplate::find(tokenizer_config.as_deref(), jinja.as_deref(), &dir.display().to_string())?;
        Ok(ModelFiles { path: dir.to_owned(), config, checkpoint, tokenizer, chat })
    }

    /// The small files that a directory of this model has besides its weights, by name: its configuration, its
    /// tokenizer's files, its licence. A GGUF file's metadata in the words of such files.
    ///
    /// # Errors
    /// One can't be read, or would not say what the GGUF file says.
    pub fn documents(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        if self.path.as_path() == Path::new(DEMO) {
            return Ok(vec![
                ("config.json", demo!("config.json").to_vec()),
                ("generation_config.json", demo!("generation_config.json").to_vec()),
                ("tokenizer.json", demo!("tokenizer.json").to_vec()),
                ("tokenizer_config.json", demo!("tokenizer_config.json").to_vec()),
            ]);
        }
        if crate::formats::gguf::is_gguf(&self.path) {
            return gguf::documents(&self.path, &self.config);
        }
        let read = |name: &&'static str| Some(optional(&self.path.join(name)).transpose()?.map(|bytes| (*name, bytes)));
        DOCUMENTS.iter().filter_map(read).collect()
    }

    /// The tokenizer of a model that text goes into.
    ///
    /// # Errors
    /// The directory has none.
    pub fn require_tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| Error::file(&self.path, "tokenizer.json is missing: text can't be read"))
    }
}

/// A token id without a row in the embedding would read past it.
fn check_vocabulary(tokenizer: &Tokenizer, config: &Config, path: &Path) -> Result<()> {
    if tokenizer.vocab_size() <= config.vocab {
        return Ok(());
    }
    Err(Error::file(
        path,
        format_args!(
            "{} tokens are more than the embedding's {} rows: tokenizer and weights are of different models",
            tokenizer.vocab_size(),
            config.vocab
        ),
    ))
}

fn optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file(path, error)),
    }
}
