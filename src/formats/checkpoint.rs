//! All tensors of a model: one safetensors file, a directory of them, bytes compiled into the program, a GGUF file, or
//! random ones in no file.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use trine_backend::Format;

use super::gguf::{GgufFile, GgufTensors, is_gguf};
use super::mapped::Mapped;
use super::part::{self, BitnetPart, DensePart, Part, PartInfo, Quantization};
use super::safetensors::SafetensorsFile;
use super::synthetic::SyntheticTensors;
use super::tensor::{Tensor, check_finite};
use super::trine::{self, TrinePart};
use super::unique::Entries;
use super::words::WordsPart;
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
    source: Source,
}

#[derive(Debug)]
enum Source {
    Safetensors(Shards),
    Gguf(GgufTensors),
    Synthetic(SyntheticTensors),
}

/// The tensors of safetensors files.
#[derive(Debug)]
struct Shards {
    files: Vec<SafetensorsFile>,
    /// Name -> (file, tensor in it).
    places: BTreeMap<String, (usize, usize)>,
}

impl Shards {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let &(file, index) = self.places.get(name)?;
        self.files.get(file)?.tensor(index)
    }
}

impl Checkpoint {
    /// Opens the weights at `path`: a Hugging Face directory (`model.safetensors`, else the shards that
    /// `model.safetensors.index.json` lists), one safetensors file, or one GGUF file.
    ///
    /// # Errors
    /// There are no such weights (says what is there instead, as PyTorch files), a file is not sound
    /// safetensors or GGUF, a shard is missing or lacks a tensor, or two shards hold the same tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let is_dir = std::fs::metadata(path).map_err(|error| Error::file(path, error))?.is_dir();
        if is_gguf(path) {
            return Ok(Self::from_gguf(GgufFile::open(path)?.split()?.1));
        }
        if !is_dir {
            return Self::of_files(path, vec![SafetensorsFile::open(path)?]);
        }
        let (single, index) = (path.join(SINGLE), path.join(INDEX));
        // Listed, not reachable: a dangling link of an unfinished download is to be named, not passed over.
        let listed = |path: &Path| path.symlink_metadata().is_ok();
        // transformers looks in this order.
        if listed(&single) {
            Self::of_files(path, vec![SafetensorsFile::open(&single)?])
        } else if listed(&index) {
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
        Self::of_files(name, vec![SafetensorsFile::parse(name, bytes.into())?])
    }

    /// The tensors of a GGUF file.
    pub fn from_gguf(tensors: GgufTensors) -> Self {
        Self { path: tensors.path().to_owned(), source: Source::Gguf(tensors) }
    }

    /// Random tensors.
    pub fn synthetic(tensors: SyntheticTensors) -> Self {
        Self { path: tensors.path().to_owned(), source: Source::Synthetic(tensors) }
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
        let shards = gather(files)?;
        for (tensor, number) in shard_of {
            if shards.places.get(&tensor).is_none_or(|&(file, _)| file != number) {
                let problem = format_args!("tensor {} is missing: {INDEX} lists it here", quoted(&tensor));
                return Err(Error::file(shards.files[number].path(), problem));
            }
        }
        Ok(Self { path: dir.to_owned(), source: Source::Safetensors(shards) })
    }

    fn of_files(path: &Path, files: Vec<SafetensorsFile>) -> Result<Self> {
        Ok(Self { path: path.to_owned(), source: Source::Safetensors(gather(files)?) })
    }

