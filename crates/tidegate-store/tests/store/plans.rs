//! The plans of the hot statements: index scans and nested loops only, and a claim that starts at its flow's bound.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use crate::Cell;
use crate::head_of_line::{pages_of_prepared, prepare};

const COUNTERS: &str = include_str!("../../src/ledger_counters.sql");
const WAKE: &str = include_str!("../../src/ledger_wake.sql");
const FREE: &str = include_str!("../../src/ledger_free.sql");
const FREE_NONE: &str = include_str!("../../src/ledger_free_none.sql");
const TELL: &str = include_str!("../../src/ledger_tell.sql");

/// The settings of the planner that every transaction of ours has.
pub(crate) const PINNED: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off; \
    SET enable_mergejoin = off; SET enable_bitmapscan = off; SET enable_material = off; SET enable_memoize = off; SET jit = off";

/// The generic plan of a statement with so many parameters, under the settings that every transaction of ours has.
async fn plan(conn: &mut PgConnection, sql: &str, parameters: usize) -> String {
    let nulls = vec!["NULL"; parameters].join(", ");
    sqlx::raw_sql(PINNED).execute(&mut *conn).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("DEALLOCATE ALL; PREPARE statement AS {sql}")))
        .execute(&mut *conn)
        .await
        .unwrap();
    let explain = format!(
        "EXPLAIN (COSTS off) EXECUTE statement{}",
        if parameters > 0 { format!("({nulls})") } else { String::new() }
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut *conn).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

/// Read from one end of an index, and for good: they are as small as the fleet, or no more is read than a LIMIT says.
const MAY_BE_WALKED: [&str; 5] =
    ["session_pkey", "active_flow_pkey", "ready_reserved", "cancel_parent_pkey", "task_kept_"];

/// The scans of a plan that go through all of an index: under an old snapshot that is whatever was ever in it.
fn indexes_walked_whole(plan: &str) -> Vec<&str> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<&str> = plan.lines().collect();
    let walked = |at: &usize| {
        let line = lines[*at];
        let details = lines[at + 1..].iter().take_while(|next| depth(next) > depth(line));
        let known = MAY_BE_WALKED.iter().any(|index| line.contains(&format!(" using {index}")));
        line.contains("Scan")
            && line.contains(" using ")
            && !known
            && !details.clone().any(|next| next.contains("Index Cond:"))
    };
    (0..lines.len()).filter(walked).map(|at| lines[at]).collect()
}

#[tokio::test]
async fn hot_statements_never_walk_a_table_and_claims_start_at_the_bound() {
    let cell = Cell::new().await;
    cell.add(cell.submission()).await;
    let mut conn = cell.db.connect().await;
    for (name, sql, parameters) in [
        ("facts", include_str!("../../src/facts.sql").to_owned(), 4),
        (
            "facts named",
            format!("{}{}", include_str!("../../src/facts.sql"), include_str!("../../src/facts_named.sql")),
            10,
        ),
        ("backlog", include_str!("../../src/backlog.sql").to_owned(), 3),
        ("reserved", include_str!("../../src/reserved.sql").to_owned(), 2),
        ("claim room", include_str!("../../src/claim_room.sql").to_owned(), 4),
        ("admit", format!("{COUNTERS}{WAKE}{FREE_NONE}{TELL}{}", include_str!("../../src/admit.sql")), 67),
        ("admit plain", format!("{COUNTERS}{WAKE}{FREE_NONE}{TELL}{}", include_str!("../../src/admit_plain.sql")), 52),
        ("admit behind", format!("{COUNTERS}{FREE_NONE}{TELL}{}", include_str!("../../src/admit_plain.sql")), 52),
        ("release", include_str!("../../src/release.sql").to_owned(), 2),
        ("release known", include_str!("../../src/release_known.sql").to_owned(), 2),
        ("look", include_str!("../../src/look.sql").to_owned(), 12),
        ("changes", format!("{COUNTERS}{WAKE}{FREE}{TELL}{}", include_str!("../../src/changes.sql")), 61),
        ("changes plain", format!("{COUNTERS}{FREE}{TELL}{}", include_str!("../../src/changes_plain.sql")), 48),
        ("complete", include_str!("../../src/complete.sql").to_owned(), 10),
        ("records", include_str!("../../src/records.sql").to_owned(), 3),
        ("turn collect", include_str!("../../src/turn_collect.sql").to_owned(), 4),
        ("turn tell", include_str!("../../src/turn_tell.sql").to_owned(), 6),
        ("turn answer", include_str!("../../src/turn_answer.sql").to_owned(), 2),
        ("return", include_str!("../../src/return.sql").to_owned(), 22),
        ("find", include_str!("../../src/find.sql").to_owned(), 2),
        ("mark parents", include_str!("../../src/mark_parents.sql").to_owned(), 1),
        ("marked children", include_str!("../../src/marked_children.sql").to_owned(), 1),
        ("unmark parents", include_str!("../../src/unmark_parents.sql").to_owned(), 1),
        ("members by token", include_str!("../../src/members_by_token.sql").to_owned(), 5),
        ("members by workflow", include_str!("../../src/members_by_workflow.sql").to_owned(), 5),
        ("facts of calls", include_str!("../../src/permit_facts.sql").to_owned(), 4),
        ("end of permits", include_str!("../../src/permit_end.sql").to_owned(), 2),
        ("permits", format!("{COUNTERS}{FREE}{TELL}{}", include_str!("../../src/permit_write.sql")), 43),
        ("overdue", include_str!("../../src/overdue.sql").to_owned(), 4),
        ("explain", include_str!("../../src/explain.sql").to_owned(), 2),
        ("ask group", include_str!("../../src/ask_group.sql").to_owned(), 5),
    ] {
        let plan = plan(&mut conn, &sql, parameters).await;
        for bad in ["Seq Scan", "Hash Join", "Merge Join", "Materialize"] {
            assert!(!plan.contains(bad), "{name} has a {bad}:\n{plan}");
        }
        let whole = indexes_walked_whole(&plan);
        assert_eq!(whole, Vec::<&str>::new(), "{name} walks indexes from end to end:\n{plan}");
        if name == "look" {
            let from_the_bound =
                "Index Cond: ((flow_id = near.flow_id) AND (ROW(rank, task_id) >= ROW(near.low_rank, near.low_id)))";
            let from_the_first =
                "Index Cond: ((class = l.class) AND (kind = l.kind) AND (peer = l.peer) AND (turn >= l.low))";
            assert!(plan.contains(from_the_first), "a look walks other lines:\n{plan}");
            let walked = plan.lines().skip_while(|line| !line.contains("Index Scan using active_flow_pkey")).nth(1);
            assert!(
                walked.is_none_or(|line| line.contains("Index Cond: (flow_id = d.flow_id)")),
                "a look walks all flows:\n{plan}"
            );
            assert!(plan.contains(from_the_bound), "a claim walks what was taken before:\n{plan}");
        }
    }
}

