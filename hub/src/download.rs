//! One file, from the hub into the cache.

use std::io::Read;
use std::path::{Path, PathBuf};

use ureq::http::HeaderMap;

use crate::cache::{self, Lock};
use crate::http::{Failure, header};
use crate::names::{escaped, is_below, is_commit, is_repo};
use crate::partial::Partial;
use crate::{Client, Error, Result};

/// What the hub says about a file.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    /// Its checksum, where the hub is the usual one: the name of its contents in the cache.
    tag: String,
    /// Bytes.
    size: u64,
}

impl Client {
    /// Brings `file` of `repo` (OWNER/NAME) at `commit` into the repository's folder of the cache and returns its path
    /// there. `progress` is told the bytes of the file that are there, and stops the download by returning false.
    ///
    /// What an earlier download left behind is gone on with; a file that is there is not asked for again.
    ///
    /// # Errors
    /// There is no such file, it asks for a token, the hub can't be reached or goes on failing, its bytes are not
    /// those of its checksum, or the cache can't be written.
    pub fn fetch(
        &self,
        repo: &str,
        commit: &str,
        file: &str,
        folder: &Path,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<PathBuf> {
        let subject = format!("{repo}/{file}");
        if !is_repo(repo) || !is_commit(commit) || !is_below(file) {
            return Err(Error::hub(subject, "no name of a file on the hub"));
        }
        let path = cache::snapshot(folder, commit, file);
        if let Ok(found) = std::fs::metadata(&path) {
            return if progress(found.len()) { Ok(path) } else { Err(Error::Interrupted) };
        }
        let address = self.http.address(&format!("/{repo}/resolve/{commit}/{}", escaped(file, true)));
        let facts = self.http.retry(&mut || progress(0), || {
            let answer = self.http.head(&subject, &address)?;
            Ok(Facts::read(&subject, answer.headers())?)
        })?;
        let blob = cache::blob(folder, &facts.tag);
        cache::make_parent(&blob)?;
        let lock = Lock::wait(folder, &facts.tag, &mut || progress(0))?;
        if !std::fs::metadata(&blob).is_ok_and(|found| found.len() == facts.size) {
            let part = blob.with_added_extension("incomplete");
            let part = Partial::open(&part, &facts.tag, facts.size, &mut || progress(0))?;
            self.complete(&subject, &address, &facts, part, progress)?.finish(&blob)?;
        }
        cache::publish(folder, commit, file, &facts.tag)?;
        drop(lock);
        if progress(facts.size) { Ok(path) } else { Err(Error::Interrupted) }
    }

    /// Downloads what the part lacks, and all of it again where an old part was no part of this file.
    fn complete(
        &self,
        subject: &str,
        address: &str,
        facts: &Facts,
        mut part: Partial,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Partial> {
        let mut tries = self.http.tries();
        let mut old = part.length() > 0;
        loop {
            let before = part.length();
            if before < facts.size
                && let Err(mut failure) = self.append(subject, address, facts, &mut part, progress)
            {
                failure.progress = part.length() > before;
                tries.after(failure, &mut || progress(part.length()))?;
                continue;
            }
            let Some(damage) = part.damage() else { return Ok(part) };
            part.clear()?;
            if !old {
                return Err(Error::hub(subject, format_args!("{damage}: thrown away, pull it again")));
            }
            old = false;
        }
    }

    /// One request for what the part lacks.
    fn append(
        &self,
        subject: &str,
        address: &str,
        facts: &Facts,
        part: &mut Partial,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> std::result::Result<(), Failure> {
        let from = Some(part.length()).filter(|&length| length > 0);
        let mut answer = self.http.get(subject, address, from)?;
        let goes_on = answer.status() == 206
            && header(answer.headers(), "content-range")
                .is_some_and(|range| begins_at(range, part.length(), facts.size));
        if !goes_on && part.length() > 0 {
            part.clear()?;
            // A server that can't go on from here sends all of it.
            if answer.status() != 200 {
                return Err(self.http.broken(subject, "the server has no such part"));
            }
        }
        let mut body = answer.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; 1 << 17];
        while part.length() < facts.size {
            let read = body.read(&mut buffer).map_err(|error| self.http.broken(subject, error))?;
            if read == 0 {
                return Err(self.http.broken(subject, "it was closed early"));
            }
            if read as u64 > facts.size - part.length() {
                part.clear()?;
                let problem = format!("longer than the {} bytes that the hub says: thrown away", facts.size);
                return Err(Error::hub(subject, problem).into());
            }
            part.append(&buffer[..read])?;
            if !progress(part.length()) {
                return Err(Error::Interrupted.into());
            }
        }
        Ok(())
    }
}

impl Facts {
    /// Those of a file in the large file storage are in headers of their own: the others are then of a redirect.
    fn read(subject: &str, headers: &HeaderMap) -> Result<Self> {
        let linked = header(headers, "x-linked-etag");
        let tag = linked.or_else(|| header(headers, "etag")).map(plain_tag).unwrap_or_default();
        let sound = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        if tag.is_empty() || tag.len() > 128 || !tag.bytes().all(sound) {
            return Err(Error::hub(subject, "the hub gives no tag for it: is HF_ENDPOINT right?"));
        }
        let size = header(headers, if linked.is_some() { "x-linked-size" } else { "content-length" });
        let size = size.and_then(|size| size.parse().ok());
        let size = size.ok_or_else(|| Error::hub(subject, "the hub does not say how long it is"))?;
        Ok(Facts { tag: tag.to_owned(), size })
    }
}

/// A tag without its quotes.
fn plain_tag(tag: &str) -> &str {
    tag.trim().trim_start_matches("W/").trim_matches('"')
}

/// Whether `range`, as `bytes 5-9/10`, goes on from byte `start` of a file of `size` bytes.
fn begins_at(range: &str, start: u64, size: u64) -> bool {
    let parts = range.trim().strip_prefix("bytes ").and_then(|range| range.split_once('/'));
    parts.is_some_and(|(range, all)| {
        range.split_once('-').is_some_and(|(first, _)| first.parse() == Ok(start))
            && (all == "*" || all.parse() == Ok(size))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(headers: &[(&'static str, &str)]) -> Result<Facts> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        Facts::read("o/n/f", &map)
    }

    #[test]
    fn a_files_facts_are_in_headers() {
        let small = facts(&[("etag", "W/\"abc\""), ("content-length", "5")]).unwrap();
        assert_eq!(small, Facts { tag: "abc".into(), size: 5 });
        let large = [("etag", "\"x\""), ("content-length", "9"), ("x-linked-etag", "\"def\""), ("x-linked-size", "7")];
        assert_eq!(facts(&large).unwrap(), Facts { tag: "def".into(), size: 7 });
        assert!(facts(&[("content-length", "5")]).is_err());
        assert!(facts(&[("etag", "abc")]).is_err());
        assert!(facts(&[("etag", "abc"), ("content-length", "-1")]).is_err());
        for bad in ["../../x", "a/b", "\"\"", ".", "a b"] {
            assert!(facts(&[("etag", bad), ("content-length", "5")]).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_are_held_to() {
        assert!(begins_at("bytes 5-9/10", 5, 10) && begins_at("bytes 5-9/*", 5, 10));
        for bad in ["", "bytes", "bytes 4-9/10", "bytes 5-9/11", "bytes */10", "5-9/10", "bytes 5-9"] {
            assert!(!begins_at(bad, 5, 10), "{bad}");
        }
    }
}
