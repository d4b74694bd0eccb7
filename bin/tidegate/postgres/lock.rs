//! One process at a time in a data directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::PostgresError;

/// Longest content of a lock file that is read: a pid and a newline.
const MAX_LOCK_BYTES: u64 = 32;

/// The lock on a data directory. The kernel lets go of it when the process ends, however it ends, so a stale lock does
/// not exist.
#[derive(Debug)]
pub(crate) struct DataDirLock {
    _file: File,
}

impl DataDirLock {
    /// Takes the lock or says who has it. Does not wait.
    pub(crate) fn acquire(data_dir: &Path) -> Result<Self, PostgresError> {
        let path = data_dir.join("lock");
        // Not truncated: until the lock is ours the content names its holder.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o644);
        let mut file = options.open(&path).map_err(PostgresError::io("opening the lock file", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(PostgresError::InUse { dir: data_dir.to_owned(), holder: holder(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(PostgresError::io("locking", &path)(source)),
        }
        write_pid(&mut file).map_err(PostgresError::io("writing", &path))?;
        Ok(DataDirLock { _file: file })
    }
}

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// The pid in the lock file. The holder writes it just after locking, so for a moment it may not be there.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.take(MAX_LOCK_BYTES).read_to_string(&mut text);
    match (read, text.trim()) {
        (Ok(_), pid) if !pid.is_empty() => pid.to_owned(),
        _ => "(unknown pid)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_holder_is_told_the_pid_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDirLock::acquire(dir.path()).unwrap();
        let refused = DataDirLock::acquire(dir.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
        drop(first);
        DataDirLock::acquire(dir.path()).unwrap();
    }

    #[test]
    fn a_lock_file_left_by_a_dead_process_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("lock"), "123456789012\n").unwrap();
        DataDirLock::acquire(dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join("lock")).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }
}
