//! Prices of a call: the bound of a request before it is sent, and the bill for its usage afterwards.

use std::sync::Arc;

use outlast_core::{
    engine::Bill,
    price::{Bound, CostFactors, Price, PriceTable, RequestedTier, cost, least_cost},
    run::Unpriced,
    words::{ServiceTier, Usage},
};

use super::named::{Providers, To};
use crate::dialect::{Outcome, Request};

/// Price at which a call is admitted and settled, with the hash of its price table.
#[derive(Clone)]
pub struct Priced {
    price: Option<Arc<Price>>,
    /// Model by whose price one without a known price is bounded and charged; `None` where the price is known.
    stands_in: Option<String>,
    /// Feature of the request that costs more than its tokens, at a fee that is not known.
    unknown_fee: Option<Arc<str>>,
    hash: Arc<str>,
    tier: Option<ServiceTier>,
}

impl Priced {
    /// Looks up the price of a request in the upstream's own price table, or else in `table`. A request whose price is
    /// not known is a `Priced` too.
    pub fn of(
        table: &PriceTable,
        hash: &Arc<str>,
        to: &To,
        providers: &Providers,
        request: &Request,
        unpriced: Unpriced,
    ) -> Priced {
        let (table, hash) = match to {
            To::Named(named) => named.prices.as_ref().map_or((table, hash), |(table, hash)| (table, hash)),
            To::Own(_) => (table, hash),
        };
        let mut stands_in = None;
        let found = match to {
            To::Own(_) => table.lookup(&request.model),
            To::Named(named) => named.price(table, &request.model),
        };
        let found = found.or_else(|| {
            let dearest =
                (unpriced == Unpriced::Dearest).then(|| table.dearest_of_family(&request.model))??;
            stands_in = Some(dearest.model.clone());
            Some(dearest)
        });
        let price = found.map(|found| match surcharge(&to.provider(providers).base) {
            Some(name) => Arc::new(found.price.with_uplift(name)),
            None => found.price,
        });
        // What token prices do not cover is not known, and not free: the tokens are charged all the same.
        let searches = request.search_options && price.as_ref().is_none_or(|price| price.request_pico == 0);
        let fee = request.unpriced.as_deref().or(searches.then_some("web_search_options"));
        Priced { price, stands_in, unknown_fee: fee.map(Arc::from), hash: hash.clone(), tier: request.tier }
    }

    /// Returns the feature of the request that costs more than its tokens, at a fee that is not known.
    pub fn unknown_fee(&self) -> Option<Arc<str>> {
        self.unknown_fee.clone()
    }

    /// Returns the model by whose price one without a known price is charged; `None` where the price is known.
    pub fn stands_in(&self) -> Option<&str> {
        self.stands_in.as_deref()
    }

    /// Returns whether the price of the model's tokens is known.
    pub fn is_known(&self) -> bool {
        self.price.is_some()
    }

    /// Returns the highest cost and token usage that `request` can cause, if its input is at most `input_tokens`.
    pub fn bound(&self, request: &Request, input_tokens: u64) -> Bound {
        let known = self.price.as_ref().and_then(|p| p.max_input_tokens);
        let adds_input = self.price.as_ref().is_some_and(|p| p.adds_input)
            || request.search_options && self.unknown_fee.is_some();
        let input_tokens = if request.references || adds_input {
            // Content that a body only refers to, or that the model looks for, can fill its whole context.
            input_tokens.max(known.unwrap_or(1_000_000))
        } else {
            input_tokens
        };
        let asked = CostFactors {
            input_tokens,
            wants_cache: request.wants_cache_5m || request.wants_cache_1h,
            wants_1h_cache: request.wants_cache_1h,
            tier: request.tier.map_or(RequestedTier::Unnamed, RequestedTier::Named),
            choices: request.choices,
            cap: request.cap,
            thinking_budget: request.thinking_budget,
            web_searches: request.web_searches,
        };
        let mut bound = match &self.price {
            Some(price) => Bound::of(price, &asked),
            None => Bound::unpriced(&asked),
        };
        // Output that no cap covers (predictions, compaction): fixed, at the output's price.
        bound.fixed_pico += i128::from(bound.output_pico_per_token) * i128::from(request.extra_output);
        bound.input_tokens = bound.input_tokens.saturating_add(request.extra_output);
        bound
    }

