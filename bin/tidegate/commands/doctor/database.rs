//! Whether the database is fit.

use std::error::Error as _;

use tidegate_store::{Inspection, SchemaState, StoreError, Work};

use super::finding::Finding;
use crate::config::SecretUrl;

/// The oldest version that will do, as the server numbers it.
const FLOOR: i32 = 150_000;
/// A difference of clocks that hurts: deadlines are by the database's clock, logs by ours.
const MAX_SKEW_MS: i64 = 1_000;
/// A snapshot this old holds back the cleaning of what changes often.
const OLD_SNAPSHOT_MS: i64 = 60_000;
/// The share of its connections, in per cent, that should stay free for people, backups and restarts.
const SPARE_PERCENT: i64 = 30;
/// Connections of a process beside its pool: the door, cancels (two), the listener, a worker and its heartbeat.
const BESIDE_THE_POOL: i64 = 6;

/// Judges what was seen. `ours` are the connections of one process's pool; `clock` is our clock before and after.
pub(super) fn judge(
    url: &SecretUrl,
    seen: &Result<Inspection, StoreError>,
    ours: u32,
    clock: (i64, i64),
) -> Vec<Finding> {
    match seen {
        Ok(seen) => {
            let mut findings = vec![
                version(seen),
                durability(seen),
                connections(seen, i64::from(ours) + BESIDE_THE_POOL),
                schema(seen),
                snapshots(seen),
                skew(seen.now_ms, clock),
            ];
            findings.extend(seen.work.as_ref().map(workers));
            findings
        }
        Err(error) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            let fix = "check that Postgres runs and that host, port, user and password are right";
            vec![Finding::fail("database", format!("{url}: {error}{cause}"), fix)]
        }
    }
}

fn version(seen: &Inspection) -> Finding {
    let text = format!("PostgreSQL {}.{}", seen.version / 10_000, seen.version % 10_000);
    if seen.version < FLOOR {
        return Finding::fail("database", format!("{text} is too old"), "use PostgreSQL 15 or newer");
    }
    if seen.read_only {
        return Finding::fail("database", format!("{text} takes no writes"), "name the primary, not a standby");
    }
    Finding::ok("database", text)
}

fn durability(seen: &Inspection) -> Finding {
    let lossy: Vec<_> = [("fsync", seen.fsync), ("full_page_writes", seen.full_page_writes)]
        .into_iter()
        .filter_map(|(name, on)| (!on).then_some(name))
        .collect();
    if !lossy.is_empty() {
        let detail = format!("{} off: acknowledged tasks may be lost in a crash of the machine", lossy.join(" and "));
        return Finding::fail("durability", detail, "switch it on in postgresql.conf and restart Postgres");
    }
    if seen.synchronous_commit == "off" {
        let detail = "synchronous_commit is off for others; our own transactions switch it on for themselves";
        return Finding::warn("durability", detail, "leave it on unless the other users of this database mean it");
    }
    let detail = format!("fsync and full_page_writes on, synchronous_commit {}", seen.synchronous_commit);
    Finding::ok("durability", detail)
}

fn connections(seen: &Inspection, ours: i64) -> Finding {
    let free = seen.max_connections - seen.connections;
    let detail =
        format!("{} of {} in use, a process of ours takes up to {ours}", seen.connections, seen.max_connections);
    if free < ours {
        let fix = "raise max_connections, lower [store] max_connections, or put a pooler between";
        return Finding::fail("connections", detail, fix);
    }
    if (free - ours) * 100 < seen.max_connections * SPARE_PERCENT {
        let fix = "little is left for people, backups and restarts: raise max_connections";
        return Finding::warn("connections", detail, fix);
    }
    Finding::ok("connections", detail)
}

fn schema(seen: &Inspection) -> Finding {
    let migrate = "run tidegate migrate (up does it by itself)";
    match seen.schema {
        SchemaState::Current => Finding::ok("schema", "up to date"),
        SchemaState::Ahead => {
            Finding::fail("schema", "a newer version of tidegate migrated it", "run that version, or a newer one")
        }
        SchemaState::Empty | SchemaState::Behind if !seen.may_create => {
            let fix = "GRANT CREATE ON DATABASE to this user, or let another user run tidegate migrate";
            Finding::fail("schema", "to be migrated, and this user may not", fix)
        }
        SchemaState::Empty => Finding::warn("schema", "nothing of ours is there yet", migrate),
        SchemaState::Behind => Finding::fail("schema", "migrations are missing", migrate),
    }
}

fn snapshots(seen: &Inspection) -> Finding {
    match seen.oldest_snapshot_ms {
        Some(age) if age > OLD_SNAPSHOT_MS => {
            let detail = format!("a transaction has been holding one for {} s, so dead rows pile up", age / 1_000);
            Finding::warn("snapshots", detail, "end it: SELECT * FROM pg_stat_activity ORDER BY xact_start")
        }
        _ => Finding::ok("snapshots", "none is held for long"),
    }
}

