//! JSON objects whose keys may not repeat. A map type would let the last of two equal keys win in silence; here a
//! repeated key is an error that names it, and so is a value of the wrong kind.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::quoted;

/// Calls `each` with every key of an object; `each` reads the value.
///
/// # Errors
/// A key appears twice, or what `each` answers.
pub(super) fn for_each_key<'de, A: MapAccess<'de>>(
    map: &mut A,
    mut each: impl FnMut(String, &mut A) -> Result<(), A::Error>,
) -> Result<(), A::Error> {
    let mut seen = HashSet::new();
    while let Some(key) = map.next_key::<String>()? {
        if !seen.insert(key.clone()) {
            return Err(A::Error::custom(format_args!("{} appears twice", quoted(&key))));
        }
        each(key, map)?;
    }
    Ok(())
}

/// Reads a value and puts its key in front of what goes wrong.
pub(super) struct Named<'a, V> {
    key: &'a str,
    value: PhantomData<V>,
}

impl<'a, V> Named<'a, V> {
    /// For the value under `key`.
    pub(super) fn new(key: &'a str) -> Self {
        Self { key, value: PhantomData }
    }
}

impl<'de, V: Deserialize<'de>> DeserializeSeed<'de> for Named<'_, V> {
    type Value = V;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V, D::Error> {
        V::deserialize(deserializer).map_err(|error| D::Error::custom(format_args!("{}: {error}", quoted(self.key))))
    }
}

/// The entries of an object in file order.
#[derive(Debug)]
pub(super) struct Entries<V>(pub(super) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
    type Value = Entries<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        for_each_key(&mut map, |key, map| {
            let value = map.next_value_seed(Named::new(&key))?;
            entries.push((key, value));
            Ok(())
        })?;
        Ok(Entries(entries))
    }
}
