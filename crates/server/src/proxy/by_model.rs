//! Routing by model: sends calls on OpenAI's own path to a named upstream with `models_match = ["llama-*"]`.
//!
//! The patterns are configured by a person; a client chooses only the model.
//!
//! Patterns of model names, by which a named upstream takes calls: `models_match = ["llama-*"]`.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use serde::Deserialize;

use super::{
    call::Arrived,
    config::Config,
    named::{Named, To},
};
use crate::{
    dialect::Upstream,
    wire::{credentials::Credential, encoding, headers},
};

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
