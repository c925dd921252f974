//! What a request asks for, checked: from JSON to a job.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::chat::Conversation;
use super::error::{ApiError, ApiResult};
use super::fields::{Fields, brief};
use super::grammar::{Grammars, Shape};
use super::job::{Job, JobOptions, Ticket};
use super::tools::{CallReader, Dialect, Tools};
use crate::generation::{TextOptions, default_sampling};
use crate::model::{Config, SamplingDefaults};
use crate::sample::{SamplerOptions, random_seed};
use crate::tokens::{ChatTemplate, Special, Tokenizer};

/// What the API allows.
const MOST_STOPS: usize = 16;
const LONGEST_STOP: usize = 1024;
const MOST_LOGPROBS: u64 = 20;
const MOST_BIASES: usize = 1024;

/// Tokens of a completion when nobody says: OpenAI's.
const COMPLETION_TOKENS: usize = 16;

/// The model that is served, but for its weights.
pub struct Model {
    /// What clients call it.
    pub name: String,
    /// Its tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// How a conversation becomes text, if the model says so.
    pub chat: Option<ChatTemplate>,
    /// How it writes calls of tools.
    pub dialect: Dialect,
    /// Grammars over its tokens.
    pub grammars: Grammars,
    /// How its makers sample.
    pub sampling: SamplingDefaults,
    /// Width of its logits.
    pub vocab: usize,
    /// Positions of a text.
    pub context: usize,
}

impl Model {
    /// A model of `config` that has `context` positions for each text.
    ///
    /// # Errors
    /// Grammars can't be made for its vocabulary.
    pub fn new(
        name: String,
        config: &Config,
        tokenizer: Tokenizer,
        chat: Option<ChatTemplate>,
        context: usize,
    ) -> crate::Result<Self> {
        Ok(Model {
            name,
            grammars: Grammars::new(&tokenizer, config.vocab, &config.eos)?,
            tokenizer: Arc::new(tokenizer),
            dialect: Dialect::of(chat.as_ref()),
            chat,
            sampling: config.sampling,
            vocab: config.vocab,
            context,
        })
    }
}

/// A request that can be queued.
pub struct Prepared {
    /// The work.
    pub job: Job,
    /// Its reader.
    pub ticket: Ticket,
    /// How the answer is to be written.
    pub style: Style,
}

/// How an answer is written.
pub struct Style {
    /// Whether it is an answer in a chat, rather than a completion.
    pub is_chat: bool,
    /// Piece by piece.
    pub stream: bool,
    /// With the number of tokens at the end of a stream.
    pub usage: bool,
    /// With the probabilities of its tokens.
    pub logprobs: bool,
    /// Reads calls of tools.
    pub calls: Option<CallReader>,
    /// Stands before a completion's text.
    pub echo: String,
}

/// A chat request as a job.
///
/// # Errors
/// Something in it is wrong or can't be done.
pub fn chat(model: &Model, body: &Map<String, Value>, timeout: Duration) -> ApiResult<Prepared> {
    let fields = Fields::new(body);
    check_model(&fields, model)?;
    let tools = Tools::read(&fields, model.dialect)?;
    let conversation = Conversation::read(&fields)?;
    let format = response_format(&fields)?;
    let limit = match fields.count("max_completion_tokens", 1..=u64::MAX)? {
        Some(limit) => Some(limit),
        None => fields.count("max_tokens", 1..=u64::MAX)?,
    };
    let logprobs = chat_logprobs(&fields)?;
    let prompt = conversation.tokens(model, tools.as_ref(), fields.object("chat_template_kwargs")?)?;
    let text = text_options(&fields, model, limit, model.chat.is_none())?;
    let shape = match &tools {
        Some(tools) => tools.shape(format),
        None => format,
    };
    let param = if tools.as_ref().is_some_and(Tools::is_forced) { "tools" } else { "response_format" };
    let style = Style {
        is_chat: true,
        logprobs: logprobs.is_some(),
        calls: tools.as_ref().map(Tools::reader),
        ..style(&fields)?
    };
    prepare(model, "messages", prompt, &text, (shape, param), logprobs, timeout, style)
}

