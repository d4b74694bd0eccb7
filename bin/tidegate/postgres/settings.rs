//! How a cluster of our own is tuned. The settings are given on the command line at each start, so that a newer version of
//! tidegate starts an old cluster with its own choice, and nothing in the data directory can turn durability off.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Purpose;
use super::account::Account;
use super::command::run;
use super::find::Binaries;

/// For every cluster. Only this machine can connect; time and messages do not depend on the machine's locale.
const COMMON: [(&str, &str); 10] = [
    ("listen_addresses", "127.0.0.1"),
    ("unix_socket_permissions", "0700"),
    ("logging_collector", "off"),
    ("log_destination", "stderr"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    // Every replica and worker process holds a pool of tens; tests open many small ones.
    ("max_connections", "200"),
    // Compilation costs more than any of the short statements here.
    ("jit", "off"),
    // Planning for solid-state disks.
    ("random_page_cost", "1.1"),
    // A peer that vanished is noticed within about half a minute, and its locks with it.
    ("tcp_keepalives_idle", "10"),
];

/// What "accepted" means: on the disk before anybody is told.
const DURABLE: [(&str, &str); 9] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    // A queue rewrites its pages all the time; checkpoints far apart write each of them once.
    ("max_wal_size", "4GB"),
    ("checkpoint_timeout", "15min"),
    ("wal_buffers", "16MB"),
    // Records come in by the megabyte a second: somebody other than the door should write them out.
    ("bgwriter_delay", "20ms"),
    ("bgwriter_lru_maxpages", "1000"),
    ("bgwriter_lru_multiplier", "4"),
];

/// Memory of the machine, from so many GiB on, and what the server takes of it for its buffers: enough for the hot
/// tables many times over and for the records of the last minutes, which are touched once more when they end.
const SHARED_BUFFERS: [(u64, &str); 3] = [(6, "1GB"), (2, "256MB"), (0, "128MB")];

/// For tests: no disk is waited for.
const THROW_AWAY: [(&str, &str); 4] =
    [("fsync", "off"), ("full_page_writes", "off"), ("max_wal_size", "1GB"), ("log_checkpoints", "off")];

/// The best way to shrink full-page images first; the second is always built in.
const WAL_COMPRESSION: [&str; 2] = ["lz4", "pglz"];

/// Longest that a server may take to check one setting.
const CHECK_LIMIT: Duration = Duration::from_secs(20);

/// The settings for a purpose.
pub(crate) fn of(purpose: Purpose) -> Vec<(&'static str, &'static str)> {
    let special: &[_] = match purpose {
        Purpose::Durable | Purpose::Measured => &DURABLE,
        Purpose::ThrowAway => &THROW_AWAY,
    };
    let buffers = match purpose {
        Purpose::ThrowAway => "256MB",
        Purpose::Durable | Purpose::Measured => shared_buffers(memory_gib()),
    };
    COMMON.iter().chain(special).copied().chain([("shared_buffers", buffers)]).collect()
}

fn shared_buffers(memory_gib: u64) -> &'static str {
    SHARED_BUFFERS.iter().find(|(from, _)| memory_gib >= *from).map_or("128MB", |(_, buffers)| buffers)
}

/// The machine's memory; where it cannot be told, as if there were little.
fn memory_gib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    total.unwrap_or(0) >> 20
}

/// Adds one setting to the command line of a server.
pub(crate) fn set<'a>(command: &'a mut Command, name: &str, value: impl std::fmt::Display) -> &'a mut Command {
    command.arg("-c").arg(format!("{name}={value}"))
}

/// Which compression this build of the server accepts; it checks the value when it is asked to print the setting.
pub(crate) fn wal_compression(account: &Account, binaries: &Binaries, data: &Path) -> Option<&'static str> {
    WAL_COMPRESSION.into_iter().find(|method| {
        let mut command = account.command(binaries.program("postgres"));
        command.arg("-D").arg(data).args(["-C", "wal_compression"]);
        run(set(&mut command, "wal_compression", method), CHECK_LIMIT).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_cluster_waits_for_the_disk_and_no_setting_is_given_twice() {
        for purpose in [Purpose::Durable, Purpose::ThrowAway, Purpose::Measured] {
            let mut names: Vec<_> = of(purpose).iter().map(|(name, _)| *name).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
        }
        for wanted in [("fsync", "on"), ("synchronous_commit", "on"), ("full_page_writes", "on")] {
            assert!(of(Purpose::Durable).contains(&wanted) && of(Purpose::Measured).contains(&wanted));
        }
    }
}
