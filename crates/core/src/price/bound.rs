//! Bound of a request: the most it can cost, reserved before it leaves; and the usual output, from which a call that names no
//! output cap gets one.

use super::{Price, Rates};
use crate::words::{NanoUsd, PicoUsdPerToken, ServiceTier, money::nano_from_pico};

/// Output cap assumed if neither the request nor the price table names one, in tokens.
pub const OUTPUT_CAP_UNKNOWN: u64 = 128_000;

/// Smallest output worth clamping a request to, in tokens.
const FLOOR_TOKENS: u64 = 256;

/// Properties of a request that decide its bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CostFactors {
    /// Largest number of input tokens that can be billed: for text, one per byte; if the request makes the
    /// provider fetch (search results, `previous_response_id`, file ids), the model's `max_input_tokens`.
    pub input_tokens: u64,
    /// Whether the request marks something to be written to a prompt cache.
    pub wants_cache: bool,
    /// Whether the request marks something for the cache's long lifetime.
    pub wants_1h_cache: bool,
    pub tier: RequestedTier,
    /// Number of answers the request asks for (`n`); 0 is taken as 1.
    pub choices: u64,
    /// Output cap in the request, in tokens per choice; `None` if it names none; `Some(0)` for a request without output
    /// (embeddings).
    pub cap: Option<u64>,
    /// Thinking budget of the request in tokens, which counts within the cap; `None` if it names none.
    pub thinking_budget: Option<u64>,
    /// Largest number of server-side searches the request allows.
    pub web_searches: u64,
}

/// Service tier that a request asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RequestedTier {
    /// The request names no tier: standard.
    #[default]
    Unnamed,
    /// The request lets the provider choose (`auto`) or names an unknown tier: the dearest possible tier is
    /// assumed.
    Auto,
    Named(ServiceTier),
}

impl RequestedTier {
    /// Returns the tiers at which a request can be billed. A provider may answer a flex or priority request at
    /// standard.
    pub fn billable(self) -> &'static [ServiceTier] {
        use ServiceTier::*;
        match self {
            RequestedTier::Unnamed | RequestedTier::Named(Standard) => &[Standard],
            RequestedTier::Auto => &[Standard, Flex, Priority],
            RequestedTier::Named(Flex) => &[Standard, Flex],
            RequestedTier::Named(Priority) => &[Standard, Priority],
            RequestedTier::Named(Batch) => &[Batch],
        }
    }
}

/// Bound of a request: the most it can cost and use, as a function of its output cap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bound {
    /// Largest number of input tokens.
    pub input_tokens: u64,
    /// Cost of all input tokens at the dearest column the request can reach, in pico-USD.
    pub input_pico: i128,
    /// Price of an output token at the dearest column, in pico-USD.
    pub output_pico_per_token: i64,
    /// Cost of server tools and fee of the request, in pico-USD.
    pub fixed_pico: i128,
    /// Number of answers, each up to the cap.
    pub choices: u64,
    /// Output cap per choice: the request's, else the model's, else [`OUTPUT_CAP_UNKNOWN`].
    pub cap: u64,
    /// Lowest output cap with which the request is worth sending: the lesser of `cap` and 256 tokens beyond its
    /// thinking budget.
    pub floor_cap: u64,
}

impl Bound {
    /// Returns the bound of a request at `price`.
    ///
    /// For every usage within `asked` (input, searches, `cap × choices` output) and every tier it can be billed
    /// at, `cost(price, usage, tier) ≤ full()`.
    pub fn of(price: &Price, asked: &CostFactors) -> Bound {
        let rates = price.highest(asked.tier.billable(), asked.input_tokens);
        let cap = asked.cap.or(price.max_output_tokens).unwrap_or(OUTPUT_CAP_UNKNOWN);
        Bound {
            input_pico: dearest_input(&rates, price, asked).times(asked.input_tokens),
            output_pico_per_token: rates.output.max(rates.reasoning).0,
            fixed_pico: i128::from(price.web_search_pico) * i128::from(asked.web_searches)
                + i128::from(price.request_pico),
            ..Bound::sized(asked, cap)
        }
    }