/// A completion request as a job.
///
/// # Errors
/// Something in it is wrong or can't be done.
pub fn completion(model: &Model, body: &Map<String, Value>, timeout: Duration) -> ApiResult<Prepared> {
    let fields = Fields::new(body);
    check_model(&fields, model)?;
    for (name, neutral) in [("best_of", json!(1)), ("suffix", json!(""))] {
        if let Some(value) = fields.get(name).filter(|value| **value != neutral) {
            return Err(fields.wrong(name, format_args!("{} is not supported", brief(value))));
        }
    }
    let prompt = completion_prompt(&fields, model)?;
    let limit = Some(fields.count("max_tokens", 1..=u64::MAX)?.unwrap_or(COMPLETION_TOKENS));
    let logprobs = fields.count("logprobs", 0..=MOST_LOGPROBS)?;
    let text = text_options(&fields, model, limit, true)?;
    let format = response_format(&fields)?;
    let echo = match fields.flag("echo")? {
        Some(true) => model.tokenizer.decode(&prompt, true),
        _ => String::new(),
    };
    let style = Style { logprobs: logprobs.is_some(), echo, ..style(&fields)? };
    prepare(model, "prompt", prompt, &text, (format, "response_format"), logprobs, timeout, style)
}

/// The job, once everything else is checked: the grammar is the dear part of it.
#[expect(clippy::too_many_arguments, reason = "the end of two ways that differ in each of them")]
fn prepare(
    model: &Model,
    param: &str,
    prompt: Vec<u32>,
    text: &TextOptions,
    (shape, shape_param): (Option<Shape>, &str),
    logprobs: Option<usize>,
    timeout: Duration,
    style: Style,
) -> ApiResult<Prepared> {
    if prompt.is_empty() {
        return Err(ApiError::invalid(param, "has no tokens"));
    }
    if prompt.len() > model.context {
        return Err(ApiError::too_long(param, prompt.len(), model.context));
    }
    let grammar = shape.map(|shape| model.grammars.make(&shape)).transpose();
    let grammar = grammar.map_err(|error| ApiError::invalid(shape_param, error))?;
    let options = JobOptions { logprobs, grammar, timeout: Some(timeout) };
    let (job, ticket) = Job::new(model.tokenizer.clone(), prompt, text, model.vocab, options)
        .map_err(|error| ApiError::from(super::job::Failure::Impossible(error.to_string())))?;
    Ok(Prepared { job, ticket, style })
}

/// A request that names a model must name this one.
fn check_model(fields: &Fields, model: &Model) -> ApiResult<()> {
    match fields.text("model")? {
        Some(name) if name != model.name => Err(ApiError::no_model(name, &model.name)),
        _ => Ok(()),
    }
}

fn style(fields: &Fields) -> ApiResult<Style> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let usage = match fields.object("stream_options")? {
        Some(options) => Fields::within(options, "stream_options.").flag("include_usage")?.unwrap_or(false),
        None => false,
    };
    fields.text("user")?;
    Ok(Style { is_chat: false, stream, usage, logprobs: false, calls: None, echo: String::new() })
}

/// How many of the likeliest tokens a chat's answer tells.
fn chat_logprobs(fields: &Fields) -> ApiResult<Option<usize>> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=MOST_LOGPROBS)?;
    match (wanted, top) {
        (false, Some(1..)) => Err(fields.wrong("top_logprobs", "needs logprobs: true")),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

/// A text, a list that holds one text, or tokens.
fn completion_prompt(fields: &Fields, model: &Model) -> ApiResult<Vec<u32>> {
    let encode = |text: &str| {
        let ids = model.tokenizer.encode(text, Special::PROMPT);
        ids.map_err(|error| fields.wrong("prompt", error))
    };
    let token = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < model.vocab);
        id.ok_or_else(|| {
            fields.wrong("prompt", format_args!("{} is no token: ids go to {}", brief(value), model.vocab - 1))
        })
    };
    match fields.required("prompt", fields.get("prompt"))? {
        Value::String(text) => encode(text),
        Value::Array(items) => match items.as_slice() {
            [Value::String(text)] => encode(text),
            [Value::Array(tokens)] => tokens.iter().map(token).collect(),
            tokens if tokens.iter().all(Value::is_number) => tokens.iter().map(token).collect(),
            _ => Err(fields.wrong("prompt", "is a list of several prompts: send one request for each")),
        },
        _ => Err(fields.wrong("prompt", "is neither a string nor a list of tokens")),
    }
}

