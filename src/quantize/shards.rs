//! Writes safetensors files tensor by tensor: what comes is known before, so that no more than one tensor is in memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::formats::Dtype;
use crate::{Error, Result};

/// Bytes of a file beyond which another is begun, as on Hugging Face's hub.
pub(super) const SHARD: u64 = 5 << 30;

/// A tensor that is going to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    /// Its name.
    pub(crate) name: String,
    /// Type of the elements.
    pub(crate) dtype: Dtype,
    /// Extents, outermost first.
    pub(crate) shape: Vec<usize>,
}

impl Planned {
    /// Bytes of the tensor, whose elements are whole bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.iter().map(|&extent| extent as u64).product::<u64>() * (self.dtype.bitsize() as u64 / 8)
    }
}

/// Files under way.
#[derive(Debug)]
pub(super) struct Shards {
    dir: PathBuf,
    files: Vec<Vec<Planned>>,
    /// The file that is being written, and the next tensor in it.
    at: (usize, usize),
    open: Option<BufWriter<File>>,
}

impl Shards {
    /// Prepares to write `tensors`, in this order, into files of up to about `limit` bytes in `dir`.
    pub(super) fn new(dir: &Path, tensors: Vec<Planned>, limit: u64) -> Self {
        let mut files: Vec<Vec<Planned>> = vec![Vec::new()];
        let mut size = 0;
        for tensor in tensors {
            let bytes = tensor.bytes();
            if size > 0 && size + bytes > limit {
                files.push(Vec::new());
                size = 0;
            }
            size += bytes;
            files.last_mut().expect("there is a file").push(tensor);
        }
        Shards { dir: dir.to_owned(), files, at: (0, 0), open: None }
    }

    /// Bytes of all tensors.
    pub(super) fn total(&self) -> u64 {
        self.files.iter().flatten().map(Planned::bytes).sum()
    }

    /// Writes the next tensor.
    ///
    /// # Errors
    /// The disk is full, or the file can't be written.
    ///
    /// # Panics
    /// If it is not the one that was planned.
    pub(super) fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let planned = &self.files[self.at.0][self.at.1];
        assert!(planned.name == name && planned.bytes() == bytes.len() as u64, "{planned:?} was planned, not {name}");
        let path = self.path(self.at.0);
        let failed = |error: std::io::Error| Error::file(&path, error);
        if self.open.is_none() {
            let mut file = BufWriter::new(File::create_new(&path).map_err(failed)?);
            file.write_all(&header(&self.files[self.at.0])).map_err(failed)?;
            self.open = Some(file);
        }
        let file = self.open.as_mut().expect("the file was just opened");
        file.write_all(bytes).map_err(failed)?;
        self.at.1 += 1;
        if self.at.1 == self.files[self.at.0].len() {
            // Closing a file tells no errors; this does.
            file.flush().and_then(|()| file.get_ref().sync_all()).map_err(failed)?;
            self.open = None;
            self.at = (self.at.0 + 1, 0);
        }
        Ok(())
    }

    /// Writes the index where there are several files.
    ///
    /// # Errors
    /// It can't be written.
    ///
    /// # Panics
    /// If a tensor has not been written.
    pub(super) fn finish(self) -> Result<()> {
        assert_eq!(self.at.0, self.files.len(), "tensors are left");
        if self.files.len() == 1 {
            return Ok(());
        }
        let name = |index| self.path(index).file_name().expect("it has a name").to_string_lossy().into_owned();
        let map: Map<String, Value> = (self.files.iter().enumerate())
            .flat_map(|(index, file)| file.iter().map(move |tensor| (tensor.name.clone(), name(index).into())))
            .collect();
        let index = json!({ "metadata": { "total_size": self.total() }, "weight_map": map });
        let path = self.dir.join("model.safetensors.index.json");
        std::fs::write(&path, format!("{index:#}\n")).map_err(|error| Error::file(&path, error))
    }

    fn path(&self, index: usize) -> PathBuf {
        let name = match self.files.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        self.dir.join(name)
    }
}

/// Length and header of a file, padded so that the tensors' bytes begin at a multiple of 64.
fn header(tensors: &[Planned]) -> Vec<u8> {
    let mut object = Map::new();
    object.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes();
        let entry = json!({ "dtype": tensor.dtype.to_string(), "shape": tensor.shape, "data_offsets": [start, end] });
        object.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut text = Value::Object(object).to_string();
    let padding = (text.len() + 8).next_multiple_of(64) - (text.len() + 8);
    text.extend(std::iter::repeat_n(' ', padding));
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Checkpoint;

    fn planned(name: &str, dtype: Dtype, shape: &[usize]) -> Planned {
        Planned { name: name.into(), dtype, shape: shape.to_vec() }
    }

    fn written(limit: u64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let tensors =
            vec![planned("b", Dtype::F16, &[3]), planned("a", Dtype::U8, &[2, 2]), planned("c", Dtype::F32, &[])];
        let mut shards = Shards::new(dir.path(), tensors, limit);
        assert_eq!(shards.total(), 14);
        shards.write("b", b"123456").unwrap();
        shards.write("a", b"wxyz").unwrap();
        shards.write("c", &1.5f32.to_le_bytes()).unwrap();
        shards.finish().unwrap();
        dir
    }

    #[test]
    fn files_of_any_number_read_back() {
        for (limit, files) in [(SHARD, 1), (10, 3), (6, 4), (1, 4)] {
            let dir = written(limit);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), files, "limit {limit}");
            let checkpoint = Checkpoint::open(dir.path()).unwrap();
            assert_eq!(checkpoint.tensor("a").unwrap().bytes(), b"wxyz");
            assert_eq!(
                (checkpoint.tensor("b").unwrap().dtype(), checkpoint.tensor("b").unwrap().shape()),
                (Dtype::F16, [3].as_slice())
            );
            assert_eq!(checkpoint.tensor("c").unwrap().to_f32().unwrap(), [1.5]);
            assert_eq!(checkpoint.total_bytes(), 14);
        }
    }

    #[test]
    #[should_panic(expected = "was planned")]
    fn another_tensor_than_planned_is_a_fault() {
        let dir = tempfile::tempdir().unwrap();
        let mut shards = Shards::new(dir.path(), vec![planned("a", Dtype::U8, &[4])], SHARD);
        drop(shards.write("a", b"abc"));
    }
}
