//! The `trine` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    trine::cli::exit_code(trine::cli::run(std::env::args_os()))
}