/// The shape that `response_format` asks for.
fn response_format(fields: &Fields) -> ApiResult<Option<Shape>> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    let inner = Fields::within(format, "response_format.");
    match inner.required("type", inner.text("type")?)? {
        "text" => Ok(None),
        "json_object" => Ok(Some(Shape::json(json!({"type": "object"})))),
        "json_schema" => {
            let named = inner.required("json_schema", inner.object("json_schema")?)?;
            let named = Fields::within(named, "response_format.json_schema.");
            let schema = named.required("schema", named.object("schema")?)?;
            Ok(Some(Shape::json(Value::Object(schema.clone()))))
        }
        other => {
            let message = format!("{} is not supported: use text, json_object or json_schema", brief(&other.into()));
            Err(inner.wrong("type", message))
        }
    }
}

/// What is common to both kinds of request, over what the model's makers say.
fn text_options(fields: &Fields, model: &Model, limit: Option<usize>, continues: bool) -> ApiResult<TextOptions> {
    if let Some(n) = fields.count("n", 1..=u64::MAX)?.filter(|&n| n != 1) {
        return Err(fields.wrong("n", format_args!("{n} answers to one request are not supported: use 1")));
    }
    let default = default_sampling(&model.sampling);
    let sampling = SamplerOptions {
        temperature: fields.number("temperature", 0.0..=100.0)?.unwrap_or(default.temperature),
        top_k: fields.count("top_k", 0..=u64::MAX)?.unwrap_or(default.top_k),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(default.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(default.min_p),
        repeat_penalty: penalty(fields)?.unwrap_or(default.repeat_penalty),
        // More than the context is never looked back on.
        repeat_last_n: fields.count("repeat_last_n", 0..=u64::MAX)?.unwrap_or(default.repeat_last_n).min(model.context),
        presence_penalty: fields.number("presence_penalty", -100.0..=100.0)?.unwrap_or(default.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty", -100.0..=100.0)?.unwrap_or(default.frequency_penalty),
        logit_bias: logit_bias(fields, model)?,
        seed: fields.integer("seed")?.unwrap_or_else(random_seed),
    };
    let limit = limit.map(|limit| limit.min(model.context));
    Ok(TextOptions { limit, stop: stops(fields)?, ignore_end: false, continues, sampling })
}

/// `repeat_penalty` as llama.cpp calls it, or `repetition_penalty` as others do.
fn penalty(fields: &Fields) -> ApiResult<Option<f32>> {
    let range = 0.01..=100.0;
    match fields.number("repeat_penalty", range.clone())? {
        Some(penalty) => Ok(Some(penalty)),
        None => fields.number("repetition_penalty", range),
    }
}

fn stops(fields: &Fields) -> ApiResult<Vec<String>> {
    let wrong =
        || fields.wrong("stop", format_args!("use a text, or up to {MOST_STOPS}, of 1 to {LONGEST_STOP} bytes each"));
    let stops = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) if items.len() <= MOST_STOPS => {
            items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    match stops.iter().all(|stop| (1..=LONGEST_STOP).contains(&stop.len())) {
        true => Ok(stops),
        false => Err(wrong()),
    }
}

/// `{"42": -100}`: OpenAI's -100 means never, and so does ours.
fn logit_bias(fields: &Fields, model: &Model) -> ApiResult<Vec<(u32, f32)>> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > MOST_BIASES {
        return Err(fields.wrong("logit_bias", format_args!("{} biases: give at most {MOST_BIASES}", map.len())));
    }
    let bias = |(token, bias): (&String, &Value)| {
        let id = token.parse().ok().filter(|&id: &u32| (id as usize) < model.vocab).ok_or_else(|| {
            let (token, last) = (brief(&token.as_str().into()), model.vocab - 1);
            fields.wrong("logit_bias", format_args!("{token} is no token: ids go to {last}"))
        })?;
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let bias = bias.ok_or_else(|| fields.wrong("logit_bias", format_args!("of token {id}: use -100 to 100")))?;
        Ok((id, if bias == -100.0 { f32::NEG_INFINITY } else { bias as f32 }))
    };
    map.iter().map(bias).collect()
}
