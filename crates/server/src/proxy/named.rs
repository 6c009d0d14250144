//! Named upstreams: servers with OpenAI's API that a person has configured. Requests reach them as `/u/NAME/v1/…`, or
//! by a model's name.
//!
//! A client chooses among the names that are configured, and nothing else.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use outlast_core::{
    call::Rate,
    price::{Found, PriceTable},
    words::BadText,
};

use super::{
    by_model::Pattern,
    upstream::{Key, Provider},
};
use crate::dialect::{CostField, Upstream, deployment};

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
