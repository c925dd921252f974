//! The model's chat template: a conversation to the text that the model was trained on.
//!
//! Templates are Jinja under Python as Hugging Face runs it: blocks are trimmed, loops have `break` and `continue`,
//! strings and dicts have Python's methods, and `raise_exception`, `strftime_now`, `tojson` and the `generation` tags
//! exist.

use std::fmt::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind};
use serde::Deserialize;
use serde_json::Map;

use super::{one_line, python};
use crate::{Error, Result};

/// What one rendering may cost. One unit is one instruction or 64 bytes of data, so this bounds time (to about a
/// second) and memory (to 32 MiB of values). One gap is the engine's own: joining a list by `~` is charged by the list's
/// length, not by what it prints, and a list that holds another twice, and so on, prints without end.
const FUEL: u64 = 500_000;

/// The stack that a template is rendered on, in bytes. Values are dropped recursively, and a template can nest them as
/// deep as its fuel lasts; untouched pages of the stack cost nothing.
const STACK: usize = 256 << 20;

/// How deep macros, loops and includes may nest.
const RECURSION: usize = 100;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of `role` that says `content`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// A parsed chat template.
pub struct ChatTemplate {
    env: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
    name: String,
}

/// The template's names inside `env`.
const DEFAULT: &str = "chat_template";
const TOOL_USE: &str = "tool_use";

/// What `tokenizer_config.json` may hold as `chat_template`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Source {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

#[derive(Deserialize)]
struct Config {
    chat_template: Option<Source>,
    #[serde(default)]
    bos_token: serde_json::Value,
    #[serde(default)]
    eos_token: serde_json::Value,
}

impl ChatTemplate {
    /// Parses the template `source`. `bos` and `eos` are the texts of those tokens; `name` stands for the file in errors.
    ///
    /// # Errors
    /// [`Error::File`] if the template is malformed.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>, name: &str) -> Result<Self> {
        let mut template = ChatTemplate {
            env: environment(),
            bos: bos.map(str::to_owned),
            eos: eos.map(str::to_owned),
            name: name.to_owned(),
        };
        template.add(DEFAULT, source)?;
        Ok(template)
    }

    /// The chat template of a model: the text of its `chat_template.jinja` if there is one, else what the bytes of its
    /// `tokenizer_config.json` hold as `chat_template`, which is a text or a list of named ones: `default`, and perhaps
    /// `tool_use` for requests with tools. `None` if the model has none.
    ///
    /// # Errors
    /// [`Error::File`] if the config or the template is malformed.
    pub fn find(tokenizer_config: Option<&[u8]>, jinja: Option<&str>, name: &str) -> Result<Option<Self>> {
        let config = match tokenizer_config {
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|e| Error::file(name, format!("tokenizer_config.json: {}", one_line(e))))?,
            None => Config { chat_template: None, bos_token: Default::default(), eos_token: Default::default() },
        };
        let (bos, eos) = (token_text(&config.bos_token), token_text(&config.eos_token));
        let named = match (jinja, config.chat_template) {
            (Some(source), _) => return Self::new(source, bos, eos, name).map(Some),
            (None, None) => return Ok(None),
            (None, Some(Source::One(source))) => return Self::new(&source, bos, eos, name).map(Some),
            (None, Some(Source::Named(named))) => named,
        };
        let find = |wanted: &str| named.iter().find(|one| one.name == wanted).map(|one| one.template.as_str());
        let Some(default) = find("default") else {
            let names: Vec<_> = named.iter().map(|one| one.name.as_str()).collect();
            let problem = format!("chat_template: none of the templates [{}] is named `default`", names.join(", "));
            return Err(Error::file(name, problem));
        };
        let mut template = Self::new(default, bos, eos, name)?;
        if let Some(source) = find(TOOL_USE) {
            template.add(TOOL_USE, source)?;
        }
        Ok(Some(template))
    }

    fn add(&mut self, key: &'static str, source: &str) -> Result<()> {
        let added = self.env.add_template_owned(key, plain_generation(source));
        added.map_err(|e| Error::file(&self.name, format!("chat template: {}", one_line(e))))
    }

    /// Whether the template's source holds `text`: how to know what a model was trained on.
    pub fn mentions(&self, text: &str) -> bool {
        [DEFAULT, TOOL_USE].iter().any(|name| self.env.get_template(name).is_ok_and(|one| one.source().contains(text)))
    }

    /// The text of a conversation. `add_generation_prompt` ends it with the start of the assistant's answer. `extra`
    /// holds further variables for the template, such as `tools` or `enable_thinking`.
    ///
    /// # Errors
    /// [`Error::Request`] with the template's own words if it refuses the conversation; [`Error::File`] if it fails.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: Option<&Map<String, serde_json::Value>>,
    ) -> Result<String> {
        self.render_values(messages.iter().map(message_value).collect(), add_generation_prompt, extra)
    }

    /// As [`ChatTemplate::render`], with messages that may have more than a role and a text, such as `tool_calls`.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_json(
        &self,
        messages: &[serde_json::Value],
        add_generation_prompt: bool,
        extra: Option<&Map<String, serde_json::Value>>,
    ) -> Result<String> {
        self.render_values(messages.iter().map(json_value).collect(), add_generation_prompt, extra)
    }

    fn render_values(
        &self,
        messages: Value,
        add_generation_prompt: bool,
        extra: Option<&Map<String, serde_json::Value>>,
    ) -> Result<String> {
        let mut context = vec![
            ("messages", messages),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            // Hugging Face always passes these two, as None where there are none.
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ];
        context.extend(self.bos.as_deref().map(|text| ("bos_token", Value::from(text))));
        context.extend(self.eos.as_deref().map(|text| ("eos_token", Value::from(text))));
        let extra = extra.into_iter().flatten().map(|(key, value)| (key.as_str(), json_value(value)));
        let context: Vec<_> = context.into_iter().chain(extra).collect();

        let has_tools = context.iter().rev().find(|(key, _)| *key == "tools").is_some_and(|(_, tools)| tools.is_true());
        let tool_use = self.env.get_template(TOOL_USE).ok().filter(|_| has_tools);
        let template = tool_use.map_or_else(|| self.env.get_template(DEFAULT), Ok);
        let render = || template.and_then(|template| template.render(Value::from_pairs(context)));
        on_large_stack(|| render().map_err(|e| self.failure(&e)))?
    }

    fn failure(&self, error: &minijinja::Error) -> Error {
        let mut cause: Option<&dyn std::error::Error> = Some(error);
        while let Some(e) = cause {
            if let Some(Raised(message)) = e.downcast_ref() {
                return Error::Request(format!("the chat template refuses the conversation: {}", one_line(message)));
            }
            cause = e.source();
        }
        let problem = match error.kind() {
            ErrorKind::OutOfFuel => format!("does not end within {FUEL} steps; is the conversation too long?"),
            _ => one_line(error),
        };
        Error::file(&self.name, format!("chat template: {problem}"))
    }
}

