use std::path::Path;

/// The result of talking to the hub.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, as one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller asked to stop. What was downloaded is kept, and the next download goes on from there.
    #[error("interrupted")]
    Interrupted,
    /// The hub or the way to it.
    #[error("{subject}: {problem}")]
    Hub {
        /// A repository, a file in it, or an address.
        subject: String,
        /// What is wrong and what would work.
        problem: String,
    },
    /// A file in the cache.
    #[error("{file}: {problem}")]
    File {
        /// Its path.
        file: String,
        /// What is wrong and what would work.
        problem: String,
    },
}

impl Error {
    pub(crate) fn hub(subject: impl std::fmt::Display, problem: impl std::fmt::Display) -> Self {
        Error::Hub { subject: one_line(&subject.to_string()), problem: one_line(&problem.to_string()) }
    }

    pub(crate) fn file(path: &Path, error: &std::io::Error) -> Self {
        let problem = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                "the disk is full: make room and pull again, it goes on from here".into()
            }
            std::io::ErrorKind::PermissionDenied => "no permission to write here: HF_HOME names another place".into(),
            _ => one_line(&error.to_string()),
        };
        Error::File { file: one_line(&path.display().to_string()), problem }
    }
}

/// `text`, which a server may have sent, without control characters and not too long to read.
fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_full_disk_is_said_with_what_helps() {
        let full = Error::file(Path::new("blobs/x"), &io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.to_string(), "blobs/x: the disk is full: make room and pull again, it goes on from here");
    }

    #[test]
    fn what_a_server_says_stays_on_one_line() {
        let line = Error::hub("a\nb", format!("\u{1b}[31mred\r\n{}", "x".repeat(1000))).to_string();
        assert!(line.starts_with("a b: [31mred  xxx") && line.len() < 420, "{line}");
    }
}
