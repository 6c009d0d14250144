//! Families of models: what a model without a known price may cost, judged by those whose names begin alike.

use std::sync::Arc;

use super::{Found, Price, PriceTable, Rates, Source, scaled, table};
use crate::words::{PicoUsdPerToken, ServiceTier};

/// Factor by which a model may be dearer than the dearest of its family that is known.
const MARGIN: i64 = 2;

impl PriceTable {
    /// Returns twice the price of the dearest model of the same family, under that model's name; `None` if no model of
    /// it is known.
    ///
    /// A family is the letters that names begin with, without their providers' prefixes: `gpt`, `claude`. The dearest is
    /// the one with the highest sum of input and output price.
    pub fn dearest_of_family(&self, model: &str) -> Option<Found> {
        let of_family = |name: &&str| family(name).is_some_and(|own| Some(own) == family(model));
        let builtin = table::names().filter(of_family).filter_map(|name| {
            let price = Arc::new(table::builtin_price(name)?);
            Some(Found { price, model: name.to_owned(), source: Source::Builtin })
        });
        let own = self.overrides.iter().filter(|(name, _)| of_family(&name.as_str())).map(|(name, price)| {
            Found { price: price.clone(), model: name.clone(), source: Source::Overrides }
        });
        let dearest = builtin.chain(own).max_by_key(|found| {
            let rates = found.price.rates(ServiceTier::Standard, 0);
            rates.input.0.saturating_add(rates.output.0)
        })?;
        Some(Found { price: Arc::new(dearest.price.with_margin()), ..dearest })
    }
}

/// Returns whether models of the same family as `model` are in the table compiled in.
pub fn has_family(model: &str) -> bool {
    table::names().any(|name| family(name).is_some_and(|own| Some(own) == family(model)))
}

/// Returns the letters that a model's name begins with, behind its provider's prefixes; `None` if there are none.
fn family(model: &str) -> Option<&str> {
    let name = model.rsplit('/').next().unwrap_or(model);
    let end = name.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(name.len());
    name.get(..end).filter(|letters| !letters.is_empty())
}

impl Price {
    /// Returns this price with its margin, for a model of which nothing else is known: neither its caps nor its fees.
    fn with_margin(&self) -> Price {
        let raised = |price: PicoUsdPerToken| scaled(price, MARGIN, 1);
        let price = self.map(|rates| Rates {
            input: raised(rates.input),
            output: raised(rates.output),
            cache_read: raised(rates.cache_read),
            cache_write_5m: raised(rates.cache_write_5m),
            cache_write_1h: raised(rates.cache_write_1h),
            reasoning: raised(rates.reasoning),
        });
        Price {
            web_search_pico: self.web_search_pico.saturating_mul(MARGIN),
            request_pico: self.request_pico.saturating_mul(MARGIN),
            media_input: self.media_input.map(raised),
            max_input_tokens: None,
            max_output_tokens: None,
            ..price
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_costs_twice_the_dearest_of_those_whose_names_begin_alike() {
        let text = r#"{
            "zz-1": {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6, "max_output_tokens": 9},
            "zz2": {"input_cost_per_token": 3e-6, "output_cost_per_token": 4e-6, "max_output_tokens": 9},
            "house/zz.3": {"input_cost_per_token": 5e-6, "output_cost_per_token": 1e-6},
            "zzz": {"input_cost_per_token": 9e-6, "output_cost_per_token": 9e-6}
        }"#;
        let table = PriceTable::with_overrides(text).unwrap();
        for model in ["zz-9", "zz", "zz9-turbo", "any/zz-9"] {
            let found = table.dearest_of_family(model).unwrap();
            let rates = found.price.rates(ServiceTier::Standard, 0);
            assert_eq!(
                (found.model.as_str(), rates.input.0, rates.output.0),
                ("zz2", 6_000_000, 8_000_000),
                "{model}"
            );
            assert_eq!(found.price.max_output_tokens, None, "its caps are unknown");
        }
        for model in ["yy-1", "1zz", "", "/", "-zz"] {
            assert_eq!(table.dearest_of_family(model), None, "{model}");
        }
    }

    #[test]
    fn no_model_of_a_known_family_is_dearer_in_input_and_output_together() {
        let table = PriceTable::builtin();
        let sum = |price: &Price| {
            let rates = price.rates(ServiceTier::Standard, 0);
            rates.input.0 + rates.output.0
        };
        for model in ["gpt-99", "claude-omega-9", "gemini-9-pro", "o99"] {
            assert!(has_family(model), "{model}");
            let dearest = sum(&table.dearest_of_family(model).unwrap().price);
            let all = table::names().filter(|name| family(name) == family(model));
            // One that has a price a request alone has none by the token.
            for (name, price) in all.filter_map(|name| Some((name, table::builtin_price(name)?))) {
                assert!(2 * sum(&price) <= dearest, "{model} {name}");
            }
        }
        assert!(!has_family("house-model"));
    }
}
