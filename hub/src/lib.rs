//! A client of the Hugging Face hub: downloads files of a model into the hub's cache, where Python's
//! `huggingface_hub` finds them too.
//!
//! Downloads are resumed where they broke off, checked against the hub's checksums, and appear under their names
//! only when they are whole. Nothing that the server says is trusted: names stay within the repository's folder,
//! sizes are held to, and the token goes to no other host.
//!
//! A repository's folder in the cache has `blobs/CHECKSUM` (contents), `snapshots/COMMIT/FILE` (links to them) and
//! `refs/REVISION` (the commit that a branch or tag was at).

mod cache;
mod checksum;
mod download;
mod error;
mod http;
mod listing;
mod names;
mod partial;
mod pull;

use std::time::Duration;

pub use cache::set_revision;
pub use checksum::Checksum;
pub use error::{Error, Result};
pub use listing::{Listing, RemoteFile};
pub use pull::Choose;

/// How the hub is reached.
#[derive(Clone, Debug)]
pub struct Options {
    /// The hub's address, as `https://huggingface.co`.
    pub endpoint: String,
    /// Sent to the endpoint, and to no other host, where there is one.
    pub token: Option<String>,
    /// PEM file of certificate authorities to trust instead of those in the program.
    pub authorities: Option<std::path::PathBuf>,
    /// The longest wait for a connection, for the head of an answer and for more of its body.
    pub patience: Duration,
    /// Attempts in a row that bring nothing before it is given up.
    pub attempts: u32,
    /// Wait before the second attempt; it doubles each time.
    pub pause: Duration,
}

impl Options {
    /// The usual patience with the hub at `endpoint`.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Options {
            endpoint: endpoint.into(),
            token: None,
            authorities: None,
            patience: Duration::from_secs(30),
            attempts: 5,
            pause: Duration::from_secs(1),
        }
    }
}

/// A connection to the hub.
pub struct Client {
    http: http::Http,
}

impl Client {
    /// A client of the hub that `options` name; nothing is sent yet.
    ///
    /// # Errors
    /// The endpoint is no http or https address, or the certificates can't be read.
    pub fn new(options: &Options) -> Result<Self> {
        Ok(Client { http: http::Http::new(options)? })
    }
}
