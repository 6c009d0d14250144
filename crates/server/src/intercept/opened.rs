//! Hosts whose connections are opened, and where the calls on them belong.

use std::{net::IpAddr, sync::Arc};

use http::Uri;

use crate::{
    dialect::{Upstream, route::loose},
    proxy::{
        named::{Named, Providers, To},
        upstream::Provider,
    },
};

/// Name of the built-in upstream for the API behind a ChatGPT login. A configured upstream of this name replaces it.
pub const CHATGPT: &str = "chatgpt";

/// API of Codex behind a ChatGPT login.
const CHATGPT_BASE: &str = "https://chatgpt.com/backend-api/codex";

/// The same API under other names of its host.
const CHATGPT_ALIASES: [&str; 2] =
    ["https://chat.openai.com/backend-api/codex", "https://gov.chatgpt.com/backend-api/codex"];

/// Hosts whose connections the proxy opens (decrypts), and the APIs on them.
pub struct Opened {
    origins: Vec<Origin>,
}

/// An API on an opened host: its requests' paths begin with `path`.
struct Origin {
    host: String,
    /// Whether every host below `host` has the same API, for a region.
    has_regions: bool,
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
    /// Base URL in place of the upstream's: that of the region to which the request was made; `None`: the upstream's.
    pub base: Option<String>,
    /// Whether the path begins letter for letter as the API's do. A path that only some servers would take for one of
    /// the API is not spelled.
    pub is_spelled: bool,
}

impl Opened {
    /// Returns the hosts that client programs call by default, and the hosts of the configured upstreams.
    ///
    /// Upstreams without TLS, and those at an address instead of a name, are not among them.
    pub fn of(providers: &Providers) -> Opened {
        let mut origins: Vec<Origin> = Upstream::ALL
            .into_iter()
            .map(|upstream| Origin {
                host: upstream.row().host.into(),
                has_regions: true,
                port: 443,
                path: String::new(),
                to: To::Own(upstream),
                is_home: is_at(&providers.of(upstream).base, upstream.row().host),
            })
            .collect();
        for upstream in Upstream::ALL {
            origins.extend(Origin::of(&providers.of(upstream).base, To::Own(upstream)));
        }
        for named in &providers.named {
            origins.extend(Origin::of(&named.provider.base, To::Named(named.clone())));
        }
        let chatgpt = providers.named(CHATGPT).cloned().unwrap_or_else(|| chatgpt(CHATGPT_BASE));
        let is_home = is_at(&chatgpt.provider.base, "chatgpt.com");
        for base in [CHATGPT_BASE].into_iter().chain(CHATGPT_ALIASES) {
            let named = if is_home && base != CHATGPT_BASE { self::chatgpt(base) } else { chatgpt.clone() };
            origins.extend(Origin::of(base, To::Named(named)).map(|origin| Origin { is_home, ..origin }));
        }
        // The longest path first; of equal ones the first that was named.
        origins.sort_by_key(|origin| std::cmp::Reverse(origin.path.len()));
        Opened { origins }
    }

    /// Returns the names of all opened hosts, each once; `*.HOST` stands for those below a host.
    pub fn hosts(&self) -> Vec<String> {
        let mut hosts: Vec<String> = self.origins.iter().map(|origin| origin.host.clone()).collect();
        let regions = self.origins.iter().filter(|origin| origin.has_regions);
        hosts.extend(regions.map(|origin| format!("*.{}", origin.host)));
        hosts.sort();
        hosts.dedup();
        hosts
    }

    pub fn has(&self, host: &str, port: u16) -> bool {
        self.origins.iter().any(|origin| origin.is_at(host, port))
    }

    /// Returns the provider whose error format the clients of a host expect.
    pub fn shape(&self, host: &str, port: u16) -> Upstream {
        self.origins.iter().find(|o| o.is_at(host, port)).map_or(Upstream::OpenAi, |origin| origin.to.shape())
    }

