//! `trine serve`: the server's command line.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use trine_backend::Backend;

use super::args::{AccessArgs, ServeArgs, ServerLimitArgs, Verbosity};
use super::{Exit, output};
use crate::engine::EngineOptions;
use crate::server::guard::Access;
use crate::server::state::{App, Limits};
use crate::server::{self, Loading};
use crate::{Error, Result};

/// The most slots: each takes memory for its context, and a step has a row for each.
const MOST_SLOTS: usize = 256;

/// Runs the subcommand.
pub(super) fn run<B: Backend>(args: &ServeArgs, device: B::Options, verbosity: Verbosity) -> Result<Exit>
where
    B::Options: Send,
{
    let slots = args.slots.get();
    if slots > MOST_SLOTS {
        return Err(Error::Usage(format!("--slots {slots}: use 1 to {MOST_SLOTS}")));
    }
    let addresses = addresses(&args.host, args.port)?;
    let access = access(&args.access, &addresses)?;
    let engine = EngineOptions {
        context: args.sizes.ctx_size,
        sequences: slots,
        outputs: slots,
        batch: args.sizes.batch_size.max(slots),
        ..args.formats.engine()
    };
    let log = move |line: &str| verbosity.detail(|| line.to_owned());
    let note = move |line: &str| {
        if !verbosity.quiet {
            output::note(line);
        }
    };
    let app = App::new(limits(&args.limits), access, Box::new(log));
    let model = args.model.clone();
    let loading = Loading::<B> { device, engine, name: args.alias.clone() };
    server::run(&addresses, app, loading, move || model.open(), note)?;
    Ok(Exit::Success)
}

fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let wrong = |error: &dyn std::fmt::Display| Error::Usage(format!("--host {host}: {error}"));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<_> = (host, port).to_socket_addrs().map_err(|error| wrong(&error))?.collect();
    if found.is_empty() { Err(wrong(&"no address")) } else { Ok(found) }
}

/// Who may ask: anybody only on this machine, or where that is said.
fn access(args: &AccessArgs, addresses: &[SocketAddr]) -> Result<Access> {
    let is_open = args.api_key.is_none() && !args.no_auth;
    if let Some(address) = addresses.iter().find(|address| !address.ip().is_loopback()).filter(|_| is_open) {
        return Err(Error::Usage(format!(
            "--host {}: others can reach this address; give --api-key (or TRINE_API_KEY), or --no-auth to let anybody in",
            address.ip()
        )));
    }
    if let Some(wrong) = args.cors_origin.iter().find(|origin| *origin != "*" && !origin.contains("://")) {
        return Err(Error::Usage(format!("--cors-origin {wrong}: give a scheme and a host, as https://example.org")));
    }
    let origins = args.cors_origin.iter().map(|origin| origin.trim_end_matches('/').to_owned()).collect();
    Ok(Access { key: args.api_key.clone(), origins, local_names_only: is_open })
}

fn limits(args: &ServerLimitArgs) -> Limits {
    Limits {
        body: args.max_body,
        connections: args.max_connections.get(),
        queue: args.queue,
        request: Duration::from_secs(args.timeout),
        head_time: Duration::from_secs(args.idle_timeout),
        read_time: Duration::from_secs(args.read_timeout),
        grace: Duration::from_secs(args.grace),
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(api_key: Option<&str>, no_auth: bool, origin: Option<&str>) -> AccessArgs {
        let cors_origin = origin.into_iter().map(str::to_owned).collect();
        AccessArgs { api_key: api_key.map(str::to_owned), no_auth, cors_origin }
    }

    #[test]
    fn only_this_machine_is_let_in_without_a_key() {
        let here = addresses("127.0.0.1", 80).unwrap();
        let anywhere = addresses("0.0.0.0", 80).unwrap();
        assert!(access(&args(None, false, None), &here).unwrap().local_names_only);
        let error = access(&args(None, false, None), &anywhere).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("--api-key"), "{error}");
        assert!(!access(&args(Some("k"), false, None), &anywhere).unwrap().local_names_only);
        assert!(access(&args(None, true, None), &anywhere).unwrap().key.is_none());
        assert!(access(&args(None, true, Some("example.org")), &here).is_err());
        let allowed = access(&args(None, true, Some("https://example.org/")), &here).unwrap();
        assert_eq!(allowed.origins, ["https://example.org"]);
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        assert!(addresses("localhost", 1).unwrap().iter().all(|address| address.ip().is_loopback()));
        assert_eq!(addresses("[::1]", 1).unwrap(), addresses("::1", 1).unwrap());
        assert_eq!(addresses("no such host", 1).unwrap_err().exit_code(), 2);
    }
}
