//! `trine serve` as its clients meet it: real processes, real sockets, the demo model.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::program::{failure, path, stdout, trine};

const PATIENCE: Duration = Duration::from_secs(60);

/// A running server, which ends with the test.
struct Server {
    child: Child,
    address: String,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl Server {
    /// Starts it on a free port and waits until its model is ready.
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(path());
        command.env_remove("TRINE_MODEL").env_remove("TRINE_API_KEY");
        command.args(["serve", "--port", "0", "-t", "1"]).args(args).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let address = first.strip_prefix("listening on http://").unwrap_or_else(|| panic!("{first}")).to_owned();
        let stderr = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"));
        let server = Server { child, address, stderr: Some(stderr) };
        let start = Instant::now();
        while server.get("/health").status != 200 {
            assert!(start.elapsed() < PATIENCE, "it is never ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes and reads all that comes until the server closes.
    fn exchange(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that has seen enough may close before everything is written.
        let _ = stream.write_all(bytes);
        Answer::read(stream)
    }

    fn request(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
        self.exchange(head(method, path, headers, body).as_bytes())
    }

    fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, &[], &body.to_string())
    }

    /// The number that the metric `name` has.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until the metric `name` is `value`.
    fn wait_for(&self, name: &str, value: f64) {
        let start = Instant::now();
        while self.metric(name) != value {
            assert!(start.elapsed() < PATIENCE, "{name} is {} and not {value}", self.metric(name));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[cfg(unix)]
    fn terminate(&self) {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
    }

    /// Waits for its end; its exit status and what it said.
    fn end(&mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        (code, self.stderr.take().map(|thread| thread.join().unwrap()).unwrap_or_default())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn head(method: &str, path: &str, headers: &[&str], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    headers.iter().for_each(|header| text += &format!("{header}\r\n"));
    format!("{text}content-length: {}\r\n\r\n{body}", body.len())
}

/// An answer, its chunks put together.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn read(stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        // A reset after the answer is no part of it.
        let _ = BufReader::new(stream).read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let head = head.to_lowercase();
        let body = if head.contains("transfer-encoding: chunked") { unchunk(body) } else { body.to_owned() };
        Answer { status, head, body }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The error, which has all that OpenAI's have.
    #[track_caller]
    fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{self:?}");
        assert!(error.get("code").is_some() && error.get("param").is_some(), "{self:?}");
        error
    }

    /// The events of a stream, without the last one, which must be `[DONE]`.
    #[track_caller]
    fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        let lines: Vec<_> = self.body.split("\n\n").filter_map(|line| line.strip_prefix("data: ")).collect();
        let (last, events) = lines.split_last().unwrap_or_else(|| panic!("{self:?}"));
        assert_eq!(*last, "[DONE]", "{self:?}");
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

fn unchunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        text += rest.get(..length).unwrap_or(rest);
        body = rest.get(length + 2..).unwrap_or_default();
    }
    text
}

/// The text of a stream's chunks.
fn streamed_text(events: &[Value]) -> String {
    let text = |event: &Value| {
        let choice = &event["choices"][0];
        choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default().to_owned()
    };
    events.iter().map(text).collect()
}

const PROMPT: &str = "Once upon a time there was a";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 24, "seed": 3});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn completion(more: Value) -> Value {
    let mut body = json!({"prompt": PROMPT, "max_tokens": 24, "seed": 3});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn answers_are_the_single_users_texts() {
    let server = Server::start(&["--slots", "3"]);
    let expected = stdout(&["run", PROMPT, "-n", "24", "-s", "3"]);
    let answer = server.post("/v1/completions", &completion(json!({}))).ok();
    assert_eq!(answer["choices"][0]["text"], expected.as_str());
    assert_eq!(answer["object"], "text_completion");
    // The demo model has no chat template: it goes on with what was said.
    let answer = server.post("/v1/chat/completions", &chat(json!({}))).ok();
    assert_eq!(answer["choices"][0]["message"]["content"], expected.as_str());
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["usage"]["completion_tokens"], 24);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert!(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);
    // Many at once, streamed and not, each with its own seed.
    std::thread::scope(|scope| {
        let ask = |seed: u64| {
            let server = &server;
            move || {
                let body = completion(json!({"seed": seed, "stream": seed.is_multiple_of(2)}));
                let answer = server.post("/v1/completions", &body);
                match seed % 2 {
                    0 => streamed_text(&answer.events()),
                    _ => answer.ok()["choices"][0]["text"].as_str().unwrap().to_owned(),
                }
            }
        };
        let threads: Vec<_> = (0..9).map(|seed| (seed, scope.spawn(ask(seed)))).collect();
        for (seed, thread) in threads {
            let expected = stdout(&["run", PROMPT, "-n", "24", "-s", &seed.to_string()]);
            assert_eq!(thread.join().unwrap(), expected, "seed {seed}");
        }
    });
}