    /// Returns the upstream and target for an unambiguous request to an opened host; `None` if no server would take its
    /// path for one of a known API.
    pub fn place(&self, host: &str, port: u16, path_and_query: &str) -> Option<Destination> {
        self.origins.iter().filter(|origin| origin.is_at(host, port)).find_map(|origin| {
            let (below, is_spelled) = origin.below(path_and_query)?;
            let target = match &origin.to {
                To::Own(_) => below.to_owned(),
                To::Named(_) => format!("/v1{below}"),
            };
            let is_regional = origin.is_home && !host.eq_ignore_ascii_case(&origin.host);
            let base = is_regional.then(|| format!("https://{host}"));
            Some(Destination { to: origin.to.clone(), target, is_at_home: origin.is_home, base, is_spelled })
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
        let port = uri.port_u16().unwrap_or(443);
        Some(Origin { host, has_regions: false, port, path, to, is_home: true })
    }

    fn is_at(&self, host: &str, port: u16) -> bool {
        let host = host.to_ascii_lowercase();
        let is_region =
            || self.has_regions && host.strip_suffix(&self.host).is_some_and(|h| h.ends_with('.'));
        self.port == port && (host == self.host || is_region())
    }

    /// Returns the part of a target below the origin's path, and whether the path begins letter for letter like the
    /// origin's; `None` if it begins otherwise.
    fn below<'t>(&self, target: &'t str) -> Option<(&'t str, bool)> {
        let (mut rest, mut is_spelled) = (target, true);
        for wanted in self.path.split('/').skip(1) {
            let segment = rest.strip_prefix('/')?;
            let (had, below) = segment.split_at(segment.find(['/', '?']).unwrap_or(segment.len()));
            if loose(had) != loose(wanted) {
                return None;
            }
            is_spelled &= had == wanted;
            rest = below;
        }
        rest.starts_with('/').then_some((rest, is_spelled))
    }
}

/// Returns whether a base URL is at the usual port of `host`.
fn is_at(base: &str, host: &str) -> bool {
    Origin::of(base, To::Own(Upstream::OpenAi)).is_some_and(|origin| origin.is_at(host, 443))
}

/// Returns the upstream of Codex's calls under a ChatGPT login. The caller's login is passed on: there is no key.
fn chatgpt(base: &str) -> Arc<Named> {
    let provider = Provider { base: base.into(), key: None };
    Arc::new(Named { asks_usage: false, ..Named::new(CHATGPT.into(), provider) })
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
            ..Named::clone(&chatgpt(CHATGPT_BASE))
        };
        let local = Named {
            name: "local".into(),
            provider: Named::provider("http://127.0.0.1:11434/v1", None).unwrap(),
            ..groq.clone()
        };
        let at = |upstream| match upstream {
            Upstream::OpenAi => provider("https://gateway.corp:8443/openai/v1"),
            Upstream::Anthropic => provider("https://api.anthropic.com"),
            Upstream::Gemini => provider("http://127.0.0.1:9"),
        };
        let named = vec![Arc::new(groq), Arc::new(local)];
        let opened = Opened::of(&Providers::new(|upstream| Ok::<_, ()>(at(upstream)), named).unwrap());
        let check = |host: &str, port: u16, path: &str, wanted: Option<(&str, &str)>| {
            let place = opened.place(host, port, path);
            let found = place.as_ref().map(|place| (place.to.name(), place.target.as_str()));
            assert_eq!(found, wanted, "{host}:{port}{path}");
        };
        check("api.openai.com", 443, "/v1/responses?x=1", Some(("openai", "/v1/responses?x=1")));
        check("API.OpenAI.com", 443, "/v1/responses", Some(("openai", "/v1/responses")));
        check("eu.api.openai.com", 443, "/v1/responses", Some(("openai", "/v1/responses")));
        check("gov.chatgpt.com", 443, "/backend-api/codex/responses", Some(("chatgpt", "/v1/responses")));
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
        let base = |host: &str| opened.place(host, 443, "/v1/models").unwrap().base;
        assert_eq!(base("eu.api.openai.com"), None, "calls go to the gateway");
        assert_eq!(base("eu.api.anthropic.com").as_deref(), Some("https://eu.api.anthropic.com"));
        assert_eq!(base("api.anthropic.com"), None);
        assert!(opened.has("us.api.openai.com", 443) && !opened.has("evilapi.openai.com", 443));
        let is_spelled = |path: &str| opened.place("chatgpt.com", 443, path).map(|place| place.is_spelled);
        assert_eq!(is_spelled("/backend-api/codex/responses"), Some(true));
        assert_eq!(is_spelled("/Backend-API/codex/responses"), Some(false));
        assert!(opened.has("chatgpt.com", 443) && !opened.has("chatgpt.com", 80));
        assert!(!opened.has("gateway.corp", 443) && !opened.has("example.com", 443));
        assert!(opened.hosts().iter().all(|host| !host.contains("127.0.0.1")));
    }
}
