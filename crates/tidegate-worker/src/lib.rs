//! Claim, run, heartbeat, settle and drain.
