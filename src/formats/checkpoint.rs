//! All tensors of a model: one safetensors file, a directory of them, or bytes compiled into the program.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::mapped::Mapped;
use super::safetensors::SafetensorsFile;
use super::tensor::Tensor;
use super::unique::Entries;
use super::{kind, quoted};
use crate::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// An index has some 100 bytes a tensor: far more than any model needs.
const LARGEST_INDEX: u64 = 100_000_000;

/// A model's tensors by name, all headers checked. The weights themselves are read when they are asked for.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    /// Name -> (file, tensor in it).
    places: BTreeMap<String, (usize, usize)>,
}

impl Checkpoint {
    /// Opens the weights at `path`: a Hugging Face directory (`model.safetensors`, else the shards that
    /// `model.safetensors.index.json` lists), or one safetensors file.
    ///
    /// # Errors
    /// There are no such weights (says what is there instead, as GGUF or PyTorch files), a file is not sound
    /// safetensors, a shard is missing or lacks a tensor, or two shards hold the same tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let is_dir = std::fs::metadata(path).map_err(|error| Error::file(path, error))?.is_dir();
        if !is_dir {
            return Self::gather(path, vec![SafetensorsFile::open(path)?]);
        }
        let (single, index) = (path.join(SINGLE), path.join(INDEX));
        // transformers looks in this order.
        if single.exists() {
            Self::gather(path, vec![SafetensorsFile::open(&single)?])
        } else if index.exists() {
            Self::open_shards(path, &index)
        } else {
            Err(Error::file(path, kind::why_no_model(path)?))
        }
    }

    /// The tensors of one safetensors file that is in memory, as one compiled into the program; `name` stands for
    /// its path in errors.
    ///
    /// # Errors
    /// The bytes are not sound safetensors.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: impl Into<Mapped>) -> Result<Self> {
        let name = name.as_ref();
        Self::gather(name, vec![SafetensorsFile::parse(name, bytes.into())?])
    }

    fn open_shards(dir: &Path, index: &Path) -> Result<Self> {
        let listed = read_index(index)?;
        let mut files: Vec<SafetensorsFile> = Vec::new();
        let mut opened: BTreeMap<PathBuf, usize> = BTreeMap::new();
        let mut shard_of = Vec::with_capacity(listed.len());
        for (tensor, shard) in listed {
            let shard = shard_path(&shard)
                .map_err(|problem| Error::file(index, format_args!("tensor {}: {problem}", quoted(&tensor))))?;
            let number = match opened.get(&shard) {
                Some(&number) => number,
                None => {
                    let path = dir.join(&shard);
                    if !path.exists() {
                        let shard = quoted(&shard.to_string_lossy());
                        return Err(Error::file(index, format_args!("shard {shard} is missing: download it again")));
                    }
                    files.push(SafetensorsFile::open(&path)?);
                    opened.insert(shard, files.len() - 1);
                    files.len() - 1
                }
            };
            shard_of.push((tensor, number));
        }
        let checkpoint = Self::gather(dir, files)?;
        for (tensor, number) in shard_of {
            if checkpoint.places.get(&tensor).is_none_or(|&(file, _)| file != number) {
                let problem = format_args!("tensor {} is missing: {INDEX} lists it here", quoted(&tensor));
                return Err(Error::file(checkpoint.files[number].path(), problem));
            }
        }
        Ok(checkpoint)
    }

    /// Finds every tensor's place; `files` is not empty.
    fn gather(path: &Path, files: Vec<SafetensorsFile>) -> Result<Self> {
        let mut places = BTreeMap::new();
        for (file, shard) in files.iter().enumerate() {
            for (index, tensor) in shard.tensors().enumerate() {
                if let Some((first, _)) = places.insert(tensor.name().to_owned(), (file, index)) {
                    return Err(tensor.error(format_args!("also in {}", files[first].path().display())));
                }
            }
        }
        Ok(Self { path: path.to_owned(), files, places })
    }

    /// The path that was opened, or the name of the bytes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        self.places
            .get(name)
            .and_then(|&(file, index)| self.files.get(file)?.tensor(index))
            .ok_or_else(|| Error::file(&self.path, format_args!("tensor {} is missing", quoted(name))))
    }

    /// The tensor called `name`, which must have `shape`.
    ///
    /// # Errors
    /// There is none, or its shape is another: names both shapes.
    pub fn tensor_of_shape(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>> {
        self.tensor(name)?.expect_shape(shape)
    }

    /// Whether there is a tensor called `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// The bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().flat_map(SafetensorsFile::tensors).map(|tensor| tensor.bytes().len() as u64).sum()
    }

    /// Tells the system that the tensor's pages are not needed for now; see [`Mapped::release`].
    pub fn release(&self, tensor: &Tensor<'_>) {
        tensor.release();
    }
}

/// The index's (tensor, shard) pairs.
fn read_index(path: &Path) -> Result<Vec<(String, String)>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Entries<String>,
    }
    let size = std::fs::metadata(path).map_err(|error| Error::file(path, error))?.len();
    if size > LARGEST_INDEX {
        return Err(Error::file(path, format_args!("{size} bytes are over the limit of {LARGEST_INDEX} for an index")));
    }
    let text = std::fs::read(path).map_err(|error| Error::file(path, error))?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|error| Error::file(path, format_args!("not a valid safetensors index: {error}")))?;
    if index.weight_map.0.is_empty() {
        return Err(Error::file(path, "weight_map lists no tensor"));
    }
    Ok(index.weight_map.0)
}

/// The shard's path below the directory. A plain relative path only: an index out of a download must not reach
/// elsewhere. (Symbolic links are followed: Hugging Face's cache is made of them.)
fn shard_path(shard: &str) -> std::result::Result<PathBuf, String> {
    let inside = !shard.is_empty()
        && !shard.contains(['\\', ':', '\0'])
        && Path::new(shard).components().all(|part| matches!(part, Component::Normal(_)));
    if inside {
        Ok(Path::new(shard).components().collect())
    } else {
        Err(format!("shard {} is no file name inside the model's directory", quoted(shard)))
    }
}
