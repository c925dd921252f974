//! Answers, whole or piece by piece, as clients of OpenAI's API know them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use hyper::body::Frame;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, Sleep, sleep};

use super::error::{ApiError, ApiResult};
use super::job::{Event, Failure, Outcome, Piece, Ticket};
use super::request::{Model, Style};
use super::tools::Call;
use crate::sample::{TokenLogprobs, random_seed};
use crate::session::End;
use crate::tokens::Tokenizer;

/// A stream that is silent for so long, as while a long prompt is read, says that it is alive.
const SILENCE: Duration = Duration::from_secs(15);

/// JSON has no infinity. OpenAI's answers have this instead.
const IMPOSSIBLE: f64 = -9999.0;

/// Waits for a job's slot, and then for its text; or returns a stream of it.
///
/// # Errors
/// The job failed before the first piece of an answer was on its way.
pub async fn respond(model: &Model, style: Style, mut ticket: Ticket) -> ApiResult<Response> {
    let writer = Writer::new(model, style);
    match ticket.events.recv().await {
        Some(Event::Started) => {}
        Some(Event::Piece(_)) => return Err(ApiError::internal("a text began before it was started")),
        None => {
            ticket.outcome().await?;
            return Err(ApiError::internal("a text ended before it was started"));
        }
    }
    if writer.style.stream {
        return Ok(stream(writer, ticket));
    }
    let mut all = Piece::default();
    while let Some(event) = ticket.events.recv().await {
        if let Event::Piece(piece) = event {
            all.append(piece);
        }
    }
    let mut outcome = ticket.outcome().await?;
    all.append(std::mem::take(&mut outcome.rest));
    Ok(json_response(&writer.whole(all, &outcome)))
}

