//! The program `trine`: parses the command line and runs what it asks for on the active backend.
//!
//! stdout carries results and nothing else; remarks, progress and timings go to stderr. Everything below is generic over
//! the backend: this file alone names the one that was compiled in.

mod args;
mod bench;
mod chat;
mod compare;
mod doctor;
mod eval;
mod info;
mod interrupt;
mod kernels;
mod output;
mod pages;
mod perplexity;
mod plot;
mod precompile;
mod progress;
mod project;
mod pull;
mod quantize;
mod run;
mod serve;
mod tsar_model;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory, FromArgMatches};
use trine_backend::Backend;

use crate::backend::{self, Active, Compiled};
use crate::{Error, Result};
use args::{BenchArgs, ChoiceArgs, Cli, Command, DeviceArgs};
use bench::Setup;

/// How the program ends when nothing failed, with its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All done.
    Success = 0,
    /// Nothing was asked for: help was shown on stderr.
    Usage = 2,
    /// Ctrl-C ended it early.
    Interrupted = 130,
}

/// Runs the program with these arguments, of which the first is its own name.
///
/// # Errors
/// Whatever went wrong, as one line for the user.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Result<Exit> {
    let cli = match command().try_get_matches_from(expand(args)).and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    let verbosity = cli.verbosity;
    match cli.command {
        Command::Run(args) => run::run::<Active>(&args, &device(&args.device)?, verbosity),
        Command::Serve(args) => serve::run::<Active>(&args, device(&args.device)?, verbosity),
        Command::Info(args) => info::run::<Active>(&args),
        Command::Doctor(args) if args.kernels => kernels::run::<Active>(&device(&args.device)?, &args),
        Command::Doctor(args) => doctor::run::<Active>(&device(&args.device)?, backend::COMPILED, args.json),
        Command::Bench(args) => bench::run::<Active>(&args, &devices(&args)?, verbosity),
        Command::Perplexity(args) => perplexity::run::<Active>(&args, &device(&args.device)?, verbosity),
        Command::Quantize(args) => quantize::run::<Active>(&args, &device(&args.device)?, verbosity),
        Command::Eval(args) => eval::run::<Active>(&args, &device(&args.device)?, verbosity),
        Command::Pull(args) => pull::run(&args, verbosity),
        Command::Kernels(args) => precompile::run::<Active>(&args, verbosity),
        Command::Compare(args) => compare::run(&args, verbosity),
        Command::TsarModel(args) => tsar_model::run(&args),
        Command::Project(args) => project::run(&args),
        Command::Completions { shell } => pages::completions(command(), shell),
        Command::Man { dir } => pages::manual(command(), dir.as_deref()),
    }
}

/// Says what failed, if anything did, and gives the exit status. A reader that has seen enough of the output is no
/// failure.
pub fn exit_code(outcome: Result<Exit>) -> ExitCode {
    match outcome {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            output::note(&format!("error: {}", error.to_string().lines().collect::<Vec<_>>().join(" ")));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Version, the backend in use and those compiled in.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} (backend {}, compiled in: {})",
        env!("CARGO_PKG_VERSION"),
        <Active as Backend>::NAME,
        backend::COMPILED.join(", ")
    )
});

fn command() -> clap::Command {
    Cli::command().version(VERSION.as_str())
}

/// llama.cpp's names of several letters behind one dash, which the parser would take for several flags.
fn expand(args: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    args.into_iter().map(|arg| match arg.to_str() {
        Some("-sys") => "--system".into(),
        Some("-tb") => "--threads-batch".into(),
        _ => arg,
    })
}

/// Help and version as they are; anything else as one line.
fn explain(error: &clap::Error) -> Result<Exit> {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            error.print().map(|()| Exit::Success).map_err(Error::Output)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            error.print().map(|()| Exit::Usage).map_err(Error::Output)
        }
        _ => Err(Error::Usage(one_line(&error.render().to_string()))),
    }
}

/// The parser's error without its usage and its pointer to --help, paragraphs joined.
fn one_line(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
    let kept: Vec<String> = paragraphs
        .filter(|line| !line.is_empty() && !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .collect();
    let line = kept.join("; ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

/// The active backend's options.
fn device(args: &DeviceArgs) -> Result<<Active as Backend>::Options> {
    let settings = args.settings();
    settings.check(Active::TAKES, Active::NAME)?;
    Active::options(&settings)
}

/// The active backend with each number of threads and each kernel of a list, or its own choice where there are none.
fn devices(args: &BenchArgs) -> Result<Vec<Setup<<Active as Backend>::Options>>> {
    let counts = args.threads.iter().copied().map(Some);
    let counts: Vec<_> = if args.threads.is_empty() { vec![None] } else { counts.collect() };
    let kernels: Vec<Option<String>> = match &args.choice.kernel {
        Some(list) => list.split(',').map(|name| Some(name.trim().to_owned())).collect(),
        None => vec![None],
    };
    let pairs = counts.into_iter().flat_map(|threads| kernels.iter().map(move |kernel| (threads, kernel.clone())));
    let setup = |(threads, kernel): (_, Option<String>)| {
        let choice = ChoiceArgs { kernel: kernel.clone(), ..args.choice.clone() };
        Ok(Setup { options: device(&DeviceArgs { threads, choice })?, kernel })
    };
    pairs.map(setup).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(line: &str) -> String {
        match run(line.split(' ').map(OsString::from)) {
            Err(Error::Usage(line)) => line,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_parsers_errors_are_one_line() {
        assert_eq!(
            usage("trine run --kv f17"),
            "invalid value 'f17' for '--kv <FORMAT>' [possible values: f32, f16, int8]; \
             tip: a similar value exists: 'f16'"
        );
        assert!(usage("trine dance").starts_with("unrecognized subcommand 'dance'"));
        let line = usage("trine info --weights int3");
        assert!(line.contains("'int3' is no weight format: it is one of") && line.contains("int4-g32"), "{line}");
        assert!(usage("trine doctor --isa mmx").contains("'mmx'"));
    }

    #[test]
    fn short_names_of_several_letters_are_expanded() {
        let args = ["trine", "run", "-sys", "be brief", "-s", "1", "-tb", "2"].map(OsString::from);
        let expanded: Vec<_> = expand(args).collect();
        let long = ["trine", "run", "--system", "be brief", "-s", "1", "--threads-batch", "2"];
        assert_eq!(expanded, long.map(OsString::from));
    }

    #[test]
    fn a_reader_that_left_is_no_failure() {
        let code = |error| format!("{:?}", exit_code(Err(error)));
        let gone = Error::Output(std::io::Error::from(ErrorKind::BrokenPipe));
        assert_eq!(code(gone), format!("{:?}", ExitCode::SUCCESS));
        let full = Error::Output(std::io::Error::from(ErrorKind::StorageFull));
        assert_eq!(code(full), format!("{:?}", ExitCode::from(1)));
    }
}
