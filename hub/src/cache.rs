//! A repository's folder in the hub's cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::names::{is_below, is_commit};
use crate::{Error, Result};

/// How often a lock that somebody else has is asked for.
const POLL: Duration = Duration::from_millis(100);

/// Where a file's contents are.
pub(crate) fn blob(folder: &Path, tag: &str) -> PathBuf {
    folder.join("blobs").join(tag)
}

/// Where a file of a commit is found under its name.
pub(crate) fn snapshot(folder: &Path, commit: &str, file: &str) -> PathBuf {
    folder.join("snapshots").join(commit).join(file)
}

/// Creates the folder of `path`.
pub(crate) fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(|error| Error::file(parent, &error))
}

/// Held while a file is downloaded.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until nobody else, Python's client included, downloads the file with this tag.
    pub(crate) fn wait(folder: &Path, tag: &str, keep_going: &mut dyn FnMut() -> bool) -> Result<Self> {
        let (cache, name) = (folder.parent().unwrap_or(folder), folder.file_name().unwrap_or_default());
        let path = cache.join(".locks").join(name).join(format!("{tag}.lock"));
        make_parent(&path)?;
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|error| Error::file(&path, &error))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(fs::TryLockError::WouldBlock) if keep_going() => std::thread::sleep(POLL),
                Err(fs::TryLockError::WouldBlock) => return Err(Error::Interrupted),
                Err(fs::TryLockError::Error(error)) => return Err(Error::file(&path, &error)),
            }
        }
    }
}

/// Makes the contents with this tag appear under the file's name. A link, or the contents themselves where the file
/// system has no links.
pub(crate) fn publish(folder: &Path, commit: &str, file: &str, tag: &str) -> Result<()> {
    let path = snapshot(folder, commit, file);
    make_parent(&path)?;
    let up = "../".repeat(file.split('/').count() + 1);
    let target = PathBuf::from(format!("{up}blobs/{tag}"));
    let beside = path.with_added_extension("incomplete");
    let _ = fs::remove_file(&beside);
    let placed = match link(&target, &beside) {
        Ok(()) => fs::rename(&beside, &path),
        Err(_) => fs::rename(blob(folder, tag), &path),
    };
    placed.map_err(|error| Error::file(&path, &error))
}

#[cfg(unix)]
fn link(target: &Path, path: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(windows)]
fn link(target: &Path, path: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, path)
}

/// Writes down that `revision` is at `commit`, once its files are there.
///
/// # Errors
/// One of them is no such name, or the cache can't be written.
pub fn set_revision(folder: &Path, revision: &str, commit: &str) -> Result<()> {
    if !is_below(revision) || !is_commit(commit) {
        return Err(Error::hub(revision, "no name of a revision"));
    }
    if revision == commit {
        return Ok(());
    }
    let path = folder.join("refs").join(revision);
    make_parent(&path)?;
    let beside = path.with_added_extension("incomplete");
    let written = fs::write(&beside, commit).and_then(|()| fs::rename(&beside, &path));
    written.map_err(|error| Error::file(&path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn files_are_found_under_their_names() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models--o--n");
        fs::create_dir_all(folder.join("blobs")).unwrap();
        fs::write(blob(&folder, "tag"), "contents").unwrap();
        for file in ["a", "b/c/d.json"] {
            // Again, over what is there.
            for _ in 0..2 {
                publish(&folder, COMMIT, file, "tag").unwrap();
                assert_eq!(fs::read_to_string(snapshot(&folder, COMMIT, file)).unwrap(), "contents", "{file}");
            }
        }
    }

    #[test]
    fn a_revision_is_a_file_with_a_commit() {
        let folder = tempfile::tempdir().unwrap();
        set_revision(folder.path(), "refs/pr/1", COMMIT).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("refs/refs/pr/1")).unwrap(), COMMIT);
        set_revision(folder.path(), COMMIT, COMMIT).unwrap();
        assert!(!folder.path().join("refs").join(COMMIT).exists());
        assert!(set_revision(folder.path(), "../../x", COMMIT).is_err());
        assert!(set_revision(folder.path(), "main", "../x").is_err());
    }

    #[test]
    fn one_at_a_time() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models--o--n");
        let lock = Lock::wait(&folder, "tag", &mut || true).unwrap();
        let mut asked = 0;
        let refused = Lock::wait(&folder, "tag", &mut || {
            asked += 1;
            asked < 3
        });
        assert!(matches!(refused, Err(Error::Interrupted)));
        Lock::wait(&folder, "other", &mut || true).unwrap();
        drop(lock);
        Lock::wait(&folder, "tag", &mut || false).unwrap();
    }
}
