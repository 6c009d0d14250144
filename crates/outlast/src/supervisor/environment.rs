//! The agent's environment: ours, plus the run's own variables, without any provider key.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    net::SocketAddr,
};

use outlast_core::run::{
    Command,
    token::{self, Claims, TokenKey},
};
use outlast_server::{dialect::Upstream as Provider, door::Providers};

use super::intercept::Given;
use crate::{
    agent::daemons,
    program::{mark::Mark, told},
    settings::{keys, no_proxy, upstreams::Upstream},
};

/// Facts from which the environment of one attempt is made.
pub struct Attempt<'a> {
    pub command: &'a Command,
    pub mark: &'a Mark,
    pub claims: Claims,
    pub keys: &'a [TokenKey],
    pub providers: &'a Providers,
    /// Upstreams that the user has configured by name.
    pub named: &'a [Upstream],
    pub proxy: SocketAddr,
    /// Path of the store's file, by which the agent's processes find their run; `None` for an address that
    /// contains a password.
    pub store: Option<String>,
    /// Names of variables that hold secrets of the store, and are withheld from the agent.
    pub withheld: &'a [&'a str],
    /// Address at which the run's state is served over gRPC; `None` if it is not.
    pub grpc: Option<SocketAddr>,
    /// Number of the loop's iteration, counted from 1; `None` if the run is no loop.
    pub iteration: Option<i64>,
    /// Whether an earlier attempt worked on the same run, or on the same iteration of its loop.
    pub recovered: bool,
    /// End of the newest attempt that worked on the same before, in words; `None` if there was none.
    pub last_exit: Option<String>,
    /// Path of the task context's mirror file; `None` if there is none.
    pub state_file: Option<String>,
    /// Interception of the connections that the attempt's programs make; `None` if it was not asked for.
    pub intercepted: Option<&'a Given>,
}

