//! A file that is not whole yet.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::checksum::Checksum;
use crate::{Error, Result};

/// What there is of a file, with its checksum so far. It stays on disk when it is dropped: the next download goes
/// on from there.
pub(crate) struct Partial {
    path: PathBuf,
    file: File,
    tag: String,
    size: u64,
    length: u64,
    sum: Checksum,
}

impl Partial {
    /// Opens or creates the part at `path` of a file of `size` bytes with this tag; reads what is there through the
    /// checksum. A part longer than the file is no part of it.
    pub(crate) fn open(path: &Path, tag: &str, size: u64, keep_going: &mut dyn FnMut() -> bool) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Error::file(path, &error))?;
        let sum = Checksum::of_kind(tag, size);
        let mut partial = Partial { path: path.to_owned(), file, tag: tag.to_owned(), size, length: 0, sum };
        let mut buffer = vec![0; 1 << 18];
        loop {
            let read = partial.file.read(&mut buffer).map_err(|error| partial.failed(&error))?;
            if read == 0 {
                return Ok(partial);
            }
            partial.length += read as u64;
            if partial.length > size {
                partial.clear()?;
                return Ok(partial);
            }
            partial.sum.update(&buffer[..read]);
            if !keep_going() {
                return Err(Error::Interrupted);
            }
        }
    }

    /// Bytes that are there.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Appends `bytes`, which must not go beyond the file's size.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.failed(&error))?;
        self.sum.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Throws away what is there.
    pub(crate) fn clear(&mut self) -> Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(|error| self.failed(&error))?;
        self.length = 0;
        self.sum = Checksum::of_kind(&self.tag, self.size);
        Ok(())
    }

    /// What is wrong with a part that has all bytes; `None` where the checksum is the hub's or unknown.
    pub(crate) fn damage(&self) -> Option<String> {
        let sum = self.sum.hex()?;
        let wrong = !sum.eq_ignore_ascii_case(&self.tag);
        wrong.then(|| format!("its checksum is {sum} where the hub says {}", self.tag))
    }

    /// Makes sure that the bytes are on the disk and gives them their name.
    pub(crate) fn finish(self, path: &Path) -> Result<()> {
        self.file.sync_all().map_err(|error| self.failed(&error))?;
        std::fs::rename(&self.path, path).map_err(|error| Error::file(path, &error))
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        Error::file(&self.path, error)
    }
}
