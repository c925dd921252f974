//! Conversations: from a request's messages to a prompt.

use serde_json::{Map, Value, json};

use super::error::{ApiError, ApiResult};
use super::fields::{Fields, brief};
use super::request::Model;
use super::tools::{Tools, written_call};
use crate::tokens::Special;

/// The messages of a conversation, checked: each an object with `role`, a text as `content`, and what a template may
/// ask for beside them.
#[derive(Debug, PartialEq)]
pub struct Conversation {
    messages: Vec<Value>,
}

impl Conversation {
    /// Reads `messages`.
    ///
    /// # Errors
    /// There are none, or one is malformed.
    pub fn read(fields: &Fields) -> ApiResult<Self> {
        let list = fields.required("messages", fields.list("messages")?)?;
        if list.is_empty() {
            return Err(fields.wrong("messages", "is empty"));
        }
        let messages = list.iter().enumerate().map(|(place, message)| {
            let path = format!("messages[{place}]");
            let map = message.as_object().ok_or_else(|| ApiError::invalid(&path, "is no object"))?;
            read_message(&Fields::within(map, &format!("{path}.")))
        });
        Ok(Conversation { messages: messages.collect::<ApiResult<_>>()? })
    }

    /// The prompt's tokens: by the model's template, or without one as a text to go on with.
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub fn tokens(
        mut self,
        model: &Model,
        tools: Option<&Tools>,
        extra: Option<&Map<String, Value>>,
    ) -> ApiResult<Vec<u32>> {
        if !model.dialect.is_native() {
            self.spell_out(tools);
        }
        let wrong = |error: crate::Error| ApiError::invalid("messages", error);
        let Some(template) = &model.chat else {
            // The words of people, in which special tokens mean nothing.
            let special = Special { add: true, parse: false };
            return model.tokenizer.encode(&self.plain(), special).map_err(wrong);
        };
        let mut extra = extra.cloned().unwrap_or_default();
        // These are not for a request to say.
        ["messages", "add_generation_prompt", "tools", "bos_token", "eos_token"].iter().for_each(|name| {
            extra.remove(*name);
        });
        if let Some(tools) = tools.filter(|_| model.dialect.is_native()) {
            extra.insert("tools".into(), tools.json.clone());
        }
        let text = template.render_json(&self.messages, true, Some(&extra)).map_err(wrong)?;
        model.tokenizer.encode(&text, Special::TEMPLATE).map_err(wrong)
    }

    /// Says in words what a template that knows nothing of tools can't.
    fn spell_out(&mut self, tools: Option<&Tools>) {
        for message in &mut self.messages {
            let Some(map) = message.as_object_mut() else { continue };
            let mut text = map["content"].as_str().unwrap_or_default().to_owned();
            if let Some(Value::Array(calls)) = map.remove("tool_calls") {
                for call in calls {
                    let function = &call["function"];
                    let line = written_call(function["name"].as_str().unwrap_or_default(), &function["arguments"]);
                    text = if text.is_empty() { line } else { format!("{text}\n{line}") };
                }
            }
            if map["role"] == "tool" {
                map["role"] = "user".into();
                text = format!("<tool_response>\n{text}\n</tool_response>");
            }
            map["content"] = text.into();
        }
        let Some(tools) = tools else { return };
        let instructions = tools.instructions();
        match self.messages.first_mut() {
            Some(first) if first["role"] == "system" => {
                let system = first["content"].as_str().unwrap_or_default();
                first["content"] = format!("{system}\n\n{instructions}").into();
            }
            _ => self.messages.insert(0, json!({"role": "system", "content": instructions})),
        }
    }

    /// For a model without a template: what was said, one message after another, to be continued.
    fn plain(&self) -> String {
        let texts = self.messages.iter().map(|message| message["content"].as_str().unwrap_or_default());
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
    }
}

fn read_message(fields: &Fields) -> ApiResult<Value> {
    let role = match fields.required("role", fields.text("role")?)? {
        "developer" => "system",
        "function" => "tool",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        other => {
            let known = "use system, developer, user, assistant or tool";
            return Err(fields.wrong("role", format_args!("{} is not known: {known}", brief(&other.into()))));
        }
    };
    let calls = tool_calls(fields)?;
    let content = match content(fields)? {
        Some(content) => content,
        None if role == "assistant" && !calls.is_empty() => String::new(),
        None => return Err(fields.wrong("content", "is missing")),
    };
    let mut message = json!({"role": role, "content": content});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    for name in ["name", "tool_call_id"] {
        if let Some(text) = fields.text(name)? {
            message[name] = text.into();
        }
    }
    Ok(message)
}

/// A text, or the texts of parts.
fn content(fields: &Fields) -> ApiResult<Option<String>> {
    match fields.get("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for (place, part) in parts.iter().enumerate() {
                let (Some("text"), Some(part)) = (part["type"].as_str(), part["text"].as_str()) else {
                    let message = "is no text part: this model reads text alone";
                    return Err(fields.wrong(&format!("content[{place}]"), message));
                };
                text += part;
            }
            Ok(Some(text))
        }
        Some(other) => Err(fields.wrong("content", format_args!("{} is no text", brief(other)))),
    }
}

/// An assistant's calls, their arguments as the objects that templates expect.
fn tool_calls(fields: &Fields) -> ApiResult<Vec<Value>> {
    let list = fields.list("tool_calls")?.unwrap_or_default();
    let call = |(place, call): (usize, &Value)| {
        let function = &call["function"];
        let Some(name) = function["name"].as_str() else {
            return Err(fields.wrong(&format!("tool_calls[{place}].function.name"), "is missing"));
        };
        let arguments = match &function["arguments"] {
            Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
            Value::Null => json!({}),
            other => other.clone(),
        };
        Ok(json!({"id": call["id"], "type": "function", "function": {"name": name, "arguments": arguments}}))
    };
    list.iter().enumerate().map(call).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: Value) -> ApiResult<Conversation> {
        let body = json!({ "messages": messages });
        Conversation::read(&Fields::new(body.as_object().unwrap()))
    }

    #[test]
    fn messages_of_all_kinds_are_read() {
        let conversation = read(json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "warm?"}], "name": "Ann"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Ulm\"}"}}
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "9"}
        ]));
        let conversation = conversation.unwrap();
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "How warm?", "name": "Ann"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
            ]},
            {"role": "tool", "content": "9", "tool_call_id": "c1"}
        ]);
        assert_eq!(Value::from(conversation.messages), expected);
    }

    #[test]
    fn what_is_wrong_with_a_message_is_named() {
        for (messages, param) in [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!(["hi"]), "messages[0]"),
            (json!([{"content": "hi"}]), "messages[0].role"),
            (json!([{"role": "user", "content": "a"}, {"role": "wolf", "content": "b"}]), "messages[1].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 3}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0]"),
            (json!([{"role": "assistant", "tool_calls": [{}]}]), "messages[0].tool_calls[0].function.name"),
        ] {
            assert_eq!(read(messages).unwrap_err().json()["error"]["param"], param);
        }
    }

    #[test]
    fn calls_are_spelt_out_where_the_template_knows_none() {
        let mut conversation = read(json!([
            {"role": "user", "content": "Warm?"},
            {"role": "assistant", "content": "Well.", "tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]},
            {"role": "tool", "content": "9"}
        ]))
        .unwrap();
        conversation.spell_out(None);
        assert_eq!(
            conversation.plain(),
            "Warm?\nWell.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>\n\
             <tool_response>\n9\n</tool_response>"
        );
        assert_eq!(conversation.messages[2]["role"], "user");
    }
}
