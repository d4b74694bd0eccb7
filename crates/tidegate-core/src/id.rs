//! Task ids: UUIDv7 (RFC 9562, section 5.7) with the last eight of its random bits kept for the cell.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::EpochMs;

/// The id of a task. It sorts by time of arrival and names the cell that keeps the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub Uuid);

impl TaskId {
    /// An id for a task that arrived at `now`. `random` should hold 74 random bits or a counter above random bits;
    /// of those the lowest eight are replaced by the cell's number.
    pub fn new(now: EpochMs, random: [u8; 10], cell: u8) -> Self {
        let millis = u64::try_from(now).unwrap_or(0);
        let mut random = random;
        random[9] = cell;
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// The number of the cell that keeps this task.
    pub fn cell(self) -> u8 {
        self.0.as_bytes()[15]
    }

    /// The arrival time that the id carries, in milliseconds since the epoch.
    pub fn arrived_ms(self) -> EpochMs {
        let bytes = self.0.as_bytes();
        bytes[..6].iter().fold(0, |ms, byte| ms << 8 | i64::from(*byte))
    }

    /// The smallest id that a task arriving at `at` could have: where a partition begins.
    pub fn floor(at: EpochMs) -> Uuid {
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&at.clamp(0, 0xFFFF_FFFF_FFFF).to_be_bytes()[2..]);
        Uuid::from_bytes(bytes)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for TaskId {
    type Err = uuid::Error;

    /// Parses the hyphenated form only, as the API writes it.
    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        let id: uuid::fmt::Hyphenated = text.parse()?;
        Ok(Self(id.into_uuid()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_uuid_of_version_7_that_carries_time_and_cell() {
        let id = TaskId::new(1_790_000_000_123, [0xAB; 10], 7);
        assert_eq!(id.0.get_version_num(), 7);
        assert_eq!(id.0.get_variant(), uuid::Variant::RFC4122);
        assert_eq!(id.cell(), 7);
        assert_eq!(id.arrived_ms(), 1_790_000_000_123);
        assert_eq!(id.to_string().parse::<TaskId>().ok(), Some(id));
    }

    #[test]
    fn a_floor_is_below_every_id_of_its_millisecond_and_above_those_before() {
        let floor = TaskId::floor(1_790_000_000_123);
        assert!(floor <= TaskId::new(1_790_000_000_123, [0; 10], 0).0);
        assert!(floor > TaskId::new(1_790_000_000_122, [0xFF; 10], 0xFF).0);
    }

    #[test]
    fn other_spellings_of_a_uuid_are_not_ids() {
        for bad in ["", "x", "018f0000000070008000000000000000", "{018f0000-0000-7000-8000-000000000000}"] {
            assert!(bad.parse::<TaskId>().is_err(), "{bad}");
        }
    }
}
