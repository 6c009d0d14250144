//! Named upstreams: servers with OpenAI's API that a person has configured. Requests reach them as `/u/NAME/v1/…`, or
//! by a model's name.
//!
//! A client chooses among the names that are configured, and nothing else. With `models_match = ["llama-*"]` a named
//! upstream takes calls on OpenAI's own path; the client then chooses only the model.

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use outlast_core::{
    call::Rate,
    price::{Found, PriceTable},
    words::BadText,
};
use serde::Deserialize;

use super::{
    call::Arrived,
    config::Config,
    upstream::{Key, Provider},
};
use crate::{
    dialect::{CostField, Upstream, deployment},
    wire::{credentials::Credential, encoding, headers},
};

/// Named upstream: a server with OpenAI's API that a person has configured.
#[derive(Clone)]
pub struct Named {
    /// Name of the upstream in paths, digests and the journal.
    pub name: Arc<str>,
    /// Address and key. The base is as OpenAI's SDK takes it: the part of a request's path after `/v1` is appended.
    pub provider: Provider,
    pub auth: AuthHeader,
    /// Source of the key, as the error of a missing key names it; `None` if the upstream needs no key.
    pub wants_key: Option<String>,
    /// Names in the price table, by the model's name in requests.
    pub models: BTreeMap<String, String>,
    /// Patterns of models whose calls on OpenAI's own path go to this upstream too.
    pub models_match: Vec<Pattern>,
    /// Rate limit of this upstream; `None`: the proxy's rate limit applies.
    pub rate: Option<Rate>,
    /// Prices of this upstream and the hash of their table; `None`: the proxy's prices apply.
    pub prices: Option<(PriceTable, Arc<str>)>,
    /// Whether the proxy adds to streamed requests that the usage is to be reported.
    pub asks_usage: bool,
    /// Field of an answer with its cost, which then counts instead of tokens times price; `None`: no such field.
    pub cost_field: Option<CostField>,
}

/// Header in which an upstream expects its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AuthHeader {
    /// `Authorization: Bearer KEY`.
    #[default]
    Bearer,
    /// The key alone, in a header such as Azure's `api-key`.
    Header(HeaderName),
}

impl AuthHeader {
    /// Returns the header's name and value for `key`.
    pub fn with(&self, key: &Key) -> (HeaderName, String) {
        match self {
            AuthHeader::Bearer => (header::AUTHORIZATION, format!("Bearer {}", key.expose())),
            AuthHeader::Header(name) => (name.clone(), key.expose().to_owned()),
        }
    }
}

/// Error of a text that cannot name an upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a name of an upstream: {text:?} (wanted up to 64 of a-z, 0-9, - and _, and none of {:?})",
    Upstream::ALL.map(Upstream::name)
)]
pub struct BadName {
    pub text: String,
}

impl Named {
    /// Returns an upstream with nothing set beyond its address: any model, the proxy's prices and rate limit.
    pub fn new(name: Arc<str>, provider: Provider) -> Named {
        Named {
            name,
            provider,
            auth: AuthHeader::Bearer,
            wants_key: None,
            models: BTreeMap::new(),
            models_match: Vec::new(),
            rate: None,
            prices: None,
            asks_usage: true,
            cost_field: None,
        }
    }

    /// Checks the name of an upstream, and returns it.
    pub fn name(text: &str) -> Result<Arc<str>, BadName> {
        let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
        if (1..=64).contains(&text.len())
            && text.bytes().all(known)
            && !Upstream::ALL.map(Upstream::name).contains(&text)
        {
            Ok(Arc::from(text))
        } else {
            Err(BadName { text: text.chars().take(80).collect() })
        }
    }

    /// Builds the provider of a named upstream. Keeps a `/v1` at the end of `base`, unlike [`Provider::new`].
    pub fn provider(base: &str, key: Option<Key>) -> Result<Provider, BadText> {
        let provider = Provider::new(base, key)?;
        Ok(Provider { base: base.trim_end_matches('/').into(), ..provider })
    }

