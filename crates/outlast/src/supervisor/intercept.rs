//! `--intercept`: how the programs of a run are made to reach every host through its proxy, and to trust the run's own
//! authority.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use outlast_core::{run::Command, words::Clock};
use outlast_server::{
    door::{Network, Providers, Proxy, authorities},
    intercept::{Intercept, allowed::Allowed, is_excepted},
};

use crate::{
    disk,
    program::{
        context::Context,
        error::{CliError, RunError},
        run_directory::RunDirectory,
        told,
    },
    settings::surroundings::Surroundings,
};

/// Variables that name a file of authorities *in place of* a program's own. Programs of OpenSSL, Go and Rust; Python's
/// requests; curl; Codex.
const IN_PLACE: [&str; 4] = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "CODEX_CA_CERTIFICATE"];

/// Variables that name a file of authorities *beside* a program's own. Node.js; Deno.
const BESIDE: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Interception of a run's connections, as seen by the run's supervisor.
pub enum Interception {
    Off,
    /// The proxy of the surrounding run intercepts.
    Surrounding,
    Own(Own),
}

/// Interception by the run's own proxy.
pub struct Own {
    intercept: Arc<Intercept>,
    directory: PathBuf,
    clock: Arc<dyn Clock>,
    /// Certificate files that the person's own variables name, by variable.
    named: BTreeMap<&'static str, PathBuf>,
    /// The machine's own authorities (PEM).
    machines: String,
}

/// Variables and files for interception that the programs of one attempt are given.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Files of certificate authorities, by variable. Empty inside a run that intercepts: its programs
    /// inherit the variables.
    files: BTreeMap<&'static str, PathBuf>,
    hosts: Vec<String>,
}

/// Checks whether a run can be intercepted, before it exists. Returns whether it is.
///
/// A run inside another run is served by the outer run's proxy, so that either both runs are intercepted or neither is.
/// Errors: `not_intercepted`.
pub fn check(asked: bool, confined: bool, inside: bool, around: &Surroundings) -> Result<bool, CliError> {
    let is_around = around.is_set(told::INTERCEPTED);
    let refused = |why: &str| Err(not_intercepted(why));
    match (asked, inside) {
        (true, true) if !is_around => {
            refused("the run around it is not intercepted, and its proxy serves this one")
        }
        (true, false) if confined => refused("a confined agent cannot read the files of its run"),
        (_, true) => Ok(is_around),
        (false, false) => Ok(false),
        (true, false) => {
            let variable = |name: &str| around.var(name).map(OsStr::to_owned);
            for (name, path) in named(&variable, around.directory()) {
                read(name, &path).map_err(not_intercepted)?;
            }
            authorities(&variable).map_err(not_intercepted)?;
            Ok(true)
        }
    }
}

fn not_intercepted(why: impl ToString) -> CliError {
    RunError::NotIntercepted { why: why.to_string() }.into()
}

/// Returns the files of certificate authorities that the person's variables name.
fn named(variable: &dyn Fn(&str) -> Option<OsString>, directory: &Path) -> BTreeMap<&'static str, PathBuf> {
    let all = IN_PLACE.into_iter().chain(BESIDE);
    all.filter_map(|name| Some((name, directory.join(variable(name)?)))).collect()
}

impl Interception {
    /// Prepares the interception of a run, if it was asked for. `directory`: the run's own; `inside`: whether another
    /// run's proxy serves it.
    ///
    /// Errors: `not_intercepted`.
    pub fn begin(
        providers: &Providers,
        network: Network,
        command: &Command,
        directory: Option<&RunDirectory>,
        inside: bool,
        context: &Context,
    ) -> Result<Interception, CliError> {
        let (around, clock) = (&context.around, context.clock.clone());
        let held = &command.supervision;
        if !check(held.intercept, held.confine.is_some(), inside, around)? {
            return Ok(Interception::Off);
        }
        if inside {
            return Ok(Interception::Surrounding);
        }
        let variable = |name: &str| {
            let kept = command.env.get(name).map(OsString::from);
            kept.or_else(|| around.var(name).map(OsStr::to_owned)).filter(|value| !value.is_empty())
        };
        let directory = directory.ok_or_else(|| not_intercepted("the run has no directory for its files"))?;
        let made = Intercept::new(providers, network, clock.now());
        let allowed: Option<Vec<Allowed>> =
            held.net.as_ref().map(|all| all.iter().filter_map(|host| host.parse().ok()).collect());
        let intercept = made.map_err(not_intercepted)?.only(allowed);
        let named = named(&variable, Path::new(&command.directory));
        let machines = authorities(&variable).map_err(not_intercepted)?;
        let (intercept, directory) = (Arc::new(intercept), directory.authorities());
        let own = Own { intercept, directory, clock, named, machines };
        // Before the agent is started: what cannot be had is told at once.
        own.give().map_err(not_intercepted)?;
        Ok(Interception::Own(own))
    }

    /// Returns `proxy` with this interception added.
    pub fn on(&self, proxy: Proxy) -> Proxy {
        match self {
            Interception::Own(own) => proxy.with_intercept(own.intercept.clone()),
            Interception::Off | Interception::Surrounding => proxy,
        }
    }

    /// Returns what the programs of a new attempt are given; `None` without interception.
    ///
    /// Errors: the files cannot be written.
    pub fn give(&self) -> io::Result<Option<Given>> {
        match self {
            Interception::Off => Ok(None),
            Interception::Surrounding => Ok(Some(Given::default())),
            Interception::Own(own) => own.give().map(Some),
        }
    }
}

