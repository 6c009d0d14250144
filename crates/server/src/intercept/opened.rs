//! Hosts whose connections are opened, and where the calls on them belong.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use http::Uri;

use crate::{
    dialect::Upstream,
    proxy::{
        named::{AuthHeader, Named, Providers, To},
        upstream::Provider,
    },
};

/// Name of the built-in upstream for the API behind a ChatGPT login. A configured upstream of this name replaces it.
pub const CHATGPT: &str = "chatgpt";

/// API of Codex behind a ChatGPT login.
const CHATGPT_BASE: &str = "https://chatgpt.com/backend-api/codex";

/// Hosts of providers that client programs call by default.
const KNOWN: [(&str, Upstream); 3] = [
    ("api.openai.com", Upstream::OpenAi),
    ("api.anthropic.com", Upstream::Anthropic),
    ("generativelanguage.googleapis.com", Upstream::Gemini),
];

/// Hosts whose connections the proxy opens (decrypts), and the APIs on them.
pub struct Opened {
    origins: Vec<Origin>,
}

/// An API on an opened host: its requests' paths begin with `path`.
struct Origin {
    host: String,
    port: u16,
    path: String,
    to: To,
    is_home: bool,
}

/// Destination of an intercepted request: its upstream, and the target that it would have on the proxy's own routes,
/// from `/v1` on.
pub struct Destination {
    pub to: To,
    pub target: String,
    /// Whether the upstream is the same host that the request was made to.
    pub is_at_home: bool,
}

impl Opened {
    /// Returns the hosts that client programs call by default, and the hosts of the configured upstreams.
    ///
    /// Upstreams without TLS, and those at an address instead of a name, are not among them.
    pub fn of(providers: &Providers) -> Opened {
        let mut origins: Vec<Origin> = KNOWN
            .into_iter()
            .map(|(host, upstream)| Origin {
                host: host.into(),
                port: 443,
                path: String::new(),
                to: To::Own(upstream),
                is_home: is_at(&providers.of(upstream).base, host),
            })
            .collect();
        for (_, upstream) in KNOWN {
            origins.extend(Origin::of(&providers.of(upstream).base, To::Own(upstream)));
        }
        for named in &providers.named {
            origins.extend(Origin::of(&named.provider.base, To::Named(named.clone())));
        }
        let chatgpt = providers.named(CHATGPT).cloned().unwrap_or_else(chatgpt);
        let is_home = is_at(&chatgpt.provider.base, "chatgpt.com");
        let chatgpt = Origin::of(CHATGPT_BASE, To::Named(chatgpt));
        origins.extend(chatgpt.map(|origin| Origin { is_home, ..origin }));
        // The longest path first; of equal ones the first that was named.
        origins.sort_by_key(|origin| std::cmp::Reverse(origin.path.len()));
        Opened { origins }
    }

    /// Returns the names of all opened hosts, each once.
    pub fn hosts(&self) -> Vec<String> {
        let mut hosts: Vec<String> = self.origins.iter().map(|origin| origin.host.clone()).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }

    pub fn has(&self, host: &str, port: u16) -> bool {
        self.origins.iter().any(|origin| origin.is_at(host, port))
    }

    /// Returns the upstream and target for a request to an opened host; `None` if its path belongs to no known API.
    pub fn place(&self, host: &str, port: u16, path_and_query: &str) -> Option<Destination> {
        self.origins.iter().filter(|origin| origin.is_at(host, port)).find_map(|origin| {
            let below = path_and_query.strip_prefix(&origin.path)?;
            let target = match &origin.to {
                _ if !below.starts_with('/') => return None,
                To::Own(_) => below.to_owned(),
                To::Named(_) => format!("/v1{below}"),
            };
            Some(Destination { to: origin.to.clone(), target, is_at_home: origin.is_home })
        })
    }
}

