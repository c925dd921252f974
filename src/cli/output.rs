//! Text for people and programs: stdout for results, stderr for everything else.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use super::args::Verbosity;
use crate::{Error, Result};

/// Writes `text` to stdout and flushes it, so that it is seen when it is made.
///
/// # Errors
/// [`Error::Output`], also for a pipe whose reader has gone.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// As [`print`], with a newline.
pub(super) fn print_line(text: &str) -> Result<()> {
    print(&format!("{text}\n"))
}

/// Prints a JSON value over several lines.
pub(super) fn print_json(value: &serde_json::Value) -> Result<()> {
    print_line(&format!("{value:#}"))
}

/// A remark on stderr. Nobody may be listening there, which is no reason to fail.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

impl Verbosity {
    /// Whether the end of a generation is worth a line: asked for, or somebody is watching.
    pub(super) fn shows_summary(&self) -> bool {
        self.verbose || self.shows_progress()
    }

    /// Whether a progress bar is seen.
    pub(super) fn shows_progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// A remark that only --quiet keeps away.
    pub(super) fn remark(&self, text: &str) {
        if !self.quiet {
            note(text);
        }
    }

    /// A remark for those who asked for details.
    pub(super) fn detail(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            note(&text());
        }
    }
}

/// Writes a whole file or none: a file beside it, then renamed.
///
/// # Errors
/// It can't be written.
pub(super) fn write_file(path: &Path, text: &str) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| {
        // Nothing is left behind, if it can be helped.
        let _ = std::fs::remove_file(&beside);
        Error::file(path, format_args!("can't be written: {error}"))
    })
}

/// Names and values in two columns.
pub(super) fn columns(rows: &[(impl AsRef<str>, impl AsRef<str>)]) -> String {
    let width = rows.iter().map(|(name, _)| name.as_ref().chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{:width$}  {}\n", name.as_ref(), value.as_ref())).collect()
}

/// A count as people read it: `20.25 M`.
pub(super) fn count(number: u64) -> String {
    let value = number as f64;
    match number {
        0..1_000 => number.to_string(),
        1_000..1_000_000 => format!("{:.2} k", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} M", value / 1e6),
        _ => format!("{:.2} B", value / 1e9),
    }
}

/// The text of a file, or of stdin for `None` and `-`.
///
/// # Errors
/// It can't be read, or is not UTF-8 (says where).
pub(super) fn read_text(file: Option<&Path>) -> Result<String> {
    let file = file.filter(|file| *file != Path::new("-"));
    let name = file.map_or_else(|| "standard input".into(), |file| file.display().to_string());
    let bytes = match file {
        Some(file) => std::fs::read(file),
        None => {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::stdin().lock(), &mut bytes).map(|_| bytes)
        }
    };
    String::from_utf8(bytes.map_err(|error| Error::file(&name, error))?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::file(&name, format_args!("not UTF-8 text: byte {at} begins no character"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        assert_eq!(columns(&[("a", "1"), ("bcd", "2")]), "a    1\nbcd  2\n");
    }

    #[test]
    fn files_are_written_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.svg");
        write_file(&path, "one").unwrap();
        write_file(&path, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let line = write_file(&folder, "x").unwrap_err().to_string();
        assert!(line.contains("folder: can't be written"), "{line}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
        assert!(write_file(&dir.path().join("none/a.svg"), "x").is_err());
    }

    #[test]
    fn counts_are_readable() {
        let texts = [0, 999, 1_500, 20_250_000, 2_410_000_000].map(count);
        assert_eq!(texts, ["0", "999", "1.50 k", "20.25 M", "2.41 B"]);
    }

    #[test]
    fn text_that_is_not_utf8_is_refused_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        std::fs::write(&path, b"abc\xff").unwrap();
        let line = read_text(Some(&path)).unwrap_err().to_string();
        assert!(line.ends_with("not UTF-8 text: byte 3 begins no character"), "{line}");
    }
}
