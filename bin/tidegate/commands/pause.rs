//! `tidegate pause`, `resume` and `pauses`.

use chrono::{DateTime, Utc};
use tidegate_client::{Answer, Client, Pause, PauseList, PauseMode, PauseRequest, Timestamp};

use super::client::{block_on, connect_as_operator, show_problem};
use super::policy::{plain_table, print};
use crate::cli::{Global, PauseArgs, ResumeArgs};
use crate::exit::{Exit, Failure};
use crate::terminal::{Output, safe};

/// Makes a pause.
pub(crate) fn pause(global: &Global, arguments: &PauseArgs, output: &mut Output) -> Result<Exit, Failure> {
    let target = arguments.paused.target();
    let target = target.ok_or_else(|| Failure::Usage("name a kind, class, tenant or peer".to_owned()))?;
    let client = connect_as_operator(global)?;
    block_on(async {
        let mut request = PauseRequest::new(target);
        request.mode = arguments.refuse.then_some(PauseMode::Refuse);
        request.reason = arguments.reason.clone();
        request.until = until(&client, arguments, output).await?.map(|at| Timestamp::from_ms(at.timestamp_millis()));
        let pause = client.pause(&request).await.map_err(|error| show_problem(error, output))?;
        match output.wants_json() {
            true => output.json_line(&pause.json)?,
            false => output.line(&safe(&pause.id))?,
        }
        Ok(Exit::Done)
    })
}

/// When the pause ends. A time from now counts by the server's clock where it tells: this one's may be anything.
async fn until(client: &Client, arguments: &PauseArgs, output: &mut Output) -> Result<Option<DateTime<Utc>>, Failure> {
    let Some(lasting) = arguments.lasting else { return Ok(arguments.until) };
    let pauses = client.pauses().await.map_err(|error| show_problem(error, output))?;
    let now = Utc::now();
    // The server tells whole seconds: where its clock may be this one, this one says more.
    let same = pauses.date.is_none_or(|date| (-1_000..=2_000).contains(&(now - date).num_milliseconds()));
    let from = pauses.date.filter(|_| !same).unwrap_or(now);
    let until = chrono::Duration::from_std(lasting).ok().and_then(|lasting| from.checked_add_signed(lasting));
    until.map(Some).ok_or_else(|| Failure::Usage("--for is too long".to_owned()))
}

/// Ends pauses.
pub(crate) fn resume(global: &Global, arguments: &ResumeArgs, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect_as_operator(global)?;
    block_on(async {
        let ended = match (&arguments.id, arguments.target()) {
            (Some(id), _) => vec![id.clone()],
            (None, target) => {
                let pauses = client.pauses().await.map_err(|error| show_problem(error, output))?;
                let meant = |pause: &&Pause| target.as_ref().map(|target| target.parts()) == target_of(pause);
                pauses.pauses.iter().filter(meant).map(|pause| pause.id.clone()).collect()
            }
        };
        if ended.is_empty() {
            return Err(Failure::Other("there is no such pause".to_owned()));
        }
        for id in &ended {
            client.resume(id).await.map_err(|error| show_problem(error, output))?;
        }
        match output.wants_json() {
            true => output.json_line(&serde_json::json!({ "resumed": ended }).to_string())?,
            false => ended.iter().try_for_each(|id| output.line(&safe(id)))?,
        }
        Ok(Exit::Done)
    })
}

/// Lists the pauses that are in effect.
pub(crate) fn list(global: &Global, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect_as_operator(global)?;
    block_on(async {
        let pauses = client.pauses().await.map_err(|error| show_problem(error, output))?;
        show(&pauses, output)?;
        Ok(Exit::Done)
    })
}

fn show(pauses: &Answer<PauseList>, output: &mut Output) -> Result<(), Failure> {
    if output.wants_json() {
        return output.json_line(&pauses.json);
    }
    if pauses.pauses.is_empty() {
        eprintln!("no pauses");
        return Ok(());
    }
    let mut table = plain_table();
    table.set_header(["ID", "OF", "MODE", "SINCE", "UNTIL", "REASON"]);
    for pause in &pauses.pauses {
        let (member, value) = target_of(pause).unwrap_or(("?", "?"));
        table.add_row([
            safe(&pause.id).into_owned(),
            format!("{member} {}", safe(value)),
            pause.mode.as_str().to_owned(),
            pause.created_at.to_string(),
            pause.until.map_or_else(|| "-".to_owned(), |until| until.to_string()),
            pause.reason.as_deref().map_or_else(|| "-".to_owned(), |reason| safe(reason).into_owned()),
        ]);
    }
    print(&table, output)
}

fn target_of(pause: &Pause) -> Option<(&'static str, &str)> {
    [("kind", &pause.kind), ("class", &pause.class), ("tenant", &pause.tenant), ("peer", &pause.peer)]
        .into_iter()
        .find_map(|(member, value)| Some((member, value.as_deref()?)))
}