/// Runs `work` on a thread with [`STACK`] bytes of stack.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| Error::Request(format!("no thread to render the chat template on: {e}")))?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// What a template passed to `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Jinja as Hugging Face sets it up, within bounds.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("Jinja's own delimiters are distinct"));
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION);
    env.set_debug(false);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(|out, _, value| Ok(out.write_str(&python::str(value)?)?));
    env.add_filter("tojson", tojson);
    env.add_function("strftime_now", strftime_now);
    env.add_function("raise_exception", |message: String| -> std::result::Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
    });
    env
}

/// Hugging Face's `tojson`: `json.dumps` with its options, non-ASCII characters and HTML's left as they are.
fn tojson(value: &Value, ensure_ascii: Option<bool>, kwargs: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let mut json = python::Json {
        ensure_ascii: ensure_ascii.or(kwargs.get("ensure_ascii")?).unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ..Default::default()
    };
    if let Some(indent) = kwargs.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none()) {
        json.indent = Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(u8::try_from(indent)?.into()),
        });
        json.separators.0 = ",".into();
    }
    if let Some(separators) = kwargs.get::<Option<Vec<String>>>("separators")? {
        let count = separators.len();
        json.separators = <[String; 2]>::try_from(separators).map(|[item, key]| (item, key)).map_err(|_| {
            minijinja::Error::new(ErrorKind::InvalidOperation, format!("tojson: {count} separators; two are needed"))
        })?;
    }
    kwargs.assert_all_used()?;
    json.dumps(value)
}

/// The local time in `strftime`'s format.
fn strftime_now(format: &str) -> std::result::Result<String, minijinja::Error> {
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(format)).map_err(|_| {
        let problem = format!("strftime_now: {format:?} is no valid time format");
        minijinja::Error::new(ErrorKind::InvalidOperation, problem)
    })?;
    Ok(text)
}

/// The template with `generation` tags, which mark the assistant's words for training, written as `with` blocks: those
/// print the same, with the same scope and the same trimming of whitespace.
fn plain_generation(source: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        plain.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (inside, after) = tag.split_at(end);
        let (left, word) = inside.split_at(inside.len() - inside.trim_start_matches(['-', '+']).len());
        let word_only = word.trim_end_matches(['-', '+']);
        let right = &word[word_only.len()..];
        match word_only.trim() {
            "generation" => plain.extend([left, " with ", right]),
            "endgeneration" => plain.extend([left, " endwith ", right]),
            _ => plain.push_str(inside),
        }
        rest = after;
    }
    plain + rest
}

/// The text of a special token in `tokenizer_config.json`: a string, or an object that holds it as `content`.
fn token_text(token: &serde_json::Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

fn message_value(message: &Message) -> Value {
    Value::from_pairs([("role", message.role.as_str()), ("content", message.content.as_str())])
}

/// JSON as a template sees it, keys in their order.
fn json_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(b) => Value::from(*b),
        serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(s) => Value::from(s.as_str()),
        serde_json::Value::Array(items) => items.iter().map(json_value).collect(),
        serde_json::Value::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), json_value(v)))),
    }
}

#[cfg(test)]
mod tests;
