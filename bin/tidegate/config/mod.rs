//! The configuration: whole, typed and checked before anything starts.
//!
//! `config/default.toml` is compiled in and explains every key; over it go the files and then the environment.

mod check;
mod dormant;
mod error;
mod executors;
mod kinds;
mod layers;
mod listen;
mod planned;
#[cfg(test)]
mod reference;
mod secret;
mod sections;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::class_rules::ClassRule;
use tidegate_core::limits::Limits;
use tidegate_core::peer::PeerLimits;
use tidegate_core::tenant::TenantLimits;
use tidegate_core::{Kind, PeerName, TenantId};

pub(crate) use error::{ConfigError, Problem};
pub(crate) use kinds::KindConfig;
pub(crate) use listen::{Listen, OpenToAll, refuse_open_to_all};
pub(crate) use planned::{Cost, Quarantine};
pub(crate) use secret::{Secret, SecretUrl};
pub(crate) use sections::{Keeper, Log, LogFormat, Outbound, Retention, Server, Store, Worker};

/// The defaults, as they are documented.
pub(crate) const DEFAULTS: &str = include_str!("../../../config/default.toml");

/// A time of the configuration.
pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) server: Server,
    pub(crate) store: Store,
    pub(crate) limits: Limits,
    pub(crate) worker: Worker,
    pub(crate) keeper: Keeper,
    pub(crate) retention: Retention,
    pub(crate) outbound: Outbound,
    pub(crate) log: Log,
    pub(crate) quarantine: Quarantine,
    pub(crate) cost: Cost,
    #[serde(default)]
    pub(crate) kinds: BTreeMap<Kind, KindConfig>,
    #[serde(default)]
    pub(crate) tenants: BTreeMap<TenantId, TenantLimits>,
    #[serde(default)]
    pub(crate) peers: BTreeMap<PeerName, PeerLimits>,
    #[serde(default)]
    pub(crate) class_rules: Vec<ClassRule>,
}

