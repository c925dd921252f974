//! Checked reading of a request's JSON. Fields that nobody asks for are passed over; null is as good as absent.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::{ApiError, ApiResult};

/// The fields of an object, and how the object is called in errors.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Empty, or what stands before a field's name: `messages[0].`.
    prefix: &'a str,
}

impl<'a> Fields<'a> {
    /// The fields of a body.
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Fields { map, prefix: "" }
    }

    /// The fields of an object inside of it, whose name ends with a dot.
    pub fn within(map: &'a Map<String, Value>, prefix: &'a str) -> Self {
        Fields { map, prefix }
    }

    /// The name of a field in errors.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// An error about a field.
    pub fn wrong(&self, name: &str, message: impl Display) -> ApiError {
        ApiError::invalid(self.path(name), message)
    }

    /// A field that is there.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn typed<T>(&self, name: &str, kind: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> ApiResult<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, format_args!("{} is no {kind}", brief(value))))
    }

    /// A number in a range.
    pub fn number(&self, name: &str, range: RangeInclusive<f64>) -> ApiResult<Option<f32>> {
        let number = self.typed(name, "number", Value::as_f64)?;
        match number {
            Some(number) if !range.contains(&number) => {
                let (low, high) = (range.start(), range.end());
                Err(self.wrong(name, format_args!("{number} is out of range: use a number from {low} to {high}")))
            }
            _ => Ok(number.map(|number| number as f32)),
        }
    }

    /// A count in a range.
    pub fn count(&self, name: &str, range: RangeInclusive<u64>) -> ApiResult<Option<usize>> {
        let count = self
            .typed(name, "whole number", |value| value.as_i64().map(i128::from).or(value.as_u64().map(i128::from)))?;
        let Some(count) = count else { return Ok(None) };
        let fits = u64::try_from(count).ok().filter(|count| range.contains(count));
        match fits {
            Some(count) => Ok(Some(usize::try_from(count).unwrap_or(usize::MAX))),
            None => {
                let (low, high) = (range.start(), range.end());
                Err(self.wrong(name, format_args!("{count} is out of range: use a count from {low} to {high}")))
            }
        }
    }

    /// Any whole number of 64 bits, signed or not.
    pub fn integer(&self, name: &str) -> ApiResult<Option<u64>> {
        self.typed(name, "whole number", |value| value.as_u64().or(value.as_i64().map(i64::cast_unsigned)))
    }

    /// True or false.
    pub fn flag(&self, name: &str) -> ApiResult<Option<bool>> {
        self.typed(name, "boolean", Value::as_bool)
    }

    /// A text.
    pub fn text(&self, name: &str) -> ApiResult<Option<&'a str>> {
        self.typed(name, "string", Value::as_str)
    }

    /// A list.
    pub fn list(&self, name: &str) -> ApiResult<Option<&'a [Value]>> {
        self.typed(name, "array", |value| value.as_array().map(Vec::as_slice))
    }

    /// An object.
    pub fn object(&self, name: &str) -> ApiResult<Option<&'a Map<String, Value>>> {
        self.typed(name, "object", Value::as_object)
    }

    /// A field that must be there.
    pub fn required<T>(&self, name: &str, value: Option<T>) -> ApiResult<T> {
        value.ok_or_else(|| self.wrong(name, "is missing"))
    }
}

/// A value, cut short: it stands in an error's line.
pub fn brief(value: &Value) -> String {
    const LENGTH: usize = 40;
    let text = match value {
        Value::Array(_) => return "an array".into(),
        Value::Object(_) => return "an object".into(),
        other => other.to_string(),
    };
    match text.char_indices().nth(LENGTH) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(error: ApiError) -> String {
        error.json()["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn fields_are_read_by_type_and_range() {
        let value = json!({"a": 1.5, "b": 3, "c": null, "d": true, "e": "x", "f": [1], "g": {"h": 1}, "i": -1,
            "j": 18446744073709551615u64});
        let fields = Fields::new(value.as_object().unwrap());
        assert_eq!(fields.number("a", 0.0..=2.0), Ok(Some(1.5)));
        assert_eq!(fields.number("b", 0.0..=3.0), Ok(Some(3.0)));
        assert_eq!(fields.number("c", 0.0..=2.0), Ok(None));
        assert_eq!(fields.number("missing", 0.0..=2.0), Ok(None));
        assert_eq!(fields.count("b", 1..=3), Ok(Some(3)));
        assert_eq!(fields.flag("d"), Ok(Some(true)));
        assert_eq!(fields.text("e"), Ok(Some("x")));
        assert_eq!(fields.list("f").unwrap().unwrap().len(), 1);
        assert_eq!(fields.object("g").unwrap().unwrap().len(), 1);
        assert_eq!(fields.integer("i"), Ok(Some(u64::MAX)));
        assert_eq!(fields.integer("j"), Ok(Some(u64::MAX)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let value = json!({"a": 2.5, "b": "x".repeat(100), "c": -1, "d": 1.5, "e": u64::MAX, "f": {}});
        let fields = Fields::within(value.as_object().unwrap(), "outer[0].");
        assert_eq!(
            message(fields.number("a", 0.0..=2.0).unwrap_err()),
            "outer[0].a: 2.5 is out of range: use a number from 0 to 2"
        );
        assert!(message(fields.count("b", 0..=1).unwrap_err()).ends_with("x… is no whole number"));
        assert!(message(fields.count("c", 0..=1).unwrap_err()).contains("-1 is out of range"));
        assert!(message(fields.count("d", 0..=1).unwrap_err()).contains("1.5 is no whole number"));
        assert!(message(fields.count("e", 0..=1).unwrap_err()).contains("18446744073709551615 is out of range"));
        assert_eq!(message(fields.list("f").unwrap_err()), "outer[0].f: an object is no array");
        assert_eq!(fields.flag("a").unwrap_err().json()["error"]["param"], "outer[0].a");
        assert_eq!(message(fields.required::<()>("z", None).unwrap_err()), "outer[0].z: is missing");
    }
}
