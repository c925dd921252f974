//! Typed access to a JSON object's fields, with errors that name file and field.

use std::fmt::Display;
use std::path::Path;

use serde_json::{Map, Value};

use crate::formats::quoted;
use crate::{Error, Result};

/// A JSON object of a configuration file. `null` counts as absent throughout.
pub(super) struct Fields<'a> {
    file: &'a Path,
    /// The field that holds this object, with a dot; empty at the top.
    prefix: String,
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(file: &'a Path, object: &'a Map<String, Value>) -> Self {
        Self { file, prefix: String::new(), object }
    }

    /// An error about `field`.
    pub(super) fn error(&self, field: &str, problem: impl Display) -> Error {
        Error::file(self.file, format_args!("{}{field}: {problem}", self.prefix))
    }

    /// `value`, which must be there.
    pub(super) fn required<T>(&self, field: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.error(field, "is missing"))
    }

    pub(super) fn value(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    /// The value as `read` sees it, which answers `None` for a wrong type.
    fn typed<T>(&self, field: &str, wanted: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.value(field) {
            None => Ok(None),
            Some(value) => read(value)
                .map(Some)
                .ok_or_else(|| self.error(field, format_args!("{} where {wanted} is needed", brief(value)))),
        }
    }

    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&'a str>> {
        self.typed(field, "a string", Value::as_str)
    }

    pub(super) fn texts(&self, field: &str) -> Result<Option<Vec<&'a str>>> {
        self.typed(field, "a list of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// A finite number.
    pub(super) fn number(&self, field: &str) -> Result<Option<f64>> {
        self.typed(field, "a number", |value| value.as_f64().filter(|number| number.is_finite()))
    }

    /// A whole number, 0 included.
    pub(super) fn count(&self, field: &str) -> Result<Option<u64>> {
        self.typed(field, "a whole number", Value::as_u64)
    }

    /// A whole number from 1 to `most`.
    pub(super) fn optional_size(&self, field: &str, most: usize) -> Result<Option<usize>> {
        let wanted = format!("a whole number from 1 to {most}");
        self.typed(field, &wanted, |value| {
            let size = usize::try_from(value.as_u64()?).ok()?;
            (1..=most).contains(&size).then_some(size)
        })
    }

    pub(super) fn size(&self, field: &str, most: usize) -> Result<usize> {
        self.required(field, self.optional_size(field, most)?)
    }

    pub(super) fn object(&self, field: &str) -> Result<Option<Fields<'a>>> {
        let object = self.typed(field, "an object", Value::as_object)?;
        Ok(object.map(|object| Fields { file: self.file, prefix: format!("{}{field}.", self.prefix), object }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.object.is_empty()
    }
}

/// Names out of the file, quoted, for an error.
pub(super) fn list(names: &[&str]) -> String {
    names.iter().take(4).map(|name| quoted(name)).collect::<Vec<_>>().join(", ")
}

/// A value, short enough for an error line.
pub(super) fn brief(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}
