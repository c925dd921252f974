//! A directory that appears whole or not at all.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A directory beside the one that is meant, which takes its name at the end and is removed if that never comes.
#[derive(Debug)]
pub(super) struct Staging {
    target: PathBuf,
    work: PathBuf,
    finished: bool,
}

impl Staging {
    /// Begins `target`.
    ///
    /// # Errors
    /// There is something of that name that is no empty directory, or nothing can be made beside it.
    pub(super) fn new(target: &Path) -> Result<Self> {
        match std::fs::read_dir(target).map(Iterator::count) {
            Ok(0) => {}
            Ok(_) => {
                return Err(Error::file(target, "is there and not empty: name a new directory, or remove it first"));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                return Err(Error::file(target, "is there and is no directory: name a new one"));
            }
            Err(error) => return Err(Error::file(target, error)),
        }
        let Some(name) = target.file_name() else {
            return Err(Error::file(target, "is no name for a new directory"));
        };
        // The process's number keeps two runs apart.
        let work = target.with_file_name(format!(".{}.{}.partial", name.to_string_lossy(), std::process::id()));
        std::fs::create_dir(&work).map_err(|error| Error::file(&work, error))?;
        Ok(Staging { target: target.to_owned(), work, finished: false })
    }

    /// Where to write for now.
    pub(super) fn path(&self) -> &Path {
        &self.work
    }

    /// Gives the directory its name.
    ///
    /// # Errors
    /// It can't be renamed, as when something took its name meanwhile.
    pub(super) fn finish(mut self) -> Result<()> {
        std::fs::rename(&self.work, &self.target).map_err(|error| Error::file(&self.target, error))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing is left to tell it to: the error that led here is on its way already.
            drop(std::fs::remove_dir_all(&self.work));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn it_appears_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let staging = Staging::new(&target).unwrap();
        std::fs::write(staging.path().join("a"), "1").unwrap();
        assert!(!target.exists());
        staging.finish().unwrap();
        assert_eq!(names(&target), ["a"]);
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn nothing_stays_of_what_was_not_finished() {
        let dir = tempfile::tempdir().unwrap();
        let staging = Staging::new(&dir.path().join("out")).unwrap();
        std::fs::write(staging.path().join("a"), "1").unwrap();
        drop(staging);
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn what_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "kept").unwrap();
        let problem = |path: &Path| Staging::new(path).unwrap_err().to_string();
        assert!(problem(dir.path()).ends_with("is there and not empty: name a new directory, or remove it first"));
        assert!(problem(&dir.path().join("file")).ends_with("is there and is no directory: name a new one"));
        assert!(problem(&dir.path().join("none/out")).contains("No such file"));
        assert!(problem(Path::new("/")).contains("/"));
        std::fs::create_dir(dir.path().join("empty")).unwrap();
        Staging::new(&dir.path().join("empty")).unwrap().finish().unwrap();
        assert!(names(&dir.path().join("empty")).is_empty());
    }
}
