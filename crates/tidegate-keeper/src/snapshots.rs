//! Watches for snapshots that somebody holds in our database. No claim walks the dead rows that they keep, but nothing is
//! cleaned up meanwhile, and somebody should know before the disk does.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_store::{SnapshotHolder, Store};
use tokio::time::{Instant, sleep};

use crate::{KeeperOptions, failed};

/// How often a snapshot that goes on being held is warned of again.
const WARN_EVERY: Duration = Duration::from_secs(300);

/// Looks again and again, tells the metric, and warns.
pub(crate) async fn watch(store: Store, options: KeeperOptions) {
    let (mut known, mut warned) = (Known::default(), None::<Instant>);
    loop {
        match store.snapshot_holders().await {
            Ok(holders) => {
                let oldest = known.look(holders, Instant::now());
                let held = oldest.as_ref().map_or(Duration::ZERO, |(held, _)| *held);
                metrics::gauge!("tidegate_oldest_snapshot_seconds").set(held.as_secs_f64());
                match oldest.filter(|(held, _)| *held >= options.snapshot_alert) {
                    None => warned = None,
                    Some((held, holder)) if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) => {
                        tracing::warn!(
                            held_s = held.as_secs(),
                            ?holder,
                            "somebody holds an old snapshot: dead rows cannot be cleaned up"
                        );
                        warned = Some(Instant::now());
                    }
                    Some(_) => {}
                }
            }
            Err(error) => failed("snapshots", &error),
        }
        sleep(options.snapshot_interval).await;
    }
}

/// Who was there at the last look, and since when: who it is, and the transaction that it goes back to. As many as one
/// look tells of.
#[derive(Debug, Default)]
struct Known(HashMap<(String, String), Instant>);

impl Known {
    /// Takes in what was found, and returns the one that has held its snapshot for longest, with how long at least.
    /// Whoever was not there at the last look is not counted: what moves on between two looks holds nothing up, however
    /// long its transaction has been open.
    fn look(&mut self, found: Vec<SnapshotHolder>, now: Instant) -> Option<(Duration, String)> {
        let (mut known, mut oldest) = (HashMap::new(), None::<(Duration, String)>);
        for SnapshotHolder { who, xid, age_ms } in found {
            let key = (who, xid);
            let since = self.0.get(&key).copied();
            if let Some(since) = since {
                let told = age_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
                let held = told.unwrap_or_default().max(now.saturating_duration_since(since));
                if oldest.as_ref().is_none_or(|(most, _)| held > *most) {
                    oldest = Some((held, key.0.clone()));
                }
            }
            known.insert(key, since.unwrap_or(now));
        }
        self.0 = known;
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_secs(20);

    fn holder(who: &str, xid: u32, age_s: Option<i64>) -> SnapshotHolder {
        SnapshotHolder { who: who.to_owned(), xid: xid.to_string(), age_ms: age_s.map(|s| s * 1_000) }
    }

    fn oldest(known: &mut Known, at: Instant, found: &[SnapshotHolder]) -> Option<(u64, String)> {
        known.look(found.to_vec(), at).map(|(held, who)| (held.as_secs(), who))
    }

    #[test]
    fn what_is_there_at_two_looks_is_held_and_what_moves_on_is_not() {
        let (mut known, start) = (Known::default(), Instant::now());
        let long = |xid| holder("long", xid, Some(500));
        assert_eq!(oldest(&mut known, start, &[long(7)]), None);
        assert_eq!(oldest(&mut known, start + LOOK, &[long(8)]), None, "its snapshot moved on");
        assert_eq!(oldest(&mut known, start + LOOK * 2, &[long(8)]), Some((500, "long".into())));
        assert_eq!(oldest(&mut known, start + LOOK * 3, &[]), None);
        assert_eq!(oldest(&mut known, start + LOOK * 4, &[long(8)]), None, "it was gone meanwhile");
    }

    #[test]
    fn where_the_database_does_not_say_since_when_the_first_look_counts() {
        let (mut known, start) = (Known::default(), Instant::now());
        let found = [holder("hidden", 7, None), holder("young", 9, Some(25))];
        assert_eq!(oldest(&mut known, start, &found), None);
        assert_eq!(oldest(&mut known, start + LOOK, &found), Some((25, "young".into())));
        assert_eq!(oldest(&mut known, start + LOOK * 2, &found), Some((40, "hidden".into())));
    }
}
