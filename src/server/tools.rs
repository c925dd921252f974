//! Tools: how a model is told of them, held to them, and how its calls are read.

use serde_json::{Map, Value, json};

use super::error::{ApiError, ApiResult};
use super::fields::Fields;
use super::grammar::{Part, Shape};
use crate::sample::random_seed;
use crate::tokens::ChatTemplate;

/// What stands around a call in the manner of Hermes, which Qwen and others are trained on.
const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

const MOST_TOOLS: usize = 128;
const LONGEST_NAME: usize = 64;

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`; the template lists the tools if `native`, and otherwise the
    /// system message does.
    Hermes {
        /// Whether the template knows of tools.
        native: bool,
    },
    /// The answer is `{"name": …, "parameters": …}` (Llama 3.1 and later).
    Llama3,
}

impl Dialect {
    /// What the model behind a template was trained on.
    pub fn of(template: Option<&ChatTemplate>) -> Self {
        match template {
            Some(template) if template.mentions("tools") && template.mentions(OPEN) => Dialect::Hermes { native: true },
            Some(template) if template.mentions("tools") && template.mentions("\"parameters\"") => Dialect::Llama3,
            _ => Dialect::Hermes { native: false },
        }
    }

    /// Whether the template lists the tools itself.
    pub fn is_native(self) -> bool {
        self != Dialect::Hermes { native: false }
    }

    fn arguments(self) -> &'static str {
        match self {
            Dialect::Hermes { .. } => "arguments",
            Dialect::Llama3 => "parameters",
        }
    }
}

/// Which tool is to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// None.
    None,
    /// The model decides.
    Auto,
    /// Any one.
    Required,
    /// This one.
    Named(String),
}

/// A tool that a request brings.
#[derive(Clone, Debug, PartialEq)]
struct Tool {
    name: String,
    parameters: Value,
}

/// A request's tools.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools {
    dialect: Dialect,
    tools: Vec<Tool>,
    /// Which of them is to be called.
    pub choice: Choice,
    /// As the request has them, for the template.
    pub json: Value,
}

impl Tools {
    /// Reads `tools` and `tool_choice`; `None` where no tool may be called.
    ///
    /// # Errors
    /// They are malformed, or the choice names no tool.
    pub fn read(fields: &Fields, dialect: Dialect) -> ApiResult<Option<Self>> {
        let list = fields.list("tools")?.unwrap_or_default();
        if list.len() > MOST_TOOLS {
            return Err(fields.wrong("tools", format_args!("{} tools: give at most {MOST_TOOLS}", list.len())));
        }
        let tools = list.iter().enumerate().map(|(i, tool)| read_tool(tool, &fields.path(&format!("tools[{i}]"))));
        let tools = tools.collect::<ApiResult<Vec<_>>>()?;
        let choice = read_choice(fields, &tools)?;
        fields.flag("parallel_tool_calls")?;
        if tools.is_empty() || choice == Choice::None {
            return Ok(None);
        }
        Ok(Some(Tools { dialect, tools, choice, json: Value::from(list) }))
    }

    /// Whether the answer must be a call.
    pub fn is_forced(&self) -> bool {
        matches!(self.choice, Choice::Required | Choice::Named(_))
    }

    /// The shape of one call of a tool that may be called.
    pub fn call_shape(&self) -> Vec<Part> {
        let named = |tool: &&Tool| match &self.choice {
            Choice::Named(name) => tool.name == *name,
            _ => true,
        };
        let key = self.dialect.arguments();
        let one = |(place, tool): (usize, &Tool)| {
            let mut parameters = tool.parameters.clone();
            rebase(&mut parameters, &format!("#/anyOf/{place}/properties/{key}"));
            json!({
                "type": "object",
                "properties": {"name": {"const": tool.name}, key: parameters},
                "required": ["name", key],
                "additionalProperties": false
            })
        };
        let any: Vec<_> = self.tools.iter().filter(named).enumerate().map(one).collect();
        let schema = Part::Schema(json!({ "anyOf": any }));
        match self.dialect {
            Dialect::Hermes { .. } => {
                vec![Part::Text(format!("{OPEN}\n")), schema, Part::Text(format!("\n{CLOSE}"))]
            }
            Dialect::Llama3 => vec![schema],
        }
    }

    /// The shape of an answer that must be a call, or may be one rather than what `format` says.
    pub fn shape(&self, format: Option<Shape>) -> Option<Shape> {
        if self.is_forced() {
            return Some(Shape(vec![self.call_shape()]));
        }
        format.map(|Shape(mut alternatives)| {
            alternatives.push(self.call_shape());
            Shape(alternatives)
        })
    }

    /// What a model is told whose template knows nothing of tools.
    pub fn instructions(&self) -> String {
        let mut text = String::from("You may call these functions, each described by a JSON object:\n");
        for tool in self.json.as_array().into_iter().flatten() {
            text += &format!("{}\n", tool["function"]);
        }
        text += "To call one, answer with nothing but its name and arguments in this form:\n";
        text + &written_call("NAME", &json!({"ARGUMENT": "VALUE"}))
    }

    /// Reads the calls out of an answer as it comes.
    pub fn reader(&self) -> CallReader {
        let names = self.tools.iter().map(|tool| tool.name.clone()).collect();
        CallReader { dialect: self.dialect, names, held: String::new(), begun: false, holds: false }
    }
}

fn read_tool(tool: &Value, path: &str) -> ApiResult<Tool> {
    let tool = tool.as_object().ok_or_else(|| ApiError::invalid(path, "is no object"))?;
    let prefix = format!("{path}.");
    let outer = Fields::within(tool, &prefix);
    let kind = outer.text("type")?.unwrap_or("function");
    if kind != "function" {
        return Err(outer.wrong("type", format_args!("{kind:?} is not supported: use \"function\"")));
    }
    let function = outer.required("function", outer.object("function")?)?;
    let prefix = format!("{path}.function.");
    let inner = Fields::within(function, &prefix);
    let name = inner.required("name", inner.text("name")?)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) {
        return Err(inner.wrong("name", format_args!("use 1 to {LONGEST_NAME} letters, digits, _, - or .")));
    }
    let none = || json!({"type": "object", "properties": {}, "additionalProperties": false});
    let parameters = inner.object("parameters")?.map_or_else(none, |map| Value::Object(map.clone()));
    Ok(Tool { name: name.into(), parameters })
}

fn read_choice(fields: &Fields, tools: &[Tool]) -> ApiResult<Choice> {
    let wrong = |message: &str| Err(fields.wrong("tool_choice", message));
    let choice = match fields.get("tool_choice") {
        None => return Ok(if tools.is_empty() { Choice::None } else { Choice::Auto }),
        Some(Value::String(text)) => match text.as_str() {
            "none" => Choice::None,
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            _ => return wrong("use \"none\", \"auto\", \"required\" or an object that names a function"),
        },
        Some(Value::Object(map)) => match map.get("function").and_then(|function| function["name"].as_str()) {
            Some(name) if tools.iter().any(|tool| tool.name == name) => Choice::Named(name.into()),
            Some(_) => return wrong("names none of the tools"),
            None => return wrong("an object must hold `function` with a `name`"),
        },
        Some(_) => return wrong("is neither a string nor an object"),
    };
    if choice == Choice::Required && tools.is_empty() {
        return wrong("\"required\" needs tools");
    }
    Ok(choice)
}

/// Makes references within a schema hold after it was put at `place` of another one.
fn rebase(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(target) if key == "$ref" && target.starts_with('#') => {
                        *target = format!("{place}{}", &target[1..]);
                    }
                    other => rebase(other, place),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rebase(item, place)),
        _ => {}
    }
}

/// A call in the manner of Hermes.
pub fn written_call(name: &str, arguments: &Value) -> String {
    format!("{OPEN}\n{{\"name\": {}, \"arguments\": {arguments}}}\n{CLOSE}", Value::from(name))
}

/// A call that a model made.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Of this call alone.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, as JSON.
    pub arguments: String,
}

impl Call {
    /// As OpenAI's API has it.
    pub fn json(&self) -> Value {
        json!({"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}})
    }
}

/// Parts an answer into text that can be shown at once and calls, which are known at its end.
pub struct CallReader {
    dialect: Dialect,
    names: Vec<String>,
    held: String,
    /// Whether anything but space has come.
    begun: bool,
    /// Whether all that comes is held back, as part of a call.
    holds: bool,
}

impl CallReader {
    /// Takes the next piece and returns what can be shown.
    pub fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if self.holds {
            return String::new();
        }
        match self.dialect {
            Dialect::Hermes { .. } => self.until_tag(),
            Dialect::Llama3 => self.unless_object(),
        }
    }

    /// Releases all before a tag; nothing of what may become one.
    fn until_tag(&mut self) -> String {
        let end = match self.held.find(OPEN) {
            Some(at) => {
                self.holds = true;
                at
            }
            None => {
                let open = |length: &usize| self.held.ends_with(&OPEN[..*length]);
                self.held.len() - (1..OPEN.len()).rev().find(open).unwrap_or(0)
            }
        };
        let kept = self.held.split_off(end);
        std::mem::replace(&mut self.held, kept)
    }

    /// Releases everything, unless it begins as an object does.
    fn unless_object(&mut self) -> String {
        if !self.begun {
            let Some(first) = self.held.trim_start().chars().next() else { return String::new() };
            self.begun = true;
            self.holds = first == '{';
        }
        if self.holds { String::new() } else { std::mem::take(&mut self.held) }
    }

    /// Ends the answer: the rest of its text, and the calls. What is no call of a tool that there is stays text.
    pub fn finish(self) -> (String, Vec<Call>) {
        let (mut text, mut calls) = (String::new(), Vec::new());
        match self.dialect {
            Dialect::Llama3 => match self.call(&self.held) {
                Some(call) => calls.push(call),
                None => text.clone_from(&self.held),
            },
            Dialect::Hermes { .. } => {
                let mut rest = self.held.as_str();
                while let Some(start) = rest.find(OPEN) {
                    let inside = &rest[start + OPEN.len()..];
                    let end = inside.find(CLOSE).unwrap_or(inside.len());
                    let after = (end + CLOSE.len()).min(inside.len());
                    match self.call(&inside[..end]) {
                        Some(call) => {
                            text += rest[..start].trim_end();
                            calls.push(call);
                        }
                        None => text += &rest[..start + OPEN.len() + after],
                    }
                    rest = &inside[after..];
                }
                text += if calls.is_empty() { rest } else { rest.trim() };
            }
        }
        (text, calls)
    }

    fn call(&self, text: &str) -> Option<Call> {
        let Value::Object(mut call) = serde_json::from_str(text.trim()).ok()? else { return None };
        let name = call.get("name")?.as_str()?.to_owned();
        // Models mix the two names up.
        let arguments = call.remove(self.dialect.arguments()).or_else(|| {
            let other = if self.dialect == Dialect::Llama3 { "arguments" } else { "parameters" };
            call.remove(other)
        });
        let arguments = arguments.unwrap_or_else(|| Value::Object(Map::new()));
        let arguments = arguments.is_object().then(|| arguments.to_string())?;
        self.names.contains(&name).then(|| Call { id: format!("call_{:016x}", random_seed()), name, arguments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(choice: Value) -> ApiResult<Option<Tools>> {
        let body = json!({
            "tools": [
                {"type": "function", "function": {"name": "weather", "parameters": {
                    "type": "object",
                    "properties": {"city": {"$ref": "#/$defs/city"}},
                    "$defs": {"city": {"type": "string"}}
                }}},
                {"type": "function", "function": {"name": "now"}}
            ],
            "tool_choice": choice
        });
        Tools::read(&Fields::new(body.as_object().unwrap()), Dialect::Hermes { native: true })
    }

    fn read(dialect: Dialect, pieces: &[&str]) -> (String, Vec<(String, String)>, String) {
        let mut tools = tools(json!("auto")).unwrap().unwrap();
        tools.dialect = dialect;
        let mut reader = tools.reader();
        let shown: String = pieces.iter().map(|piece| reader.push(piece)).collect();
        let (rest, calls) = reader.finish();
        (shown, calls.into_iter().map(|call| (call.name, call.arguments)).collect(), rest)
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.into(), arguments.into())
    }

    const HERMES: Dialect = Dialect::Hermes { native: true };

    #[test]
    fn hermes_calls_are_read_whatever_the_pieces() {
        let text = "Let me see. <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>\n\
                    <tool_call>{\"name\": \"now\"}</tool_call>";
        let expected = vec![call("weather", "{\"city\":\"Ulm\"}"), call("now", "{}")];
        for size in 1..text.len() {
            let pieces: Vec<_> =
                text.as_bytes().chunks(size).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
            let (shown, calls, rest) = read(HERMES, &pieces);
            assert_eq!((shown.as_str(), &calls, rest.as_str()), ("Let me see. ", &expected, ""), "{size}");
        }
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for text in [
            "<tool_call>{\"name\": \"fly\", \"arguments\": {}}</tool_call> indeed",
            "<tool_call>{\"name\": \"now\", \"arguments\": 3}</tool_call>",
            "<tool_call>{\"name\": \"now\"",
            "a <tool_ca",
            "2 < 3",
            "<tool_call>",
        ] {
            let (shown, calls, rest) = read(HERMES, &[text]);
            assert_eq!((shown + &rest, calls), (text.to_owned(), vec![]));
        }
        let (shown, ..) = read(HERMES, &["a < b <", "tool", " c"]);
        assert_eq!(shown, "a < b <tool c");
    }

    #[test]
    fn a_call_may_end_with_the_text() {
        let (_, calls, rest) = read(HERMES, &["<tool_call>{\"name\": \"now\", \"arguments\": {}}"]);
        assert_eq!((calls, rest.as_str()), (vec![call("now", "{}")], ""));
    }

    #[test]
    fn llama_calls_are_the_whole_answer() {
        let (shown, calls, rest) = read(Dialect::Llama3, &[" ", "{\"name\": \"now\",", " \"parameters\": {\"a\": 1}}"]);
        assert_eq!((shown.as_str(), calls, rest.as_str()), ("", vec![call("now", "{\"a\":1}")], ""));
        assert_eq!(read(Dialect::Llama3, &["It is ", "{now}."]).0, "It is {now}.");
        let (shown, calls, rest) = read(Dialect::Llama3, &["{\"now\": 1}"]);
        assert_eq!((shown.as_str(), calls, rest.as_str()), ("", vec![], "{\"now\": 1}"));
    }

    #[test]
    fn choices_are_checked() {
        assert_eq!(tools(Value::Null).unwrap().unwrap().choice, Choice::Auto);
        assert_eq!(tools(json!("none")).unwrap(), None);
        assert!(tools(json!("required")).unwrap().unwrap().is_forced());
        let named = tools(json!({"type": "function", "function": {"name": "now"}})).unwrap().unwrap();
        assert_eq!(named.choice, Choice::Named("now".into()));
        for bad in [json!("maybe"), json!(1), json!({}), json!({"function": {"name": "fly"}})] {
            assert_eq!(tools(bad).unwrap_err().json()["error"]["param"], "tool_choice");
        }
        for (bad, param) in [
            (json!([1]), "tools[0]"),
            (json!([{"type": "magic"}]), "tools[0].type"),
            (json!([{"type": "function"}]), "tools[0].function"),
            (json!([{"function": {"name": "a b"}}]), "tools[0].function.name"),
            (json!([{"function": {"name": "a", "parameters": []}}]), "tools[0].function.parameters"),
        ] {
            let body = json!({ "tools": bad });
            let error = Tools::read(&Fields::new(body.as_object().unwrap()), HERMES).unwrap_err();
            assert_eq!(error.json()["error"]["param"], param);
        }
    }

    #[test]
    fn references_hold_inside_of_a_call() {
        let shape = tools(json!("required")).unwrap().unwrap().call_shape();
        let Part::Schema(schema) = &shape[1] else { panic!("{shape:?}") };
        let reference = schema["anyOf"][0]["properties"]["arguments"]["properties"]["city"]["$ref"].as_str().unwrap();
        assert_eq!(reference, "#/anyOf/0/properties/arguments/$defs/city");
        assert!(schema.pointer(&reference[1..]).is_some());
    }
}