    /// Returns the price of `model`: by its alias in `models`, else as `NAME/MODEL`, as price tables list resellers;
    /// `None` if it has none.
    pub fn price(&self, table: &PriceTable, model: &str) -> Option<Found> {
        match self.models.get(model) {
            Some(priced_as) => table.lookup(priced_as),
            None => table.lookup(&format!("{}/{model}", self.name)),
        }
    }
}

/// All upstreams of a configuration, with addresses and keys.
#[derive(Clone)]
pub struct Providers {
    /// Providers of the built-in upstreams, by their places in [`Upstream::ALL`].
    own: Vec<Provider>,
    /// Named upstreams. Names are unique.
    pub named: Vec<Arc<Named>>,
}

impl Providers {
    /// Makes the provider of each built-in upstream by `of`. Errors: the first of `of`.
    pub fn new<E>(
        of: impl FnMut(Upstream) -> Result<Provider, E>,
        named: Vec<Arc<Named>>,
    ) -> Result<Providers, E> {
        Ok(Providers { own: Upstream::ALL.into_iter().map(of).collect::<Result<_, E>>()?, named })
    }

    pub fn of(&self, upstream: Upstream) -> &Provider {
        &self.own[upstream as usize]
    }

    pub fn of_mut(&mut self, upstream: Upstream) -> &mut Provider {
        &mut self.own[upstream as usize]
    }

    pub fn named(&self, name: &str) -> Option<&Arc<Named>> {
        self.named.iter().find(|named| &*named.name == name)
    }
}

/// Upstream that a request goes to.
#[derive(Clone)]
pub enum To {
    Own(Upstream),
    Named(Arc<Named>),
}

impl To {
    /// Returns the upstream's name in digests, the journal and metrics.
    pub fn name(&self) -> &str {
        match self {
            To::Own(upstream) => upstream.name(),
            To::Named(named) => &named.name,
        }
    }

    /// Returns the provider whose error format the clients of this upstream expect.
    pub fn shape(&self) -> Upstream {
        match self {
            To::Own(upstream) => *upstream,
            To::Named(_) => Upstream::OpenAi,
        }
    }

    pub fn provider<'p>(&'p self, providers: &'p Providers) -> &'p Provider {
        match self {
            To::Own(upstream) => providers.of(*upstream),
            To::Named(named) => &named.provider,
        }
    }

    /// Returns the URL of `target`, a path and query from `/v1` on.
    pub fn url(&self, providers: &Providers, target: &str) -> String {
        let base = &self.provider(providers).base;
        match self {
            To::Own(_) => format!("{base}{target}"),
            // Azure has its deployments beside its `/v1`, whichever of the two is configured.
            To::Named(_) if deployment(target).is_some() => {
                let base = base.strip_suffix("/v1").unwrap_or(base);
                let resource = base.strip_suffix("/openai").unwrap_or(base);
                format!("{resource}/openai{}", &target[3..])
            }
            To::Named(_) => format!("{base}{}", target.strip_prefix("/v1").unwrap_or(target)),
        }
    }

    /// Returns whether the upstream needs a configured key and there is none.
    pub fn lacks_key(&self, providers: &Providers) -> bool {
        let open = self.named().is_some_and(|named| named.wants_key.is_none());
        self.provider(providers).key.is_none() && !open
    }

    /// Returns the upstream's own rate limit; `of_all` if it has none.
    pub fn rate(&self, of_all: Rate) -> Rate {
        self.named().and_then(|named| named.rate).unwrap_or(of_all)
    }

    pub fn asks_usage(&self) -> bool {
        self.named().is_none_or(|named| named.asks_usage)
    }

    pub fn cost_field(&self) -> Option<&CostField> {
        self.named()?.cost_field.as_ref()
    }

    fn named(&self) -> Option<&Named> {
        if let To::Named(named) = self { Some(named) } else { None }
    }
}

/// Puts `key` into the header in which the upstream expects it.
pub fn authorize(headers: &mut HeaderMap, to: &To, key: &Key) -> Result<(), http::Error> {
    let (name, text) = match to {
        To::Own(upstream) => {
            let (name, before) = upstream.row().key_header;
            (HeaderName::from_static(name), format!("{before}{}", key.expose()))
        }
        To::Named(named) => named.auth.with(key),
    };
    let mut value = HeaderValue::try_from(text)?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(())
}

