//! Who may ask: keys, hosts and origins. Every request passes through here.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE,
    CONNECTION, HOST, ORIGIN, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::{ApiError, ApiResult};
use super::routes::{empty, has_key};
use super::state::App;

/// What is open to all: the page, which asks for the key itself, and what a load balancer asks.
const OPEN: [&str; 2] = ["/", "/health"];

/// Whom the server answers.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The key that requests must bring, if any.
    pub key: Option<String>,
    /// Origins of web pages elsewhere that may ask; `*` for any.
    pub origins: Vec<String>,
    /// Whether requests must be addressed to this machine itself. On a loopback address without a key this is what keeps
    /// web pages out whose names are made to point here (DNS rebinding).
    pub local_names_only: bool,
}

/// Lets a request through to its path, or refuses it.
pub async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let access = &app.access;
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let allowed_origin = access.allowed_origin(request.headers());
    let preflight = method == Method::OPTIONS && allowed_origin.is_some();
    let mut response = match access.admit(request.headers(), &path, preflight) {
        Err(error) => error.into_response(),
        Ok(()) if preflight => preflight_answer(),
        Ok(()) => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(origin) = allowed_origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(VARY, HeaderValue::from_static("origin"));
    }
    if app.is_stopping() {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let status = response.status();
    app.metrics.answer(status.as_u16());
    (app.log)(&format!("{method} {path} {} {:.3} s", status.as_u16(), start.elapsed().as_secs_f64()));
    response
}

fn preflight_answer() -> Response {
    let mut response = empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("authorization, content-type"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

impl Access {
    /// Checks where a request comes from and what it brings. A browser's preflight brings no key.
    fn admit(&self, headers: &HeaderMap, path: &str, preflight: bool) -> ApiResult<()> {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let host = text(HOST);
        if self.local_names_only && host.is_some_and(|host| !is_local(host)) {
            return Err(ApiError::forbidden(
                "this server answers to local names only; to use another name, start it with --api-key or --no-auth",
            ));
        }
        if headers.contains_key(ORIGIN) && !same_origin(text(ORIGIN), host) && self.allowed_origin(headers).is_none() {
            return Err(ApiError::forbidden("web pages from elsewhere may not ask; --cors-origin lets them"));
        }
        match &self.key {
            Some(key) if !preflight && !OPEN.contains(&path) && !has_key(headers, key) => Err(ApiError::unauthorized()),
            _ => Ok(()),
        }
    }

    /// The request's origin, where it is one of those that may ask from elsewhere.
    fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        self.origins
            .iter()
            .any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes())
            .then(|| origin.clone())
    }
}

/// Whether a page of `origin` was served by `host`.
fn same_origin(origin: Option<&str>, host: Option<&str>) -> bool {
    let authority = origin.and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    authority.is_some() && authority == host
}

/// Whether a `Host` header names this machine itself.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    fn status(access: &Access, path: &str, pairs: &[(&'static str, &'static str)]) -> u16 {
        access
            .admit(&headers(pairs), path, false)
            .map_or_else(|error| error.into_response().status().as_u16(), |()| 200)
    }

    #[test]
    fn keys_are_asked_for() {
        let access = Access { key: Some("sesame".into()), ..Access::default() };
        assert_eq!(status(&access, "/v1/models", &[]), 401);
        assert_eq!(status(&access, "/metrics", &[("authorization", "Bearer sesam")]), 401);
        assert_eq!(status(&access, "/v1/models", &[("authorization", "Bearer sesame2")]), 401);
        assert_eq!(status(&access, "/v1/models", &[("authorization", "sesame")]), 401);
        assert_eq!(status(&access, "/v1/models", &[("authorization", "Bearer sesame")]), 200);
        assert_eq!(status(&access, "/nowhere", &[]), 401);
        assert_eq!((status(&access, "/", &[]), status(&access, "/health", &[])), (200, 200));
        // Without a key of its own, no key opens anything by being empty.
        assert_eq!(status(&Access::default(), "/v1/models", &[]), 200);
    }

    #[test]
    fn names_from_elsewhere_are_refused_where_only_local_ones_are_expected() {
        let access = Access { local_names_only: true, ..Access::default() };
        for local in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.9.9.9", "[::1]:8080"] {
            assert!(is_local(local), "{local}");
        }
        for other in ["example.org", "localhost.example.org", "10.0.0.1:80", "[::2]", "", "127.0.0.1.example.org"] {
            assert!(!is_local(other), "{other}");
        }
        assert_eq!(status(&access, "/", &[("host", "rebound.example.org:8080")]), 403);
        assert_eq!(status(&access, "/", &[("host", "localhost:8080")]), 200);
    }

    #[test]
    fn pages_from_elsewhere_are_refused_unless_allowed() {
        let mut access = Access::default();
        let same = [("host", "box:8080"), ("origin", "http://box:8080")];
        let other = [("host", "box:8080"), ("origin", "https://example.org")];
        assert_eq!((status(&access, "/", &same), status(&access, "/", &other)), (200, 403));
        assert_eq!(status(&access, "/", &[("host", "box:8080"), ("origin", "null")]), 403);
        access.origins.push("https://example.org".into());
        assert_eq!(status(&access, "/", &other), 200);
        assert_eq!(access.allowed_origin(&headers(&other)).unwrap(), "https://example.org");
        assert_eq!(access.allowed_origin(&headers(&same)), None);
        access.origins = vec!["*".into()];
        assert_eq!(status(&access, "/", &[("origin", "https://other.example")]), 200);
    }
}
