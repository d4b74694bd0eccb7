//! The pages of `docs/errors/`, one for each reason: what a problem's `type` leads to, and where its title and its
//! usual detail come from.

use std::collections::HashMap;
use std::sync::LazyLock;

macro_rules! pages {
    ($($name:literal)*) => {
        const TEXTS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors/", $name, ".md"))),)*
        ];
    };
}

pages! {
    "already_ended" "attempt_timeout" "attempts_exhausted" "body_incomplete" "body_timeout" "body_too_large"
    "bulkhead_full" "byte_budget" "cancel_requested" "class_queue_limit" "cost_budget" "cost_overrun"
    "deadline_passed" "deadline_too_short" "deferred_full" "depth_exhausted" "displaced" "draining" "duplicate_field"
    "duplicate_header" "fanout_exhausted" "forbidden" "handed_back" "headers_too_large" "ingest_full" "input_required"
    "internal_error" "invalid_json" "invalid_value" "key_in_flight" "key_reused" "low_priority" "malformed_request"
    "method_not_allowed" "missing_field" "not_found" "not_served_yet" "outcome_unknown" "output_rejected" "overload"
    "parent_cancelled" "parent_not_running" "paused" "payload_too_large" "peer_busy" "peer_unavailable"
    "permanent_error" "quarantined" "queue_full" "remote_failed" "remote_rejected" "retry_backoff" "retry_budget"
    "retry_no_time" "scheduled" "snoozed" "store_unavailable" "tenant_bytes" "tenant_cost" "tenant_paused"
    "tenant_queue_limit" "tenant_rate" "tenant_tokens" "token_budget" "token_cancelled" "unauthorized" "unknown_field"
    "unsupported_media_type" "uri_too_long" "waiters_full" "worker_lost" "workflow_cancelled"
}

/// One page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    /// Its heading.
    pub(crate) title: &'static str,
    /// Its first paragraph, which is one line.
    pub(crate) summary: &'static str,
    /// All of it, as Markdown.
    pub(crate) text: &'static str,
}

static PAGES: LazyLock<HashMap<&'static str, Page>> =
    LazyLock::new(|| TEXTS.iter().map(|(name, text)| (*name, parse(text))).collect());

/// The page of a reason. Every reason has one (a test says so); an unknown one gets an empty page.
pub(crate) fn page(reason: &str) -> Page {
    find(reason).unwrap_or(Page { title: "Refused", summary: "The request was refused.", text: "" })
}

/// The page of that name, if there is one.
pub(crate) fn find(reason: &str) -> Option<Page> {
    PAGES.get(reason).copied()
}

/// Every page, by the name of its reason.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, Page)> {
    TEXTS.iter().map(|(name, _)| (*name, page(name)))
}

/// Where the page of a reason is served.
pub(crate) fn path(reason: &str) -> String {
    format!("/docs/errors/{reason}")
}

fn parse(text: &'static str) -> Page {
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let title = lines.next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
    Page { title, summary: lines.next().unwrap_or_default(), text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Reason;
    use tidegate_wire::Fault;

    #[test]
    fn every_reason_has_a_page_with_a_title_and_a_summary() {
        let names =
            Reason::ALL.iter().map(|reason| reason.as_str()).chain(Fault::ALL.iter().map(|fault| fault.as_str()));
        let mut count = 0;
        for name in names {
            let page = find(name).unwrap_or_else(|| panic!("docs/errors/{name}.md is missing"));
            assert!(page.title.len() > 3 && page.summary.ends_with('.'), "{name}: {page:?}");
            assert!(page.text.lines().count() >= 7, "{name} says too little");
            count += 1;
        }
        assert_eq!(count, TEXTS.len(), "a page belongs to no reason");
    }
}
