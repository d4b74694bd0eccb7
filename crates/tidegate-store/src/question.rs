//! Statements that are asked in the same breath as a transaction begins: once for all prepared by the server, then one
//! round trip for BEGIN, the cell's lock and what is read under it.

use uuid::Uuid;

use crate::connection::PgQuery;

/// A statement that may be asked where a transaction begins.
#[derive(Debug)]
pub(crate) struct Opening {
    /// Its name among the prepared statements of a session.
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

/// A value of such a statement.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Texts(Vec<String>),
    Number(i64),
    Numbers(Vec<i64>),
    Id(Uuid),
    Ids(Vec<Uuid>),
}

/// Such a statement and its values.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) opening: &'static Opening,
    values: Vec<Value>,
}

impl Question {
    pub(crate) fn new(opening: &'static Opening, values: impl Into<Vec<Value>>) -> Self {
        Self { opening, values: values.into() }
    }

    /// The statement itself, for whoever asks it alone.
    pub(crate) fn query(&self) -> PgQuery {
        self.values.iter().cloned().fold(sqlx::query(self.opening.sql), |query, value| match value {
            Value::Texts(texts) => query.bind(texts),
            Value::Number(number) => query.bind(number),
            Value::Numbers(numbers) => query.bind(numbers),
            Value::Id(id) => query.bind(id),
            Value::Ids(ids) => query.bind(ids),
        })
    }

    /// What runs it where the server has it prepared. Nothing where a text cannot be part of a statement: then it must be
    /// bound, and the server says what is wrong with it.
    pub(crate) fn execute(&self) -> Option<String> {
        let stops =
            |value: &Value| matches!(value, Value::Texts(texts) if texts.iter().any(|text| text.contains('\0')));
        if self.values.iter().any(stops) {
            return None;
        }
        let mut sql = format!("EXECUTE {}", self.opening.name);
        for (n, value) in self.values.iter().enumerate() {
            sql.push(if n == 0 { '(' } else { ',' });
            value.literal(&mut sql);
        }
        if !self.values.is_empty() {
            sql.push(')');
        }
        Some(sql)
    }
}

impl Value {
    /// Writes it as a constant that the server takes for whatever type the statement wants.
    fn literal(&self, sql: &mut String) {
        match self {
            Self::Texts(texts) => {
                // Whatever the session thinks of backslashes, here they escape.
                sql.push_str("E'{");
                for (n, text) in texts.iter().enumerate() {
                    sql.push_str(if n == 0 { "\"" } else { ",\"" });
                    text.chars().for_each(|char| match char {
                        // Once for the constant, once for the array in it.
                        '\\' => sql.push_str(r"\\\\"),
                        '"' => sql.push_str(r#"\\""#),
                        '\'' => sql.push_str("''"),
                        other => sql.push(other),
                    });
                    sql.push('"');
                }
                sql.push_str("}'");
            }
            Self::Number(number) => quoted(sql, &number.to_string()),
            Self::Numbers(numbers) => array(sql, numbers),
            Self::Id(id) => quoted(sql, &id.to_string()),
            Self::Ids(ids) => array(sql, ids),
        }
    }
}

/// In quotes, for what holds none.
fn quoted(sql: &mut String, plain: &str) {
    sql.extend(["'", plain, "'"]);
}

/// The same for several.
fn array(sql: &mut String, plain: &[impl ToString]) {
    let plain: Vec<String> = plain.iter().map(ToString::to_string).collect();
    quoted(sql, &format!("{{{}}}", plain.join(",")));
}