/// Counter rows that are replaced again and again while somebody holds a snapshot.
///
/// Broken by: a plan that looks for a row in all of its index, a replacement that walks every generation before.
#[tokio::test]
async fn under_an_old_snapshot_counters_cost_the_same_however_often_they_were_replaced() {
    const REPLACED: usize = 3_000;
    /// The generations that were replaced fill some 40 pages of each table.
    const MORE_PAGES: i64 = 15;
    let cell = Cell::new().await;
    cell.add(cell.submission()).await;
    let (mut conn, mut holder) = (cell.db.connect().await, cell.db.connect().await);
    let flow: i64 = sqlx::query_scalar("SELECT flow_id FROM tidegate.flow_usage").fetch_one(&mut conn).await.unwrap();
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tidegate.task")
        .execute(&mut holder)
        .await
        .unwrap();
    let mut moves = vec!["NULL".to_owned(); 32];
    for n in [3, 4, 5, 6, 7, 8, 10, 23, 24, 25, 26, 30, 31] {
        moves[n - 1] = "ARRAY[0]".into();
    }
    moves[0] = "ARRAY[0]".into();
    moves[1] = "ARRAY['']".into();
    moves[8] = format!("ARRAY[{flow}]");
    (moves[12], moves[28]) = ("ARRAY[false]".into(), "ARRAY[false]".into());
    moves[13] = "0".into();
    let moved = format!("{COUNTERS}{FREE}{TELL} SELECT * FROM ledger");
    let statements = [
        (moved, moves.join(", ")),
        (include_str!("../../src/rotate_usage.sql").to_owned(), "ARRAY[0], ARRAY[''], 0".to_owned()),
        (include_str!("../../src/rotate_flow.sql").to_owned(), format!("ARRAY[{flow}], 0")),
    ];
    // Planned once, while the tables are small, as on a connection of ours.
    let mut planned = Vec::new();
    for (sql, arguments) in &statements {
        let mut conn = cell.db.connect().await;
        prepare(&mut conn, sql).await;
        planned.push((conn, arguments));
    }
    let mut touched = async || {
        let mut pages = Vec::new();
        for (conn, arguments) in &mut planned {
            pages.push(pages_of_prepared(conn, arguments).await);
        }
        pages
    };
    let before = touched().await;
    for (sql, arguments) in &statements[1..] {
        let again = format!(
            "PREPARE statement AS {sql}; DO $$ BEGIN FOR n IN 1..{REPLACED} LOOP EXECUTE 'EXECUTE statement({})'; END LOOP; END $$; DEALLOCATE statement",
            arguments.replace('\'', "''")
        );
        sqlx::raw_sql(AssertSqlSafe(again)).execute(&mut conn).await.unwrap();
    }
    let after = touched().await;
    let more = before.iter().zip(&after).map(|(before, after)| after - before).max();
    assert!(more <= Some(MORE_PAGES), "{before:?} pages, and {after:?} after {REPLACED} replacements");
    holder.close().await.unwrap();
}

/// The twin: without the settings, an empty database tempts the planner into walking tables.
#[tokio::test]
async fn the_check_would_see_a_table_walked() {
    let cell = Cell::new().await;
    let mut conn = cell.db.connect().await;
    sqlx::raw_sql("PREPARE statement AS SELECT * FROM tidegate.ready WHERE bytes = 1")
        .execute(&mut conn)
        .await
        .unwrap();
    let rows = sqlx::raw_sql("EXPLAIN EXECUTE statement").fetch_all(&mut conn).await.unwrap();
    assert!(rows.iter().any(|row| row.get::<String, _>(0).contains("Seq Scan")));
}
