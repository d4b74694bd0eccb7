//! Reading structs from objects only.
//!
//! A derived `Deserialize` takes a sequence for a struct, member by member in the order in which they are declared, and
//! fills up what is missing with defaults. Nobody means that who writes `[]` where an object belongs.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Unexpected, VariantAccess,
    Visitor,
};

/// What an object is called in errors.
pub const OBJECT: &str = "an object";
/// What an array is called in errors.
pub const ARRAY: &str = "an array";

/// Reads a value as another deserializer does, but refuses a sequence wherever a struct belongs, however deep.
pub fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<T, serde_path_to_error::Error<D::Error>> {
    serde_path_to_error::deserialize(Strict(deserializer))
}

/// The member that is missing, where that is what a message of serde says.
pub fn missing(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.split('`').next()
}

/// Says what serde says in the words of JSON, which need no knowledge of the program's types.
pub fn in_words(message: &str) -> String {
    let split = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    let Some((got, expected)) = split.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    let expected = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number that is not negative",
        "i8" => "a whole number from -128 to 127",
        "i64" => "a whole number",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a map" => OBJECT,
        "a sequence" => ARRAY,
        other => other,
    };
    format!("must be {expected}, not {}", found(got))
}

/// What was there instead.
fn found(got: &str) -> String {
    let number = got.strip_prefix("integer `").or_else(|| got.strip_prefix("floating point `"));
    match (got, number.or_else(|| got.strip_prefix("boolean `"))) {
        (_, Some(value)) => value.trim_end_matches('`').to_owned(),
        ("map", _) => OBJECT.to_owned(),
        ("sequence", _) => ARRAY.to_owned(),
        ("unit value", _) => "null".to_owned(),
        (text, _) if text.starts_with("string ") => format!("the {text}"),
        (other, _) => other.to_owned(),
    }
}

/// Hands everything on to what it wraps, and wraps whatever lies inside.
struct Strict<T>(T);

/// A visitor that is shown the value of a [`Strict`] deserializer.
struct Shown<V> {
    visitor: V,
    /// Whether it makes a struct of it.
    is_struct: bool,
}

fn shown<V>(visitor: V) -> Shown<V> {
    Shown { visitor, is_struct: false }
}

