//! Running the program `trine` in tests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use assert_cmd::Command;

/// The program, without what the environment says to it.
pub(crate) fn trine() -> Command {
    let mut command = Command::new(path());
    command.env_remove("TRINE_MODEL").env_remove("NO_COLOR").timeout(Duration::from_secs(300));
    command
}

/// Where the program is.
pub(crate) fn path() -> &'static str {
    env!("CARGO_BIN_EXE_trine")
}

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the program to its end.
pub(crate) fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
    }
}

/// stdout of a run that must succeed.
pub(crate) fn stdout(args: &[&str]) -> String {
    let ran = run(trine().args(args));
    assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    ran.stdout
}

/// The one line on stderr of a run that must fail with `code` and print nothing else, without `error: `.
#[track_caller]
pub(crate) fn failure(command: &mut Command, code: i32) -> String {
    let ran = run(command);
    assert_eq!(ran.code, Some(code), "{ran:?}");
    assert_eq!(ran.stdout, "", "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    ran.stderr.trim_end().strip_prefix("error: ").unwrap_or_else(|| panic!("{ran:?}")).to_owned()
}

/// A file or directory of the project.
pub(crate) fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A copy of the model directory `from`, without its reference values.
pub(crate) fn copy_of(from: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(project(from)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if name != "golden.safetensors" {
            std::fs::write(dir.path().join(name), std::fs::read(&path).unwrap()).unwrap();
        }
    }
    dir
}
