//! `tidegate bench`: how fast it is on this machine, beside plain SQL on the same Postgres in the same run.
//!
//! Absolute figures depend on the machine and on who else uses it; what counts are the ratios. So both sides of every
//! comparison take turns, and medians are told.

mod ground;
mod load;
mod progress;
mod report;
mod store;

use crate::cli::{BenchArgs, BenchCommand, Global, StoreBenchArgs};
use crate::config::{Log, LogFormat};
use crate::exit::{Exit, Failure};
use crate::roles::on_signal;
use crate::terminal::Output;
use ground::Ground;
use progress::Progress;
use report::Report;

/// Measures, prints, and takes everything away again.
pub(crate) fn run(global: &Global, arguments: &BenchArgs, output: &mut Output) -> Result<Exit, Failure> {
    // Only what is wrong is worth a line between figures.
    let format = global.log_format.unwrap_or(LogFormat::Auto);
    crate::logging::start(&Log { level: "warn".to_owned(), format })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other("cannot start", error))?;
    runtime.block_on(async {
        let shutdown = on_signal().map_err(|error| Failure::other("cannot listen to signals", error))?;
        let ground = Ground::find(&arguments.ground, &shutdown).await?;
        let measured = shutdown.stop.run_until_cancelled(measure(&ground, arguments, output)).await;
        // Whatever became of the measurement.
        let left = ground.leave(&shutdown).await;
        measured.unwrap_or_else(|| Err(Failure::Other("stopped before it was measured".to_owned())))?;
        left?;
        Ok(Exit::Done)
    })
}

async fn measure(ground: &Ground, arguments: &BenchArgs, output: &mut Output) -> Result<(), Failure> {
    let machine = ground.facts(arguments.ground.commit.as_deref()).await?;
    let mut report = Report { machine, sections: Vec::new() };
    report.show_machine(output)?;
    let progress = Progress::new();
    match &arguments.what {
        Some(BenchCommand::Store(store)) => measure_store(ground, store, &progress, &mut report, output).await?,
        _ => {}
    }
    report.finish(output)
}

async fn measure_store(
    ground: &Ground,
    arguments: &StoreBenchArgs,
    progress: &Progress,
    report: &mut Report,
    output: &mut Output,
) -> Result<(), Failure> {
    for flows in &arguments.flows {
        report.add(store::run(ground, arguments, *flows, progress).await?, output)?;
    }
    Ok(())
}
