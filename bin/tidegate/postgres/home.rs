//! Where a cluster lives.
//!
//! Usually in `<data_dir>/postgres`. Where root runs tidegate in a directory that other users may not enter (a checkout
//! under /root), the account that runs Postgres could never get there. Then the home is a directory of its own under the
//! fallback base, and `<data_dir>/postgres` is a link to it: whoever looks finds it, and whoever deletes the data
//! directory starts empty.

use std::ffi::OsStr;
use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::PostgresError;
use super::account::Account;
use super::command::wait_for;
use super::process::{servers_below, signal};

/// What a home that is being made is called, before a random ending.
const STAGING_PREFIX: &str = "postgres.new-";

/// Longest that the removal of a cluster waits for orphans that still write into it. `initdb` as a whole takes a second.
const REMOVE_LIMIT: Duration = Duration::from_secs(30);

/// The longest path of a Unix socket on Linux, without the closing NUL.
const MAX_SOCKET_PATH: usize = 107;

/// How the files of a socket begin.
const SOCKET_PREFIX: &str = ".s.PGSQL.";

/// What Postgres puts behind the socket directory, at its longest.
const SOCKET_NAME: &str = "/.s.PGSQL.65535";

/// Where private socket directories are made when the home's path is too long.
const SHORT_BASE: &str = "/tmp";

/// How private socket directories begin, so that a stale one can be told from somebody else's.
const SHORT_PREFIX: &str = "tidegate-";

/// The home of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Home {
    /// The directory itself, free of links.
    pub(crate) path: PathBuf,
}

impl Home {
    /// The home of a data directory, if there is one.
    pub(crate) fn existing(data_dir: &Path) -> Result<Option<Self>, PostgresError> {
        let link = link(data_dir);
        if link.symlink_metadata().is_err() {
            return Ok(None);
        }
        let path = link.canonicalize().map_err(PostgresError::io("following", &link))?;
        Ok(Some(Home { path }))
    }

    /// The data directory proper, which `initdb` made.
    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// The file with the superuser's password.
    pub(crate) fn password_file(&self) -> PathBuf {
        self.path.join("password")
    }

    /// The superuser's password. It is ours, hexadecimal, and so needs no quoting in a URL.
    pub(crate) fn password(&self) -> Result<String, PostgresError> {
        let path = self.password_file();
        let text = std::fs::read_to_string(&path).map_err(PostgresError::io("reading", &path))?;
        let password = text.trim();
        if password.is_empty() || !password.bytes().all(|b| b.is_ascii_hexdigit()) {
            let why = "its password file is damaged".to_owned();
            return Err(PostgresError::NotACluster { home: self.path.clone(), why });
        }
        Ok(password.to_owned())
    }

    /// The major version that made the cluster.
    pub(crate) fn major(&self) -> Result<u32, PostgresError> {
        let refuse = |why: &str| PostgresError::NotACluster { home: self.path.clone(), why: why.to_owned() };
        let text = std::fs::read_to_string(self.data().join("PG_VERSION"));
        text.map_err(|_| refuse("it has no data/PG_VERSION"))?
            .trim()
            .parse()
            .map_err(|_| refuse("its data/PG_VERSION is not a number"))
    }

    /// A directory for the socket that only the account may enter: in the home, or, where the path would be too long for
    /// a socket or needs quoting, a new one under /tmp. Postgres itself records which in its pid file.
    pub(crate) fn make_socket_dir(&self, account: &Account) -> Result<PathBuf, PostgresError> {
        let inside = self.path.join("run");
        if fits_socket(&inside) {
            // It stays from one start to the next; only the account can have made it, for the home is closed to others.
            if !inside.is_dir() {
                make_private(&inside, account)?;
            }
            return Ok(inside);
        }
        let short = Path::new(SHORT_BASE).join(format!("{SHORT_PREFIX}{}", random_name()));
        make_private(&short, account)?;
        Ok(short)
    }
}

