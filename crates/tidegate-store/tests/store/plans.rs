//! The plans of the hot statements: index scans and nested loops only, and a claim that starts at its flow's bound.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::Cell;

const LEDGER: &str = concat!(
    include_str!("../../src/ledger_counters.sql"),
    include_str!("../../src/ledger_wake.sql"),
    include_str!("../../src/ledger_tell.sql")
);
const NOTHING_WAKES: &str =
    concat!(include_str!("../../src/ledger_counters.sql"), include_str!("../../src/ledger_tell.sql"));

/// The generic plan of a statement with so many parameters, under the settings that every transaction of ours has.
async fn plan(conn: &mut PgConnection, sql: &str, parameters: usize) -> String {
    let nulls = vec!["NULL"; parameters].join(", ");
    let set = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off; SET enable_material = off; SET enable_memoize = off";
    sqlx::raw_sql(set).execute(&mut *conn).await.unwrap();
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
        ("facts", include_str!("../../src/facts.sql").to_owned(), 9),
        ("backlog", include_str!("../../src/backlog.sql").to_owned(), 3),
        ("reserved", include_str!("../../src/reserved.sql").to_owned(), 2),
        ("claim room", include_str!("../../src/claim_room.sql").to_owned(), 4),
        ("admit", format!("{LEDGER}{}", include_str!("../../src/admit.sql")), 67),
        ("admit plain", format!("{LEDGER}{}", include_str!("../../src/admit_plain.sql")), 52),
        ("release", include_str!("../../src/release.sql").to_owned(), 2),
        ("release known", include_str!("../../src/release_known.sql").to_owned(), 2),
        ("look", include_str!("../../src/look.sql").to_owned(), 12),
        ("changes", format!("{LEDGER}{}", include_str!("../../src/changes.sql")), 61),
        ("changes plain", format!("{NOTHING_WAKES}{}", include_str!("../../src/changes_plain.sql")), 48),
        ("complete", include_str!("../../src/complete.sql").to_owned(), 10),
        ("records", include_str!("../../src/records.sql").to_owned(), 3),
        ("return", include_str!("../../src/return.sql").to_owned(), 22),
        ("find", include_str!("../../src/find.sql").to_owned(), 2),
        ("mark parents", include_str!("../../src/mark_parents.sql").to_owned(), 1),
        ("marked children", include_str!("../../src/marked_children.sql").to_owned(), 1),
        ("unmark parents", include_str!("../../src/unmark_parents.sql").to_owned(), 1),
        ("members by token", include_str!("../../src/members_by_token.sql").to_owned(), 5),
        ("members by workflow", include_str!("../../src/members_by_workflow.sql").to_owned(), 5),
        ("facts of calls", include_str!("../../src/permit_facts.sql").to_owned(), 4),
        ("end of permits", include_str!("../../src/permit_end.sql").to_owned(), 2),
        ("permits", format!("{NOTHING_WAKES}{}", include_str!("../../src/permit_write.sql")), 43),
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
