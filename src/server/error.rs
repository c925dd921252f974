//! Errors as clients of OpenAI's API know them.

use axum::body::Body;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::job::Failure;

/// What a request gets instead of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    code: Option<&'static str>,
    /// The field that is wrong.
    param: Option<String>,
    /// Seconds after which another try may work.
    retry_after: Option<u64>,
    allow: Option<&'static str>,
}

/// The outcome of what a request asks for.
pub type ApiResult<T> = std::result::Result<T, ApiError>;

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>, code: Option<&'static str>) -> Self {
        ApiError { status, message: message.into(), code, param: None, retry_after: None, allow: None }
    }

    /// Field `param` can't be what it is.
    pub fn invalid(param: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let param = param.into();
        let error = Self::new(StatusCode::BAD_REQUEST, format!("{param}: {message}"), Some("invalid_value"));
        ApiError { param: Some(param), ..error }
    }

    /// The prompt has more tokens than the context.
    pub fn too_long(param: &str, tokens: usize, context: usize) -> Self {
        let message = format!("the prompt has {tokens} tokens and the context {context}: shorten it");
        let error = Self::new(StatusCode::BAD_REQUEST, message, Some("context_length_exceeded"));
        ApiError { param: Some(param.into()), ..error }
    }

    /// The body is no JSON object.
    pub fn malformed(message: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, format!("the body is no JSON object: {message}"), Some("invalid_json"))
    }

    /// No key, or a wrong one.
    pub fn unauthorized() -> Self {
        let message = "the API key is missing or wrong: send it as `Authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, message, Some("invalid_api_key"))
    }

    /// The request comes from where none is expected.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message, Some("forbidden"))
    }

    /// There is no such path.
    pub fn no_path(path: &str) -> Self {
        let path: String = path.chars().take(100).collect();
        Self::new(StatusCode::NOT_FOUND, format!("nothing is at {path}"), Some("not_found"))
    }

    /// There is no such model.
    pub fn no_model(name: &str, served: &str) -> Self {
        let name: String = name.chars().take(100).collect();
        let message = format!("model {name:?} is not served here: the one model is {served:?}");
        let error = Self::new(StatusCode::NOT_FOUND, message, Some("model_not_found"));
        ApiError { param: Some("model".into()), ..error }
    }

    /// The path takes other methods.
    pub fn no_method(allow: &'static str) -> Self {
        let message = format!("this path takes {allow}");
        let error = Self::new(StatusCode::METHOD_NOT_ALLOWED, message, Some("method_not_allowed"));
        ApiError { allow: Some(allow), ..error }
    }

    /// The body did not come in time.
    pub fn slow_body() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time", Some("timeout"))
    }

    /// The body is larger than what is taken.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message, Some("request_too_large"))
    }

    /// So many requests wait already.
    pub fn queue_full(waiting: usize, retry_after: u64) -> Self {
        let message = format!("{waiting} requests wait already: try again in {retry_after} s");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, message, Some("queue_full"));
        ApiError { retry_after: Some(retry_after), ..error }
    }

    /// Not now.
    pub fn unavailable(message: &str, code: &'static str, retry_after: u64) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, message, Some(code));
        ApiError { retry_after: Some(retry_after), ..error }
    }

    /// The server's own fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message, Some("internal_error"))
    }

    /// The error as JSON: `{"error": {"message", "type", "code", "param"}}`.
    pub fn json(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}})
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Stopping => ApiError::unavailable("the server is stopping", "stopping", 5),
            Failure::Late => ApiError::unavailable("the request's time was over before its turn came", "timeout", 5),
            Failure::Impossible(message) => ApiError::new(StatusCode::BAD_REQUEST, message, Some("invalid_value")),
            Failure::Broken(message) => ApiError::internal(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.json().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