impl Own {
    /// Makes a new certificate authority for an attempt, and writes the files by which the attempt's programs
    /// trust it.
    ///
    /// Errors: a file that a variable names cannot be read; the files cannot be written.
    fn give(&self) -> io::Result<Given> {
        let ours = self.intercept.renew(self.clock.now()).map_err(io::Error::other)?;
        let mut files: BTreeMap<&'static str, PathBuf> = BTreeMap::new();
        for name in IN_PLACE.into_iter().chain(BESIDE) {
            let (file, theirs) = match self.named.get(name) {
                Some(path) => (format!("{}.pem", name.to_lowercase()), read(name, path)?),
                None if BESIDE.contains(&name) => ("ours.pem".into(), String::new()),
                None => ("all.pem".into(), self.machines.clone()),
            };
            let path = self.directory.join(file);
            if !files.values().any(|known| *known == path) {
                let whole = format!("{}\n{ours}", theirs.trim_end());
                disk::write(&path, whole.trim_start().as_bytes())?;
            }
            files.insert(name, path);
        }
        Ok(Given { files, hosts: self.intercept.hosts() })
    }
}

/// Reads the certificate authorities in the file that a variable of the person's names.
fn read(name: &str, path: &Path) -> io::Result<String> {
    fs::read_to_string(path).map_err(|e| {
        let what =
            format!("{name} names {}, and the run's authority cannot be added to it: {e}", path.display());
        io::Error::new(e.kind(), what)
    })
}

impl Given {
    /// Changes the environment of an attempt, whose proxy is at `proxy` and whose token is `token`.
    pub fn enter(&self, env: &mut BTreeMap<OsString, OsString>, proxy: SocketAddr, token: &str) {
        // Claude Code switches features off for any value but its own.
        env.remove(OsStr::new("ANTHROPIC_BASE_URL"));
        let through = format!("http://run:{token}@{proxy}");
        for name in ["HTTPS_PROXY", "https_proxy"] {
            env.insert(name.into(), through.clone().into());
        }
        // Node.js obeys the variables of a proxy since 22.21 and 24.5, when it is told to.
        env.insert("NODE_USE_ENV_PROXY".into(), "1".into());
        env.insert(told::INTERCEPTED.into(), "1".into());
        for (name, path) in &self.files {
            env.insert(name.into(), path.into());
        }
    }

    /// Returns whether an entry of a `NO_PROXY` list leads around the proxy to an opened host.
    pub fn is_bypassed_by(&self, entry: &str) -> bool {
        let name = entry.split(':').next().unwrap_or_default().to_lowercase();
        // Hosts below an opened one are `*.HOST`.
        let is_below = |host: &str| host.strip_prefix('*').is_some_and(|below| name.ends_with(below));
        entry == "*" || self.hosts.iter().any(|host| is_excepted(host, &[entry]) || is_below(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_around_the_proxy_to_an_opened_host() {
        let hosts = vec!["api.openai.com".into(), "*.api.openai.com".into()];
        let given = Given { hosts, ..Given::default() };
        for entry in ["*", "openai.com", ".openai.com", "api.openai.com:443", "eu.api.openai.com:443"] {
            assert!(given.is_bypassed_by(entry), "{entry}");
        }
        for entry in ["localhost", ".corp", "open.ai"] {
            assert!(!given.is_bypassed_by(entry), "{entry}");
        }
    }

    #[test]
    fn programs_are_sent_through_the_proxy() {
        let files = BTreeMap::from([("SSL_CERT_FILE", PathBuf::from("/r/all.pem"))]);
        let given = Given { files, hosts: Vec::new() };
        let mut env: BTreeMap<OsString, OsString> =
            [("ANTHROPIC_BASE_URL", "http://p/run/t"), ("HTTPS_PROXY", "http://corp:3128")]
                .map(|(name, value)| (name.into(), value.into()))
                .into();
        given.enter(&mut env, "127.0.0.1:9".parse().unwrap(), "ol_x");
        let of = |name: &str| env.get(OsStr::new(name)).map(|v| v.to_string_lossy().into_owned());
        assert_eq!(of("ANTHROPIC_BASE_URL"), None);
        for name in ["HTTPS_PROXY", "https_proxy"] {
            assert_eq!(of(name).as_deref(), Some("http://run:ol_x@127.0.0.1:9"));
        }
        assert_eq!(of("SSL_CERT_FILE").as_deref(), Some("/r/all.pem"));
        assert_eq!(
            (of("NODE_USE_ENV_PROXY").as_deref(), of(told::INTERCEPTED).as_deref()),
            (Some("1"), Some("1"))
        );
    }

    #[test]
    fn a_child_is_intercepted_as_its_parent_is() {
        let around = |set: bool| {
            let variables: &[(&str, &str)] = if set { &[(told::INTERCEPTED, "1")] } else { &[] };
            Surroundings::new(variables, Path::new("/"))
        };
        let of = |asked, confined, inside, set| check(asked, confined, inside, &around(set)).ok();
        assert_eq!(of(true, false, false, false), Some(true));
        assert_eq!(of(false, false, false, false), Some(false));
        assert_eq!(of(true, true, false, false), None);
        assert_eq!(of(true, false, true, false), None);
        assert_eq!(of(false, false, true, true), Some(true));
        assert_eq!(of(false, false, true, false), Some(false));
        assert_eq!(
            of(false, false, false, true),
            Some(false),
            "a run of another store has a proxy of its own"
        );
    }
}
