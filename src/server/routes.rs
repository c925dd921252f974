//! The paths, and what is done at each.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value, json};

use super::answer::{json_response, respond};
use super::error::{ApiError, ApiResult};
use super::fields::{Fields, brief};
use super::guard;
use super::queue::Refusal;
use super::request::{self, Model, Prepared};
use super::state::App;
use crate::sample::random_seed;
use crate::tokens::Special;

/// The chat page, whole.
const PAGE: &str = include_str!("page.html");

/// Bytes of a refused body that are read and forgotten, so that a client that is still sending can read the refusal.
const DISCARDED: usize = 16 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(2);

/// Everything that is served.
pub fn router(app: Arc<App>) -> Router {
    let with =
        |route: MethodRouter<Arc<App>>, allow: &'static str| route.fallback(async move || ApiError::no_method(allow));
    Router::new()
        .route("/", with(get(page), "GET"))
        .route("/health", with(get(health), "GET"))
        .route("/metrics", with(get(metrics), "GET"))
        .route("/v1/models", with(get(models), "GET"))
        .route("/v1/models/{name}", with(get(model), "GET"))
        .route("/v1/chat/completions", with(post(chat), "POST"))
        .route("/v1/completions", with(post(completion), "POST"))
        .route("/tokenize", with(post(tokenize), "POST"))
        .route("/detokenize", with(post(detokenize), "POST"))
        .fallback(async |request: Request| ApiError::no_path(request.uri().path()))
        .layer(from_fn_with_state(app.clone(), guard::check))
        .with_state(app)
}

async fn page() -> Response {
    let nonce = format!("{:016x}{:016x}", random_seed(), random_seed());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = Response::new(Body::from(PAGE.replace("{{nonce}}", &nonce)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

async fn health(State(app): State<Arc<App>>) -> ApiResult<Response> {
    app.model()?;
    Ok(json_response(&json!({"status": "ok"})))
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut response = Response::new(Body::from(app.metrics.render()));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

async fn models(State(app): State<Arc<App>>) -> ApiResult<Response> {
    let model = describe(&app, &*app.model()?);
    Ok(json_response(&json!({"object": "list", "data": [model]})))
}

async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> ApiResult<Response> {
    let model = app.model()?;
    if name != model.name {
        return Err(ApiError::no_model(&name, &model.name));
    }
    Ok(json_response(&describe(&app, &model)))
}

fn describe(app: &App, model: &Model) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": app.started,
        "owned_by": "trine",
        "context_length": model.context,
        "has_chat_template": model.chat.is_some()
    })
}

async fn chat(State(app): State<Arc<App>>, request: Request) -> ApiResult<Response> {
    generate(app, request, request::chat).await
}

async fn completion(State(app): State<Arc<App>>, request: Request) -> ApiResult<Response> {
    generate(app, request, request::completion).await
}

type Prepare = fn(&Model, &Map<String, Value>, Duration) -> ApiResult<Prepared>;

async fn generate(app: Arc<App>, request: Request, prepare: Prepare) -> ApiResult<Response> {
    let model = app.model()?;
    let body = body(&app, request).await?;
    let timeout = app.limits.request;
    let for_work = model.clone();
    let prepared = app.work(move || prepare(&for_work, &body, timeout)).await??;
    app.queue.push(prepared.job).map_err(|refusal| match refusal {
        Refusal::Full(waiting) => ApiError::queue_full(waiting, app.patience()),
        Refusal::Stopping => ApiError::unavailable("the server is stopping", "stopping", 5),
    })?;
    respond(&model, prepared.style, prepared.ticket).await
}

async fn tokenize(State(app): State<Arc<App>>, request: Request) -> ApiResult<Response> {
    let model = app.model()?;
    let body = body(&app, request).await?;
    let tokens = app.work(move || {
        let fields = Fields::new(&body);
        let text = fields.required("content", fields.text("content")?)?;
        let special = Special {
            add: fields.flag("add_special")?.unwrap_or(false),
            parse: fields.flag("parse_special")?.unwrap_or(true),
        };
        model.tokenizer.encode(text, special).map_err(|error| fields.wrong("content", error))
    });
    Ok(json_response(&json!({"tokens": tokens.await??})))
}

async fn detokenize(State(app): State<Arc<App>>, request: Request) -> ApiResult<Response> {
    let model = app.model()?;
    let body = body(&app, request).await?;
    let text = app.work(move || {
        let fields = Fields::new(&body);
        let tokens = fields.required("tokens", fields.list("tokens")?)?;
        let id = |value: &Value| {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < model.vocab);
            id.ok_or_else(|| fields.wrong("tokens", format_args!("{} is no token", brief(value))))
        };
        let ids = tokens.iter().map(id).collect::<ApiResult<Vec<_>>>()?;
        Ok::<_, ApiError>(model.tokenizer.decode(&ids, false))
    });
    Ok(json_response(&json!({"content": text.await??})))
}

/// A request's JSON object, as large and as slow as is taken.
async fn body(app: &App, request: Request) -> ApiResult<Map<String, Value>> {
    let limit = app.limits.body;
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let too_large = announced.is_some_and(|length| length > limit as u64);
    let read = async {
        let mut body = request.into_body();
        if !too_large {
            match Limited::new(&mut body, limit).collect().await {
                Ok(read) => return Ok(read.to_bytes()),
                Err(error) if error.is::<LengthLimitError>() => {}
                Err(_) => return Err(ApiError::malformed("it ended early")),
            }
        }
        // How it went does not matter any more.
        let _ = tokio::time::timeout(DISCARD_TIME, discard(body)).await;
        Err(ApiError::too_large(limit))
    };
    let bytes = tokio::time::timeout(app.limits.body_time, read).await.map_err(|_| ApiError::slow_body())??;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(ApiError::malformed(format_args!("it is {}", brief(&other)))),
        Err(error) => Err(ApiError::malformed(error)),
    }
}

async fn discard(mut body: Body) {
    let mut left = DISCARDED;
    while let Some(Ok(frame)) = body.frame().await {
        left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
        if left == 0 {
            return;
        }
    }
}

/// Whether `headers` hold the key, compared in constant time.
pub fn has_key(headers: &HeaderMap, key: &str) -> bool {
    use subtle::ConstantTimeEq;
    let given = headers.get(axum::http::header::AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
    let given = given.strip_prefix(b"Bearer ").or_else(|| given.strip_prefix(b"bearer ")).unwrap_or_default();
    given.ct_eq(key.as_bytes()).into()
}

/// An answer without a body.
pub fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
