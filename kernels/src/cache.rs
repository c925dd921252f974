//! Compiled kernels on disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of compiled kernels. What it can't keep is compiled again the next time: nothing here is an error.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// `$XDG_CACHE_HOME/trine/kernels`, or `~/.cache/trine/kernels`; nothing is kept where neither is known.
    pub fn of_user() -> Cache {
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")));
        Cache { folder: base.map(|base| base.join("trine").join("kernels")) }
    }

    /// A folder of one's own.
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: Some(folder.into()) }
    }

    /// Where it is.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// What is kept under a name.
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.folder.as_ref()?.join(name)).ok().filter(|bytes| !bytes.is_empty())
    }

    /// Keeps bytes under a name. Others see all of them or none.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let part = folder.join(unfinished(name));
        let kept = fs::create_dir_all(folder).and_then(|()| fs::write(&part, bytes));
        if kept.and_then(|()| fs::rename(&part, folder.join(name))).is_err() {
            let _ = fs::remove_file(&part);
        }
    }
}

/// A name that no other thread or process writes to.
pub(crate) fn unfinished(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{name}.{}-{}.part", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("a/b"));
        assert_eq!(cache.read("one"), None);
        cache.write("one", b"first");
        cache.write("one", b"second");
        assert_eq!(cache.read("one").as_deref(), Some(&b"second"[..]));
        assert_eq!(fs::read_dir(cache.folder().unwrap()).unwrap().count(), 1);
        // An empty file is a disk that was full: it is made again.
        cache.write("none", b"");
        assert_eq!(cache.read("none"), None);
    }

    #[test]
    fn a_folder_that_can_not_be_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = Cache::at(file.path().join("below"));
        cache.write("one", b"first");
        assert_eq!(cache.read("one"), None);
    }
}
