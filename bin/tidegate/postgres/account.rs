//! Which user runs Postgres. It refuses to run as root, so root hands it to another account.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::{Gid, Uid, User, geteuid};

use super::PostgresError;

/// The accounts that root may hand Postgres to, best first. Debian's package makes the first; the second is everywhere.
const ACCOUNTS: [&str; 2] = ["postgres", "nobody"];

/// Environment that is passed on to the programs of Postgres. All else stays out: a `PGDATA`, `PGPORT` or `LANG` that was
/// meant for another server would change what they do.
const PASSED_ENVIRONMENT: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "TMPDIR"];

/// The account that runs Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Account {
    /// Ourselves, an ordinary user.
    Own(Uid),
    /// Somebody else, since we are root.
    Other(Uid, Gid),
}

impl Account {
    /// Chooses the account. A cluster that exists is run by its owner, whoever that is.
    pub(crate) fn choose(home: Option<&Path>) -> Result<Self, PostgresError> {
        let me = geteuid();
        let owner = match home {
            Some(home) => {
                let metadata = home.metadata().map_err(PostgresError::io("looking at", home))?;
                Some((home, Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid())))
            }
            None => None,
        };
        match owner {
            Some((home, owner, _)) if !me.is_root() && owner != me => {
                Err(PostgresError::Foreign { home: home.to_owned(), owner: owner.as_raw() })
            }
            _ if !me.is_root() => Ok(Account::Own(me)),
            Some((_, owner, group)) if !owner.is_root() => Ok(Account::Other(owner, group)),
            _ => Account::for_root(),
        }
    }

    fn for_root() -> Result<Self, PostgresError> {
        ACCOUNTS
            .iter()
            .find_map(|name| User::from_name(name).ok().flatten())
            .filter(|user| !user.uid.is_root())
            .map(|user| Account::Other(user.uid, user.gid))
            .ok_or(PostgresError::NoAccount)
    }

    /// A command that runs as this account, with a clean environment, no input, and a directory that anybody may be in
    /// (some programs of Postgres fail where they cannot read their own working directory).
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        for name in PASSED_ENVIRONMENT {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if let Account::Other(uid, gid) = self {
            // The standard library also drops root's supplementary groups here.
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
        command
    }

    /// Gives a path to this account, where it is not ours anyway.
    pub(crate) fn own(&self, path: &Path) -> Result<(), PostgresError> {
        match self {
            Account::Own(_) => Ok(()),
            Account::Other(uid, gid) => std::os::unix::fs::chown(path, Some(uid.as_raw()), Some(gid.as_raw()))
                .map_err(PostgresError::io("changing the owner of", path)),
        }
    }

    /// Whether this account can get to what lies in a directory: it and all above it must grant search permission. Only
    /// mode bits are read; an access list that grants more leads to the fallback place, which works as well.
    pub(crate) fn can_reach(&self, dir: &Path) -> Result<bool, PostgresError> {
        let Account::Other(uid, gid) = self else { return Ok(true) };
        let dir = dir.canonicalize().map_err(PostgresError::io("resolving", dir))?;
        for ancestor in dir.ancestors() {
            let metadata = ancestor.metadata().map_err(PostgresError::io("looking at", ancestor))?;
            if !may_search(metadata.mode(), metadata.uid() == uid.as_raw(), metadata.gid() == gid.as_raw()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The search bit that applies: exactly one of owner, group and others, the first that matches.
fn may_search(mode: u32, is_owner: bool, is_group: bool) -> bool {
    let bit = match (is_owner, is_group) {
        (true, _) => 0o100,
        (false, true) => 0o010,
        (false, false) => 0o001,
    };
    mode & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_bit_decides() {
        assert!(may_search(0o711, false, false));
        assert!(!may_search(0o700, false, false));
        assert!(may_search(0o700, true, false));
        assert!(!may_search(0o011, true, true), "an owner without the bit is not helped by the group's");
        assert!(!may_search(0o701, false, true), "a group without the bit is not helped by the others'");
    }

    #[test]
    fn a_closed_directory_anywhere_above_cuts_the_way() {
        use std::os::unix::fs::PermissionsExt;
        let top = tempfile::tempdir().unwrap();
        let below = top.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        // An account that owns nothing here.
        let stranger = Account::Other(Uid::from_raw(65_533), Gid::from_raw(65_533));
        std::fs::set_permissions(top.path(), PermissionsExt::from_mode(0o711)).unwrap();
        assert!(stranger.can_reach(&below).unwrap());
        std::fs::set_permissions(top.path(), PermissionsExt::from_mode(0o700)).unwrap();
        assert!(!stranger.can_reach(&below).unwrap());
        assert!(Account::Own(geteuid()).can_reach(&below).unwrap());
    }

    #[test]
    fn nothing_of_the_callers_environment_reaches_postgres_but_what_is_named() {
        let command = Account::Own(geteuid()).command("true");
        let names: Vec<_> = command.get_envs().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
        assert!(names.iter().all(|name| name == "LC_ALL" || PASSED_ENVIRONMENT.contains(&name.as_str())), "{names:?}");
    }
}
