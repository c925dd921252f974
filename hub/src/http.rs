//! Requests: redirects, refusals, and when another attempt is worth it.

use std::fmt::Display;
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::{Error, Options, Result};

/// Longer than this nobody waits in front of a terminal.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const MOST_REDIRECTS: usize = 8;

/// Which redirects are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// To the bytes, wherever they are.
    Everywhere,
    /// To what the hub itself says about a file: the answer that has its checksum, on the hub's own host.
    ToFacts,
}

/// A failed attempt.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Error,
    /// Whether another attempt may do better.
    passing: bool,
    /// How long the server asks to be left alone.
    pause: Option<Duration>,
    /// Whether the attempt brought something all the same.
    pub(crate) progress: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { error, passing: false, pause: None, progress: false }
    }
}

impl Failure {
    pub(crate) fn passing(error: Error) -> Self {
        Failure { passing: true, ..error.into() }
    }
}

/// Counts attempts.
pub(crate) struct Tries<'a> {
    http: &'a Http,
    failed: u32,
}

impl Tries<'_> {
    /// Waits until it is time for another attempt.
    ///
    /// # Errors
    /// The failure itself where there is no use in another attempt, or an interrupt.
    pub(crate) fn after(&mut self, failure: Failure, keep_going: &mut dyn FnMut() -> bool) -> Result<()> {
        self.failed = if failure.progress { 1 } else { self.failed + 1 };
        let pause = self.http.pause.saturating_mul(1 << (self.failed - 1).min(16)).min(LONGEST_PAUSE);
        let pause = failure.pause.unwrap_or(pause);
        if !failure.passing || self.failed >= self.http.attempts || pause > LONGEST_PAUSE {
            return Err(failure.error);
        }
        let end = Instant::now() + pause;
        loop {
            if !keep_going() {
                return Err(Error::Interrupted);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }
}

/// The hub's address and the way to it.
pub(crate) struct Http {
    agent: Agent,
    endpoint: String,
    origin: String,
    authorization: Option<String>,
    attempts: u32,
    pause: Duration,
}

impl Http {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        let wrong = || Error::hub("HF_ENDPOINT", format_args!("{endpoint:?} is no http or https address"));
        let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
        let origin = origin(&uri).ok_or_else(wrong)?;
        let token = options.token.as_deref().map(str::trim).filter(|token| !token.is_empty());
        if token.is_some_and(|token| !token.bytes().all(|c| c.is_ascii_graphic())) {
            return Err(Error::hub("HF_TOKEN", "no token: it has characters that tokens never have"));
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("trine/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(options.patience))
            .timeout_recv_response(Some(options.patience))
            .timeout_per_read(Some(options.patience))
            .timeout_per_write(Some(options.patience));
        if let Some(path) = &options.authorities {
            config = config.tls_config(TlsConfig::builder().root_certs(authorities(path)?).build());
        }
        if uri.host().is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]")) {
            config = config.proxy(None);
        }
        Ok(Http {
            agent: config.build().into(),
            origin,
            authorization: token.map(|token| format!("Bearer {token}")),
            attempts: options.attempts.max(1),
            pause: options.pause,
            endpoint,
        })
    }

    /// The address of a path on the hub.
    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    pub(crate) fn tries(&self) -> Tries<'_> {
        Tries { http: self, failed: 0 }
    }

    /// Attempts until one succeeds or fails for good.
    pub(crate) fn retry<T>(
        &self,
        keep_going: &mut dyn FnMut() -> bool,
        mut attempt: impl FnMut() -> std::result::Result<T, Failure>,
    ) -> Result<T> {
        let mut tries = self.tries();
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(failure) => tries.after(failure, keep_going)?,
            }
        }
    }

    /// GET, for a file from its byte `from` on. The answer's status is 2xx, or 416 where `from` was given.
    pub(crate) fn get(
        &self,
        subject: &str,
        address: &str,
        from: Option<u64>,
    ) -> std::result::Result<Response<Body>, Failure> {
        self.follow(subject, "GET", address, from, Follow::Everywhere)
    }

    /// HEAD of a file: the hub's own answer, which may be a redirect.
    pub(crate) fn head(&self, subject: &str, address: &str) -> std::result::Result<Response<Body>, Failure> {
        self.follow(subject, "HEAD", address, None, Follow::ToFacts)
    }

    fn follow(
        &self,
        subject: &str,
        method: &str,
        address: &str,
        from: Option<u64>,
        follow: Follow,
    ) -> std::result::Result<Response<Body>, Failure> {
        let mut address = address.to_owned();
        for _ in 0..=MOST_REDIRECTS {
            let response = self.send(subject, method, &address, from)?;
            let status = response.status().as_u16();
            let next = match header(response.headers(), "location") {
                Some(location) if matches!(status, 301 | 302 | 303 | 307 | 308) => location,
                _ if response.status().is_success() || (status == 416 && from.is_some()) => return Ok(response),
                _ => return Err(self.refusal(subject, &response)),
            };
            let next = join(&address, next).ok_or_else(|| {
                Error::hub(subject, format_args!("the hub redirects to {next:?}, which is no address"))
            })?;
            let leaves = next.parse().ok().and_then(|uri| origin(&uri)).as_ref() != Some(&self.origin);
            if follow == Follow::ToFacts && (leaves || response.headers().contains_key("x-linked-etag")) {
                return Ok(response);
            }
            address = next;
        }
        Err(Error::hub(subject, format_args!("over {MOST_REDIRECTS} redirects")).into())
    }

    fn send(
        &self,
        subject: &str,
        method: &str,
        address: &str,
        from: Option<u64>,
    ) -> std::result::Result<Response<Body>, Failure> {
        // Lengths and ranges are those of the file itself only where nothing is compressed on the way.
        let mut request =
            ureq::http::Request::builder().method(method).uri(address).header("accept-encoding", "identity");
        if let Some(from) = from {
            request = request.header("range", format!("bytes={from}-"));
        }
        let ours = address.parse().ok().and_then(|uri| origin(&uri)).as_ref() == Some(&self.origin);
        if let Some(authorization) = self.authorization.as_ref().filter(|_| ours) {
            request = request.header("authorization", authorization);
        }
        let request = request.body(()).map_err(|error| Error::hub(subject, error))?;
        self.agent.run(request).map_err(|error| self.unreachable(subject, &error))
    }

    /// No answer.
    fn unreachable(&self, subject: &str, error: &ureq::Error) -> Failure {
        let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        let passing = match error {
            ureq::Error::Io(error) => !refused(error),
            ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_) => true,
            _ => false,
        };
        let problem = format!("the hub can't be reached at {}: {error}", self.endpoint);
        Failure { passing, ..Error::hub(subject, problem).into() }
    }

    /// The connection broke while an answer was read.
    pub(crate) fn broken(&self, subject: &str, error: impl Display) -> Failure {
        Failure::passing(Error::hub(
            subject,
            format_args!("the connection broke ({error}): pull again, it goes on from here"),
        ))
    }

    /// An answer that says no.
    fn refusal(&self, subject: &str, response: &Response<Body>) -> Failure {
        let (status, headers) = (response.status().as_u16(), response.headers());
        let pause = header(headers, "retry-after").and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let code = header(headers, "x-error-code").unwrap_or("");
        let token = self.authorization.is_some();
        let problem = match (status, code) {
            (_, "GatedRepo") if token => {
                format!("gated: accept its terms on {} with the account of your token", self.endpoint)
            }
            (_, "GatedRepo") => format!("gated: accept its terms on {} and set HF_TOKEN", self.endpoint),
            (404, "EntryNotFound") => "the repository has no such file".into(),
            (404, "RevisionNotFound") => "the repository has no such revision".into(),
            // The hub does not tell strangers what is private and what does not exist.
            (401 | 404, _) if !token => "not on the hub, or private: check the name, or set HF_TOKEN".into(),
            (401, _) => "not on the hub, or the token in HF_TOKEN is wrong or may not read it".into(),
            (403, _) => "forbidden: the token in HF_TOKEN may not read it".into(),
            (404, _) => "not on the hub: check the name".into(),
            (429, _) => match pause {
                Some(pause) => format!("too many requests: the hub asks to wait {} s", pause.as_secs()),
                None => "too many requests: try later, or set HF_TOKEN".into(),
            },
            (500.., _) => format!("the hub fails (status {status}): try later, what is downloaded is kept"),
            _ => format!("the hub answers with status {status}"),
        };
        Failure {
            passing: matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            pause,
            ..Error::hub(subject, problem).into()
        }
    }
}

