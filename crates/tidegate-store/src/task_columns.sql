SELECT t.id, t.tenant, t.kind, t.peer, t.class, t.priority, t.priority_notes, t.enqueued_ms, t.deadline_ms, t.max_attempts, t.attempt_timeout_ms,
    t.min_useful_ms, t.admission_wait_ms, t.detail, t.note, t.finished_ms, t.tokens, t.usd_micros, t.actual_tokens, t.actual_usd_micros, t.progress,
    t.payload, t.result, t.error_type, t.error_message, t.error_retryable, t.labels::text AS labels, t.workflow_id, t.parent_id,
    t.cancellation_token, t.idempotency_key, t.redriven_from, t.cancel_requested_ms, t.cancel_acknowledged_ms, n.now_ms,
    coalesce(t.status, CASE
        WHEN l.task_id IS NOT NULL THEN 'RUNNING'
        WHEN w.task_id IS NOT NULL THEN 'DEFERRED'
        WHEN f.lane = 0 THEN 'ADMITTED'
        ELSE 'QUEUED' END) AS status,
    coalesce(t.reason, w.reason) AS reason,
    CASE WHEN t.status IS NULL THEN w.eligible_ms ELSE t.not_before_ms END AS not_before_ms,
    coalesce(l.started_ms, t.started_ms) AS started_ms,
    coalesce(l.deliveries, t.deliveries) AS deliveries,
    CASE WHEN l.task_id IS NOT NULL THEN l.failures + 1 ELSE t.attempt END::int AS attempt,
    coalesce(s.worker, t.worker) AS worker,
    coalesce(c.delivered_ms, t.cancel_delivered_ms) AS cancel_delivered_ms
