//! Executors that need no peer and no configuration, so that a first task needs no code.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::handler::{Executor, Handler, HandlerError, RunFuture, typed};

/// Returns its payload, byte for byte.
pub fn echo() -> Arc<dyn Executor> {
    Arc::new(Echo)
}

/// `{"ms": N}`: returns `{"slept_ms": N}` after that time, or stops at once when told to.
pub fn sleep() -> Arc<dyn Executor> {
    typed(Sleep)
}

/// Fails with the error type `fail`. `{"times": N}`: fails so often and then completes with `{"attempt": N + 1}`;
/// without it, always. `{"permanent": true}`: in a way that no other try can cure.
pub fn fail() -> Arc<dyn Executor> {
    typed(Fail)
}

struct Echo;

impl Executor for Echo {
    fn execute(&self, _: Context, payload: String) -> RunFuture<'_> {
        Box::pin(std::future::ready(Ok(payload)))
    }
}

struct Sleep;

#[derive(Serialize)]
struct Slept {
    slept_ms: u64,
}

impl Handler for Sleep {
    type Input = Value;
    type Output = Slept;

    async fn run(&self, ctx: Context, input: Value) -> Result<Slept, HandlerError> {
        let ms = input.get("ms").and_then(Value::as_u64).ok_or_else(|| {
            bad_input("the payload must be an object with \"ms\", a whole number of milliseconds, as in {\"ms\": 1000}")
        })?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(ms)) => Ok(Slept { slept_ms: ms }),
            () = ctx.cancelled() => {
                ctx.checkpoint()?;
                Err(HandlerError::transient("stopped", "told to stop"))
            }
        }
    }
}

struct Fail;

/// How to fail.
#[derive(Default)]
struct FailHow {
    times: Option<u32>,
    permanent: bool,
}

impl FailHow {
    /// `null` is the payload of a task that was sent without one.
    fn parse(input: &Value) -> Result<Self, HandlerError> {
        let members = match input {
            Value::Null => return Ok(Self::default()),
            Value::Object(members) => members,
            _ => return Err(bad_input("the payload must be null or an object, as in {\"times\": 2}")),
        };
        let member = |name| members.get(name).filter(|value| !value.is_null());
        let times = member("times").map(|times| {
            let count = times.as_u64().and_then(|count| u32::try_from(count).ok());
            count.ok_or_else(|| bad_input(format!("\"times\" must be a whole number from 0 to {}", u32::MAX)))
        });
        let permanent = member("permanent")
            .map(|permanent| permanent.as_bool().ok_or_else(|| bad_input("\"permanent\" must be true or false")));
        Ok(Self { times: times.transpose()?, permanent: permanent.transpose()?.unwrap_or_default() })
    }
}

fn bad_input(message: impl Into<String>) -> HandlerError {
    HandlerError::permanent("bad_input", message)
}

#[derive(Serialize)]
struct Recovered {
    attempt: u32,
}

impl Handler for Fail {
    type Input = Value;
    type Output = Recovered;

    async fn run(&self, ctx: Context, input: Value) -> Result<Recovered, HandlerError> {
        let how = FailHow::parse(&input)?;
        let attempt = ctx.attempt();
        match how.times {
            Some(times) if attempt > times => Ok(Recovered { attempt }),
            _ if how.permanent => Err(HandlerError::permanent("fail", "failed for good, as asked")),
            Some(times) => Err(HandlerError::transient("fail", format!("failed {attempt} of {times} times, as asked"))),
            None => Err(HandlerError::transient("fail", "failed, as asked")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn how_to_fail_is_read_or_refused_in_plain_words() {
        let read = |input: Value| FailHow::parse(&input).map(|how| (how.times, how.permanent));
        assert_eq!(read(Value::Null), Ok((None, false)));
        assert_eq!(read(json!({})), Ok((None, false)));
        assert_eq!(read(json!({"times": 2, "permanent": null})), Ok((Some(2), false)));
        assert_eq!(read(json!({"permanent": true})), Ok((None, true)));
        for bad in [
            json!([]),
            json!("x"),
            json!({"times": -1}),
            json!({"times": "2"}),
            json!({"times": 1.5}),
            json!({"permanent": 1}),
        ] {
            let error = read(bad.clone()).unwrap_err();
            assert_eq!(error.kind(), "bad_input");
            assert!(!error.is_transient() && error.message().contains("must be"), "{bad}: {error}");
        }
    }
}
