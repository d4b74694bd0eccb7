//! Executors that need no peer and no configuration, so that a first task needs no code.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

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

#[derive(Deserialize)]
struct SleepInput {
    ms: u64,
}

#[derive(Serialize)]
struct Slept {
    slept_ms: u64,
}

impl Handler for Sleep {
    type Input = SleepInput;
    type Output = Slept;

    async fn run(&self, ctx: Context, input: SleepInput) -> Result<Slept, HandlerError> {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(input.ms)) => Ok(Slept { slept_ms: input.ms }),
            () = ctx.cancelled() => {
                ctx.checkpoint()?;
                Err(HandlerError::transient("stopped", "told to stop"))
            }
        }
    }
}

struct Fail;

/// `null` is the payload of a task that was sent without one.
#[derive(Deserialize)]
#[serde(untagged)]
enum FailInput {
    How(FailHow),
    Null(()),
}

#[derive(Deserialize, Default)]
struct FailHow {
    times: Option<u32>,
    #[serde(default)]
    permanent: bool,
}

#[derive(Serialize)]
struct Recovered {
    attempt: u32,
}

impl Handler for Fail {
    type Input = FailInput;
    type Output = Recovered;

    async fn run(&self, ctx: Context, input: FailInput) -> Result<Recovered, HandlerError> {
        let how = match input {
            FailInput::How(how) => how,
            FailInput::Null(()) => FailHow::default(),
        };
        let attempt = ctx.attempt();
        match how.times {
            Some(times) if attempt > times => Ok(Recovered { attempt }),
            _ if how.permanent => Err(HandlerError::permanent("fail", "failed for good, as asked")),
            Some(times) => Err(HandlerError::transient("fail", format!("failed {attempt} of {times} times, as asked"))),
            None => Err(HandlerError::transient("fail", "failed, as asked")),
        }
    }
}
