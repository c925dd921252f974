//! Errors as a user reads them: one line that says what is wrong, where, and what would work.

use std::path::Path;

/// The result of anything that can fail for a user's reason.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. The text is complete: the program prints it behind `error: ` and exits.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call was wrong: a flag, a value, an empty prompt. Exit status 2.
    #[error("{0}")]
    Usage(String),
    /// A file could not be read or holds something wrong.
    #[error("{file}: {problem}")]
    File {
        /// Path, or a name for something that is not on disk.
        file: String,
        /// What is wrong with it and what would work.
        problem: String,
    },
    /// The request can't be served: too long a prompt, too little memory.
    #[error("{0}")]
    Request(String),
    /// Ctrl-C ended something that leaves nothing behind unless it is finished. Exit status 130.
    #[error("interrupted: nothing was written")]
    Interrupted,
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] trine_backend::Error),
    /// Writing the output failed.
    #[error("writing the output: {0}")]
    Output(#[from] std::io::Error),
}

impl Error {
    /// An error in or with the file at `path`. Line breaks and other control characters, which names and values
    /// quoted from a file may hold, become spaces.
    pub fn file(path: impl AsRef<Path>, problem: impl std::fmt::Display) -> Self {
        let one_line = |text: String| text.replace(char::is_control, " ");
        Error::File { file: one_line(path.as_ref().display().to_string()), problem: one_line(problem.to_string()) }
    }

    /// The exit status of a program that ends with this error: 2 for usage, 130 after an interrupt, 1 for the rest.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Interrupted => 130,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says_stays_on_one_line() {
        let error = Error::file("a\nb", "unknown variant `F32\r\n\u{1b}[31m`");
        assert_eq!(error.to_string(), "a b: unknown variant `F32   [31m`");
    }
}
