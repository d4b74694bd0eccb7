//! One guarded HTTP client for everything that leaves.
