//! Which named upstream a call to OpenAI's own path goes to, by its model: `models_match = ["llama-*"]`.
//!
//! The person writes the patterns; a client says its model and chooses nothing else.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use bytes::Bytes;
use http::HeaderMap;
use serde::Deserialize;

use super::{
    host::Host,
    named::{Named, To},
};
use crate::{
    dialect::Upstream,
    wire::{encoding, headers, who::Credential},
};

/// The longest pattern: models' names are shorter.
const LONGEST: usize = 200;

/// A model's name, in which `*` stands for any characters, also none. Case counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

/// A text that is no pattern.
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
        // The first place where a part stands leaves most for those behind it.
        for part in parts {
            let Some(at) = left.find(part) else { return false };
            left = &left[at + part.len()..];
        }
        left.ends_with(tail)
    }

    /// How much it says: the pattern that says most counts.
    fn weight(&self) -> usize {
        self.0.chars().filter(|c| *c != '*').count()
    }
}

/// Whose pattern matches `model`: of several the one with the most characters, then the first by name.
pub fn choose<'n>(named: &'n [Arc<Named>], model: &str) -> Option<&'n Arc<Named>> {
    let matching = |n: &'n Arc<Named>| {
        let weight = n.models_match.iter().filter(|p| p.matches(model)).map(Pattern::weight).max();
        weight.map(|w| (w, n))
    };
    let best = named.iter().filter_map(matching).max_by(|(a, x), (b, y)| a.cmp(b).then(y.name.cmp(&x.name)));
    best.map(|(_, named)| named)
}

/// Where a call goes that named no upstream.
///
/// A key of the caller's own is meant for the provider that it was sent to: such a call stays there.
pub fn route(host: &Host, to: To, credential: &Credential, came: &HeaderMap, raw: &Bytes) -> To {
    let To::Own(Upstream::OpenAi) = to else { return to };
    let named = &host.config.providers.named;
    if *credential != Credential::Ours || named.iter().all(|n| n.models_match.is_empty()) {
        return to;
    }
    let Some(model) = model(host, came, raw) else { return to };
    choose(named, &model).map_or(to, |named| To::Named(named.clone()))
}

/// The body's model. A body that cannot be read is refused later, with its reason.
fn model(host: &Host, came: &HeaderMap, raw: &Bytes) -> Option<String> {
    #[derive(Deserialize)]
    struct Body<'b> {
        #[serde(borrow)]
        model: Cow<'b, str>,
    }
    let encoding = headers::text(came, "content-encoding");
    let body = encoding::decode(raw, encoding, host.config.max_body).ok()?;
    serde_json::from_slice::<Body<'_>>(&body).ok().map(|b| b.model.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::{AuthHeader, Provider};

    fn named(name: &str, patterns: &[&str]) -> Arc<Named> {
        Arc::new(Named {
            name: Named::name(name).unwrap(),
            provider: Provider::new("http://h", None).unwrap(),
            auth: AuthHeader::Bearer,
            wants_key: None,
            models: Default::default(),
            models_match: patterns.iter().map(|p| p.parse().unwrap()).collect(),
            rate: None,
            prices: None,
            asks_usage: true,
            cost_field: None,
        })
    }

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
