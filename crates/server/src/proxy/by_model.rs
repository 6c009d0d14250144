//! Routing by model: sends calls on OpenAI's own path to a named upstream with `models_match = ["llama-*"]`.
//!
//! The patterns are configured by a person; a client chooses only the model.

use std::{borrow::Cow, sync::Arc};

use serde::Deserialize;

use super::{
    call::Arrived,
    config::Config,
    named::{Named, To},
    pattern::Pattern,
};
use crate::{
    dialect::Upstream,
    wire::{encoding, headers, who::Credential},
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
