//! Template values printed as Python prints them, since chat templates are written for Jinja under Python.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Deeper values are refused: the printers are recursive.
const MAX_DEPTH: usize = 100;

/// Longer texts are refused: a list that holds another twice, and so on, is small and prints without end.
const MAX_LEN: usize = 16 << 20;

/// The options of Python's `json.dumps`.
#[derive(Clone)]
pub(super) struct Json {
    /// Writes every character beyond ASCII as `\uXXXX`.
    pub(super) ensure_ascii: bool,
    /// What one level is indented by; with it every item has a line of its own.
    pub(super) indent: Option<String>,
    /// What separates items, and a key from its value.
    pub(super) separators: (String, String),
    pub(super) sort_keys: bool,
}

impl Default for Json {
    fn default() -> Self {
        Json { ensure_ascii: false, indent: None, separators: (", ".into(), ": ".into()), sort_keys: false }
    }
}

impl Json {
    /// `value` as `json.dumps` writes it.
    pub(super) fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.value(&mut out, value, 0)?;
        Ok(out)
    }

    fn value(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        check_size(out, depth)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => number(out, value, ["NaN", "Infinity", "-Infinity"])?,
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.block(out, ['[', ']'], &items, depth, |out, item| self.value(out, item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.block(out, ['{', '}'], &keys, depth, |out, key| {
                    match key.as_str() {
                        Some(text) => self.string(out, text),
                        None => {
                            let mut text = String::new();
                            self.value(&mut text, key, depth + 1)?;
                            self.string(out, &text);
                        }
                    }
                    out.push_str(&self.separators.1);
                    self.value(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: {kind} is not JSON serializable"),
                ));
            }
        }
        Ok(())
    }

    fn block(
        &self,
        out: &mut String,
        brackets: [char; 2],
        items: &[Value],
        depth: usize,
        mut each: impl FnMut(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(brackets[0]);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.separators.0);
            }
            line(out, depth + 1);
            each(out, item)?;
        }
        if !items.is_empty() {
            line(out, depth);
        }
        out.push(brackets[1]);
        Ok(())
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ensure_ascii && (!c.is_ascii() || c == '\u{7f}')) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// `value` as Python's `str` prints it, which is what `{{ value }}` writes.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => Ok(text.to_owned()),
        (ValueKind::Undefined, _) => Ok(String::new()),
        _ => {
            let mut out = String::new();
            repr(&mut out, value, 0)?;
            Ok(out)
        }
    }
}

fn repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_size(out, depth)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(out, value, ["nan", "inf", "-inf"])?,
        ValueKind::String => repr_text(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, &item, depth + 1)?;
            }
            out.push_str(if tuple && value.len() == Some(1) { "," } else { "" });
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, &key, depth + 1)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// A string literal: single quotes unless the text holds only the other kind.
fn repr_text(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// A number; `special` is what NaN and the two infinities are called.
fn number(out: &mut String, value: &Value, special: [&str; 3]) -> Result<(), Error> {
    if value.is_integer() {
        out.push_str(&value.to_string());
        return Ok(());
    }
    let x = f64::try_from(value.clone())?;
    if !x.is_finite() {
        out.push_str(special[if x.is_nan() { 0 } else { 1 + usize::from(x < 0.0) }]);
        return Ok(());
    }
    // Rust and Python both print the shortest digits and agree where the exponent form begins; Python's exponent has a
    // sign and two digits.
    let text = format!("{x:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
            let _ = write!(out, "{digits}e{sign}{exponent:0>2}");
        }
        None => out.push_str(&text),
    }
    Ok(())
}

fn check_size(out: &str, depth: usize) -> Result<(), Error> {
    let problem = match (depth > MAX_DEPTH, out.len() > MAX_LEN) {
        (false, false) => return Ok(()),
        (true, _) => format!("a value is nested deeper than {MAX_DEPTH} levels"),
        (false, true) => format!("a value prints as more than {MAX_LEN} bytes"),
    };
    Err(Error::new(ErrorKind::InvalidOperation, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats() {
        // What Python's repr prints.
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (123456789012345.0, "123456789012345.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (x, printed) in cases {
            assert_eq!(str(&Value::from(x)).unwrap(), printed);
        }
        assert_eq!(Json::default().dumps(&Value::from(f64::INFINITY)).unwrap(), "Infinity");
    }

    #[test]
    fn strings_are_quoted_as_python_does() {
        let list = Value::from(vec!["it's", "a \"b\"", "'\"", "é\n\u{1}"]);
        assert_eq!(str(&list).unwrap(), r#"["it's", 'a "b"', '\'"', 'é\n\x01']"#);
    }

    #[test]
    fn json_escapes() {
        let text = Value::from("<&'\" \\ é 😀\u{1}\t");
        let mut json = Json::default();
        assert_eq!(json.dumps(&text).unwrap(), "\"<&'\\\" \\\\ é 😀\\u0001\\t\"");
        json.ensure_ascii = true;
        assert_eq!(json.dumps(&text).unwrap(), "\"<&'\\\" \\\\ \\u00e9 \\ud83d\\ude00\\u0001\\t\"");
    }

    #[test]
    fn deep_values_are_refused() {
        let mut value = Value::from(1);
        for _ in 0..MAX_DEPTH + 1 {
            value = Value::from(vec![value]);
        }
        assert!(Json::default().dumps(&value).unwrap_err().to_string().contains("deeper than 100"));
        assert!(str(&value).is_err());
    }

    #[test]
    fn values_that_print_without_end_are_refused() {
        let mut value = Value::from("x");
        for _ in 0..60 {
            value = Value::from(vec![value.clone(), value]);
        }
        assert!(Json::default().dumps(&value).unwrap_err().to_string().contains("prints as more than"));
        assert!(str(&value).unwrap_err().to_string().contains("prints as more than"));
    }
}