macro_rules! forward {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(shown(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    forward! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_bytes
        deserialize_byte_buf deserialize_option deserialize_unit deserialize_seq deserialize_map
        deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, shown(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, shown(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(len, shown(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, len, shown(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Shown { visitor, is_struct: true })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, shown(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

/// Values that are no object either; where one belongs, the visitor's own words would name a type.
macro_rules! show {
    ($($method:ident($value:ident: $type:ty) $unexpected:expr;)*) => {
        $(fn $method<E: Error>(self, $value: $type) -> Result<V::Value, E> {
            if self.is_struct {
                return Err(E::invalid_type($unexpected, &OBJECT));
            }
            self.visitor.$method($value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Shown<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_struct { f.write_str(OBJECT) } else { self.visitor.expecting(f) }
    }

    show! {
        visit_bool(value: bool) Unexpected::Bool(value);
        visit_i8(value: i8) Unexpected::Signed(value.into());
        visit_i16(value: i16) Unexpected::Signed(value.into());
        visit_i32(value: i32) Unexpected::Signed(value.into());
        visit_i64(value: i64) Unexpected::Signed(value);
        visit_i128(value: i128) Unexpected::Other("integer");
        visit_u8(value: u8) Unexpected::Unsigned(value.into());
        visit_u16(value: u16) Unexpected::Unsigned(value.into());
        visit_u32(value: u32) Unexpected::Unsigned(value.into());
        visit_u64(value: u64) Unexpected::Unsigned(value);
        visit_u128(value: u128) Unexpected::Other("integer");
        visit_f32(value: f32) Unexpected::Float(value.into());
        visit_f64(value: f64) Unexpected::Float(value);
        visit_char(value: char) Unexpected::Char(value);
        visit_str(value: &str) Unexpected::Str(value);
        visit_borrowed_str(value: &'de str) Unexpected::Str(value);
        visit_string(value: String) Unexpected::Str(&value);
        visit_bytes(value: &[u8]) Unexpected::Bytes(value);
        visit_borrowed_bytes(value: &'de [u8]) Unexpected::Bytes(value);
        visit_byte_buf(value: Vec<u8>) Unexpected::Bytes(&value);
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        if self.is_struct {
            return Err(E::invalid_type(Unexpected::Unit, &OBJECT));
        }
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Strict(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Strict(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        if self.is_struct {
            return Err(A::Error::invalid_type(Unexpected::Seq, &OBJECT));
        }
        self.visitor.visit_seq(Strict(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Strict(members))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Strict(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(Strict(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        self.0.variant_seed(Strict(seed)).map(|(name, variant)| (name, Strict(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Strict(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, shown(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Shown { visitor, is_struct: true })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default)]
    struct Inner {
        a: u32,
        b: Vec<u32>,
    }

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default)]
    struct Outer {
        inner: Inner,
        maybe: Option<Inner>,
        many: Vec<Inner>,
        named: std::collections::BTreeMap<String, Inner>,
        pair: (u32, u32),
    }

    fn read(value: Value) -> Result<Outer, String> {
        deserialize(&value).map_err(|error| format!("{}: {}", error.path(), error.inner()))
    }

    #[test]
    fn a_sequence_is_no_struct_wherever_it_stands() {
        for (value, place) in [
            (json!([]), "."),
            (json!({"inner": []}), "inner"),
            (json!({"inner": [1, [2]]}), "inner"),
            (json!({"maybe": []}), "maybe"),
            (json!({"many": [{}, [1]]}), "many[1]"),
            (json!({"named": {"x": [1]}}), "named.x"),
        ] {
            assert_eq!(read(value), Err(format!("{place}: invalid type: sequence, expected an object")));
        }
    }

    #[test]
    fn errors_are_said_in_the_words_of_json() {
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "only read")]
        struct Every {
            u8: u8,
            u32: u32,
            u64: u64,
            i8: i8,
            f64: f64,
            bool: bool,
            text: String,
            list: Vec<u8>,
            object: Inner,
            map: std::collections::BTreeMap<String, u8>,
        }
        let values =
            [json!(null), json!(true), json!(-129), json!(1.5), json!("a `b`, expected u8"), json!([]), json!({})];
        let members = ["u8", "u32", "u64", "i8", "f64", "bool", "text", "list", "object", "map"];
        let good = json!({"u8": 1, "u32": 1, "u64": 1, "i8": 1, "f64": 1.0, "bool": true, "text": "", "list": [],
            "object": {}, "map": {}});
        let mut refused = 0;
        for (member, value) in members.into_iter().flat_map(|member| values.iter().map(move |value| (member, value))) {
            let mut every = good.clone();
            every[member] = value.clone();
            let Err(error) = deserialize::<_, Every>(&every) else { continue };
            refused += 1;
            let said = in_words(&error.inner().to_string());
            let (expected, got) = said.strip_prefix("must be ").unwrap().split_once(", not ").unwrap();
            let words = ["a whole number", "a number", "true or false", "a string", OBJECT, ARRAY];
            assert!(words.iter().any(|words| expected.starts_with(words)), "{member} {value}: {said}");
            let shown = match value {
                Value::Array(_) => ARRAY.to_owned(),
                Value::Object(_) => OBJECT.to_owned(),
                Value::String(_) => format!("the string {value}"),
                value => value.to_string(),
            };
            assert_eq!(got, shown, "{member} {value}: {said}");
        }
        assert!(refused > 50, "{refused}");
        assert_eq!(in_words("anything else"), "anything else");
    }

    #[test]
    fn everything_else_is_read_as_before() {
        let inner = |a, b: &[u32]| Inner { a, b: b.to_vec() };
        let value = json!({"inner": {"a": 1, "b": [2]}, "maybe": {"a": 3}, "many": [{"a": 4}], "named": {"x": {}},
            "pair": [5, 6]});
        let expected = Outer {
            inner: inner(1, &[2]),
            maybe: Some(inner(3, &[])),
            many: vec![inner(4, &[])],
            named: [("x".to_owned(), inner(0, &[]))].into(),
            pair: (5, 6),
        };
        assert_eq!(read(value), Ok(expected));
        assert_eq!(read(json!({"maybe": null})), Ok(Outer::default()));
        assert_eq!(read(json!({"maybe": 7})), Err("maybe: invalid type: integer `7`, expected an object".to_owned()));
    }
}
