//! Completion of the rows a source lists to a full price, and the source of each missing column.
//!
//! | missing | taken |
//! |---|---|
//! | cache read | the input price |
//! | cache write (5 minutes) | 1.25 × input for an Anthropic model, else the input price |
//! | cache write (long) | 2 × input for an Anthropic model, else the 5 minutes' price |
//! | reasoning | the output price |
//! | a tier | standard |
//! | a tier's long-context row | the higher of the tier's shorter row and standard's long-context row |
//! | a column of a tier or long-context row that standard lists | the row it falls back to, raised (never lowered) as the input price is; reasoning follows the output price both ways |
//!
//! Every rule errs upwards: a discount that is not listed is not assumed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{Price, Rates, WEB_SEARCH_ANTHROPIC_PICO, WEB_SEARCH_UNLISTED_PICO, scaled};
use crate::words::{PicoUsdPerToken, ServiceTier};

/// Prices that one source lists for one model.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Rows by tier, then by the number of input tokens above which they begin; 0 is the plain row.
    pub rows: [BTreeMap<u64, Row>; 4],
    pub max_input_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
    pub web_search: Option<i64>,
    /// Fee of each request, in pico-USD; `None` if none is listed.
    pub request: Option<i64>,
    pub uplift_percent: BTreeMap<String, u32>,
    pub anthropic: bool,
    pub unasked: Unasked,
}

/// Columns that one row lists, in pico-USD per token.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Row {
    pub input: Option<i64>,
    pub output: Option<i64>,
    pub cache_read: Option<i64>,
    pub cache_write_5m: Option<i64>,
    pub cache_write_1h: Option<i64>,
    pub reasoning: Option<i64>,
}

impl Listing {
    /// Returns an empty listing with what the model's name says of its billing.
    pub fn of(model: &str) -> Listing {
        Listing { anthropic: is_anthropic(model), unasked: Unasked::of(model), ..Listing::default() }
    }

    /// Returns the row of `tier` for inputs above `above` tokens; inserts it if there is none yet.
    pub fn row(&mut self, tier: ServiceTier, above: u64) -> &mut Row {
        self.rows[tier as usize].entry(above).or_default()
    }

    /// Returns the complete price; `None` if the plain row lacks input or output, or if the model does things unasked
    /// at a fee that is not listed.
    pub fn price(self) -> Option<Price> {
        let request_pico = self.unasked.fee(self.request, self.web_search)?;
        let listed = self.rows[0].get(&0)?.clone();
        listed.input.and(listed.output)?;
        let lists_writes = (self.rows.iter().flat_map(BTreeMap::values))
            .any(|row| row.cache_write_5m.or(row.cache_write_1h).is_some());
        let fill = Fill { listed: &listed, anthropic: self.anthropic };
        let [standard, flex, priority, batch] = &self.rows;
        let standard = fill.standard(standard);
        let tier = |rows| fill.tier(rows, &standard);
        Some(Price {
            bands: [standard.clone(), tier(flex), tier(priority), tier(batch)],
            max_input_tokens: self.max_input_tokens,
            max_output_tokens: self.max_output_tokens,
            web_search_pico: self.web_search.unwrap_or(match self.anthropic {
                true => WEB_SEARCH_ANTHROPIC_PICO,
                false => WEB_SEARCH_UNLISTED_PICO,
            }),
            request_pico,
            adds_input: self.unasked == Unasked::SearchAsInput,
            // Anthropic caches only what `cache_control` marks; where another provider lists a price for
            // writes, it writes by itself.
            caches_unasked: !self.anthropic && lists_writes,
            uplift_percent: self.uplift_percent,
        })
    }
}

struct Fill<'a> {
    /// Plain row of the standard tier as listed: shows for which columns the model has a price of its own.
    listed: &'a Row,
    anthropic: bool,
}

impl Fill<'_> {
    fn standard(&self, rows: &BTreeMap<u64, Row>) -> Vec<(u64, Rates)> {
        let mut near = Rates::default();
        let complete = |(tokens, row): (&u64, &Row)| {
            near = self.complete(row, near);
            (*tokens, near)
        };
        rows.iter().map(complete).collect()
    }

    fn tier(&self, rows: &BTreeMap<u64, Row>, standard: &[(u64, Rates)]) -> Vec<(u64, Rates)> {
        if rows.is_empty() {
            return standard.to_vec();
        }
        let nothing = Row::default();
        let thresholds: BTreeSet<u64> = rows.keys().chain(standard.iter().map(|(t, _)| t)).copied().collect();
        let (mut own, mut plain) = (Rates::default(), Rates::default());
        let complete = |tokens: u64| {
            plain = standard.iter().find(|(t, _)| *t == tokens).map_or(plain, |(_, rates)| *rates);
            own = self.complete(rows.get(&tokens).unwrap_or(&nothing), own.max(plain));
            (tokens, own)
        };
        thresholds.into_iter().map(complete).collect()
    }

    /// Returns `row` with its missing columns taken from `near`, the row it falls back to.
    fn complete(&self, row: &Row, near: Rates) -> Rates {
        let input = row.input.map_or(near.input, PicoUsdPerToken);
        let output = row.output.map_or(near.output, PicoUsdPerToken);
        let raised = |price| if input > near.input { scaled(price, input.0, near.input.0) } else { price };
        // Anthropic states its write prices as multiples of input, so a row with an input price has them.
        let carries_writes = !(self.anthropic && row.input.is_some());
        let cache_read = match (row.cache_read, self.listed.cache_read) {
            (Some(own), _) => PicoUsdPerToken(own),
            (None, Some(_)) => raised(near.cache_read),
            (None, None) => input,
        };
        let cache_write_5m = match (row.cache_write_5m, self.listed.cache_write_5m) {
            (Some(own), _) => PicoUsdPerToken(own),
            (None, Some(_)) if carries_writes => raised(near.cache_write_5m),
            (None, _) => self.unlisted_write_5m(input),
        };
        let cache_write_1h = match (row.cache_write_1h, self.listed.cache_write_1h) {
            (Some(own), _) => PicoUsdPerToken(own),
            (None, Some(_)) if carries_writes => raised(near.cache_write_1h),
            (None, _) => self.unlisted_write_1h(input, cache_write_5m),
        };
        let reasoning = match (row.reasoning, self.listed.reasoning) {
            (Some(own), _) => PicoUsdPerToken(own),
            (None, Some(_)) => scaled(near.reasoning, output.0, near.output.0),
            (None, None) => output,
        };
        Rates { input, output, cache_read, cache_write_5m, cache_write_1h, reasoning }
    }

    fn unlisted_write_5m(&self, input: PicoUsdPerToken) -> PicoUsdPerToken {
        if self.anthropic { scaled(input, 5, 4) } else { input }
    }

    fn unlisted_write_1h(&self, input: PicoUsdPerToken, write_5m: PicoUsdPerToken) -> PicoUsdPerToken {
        if self.anthropic { scaled(input, 2, 1) } else { write_5m }
    }
}

