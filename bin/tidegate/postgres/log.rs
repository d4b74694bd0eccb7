//! The server's log file.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::PostgresError;
use super::command::last_lines;

/// A log larger than this is put aside at the next start, and the one put aside before is dropped.
const MAX_LOG_BYTES: u64 = 16 * 1024 * 1024;

/// How much of the log's end is read for an error message.
const TAIL_BYTES: u64 = 8 * 1024;

/// Opens the log for appending and says where the new part begins. A large one is put aside first.
pub(crate) fn open(path: &Path) -> Result<(File, u64), PostgresError> {
    let length = path.metadata().map(|metadata| metadata.len()).unwrap_or(0);
    if length > MAX_LOG_BYTES {
        let aside = path.with_extension("log.1");
        std::fs::rename(path, &aside).map_err(PostgresError::io("putting aside", path))?;
    }
    let mut options = OpenOptions::new();
    let mut file =
        options.append(true).create(true).mode(0o600).open(path).map_err(PostgresError::io("opening", path))?;
    let end = file.seek(SeekFrom::End(0)).map_err(PostgresError::io("opening", path))?;
    Ok((file, end))
}

/// The end of what was written to the log since `from`; empty where it cannot be read.
pub(crate) fn tail(path: &Path, from: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let start = file.metadata()?.len().saturating_sub(TAIL_BYTES).max(from);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    last_lines(&read().unwrap_or_default())
}