/// Removes a private socket directory that lies outside the home. Anything else is left alone.
pub(crate) fn remove_short_socket_dir(dir: &Path) {
    let ours = dir.parent() == Some(Path::new(SHORT_BASE))
        && dir.file_name().is_some_and(|name| name.as_bytes().starts_with(SHORT_PREFIX.as_bytes()));
    if ours {
        // Best effort: it holds nothing but a socket.
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Removes the sockets and their lock files that a dead server left in a socket directory of ours. Postgres would, but only
/// where no process at all has the pid that is written there.
pub(crate) fn clear_socket_dir(dir: &Path) -> Result<(), PostgresError> {
    let entries = std::fs::read_dir(dir).map_err(PostgresError::io("reading", dir))?;
    for entry in entries.flatten() {
        if entry.file_name().as_bytes().starts_with(SOCKET_PREFIX.as_bytes()) {
            std::fs::remove_file(entry.path()).map_err(PostgresError::io("removing", &entry.path()))?;
        }
    }
    Ok(())
}

/// A home in the making. `initdb` works here; only what is complete is renamed to its place, so that a crash half-way
/// leaves nothing that looks like a cluster.
#[derive(Debug)]
pub(crate) struct Staging {
    data_dir: PathBuf,
    target: PathBuf,
    /// The unfinished home.
    pub(crate) home: Home,
}

impl Staging {
    /// Makes an empty home where the account can reach it.
    pub(crate) fn begin(data_dir: &Path, account: &Account, fallback_base: &Path) -> Result<Self, PostgresError> {
        let staging_name = format!("{STAGING_PREFIX}{}", random_name());
        let (base, target) = if account.can_reach(data_dir)? {
            (data_dir, link(data_dir))
        } else {
            make_public(fallback_base)?;
            (fallback_base, fallback_base.join(format!("postgres-{}", random_name())))
        };
        let base = base.canonicalize().map_err(PostgresError::io("resolving", base))?;
        let home = Home { path: base.join(staging_name) };
        make_private(&home.path, account)?;
        Ok(Staging { data_dir: data_dir.to_owned(), target, home })
    }

    /// Removes what was made so far.
    pub(crate) fn abandon(self) -> Result<(), PostgresError> {
        remove_tree(&self.home.path)
    }

    /// Puts the finished home in its place.
    pub(crate) fn finish(self) -> Result<Home, PostgresError> {
        std::fs::rename(&self.home.path, &self.target).map_err(PostgresError::io("renaming", &self.home.path))?;
        let link = link(&self.data_dir);
        if self.target != link {
            std::os::unix::fs::symlink(&self.target, &link).map_err(PostgresError::io("linking", &link))?;
        }
        let path = self.target.canonicalize().map_err(PostgresError::io("resolving", &self.target))?;
        Ok(Home { path })
    }
}

/// Makes the data directory itself. Root leaves the way through open, since another account must reach the home in it; an
/// ordinary user keeps it shut.
pub(crate) fn make_data_dir(data_dir: &Path, is_root: bool) -> Result<PathBuf, PostgresError> {
    if !data_dir.is_dir() {
        let mode = if is_root { 0o711 } else { 0o700 };
        // Directories above it get the usual permissions.
        if let Some(parent) = data_dir.parent() {
            std::fs::create_dir_all(parent).map_err(PostgresError::io("creating", parent))?;
        }
        std::fs::create_dir_all(data_dir).map_err(PostgresError::io("creating", data_dir))?;
        set_permissions(data_dir, Permissions::from_mode(mode)).map_err(PostgresError::io("protecting", data_dir))?;
    }
    data_dir.canonicalize().map_err(PostgresError::io("resolving", data_dir))
}

/// Forgets a cluster and all that is in it. Its server must not be running.
pub(crate) fn destroy(data_dir: &Path, home: &Home) -> Result<(), PostgresError> {
    remove_tree(&home.path)?;
    let link = link(data_dir);
    if link.is_symlink() {
        std::fs::remove_file(&link).map_err(PostgresError::io("removing", &link))?;
    }
    Ok(())
}

fn link(data_dir: &Path) -> PathBuf {
    data_dir.join("postgres")
}

fn fits_socket(dir: &Path) -> bool {
    let bytes = dir.as_os_str().as_bytes();
    // Postgres reads a comma-separated list here, and clients find the path inside a URL: plain characters need no quotes.
    bytes.len() + SOCKET_NAME.len() <= MAX_SOCKET_PATH
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(b))
}

/// Removes what interrupted attempts left in the data directory. The caller holds its lock, so none is at work there.
pub(crate) fn sweep(data_dir: &Path) -> Result<(), PostgresError> {
    let entries = std::fs::read_dir(data_dir).map_err(PostgresError::io("reading", data_dir))?;
    for entry in entries.flatten() {
        if is_staging(&entry.file_name()) {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a directory that orphans may still be writing to: where tidegate was killed, `initdb` goes on for a moment, and
/// so do servers. They are ended, and the removal is tried again until nothing comes back.
fn remove_tree(dir: &Path) -> Result<(), PostgresError> {
    wait_for("the end of what still writes into an unfinished cluster", REMOVE_LIMIT, || {
        // Without its servers `initdb` fails, and cleans up as well: what it was quicker to remove is no error.
        for pid in servers_below(dir) {
            signal(pid, Signal::SIGKILL)?;
        }
        match std::fs::remove_dir_all(dir) {
            Ok(()) => Ok(Some(())),
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {
                Ok((!dir.exists()).then_some(()))
            }
            Err(error) => Err(PostgresError::io("removing", dir)(error)),
        }
    })
}

fn is_staging(name: &OsStr) -> bool {
    name.as_bytes().starts_with(STAGING_PREFIX.as_bytes())
}

/// Makes a directory that only the account may enter. It must not exist: in /tmp somebody may have prepared it.
fn make_private(dir: &Path, account: &Account) -> Result<(), PostgresError> {
    DirBuilder::new().mode(0o700).create(dir).map_err(PostgresError::io("creating", dir))?;
    account.own(dir)
}

/// Makes the fallback base, through which any account may pass but not look around.
fn make_public(dir: &Path) -> Result<(), PostgresError> {
    if dir.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(dir).map_err(PostgresError::io("creating", dir))?;
    set_permissions(dir, Permissions::from_mode(0o711)).map_err(PostgresError::io("opening", dir))
}

/// Twelve hexadecimal digits that nobody can guess in advance.
fn random_name() -> String {
    format!("{:012x}", rand::random::<u64>() >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::geteuid;

    fn me() -> Account {
        Account::Own(geteuid())
    }

    #[test]
    fn a_socket_path_must_be_short_and_plain() {
        assert!(fits_socket(Path::new("/var/lib/tidegate/x/run")));
        assert!(fits_socket(Path::new(&format!("/{}", "x".repeat(MAX_SOCKET_PATH - SOCKET_NAME.len() - 1)))));
        assert!(!fits_socket(Path::new(&format!("/{}", "x".repeat(MAX_SOCKET_PATH - SOCKET_NAME.len())))));
        for odd in ["/a b", "/a,b", "/a\"b", "/ä"] {
            assert!(!fits_socket(Path::new(odd)), "{odd}");
        }
    }

    #[test]
    fn what_an_interrupted_attempt_left_is_swept_and_never_taken_for_a_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let first = Staging::begin(dir.path(), &me(), Path::new("/nonexistent")).unwrap();
        std::fs::create_dir(first.home.data()).unwrap();
        assert_eq!(Home::existing(dir.path()).unwrap(), None);
        sweep(dir.path()).unwrap();
        let second = Staging::begin(dir.path(), &me(), Path::new("/nonexistent")).unwrap();
        assert!(!first.home.path.exists() && second.home.path.exists());
        let home = second.finish().unwrap();
        assert_eq!(Home::existing(dir.path()).unwrap(), Some(home));
    }

    #[test]
    fn what_is_still_written_to_is_removed_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let staging = Staging::begin(dir.path(), &me(), Path::new("/nonexistent")).unwrap().home.path;
        let (started, wait) = std::sync::mpsc::channel();
        let writer = std::thread::spawn({
            let base = staging.join("data/base");
            move || {
                // Longer than one removal takes, and far shorter than the limit.
                let until = std::time::Instant::now() + Duration::from_millis(300);
                for n in 0u64.. {
                    if std::time::Instant::now() > until {
                        break;
                    }
                    let _ = std::fs::create_dir_all(&base).and_then(|()| std::fs::write(base.join(n.to_string()), "x"));
                    let _ = started.send(());
                }
            }
        });
        wait.recv().unwrap();
        while !writer.is_finished() {
            sweep(dir.path()).unwrap();
        }
        writer.join().unwrap();
        sweep(dir.path()).unwrap();
        assert!(!staging.exists());
    }

    #[test]
    fn a_home_that_is_no_cluster_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(link(dir.path())).unwrap();
        let home = Home::existing(dir.path()).unwrap().unwrap();
        let error = home.major().unwrap_err().to_string();
        assert!(error.contains("PG_VERSION") && error.contains("--data-dir"), "{error}");
    }

    #[test]
    fn a_link_to_a_home_that_is_gone_is_an_error_not_an_empty_start() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/nonexistent/home", link(dir.path())).unwrap();
        assert!(Home::existing(dir.path()).unwrap_err().to_string().contains("postgres"));
    }

    #[test]
    fn only_our_own_short_directories_are_removed() {
        let base = tempfile::Builder::new().prefix(SHORT_PREFIX).tempdir_in(SHORT_BASE).unwrap();
        let inner = base.path().join("tidegate-inner");
        std::fs::create_dir(&inner).unwrap();
        remove_short_socket_dir(&inner);
        assert!(inner.exists());
        remove_short_socket_dir(base.path());
        assert!(!base.path().exists());
    }
}