/// Tells whether `model` is one of Anthropic's. These keep Anthropic's cache prices at whichever provider
/// serves them.
fn is_anthropic(model: &str) -> bool {
    model.contains("claude")
}

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
    use ServiceTier::*;

    use super::*;

    /// Columns as input, output, read, write 5 min, write long, reasoning; -1 is unlisted.
    fn row(columns: [i64; 6]) -> Row {
        let [input, output, cache_read, cache_write_5m, cache_write_1h, reasoning] =
            columns.map(|c| (c >= 0).then_some(c));
        Row { input, output, cache_read, cache_write_5m, cache_write_1h, reasoning }
    }

    fn check(
        anthropic: bool,
        rows: &[(ServiceTier, u64, [i64; 6])],
        tier: ServiceTier,
        input: u64,
        want: [i64; 6],
    ) {
        let mut listing = Listing { anthropic, ..Listing::default() };
        for (tier, above, columns) in rows {
            *listing.row(*tier, *above) = row(*columns);
        }
        let price = listing.price().unwrap();
        let r = price.rates(tier, input);
        let got = [r.input, r.output, r.cache_read, r.cache_write_5m, r.cache_write_1h, r.reasoning];
        assert_eq!(got.map(|p| p.0), want, "{tier:?} at {input}: {rows:?}");
    }

    #[test]
    fn an_unlisted_column_follows_the_documented_rules() {
        let plain = [(Standard, 0, [100, 400, -1, -1, -1, -1])];
        check(false, &plain, Standard, 1, [100, 400, 100, 100, 100, 400]);
        check(true, &plain, Standard, 1, [100, 400, 100, 125, 200, 400]);
        check(false, &plain, Priority, 1, [100, 400, 100, 100, 100, 400]);
        let write = [(Standard, 0, [100, 400, 10, 130, -1, -1])];
        check(false, &write, Standard, 1, [100, 400, 10, 130, 130, 400]);
    }

    #[test]
    fn an_unlisted_discount_of_a_tier_is_not_taken() {
        let rows = [
            (Standard, 0, [100, 400, 50, -1, -1, 800]),
            (Batch, 0, [50, 200, -1, -1, -1, -1]),
            (Priority, 0, [200, 800, -1, -1, -1, -1]),
        ];
        check(false, &rows, Batch, 1, [50, 200, 50, 50, 50, 400]);
        check(false, &rows, Priority, 1, [200, 800, 100, 200, 200, 1600]);
    }

    #[test]
    fn an_anthropic_batch_write_is_a_multiple_of_the_batch_input() {
        let rows = [(Standard, 0, [300, 1500, 30, 375, 600, -1]), (Batch, 0, [150, 750, 15, 188, -1, -1])];
        check(true, &rows, Batch, 1, [150, 750, 15, 188, 300, 750]);
    }

    #[test]
    fn a_long_context_row_begins_above_its_threshold_and_bills_the_whole_request() {
        let rows =
            [(Standard, 0, [100, 400, 10, -1, -1, -1]), (Standard, 200_000, [200, 600, -1, -1, -1, -1])];
        check(false, &rows, Standard, 200_000, [100, 400, 10, 100, 100, 400]);
        check(false, &rows, Standard, 200_001, [200, 600, 20, 200, 200, 600]);
    }

    #[test]
    fn a_tier_without_a_long_context_row_takes_the_higher_of_its_own_and_standards() {
        let rows = [
            (Standard, 0, [100, 400, 10, -1, -1, -1]),
            (Standard, 272_000, [200, 600, 20, -1, -1, -1]),
            (Priority, 0, [190, 700, 19, -1, -1, -1]),
        ];
        check(false, &rows, Priority, 272_001, [200, 700, 20, 200, 200, 700]);
        check(false, &rows, Flex, 272_001, [200, 600, 20, 200, 200, 600]);
    }
}

#[cfg(test)]
mod unasked_tests {
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