#[test]
fn streams_are_as_clients_expect_them() {
    let server = Server::start(&[]);
    let more = json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2});
    let answer = server.post("/v1/chat/completions", &chat(more));
    assert!(answer.head.contains("content-type: text/event-stream"), "{answer:?}");
    let events = answer.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk" && event["id"] == events[0]["id"]));
    let [.., finish, usage] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&finish["choices"][0]["finish_reason"], &finish["usage"]), (&json!("length"), &Value::Null));
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(24)));
    let tokens: Vec<_> =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(tokens.len(), 24);
    let bytes = |token: &Value| token["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect();
    let text: Vec<u8> = tokens.iter().flat_map(|token| -> Vec<u8> { bytes(token) }).collect();
    assert_eq!(String::from_utf8_lossy(&text), streamed_text(&events));
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
    // A completion's probabilities have another form.
    let answer = server.post("/v1/completions", &completion(json!({"logprobs": 1, "echo": true}))).ok();
    let choice = &answer["choices"][0];
    assert!(choice["text"].as_str().unwrap().starts_with(PROMPT), "{choice}");
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 24);
    assert_eq!(choice["logprobs"]["top_logprobs"][0].as_object().unwrap().len(), 1);
}

#[test]
fn a_stop_text_ends_an_answer() {
    let server = Server::start(&[]);
    let whole = server.post("/v1/completions", &completion(json!({"temperature": 0}))).ok();
    let whole = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    let stop: String = whole.chars().skip(20).take(3).collect();
    let body = completion(json!({"temperature": 0, "stop": ["no such text", stop]}));
    let answer = server.post("/v1/completions", &body).ok();
    assert_eq!(answer["choices"][0]["text"], whole[..whole.find(&stop).unwrap()]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // A bias of 100 and one of -100.
    let tokens = server.post("/tokenize", &json!({"content": "The fox"})).ok()["tokens"].clone();
    let id = tokens.as_array().unwrap().last().unwrap().clone();
    let four = server.post("/detokenize", &json!({"tokens": [id, id, id, id]})).ok()["content"].clone();
    for (bias, found) in [(100, true), (-100, false)] {
        let body = completion(json!({"logit_bias": {id.to_string(): bias}, "max_tokens": 4}));
        let text = server.post("/v1/completions", &body).ok()["choices"][0]["text"].as_str().unwrap().to_owned();
        assert_eq!(text.trim() == four.as_str().unwrap().trim(), found, "{text}");
    }
}

#[test]
fn schemas_and_tools_hold() {
    let server = Server::start(&[]);
    let schema = json!({
        "type": "object",
        "properties": {"animal": {"enum": ["fox", "hen"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["animal", "age"],
        "additionalProperties": false
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "animal", "schema": schema, "strict": true}});
    let body = chat(json!({"response_format": format, "max_tokens": 100}));
    let answer = server.post("/v1/chat/completions", &body).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    let value: Value = serde_json::from_str(answer["choices"][0]["message"]["content"].as_str().unwrap()).unwrap();
    assert!(["fox", "hen"].contains(&value["animal"].as_str().unwrap()), "{value}");
    assert!((1..=9).contains(&value["age"].as_u64().unwrap()) && value.as_object().unwrap().len() == 2, "{value}");

    let function = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": schema}});
    let tools = json!([function("feed"), function("wash")]);
    let named = json!({"type": "function", "function": {"name": "wash"}});
    for (choice, names) in [(json!("required"), &["feed", "wash"][..]), (named, &["wash"])] {
        for stream in [false, true] {
            let body = chat(json!({"tools": tools, "tool_choice": choice, "max_tokens": 200, "stream": stream}));
            let answer = server.post("/v1/chat/completions", &body);
            let (message, reason) = match stream {
                false => {
                    (answer.ok()["choices"][0]["message"].clone(), answer.ok()["choices"][0]["finish_reason"].clone())
                }
                true => {
                    let events = answer.events();
                    let call = events.iter().find(|event| event["choices"][0]["delta"].get("tool_calls").is_some());
                    assert_eq!(streamed_text(&events), "", "{events:?}");
                    let reason = events.last().unwrap()["choices"][0]["finish_reason"].clone();
                    (call.unwrap_or_else(|| panic!("{events:?}"))["choices"][0]["delta"].clone(), reason)
                }
            };
            assert_eq!(reason, "tool_calls", "{message}");
            let call = &message["tool_calls"][0];
            assert!(names.contains(&call["function"]["name"].as_str().unwrap()), "{message}");
            assert!(call["id"].as_str().unwrap().starts_with("call_"), "{message}");
            let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments["age"].is_u64(), "{message}");
        }
    }
    // The answer to a call, and a model that may call but does not.
    let body = json!({"messages": [
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "feed", "arguments": "{\"age\": 1}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"}
    ], "tools": tools, "max_tokens": 4, "seed": 1});
    let answer = server.post("/v1/chat/completions", &body).ok();
    assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
}

#[test]
fn what_is_wrong_is_said_with_its_field() {
    let server = Server::start(&["-c", "64", "--max-body", "20000"]);
    let chat_url = "/v1/chat/completions";
    for (more, param) in [
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_completion_tokens": 1.5}), "max_completion_tokens"),
        (json!({"n": 2}), "n"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": [1]}), "stop"),
        (json!({"logit_bias": {"99999": 1}}), "logit_bias"),
        (json!({"logit_bias": {"1": 101}}), "logit_bias"),
        (json!({"seed": "x"}), "seed"),
        (json!({"stream": 1}), "stream"),
        (json!({"stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "user", "content": "word ".repeat(80)}]}), "messages"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "wolf"}}}}),
            "response_format",
        ),
        (json!({"tools": [{}]}), "tools[0].function"),
        (json!({"tool_choice": "required"}), "tool_choice"),
    ] {
        let error = server.post(chat_url, &chat(more.clone())).error(400);
        assert_eq!((&error["param"], &error["type"]), (&json!(param), &json!("invalid_request_error")), "{more}");
    }
    let error =
        server.post(chat_url, &chat(json!({"messages": [{"role": "user", "content": "a ".repeat(90)}]}))).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(server.post("/v1/completions", &json!({})).error(400)["param"], "prompt");
    assert_eq!(server.post("/v1/completions", &json!({"prompt": ["a", "b"]})).error(400)["param"], "prompt");
    assert_eq!(server.post("/detokenize", &json!({"tokens": [-1]})).error(400)["param"], "tokens");
    // Unknown fields are passed over, and null is as good as none.
    server.post(chat_url, &chat(json!({"store": true, "metadata": {}, "top_p": null, "max_tokens": 2}))).ok();

    for body in ["", "{", "[]", "\"x\"", &"[".repeat(10_000), "{\"messages\": \"\\ud800\"}"] {
        server.request("POST", chat_url, &[], body).error(400);
    }
    assert_eq!(server.post(chat_url, &chat(json!({"model": "other"}))).error(404)["param"], "model");
    server.get("/v1/models/other").error(404);
    server.get("/nowhere").error(404);
    let answer = server.get(chat_url);
    answer.error(405);
    assert!(answer.head.contains("allow: post"), "{answer:?}");
    server.request("POST", "/health", &[], "").error(405);
    server.post(chat_url, &chat(json!({"user": "x".repeat(30_000)}))).error(413);
    let chunked = format!(
        "POST {chat_url} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let chunk = format!("2710\r\n{}\r\n", " ".repeat(10_000));
    server.exchange((chunked + &chunk.repeat(4) + "0\r\n\r\n").as_bytes()).error(413);
    // Web pages from elsewhere, and names that are made to point here.
    server.request("POST", chat_url, &["origin: https://example.org"], "{}").error(403);
    server.exchange(b"GET / HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n\r\n").error(403);
    assert_eq!(server.exchange(b"NONSENSE\r\n\r\n").status, 400);
}

#[test]
fn the_other_paths_answer() {
    let server = Server::start(&["--alias", "tales", "--cors-origin", "https://example.org"]);
    let models = server.get("/v1/models").ok();
    assert_eq!((&models["data"][0]["id"], &models["object"]), (&json!("tales"), &json!("list")));
    assert_eq!(server.get("/v1/models/tales").ok()["object"], "model");
    server.post("/v1/chat/completions", &chat(json!({"model": "tales"}))).ok();
    let tokens = server.post("/tokenize", &json!({"content": "The fox — a small one."})).ok()["tokens"].clone();
    let text = server.post("/detokenize", &json!({"tokens": tokens})).ok();
    assert_eq!(text["content"], "The fox — a small one.");
    let page = server.get("/");
    assert!(page.status == 200 && page.head.contains("content-security-policy: default-src 'none'"), "{page:?}");
    assert!(page.body.starts_with("<!doctype html>") && !page.body.contains("{{nonce}}"));
    assert!(server.metric("trine_tokens_total") >= 24.0);
    assert!(server.metric("trine_token_interval_seconds_count") >= 23.0);
    let preflight = server.request("OPTIONS", "/v1/models", &["origin: https://example.org"], "");
    assert_eq!(preflight.status, 204);
    assert!(preflight.head.contains("access-control-allow-origin: https://example.org"), "{preflight:?}");
}

#[test]
fn a_key_is_asked_for() {
    let server = Server::start(&["--api-key", "sesame"]);
    server.get("/v1/models").error(401);
    server.post("/v1/chat/completions", &chat(json!({}))).error(401);
    server.get("/metrics").error(401);
    let key = ["authorization: Bearer sesame"];
    server.request("GET", "/v1/models", &key, "").ok();
    assert_eq!(server.get("/").status, 200);
    let line = failure(trine().args(["serve", "--host", "0.0.0.0", "--port", "0"]).env_remove("TRINE_API_KEY"), 2);
    assert!(line.contains("--api-key") && line.contains("--no-auth"), "{line}");
}

/// A request of which a stream is read as it comes.
fn open_stream(server: &Server, body: &Value) -> BufReader<TcpStream> {
    let mut stream = server.connect();
    stream.write_all(head("POST", "/v1/completions", &[], &body.to_string()).as_bytes()).unwrap();
    BufReader::new(stream)
}

/// Reads until the first chunk of text.
fn read_a_chunk(stream: &mut BufReader<TcpStream>) {
    let mut line = String::new();
    while !line.contains("data: {") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "it ended");
    }
}

/// A text that would go on for the whole context.
fn endless() -> Value {
    completion(json!({"stream": true, "max_tokens": 1000, "logit_bias": {"2": -100}, "logprobs": 20}))
}

#[test]
fn clients_that_leave_free_their_slots() {
    let server = Server::start(&["--slots", "2", "--queue", "2"]);
    for half in [false, true] {
        let before = server.metric("trine_requests_cancelled_total");
        let mut streams = [open_stream(&server, &endless()), open_stream(&server, &endless())];
        streams.iter_mut().for_each(read_a_chunk);
        match half {
            // Half-closed: who says nothing any more is taken to have left.
            true => streams.iter().for_each(|stream| stream.get_ref().shutdown(Shutdown::Write).unwrap()),
            false => drop(streams),
        }
        server.wait_for("trine_requests_cancelled_total", before + 2.0);
        server.wait_for("trine_slots_busy", 0.0);
    }
    assert_eq!(server.post("/v1/completions", &completion(json!({}))).ok()["usage"]["completion_tokens"], 24);
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let server = Server::start(&["--slots", "1", "--queue", "1"]);
    let mut busy = open_stream(&server, &endless());
    read_a_chunk(&mut busy);
    let waiting = open_stream(&server, &endless());
    server.wait_for("trine_queue_depth", 1.0);
    let answer = server.post("/v1/completions", &completion(json!({})));
    answer.error(429);
    assert!(answer.head.contains("retry-after: "), "{answer:?}");
    drop(busy);
    server.wait_for("trine_queue_depth", 0.0);
    drop(waiting);
    server.post("/v1/completions", &completion(json!({}))).ok();
}

#[test]
fn dawdlers_are_cut_off() {
    let server = Server::start(&["--idle-timeout", "1", "--max-connections", "3"]);
    // A head that never ends, and a connection that says nothing.
    for bytes in [&b"GET /health HTTP/1.1\r\nhost: local"[..], b""] {
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        let start = Instant::now();
        let mut rest = Vec::new();
        // A reset is as good as an end.
        let _ = stream.read_to_end(&mut rest);
        assert!(start.elapsed() < Duration::from_secs(30), "{rest:?}");
    }
    // More connections than there may be.
    let held: Vec<_> = (0..3).map(|_| server.connect()).collect();
    std::thread::sleep(Duration::from_millis(100));
    let refused = server.get("/health");
    assert_eq!(refused.error(503)["code"], "too_many_connections");
    drop(held);
}

#[cfg(unix)]
#[test]
fn sigterm_ends_streams_properly() {
    let mut server = Server::start(&["--grace", "0", "--slots", "2"]);
    let mut streams = [open_stream(&server, &endless()), open_stream(&server, &endless())];
    streams.iter_mut().for_each(read_a_chunk);
    server.terminate();
    for stream in streams {
        let mut rest = String::new();
        BufReader::new(stream).read_to_string(&mut rest).unwrap();
        assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}");
        assert!(rest.trim_end().ends_with("data: [DONE]\n\n\r\n0"), "{rest}");
    }
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("warning: tales-bitnet-20m has no chat template"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_moment_is_enough_for_short_texts() {
    let mut server = Server::start(&["--grace", "60"]);
    let mut stream =
        open_stream(&server, &completion(json!({"stream": true, "max_tokens": 200, "logit_bias": {"2": -100}})));
    read_a_chunk(&mut stream);
    server.terminate();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.matches("\"text\":").count() > 100, "{rest}");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_model_that_cannot_be_loaded_ends_it() {
    let line_of = |args: &[&str]| {
        let ran = crate::program::run(trine().args(["serve", "--port", "0"]).args(args));
        (ran.code, ran.stderr.lines().last().unwrap_or_default().to_owned())
    };
    let (code, line) = line_of(&["-m", "/no/such/model"]);
    assert!(code == Some(1) && line.starts_with("error: /no/such/model"), "{line}");
    let (code, line) = line_of(&["-c", "100000"]);
    assert!(code == Some(2) && line.contains("1024 positions"), "{line}");
    assert!(failure(trine().args(["serve", "--slots", "1000"]), 2).contains("256"));
}
