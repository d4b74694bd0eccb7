//! Errors as problem details (RFC 9457).

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate_core::{Status, TaskId};

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Problem<'a> {
    /// A page about this sort of problem, relative to the server.
    #[serde(rename = "type")]
    #[schema(example = "/docs/errors/queue_full")]
    pub kind: Cow<'a, str>,
    /// The sort of problem, for people.
    pub title: Cow<'a, str>,
    /// The HTTP status.
    pub status: u16,
    /// What happened this time, for people.
    pub detail: Cow<'a, str>,
    /// The sort of problem, from a closed vocabulary; each has a page under docs/errors/.
    #[schema(example = "queue_full")]
    pub reason: Cow<'a, str>,
    /// The member of the body that is wrong, as a JSON pointer (RFC 6901).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<Cow<'a, str>>,
    /// The request header that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<Cow<'a, str>>,
    /// The parameter of the query or the path that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<Cow<'a, str>>,
    /// The task that this is about. Where the submission was refused, it can be read like any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Uuid)]
    pub task_id: Option<TaskId>,
    /// Where that task stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "REJECTED")]
    pub outcome: Option<Status>,
    /// When to try again, from now; absent where a later try of the same cannot work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident $text:literal $status:literal,)*) => {
        /// What can be wrong with a request itself, beside the reasons of the door: these make no task.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($(#[$doc])* $variant,)*
        }

        impl Fault {
            /// Every fault.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The `reason` of the problem.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The HTTP status of the answer.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }
        }
    };
}

faults! {
    /// The body is not JSON, or not UTF-8.
    InvalidJson "invalid_json" 400,
    /// A required member is missing.
    MissingField "missing_field" 400,
    /// A header is there twice that must be there once.
    DuplicateHeader "duplicate_header" 400,
    /// The head of the request is malformed.
    MalformedRequest "malformed_request" 400,
    /// The body ended early or could not be read.
    BodyIncomplete "body_incomplete" 400,
    /// The request needs a key, or the key is not known.
    Unauthorized "unauthorized" 401,
    /// The request may come from a page that the user did not mean to trust, or from beyond loopback.
    Forbidden "forbidden" 403,
    /// There is no such task or page.
    NotFound "not_found" 404,
    /// The page does not know the method.
    MethodNotAllowed "method_not_allowed" 405,
    /// The body did not arrive in time.
    BodyTimeout "body_timeout" 408,
    /// The task had ended before.
    AlreadyEnded "already_ended" 409,
    /// A submission with the same key is still being decided.
    KeyInFlight "key_in_flight" 409,
    /// The body is larger than allowed.
    BodyTooLarge "body_too_large" 413,
    /// The request's target is too long.
    UriTooLong "uri_too_long" 414,
    /// The body is not of type `application/json`, or is compressed.
    UnsupportedMediaType "unsupported_media_type" 415,
    /// A member, header or parameter has a value that it cannot have.
    InvalidValue "invalid_value" 422,
    /// A member or parameter that is not known.
    UnknownField "unknown_field" 422,
    /// A member that is there twice.
    DuplicateField "duplicate_field" 422,
    /// A part of the contract that this version does not serve yet.
    NotServedYet "not_served_yet" 422,
    /// The key was used before with another body.
    KeyReused "key_reused" 422,
    /// The request's line and headers are too large.
    HeadersTooLarge "headers_too_large" 431,
    /// Something broke inside.
    Internal "internal_error" 500,
    /// This process holds as many bytes of requests as it may.
    IngestFull "ingest_full" 503,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
