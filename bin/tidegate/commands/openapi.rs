//! `tidegate openapi`.

use crate::exit::{Exit, Failure};
use crate::terminal::Output;

/// Prints the document that the server gives at `/openapi.json`, generated from the same code.
pub(crate) fn run(output: &mut Output) -> Result<Exit, Failure> {
    output.json_line(tidegate_api::openapi_json())?;
    Ok(Exit::Done)
}
