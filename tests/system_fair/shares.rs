//! Shares of the workers' time: by weight, and by cost, not by count (C32).

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::json;
use tidegate_testkit::{poll_until, short_or_long};

use crate::fleet::Fleet;
use crate::{now_ms, patient_fleet, sleep_of, submit_many};

const STANDARD: u8 = 60;
/// Longer than the longest of these takes.
const LIMIT: Duration = Duration::from_secs(300);
/// Worker time of a tenant within a span: what ended, and what runs.
const WORKED: &str = "SELECT coalesce(sum(least(coalesce(r.finished_ms, $3), $3) - greatest(r.started_ms, $2)), 0)::bigint FROM ( \
        SELECT t.started_ms, t.finished_ms FROM tidegate.task t WHERE t.tenant = $1 AND t.finished_ms > $2 \
        UNION ALL SELECT l.started_ms, NULL FROM tidegate.lease l JOIN tidegate.task t ON t.id = l.task_id WHERE t.tenant = $1 \
    ) r WHERE r.started_ms < $3";

/// A tenant with more work than is done meanwhile.
struct Busy {
    name: &'static str,
    weight: f64,
    run_ms: RangeInclusive<u64>,
    tasks: usize,
}

async fn worked_ms(fleet: &Fleet, tenant: &str, span: &Range<i64>) -> f64 {
    let mut connection = fleet.db.connect().await;
    let query = sqlx::query_scalar::<_, i64>(WORKED).bind(tenant.to_owned()).bind(span.start).bind(span.end);
    query.fetch_one(&mut connection).await.unwrap() as f64
}

/// The part of the first in the worker time of both, over so many seconds once so many are over.
async fn share(slots: u32, tenants: [Busy; 2], settle: i64, seconds: i64) -> f64 {
    let fleet = patient_fleet().await;
    let server = fleet.serve().await;
    for tenant in &tenants {
        let (path, weight) = (format!("/v1/admin/tenants/{}", tenant.name), json!({"weight": tenant.weight}));
        let answer = server.caller.send_with(Method::PATCH, &path, &[], &weight).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        submit_many(&server.caller, tenant.name, tenant.tasks, || sleep_of(&tenant.run_ms, STANDARD)).await;
    }
    let _worker = fleet.worker(slots).await;
    let from = now_ms(&fleet).await + settle * 1_000;
    let span = from..from + seconds * 1_000;
    poll_until(LIMIT, "the end of the span", async || (now_ms(&fleet).await >= span.end).then_some(())).await;
    let mut worked = Vec::new();
    for tenant in &tenants {
        worked.push(worked_ms(&fleet, tenant.name, &span).await);
        let sql = format!("SELECT count(*) FROM tidegate.task WHERE tenant = '{}' AND status IS NULL", tenant.name);
        let left = crate::fleet::number(fleet.db.url(), &sql).await;
        assert!(left > i64::from(slots), "{} ran out of work", tenant.name);
    }
    let all: f64 = worked.iter().sum();
    let used = all / (f64::from(slots) * (seconds * 1_000) as f64);
    eprintln!("worker time: {worked:?} ms, {:.0} % of the slots", used * 100.0);
    worked[0] / all
}

fn assert_near(got: f64, wanted: f64, percent: f64) {
    assert!((got / wanted - 1.0).abs() <= percent / 100.0, "{got:.3} is not within {percent} % of {wanted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_of_one_and_three_share_real_workers() {
    let busy = |name, weight, tasks| Busy { name, weight, run_ms: 20..=60, tasks };
    let tenants = [busy("light", 1.0, short_or_long(2_000, 8_000)), busy("heavy", 3.0, short_or_long(4_000, 18_000))];
    let got = share(10, tenants, 1, short_or_long(8, 60)).await;
    assert_near(got, 0.25, short_or_long(10.0, 5.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_and_long_tasks_get_the_same_time_of_real_workers() {
    let busy = |name, ms, tasks| Busy { name, weight: 1.0, run_ms: ms..=ms, tasks };
    let tenants = [busy("short", 10, short_or_long(5_000, 20_000)), busy("long", 1_000, short_or_long(100, 300))];
    let got = share(4, tenants, 6, short_or_long(10, 60)).await;
    assert_near(got, 0.5, short_or_long(10.0, 5.0));
}