    /// Returns the bill for the usage that the provider reports; `None` without a complete usage: the call is then
    /// charged at its reservation.
    pub fn bill(&self, outcome: &Outcome) -> Option<Bill> {
        let usage: Usage = outcome.usage?;
        let tier = outcome.tier.or(self.tier).unwrap_or_default();
        let by_tokens = |price: &Arc<Price>| cost(price, &usage, tier).0;
        let cost_nano_usd = match (&self.price, outcome.cost) {
            // What is told is less than the tokens can cost: it is one part of the cost, such as the fee beside what
            // the caller's own key is billed for.
            (Some(price), Some(told)) if told < least_cost(price, &usage) => {
                tracing::warn!(
                    told_nano_usd = told.0,
                    "a told cost is below what its tokens cost at least: both are charged"
                );
                by_tokens(price).saturating_add(told.0)
            }
            // Otherwise a cost that the upstream reports itself takes precedence over tokens times price.
            (_, Some(told)) => told.0,
            (price, None) => price.as_ref().map_or(0, by_tokens),
        };
        Some(Bill::Usage { usage, tier, cost_nano_usd, price_hash: self.hash.to_string() })
    }
}

/// Returns the name of the surcharge that an upstream's endpoint bills, by its base URL: OpenAI's regional ones.
fn surcharge(base: &str) -> Option<&'static str> {
    let host = base.split_once("://").map_or(base, |(_, rest)| rest);
    ["eu", "us"]
        .into_iter()
        .find(|region| host.strip_prefix(region).is_some_and(|rest| rest.starts_with(".api.openai.com")))
}

#[cfg(test)]
mod tests {
    use outlast_core::words::NanoUsd;

    use super::*;
    use crate::{
        dialect::{Upstream, openai_chat},
        proxy::upstream::Provider,
    };

    #[test]
    fn options_of_a_search_have_a_price_where_the_model_searches_anyway() {
        let provider = || Provider { base: "https://api.openai.com".into(), key: None };
        let providers = Providers::new(|_| Ok::<_, ()>(provider()), Vec::new()).unwrap();
        let (table, hash) = (PriceTable::builtin(), Arc::from("hash"));
        for (model, options, known) in [
            ("gpt-4o-search-preview", "{}", true),
            ("gpt-4o-search-preview", "null", true),
            ("gpt-4o", "{}", false),
            ("gpt-4o", "null", true),
        ] {
            let body = format!(r#"{{"model":"{model}","messages":[],"web_search_options":{options}}}"#);
            let request = (openai_chat::DIALECT.parse)("/v1/chat/completions", body.as_bytes()).unwrap();
            let priced =
                Priced::of(&table, &hash, &To::Own(Upstream::OpenAi), &providers, &request, Unpriced::Deny);
            assert!(priced.is_known(), "{model} {options}");
            assert_eq!(priced.unknown_fee().is_none(), known, "{model} {options}");
            assert_eq!(priced.bound(&request, 10).input_tokens > 10, !known, "{model} {options}");
        }
    }

    /// Bug: OpenRouter with the caller's own key tells `cost: 0`, and that was settled. Consequence: a limit in USD never
    /// halted the run. Cause: a part of the cost (the reseller's fee) was taken for the whole.
    #[test]
    fn a_told_cost_below_what_its_tokens_cost_is_charged_beside_them() {
        let usage = Usage { input: 2000, output: 1000, ..Usage::default() };
        let check = |model: Option<&str>, told: Option<i64>, nano: i64| {
            let price = model.map(|model| PriceTable::builtin().lookup(model).unwrap().price);
            let priced =
                Priced { price, stands_in: None, unknown_fee: None, hash: Arc::from("hash"), tier: None };
            let outcome = Outcome { usage: Some(usage), cost: told.map(NanoUsd), ..Outcome::default() };
            let Some(Bill::Usage { cost_nano_usd, .. }) = priced.bill(&outcome) else { panic!("no bill") };
            assert_eq!(cost_nano_usd, nano, "{model:?} {told:?}");
        };
        let mini = Some("gpt-4o-mini");
        // By tokens 900,000; read from a cache and in a batch, they would cost 450,000.
        check(mini, None, 900_000);
        check(mini, Some(0), 900_000);
        check(mini, Some(45_000), 945_000);
        check(mini, Some(449_999), 1_349_999);
        check(mini, Some(450_000), 450_000);
        check(mini, Some(9_000_000), 9_000_000);
        check(None, Some(45_000), 45_000);
    }

    #[test]
    fn regional_endpoints_bill_a_surcharge() {
        for (base, wanted) in [
            ("https://api.openai.com", None),
            ("https://eu.api.openai.com", Some("eu")),
            ("https://us.api.openai.com/v1", Some("us")),
            ("https://eu.example.com", None),
            ("http://127.0.0.1:8000/eu.api.openai.com", None),
        ] {
            assert_eq!(surcharge(base), wanted, "{base}");
        }
        let price = PriceTable::builtin().lookup("gpt-5.6").unwrap().price;
        assert!(
            price.with_uplift("eu").rates(ServiceTier::Standard, 1).input
                > price.rates(ServiceTier::Standard, 1).input
        );
    }
}
