//! Searches of the web that a model makes for each request without being asked, and bills.
//!
//! LiteLLM's table lists the price of a search, and not which models search for every request; their names tell. OpenAI
//! bills one search per request of its search models: of the `-preview` ones without the search's results, of the
//! others with the results as input. Perplexity bills one request fee, by the size of the search.

/// Billed things that a model does for each request, unasked.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unasked {
    #[default]
    Nothing,
    /// One web search for each request.
    Search,
    /// One web search for each request, and the search's results are billed as input.
    SearchAsInput,
    /// An unknown number of web searches for each request.
    Research,
}

/// Parts of models' names, and what such models do unasked. The first that fits counts.
const BY_NAME: [(&str, Unasked); 6] = [
    ("-search-preview", Unasked::Search),
    ("-preview-search", Unasked::Search),
    ("-search-api", Unasked::SearchAsInput),
    ("deep-research-pro", Unasked::Research),
    ("deep-research-max", Unasked::Research),
    ("deep-research-preview", Unasked::Research),
];

impl Unasked {
    /// Returns what the model of this name does and bills unasked, for each request.
    pub fn of(model: &str) -> Unasked {
        // Perplexity's models, wherever they are served; its old `-chat` ones did not search.
        let name = model.rsplit('/').next().unwrap_or(model);
        let is_sonar = name == "sonar" || name.starts_with("sonar-") && !name.ends_with("-chat");
        let named = BY_NAME.iter().find(|(part, _)| model.contains(part)).map(|(_, unasked)| *unasked);
        named.unwrap_or(if is_sonar { Unasked::Search } else { Unasked::Nothing })
    }

    /// Returns the fee of a request, in pico-USD, from the listed fee of a request and the listed price of a search.
    /// `None` if it is not known.
    pub fn fee(self, request: Option<i64>, search: Option<i64>) -> Option<i64> {
        match self {
            Unasked::Nothing => Some(request.unwrap_or(0)),
            Unasked::Search | Unasked::SearchAsInput => request.or(search),
            Unasked::Research => request,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::PriceTable, *};

    #[test]
    fn models_that_search_for_every_request_are_known_by_their_names() {
        for (model, unasked) in [
            ("gpt-4o-search-preview", Unasked::Search),
            ("openai/gpt-4o-mini-search-preview-2025-03-11", Unasked::Search),
            ("gpt-5-search-api", Unasked::SearchAsInput),
            ("perplexity/sonar", Unasked::Search),
            ("perplexity/sonar-reasoning-pro", Unasked::Search),
            ("gemini/deep-research-max-preview-04-2026", Unasked::Research),
            // It searches with the tools of its request only, and those are priced.
            ("o3-deep-research-2025-06-26", Unasked::Nothing),
            ("gpt-4o", Unasked::Nothing),
            ("perplexity/sonar-small-chat", Unasked::Nothing),
            ("some/resonar", Unasked::Nothing),
        ] {
            assert_eq!(Unasked::of(model), unasked, "{model}");
        }
    }

    // Bug: models that search for every request were billed by their tokens alone. Consequence: 20 calls under a limit of
    // 0.02 usd cost 0.50 usd that nothing counted. Cause: a search counted only where a request asked for one.
    #[test]
    fn a_search_that_nobody_asked_for_is_part_of_the_price_or_the_price_is_unknown() {
        let fee = |model: &str| PriceTable::builtin().lookup(model).map(|found| found.price.request_pico);
        assert_eq!(fee("gpt-4o-search-preview"), Some(25_000_000_000));
        assert_eq!(fee("gpt-5-search-api-2025-10-14"), Some(10_000_000_000));
        assert_eq!(fee("perplexity/sonar"), Some(12_000_000_000), "the dearest size");
        assert_eq!(fee("vercel_ai_gateway/perplexity/sonar"), fee("perplexity/sonar"));
        assert_eq!(fee("gpt-4o"), Some(0));
        for unknown in
            ["kyma/sonar", "aihubmix/gemini-3-flash-preview-search", "gemini/deep-research-preview-04-2026"]
        {
            assert_eq!(fee(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_users_price_of_such_a_model_has_to_say_its_fee() {
        let tokens = r#""input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6"#;
        let read =
            |more: &str| PriceTable::with_overrides(&format!(r#"{{"kyma/sonar": {{{tokens}{more}}}}}"#));
        assert_eq!(
            read("").unwrap_err().to_string(),
            r#"price of "kyma/sonar": no input_cost_per_request (wanted it beside the others; 0 where it is free)"#
        );
        for (more, fee) in [
            (r#", "input_cost_per_request": 0"#, 0),
            (r#", "search_context_cost_per_query": 0.005"#, 5_000_000_000),
            (r#", "search_context_cost_per_query": 0.005, "input_cost_per_request": 0.001"#, 1_000_000_000),
        ] {
            assert_eq!(read(more).unwrap().lookup("kyma/sonar").unwrap().price.request_pico, fee, "{more}");
        }
    }
}
