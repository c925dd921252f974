//! What a repository holds.

use std::io::Read;

use serde::Deserialize;

use crate::names::{escaped, is_below, is_commit, is_repo};
use crate::{Client, Error, Result};

/// Listings have some 300 bytes a file: far more than any repository needs.
const LARGEST: u64 = 64 << 20;

/// A repository at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The commit's id.
    pub commit: String,
    /// Its files. Their names are relative and stay below the repository.
    pub files: Vec<RemoteFile>,
}

/// A file on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path in the repository.
    pub name: String,
    /// Bytes, where the hub says so.
    pub size: Option<u64>,
}

#[derive(Deserialize)]
struct Answer {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
}

impl Client {
    /// The files of `repo` (OWNER/NAME) at `revision`, a branch, a tag or a commit.
    ///
    /// # Errors
    /// There is no such repository or revision, it asks for a token, the hub can't be reached, or its answer makes
    /// no sense.
    pub fn list(&self, repo: &str, revision: &str, keep_going: &mut dyn FnMut() -> bool) -> Result<Listing> {
        if !is_repo(repo) {
            return Err(Error::hub(repo, "no repository's name: they are OWNER/NAME"));
        }
        let path = format!("/api/models/{repo}/revision/{}?blobs=true", escaped(revision, false));
        let subject = format!("{repo}@{revision}");
        let body = self.http.retry(keep_going, || {
            let mut reply = self.http.get(&subject, &self.http.address(&path), None)?;
            let mut body = Vec::new();
            let read = reply.body_mut().as_reader().take(LARGEST + 1).read_to_end(&mut body);
            read.map_err(|error| self.http.broken(&subject, error))?;
            Ok(body)
        })?;
        if body.len() as u64 > LARGEST {
            return Err(Error::hub(subject, "the list of its files is over 64 MiB: not believed"));
        }
        parse(&subject, &body)
    }
}

fn parse(subject: &str, body: &[u8]) -> Result<Listing> {
    let answer: Answer = serde_json::from_slice(body).map_err(|error| {
        Error::hub(subject, format_args!("the hub's list of files makes no sense ({error}): is HF_ENDPOINT right?"))
    })?;
    let commit = answer.sha.filter(|commit| is_commit(commit));
    let commit = commit.ok_or_else(|| Error::hub(subject, "the hub names no commit: is HF_ENDPOINT right?"))?;
    if let Some(bad) = answer.siblings.iter().find(|file| !is_below(&file.rfilename)) {
        let problem = format!("the hub lists {:?}, which is no name for a file: nothing is downloaded", bad.rfilename);
        return Err(Error::hub(subject, problem));
    }
    let files = answer.siblings.into_iter().map(|file| RemoteFile { name: file.rfilename, size: file.size });
    Ok(Listing { commit, files: files.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn listings_are_read_and_their_names_checked() {
        let json = |name: &str| {
            format!(
                r#"{{"sha":"{COMMIT}","x":[1],"siblings":[{{"rfilename":"{name}","size":3}},{{"rfilename":"b/c"}}]}}"#
            )
        };
        let listing = parse("o/n", json("a").as_bytes()).unwrap();
        assert_eq!(listing.commit, COMMIT);
        let files: Vec<_> = listing.files.iter().map(|file| (file.name.as_str(), file.size)).collect();
        assert_eq!(files, [("a", Some(3)), ("b/c", None)]);
        for bad in ["../a", "/etc/passwd", "a/../../b", "", "C:/x"] {
            let line = parse("o/n", json(bad).as_bytes()).unwrap_err().to_string();
            assert!(line.contains("no name for a file"), "{line}");
        }
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        for bad in ["<html>", "{}", "[]", r#"{"sha":"main"}"#, r#"{"sha":"../../../..","siblings":[]}"#, r#"{"sha":7}"#]
        {
            let line = parse("o/n", bad.as_bytes()).unwrap_err().to_string();
            assert!(line.contains("is HF_ENDPOINT right?") && line.lines().count() == 1, "{line}");
        }
    }
}