/// Splits `/u/NAME/…` into the name and the target, which begins with `/v1`; `None` for any other path.
///
/// Azure's SDKs ask for their paths below `openai/`.
pub fn split(target: &str) -> Option<(&str, String)> {
    let rest = target.strip_prefix("/u/")?;
    let (name, below) = rest.split_once('/')?;
    let below = below.strip_prefix("openai/").unwrap_or(below);
    let is_versioned = below == "v1" || below.starts_with("v1/");
    Some((name, if is_versioned { format!("/{below}") } else { format!("/v1/{below}") }))
}

/// Returns the named upstream whose pattern matches `model`; `None` if no pattern does. Of several, the pattern with
/// the most characters wins, then the first name.
pub fn choose<'n>(named: &'n [Arc<Named>], model: &str) -> Option<&'n Arc<Named>> {
    let matching = |n: &'n Arc<Named>| {
        let weight = n.models_match.iter().filter(|p| p.matches(model)).map(Pattern::weight).max();
        weight.map(|w| (w, n))
    };
    let best = named.iter().filter_map(matching).max_by(|(a, x), (b, y)| a.cmp(b).then(y.name.cmp(&x.name)));
    best.map(|(_, named)| named)
}

/// Returns the upstream of a call: the one of its path, or, for a call on OpenAI's own path, the named upstream that takes
/// its model.
///
/// A call with the caller's own key stays with the provider that it was sent to, for which the key is meant.
pub fn route(config: &Config, arrived: &Arrived) -> To {
    let (to, named) = (arrived.to.clone(), &config.providers.named);
    let (To::Own(Upstream::OpenAi), Credential::Ours) = (&to, &arrived.caller.credential) else { return to };
    if named.iter().all(|n| n.models_match.is_empty()) {
        return to;
    }
    let Some(model) = model(config, arrived) else { return to };
    choose(named, &model).map_or(to, |named| To::Named(named.clone()))
}

/// Returns the model in the body. `None` for a body that cannot be read, which is refused later with a reason.
fn model(config: &Config, arrived: &Arrived) -> Option<String> {
    #[derive(Deserialize)]
    struct Body<'b> {
        #[serde(borrow)]
        model: Cow<'b, str>,
    }
    let encoding = headers::text(&arrived.headers, "content-encoding");
    let body = encoding::decode(&arrived.raw, encoding, config.max_body).ok()?;
    serde_json::from_slice::<Body<'_>>(&body).ok().map(|b| b.model.into_owned())
}

/// Largest number of characters in a pattern. Model names are shorter.
const LONGEST: usize = 200;

/// Pattern of model names, in which `*` stands for any characters or none. Case counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

/// Error of a text that is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a pattern of models: {text:?} (wanted for example \"llama-*\": a name of up to {LONGEST} characters, * for any)"
)]
pub struct BadPattern {
    pub text: String,
}