/// A header's text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Scheme, host and port: what the token is for.
fn origin(uri: &Uri) -> Option<String> {
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = match (uri.port_u16(), scheme.as_str()) {
        (Some(port), "http" | "https") => port,
        (None, "http") => 80,
        (None, "https") => 443,
        _ => return None,
    };
    Some(format!("{scheme}://{}:{port}", uri.host()?.to_ascii_lowercase()))
}

/// Where `location`, an address or a path on the same host, leads from `address`.
fn join(address: &str, location: &str) -> Option<String> {
    let uri: Uri = address.parse().ok()?;
    let next = match location {
        _ if location.starts_with("//") => format!("{}:{location}", uri.scheme_str()?),
        _ if location.starts_with('/') => format!("{}://{}{location}", uri.scheme_str()?, uri.authority()?),
        _ => location.to_owned(),
    };
    origin(&next.parse().ok()?).map(|_| next)
}

fn authorities(path: &std::path::Path) -> Result<RootCerts> {
    let pem = std::fs::read(path).map_err(|error| Error::file(path, &error))?;
    let certificates: Vec<Certificate<'static>> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(Error::hub(path.display(), "SSL_CERT_FILE has no certificate in PEM form"));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let of = |address: &str| origin(&address.parse().unwrap());
        assert_eq!(of("https://Hub.example/a?b"), of("HTTPS://hub.example:443"));
        assert_ne!(of("https://hub.example"), of("http://hub.example"));
        assert_ne!(of("https://hub.example"), of("https://hub.example:8443"));
        assert_ne!(of("https://hub.example"), of("https://hub.example.evil.example"));
        assert_eq!(of("ftp://hub.example"), None);
        assert_eq!(of("/a"), None);
    }

    #[test]
    fn redirects_lead_somewhere_or_nowhere() {
        let from = |location| join("https://hub.example:8443/a/b?c", location);
        assert_eq!(from("/x?y").unwrap(), "https://hub.example:8443/x?y");
        assert_eq!(from("//cdn.example/x").unwrap(), "https://cdn.example/x");
        assert_eq!(from("http://cdn.example/x").unwrap(), "http://cdn.example/x");
        for bad in ["", "x", "file:///etc/passwd", "javascript:x", "http://"] {
            assert_eq!(from(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_endpoint_and_a_token_have_their_form() {
        let problem = |endpoint: &str, token: &str| {
            let options = Options { token: Some(token.into()), ..Options::new(endpoint) };
            Http::new(&options).err().map(|error| error.to_string())
        };
        assert_eq!(problem("https://hub.example/", "hf_x"), None);
        for bad in ["", "hub.example", "ftp://hub.example", "https://"] {
            assert!(problem(bad, "").unwrap().contains("no http or https address"), "{bad}");
        }
        assert!(problem("https://hub.example", "a\r\nb: c").unwrap().starts_with("HF_TOKEN"));
    }

    #[test]
    fn pauses_double_and_end() {
        let options = Options { attempts: 3, pause: Duration::ZERO, ..Options::new("http://localhost") };
        let http = Http::new(&options).unwrap();
        let failure = |progress| Failure { progress, ..Failure::passing(Error::hub("x", "y")) };
        let mut tries = http.tries();
        assert!(tries.after(failure(false), &mut || true).is_ok());
        assert!(tries.after(failure(false), &mut || true).is_ok());
        assert!(tries.after(failure(true), &mut || true).is_ok(), "what brings something may go on");
        assert!(tries.after(failure(false), &mut || true).is_ok());
        assert!(tries.after(failure(false), &mut || true).is_err());
        let mut tries = http.tries();
        assert!(tries.after(Error::hub("x", "y").into(), &mut || true).is_err());
        assert!(matches!(http.tries().after(failure(false), &mut || false), Err(Error::Interrupted)));
        let long = Failure { pause: Some(Duration::from_secs(3600)), ..failure(false) };
        assert!(http.tries().after(long, &mut || true).is_err());
    }
}