impl Attempt<'_> {
    /// Returns all environment variables of the agent. `ours`: the supervisor's own variables.
    ///
    /// If Outlast has a provider's key, the run token takes its place. Otherwise only the base URL changes, with the
    /// token in its path, so that the agent's own login keeps working.
    pub fn variables(
        &self,
        ours: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> BTreeMap<OsString, OsString> {
        // Our settings are not the agent's: a nested `outlast run` would take this run's budget and id.
        let foreign = |name: &OsString| {
            let name = name.to_string_lossy();
            !name.starts_with("OUTLAST_") && !self.withheld.contains(&name.as_ref())
        };
        let mut env: BTreeMap<OsString, OsString> =
            ours.into_iter().filter(|(name, _)| foreign(name)).collect();
        let mut set = |name: &str, value: String| env.insert(name.into(), value.into());
        for (name, value) in &self.command.env {
            set(name, value.clone());
        }
        let token = self.keys.first().map(|key| token::mint(key, &self.claims)).unwrap_or_default();
        let url = format!("http://{}", self.proxy);
        let with_path = format!("{url}/run/{token}");
        for (name, value) in daemons::OFF {
            set(name, value.into());
        }
        set(told::RUN_ID, self.mark.run.clone());
        set(told::MARK, self.mark.mark.clone());
        set(told::ATTEMPT, self.claims.attempt.to_string());
        set(told::URL, url.clone());
        set(told::TOKEN, token.clone());
        let where_known = [
            (told::STORE, self.store.clone()),
            (told::GRPC_URL, self.grpc.map(|grpc| grpc.to_string())),
            (told::STATE_FILE, self.state_file.clone()),
            (told::ITERATION, self.iteration.map(|iteration| iteration.to_string())),
            (told::RECOVERED, self.recovered.then(|| "1".into())),
            (told::LAST_EXIT, self.last_exit.clone()),
        ];
        for (name, value) in where_known {
            value.into_iter().for_each(|value| drop(set(name, value)));
        }
        for provider in Provider::ALL {
            let (row, has_key) = (provider.row(), self.providers.of(provider).key.is_some());
            let base = if has_key { &url } else { &with_path };
            env.insert(row.url_variable.into(), format!("{base}{}", row.url_path).into());
            // SDKs warn if several names of one key are set: a name that was not set is added only where none is.
            let is_set = |name: &&&str| env.contains_key(OsStr::new(**name));
            let mut names: Vec<&str> = row.key_variables.iter().filter(is_set).copied().collect();
            if names.is_empty() {
                names.push(keys::variable(provider));
            }
            for name in names.into_iter().filter(|_| has_key) {
                env.insert(name.into(), token.clone().into());
            }
        }
        // Models that match a named upstream are called through OpenAI's API, whose SDK requires a key.
        if self.named.iter().any(|u| !u.named.models_match.is_empty()) {
            env.entry(keys::variable(Provider::OpenAi).into()).or_insert_with(|| token.clone().into());
        }
        // Replaced as well: with an upstream's key the agent could bypass the proxy.
        for variable in self.named.iter().filter_map(|u| u.key_variable.as_ref()) {
            if env.contains_key(OsStr::new(variable)) {
                env.insert(variable.into(), token.clone().into());
            }
        }
        let stays = |entry: &str| !self.intercepted.is_some_and(|given| given.is_bypassed_by(entry));
        let straight = no_proxy::list(|name| env.get(OsStr::new(name)).cloned(), stays);
        env.extend(no_proxy::NAMES.map(|name| (name.into(), straight.clone().into())));
        if let Some(given) = self.intercepted {
            given.enter(&mut env, self.proxy, &token);
        }
        env
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outlast_core::words::{AttemptNo, Fence, RunNo, Slot};
    use outlast_server::door::{Key, Named, Provider};

    use super::*;

    fn variables(openai: Option<&str>) -> BTreeMap<OsString, OsString> {
        let key = TokenKey { id: 1, secret: [3; 32] };
        let provider = |k: Option<&str>| Provider::new("http://up", k.map(|k| Key::new(k.into()))).unwrap();
        let named = Upstream {
            named: Arc::new(Named::new(Named::name("groq").unwrap(), provider(Some("gsk-secret")))),
            key_variable: Some("GROQ_API_KEY".into()),
        };
        let attempt = Attempt {
            command: &Command::default(),
            mark: &Mark { run: "r".into(), mark: "m".into() },
            claims: Claims { run: RunNo(1), attempt: AttemptNo(2), slot: Slot(0), fence: Some(Fence(2)) },
            keys: &[key],
            providers: &Providers::new(
                |upstream| Ok::<_, ()>(provider(openai.filter(|_| upstream != super::Provider::Anthropic))),
                Vec::new(),
            )
            .unwrap(),
            named: &[named],
            proxy: "127.0.0.1:9".parse().unwrap(),
            store: Some("/var/runs.db".into()),
            withheld: &["PGPASSWORD"],
            grpc: None,
            iteration: Some(3),
            recovered: true,
            last_exit: Some("killed by SIGKILL".into()),
            state_file: Some("/var/runs.db.runs/r/active_state.json".into()),
            intercepted: None,
        };
        let ours = [
            ("OPENAI_API_KEY", "sk-secret"),
            ("GROQ_API_KEY", "gsk-secret"),
            ("GOOGLE_API_KEY", "sk-secret"),
            ("PGPASSWORD", "pg-secret"),
            ("HTTP_PROXY", "http://corp:3128"),
            ("no_proxy", ".corp"),
            ("X", "y"),
        ];
        attempt.variables(ours.map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn the_agent_sees_no_key_of_ours() {
        let env = variables(Some("sk-secret"));
        assert!(env.values().all(|v| !v.to_string_lossy().contains("sk-secret")));
        assert!(!env.contains_key(OsStr::new("PGPASSWORD")));
        assert!(env[OsStr::new("GROQ_API_KEY")].to_string_lossy().starts_with("ol_"));
        assert!(env[&OsString::from("OPENAI_API_KEY")].to_string_lossy().starts_with("ol_"));
        assert_eq!(env[&OsString::from("OPENAI_BASE_URL")], "http://127.0.0.1:9/v1");
        assert_eq!(env[&OsString::from("X")], "y");
        assert_eq!(env[OsStr::new("HTTP_PROXY")], "http://corp:3128");
        for name in ["NO_PROXY", "no_proxy"] {
            assert_eq!(env[OsStr::new(name)], "localhost,127.0.0.1,::1,.corp");
        }
        assert!(env[OsStr::new("GOOGLE_API_KEY")].to_string_lossy().starts_with("ol_"));
        assert!(!env.contains_key(OsStr::new("GEMINI_API_KEY")));
        assert_eq!(env[OsStr::new("GOOGLE_GEMINI_BASE_URL")], "http://127.0.0.1:9");
        assert_eq!(env[&OsString::from("OUTLAST_RECOVERED")], "1");
        assert_eq!(env[&OsString::from("OUTLAST_ITERATION")], "3");
        assert_eq!(env[&OsString::from("OUTLAST_STORE")], "/var/runs.db");
        let ours = env.keys().filter_map(|name| name.to_str()).filter(|name| name.starts_with("OUTLAST_"));
        let untold = |name: &&str| *name != told::STORE && !told::ALL.contains(name);
        assert_eq!(ours.filter(untold).collect::<Vec<_>>(), Vec::<&str>::new());
    }

    #[test]
    fn a_login_of_the_agents_own_keeps_working() {
        let env = variables(None);
        assert!(!env.contains_key(&OsString::from("ANTHROPIC_API_KEY")));
        let url = env[&OsString::from("ANTHROPIC_BASE_URL")].to_string_lossy().into_owned();
        assert!(url.starts_with("http://127.0.0.1:9/run/ol_"), "{url}");
    }
}