    /// The path that was opened, or the name of the bytes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// There is none, or its bytes are in no file or of one of GGUF's coded types, which only [`Checkpoint::part`] reads.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        match &self.source {
            Source::Gguf(tensors) => tensors.tensor(name),
            Source::Synthetic(tensors) => Err(tensors.error(name, "has no bytes: it is made when it is asked for")),
            Source::Safetensors(shards) => shards
                .tensor(name)
                .ok_or_else(|| Error::file(&self.path, format_args!("tensor {} is missing", quoted(name)))),
        }
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
        match &self.source {
            Source::Gguf(tensors) => tensors.contains(name),
            Source::Synthetic(tensors) => tensors.contains(name),
            Source::Safetensors(shards) => shards.places.contains_key(name),
        }
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names: Box<dyn Iterator<Item = &str>> = match &self.source {
            Source::Gguf(tensors) => Box::new(tensors.names()),
            Source::Synthetic(tensors) => Box::new(tensors.names()),
            Source::Safetensors(shards) => Box::new(shards.places.keys().map(String::as_str)),
        };
        names
    }

    /// The bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        self.stored().map(|(_, _, bytes)| bytes).sum()
    }

    /// What the header says about the matrix called `name` (its tensors' name without `.weight` and the like), which is
    /// stored as `quantization` says.
    ///
    /// # Errors
    /// It is missing, or of a type that is not read.
    pub fn part_info(&self, name: &str, quantization: Quantization) -> Result<PartInfo> {
        match &self.source {
            Source::Gguf(tensors) => return tensors.part_info(name),
            Source::Synthetic(tensors) => return tensors.part_info(name),
            Source::Safetensors(_) => {}
        }
        if let Quantization::Words { packing, group } = quantization {
            // Whether the codes can be kept is in a tensor, g_idx.
            return WordsPart::info(self, name, packing, group);
        }
        let tensor = self.tensor(&format!("{name}.weight"))?;
        let format = match quantization {
            Quantization::Bitnet { .. } => Format::Ternary,
            Quantization::Trine { .. } => trine::format(self, name)?,
            _ => part::dense_format(&tensor)?,
        };
        Ok(PartInfo { tensor: tensor.name().to_owned(), format, stored: tensor.dtype().to_string(), exact: true })
    }

    /// Opens the matrix called `name`, which must have `shape`, rows and columns, for reading. May read all of it once.
    ///
    /// # Errors
    /// It is missing, has another shape, or is not what `quantization` says.
    pub fn part(&self, name: &str, shape: [usize; 2], quantization: Quantization) -> Result<Box<dyn Part + '_>> {
        match &self.source {
            Source::Gguf(tensors) => return tensors.part(name, shape),
            Source::Synthetic(tensors) => return tensors.part(name, shape),
            Source::Safetensors(_) => {}
        }
        if let Quantization::Words { packing, group } = quantization {
            return Ok(Box::new(WordsPart::new(self, name, shape, packing, group)?));
        }
        let tensor = self.tensor(&format!("{name}.weight"))?;
        Ok(match quantization {
            Quantization::Trine { per_token } if self.contains(&format!("{name}.weight_scale")) => {
                Box::new(TrinePart::new(self, name, shape, per_token)?)
            }
            Quantization::Trine { .. } | Quantization::Words { .. } | Quantization::None => {
                Box::new(DensePart::new(tensor.expect_shape(&shape)?)?)
            }
            Quantization::Bitnet { online: true, .. } => Box::new(BitnetPart::online(tensor.expect_shape(&shape)?)?),
            Quantization::Bitnet { divide, .. } => {
                let scale = self.tensor(&format!("{name}.weight_scale"))?;
                Box::new(BitnetPart::packed(tensor, &scale, divide, shape)?)
            }
        })
    }

    /// The values of the vector called `name`, `length` of them and all finite.
    ///
    /// # Errors
    /// It is missing, has another shape, is no vector of floats, or holds NaN or infinity.
    pub fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>> {
        match &self.source {
            Source::Gguf(tensors) => return tensors.vector(name, length),
            Source::Synthetic(tensors) => return tensors.vector(name, length),
            Source::Safetensors(_) => {}
        }
        let tensor = self.tensor_of_shape(name, &[length])?;
        let values = tensor.to_f32()?;
        check_finite(&values, &tensor, 0)?;
        Ok(values)
    }

    /// An error about the tensor called `name`.
    pub fn error(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        match &self.source {
            Source::Gguf(tensors) => return tensors.error(name, problem),
            Source::Synthetic(tensors) => return tensors.error(name, problem),
            Source::Safetensors(_) => {}
        }
        match self.tensor(name) {
            Ok(tensor) => tensor.error(problem),
            Err(missing) => missing,
        }
    }

    /// Every tensor's name, type in the file's words, and bytes, sorted by name.
    pub fn stored(&self) -> impl Iterator<Item = (&str, String, u64)> {
        self.names().filter_map(|name| match &self.source {
            Source::Gguf(tensors) => tensors.stored(name).ok().map(|(kind, bytes)| (name, kind.to_string(), bytes)),
            Source::Synthetic(tensors) => tensors.bytes(name).map(|bytes| (name, "random".to_owned(), bytes)),
            Source::Safetensors(shards) => {
                let tensor = shards.tensor(name)?;
                Some((name, tensor.dtype().to_string(), tensor.bytes().len() as u64))
            }
        })
    }

    /// Tells the system that the tensor's pages are not needed for now; see [`Mapped::release`].
    pub fn release(&self, tensor: &Tensor<'_>) {
        tensor.release();
    }
}