    /// Returns the bound of a request whose model has no price: its cost is zero, so that only calls and tokens
    /// limit it.
    pub fn unpriced(asked: &CostFactors) -> Bound {
        Bound::sized(asked, asked.cap.unwrap_or(OUTPUT_CAP_UNKNOWN))
    }

    fn sized(asked: &CostFactors, cap: u64) -> Bound {
        Bound {
            input_tokens: asked.input_tokens,
            choices: asked.choices.max(1),
            cap,
            floor_cap: asked.thinking_budget.unwrap_or(0).saturating_add(FLOOR_TOKENS).min(cap),
            ..Bound::default()
        }
    }

    /// Returns the bound of the same request when its input is known to be at most `tokens`.
    pub fn with_input(&self, tokens: u64) -> Bound {
        if tokens >= self.input_tokens {
            return *self;
        }
        // By the average price of the input, rounded down: the bound errs upwards.
        let (all, fewer) = (i128::from(self.input_tokens), i128::from(self.input_tokens - tokens));
        Bound { input_tokens: tokens, input_pico: self.input_pico - self.input_pico / all * fewer, ..*self }
    }

    /// Returns the most the request costs with an output cap of `cap` tokens per choice.
    pub fn cost_at(&self, cap: u64) -> NanoUsd {
        let output = i128::from(self.output_pico_per_token)
            .saturating_mul(i128::from(self.choices))
            .saturating_mul(i128::from(cap));
        nano_from_pico(self.input_pico.saturating_add(self.fixed_pico).saturating_add(output))
    }

    /// Returns the most tokens used, input and output, with an output cap of `cap` tokens per choice.
    pub fn tokens_at(&self, cap: u64) -> u64 {
        self.input_tokens.saturating_add(cap.saturating_mul(self.choices))
    }

    /// Returns the highest cost and the largest number of tokens that the request can reach with its own output cap.
    pub fn full(&self) -> (NanoUsd, u64) {
        (self.cost_at(self.cap), self.tokens_at(self.cap))
    }

    /// Returns the highest cost and the largest number of tokens that the request can reach with the lowest output cap
    /// worth sending.
    pub fn floor(&self) -> (NanoUsd, u64) {
        (self.cost_at(self.floor_cap), self.tokens_at(self.floor_cap))
    }

    /// Returns the highest output cap, up to the request's own, that fits the available amounts. An available
    /// amount of `None` is no limit. Returns `None` if not even the floor fits.
    pub fn largest_cap_within(
        &self,
        cost_available: Option<NanoUsd>,
        tokens_available: Option<u64>,
    ) -> Option<u64> {
        let mut cap = self.cap;
        if let Some(available) = cost_available {
            cap = cap.min(self.cap_for_cost(available)?);
        }
        if let Some(available) = tokens_available {
            cap = cap.min(available.checked_sub(self.input_tokens)? / self.choices.max(1));
        }
        (cap >= self.floor_cap).then_some(cap)
    }

    fn cap_for_cost(&self, available: NanoUsd) -> Option<u64> {
        let input = self.input_pico.saturating_add(self.fixed_pico);
        // Costs are rounded up to whole nano-dollars of 1,000 pico-dollars, so an available amount in whole
        // nano-dollars compares exactly.
        let left = (i128::from(available.0) * 1000).checked_sub(input).filter(|left| *left >= 0)?;
        let per_cap = i128::from(self.output_pico_per_token).saturating_mul(i128::from(self.choices.max(1)));
        if per_cap == 0 {
            return Some(u64::MAX);
        }
        Some(u64::try_from(left / per_cap).unwrap_or(u64::MAX))
    }
}

/// Returns the dearest price of an input token: plain, read from a cache, or written to one where that can
/// happen.
fn dearest_input(rates: &Rates, price: &Price, asked: &CostFactors) -> PicoUsdPerToken {
    let mut dearest = rates.input.max(rates.cache_read);
    if asked.wants_cache || asked.wants_1h_cache || price.caches_unasked {
        dearest = dearest.max(rates.cache_write_5m);
    }
    if asked.wants_1h_cache {
        dearest = dearest.max(rates.cache_write_1h);
    }
    dearest
}

/// Number of answers from which a run's usual output is known.
const ANSWERS: u32 = 8;

/// Room above the largest answer so far: later answers are longer than earlier ones.
const TIMES: u64 = 4;