impl Config {
    /// Reads the defaults, the files in their order and the environment, and checks the whole.
    pub(crate) fn load(
        files: &[PathBuf],
        vars: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let mut layers = layers::Layers::default();
        layers.add_text(DEFAULTS, "defaults")?;
        for file in files {
            layers.add_file(file)?;
        }
        layers.add_env(vars)?;
        let config: Self = layers.parse()?;
        let problems = check::problems(&config);
        let problems = problems.into_iter().map(|(key, what)| Problem::new(&key, layers.origin(&key), &what));
        ConfigError::unless_empty(problems.collect())?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, vars: &[(&str, &str)]) -> Result<Config, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let vars = vars.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let name = file.path().display().to_string();
        Config::load(&[file.path().to_owned()], vars).map_err(|error| error.to_string().replace(&name, "FILE"))
    }

    #[test]
    fn the_defaults_are_those_of_the_core_and_need_nothing_else() {
        let config = load("", &[]).unwrap();
        assert_eq!(config.limits, Limits::default());
        assert_eq!(config.kinds.len(), 3);
        for kind in config.kinds.values() {
            assert_eq!(kind.policy(), tidegate_core::kind_policy::KindPolicy::default());
        }
        assert!(config.dormant().is_empty());
    }

    #[test]
    fn the_files_that_come_with_the_project_can_be_used() {
        for name in ["development.toml", "production.example.toml"] {
            let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
            Config::load(&[path], std::iter::empty()).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn files_go_over_the_defaults_and_the_environment_over_files() {
        let text = "[worker]\nslots = 3\nlease_ms = 9000\n[limits.classes.standard]\nshed_at = \"unset\"";
        let config = load(text, &[("TIDEGATE__WORKER__SLOTS", "5")]).unwrap();
        assert_eq!((config.worker.slots, config.worker.lease_ms), (5, 9_000));
        assert_eq!(config.limits.classes.standard.shed_at, None);
        assert_eq!(config.limits.classes.standard.from, 40);
    }

    #[test]
    fn an_error_names_the_key_its_origin_and_what_is_wrong() {
        for (text, parts) in [
            ("[limits]\nmax_queud = 1", ["limits.max_queud (FILE)", "unknown field `max_queud`", "max_queued"]),
            (
                "[worker]\nslots = \"many\"",
                ["worker.slots (FILE)", "must be a whole number", "not the string \"many\""],
            ),
            ("[worker]\nslots = -1", ["worker.slots (FILE)", "must be a whole number", "not -1"]),
            ("[worker]\nslots = 0", ["worker.slots (FILE)", "must be", "1"]),
            ("[limits]\nageing_step_ms = 0", ["limits.ageing_step_ms (FILE)", "must be", "1"]),
            ("[wroker]", ["wroker (FILE)", "unknown field", "worker"]),
            ("[kinds.\"a b\"]\nexecutor = \"echo\"", ["kinds", "FILE", "must be 1 to 128 characters"]),
            ("[kinds.x]\nexecutor = \"model\"", ["kinds.x.executor (FILE)", "\"model\" is not available yet", "http"]),
            ("[kinds.x]\nexecutor = \"http\"", ["kinds.x.http (FILE)", "url", "needs"]),
            ("[kinds.x]\nmax_attempts = 1", ["kinds.x.executor (FILE)", "is missing", "echo"]),
            (
                "[kinds.x]\nexecutor = \"http\"\nhttp = { url = \"http://10.0.0.1/\" }",
                ["kinds.x.http.url (FILE)", "neither public nor in an allowed network", "[outbound] allow_networks"],
            ),
            (
                "[kinds.x]\nexecutor = \"http\"\nhttp = { url = \"https://x.example/\", headers = { x-fence = \"1\" } }",
                ["kinds.x.http.headers (FILE)", "x-fence", "cannot be set"],
            ),
            ("[tenants.a]\nweight = 0", ["tenants.a.weight (FILE)", "must be 0.001", "1000000"]),
            ("[tenants.a]\nmax_queud = 0", ["tenants.a.max_queud (FILE)", "unknown field", "max_queued"]),
            ("[peers.a]\nbreaker = { probes = 0 }", ["peers.a.breaker.probes (FILE)", "must be 1 to 1000", "0"]),
            ("[limits]\nmax_timeout_ms = 10", ["limits.default_timeout_ms", "not above", "max_timeout_ms"]),
            ("[[class_rules]]\nwhen = {}", ["class_rules.0 (FILE)", "either priority", "add"]),
            ("[[class_rules]]\nwhen = {}\nadd = 101", ["class_rules.0.add (FILE)", "must be", "100"]),
            ("[peers.a]\naimd = { initial = 5 }", ["peers.a.aimd.min (FILE)", "is missing", ""]),
            ("[server]\nlisten = \"8080\"", ["server.listen (FILE)", "an address and a port", "127.0.0.1:8080"]),
            ("[outbound]\nallow_networks = [\"x\"]", ["outbound.allow_networks[0] (FILE)", "invalid", "IP"]),
        ] {
            let error = load(text, &[]).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{part:?} is not in {error}");
            }
        }
        let error = load("", &[("TIDEGATE__WORKER__SLOTS", "many")]).unwrap_err();
        assert!(error.contains("worker.slots (environment, TIDEGATE__WORKER__SLOTS)"), "{error}");
        for value in ["4", "many", "[1]"] {
            let error = load("", &[("TIDEGATE__WORKER", value)]).unwrap_err();
            assert!(
                error.contains("worker (environment, TIDEGATE__WORKER): must be a section with keys of its own, not "),
                "{error}"
            );
        }
    }

    #[test]
    fn a_list_is_no_section() {
        for (text, key) in [
            ("[limits]\nclasses = []", "limits.classes"),
            ("[limits.classes]\ncritical = []", "limits.classes.critical"),
            ("limits = [7]", "limits"),
            ("[tenants]\na = []", "tenants.a"),
            ("[tenants.a]\nclasses = { background = [1, 2] }", "tenants.a.classes.background"),
            ("[peers.a]\nretry_budget = [0.5, 3]", "peers.a.retry_budget"),
            ("[peers.a]\nbreaker = []", "peers.a.breaker"),
            ("[peers.a]\naimd = [4, 1, 8]", "peers.a.aimd"),
            ("class_rules = [[]]", "class_rules[0]"),
            ("class_rules = [{ when = [], add = 1 }]", "class_rules[0].when"),
            ("quarantine = [3]", "quarantine"),
        ] {
            let error = load(text, &[]).unwrap_err();
            let said = format!("{key} (FILE): must be a section with keys of its own, not a list");
            assert!(error.ends_with(&said), "{text}: {error}");
        }
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let error =
            load("[worker]\nslots = 0\nlease_ms = 1", &[("TIDEGATE__RETENTION__PARTITION_MS", "1")]).unwrap_err();
        for key in ["worker.slots", "worker.lease_ms", "retention.partition_ms"] {
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn what_is_kept_for_later_is_named() {
        let text = "[tenants.acme]\nweight = 2.0\nmax_queued = 1\n[tenants.b]\nmax_queued = 1\n[peers.p]\nmax_in_flight = 1\nmax_wait_ms = 9\n\
                    breaker = { failures = 9 }\n[quarantine]\nthreshold = 3\nhold_ms = 1000\n[limits]\nmax_tokens = 9\n\
                    [limits.classes.standard]\nreserve = 0.5\npromote_after_ms = 5\nshed_at = 0.5\n[kinds.echo]\ncost_overrun = 3.0\n\
                    [[class_rules]]\nwhen = {}\nadd = 1";
        let expected = ["peers.p.breaker", "limits.classes.standard.promote_after_ms", "kinds.echo.cost_overrun"];
        assert_eq!(load(text, &[]).unwrap().dormant(), expected);
    }

    #[test]
    fn secrets_do_not_survive_printing() {
        let text = "[store]\nurl = \"postgres://u:s3cret@db/x\"\n[kinds.x]\nexecutor = \"http\"\n\
                    http = { url = \"https://tool.example/?key=s3cret\", headers = { authorization = \"s3cret\" } }";
        let config = load(text, &[]).unwrap();
        let printed =
            [format!("{config:?}"), toml::to_string_pretty(&config).unwrap(), serde_json::to_string(&config).unwrap()];
        for text in printed {
            assert!(!text.contains("s3cret"), "{text}");
            assert!(text.contains("tool.example"), "{text}");
        }
    }
}