/// Finds every tensor's place.
fn gather(files: Vec<SafetensorsFile>) -> Result<Shards> {
    let mut places = BTreeMap::new();
    for (file, shard) in files.iter().enumerate() {
        for (index, tensor) in shard.tensors().enumerate() {
            if let Some((first, _)) = places.insert(tensor.name().to_owned(), (file, index)) {
                let first: &SafetensorsFile = &files[first];
                return Err(tensor.error(format_args!("also in {}", first.path().display())));
            }
        }
    }
    Ok(Shards { files, places })
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::test_files::{Builder, FIXTURES, fixture};
    use super::*;

    struct Dir(tempfile::TempDir);

    impl Dir {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
            fs::write(self.0.path().join(name), bytes).unwrap();
            self
        }

        /// With an index of these (tensor, shard) pairs.
        fn index(self, entries: &[(&str, &str)]) -> Self {
            let entries: Vec<_> = entries.iter().map(|(tensor, shard)| format!("{tensor:?}:{shard:?}")).collect();
            self.with(INDEX, format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, entries.join(",")))
        }

        fn open(&self) -> Result<Checkpoint> {
            Checkpoint::open(self.0.path())
        }

        /// The error without the directory's name.
        fn problem(&self) -> String {
            let error = self.open().unwrap_err().to_string();
            assert!(!error.contains('\n'), "{error}");
            error.replace(&format!("{}", self.0.path().display()), "DIR")
        }
    }

    fn shard(name: &str, value: f32) -> Vec<u8> {
        Builder::default().f32(name, &[1], &[value]).build()
    }

    #[test]
    fn a_sharded_fixture_holds_the_same_tensors() {
        for name in FIXTURES {
            let whole = Checkpoint::open(fixture(name)).unwrap();
            let mut shards: [Vec<_>; 3] = Default::default();
            for (i, name) in whole.names().enumerate() {
                shards[i % 3].push(whole.tensor(name).unwrap());
            }
            let mut dir = Dir::new();
            let mut index = Vec::new();
            let files = ["model-00001-of-00003.safetensors", "b.safetensors", "c.safetensors"];
            for (tensors, file) in shards.iter().zip(files) {
                let mut builder = Builder::default();
                for tensor in tensors {
                    builder =
                        builder.tensor(tensor.name(), &tensor.dtype().to_string(), tensor.shape(), tensor.bytes());
                    index.push((tensor.name(), file));
                }
                dir = dir.with(file, builder.build());
            }
            // Not listed, so not opened: it isn't even safetensors.
            let sharded = dir.with("other.safetensors", "").index(&index).open().unwrap();
            assert!(whole.names().eq(sharded.names()));
            assert_eq!(whole.total_bytes(), sharded.total_bytes());
            for name in whole.names() {
                let (a, b) = (whole.tensor(name).unwrap(), sharded.tensor(name).unwrap());
                assert_eq!((a.dtype(), a.shape(), a.bytes()), (b.dtype(), b.shape(), b.bytes()));
                sharded.release(&b);
                assert_eq!(a.bytes(), b.bytes());
            }
        }
    }

    #[test]
    fn files_bytes_and_directories_are_alike() {
        let bytes = shard("t", 2.5);
        let dir = Dir::new().with(SINGLE, &bytes);
        let embedded: &'static [u8] = bytes.clone().leak();
        for checkpoint in [
            dir.open().unwrap(),
            Checkpoint::open(dir.0.path().join(SINGLE)).unwrap(),
            Checkpoint::from_bytes("built in", embedded).unwrap(),
            Checkpoint::from_bytes("built in", bytes).unwrap(),
        ] {
            assert!(checkpoint.contains("t") && !checkpoint.contains("u"));
            assert_eq!(checkpoint.total_bytes(), 4);
            assert_eq!(checkpoint.tensor("t").unwrap().to_f32().unwrap(), [2.5]);
            checkpoint.tensor_of_shape("t", &[1]).unwrap();
            let shape = checkpoint.tensor_of_shape("t", &[2, 2]).unwrap_err().to_string();
            assert!(shape.ends_with("tensor \"t\": shape [1] where [2, 2] is expected"), "{shape}");
            let missing = checkpoint.tensor("u").unwrap_err().to_string();
            assert_eq!(missing, format!("{}: tensor \"u\" is missing", checkpoint.path().display()));
        }
    }

    #[test]
    fn shards_must_be_there_and_hold_what_the_index_says() {
        let dir = Dir::new().with("a.safetensors", shard("a", 1.0)).with("b.safetensors", shard("b", 1.0));
        let dir = dir.index(&[("a", "a.safetensors"), ("b", "c.safetensors")]);
        let missing = format!("DIR/{INDEX}: shard \"c.safetensors\" is missing: download it again");
        assert_eq!(dir.problem(), missing);
        let dir = dir.index(&[("a", "a.safetensors"), ("c", "b.safetensors")]);
        assert_eq!(dir.problem(), format!("DIR/b.safetensors: tensor \"c\" is missing: {INDEX} lists it here"));
        // It exists, but in the other shard.
        let dir = dir.index(&[("a", "b.safetensors"), ("b", "a.safetensors")]);
        assert_eq!(dir.problem(), format!("DIR/b.safetensors: tensor \"a\" is missing: {INDEX} lists it here"));
        let dir = dir.with("b.safetensors", shard("a", 2.0)).index(&[("a", "a.safetensors"), ("b", "b.safetensors")]);
        assert_eq!(dir.problem(), "DIR/b.safetensors: tensor \"a\": also in DIR/a.safetensors");
        let dir = dir.with("b.safetensors", &shard("b", 2.0)[..30]);
        assert!(dir.problem().starts_with("DIR/b.safetensors: the header should have"), "{}", dir.problem());
    }

    #[test]
    fn an_index_stays_in_its_directory() {
        let parent = Dir::new().with("up.safetensors", shard("a", 1.0));
        let dir = parent.0.path().join("model");
        fs::create_dir(&dir).unwrap();
        let absolute = parent.0.path().join("up.safetensors").display().to_string();
        for path in
            ["../up.safetensors", &absolute, "x/../../up.safetensors", "", ".", "..", "./", "..\\up", "C:up", "a\0"]
        {
            let text = serde_json::json!({"weight_map": {"a": path}}).to_string();
            fs::write(dir.join(INDEX), text).unwrap();
            let error = Checkpoint::open(&dir).unwrap_err().to_string();
            assert!(error.contains("tensor \"a\": shard ") && error.contains("is no file name inside"), "{error}");
        }
        fs::create_dir(dir.join("sub")).unwrap();
        fs::write(dir.join("sub/a.safetensors"), shard("a", 1.0)).unwrap();
        fs::write(dir.join(INDEX), r#"{"weight_map": {"a": "sub/a.safetensors"}}"#).unwrap();
        assert!(Checkpoint::open(&dir).unwrap().contains("a"));
    }

    #[test]
    fn a_bad_index_is_told() {
        let dir = Dir::new();
        let dir = dir.with(INDEX, r#"{"weight_map":{"a":"x","a":"y"}}"#);
        assert!(dir.problem().contains("\"a\" appears twice"), "{}", dir.problem());
        for text in ["", "[", "{}", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#, "\u{feff}{}"] {
            let dir = Dir::new().with(INDEX, text);
            let expected = format!("DIR/{INDEX}: not a valid safetensors index: ");
            assert!(dir.problem().starts_with(&expected), "{}", dir.problem());
        }
        let empty = Dir::new().index(&[]);
        assert_eq!(empty.problem(), format!("DIR/{INDEX}: weight_map lists no tensor"));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_dangling_ones_named() {
        let dir = Dir::new().with("blob", shard("a", 1.0));
        std::os::unix::fs::symlink("blob", dir.0.path().join(SINGLE)).unwrap();
        assert!(dir.open().unwrap().contains("a"));
        fs::remove_file(dir.0.path().join("blob")).unwrap();
        assert!(dir.problem().starts_with("DIR/model.safetensors: No such file"), "{}", dir.problem());
    }

    #[test]
    fn what_is_no_safetensors_model_is_named() {
        let found = |name: &str| Dir::new().with("config.json", "{}").with(name, "GGUF").problem();
        let wanted = "give a Hugging Face directory with safetensors, or a GGUF file";
        assert_eq!(found("model-q4.gguf"), "DIR: holds GGUF weights (model-q4.gguf): give that file itself");
        let pytorch = "which are not read because they can hold code";
        assert_eq!(
            found("pytorch_model-00001-of-00002.bin"),
            format!("DIR: holds PyTorch weights (pytorch_model-00001-of-00002.bin), {pytorch}: {wanted}")
        );
        assert_eq!(
            found("tokenizer.json"),
            format!("DIR: holds a tokenizer (tokenizer.json) but no weights: {wanted}")
        );
        assert!(found("adapter_model.safetensors").contains("holds an adapter"));
        assert!(found("consolidated.safetensors").contains("but neither model.safetensors nor"));
        assert!(Dir::new().problem().starts_with("DIR: holds no model: give"));
        let dir = Dir::new().with("a.gguf", b"GGUF\x03\0\0\0").with("b.bin", b"PK\x03\x04....");
        let file = |name| Checkpoint::open(dir.0.path().join(name)).unwrap_err().to_string();
        assert!(file("a.gguf").contains("a.gguf: the number of tensors should have 8 bytes and 0 are left"));
        assert!(file("b.bin").contains("b.bin: a PyTorch checkpoint"));
        assert!(file("none").contains("none: No such file"));
    }
}