/// Lowest usual cap, in tokens.
const LEAST: u64 = 1_024;

/// Lengths of one model's answers in one run, as far as this process has seen them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usual {
    answers: u32,
    /// Billed output of the longest answer, in tokens.
    longest: u64,
}

impl Usual {
    /// Notes an answer with `output` billed output tokens. An answer with 0 changes nothing.
    ///
    /// An answer that a usual cap cut off is as long as the cap: the next cap is four times as high.
    pub fn saw(&mut self, output: u64) {
        if output > 0 {
            self.answers = self.answers.saturating_add(1);
            self.longest = self.longest.max(output);
        }
    }

    /// Returns an output cap that is enough for most answers: four times the longest one, at least 1,024 tokens. `None` until
    /// eight answers have been seen.
    pub fn cap(&self) -> Option<u64> {
        (self.answers >= ANSWERS).then(|| self.longest.saturating_mul(TIMES).max(LEAST))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{PriceTable, cost},
        *,
    };
    use crate::words::Usage;

    fn price(model: &str) -> Price {
        (*PriceTable::builtin().lookup(model).expect(model).price).clone()
    }

    fn check(model: &str, asked: CostFactors, cost: i64, tokens: u64) {
        assert_eq!(Bound::of(&price(model), &asked).full(), (NanoUsd(cost), tokens), "{model} {asked:?}");
    }

    #[test]
    fn a_bound_is_the_highest_column_the_request_can_reach() {
        let asked = CostFactors { input_tokens: 1000, cap: Some(100), ..CostFactors::default() };
        check("gpt-4o-mini", asked, 150_000 + 60_000, 1100);
        check("gpt-4o-mini", CostFactors { choices: 3, ..asked }, 150_000 + 180_000, 1300);
        check("gpt-4o-mini", CostFactors { tier: RequestedTier::Auto, ..asked }, 250_000 + 100_000, 1100);
        check(
            "gpt-4o-mini",
            CostFactors { tier: RequestedTier::Named(ServiceTier::Batch), ..asked },
            75_000 + 30_000,
            1100,
        );
        // A flex request may be answered at standard.
        check(
            "gpt-5",
            CostFactors { tier: RequestedTier::Named(ServiceTier::Flex), ..asked },
            1_250_000 + 1_000_000,
            1100,
        );
        check("claude-sonnet-4-5", asked, 3_000_000 + 1_500_000, 1100);
        check("claude-sonnet-4-5", CostFactors { wants_cache: true, ..asked }, 3_750_000 + 1_500_000, 1100);
        check(
            "claude-sonnet-4-5",
            CostFactors { wants_1h_cache: true, ..asked },
            6_000_000 + 1_500_000,
            1100,
        );
        check("claude-sonnet-4-5", CostFactors { web_searches: 5, ..asked }, 4_500_000 + 50_000_000, 1100);
        check("gpt-4o-search-preview", asked, 25_000_000 + 2_500_000 + 1_000_000, 1100);
        // OpenAI's newer models write a cache unasked, at 1.25 × input.
        check("gpt-6-sol", asked, 2_500_000 + 1_000_000, 1100);
        let long = |input_tokens| CostFactors { input_tokens, ..asked };
        check("gemini-2.5-pro", long(200_000), 250_000_000 + 1_000_000, 200_100);
        check("gemini-2.5-pro", long(200_001), 500_002_500 + 1_500_000, 200_101);
        // Reasoning dearer than output.
        check("dashscope/qwen-turbo", asked, 50_000 + 50_000, 1100);
        check("text-embedding-3-small", CostFactors { cap: Some(0), ..asked }, 20_000, 1000);
    }

    #[test]
    fn without_a_cap_the_models_is_taken_and_without_that_a_documented_one() {
        let asked = CostFactors { input_tokens: 10, ..CostFactors::default() };
        assert_eq!(Bound::of(&price("gpt-4o-mini"), &asked).cap, 16_384);
        let mut unknown = price("gpt-4o-mini");
        unknown.max_output_tokens = None;
        assert_eq!(Bound::of(&unknown, &asked).cap, 128_000);
        assert_eq!(Bound::unpriced(&asked).full(), (NanoUsd::ZERO, 128_010));
    }

