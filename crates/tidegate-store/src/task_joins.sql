CROSS JOIN (SELECT tidegate.now_ms() AS now_ms) n
LEFT JOIN tidegate.flow f ON f.id = t.flow_id AND t.status IS NULL
LEFT JOIN tidegate.deferred w ON w.task_id = t.id AND t.status IS NULL
LEFT JOIN tidegate.lease l ON l.task_id = t.id AND t.status IS NULL
LEFT JOIN tidegate.session s ON s.id = l.session_id
LEFT JOIN tidegate.cancel_request c ON c.task_id = t.id AND t.status IS NULL
