//! The time that processes have spent on a processor, from `/proc`.

use std::time::Duration;

use super::report::{Figure, ratio};

/// Clock ticks a second in `/proc`: part of Linux's interface, the same on all machines whatever the kernel's own clock.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads the processor time of what is measured: much less of a machine's other work shows in it than in a rate.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    postmaster: Option<i32>,
    process: i32,
}

impl Meter {
    /// Of a Postgres, where it is ours to look at, and a process.
    pub(super) fn new(postmaster: Option<i32>, process: i32) -> Self {
        Self { postmaster, process }
    }

    /// Of a Postgres and this process.
    pub(super) fn of_ourselves(postmaster: Option<i32>) -> Self {
        Self::new(postmaster, std::process::id() as i32)
    }

    /// The time that both have spent so far. Nothing where Postgres is not ours: half of it would mislead.
    pub(super) fn read(&self) -> Option<Duration> {
        Some(of_family(self.postmaster?)? + of_process(self.process)?)
    }

    /// The time that both have spent since an earlier reading.
    pub(super) fn since(&self, earlier: Option<Duration>) -> Option<Duration> {
        Some(self.read()?.saturating_sub(earlier?))
    }
}

/// Time for so many, summed up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    time: Duration,
    count: u64,
}

impl Spent {
    /// Adds time that was spent on so many.
    pub(super) fn add(&mut self, time: Option<Duration>, count: u64) {
        if let Some(time) = time {
            self.time += time;
            self.count += count;
        }
    }

    /// Microseconds for each; none where nothing was measured.
    pub(super) fn micros(self) -> Option<f64> {
        (self.count > 0).then(|| self.time.as_secs_f64() * 1e6 / self.count as f64)
    }

    /// A figure that holds it against another.
    pub(super) fn beside(self, what: &str, name: &str, other: Self) -> Option<Figure> {
        let (ours, theirs) = (self.micros()?, other.micros()?);
        Some(Figure::new(what, ours, "µs each").beside(name, theirs, ratio(ours, theirs)))
    }
}

/// What one process says of itself.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    /// Ticks of its own.
    own: u64,
    /// Ticks of its children that have ended.
    ended_children: u64,
}

/// The time of one process.
pub(super) fn of_process(pid: i32) -> Option<Duration> {
    Some(duration(stat(pid)?.own))
}

/// The time of a process and of all that it started itself, those that have ended included.
pub(super) fn of_family(pid: i32) -> Option<Duration> {
    let parent = stat(pid)?;
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let children: u64 = pids.filter_map(stat).filter(|stat| stat.parent == pid).map(|stat| stat.own).sum();
    Some(duration(parent.own + parent.ended_children + children))
}

/// The memory of a process that is in use now, in bytes.
pub(super) fn resident_bytes(pid: i32) -> Option<u64> {
    resident(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn resident(status: &str) -> Option<u64> {
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))?;
    Some(kib.trim().parse::<u64>().ok()? * 1_024)
}

fn duration(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND)
}

fn stat(pid: i32) -> Option<Stat> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(text: &str) -> Option<Stat> {
    // The name of the program comes second, in parentheses, and may hold anything.
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: ticks(11)? + ticks(12)?,
        ended_children: ticks(13)? + ticks(14)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_is_read_whatever_the_program_is_called() {
        let text = "42 (a ) b) S 7 42 42 0 -1 4194304 100 200 0 0 5 6 70 80 20 0 1 0 100 1000 100";
        assert_eq!(parse(text), Some(Stat { parent: 7, own: 11, ended_children: 150 }));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident("Name:\tx\nVmPeak:\t  900 kB\nVmRSS:\t  12 kB\n"), Some(12 * 1_024));
        assert_eq!(resident("Name:\tx\n"), None);
        assert!(resident_bytes(std::process::id() as i32).unwrap() > 1 << 20);
    }

    #[test]
    fn work_takes_time() {
        let pid = std::process::id() as i32;
        let before = of_process(pid).unwrap();
        let mut sum = 0_u64;
        while of_process(pid).unwrap() < before + Duration::from_millis(20) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(of_family(pid).unwrap() >= before + Duration::from_millis(20));
    }
}
