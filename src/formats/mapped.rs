//! Bytes of a model: a read-only mapping of a file, or bytes that are in memory already.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::{Error, Result};

/// Read-only bytes, cheap to clone, that stay where they are: `&[u8]` through `Deref`.
#[derive(Debug, Clone)]
pub struct Mapped(Source);

#[derive(Debug, Clone)]
enum Source {
    File(Arc<Mmap>),
    /// Compiled into the program.
    Static(&'static [u8]),
    Memory(Arc<Vec<u8>>),
}

impl Mapped {
    /// Maps the file at `path`. Nothing is read until the bytes are touched.
    ///
    /// # Errors
    /// The file is missing, unreadable, or not a regular file (a pipe or a device can't be mapped).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let problem = |error: std::io::Error| Error::file(path, error);
        // Asked before opening: opening a named pipe waits for a writer.
        if !std::fs::metadata(path).map_err(problem)?.is_file() {
            return Err(Error::file(path, "not a regular file"));
        }
        let file = File::open(path).map_err(problem)?;
        Ok(Self(Source::File(Arc::new(map(&file).map_err(problem)?))))
    }

    /// Tells the system that the bytes of `range` are not needed for now, so that the pages of a big checkpoint do not
    /// pile up in the resident set while it is converted. The bytes stay readable: touching them reads them again.
    /// Only a hint: bytes in memory, a range out of bounds and systems without it are passed over.
    pub fn release(&self, range: Range<usize>) {
        if let Source::File(map) = &self.0
            && range.start < range.end
            && range.end <= map.len()
        {
            drop_pages(map, range);
        }
    }

    /// To be called when a row was read, the bytes of `row`, of a tensor that begins at `first`: where it ends a span of
    /// some megabytes, that span is [released](Mapped::release). So rows that are read once, in order, do not pile up. Where
    /// several threads read rows, a span that another one is still in is read again.
    pub fn passed(&self, first: usize, row: Range<usize>) {
        const SPAN: usize = 8 << 20;
        let (from, to) = (row.start / SPAN, row.end / SPAN);
        if from < to {
            self.release((from * SPAN).max(first)..to * SPAN);
        }
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Source::File(map) => map,
            Source::Static(bytes) => bytes,
            Source::Memory(bytes) => bytes,
        }
    }
}

impl From<&'static [u8]> for Mapped {
    fn from(bytes: &'static [u8]) -> Self {
        Self(Source::Static(bytes))
    }
}

impl From<Vec<u8>> for Mapped {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Source::Memory(Arc::new(bytes)))
    }
}

#[allow(unsafe_code)] // a mapping is unsafe by nature; the reason why it is sound is below
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is read-only and the program never writes to the file. Another program might change or cut
    // the file while it is mapped, which nothing portable prevents. So no decision about memory rests on the mapped
    // bytes staying the same: headers are copied out before they are parsed, all lengths come from the mapping's own
    // length, no `str` or other type with invariants is made over mapped bytes, and weights are read as plain numbers,
    // each value checked in the read that uses it. A file changed under us gives other numbers; one cut short ends
    // the program with SIGBUS.
    unsafe { Mmap::map(file) }
}

/// Drops the pages of `range`, which lies inside the mapping, from the resident set.
#[cfg(unix)]
#[allow(unsafe_code)] // of madvise's calls, the safe ones of memmap2 can't give pages back
fn drop_pages(map: &Mmap, range: Range<usize>) {
    // SAFETY: MADV_DONTNEED is unchecked because on private or anonymous memory it loses what was written. This is a
    // shared, read-only mapping of a file, never written to: the next access finds the same bytes in the file, under
    // the same condition that `map` states, so slices borrowed from the mapping stay valid and keep their contents.
    let advised = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
    // Refused advice costs memory, not correctness.
    drop(advised);
}

#[cfg(not(unix))]
fn drop_pages(_map: &Mmap, _range: Range<usize>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_sources_serve_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bytes");
        std::fs::write(&path, b"weights").unwrap();
        let file = Mapped::open(&path).unwrap();
        let clone = file.clone();
        drop(file);
        for mapped in [clone, Mapped::from(b"weights".as_slice()), Mapped::from(b"weights".to_vec())] {
            mapped.release(0..7);
            mapped.release(0..usize::MAX);
            mapped.release(7..7);
            assert_eq!(&*mapped, b"weights");
        }
    }

    #[test]
    fn an_empty_file_is_no_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        assert!(Mapped::open(&path).unwrap().is_empty());
    }

    #[test]
    fn missing_files_and_directories_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Mapped::open(dir.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("none: ") && missing.contains("No such file"), "{missing}");
        let directory = Mapped::open(dir.path()).unwrap_err().to_string();
        assert!(directory.ends_with("not a regular file"), "{directory}");
    }

    /// Bytes of files in this process's resident set.
    #[cfg(target_os = "linux")]
    fn resident_file_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssFile:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn released_pages_leave_the_resident_set_and_come_back_unchanged() {
        const SIZE: usize = 64 << 20;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big");
        let bytes: Vec<u8> = (0..SIZE).map(|i| (i >> 12) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        assert!(*mapped == *bytes);
        let before = resident_file_bytes();
        mapped.release(0..SIZE);
        let after = resident_file_bytes();
        assert!(before - after > SIZE / 2, "{before} bytes resident before, {after} after");
        assert!(*mapped == *bytes);
        mapped.release(0..SIZE);
        // Rows of no round size.
        for start in (0..SIZE).step_by(100_000) {
            let row = start..SIZE.min(start + 100_000);
            assert!(mapped[row.clone()] == bytes[row.clone()]);
            mapped.passed(0, row);
            let now = resident_file_bytes();
            assert!(now < after + SIZE / 2, "{after} bytes resident before, {now} at byte {start}");
        }
    }
}
