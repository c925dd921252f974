//! `trine completions` and `trine man`: made from the command line's definition.

use std::fs;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use super::Exit;
use super::output::print;
use crate::{Error, Result};

/// Prints the completion script for `shell`.
pub(super) fn completions(mut command: Command, shell: Shell) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "trine", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}

/// Prints the manual pages one after the other, or writes each into `dir`.
pub(super) fn manual(command: Command, dir: Option<&Path>) -> Result<Exit> {
    let pages = pages(command)?;
    let Some(dir) = dir else {
        for (_, page) in &pages {
            print(page)?;
        }
        return Ok(Exit::Success);
    };
    fs::create_dir_all(dir).map_err(|error| Error::file(dir, error))?;
    for (name, page) in &pages {
        let (path, partial) = (dir.join(name), dir.join(format!("{name}.partial")));
        // No reader ever finds half a page.
        let written = fs::write(&partial, page).and_then(|()| fs::rename(&partial, &path));
        written.map_err(|error| Error::file(&path, error))?;
    }
    Ok(Exit::Success)
}

/// File name and text of the program's page and of one for each subcommand.
fn pages(mut command: Command) -> Result<Vec<(String, String)>> {
    command.build();
    let subcommands: Vec<_> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    let mut pages = Vec::with_capacity(1 + subcommands.len());
    for command in std::iter::once(command).chain(subcommands) {
        let man = Man::new(command).source(concat!("trine ", env!("CARGO_PKG_VERSION")));
        let mut page = Vec::new();
        man.render(&mut page)?;
        pages.push((man.get_filename(), String::from_utf8_lossy(&page).into_owned()));
    }
    Ok(pages)
}
