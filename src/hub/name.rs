//! What a model on the hub is called.

use std::fmt::{self, Display};

/// `OWNER/NAME[@REVISION][:CHOICE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// OWNER/NAME.
    pub repo: String,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// A file, or the number format in the name of a GGUF file, as Q4_K_M.
    pub choice: Option<String>,
}

/// The revision of those who name none.
const MAIN: &str = "main";

impl Reference {
    /// The reference that `text` is; `None` where it has another form.
    pub fn parse(text: &str) -> Option<Self> {
        let (text, choice) = match text.split_once(':') {
            Some((text, choice)) => (text, Some(choice)),
            None => (text, None),
        };
        let (repo, revision) = text.split_once('@').unwrap_or((text, MAIN));
        let (owner, name) = repo.split_once('/')?;
        let sound = is_part(owner) && is_part(name) && is_path(revision) && choice.is_none_or(is_path);
        sound.then(|| Reference { repo: repo.into(), revision: revision.into(), choice: choice.map(str::to_owned) })
    }

    /// The repository's folder in the cache.
    pub fn folder(&self) -> String {
        format!("models--{}", self.repo.replace('/', "--"))
    }
}

impl Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        self.choice.as_ref().map_or(Ok(()), |choice| write!(f, ":{choice}"))
    }
}

/// Owner or name, in the hub's alphabet. It has no `--`, which separates the two in the cache.
fn is_part(text: &str) -> bool {
    let sound = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    !text.is_empty()
        && text.len() <= 96
        && text.bytes().all(sound)
        && !text.starts_with(['.', '-'])
        && !text.contains("..")
        && !text.contains("--")
}

/// A relative path that stays where it begins.
fn is_path(text: &str) -> bool {
    let sound = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.contains(['\\', ':'])
            && !part.contains(char::is_control)
    };
    text.len() <= 1024 && text.split('/').all(sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_and_written() {
        let parts = |text: &str| {
            let found = Reference::parse(text).unwrap();
            assert_eq!(found.to_string(), text);
            (found.repo, found.revision, found.choice)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parts("o/n"), ("o/n".into(), "main".into(), None));
        assert_eq!(parts("Qwen/Qwen2.5-0.5B:Q4_K_M"), ("Qwen/Qwen2.5-0.5B".into(), "main".into(), some("Q4_K_M")));
        assert_eq!(parts("o/n@refs/pr/1:a/b.gguf"), ("o/n".into(), "refs/pr/1".into(), some("a/b.gguf")));
        assert_eq!(Reference::parse("o/n_x").unwrap().folder(), "models--o--n_x");
    }

    #[test]
    fn paths_and_nonsense_are_no_references() {
        for bad in [
            "", "n", "/n", "o/", "o/n/m", "./n", "../n", "/o/n", "o/..", "o/n:", "o/n@", "o/n:../x", "o/n:/x",
            "o/n:a//b", "o/n@../x", "o n/m", "o/n:a\\b", "C:/x", "o--x/n", "o/a..b", "-o/n", "o/n:a:b", "o/n:a\nb",
        ] {
            assert_eq!(Reference::parse(bad), None, "{bad}");
        }
    }
}
