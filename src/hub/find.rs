//! Models that were pulled: a look into the cache, without network.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Choice, Reference, Settings, choose};
use crate::{Error, Result};

/// Folders of a repository within each other; deeper ones hold no models.
const DEEPEST: usize = 4;

/// What a user means by the model `path`: a file or directory where there is one, else a model of that name on the hub
/// that was pulled. A path that is neither is returned as it is, for whoever opens it to complain.
///
/// # Errors
/// It has the form of a name on the hub, and no such model is in the cache (says how to get it).
pub fn resolve(path: &Path) -> Result<PathBuf> {
    let reference = || path.to_str().and_then(Reference::parse);
    match reference() {
        Some(reference) if path.symlink_metadata().is_err() => find(&Settings::from_env()?.cache, &reference),
        _ => Ok(path.to_owned()),
    }
}

/// Where the model is in the cache: a directory, or one file (the first of several parts).
///
/// # Errors
/// It is not there, or not all of it, or the choice is none.
pub fn find(cache: &Path, reference: &Reference) -> Result<PathBuf> {
    let name = reference.to_string();
    let missing = || {
        let place = cache.display();
        Error::file(&name, format_args!("no such file, and not pulled to {place}: get it with `trine pull {name}`"))
    };
    let folder = cache.join(reference.folder());
    let snapshots = folder.join("snapshots");
    let commit = match snapshots.join(&reference.revision).is_dir() {
        true => reference.revision.clone(),
        false => fs::read_to_string(folder.join("refs").join(&reference.revision)).map_err(|_| missing())?,
    };
    let commit = commit.trim();
    // A commit is one name: the file could say anything.
    let snapshot = snapshots.join(commit);
    if commit.is_empty() || !commit.bytes().all(|c| c.is_ascii_alphanumeric()) || !snapshot.is_dir() {
        return Err(missing());
    }
    let mut names = Vec::new();
    collect(&snapshot, "", DEEPEST, &mut names)?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match choose(&names, reference.choice.as_deref()) {
        Ok(Choice::Directory(_)) => Ok(snapshot),
        Ok(Choice::Files(files)) => Ok(snapshot.join(&files[0])),
        Err(problem) => Err(Error::file(&name, format_args!("{problem}; `trine pull` gets more"))),
    }
}

/// Names of files below `folder`, relative to where it began. Links that lead nowhere count for nothing.
fn collect(folder: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) -> Result<()> {
    let failed = |error| Error::file(folder, error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if path.is_file() {
            names.push(format!("{prefix}{name}"));
        } else if path.is_dir() && depth > 0 {
            collect(&path, &format!("{prefix}{name}/"), depth - 1, names)?;
        }
    }
    names.sort_unstable();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// A cache with these files of `o/n` at `main`.
    fn cache(files: &[&str]) -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("models--o--n");
        for file in files {
            let path = folder.join("snapshots").join(COMMIT).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        fs::create_dir_all(folder.join("refs")).unwrap();
        fs::write(folder.join("refs/main"), format!("{COMMIT}\n")).unwrap();
        cache
    }

    fn found(cache: &tempfile::TempDir, name: &str) -> std::result::Result<String, String> {
        let snapshot = cache.path().join("models--o--n/snapshots").join(COMMIT);
        let path = find(cache.path(), &Reference::parse(name).unwrap()).map_err(|error| error.to_string())?;
        Ok(path.strip_prefix(snapshot).unwrap().to_str().unwrap().to_owned())
    }

    #[test]
    fn directories_and_files_are_found() {
        let dir = cache(&["config.json", "model.safetensors", "extra/m-Q4_0.gguf"]);
        assert_eq!(found(&dir, "o/n").unwrap(), "");
        assert_eq!(found(&dir, &format!("o/n@{COMMIT}")).unwrap(), "");
        assert_eq!(found(&dir, "o/n:q4_0").unwrap(), "extra/m-Q4_0.gguf");
        let gguf = cache(&["m-Q4_0.gguf"]);
        assert_eq!(found(&gguf, "o/n").unwrap(), "m-Q4_0.gguf");
    }

    #[test]
    fn what_is_not_there_is_said_with_what_gets_it() {
        let dir = cache(&["m-Q4_0.gguf", "m-Q8_0.gguf"]);
        let line = found(&dir, "o/other").unwrap_err();
        assert!(line.starts_with("o/other: no such file, and not pulled to "), "{line}");
        assert!(line.ends_with("get it with `trine pull o/other`"), "{line}");
        assert!(found(&dir, "o/n@v2").unwrap_err().ends_with("`trine pull o/n@v2`"));
        assert!(found(&dir, "o/n").unwrap_err().contains("choose one"));
        assert!(found(&dir, "o/n:Q5_0").unwrap_err().contains("m-Q4_0.gguf, m-Q8_0.gguf; `trine pull` gets more"));
    }

    #[test]
    fn a_damaged_reference_leads_nowhere() {
        let dir = cache(&["m.gguf"]);
        for bad in ["", "..", "../../..", "/", "0123"] {
            fs::write(dir.path().join("models--o--n/refs/main"), bad).unwrap();
            assert!(found(&dir, "o/n").unwrap_err().contains("not pulled"), "{bad}");
        }
    }

    #[test]
    fn paths_stay_paths() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path(), Path::new("/nowhere/at/all"), Path::new("nowhere")] {
            assert_eq!(resolve(path).unwrap(), path);
        }
    }
}
