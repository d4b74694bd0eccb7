//! JSON objects, member by member and in order, with each value left as it was written.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use tidegate_core::json::{self, JsonError};
use tidegate_wire::Fault;

use crate::decode::value::Bad;
use crate::rejection::{Rejection, shown};

/// The members of an object, duplicates included.
#[derive(Debug)]
pub(crate) struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// Checks a whole body: JSON, whose strings hold only characters, nested at most `max_depth` deep.
pub(crate) fn document(text: &str, max_depth: usize) -> Result<&str, Rejection> {
    json::check(text, max_depth).map_err(refuse)?;
    Ok(text)
}

/// Checks a body whose items are checked one by one: that it is JSON.
pub(crate) fn list_document(text: &str) -> Result<&str, Rejection> {
    json::check_syntax(text).map_err(refuse)?;
    Ok(text)
}

/// Checks one item of such a body, at `pointer`.
pub(crate) fn check_item(raw: &RawValue, max_depth: usize, pointer: &str) -> Result<(), Rejection> {
    json::check(raw.get(), max_depth).map_err(|mut error| {
        error.pointer.insert_str(0, pointer);
        refuse(error)
    })
}

fn refuse(mut error: JsonError) -> Rejection {
    error.pointer = shown(&error.pointer).into_owned();
    match error.fault {
        json::Fault::Syntax => {
            Rejection::fault(Fault::InvalidJson, format!("the body is not JSON (at byte {})", error.offset))
        }
        _ => Rejection::fault(Fault::InvalidValue, error.to_string()).at_pointer(error.pointer),
    }
}

impl<'a> Members<'a> {
    /// The members of the object at `pointer`, from its text.
    pub(crate) fn of(text: &'a str, pointer: &str) -> Result<Self, Rejection> {
        Self::read(text).map_err(|bad| bad.at(pointer.to_owned()))
    }

    /// The members of an object.
    pub(crate) fn parse(raw: &'a RawValue) -> Result<Self, Bad> {
        Self::read(raw.get())
    }

    fn read(text: &'a str) -> Result<Self, Bad> {
        serde_json::from_str(text).map_err(|_| Bad::value("must be an object"))
    }

    /// Member by member, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), *value))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The items of an array.
pub(crate) fn array(text: &str) -> Result<Vec<&RawValue>, Bad> {
    serde_json::from_str(text).map_err(|_| Bad::value("must be an array"))
}

/// The pointer to a member of the object at `base`.
pub(crate) fn pointer_to(base: &str, name: &str) -> String {
    let mut pointer = base.to_owned();
    json::push_pointer(&mut pointer, name);
    pointer
}

/// A member that is not known.
pub(crate) fn unknown(base: &str, name: &str) -> Rejection {
    let pointer = pointer_to(base, name);
    Rejection::fault(Fault::UnknownField, format!("{} is not known", shown(&pointer))).at_pointer(pointer)
}

/// A member that is there twice.
pub(crate) fn duplicate(base: &str, name: &str) -> Rejection {
    let pointer = pointer_to(base, name);
    Rejection::fault(Fault::DuplicateField, format!("{} is there twice", shown(&pointer))).at_pointer(pointer)
}

/// A required member that is missing.
pub(crate) fn missing(base: &str, name: &str) -> Rejection {
    let pointer = pointer_to(base, name);
    Rejection::fault(Fault::MissingField, format!("{} is missing", shown(&pointer))).at_pointer(pointer)
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::with_capacity(8);
                while let Some((Name(name), value)) = map.next_entry()? {
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// A member's name, borrowed where it is written without escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order_their_text_and_their_duplicates() {
        let raw: &RawValue = serde_json::from_str("{\"b\":1.50, \"\\u0061\" : [ 1,2 ],\"b\":null}").unwrap();
        let members = Members::parse(raw).unwrap();
        let seen: Vec<_> = members.iter().map(|(name, value)| (name.to_owned(), value.get())).collect();
        assert_eq!(seen, [("b".to_owned(), "1.50"), ("a".to_owned(), "[ 1,2 ]"), ("b".to_owned(), "null")]);
        assert_eq!(members.len(), 3);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["[]", "1", "\"x\"", "null", "true"] {
            assert!(Members::parse(serde_json::from_str(text).unwrap()).is_err(), "{text}");
        }
    }
}
