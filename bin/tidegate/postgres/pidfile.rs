//! `postmaster.pid`, in which a server writes who and where it is.

use std::path::{Path, PathBuf};

use super::PostgresError;
use super::process::is_server_on;

/// The file's name in a cluster's data directory.
pub(crate) const NAME: &str = "postmaster.pid";

/// What the file says. Its lines are: pid, data directory, start time, port, socket directory, listen address, shared
/// memory key, status. A server that has just begun has not written the later ones yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PidFile {
    /// The postmaster.
    pub(crate) pid: i32,
    /// Its TCP port.
    pub(crate) port: Option<u16>,
    /// The first of its socket directories.
    pub(crate) socket_dir: Option<PathBuf>,
    /// Whether it takes connections.
    pub(crate) ready: bool,
}

impl PidFile {
    /// Reads the file of a cluster; `None` where there is none or it holds no pid (a crash may leave it empty).
    pub(crate) fn read(data: &Path) -> Result<Option<Self>, PostgresError> {
        let path = data.join(NAME);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(PidFile::parse(&text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(PostgresError::io("reading", &path)(error)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let line = |number: usize| lines.get(number - 1).filter(|line| !line.is_empty());
        Some(PidFile {
            pid: line(1)?.parse().ok().filter(|pid| *pid > 0)?,
            port: line(4).and_then(|port| port.parse().ok()),
            socket_dir: line(5).map(PathBuf::from),
            ready: line(8) == Some(&"ready"),
        })
    }

    /// Whether the process it names is alive and really serves this data directory.
    pub(crate) fn is_live(&self, data: &Path) -> bool {
        is_server_on(self.pid, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: &str = "4242\n/data\n1700000000\n40001\n/run/tg\n127.0.0.1\n  1234 56\nready   \n";

    #[test]
    fn a_ready_server_has_written_every_line() {
        let file = PidFile::parse(READY).unwrap();
        let expected = PidFile { pid: 4242, port: Some(40001), socket_dir: Some("/run/tg".into()), ready: true };
        assert_eq!(file, expected);
    }

    #[test]
    fn a_starting_or_stopping_one_is_not_ready() {
        for status in ["starting", "stopping", "standby "] {
            assert!(!PidFile::parse(&READY.replace("ready   ", status)).unwrap().ready);
        }
        let begun = PidFile::parse("4242\n/data\n1700000000\n40001\n").unwrap();
        assert_eq!((begun.ready, begun.socket_dir), (false, None));
    }

    #[test]
    fn a_torn_file_is_no_file() {
        for text in ["", "\n", "garbage\n", "-4242\n", "0\n"] {
            assert_eq!(PidFile::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_pid_that_now_belongs_to_somebody_else_is_not_live() {
        let file = PidFile { pid: std::process::id() as i32, port: None, socket_dir: None, ready: true };
        assert!(!file.is_live(&std::env::current_dir().unwrap()));
    }
}
