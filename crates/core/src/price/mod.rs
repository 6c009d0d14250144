//! Prices: the cost of a model's tokens, of a call, and the most a request can cost.
//!
//! A [`Price`] comes from a [`PriceTable`]: the vendored one (`data/prices.json`, made by
//! `scripts/vendor-prices.py`) under the user's overrides. A model that is not in the table has no price; it is
//! never taken to be free.

mod bound;
mod cost;
mod overrides;
pub mod rebought;
mod rows;
mod table;
mod update;

use std::collections::BTreeMap;

pub use bound::{Bound, CostFactors, OUTPUT_CAP_UNKNOWN, RequestedTier, Usual};
pub use cost::{cost, least_cost};
pub use overrides::PriceError;
pub use table::{Found, PriceTable, Source, has_family};
pub use update::Update;

use crate::words::{
    NanoUsd, PicoUsdPerToken, ServiceTier,
    money::{decimal, nano_from_pico},
};

/// Assumed price of one search in pico-USD if a price lists none: the highest of the vendored table.
const WEB_SEARCH_UNLISTED_PICO: i64 = 35_000_000_000;

/// Price of one search at Anthropic in pico-USD, the same for all its models.
const WEB_SEARCH_ANTHROPIC_PICO: i64 = 10_000_000_000;

/// Parses an amount in USD as providers write it in JSON, such as `0.00045` or `1.5e-7`. A part of a
/// nano-dollar is rounded up. Returns `None` for a text that is no amount, is negative, or is out of range.
pub fn usd(text: &str) -> Option<NanoUsd> {
    decimal(text, 12).ok().map(|pico| nano_from_pico(i128::from(pico)))
}

/// Complete prices of one model. Prices missing in the source are filled by the rules of `rows.rs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    /// Rates of each tier, with the number of input tokens above which they hold for the whole request, ascending from 0.
    bands: [Vec<(u64, Rates)>; 4],
    /// Largest number of input tokens that the model takes; `None` if not known.
    pub max_input_tokens: Option<u64>,
    /// Largest number of output tokens that the model gives; `None` if not known.
    pub max_output_tokens: Option<u64>,
    /// Price of one server-side web search, in pico-USD, at its dearest size.
    pub web_search_pico: i64,
    /// Fee of each request, whatever it uses, in pico-USD. Models that search the web for every request have one.
    pub request_pico: i64,
    /// Whether the model adds search results to its input unasked, so that any request can fill its context.
    pub adds_input: bool,
    /// Whether the model's provider writes (and bills) a prompt cache without being asked.
    pub caches_unasked: bool,
    uplift_percent: BTreeMap<String, u32>,
}

/// One row of prices, in pico-USD per token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    pub input: PicoUsdPerToken,
    pub output: PicoUsdPerToken,
    pub cache_read: PicoUsdPerToken,
    pub cache_write_5m: PicoUsdPerToken,
    /// Price of a cache write with the long lifetime: one hour at Anthropic, 12 hours and more at OpenAI.
    pub cache_write_1h: PicoUsdPerToken,
    pub reasoning: PicoUsdPerToken,
}

impl Price {
    /// Returns the rates at which a request of `input_total` tokens (cached ones included) is billed in `tier`.
    pub fn rates(&self, tier: ServiceTier, input_total: u64) -> &Rates {
        let bands = &self.bands[tier as usize];
        &bands[1..].iter().rev().find(|(above, _)| input_total > *above).unwrap_or(&bands[0]).1
    }

    /// Returns the rates of `tier`, each with the number of input tokens above which it holds for the whole
    /// request, ascending from 0.
    pub fn rows(&self, tier: ServiceTier) -> impl Iterator<Item = (u64, &Rates)> {
        self.bands[tier as usize].iter().map(|(above, rates)| (*above, rates))
    }

    /// Returns the highest rate of each column over `tiers`, for any request of at most `input_bound` tokens.
    fn highest(&self, tiers: &[ServiceTier], input_bound: u64) -> Rates {
        let all = tiers.iter().flat_map(|tier| self.rows(*tier));
        let reached = all.filter(|(above, _)| *above == 0 || input_bound > *above);
        reached.fold(Rates::default(), |highest, (_, rates)| highest.max(*rates))
    }

    /// Returns this price under a named surcharge: `fast` (Anthropic's `speed`), `us` (its `inference_geo`;
    /// OpenAI's endpoint), `eu`, `regional`. A surcharge the model does not have changes nothing.
    pub fn with_uplift(&self, name: &str) -> Price {
        match self.uplift_percent.get(name) {
            Some(percent) => {
                let percent = i64::from(*percent);
                self.map(|r| r.input_times(percent, 100).output_times(percent, 100))
            }
            None => self.clone(),
        }
    }

    fn map(&self, f: impl Fn(Rates) -> Rates) -> Price {
        let mut price = self.clone();
        price.bands.iter_mut().flatten().for_each(|(_, rates)| *rates = f(*rates));
        price
    }
}

impl Rates {
    /// Returns `f` of each column of both.
    fn zip(self, other: Rates, f: impl Fn(PicoUsdPerToken, PicoUsdPerToken) -> PicoUsdPerToken) -> Rates {
        Rates {
            input: f(self.input, other.input),
            output: f(self.output, other.output),
            cache_read: f(self.cache_read, other.cache_read),
            cache_write_5m: f(self.cache_write_5m, other.cache_write_5m),
            cache_write_1h: f(self.cache_write_1h, other.cache_write_1h),
            reasoning: f(self.reasoning, other.reasoning),
        }
    }

    /// Returns the higher rate of each column.
    fn max(self, other: Rates) -> Rates {
        self.zip(other, PicoUsdPerToken::max)
    }

    fn input_times(self, num: i64, den: i64) -> Rates {
        Rates {
            input: scaled(self.input, num, den),
            cache_read: scaled(self.cache_read, num, den),
            cache_write_5m: scaled(self.cache_write_5m, num, den),
            cache_write_1h: scaled(self.cache_write_1h, num, den),
            ..self
        }
    }

    fn output_times(self, num: i64, den: i64) -> Rates {
        Rates { output: scaled(self.output, num, den), reasoning: scaled(self.reasoning, num, den), ..self }
    }
}

/// Returns `price × num / den`, rounded up; a zero `den` has no ratio to take and gives `price`.
fn scaled(price: PicoUsdPerToken, num: i64, den: i64) -> PicoUsdPerToken {
    if den == 0 {
        return price;
    }
    let up = (i128::from(price.0) * i128::from(num) + i128::from(den) - 1) / i128::from(den);
    PicoUsdPerToken(i64::try_from(up).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(model: &str) -> Price {
        (*PriceTable::builtin().lookup(model).expect(model).price).clone()
    }

    #[test]
    fn a_surcharge_raises_every_column_and_an_unknown_one_none() {
        let fast = price("claude-opus-4-8").with_uplift("fast");
        let rates = fast.rates(ServiceTier::Standard, 1);
        assert_eq!((rates.input.0, rates.output.0, rates.cache_read.0), (10_000_000, 50_000_000, 1_000_000));
        assert_eq!(price("gpt-4o-mini").with_uplift("fast"), price("gpt-4o-mini"));
    }
}
