//! Ctrl-C: the first one asks to end, the second one ends.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Exit;
use crate::{Error, Result};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C sets a flag, and ends the program at once if the flag is set already.
pub(super) fn catch() -> Result<()> {
    ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            std::process::exit(Exit::Interrupted as i32);
        }
    })
    .map_err(|error| Error::Request(format!("Ctrl-C can't be caught: {error}")))
}

/// Whether Ctrl-C was pressed since [`clear`].
pub(super) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Forgets that it was.
pub(super) fn clear() {
    REQUESTED.store(false, Ordering::Relaxed);
}
