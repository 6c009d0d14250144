//! Copilot CLI's variables. It is used with a key of the person's own for OpenAI's or Anthropic's API ("bring your own
//! key"); what else is known of it is in its file.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

use outlast_core::run::token::looks_like_token;

use crate::settings::keys;
use outlast_server::dialect::Upstream;

const URL: &str = "COPILOT_PROVIDER_BASE_URL";
const KIND: &str = "COPILOT_PROVIDER_TYPE";
const KEY: &str = "COPILOT_PROVIDER_API_KEY";

/// Variables with other credentials, each of which takes precedence over the key.
const OTHER_KEYS: [&str; 2] = ["COPILOT_PROVIDER_API_KEY_COMMAND", "COPILOT_PROVIDER_BEARER_TOKEN"];

/// Hosts whose calls the proxy can take instead.
const HOSTS: [&str; 2] = ["https://api.openai.com", "https://api.anthropic.com"];

/// Points a provider that the person has chosen at the proxy. Nobody's GitHub plan is exchanged for a key.
pub fn environment(env: &mut BTreeMap<OsString, OsString>) {
    let text = |name: &str| env.get(OsStr::new(name)).and_then(|v| v.to_str()).filter(|v| !v.is_empty());
    let url = text(URL);
    let is_chosen = url.is_some() || text(KIND).is_some() || text(KEY).is_some();
    // A provider elsewhere stays where it is.
    let is_elsewhere = url.is_some_and(|url| !HOSTS.iter().any(|host| is_at(url, host)));
    let upstream = match text(KIND) {
        None | Some("openai") => Upstream::OpenAi,
        Some("anthropic") => Upstream::Anthropic,
        Some(_) => return,
    };
    let (base, key) = (text(upstream.row().url_variable), text(keys::variable(upstream)));
    let Some(base) = base.filter(|_| is_chosen && !is_elsewhere) else { return };
    let (base, token) = (base.to_owned(), key.filter(|key| looks_like_token(key)).map(str::to_owned));
    env.insert(URL.into(), base.into());
    if let Some(token) = token {
        env.insert(KEY.into(), token.into());
        for other in OTHER_KEYS {
            env.remove(OsStr::new(other));
        }
    }
}

fn is_at(url: &str, host: &str) -> bool {
    url.strip_prefix(host).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_provider_that_the_person_chose_is_pointed_at_the_proxy() {
        let of = |set: &[(&str, &str)]| {
            let mut env: BTreeMap<OsString, OsString> =
                set.iter().map(|(name, value)| (name.into(), value.into())).collect();
            env.insert("OPENAI_BASE_URL".into(), "http://p/v1".into());
            env.insert("ANTHROPIC_BASE_URL".into(), "http://p".into());
            environment(&mut env);
            let get = |name: &str| env.get(OsStr::new(name)).map(|v| v.to_string_lossy().into_owned());
            (get(URL), get(KEY), get(OTHER_KEYS[1]))
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(of(&[("OPENAI_API_KEY", "ol_x")]), (None, None, None), "the login at GitHub stays");
        assert_eq!(
            of(&[(KIND, "openai"), ("OPENAI_API_KEY", "ol_x")]),
            (text("http://p/v1"), text("ol_x"), None)
        );
        assert_eq!(of(&[(KIND, "anthropic"), (KEY, "sk-own")]), (text("http://p"), text("sk-own"), None));
        let official = [(URL, "https://api.openai.com/v1"), (KEY, "sk-own"), (OTHER_KEYS[1], "b")];
        assert_eq!(of(&official), (text("http://p/v1"), text("sk-own"), text("b")));
        let ours = [(URL, "https://api.openai.com/v1"), (OTHER_KEYS[1], "b"), ("OPENAI_API_KEY", "ol_x")];
        assert_eq!(of(&ours), (text("http://p/v1"), text("ol_x"), None));
        for url in ["http://localhost:11434/v1", "https://api.openai.com.evil.example/v1"] {
            assert_eq!(of(&[(URL, url), ("OPENAI_API_KEY", "ol_x")]), (text(url), None, None));
        }
        assert_eq!(of(&[(KIND, "azure"), (KEY, "k")]), (None, text("k"), None));
    }
}