impl Origin {
    fn of(base: &str, to: To) -> Option<Origin> {
        let uri: Uri = base.parse().ok()?;
        let host = uri.host()?.to_ascii_lowercase();
        let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
        if uri.scheme_str() != Some("https") || is_address {
            return None;
        }
        let path = uri.path().trim_end_matches('/').to_owned();
        Some(Origin { host, port: uri.port_u16().unwrap_or(443), path, to, is_home: true })
    }

    fn is_at(&self, host: &str, port: u16) -> bool {
        self.port == port && self.host.eq_ignore_ascii_case(host)
    }
}

/// Returns whether a base URL is at the usual port of `host`.
fn is_at(base: &str, host: &str) -> bool {
    Origin::of(base, To::Own(Upstream::OpenAi)).is_some_and(|origin| origin.is_at(host, 443))
}

/// Returns the upstream of Codex's calls under a ChatGPT login. The caller's login is passed on: there is no key.
fn chatgpt() -> Arc<Named> {
    Arc::new(Named {
        name: CHATGPT.into(),
        provider: Provider { base: CHATGPT_BASE.into(), key: None },
        auth: AuthHeader::Bearer,
        wants_key: None,
        models: BTreeMap::new(),
        models_match: Vec::new(),
        rate: None,
        prices: None,
        asks_usage: false,
        cost_field: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_belongs_to_the_upstream_of_its_host_and_path() {
        let provider = |base: &str| Provider::new(base, None).unwrap();
        let groq = Named {
            name: "groq".into(),
            provider: Named::provider("https://api.groq.test/openai/v1", None).unwrap(),
            ..Named::clone(&chatgpt())
        };
        let local = Named {
            name: "local".into(),
            provider: Named::provider("http://127.0.0.1:11434/v1", None).unwrap(),
            ..groq.clone()
        };
        let opened = Opened::of(&Providers {
            openai: provider("https://gateway.corp:8443/openai/v1"),
            anthropic: provider("https://api.anthropic.com"),
            gemini: provider("http://127.0.0.1:9"),
            named: vec![Arc::new(groq), Arc::new(local)],
        });
        let check = |host: &str, port: u16, path: &str, wanted: Option<(&str, &str)>| {
            let place = opened.place(host, port, path);
            let found = place.as_ref().map(|place| (place.to.name(), place.target.as_str()));
            assert_eq!(found, wanted, "{host}:{port}{path}");
        };
        check("api.openai.com", 443, "/v1/responses?x=1", Some(("openai", "/v1/responses?x=1")));
        check("API.OpenAI.com", 443, "/v1/responses", Some(("openai", "/v1/responses")));
        check("gateway.corp", 8443, "/openai/v1/responses", Some(("openai", "/v1/responses")));
        check("gateway.corp", 8443, "/login", None);
        check("api.anthropic.com", 443, "/v1/messages", Some(("anthropic", "/v1/messages")));
        check("generativelanguage.googleapis.com", 443, "/v1beta/models", Some(("gemini", "/v1beta/models")));
        check("api.groq.test", 443, "/openai/v1/chat/completions", Some(("groq", "/v1/chat/completions")));
        check("api.groq.test", 443, "/openai/v1x", None);
        check("chatgpt.com", 443, "/backend-api/codex/responses", Some(("chatgpt", "/v1/responses")));
        check("chatgpt.com", 443, "/backend-api/me", None);
        check("127.0.0.1", 11434, "/v1/chat/completions", None);
        let is_home = |host: &str, path: &str| opened.place(host, 443, path).unwrap().is_at_home;
        assert!(
            is_home("api.anthropic.com", "/v1/models") && is_home("chatgpt.com", "/backend-api/codex/models")
        );
        assert!(!is_home("api.openai.com", "/v1/models"), "calls go to the gateway");
        assert!(opened.has("chatgpt.com", 443) && !opened.has("chatgpt.com", 80));
        assert!(!opened.has("gateway.corp", 443) && !opened.has("example.com", 443));
        assert!(opened.hosts().iter().all(|host| !host.contains("127.0.0.1")));
    }
}
