//! All files of a model at once.

use std::path::Path;

use crate::{Client, Error, set_revision};

/// Picks files of a listing, by their names.
pub type Choose<'a, E> = dyn FnMut(&[&str]) -> Result<Vec<String>, E> + 'a;

impl Client {
    /// Brings those files of `repo` (OWNER/NAME) at `revision` that `choose` picks from all of them into the
    /// repository's folder of the cache, and then writes down which commit the revision is at. `progress` is told the
    /// bytes that are there and all bytes, and stops the download by returning false; then this is false too.
    ///
    /// # Errors
    /// As [`Client::list`] and [`Client::fetch`]; those of `choose` as they are.
    pub fn pull<E: From<Error>>(
        &self,
        repo: &str,
        revision: &str,
        folder: &Path,
        choose: &mut Choose<'_, E>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<bool, E> {
        let listing = match self.list(repo, revision, &mut || progress(0, 0)) {
            Err(Error::Interrupted) => return Ok(false),
            listing => listing?,
        };
        let names: Vec<&str> = listing.files.iter().map(|file| file.name.as_str()).collect();
        let chosen = choose(&names)?;
        let size = |name: &String| listing.files.iter().find(|file| file.name == *name).and_then(|file| file.size);
        let total = chosen.iter().filter_map(size).fold(0u64, u64::saturating_add);
        let mut before = 0u64;
        for name in &chosen {
            let mut done = 0;
            let fetched = self.fetch(repo, &listing.commit, name, folder, &mut |bytes| {
                done = bytes;
                progress(before.saturating_add(bytes), total)
            });
            match fetched {
                Err(Error::Interrupted) => return Ok(false),
                fetched => fetched?,
            };
            before = before.saturating_add(done);
        }
        set_revision(folder, revision, &listing.commit)?;
        Ok(true)
    }
}
