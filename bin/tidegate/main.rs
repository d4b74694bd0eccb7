//! Tidegate: a durable priority task queue and worker system.

mod postgres;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// A stand-in until the command line lands: `dev-postgres --data-dir D -- CMD…` and `up [--data-dir D]`.
#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let rest = arguments.iter().position(|a| a == "--").map_or(&[][..], |at| &arguments[at + 1..]);
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1)).cloned();
    let data_dir = PathBuf::from(value("--data-dir").unwrap_or_else(|| ".tidegate".into()));
    let pg_bin = value("--pg-bin").map(PathBuf::from);
    let result = match arguments.first().and_then(|a| a.to_str()) {
        Some("dev-postgres") => postgres::dev::run(data_dir, pg_bin, rest).await,
        _ => up(data_dir, pg_bin).await,
    };
    match result {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "tidegate: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn up(data_dir: PathBuf, pg_bin: Option<PathBuf>) -> Result<i32, postgres::PostgresError> {
    use postgres::{LocalPostgres, OwnCluster, PostgresSource};
    match PostgresSource::choose(std::env::var("DATABASE_URL").ok(), OwnCluster::durable(data_dir, pg_bin)) {
        PostgresSource::Url(url) => drop(writeln!(std::io::stdout(), "using {url}")),
        PostgresSource::Own(own) => {
            let mut postgres = LocalPostgres::start(own)?;
            let _ = writeln!(
                std::io::stdout(),
                "PostgreSQL {} {} pid {:?} adopted {} home {} log {}\n{}\n{}",
                postgres.version().text,
                postgres.bin_dir().display(),
                postgres.pid(),
                postgres.was_adopted(),
                postgres.home().display(),
                postgres.log_path().display(),
                postgres.url(),
                postgres.tcp_url()
            );
            let _ = tokio::signal::ctrl_c().await;
            let _ = postgres.revive()?;
            postgres.stop()?;
        }
    }
    Ok(0)
}