/// Nothing that is accepted ends well without a worker that runs its kind. It may yet come, so it is no failure.
fn workers(work: &Work) -> Finding {
    let Work { sessions, slots, queued, unserved, unserved_kinds, kinds } = work;
    if *sessions == 0 {
        let detail = format!("no live worker takes work, and {queued} tasks wait");
        return Finding::warn("workers", detail, "start one with tidegate worker (tidegate up has one of its own)");
    }
    if *unserved > 0 {
        let more = if *unserved_kinds > kinds.len() as i64 { " and others" } else { "" };
        let named = kinds.join(", ");
        let detail = format!("{unserved} tasks wait whose kind no live worker runs: {named}{more}");
        let fix =
            "start a worker with these kinds in its [kinds], or cancel the tasks; tidegate workers shows who runs what";
        return Finding::warn("workers", detail, fix);
    }
    Finding::ok("workers", format!("{sessions} live with {slots} slots, {queued} tasks wait"))
}

/// A clock that reads between ours before and ours after is not known to differ.
fn skew(theirs: i64, (before, after): (i64, i64)) -> Finding {
    let skew = theirs - theirs.clamp(before, after.max(before));
    let detail = format!("the database's clock differs from this machine's by {} ms", skew.abs());
    if skew.abs() > MAX_SKEW_MS {
        return Finding::warn("clock", detail, "keep both machines on NTP; deadlines are by the database's clock");
    }
    Finding::ok("clock", detail)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    const NOW: i64 = 1_790_000_000_000;

    fn fit() -> Inspection {
        Inspection {
            version: 150_018,
            read_only: false,
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".to_owned(),
            max_connections: 97,
            connections: 3,
            may_create: true,
            oldest_snapshot_ms: None,
            now_ms: NOW,
            schema: SchemaState::Current,
            work: Some(served()),
        }
    }

    fn served() -> Work {
        Work { sessions: 2, slots: 32, queued: 9, ..Work::default() }
    }

    fn verdicts(seen: Inspection) -> Vec<(&'static str, Verdict)> {
        let url = SecretUrl::from("postgres://u:s3cret@db/x".to_owned());
        let findings = judge(&url, &Ok(seen), 8, (NOW - 5, NOW + 5));
        findings.into_iter().map(|finding| (finding.check, finding.verdict)).collect()
    }

    #[test]
    fn a_fit_database_has_nothing_to_mend() {
        assert!(verdicts(fit()).iter().all(|(_, verdict)| *verdict == Verdict::Ok));
    }

    #[test]
    fn each_fault_is_found_where_it_is() {
        for (seen, expected) in [
            (Inspection { version: 140_009, ..fit() }, ("database", Verdict::Fail)),
            (Inspection { read_only: true, ..fit() }, ("database", Verdict::Fail)),
            (Inspection { fsync: false, ..fit() }, ("durability", Verdict::Fail)),
            (Inspection { full_page_writes: false, ..fit() }, ("durability", Verdict::Fail)),
            (Inspection { synchronous_commit: "off".to_owned(), ..fit() }, ("durability", Verdict::Warn)),
            (Inspection { connections: 90, ..fit() }, ("connections", Verdict::Fail)),
            (Inspection { connections: 70, ..fit() }, ("connections", Verdict::Warn)),
            (Inspection { schema: SchemaState::Behind, ..fit() }, ("schema", Verdict::Fail)),
            (Inspection { schema: SchemaState::Ahead, ..fit() }, ("schema", Verdict::Fail)),
            (Inspection { schema: SchemaState::Empty, ..fit() }, ("schema", Verdict::Warn)),
            (Inspection { schema: SchemaState::Empty, may_create: false, ..fit() }, ("schema", Verdict::Fail)),
            (Inspection { oldest_snapshot_ms: Some(61_000), ..fit() }, ("snapshots", Verdict::Warn)),
            (
                Inspection { work: Some(Work { sessions: 0, slots: 0, ..served() }), ..fit() },
                ("workers", Verdict::Warn),
            ),
            (Inspection { work: Some(Work { unserved: 1, ..served() }), ..fit() }, ("workers", Verdict::Warn)),
            (Inspection { now_ms: NOW - 5_000, ..fit() }, ("clock", Verdict::Warn)),
            (Inspection { now_ms: NOW + 5_000, ..fit() }, ("clock", Verdict::Warn)),
        ] {
            let found = verdicts(seen);
            assert!(found.contains(&expected), "{expected:?} is not in {found:?}");
            assert_eq!(found.iter().filter(|(_, verdict)| *verdict != Verdict::Ok).count(), 1, "{found:?}");
        }
    }

    #[test]
    fn kinds_that_nobody_runs_are_named() {
        let found = |unserved_kinds| {
            let kinds = vec!["mail".to_owned(), "ocr".to_owned()];
            workers(&Work { unserved: 7, unserved_kinds, kinds, ..served() }).detail
        };
        assert_eq!(found(2), "7 tasks wait whose kind no live worker runs: mail, ocr");
        assert_eq!(found(3), "7 tasks wait whose kind no live worker runs: mail, ocr and others");
        assert_eq!(workers(&served()).fix, None);
    }

    #[test]
    fn a_database_that_cannot_be_reached_is_named_without_its_password() {
        let url = SecretUrl::from("postgres://u:s3cret@db/x".to_owned());
        let findings = judge(&url, &Err(StoreError::Unavailable(None)), 8, (NOW, NOW));
        assert_eq!(findings[0].verdict, Verdict::Fail);
        assert!(findings[0].detail.contains("db/x") && !findings[0].detail.contains("s3cret"));
    }
}