    #[test]
    fn the_floor_is_the_lesser_of_the_cap_and_256_tokens_beyond_thinking() {
        for (cap, thinking, floor) in [
            (None, None, 256),
            (Some(4096), None, 256),
            (Some(100), None, 100),
            (Some(0), None, 0),
            (Some(8192), Some(4000), 4256),
            (Some(4100), Some(4000), 4100),
            (Some(8192), Some(u64::MAX), 8192),
        ] {
            let asked = CostFactors { cap, thinking_budget: thinking, ..CostFactors::default() };
            assert_eq!(Bound::of(&price("gpt-4o-mini"), &asked).floor_cap, floor, "{asked:?}");
        }
    }

    #[test]
    fn a_request_is_clamped_to_what_is_left_and_refused_below_its_floor() {
        // 150,000 nano-usd of input, then 600 a token.
        let asked = CostFactors { input_tokens: 1000, cap: Some(1000), ..CostFactors::default() };
        let bound = Bound::of(&price("gpt-4o-mini"), &asked);
        for (cost, tokens, want) in [
            (None, None, Some(1000)),
            (Some(750_000), None, Some(1000)),
            (Some(749_999), None, Some(999)),
            (Some(150_000 + 600 * 256), None, Some(256)),
            (Some(150_000 + 600 * 256 - 1), None, None),
            (Some(149_999), None, None),
            (Some(-1), None, None),
            (None, Some(1256), Some(256)),
            (None, Some(1255), None),
            (None, Some(999), None),
            (Some(600_000), Some(1500), Some(500)),
            (Some(400_000), Some(1500), Some(416)),
        ] {
            assert_eq!(bound.largest_cap_within(cost.map(NanoUsd), tokens), want, "{cost:?} {tokens:?}");
        }
    }

    const MODELS: [&str; 9] = [
        "gpt-4o-search-preview",
        "gpt-4o-mini",
        "gpt-5.4",
        "gpt-6-sol",
        "claude-sonnet-4-5",
        "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "gemini-2.5-pro",
        "dashscope/qwen3-coder-plus",
        "dashscope/qwen-turbo",
    ];

    fn any_price() -> impl Strategy<Value = Price> {
        (prop::sample::select(&MODELS), any::<bool>()).prop_map(|(model, raised)| match raised {
            true => price(model).with_uplift("us"),
            false => price(model),
        })
    }

    fn any_tier() -> impl Strategy<Value = RequestedTier> {
        use ServiceTier::*;
        let named = [Standard, Flex, Priority, Batch].map(RequestedTier::Named);
        prop::sample::select([&[RequestedTier::Unnamed, RequestedTier::Auto], &named[..]].concat())
    }

    prop_compose! {
        fn any_asked()(
            input_tokens in prop_oneof![0..5_000_u64, 0..2_000_000_u64],
            (wants_cache, wants_1h_cache) in any::<(bool, bool)>(),
            tier in any_tier(),
            choices in 0..5_u64,
            cap in prop::option::of(0..200_000_u64),
            thinking_budget in prop::option::of(0..50_000_u64),
            web_searches in 0..10_u64,
        ) -> CostFactors {
            CostFactors { input_tokens, wants_cache, wants_1h_cache, tier, choices, cap, thinking_budget, web_searches }
        }
    }

    /// A usage within `asked`: `parts` are shares of what is allowed, in thousandths.
    fn usage_within(asked: &CostFactors, bound: &Bound, caches: bool, parts: [u64; 7]) -> Usage {
        let [total, read, short, long, output, reasoning, searches] = parts;
        let share = |of: u64, part: u64| (u128::from(of) * u128::from(part) / 1000) as u64;
        let input_total = share(asked.input_tokens, total);
        let cache_read = share(input_total, read);
        let short = if caches || asked.wants_1h_cache { short } else { 0 };
        let cache_write_5m = share(input_total - cache_read, short);
        let long = if asked.wants_1h_cache { long } else { 0 };
        let cache_write_1h = share(input_total - cache_read - cache_write_5m, long);
        let output = share(bound.cap * bound.choices, output);
        Usage {
            input: input_total - cache_read - cache_write_5m - cache_write_1h,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
            reasoning: share(output, reasoning),
            web_searches: share(asked.web_searches, searches),
        }
    }