impl FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Pattern, BadPattern> {
        let plain = |c: char| !c.is_control() && !c.is_whitespace() && !"?[]{}\"\\".contains(c);
        if (1..=LONGEST).contains(&text.chars().count()) && text.chars().all(plain) {
            Ok(Pattern(text.to_owned()))
        } else {
            Err(BadPattern { text: text.chars().take(80).collect() })
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern {
    pub fn matches(&self, model: &str) -> bool {
        let Some((head, rest)) = self.0.split_once('*') else { return self.0 == model };
        let Some(mut left) = model.strip_prefix(head) else { return false };
        let mut parts: Vec<&str> = rest.split('*').collect();
        let tail = parts.pop().unwrap_or_default();
        // The leftmost match of a part leaves the most text for the parts after it.
        for part in parts {
            let Some(at) = left.find(part) else { return false };
            left = &left[at + part.len()..];
        }
        left.ends_with(tail)
    }

    /// Returns the number of characters other than `*`. Of several matching patterns, the one with the largest weight
    /// wins.
    pub fn weight(&self) -> usize {
        self.0.chars().filter(|c| *c != '*').count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_its_upstream_and_a_path_of_openais() {
        for (target, wanted) in [
            ("/u/groq/v1/chat/completions?x=1", Some(("groq", "/v1/chat/completions?x=1"))),
            ("/u/groq/chat/completions", Some(("groq", "/v1/chat/completions"))),
            ("/u/groq/v1", Some(("groq", "/v1"))),
            ("/u//v1/models", Some(("", "/v1/models"))),
            ("/u/az/openai/v1/responses", Some(("az", "/v1/responses"))),
            (
                "/u/az/openai/deployments/D/chat/completions?api-version=1",
                Some(("az", "/v1/deployments/D/chat/completions?api-version=1")),
            ),
            ("/u/groq", None),
            ("/v1/chat/completions", None),
        ] {
            let wanted = wanted.map(|(name, below)| (name, below.to_owned()));
            assert_eq!(split(target), wanted, "{target}");
        }
    }

    #[test]
    fn azures_deployments_are_beside_its_v1() {
        let nowhere = |_| Ok::<_, ()>(Provider { base: String::new(), key: None });
        let providers = Providers::new(nowhere, Vec::new()).unwrap();
        for base in ["https://az", "https://az/openai", "https://az/openai/v1"] {
            let named = Named::new(Arc::from("az"), Named::provider(base, None).unwrap());
            let url =
                To::Named(Arc::new(named)).url(&providers, "/v1/deployments/D/embeddings?api-version=1");
            assert_eq!(url, "https://az/openai/deployments/D/embeddings?api-version=1", "{base}");
        }
    }

    #[test]
    fn a_name_is_plain_and_none_of_ours() {
        for good in ["groq", "azure-eu_2", "4"] {
            assert_eq!(Named::name(good).as_deref(), Ok(good));
        }
        for bad in ["", "openai", "Groq", "a/b", "a.b", "é", &"x".repeat(65)] {
            assert!(Named::name(bad).is_err(), "{bad}");
        }
    }
}

#[cfg(test)]
mod by_model_tests {
    use super::*;
    use crate::proxy::upstream::Provider;

    fn named(name: &str, patterns: &[&str]) -> Arc<Named> {
        Arc::new(Named {
            models_match: patterns.iter().map(|p| p.parse().unwrap()).collect(),
            ..Named::new(Named::name(name).unwrap(), Provider::new("http://h", None).unwrap())
        })
    }

    #[test]
    fn the_pattern_that_says_most_counts() {
        let all = [named("wide", &["*"]), named("b", &["llama-*"]), named("a", &["llama-*", "qwen"])];
        let chosen = |model| choose(&all, model).map(|n| n.name.to_string());
        assert_eq!(chosen("llama-3").as_deref(), Some("a"), "of equals the first by name");
        assert_eq!(chosen("qwen").as_deref(), Some("a"));
        assert_eq!(chosen("gpt-4o").as_deref(), Some("wide"));
        assert_eq!(choose(&all[1..], "gpt-4o").map(|n| n.name.to_string()), None);
    }
}

#[cfg(test)]
mod pattern_tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters_and_nothing_else_does() {
        let check = |pattern: &str, yes: &[&str], no: &[&str]| {
            let pattern: Pattern = pattern.parse().unwrap();
            yes.iter().for_each(|m| assert!(pattern.matches(m), "{pattern} {m}"));
            no.iter().for_each(|m| assert!(!pattern.matches(m), "{pattern} {m}"));
        };
        check("llama-*", &["llama-", "llama-3.1-8b"], &["llama", "meta-llama-3", "Llama-3", ""]);
        check("gpt-4o", &["gpt-4o"], &["gpt-4o-mini", "xgpt-4o", "gpt-4"]);
        check("*/llama*-70b", &["meta/llama-3-70b", "/llama-70b"], &["llama-70b", "meta/llama-3-70b-x"]);
        check("a*a", &["aa", "aba"], &["a", "ab"]);
        check("*ab*ab", &["abab", "xabyab"], &["ab", "xab"]);
        check("a.b", &["a.b"], &["axb"]);
        check("*", &["", "anything"], &[]);
    }

    #[test]
    fn what_is_no_pattern_is_told_apart() {
        for bad in ["", "a b", "llama-?", "[ab]", "a\n", &"x".repeat(201)] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad:?}");
        }
    }
}
