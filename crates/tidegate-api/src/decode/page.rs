//! Pages of listings: how many, and from where on.

use std::fmt::Display;

use http::Uri;
use tidegate_core::TenantId;
use tidegate_wire::{DEFAULT_PAGE, MAX_PAGE};
use uuid::Uuid;
use uuid::fmt::Simple;

use crate::decode::query::{parameters, unknown};
use crate::decode::value::Bad;
use crate::rejection::Rejection;

/// What every cursor starts with. Its form is ours to change, so it names a version; and what a caller made up is told
/// from what was given, also where the cursor is a name and almost anything could be one.
const VERSION: &str = "1.";

/// The cursor after (or before) what has this key.
pub(crate) fn cursor(key: impl Display) -> String {
    format!("{VERSION}{key}")
}

/// The cursor of what has this id.
pub(crate) fn id_cursor(id: Uuid) -> String {
    cursor(id.simple())
}

/// The key in a cursor, if it is one and reads as that sort of key.
fn read<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, Bad> {
    let key = text.strip_prefix(VERSION).and_then(parse);
    key.ok_or_else(|| Bad::value("must be a next_cursor as it was given"))
}

/// The id in a cursor.
pub(super) fn read_id(text: &str) -> Result<Uuid, Bad> {
    // The parser is laxer than the printer: as it was given is as we print it.
    read(text, |key| key.parse().ok().map(Simple::into_uuid).filter(|id| id.simple().to_string() == key))
}

/// A page of names: how many, and after which.
pub(crate) fn name_page(uri: &Uri) -> Result<(Option<String>, u16), Rejection> {
    // Names of all sorts have one form.
    page(uri, |text| read(text, |key| TenantId::parse(key).ok()).map(String::from))
}

/// A page of things with ids: how many, and after which.
pub(crate) fn id_page(uri: &Uri) -> Result<(Option<Uuid>, u16), Rejection> {
    page(uri, read_id)
}

/// A page of things with numbers: how many, and before which.
pub(crate) fn number_page(uri: &Uri) -> Result<(Option<i64>, u16), Rejection> {
    page(uri, |text| {
        read(text, |key| key.parse().ok().filter(|number: &i64| *number >= 0 && number.to_string() == key))
    })
}

fn page<T>(uri: &Uri, cursor: impl Fn(&str) -> Result<T, Bad>) -> Result<(Option<T>, u16), Rejection> {
    let (mut from, mut limit) = (None, DEFAULT_PAGE);
    for (name, value) in parameters(uri)? {
        match name.as_str() {
            "limit" => limit = page_limit(&value).map_err(|bad| bad.at_parameter(&name))?,
            "cursor" => from = Some(cursor(&value).map_err(|bad| bad.at_parameter(&name))?),
            _ => return Err(unknown(name)),
        }
    }
    Ok((from, limit))
}

/// The number of items on a page.
pub(super) fn page_limit(value: &str) -> Result<u16, Bad> {
    let number = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
    let bad = || Bad::value(format!("must be a number from 1 to {MAX_PAGE}"));
    number.filter(|_| value.bytes().all(|b| b.is_ascii_digit())).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(cursor: &str) -> Uri {
        format!("/?cursor={cursor}").parse().unwrap()
    }

    #[test]
    fn a_cursor_leads_back_and_what_was_made_up_leads_nowhere() {
        let id = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_00ab);
        assert_eq!(read_id(&id_cursor(id)).ok(), Some(id));
        assert_eq!(id_page(&asked(&id_cursor(id))).ok(), Some((Some(id), DEFAULT_PAGE)));
        assert_eq!(number_page(&asked(&cursor(7))).ok(), Some((Some(7), DEFAULT_PAGE)));
        assert_eq!(name_page(&asked(&cursor("a.b"))).ok(), Some((Some("a.b".to_owned()), DEFAULT_PAGE)));
        let upper = id_cursor(id).to_uppercase();
        let old = id.to_string();
        for bad in ["", "zz", "1.", "1", "2.7", "7", "1.%20", "1.-7", "1.%2B7", "1.07", &upper, &old] {
            assert!(id_page(&asked(bad)).is_err() && number_page(&asked(bad)).is_err(), "{bad}");
        }
        for bad in ["", "zz", "1.", "2.zz", "1.a%20b", "1.a%2Fb"] {
            assert!(name_page(&asked(bad)).is_err(), "{bad}");
        }
    }
}
