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

use super::{
    Bands, Price, Rates, WEB_SEARCH_ANTHROPIC_PICO, WEB_SEARCH_UNLISTED_PICO, scaled, unasked::Unasked,
};
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
    pub media_input: Option<i64>,
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
        self.rows[index(tier)].entry(above).or_default()
    }

    /// Returns the complete price; `None` if the plain row lacks input or output, or if the model does things unasked
    /// at a fee that is not listed.
    pub fn price(self) -> Option<Price> {
        let request_pico = self.unasked.fee(self.request, self.web_search)?;
        let listed = self.rows[0].get(&0)?.clone();
        let (input, output) = (listed.input?, listed.output?);
        let lists_writes = (self.rows.iter().flat_map(BTreeMap::values))
            .any(|row| row.cache_write_5m.or(row.cache_write_1h).is_some());
        let fill = Fill { listed: &listed, anthropic: self.anthropic };
        let standard = fill.standard(fill.plain(input, output), &self.rows[0]);
        let tier = |tier| fill.tier(&self.rows[index(tier)], &standard);
        Some(Price {
            flex: tier(ServiceTier::Flex),
            priority: tier(ServiceTier::Priority),
            batch: tier(ServiceTier::Batch),
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
            media_input: self.media_input.filter(|pico| *pico > input).map(PicoUsdPerToken),
            uplift_percent: self.uplift_percent,
            standard,
        })
    }
}

fn index(tier: ServiceTier) -> usize {
    match tier {
        ServiceTier::Standard => 0,
        ServiceTier::Flex => 1,
        ServiceTier::Priority => 2,
        ServiceTier::Batch => 3,
    }
}

struct Fill<'a> {
    /// Plain row of the standard tier as listed: shows for which columns the model has a price of its own.
    listed: &'a Row,
    anthropic: bool,
}

impl Fill<'_> {
    fn plain(&self, input: i64, output: i64) -> Rates {
        let (input, output) = (PicoUsdPerToken(input), PicoUsdPerToken(output));
        let listed = self.listed;
        let write = listed.cache_write_5m.map_or_else(|| self.unlisted_write_5m(input), PicoUsdPerToken);
        Rates {
            input,
            output,
            cache_read: listed.cache_read.map_or(input, PicoUsdPerToken),
            cache_write_5m: write,
            cache_write_1h: listed
                .cache_write_1h
                .map_or_else(|| self.unlisted_write_1h(input, write), PicoUsdPerToken),
            reasoning: listed.reasoning.map_or(output, PicoUsdPerToken),
        }
    }

    fn standard(&self, base: Rates, rows: &BTreeMap<u64, Row>) -> Bands {
        let mut near = base;
        let mut above = Vec::new();
        for (tokens, row) in rows.range(1..) {
            near = self.complete(row, near);
            above.push((*tokens, near));
        }
        Bands { base, above }
    }

    fn tier(&self, rows: &BTreeMap<u64, Row>, standard: &Bands) -> Bands {
        if rows.is_empty() {
            return standard.clone();
        }
        let nothing = Row::default();
        let row_at = |tokens| rows.get(&tokens).unwrap_or(&nothing);
        let base = self.complete(row_at(0), standard.base);
        let thresholds: BTreeSet<u64> = rows
            .range(1..)
            .map(|(tokens, _)| *tokens)
            .chain(standard.above.iter().map(|(t, _)| *t))
            .collect();
        let (mut own, mut plain) = (base, standard.base);
        let mut above = Vec::new();
        for tokens in thresholds {
            plain = standard.above.iter().find(|(t, _)| *t == tokens).map_or(plain, |(_, rates)| *rates);
            own = self.complete(row_at(tokens), own.max(plain));
            above.push((tokens, own));
        }
        Bands { base, above }
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
