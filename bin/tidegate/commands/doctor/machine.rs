//! Whether this machine is fit.

use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

use super::finding::Finding;
use crate::cli::DoctorArgs;
use crate::config::Config;
use crate::postgres::Found;

/// Below this, the next burst of tasks may fill the disk.
const LITTLE_SPACE_BYTES: u64 = 2 << 30;
/// Below this, Postgres may stop at any moment: it keeps its log in files of 16 MiB and needs several.
const NO_SPACE_BYTES: u64 = 256 << 20;
/// Files that a server holds open beside its connections.
const OTHER_FILES: u64 = 256;

/// Checks the machine. `own_postgres`: no database is named, so `up` would start one here.
pub(super) fn check(arguments: &DoctorArgs, config: Option<&Config>, own_postgres: bool) -> Vec<Finding> {
    let mut findings = vec![open_files(config)];
    if own_postgres {
        findings.push(programs(arguments.pg_bin.as_deref()));
        findings.push(writable(&arguments.data_dir));
        findings.push(space(&arguments.data_dir));
    }
    findings
}

fn programs(pg_bin: Option<&Path>) -> Finding {
    match Found::search(pg_bin).and_then(Found::into_best) {
        Ok(found) => {
            Finding::ok("postgres programs", format!("PostgreSQL {} in {}", found.version.text, found.dir.display()))
        }
        Err(error) => {
            let fix = "install PostgreSQL 15 or newer, name its directory with --pg-bin, or name a database";
            Finding::fail("postgres programs", error, fix)
        }
    }
}

/// The directory itself, or the nearest one above it that is there: it would be made in that.
fn nearest(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    whole.ancestors().find(|above| above.exists()).map_or(whole.clone(), Path::to_owned)
}

fn writable(data_dir: &Path) -> Finding {
    let there = nearest(data_dir);
    let shown = there.display();
    match access(&there, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) if there.is_dir() => Finding::ok("data directory", format!("{shown} can be written")),
        Ok(()) => Finding::fail("data directory", format!("{shown} is no directory"), "choose another --data-dir"),
        Err(error) => {
            let fix = "choose another --data-dir, or give this user the right to write there";
            Finding::fail("data directory", format!("{shown}: {error}"), fix)
        }
    }
}

fn space(data_dir: &Path) -> Finding {
    let there = nearest(data_dir);
    let seen = match statvfs(&there) {
        Ok(seen) => seen,
        Err(error) => {
            let fix = "look at the file system by hand";
            return Finding::warn("disk space", format!("{}: {error}", there.display()), fix);
        }
    };
    judge_space(&there, seen.blocks_available().saturating_mul(seen.fragment_size()))
}

fn judge_space(there: &Path, free: u64) -> Finding {
    let detail = format!("{} MiB free at {}", free >> 20, there.display());
    if free < NO_SPACE_BYTES {
        Finding::fail("disk space", detail, "make room: Postgres stops when the disk is full")
    } else if free < LITTLE_SPACE_BYTES {
        Finding::warn("disk space", detail, "make room before the next burst")
    } else {
        Finding::ok("disk space", detail)
    }
}

fn open_files(config: Option<&Config>) -> Finding {
    let wanted = config.map_or(0, |config| u64::from(config.server.max_connections)) + OTHER_FILES;
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) => judge_open_files(soft, wanted),
        Err(error) => Finding::warn("open files", error, "look at ulimit -n by hand"),
    }
}

fn judge_open_files(limit: u64, wanted: u64) -> Finding {
    if limit < wanted {
        let detail = format!("{limit} may be open, {wanted} are needed for all connections that are let in");
        return Finding::warn("open files", detail, "raise ulimit -n (LimitNOFILE), or lower [server] max_connections");
    }
    Finding::ok("open files", format!("{limit} may be open"))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn a_directory_that_is_yet_to_be_made_is_judged_by_the_one_above() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(nearest(&dir.path().join("a/b/c")), dir.path());
        assert_eq!(writable(&dir.path().join("a")).verdict, Verdict::Ok);
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(writable(&dir.path().join("file")).verdict, Verdict::Fail);
    }

    #[test]
    fn space_and_files_are_judged_by_what_is_needed() {
        let space = |bytes| judge_space(Path::new("/x"), bytes).verdict;
        assert_eq!([space(1 << 20), space(1 << 30), space(1 << 40)], [Verdict::Fail, Verdict::Warn, Verdict::Ok]);
        assert_eq!(judge_open_files(1_024, 4_352).verdict, Verdict::Warn);
        assert_eq!(judge_open_files(4_352, 4_352).verdict, Verdict::Ok);
    }
}
