//! Prices: the cost of a model's tokens, of a call, and the most a request can cost.
//!
//! A [`Price`] comes from a [`PriceTable`]: the vendored one (`data/prices.json`, made by
//! `scripts/vendor-prices.py`) under the user's overrides. A model that is not in the table has no price; it is
//! never taken to be free.

mod bound;
mod cost;
mod decimal;
mod family;
mod lookup;
mod overrides;
pub mod rebought;
mod rows;
mod table;
mod unasked;
mod update;
mod usual;

use std::collections::BTreeMap;

pub use bound::{Bound, CostFactors, OUTPUT_CAP_UNKNOWN, RequestedTier};
pub use cost::{cost, least_cost};
pub use family::has_family;
pub use lookup::{Found, Source};
pub use overrides::PriceError;
pub use table::PriceTable;
pub use update::Update;
pub use usual::Usual;

use crate::words::{NanoUsd, PicoUsdPerToken, ServiceTier, money::nano_from_pico};

/// Assumed price of one search in pico-USD if a price lists none: the highest of the vendored table.
const WEB_SEARCH_UNLISTED_PICO: i64 = 35_000_000_000;

/// Price of one search at Anthropic in pico-USD, the same for all its models.
const WEB_SEARCH_ANTHROPIC_PICO: i64 = 10_000_000_000;

/// Parses an amount in USD as providers write it in JSON, such as `0.00045` or `1.5e-7`. A part of a
/// nano-dollar is rounded up. Returns `None` for a text that is no amount, is negative, or is out of range.
pub fn usd(text: &str) -> Option<NanoUsd> {
    decimal::pico_usd(text).ok().map(|pico| nano_from_pico(i128::from(pico)))
}

/// Complete prices of one model. Prices missing in the source are filled by the rules of `rows.rs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    standard: Bands,
    flex: Bands,
    priority: Bands,
    batch: Bands,
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
    /// Price of the dearest input token that is not text, where it is dearer than text.
    media_input: Option<PicoUsdPerToken>,
    uplift_percent: BTreeMap<String, u32>,
}

/// Prices of one service tier, by the size of the whole input.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bands {
    base: Rates,
    /// (tokens, rates for the whole request once its input exceeds them), ascending.
    above: Vec<(u64, Rates)>,
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
        let bands = self.bands(tier);
        bands
            .above
            .iter()
            .rev()
            .find(|(above, _)| input_total > *above)
            .map_or(&bands.base, |(_, rates)| rates)
    }

    /// Returns the rates of `tier`, each with the number of input tokens above which it holds for the whole
    /// request, ascending from 0.
    pub fn rows(&self, tier: ServiceTier) -> impl Iterator<Item = (u64, &Rates)> {
        let bands = self.bands(tier);
        std::iter::once((0, &bands.base)).chain(bands.above.iter().map(|(above, rates)| (*above, rates)))
    }

    /// Returns the highest rate of each column over `tiers`, for any request of at most `input_bound` tokens.
    fn highest(&self, tiers: &[ServiceTier], input_bound: u64) -> Rates {
        let mut highest = Rates::default();
        for bands in tiers.iter().map(|tier| self.bands(*tier)) {
            let reached = bands.above.iter().filter(|(above, _)| input_bound > *above);
            highest = reached.fold(highest.max(bands.base), |highest, (_, rates)| highest.max(*rates));
        }
        highest
    }

    /// Returns this price for a request that carries audio, images or video. A usage report does not tell their
    /// tokens from text, so all input is taken at the dearest kind.
    pub fn with_media_input(&self) -> Price {
        let text = self.standard.base.input;
        match self.media_input {
            Some(media) if media > text => self.map(|r| r.input_times(media.0, text.0)),
            _ => self.clone(),
        }
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

    fn bands(&self, tier: ServiceTier) -> &Bands {
        match tier {
            ServiceTier::Standard => &self.standard,
            ServiceTier::Flex => &self.flex,
            ServiceTier::Priority => &self.priority,
            ServiceTier::Batch => &self.batch,
        }
    }

    fn map(&self, f: impl Fn(Rates) -> Rates) -> Price {
        let bands = |b: &Bands| Bands {
            base: f(b.base),
            above: b.above.iter().map(|(above, rates)| (*above, f(*rates))).collect(),
        };
        Price {
            standard: bands(&self.standard),
            flex: bands(&self.flex),
            priority: bands(&self.priority),
            batch: bands(&self.batch),
            ..self.clone()
        }
    }
}

impl Rates {
    /// Returns the higher rate of each column.
    fn max(self, other: Rates) -> Rates {
        Rates {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            cache_read: self.cache_read.max(other.cache_read),
            cache_write_5m: self.cache_write_5m.max(other.cache_write_5m),
            cache_write_1h: self.cache_write_1h.max(other.cache_write_1h),
            reasoning: self.reasoning.max(other.reasoning),
        }
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
    fn audio_raises_the_input_columns_by_its_ratio_in_every_tier() {
        let audio = price("gemini-2.5-flash").with_media_input();
        let standard = audio.rates(ServiceTier::Standard, 1);
        assert_eq!(
            (standard.input.0, standard.cache_read.0, standard.output.0),
            (1_000_000, 100_000, 2_500_000)
        );
        assert_eq!(audio.rates(ServiceTier::Priority, 1).input.0, 1_800_000);
        assert_eq!(price("gpt-4o-mini").with_media_input(), price("gpt-4o-mini"));
    }

    #[test]
    fn a_surcharge_raises_every_column_and_an_unknown_one_none() {
        let fast = price("claude-opus-4-8").with_uplift("fast");
        let rates = fast.rates(ServiceTier::Standard, 1);
        assert_eq!((rates.input.0, rates.output.0, rates.cache_read.0), (10_000_000, 50_000_000, 1_000_000));
        assert_eq!(price("gpt-4o-mini").with_uplift("fast"), price("gpt-4o-mini"));
    }
}
