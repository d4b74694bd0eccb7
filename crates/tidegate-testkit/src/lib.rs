//! For tests: a database each, fake peers, a fault proxy.
