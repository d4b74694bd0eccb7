//! Background upkeep: expire, reap, promote, prune.