    /// Thousandths, with the ends drawn often: that is where a bound is tight.
    fn part() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0_u64), Just(1000), 0..=1000_u64]
    }

    proptest! {
        #[test]
        fn no_usage_within_the_request_costs_more_than_its_bound(
            price in any_price(),
            asked in any_asked(),
            parts in prop::array::uniform7(part()),
        ) {
            let bound = Bound::of(&price, &asked);
            let usage = usage_within(&asked, &bound, asked.wants_cache || price.caches_unasked, parts);
            for tier in asked.tier.billable() {
                prop_assert!(cost(&price, &usage, *tier) <= bound.full().0, "{tier:?} {usage:?} {bound:?}");
            }
            prop_assert!(usage.total() <= bound.full().1);
        }

        #[test]
        fn the_largest_cap_fits_and_one_more_does_not(
            price in any_price(),
            asked in any_asked(),
            cost in prop::option::of(-1_000..10_000_000_000_i64),
            tokens in prop::option::of(0..3_000_000_u64),
        ) {
            let bound = Bound::of(&price, &asked);
            let fits = |cap| {
                cost.is_none_or(|c| bound.cost_at(cap).0 <= c) && tokens.is_none_or(|t| bound.tokens_at(cap) <= t)
            };
            match bound.largest_cap_within(cost.map(NanoUsd), tokens) {
                Some(cap) => {
                    prop_assert!((bound.floor_cap..=bound.cap).contains(&cap) && fits(cap));
                    prop_assert!(cap == bound.cap || !fits(cap + 1));
                }
                None => prop_assert!(!fits(bound.floor_cap)),
            }
        }

        #[test]
        fn a_larger_request_never_has_a_smaller_bound(
            price in any_price(),
            asked in any_asked(),
            more in 0..500_000_u64,
        ) {
            let bound = Bound::of(&price, &asked);
            let larger = CostFactors {
                input_tokens: asked.input_tokens + more,
                choices: asked.choices + more % 3,
                web_searches: asked.web_searches + more % 2,
                wants_1h_cache: asked.wants_1h_cache || more % 5 == 0,
                ..asked
            };
            let larger = Bound::of(&price, &larger);
            prop_assert!(bound.full().0 <= larger.full().0 && bound.full().1 <= larger.full().1);
            prop_assert!(bound.cost_at(more) <= bound.cost_at(more + 1));
            prop_assert!(bound.floor().0 <= bound.full().0 && bound.floor().1 <= bound.full().1);
        }

        #[test]
        fn sizes_beyond_all_reason_saturate(
            price in any_price(),
            (input_tokens, choices, cap, web_searches) in any::<(u64, u64, u64, u64)>(),
            available in any::<(i64, u64)>(),
        ) {
            let asked = CostFactors { input_tokens, choices, cap: Some(cap), web_searches, ..CostFactors::default() };
            let bound = Bound::of(&price, &asked);
            prop_assert!(bound.full().0 >= bound.floor().0);
            bound.largest_cap_within(Some(NanoUsd(available.0)), Some(available.1));
        }
    }
}

#[cfg(test)]
mod usual_tests {
    use super::*;

    fn after(outputs: &[u64]) -> Option<u64> {
        let mut usual = Usual::default();
        outputs.iter().for_each(|output| usual.saw(*output));
        usual.cap()
    }

    #[test]
    fn a_usual_cap_is_known_after_eight_answers_and_has_room_above_the_longest() {
        assert_eq!(after(&[300; 7]), None);
        assert_eq!(after(&[300; 8]), Some(1_200));
        assert_eq!(after(&[10, 10, 10, 900, 10, 10, 10, 10]), Some(3_600));
        assert_eq!(after(&[10; 8]), Some(1_024));
        assert_eq!(after(&[0; 20]), None, "answers without a usage");
        assert_eq!(after(&[u64::MAX; 8]), Some(u64::MAX));
    }

    #[test]
    fn a_cap_that_cut_an_answer_off_makes_room_for_the_next() {
        let mut outputs = vec![300; 8];
        outputs.push(after(&outputs).unwrap());
        assert_eq!(after(&outputs), Some(4_800));
    }
}