/// A body of JSON.
pub fn json_response(value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl Piece {
    fn append(&mut self, more: Piece) {
        self.text.push_str(&more.text);
        self.logprobs.extend(more.logprobs);
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Writes one answer.
struct Writer {
    id: String,
    created: u64,
    model: String,
    style: Style,
    tokenizer: Arc<Tokenizer>,
    /// Characters of the text so far, for a completion's offsets.
    offset: usize,
}

impl Writer {
    fn new(model: &Model, style: Style) -> Self {
        let kind = if style.is_chat { "chatcmpl" } else { "cmpl" };
        Writer {
            id: format!("{kind}-{:016x}", random_seed()),
            created: now(),
            model: model.name.clone(),
            tokenizer: model.tokenizer.clone(),
            offset: 0,
            style,
        }
    }

    /// What all answers and chunks begin with.
    fn envelope(&self, choices: Value, whole: bool) -> Value {
        let object = match (self.style.is_chat, whole) {
            (true, true) => "chat.completion",
            (true, false) => "chat.completion.chunk",
            (false, _) => "text_completion",
        };
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("trine-", env!("CARGO_PKG_VERSION")),
            "choices": choices
        })
    }

    /// The answer in one piece.
    fn whole(mut self, all: Piece, outcome: &Outcome) -> Value {
        let mut choice = Map::new();
        choice.insert("index".into(), 0.into());
        let logprobs = self.logprobs(&all.logprobs);
        let (text, calls) = match self.style.calls.take() {
            Some(mut reader) => {
                let shown = reader.push(&all.text);
                let (rest, calls) = reader.finish();
                (shown + &rest, calls)
            }
            None => (all.text, Vec::new()),
        };
        if self.style.is_chat {
            let mut message = json!({"role": "assistant", "content": text, "refusal": null});
            if !calls.is_empty() {
                message["tool_calls"] = calls.iter().map(Call::json).collect();
                if text.trim().is_empty() {
                    message["content"] = Value::Null;
                }
            }
            choice.insert("message".into(), message);
        } else {
            choice.insert("text".into(), (std::mem::take(&mut self.style.echo) + &text).into());
        }
        choice.insert("logprobs".into(), logprobs);
        choice.insert("finish_reason".into(), finish_reason(outcome.end, &calls).into());
        let mut answer = self.envelope(json!([choice]), true);
        answer["usage"] = usage(outcome);
        answer
    }

    /// A piece of a streamed answer.
    fn chunk(&self, delta: Value, logprobs: Value, finish: Option<&str>) -> Value {
        let mut choice = json!({"index": 0, "logprobs": logprobs, "finish_reason": finish});
        choice[if self.style.is_chat { "delta" } else { "text" }] = delta;
        let mut chunk = self.envelope(json!([choice]), false);
        if self.style.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn text(&self, text: String) -> Value {
        if self.style.is_chat { json!({ "content": text }) } else { text.into() }
    }

    /// What a stream begins with.
    fn first(&mut self) -> Option<Value> {
        if self.style.is_chat {
            return Some(self.chunk(json!({"role": "assistant", "content": ""}), Value::Null, None));
        }
        let echo = std::mem::take(&mut self.style.echo);
        (!echo.is_empty()).then(|| self.chunk(echo.into(), Value::Null, None))
    }

    /// More text; nothing where all of it may be part of a call.
    fn piece(&mut self, piece: Piece) -> Option<Value> {
        let logprobs = self.logprobs(&piece.logprobs);
        let text = match &mut self.style.calls {
            Some(reader) => reader.push(&piece.text),
            None => piece.text,
        };
        let silent = text.is_empty() && logprobs.is_null();
        (!silent).then(|| self.chunk(self.text(text), logprobs, None))
    }

    /// What a stream ends with.
    fn last(&mut self, mut outcome: Outcome) -> Vec<Value> {
        let mut chunks: Vec<_> = self.piece(std::mem::take(&mut outcome.rest)).into_iter().collect();
        let mut calls = Vec::new();
        if let Some(reader) = self.style.calls.take() {
            let (rest, found) = reader.finish();
            if !rest.is_empty() {
                chunks.push(self.chunk(self.text(rest), Value::Null, None));
            }
            for (index, call) in found.iter().enumerate() {
                let mut call = call.json();
                call["index"] = index.into();
                chunks.push(self.chunk(json!({"tool_calls": [call]}), Value::Null, None));
            }
            calls = found;
        }
        let nothing = if self.style.is_chat { json!({}) } else { "".into() };
        chunks.push(self.chunk(nothing, Value::Null, Some(finish_reason(outcome.end, &calls))));
        if self.style.usage {
            let mut chunk = self.envelope(json!([]), false);
            chunk["usage"] = usage(&outcome);
            chunks.push(chunk);
        }
        chunks
    }

    /// The tokens' probabilities in the form of the request's kind; null where none are asked for or there are none.
    fn logprobs(&mut self, tokens: &[TokenLogprobs]) -> Value {
        if !self.style.logprobs || tokens.is_empty() {
            return Value::Null;
        }
        if self.style.is_chat {
            let content: Vec<_> = tokens.iter().map(|token| chat_logprob(&self.tokenizer, token)).collect();
            return json!({"content": content, "refusal": null});
        }
        let text = |id| String::from_utf8_lossy(self.tokenizer.token_bytes(id)).into_owned();
        let top = |token: &TokenLogprobs| {
            token.top.iter().map(|&(id, logprob)| (text(id), finite(logprob))).collect::<Map<_, _>>()
        };
        let texts: Vec<_> = tokens.iter().map(|token| text(token.token)).collect();
        let mut offsets = Vec::with_capacity(tokens.len());
        for text in &texts {
            offsets.push(self.offset);
            self.offset += text.chars().count();
        }
        json!({
            "tokens": texts,
            "token_logprobs": tokens.iter().map(|token| finite(token.logprob)).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
            "text_offset": offsets
        })
    }
}

fn chat_logprob(tokenizer: &Tokenizer, token: &TokenLogprobs) -> Value {
    let one = |id: u32, logprob: f64| {
        let bytes = tokenizer.token_bytes(id);
        json!({"token": String::from_utf8_lossy(bytes), "logprob": finite(logprob), "bytes": bytes})
    };
    let mut entry = one(token.token, token.logprob);
    entry["top_logprobs"] = token.top.iter().map(|&(id, logprob)| one(id, logprob)).collect();
    entry
}

fn finite(logprob: f64) -> Value {
    if logprob.is_finite() { logprob.into() } else { IMPOSSIBLE.into() }
}

fn usage(outcome: &Outcome) -> Value {
    json!({
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.tokens,
        "total_tokens": outcome.prompt_tokens + outcome.tokens,
        "prompt_tokens_details": {"cached_tokens": outcome.cached_tokens}
    })
}

/// A text that was cut off by whatever is said to have reached its length.
fn finish_reason(end: End, calls: &[Call]) -> &'static str {
    match end {
        _ if !calls.is_empty() => "tool_calls",
        End::EndToken | End::Stopped => "stop",
        End::Limit | End::ContextFull | End::Interrupted => "length",
    }
}

/// Server-sent events of an answer.
fn stream(mut writer: Writer, ticket: Ticket) -> Response {
    let mut ready = VecDeque::new();
    ready.extend(writer.first().as_ref().map(event));
    let body = Stream { writer, ticket, ready, state: State::Text, silence: Box::pin(sleep(SILENCE)) };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies of nginx's kind would wait for more.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn event(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

struct Stream {
    writer: Writer,
    /// Dropped with the body when the connection closes, which cancels the job.
    ticket: Ticket,
    ready: VecDeque<Bytes>,
    state: State,
    silence: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Text,
    Outcome,
    Over,
}

impl Stream {
    /// Brings what comes next to `ready`.
    fn poll_more(&mut self, cx: &mut Context) -> Poll<()> {
        if self.state == State::Text {
            match self.ticket.events.poll_recv(cx) {
                Poll::Pending => return self.poll_silence(cx),
                Poll::Ready(Some(Event::Started)) => {}
                Poll::Ready(Some(Event::Piece(piece))) => {
                    self.ready.extend(self.writer.piece(piece).as_ref().map(event));
                }
                Poll::Ready(None) => self.state = State::Outcome,
            }
            return Poll::Ready(());
        }
        let Poll::Ready(outcome) = Pin::new(&mut self.ticket.done).poll(cx) else { return Poll::Pending };
        let outcome = outcome.unwrap_or_else(|_| Err(Failure::Broken("the scheduler has ended".into())));
        match outcome {
            Ok(outcome) => self.ready.extend(self.writer.last(outcome).iter().map(event)),
            Err(failure) => self.ready.push_back(event(&ApiError::from(failure).json())),
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.state = State::Over;
        Poll::Ready(())
    }

    fn poll_silence(&mut self, cx: &mut Context) -> Poll<()> {
        if self.silence.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.ready.push_back(Bytes::from_static(b": still here\n\n"));
        Poll::Ready(())
    }
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.ready.pop_front() {
                this.silence.as_mut().reset(Instant::now() + SILENCE);
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if this.state == State::Over {
                return Poll::Ready(None);
            }
            if this.poll_more(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
