//! Parsing of a user's price file: LiteLLM's field names, USD per token, exact decimals.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::{
    Price,
    rows::{Listing, Row},
};
use crate::words::{
    Members, ServiceTier,
    bad::start_of,
    money::{BadDecimal, decimal},
};

/// Error in a price file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PriceError {
    code: &'static str,
    message: String,
}

impl PriceError {
    /// Returns the stable code of the error.
    pub fn code(&self) -> &'static str {
        self.code
    }
}

/// Parses every entry of the file into a complete price.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, Price>, PriceError> {
    let models = members(text)?;
    let mut prices = BTreeMap::new();
    for (model, entry) in models.0 {
        let entry_of = Entry { model: &model };
        if prices.insert(model.clone(), entry_of.price(entry)?).is_some() {
            return Err(entry_of.twice("the model"));
        }
    }
    Ok(prices)
}

/// Reads a price file.
pub(super) fn members(text: &str) -> Result<Members<'_>, PriceError> {
    serde_json::from_str(text).map_err(|e| PriceError {
        code: "price_file_unreadable",
        message: format!("not a price file: {e} (wanted a JSON object of models, each an object of prices)"),
    })
}

/// Entry of one model.
pub(super) struct Entry<'a> {
    pub model: &'a str,
}

/// Accessor of one column in a row.
pub(super) type Column = fn(&mut Row) -> &mut Option<i64>;

/// Names of the price fields, without the suffixes of size and tier.
const COLUMNS: [(&str, Column); 7] = [
    ("input_cost_per_token", |r| &mut r.input),
    ("output_cost_per_token", |r| &mut r.output),
    ("output_cost_per_reasoning_token", |r| &mut r.reasoning),
    ("cache_read_input_token_cost", |r| &mut r.cache_read),
    ("cache_creation_input_token_cost_above_1hr", |r| &mut r.cache_write_1h),
    ("cache_creation_input_token_cost_above_12hr", |r| &mut r.cache_write_1h),
    ("cache_creation_input_token_cost", |r| &mut r.cache_write_5m),
];
const TIERS: [(&str, ServiceTier); 3] =
    [("_flex", ServiceTier::Flex), ("_priority", ServiceTier::Priority), ("_batches", ServiceTier::Batch)];
const OTHERS: [&str; 10] = [
    "max_input_tokens",
    "max_output_tokens",
    "max_tokens",
    "input_cost_per_request",
    "provider_specific_entry",
    "regional_endpoint_uplift_multiplier",
    "regional_processing_uplift_multiplier_eu",
    "regional_processing_uplift_multiplier_us",
    "search_context_cost_per_query",
    "tiered_pricing",
];
/// Fields of LiteLLM's entries that are not read, accepted so that an entry can be pasted: those without a price, and the
/// prices of input that is not text, since the price of a request with audio or video is unknown. `supports_*` is accepted
/// too.
const NOT_READ: [&str; 13] = [
    "comment",
    "deprecation_date",
    "input_cost_per_audio_token",
    "input_cost_per_image_token",
    "input_cost_per_video_token",
    "litellm_provider",
    "metadata",
    "mode",
    "prompt_cache_min_tokens",
    "source",
    "supported_endpoints",
    "supported_modalities",
    "supported_output_modalities",
];

/// Limit of 10,000 USD per million tokens. No model costs that much, but a price per million written in these
/// fields looks like it.
const MOST_PER_TOKEN: (i64, &str) = (10_000_000_000, "0.01");
const MOST_PER_SEARCH: (i64, &str) = (100_000_000_000_000, "100");

impl Entry<'_> {
    pub fn price(&self, entry: &RawValue) -> Result<Price, PriceError> {
        let fields = self.object("the entry", entry)?;
        let mut listing = Listing::of(self.model);
        for (field, value) in &fields {
            self.take(&mut listing, field, value)?;
        }
        let plain = listing.row(ServiceTier::Standard, 0);
        for (field, price) in [("input_cost_per_token", plain.input), ("output_cost_per_token", plain.output)]
        {
            if price.is_none() {
                return Err(self.missing(field));
            }
        }
        // Both halves of the plain row are there, so only a fee can be missing.
        listing.price().ok_or_else(|| self.missing("input_cost_per_request"))
    }

    /// Reads one field into the listing.
    pub fn take(&self, listing: &mut Listing, field: &str, value: &RawValue) -> Result<(), PriceError> {
        match field {
            "max_input_tokens" => listing.max_input_tokens = Some(self.tokens(field, value)?),
            "max_output_tokens" => listing.max_output_tokens = Some(self.tokens(field, value)?),
            // An older name for the output's field; the newer one wins wherever it stands.
            "max_tokens" => {
                let tokens = self.tokens(field, value)?;
                listing.max_output_tokens.get_or_insert(tokens);
            }
            "regional_endpoint_uplift_multiplier" => self.uplift(listing, "regional", field, value)?,
            "regional_processing_uplift_multiplier_eu" => self.uplift(listing, "eu", field, value)?,
            "regional_processing_uplift_multiplier_us" => self.uplift(listing, "us", field, value)?,
            "provider_specific_entry" => {
                for (name, value) in self.object(field, value)? {
                    if ["fast", "us"].contains(&name.as_str()) {
                        self.uplift(listing, &name, field, value)?;
                    }
                }
            }
            "input_cost_per_request" => {
                listing.request = Some(self.pico(field, value, MOST_PER_SEARCH)?);
            }
            "search_context_cost_per_query" => listing.web_search = Some(self.search(field, value)?),
            "tiered_pricing" => self.ranges(listing, field, value)?,
            _ if NOT_READ.contains(&field) || field.starts_with("supports_") => {
                if field == "litellm_provider" && value.get() == "\"anthropic\"" {
                    listing.anthropic = true;
                }
            }
            _ => {
                let (column, above, tier) = split(field).ok_or_else(|| self.unknown(field))?;
                let pico = self.pico(field, value, MOST_PER_TOKEN)?;
                set_higher(column(listing.row(tier, above)), pico);
            }
        }
        Ok(())
    }

    /// Reads the factor of a surcharge, which counts from one per cent on.
    fn uplift(
        &self,
        listing: &mut Listing,
        name: &str,
        field: &str,
        value: &RawValue,
    ) -> Result<(), PriceError> {
        // As an exact decimal, of which a hundredth is a per cent.
        let hundredths = self.pico(field, value, MOST_PER_SEARCH)? / 10_000_000_000;
        if let Some(percent) = u32::try_from(hundredths).ok().filter(|percent| *percent > 100) {
            let known = listing.uplift_percent.entry(name.to_owned()).or_default();
            *known = percent.max(*known);
        }
        Ok(())
    }

    /// `[{"range": [0, 32000], "input_cost_per_token": …}, …]`: each range's row holds above its lower end.
    fn ranges(&self, listing: &mut Listing, field: &str, value: &RawValue) -> Result<(), PriceError> {
        let bad = |text: &RawValue, wanted| self.invalid(field, text.get(), wanted);
        let ranges: Vec<&RawValue> =
            serde_json::from_str(value.get()).map_err(|_| bad(value, "a list of ranges"))?;
        for range in ranges {
            let fields = self.object(field, range)?;
            let above = fields.iter().find(|(name, _)| name == "range");
            let (above, _) = above
                .and_then(|(_, ends)| serde_json::from_str::<(f64, f64)>(ends.get()).ok())
                .filter(|(low, high)| *low >= 0.0 && low < high && low.fract() == 0.0)
                .ok_or_else(|| bad(range, "a \"range\": [above, up to] in tokens"))?;
            for (name, value) in fields.iter().filter(|(name, _)| name != "range") {
                let column = COLUMNS.iter().find(|(known, _)| known == name).map(|(_, column)| column);
                let column = column.ok_or_else(|| self.unknown(name))?;
                let pico = self.pico(name, value, MOST_PER_TOKEN)?;
                // Whole and not negative: checked above; beyond u64 it saturates, and is never reached.
                *column(listing.row(ServiceTier::Standard, above as u64)) = Some(pico);
            }
        }
        Ok(())
    }

    /// Parses a price per search: a single price, or one per `search_context_size_*`, of which the highest
    /// counts.
    fn search(&self, field: &str, value: &RawValue) -> Result<i64, PriceError> {
        if !value.get().starts_with('{') {
            return self.pico(field, value, MOST_PER_SEARCH);
        }
        let mut highest = 0;
        for (size, value) in self.object(field, value)? {
            if !["low", "medium", "high"].iter().any(|s| size.strip_prefix("search_context_size_") == Some(s))
            {
                return Err(self.unknown(&size));
            }
            highest = highest.max(self.pico(&size, value, MOST_PER_SEARCH)?);
        }
        Ok(highest)
    }

    /// Reads an object, and checks that no name is given twice in it.
    pub fn object<'v>(
        &self,
        field: &str,
        value: &'v RawValue,
    ) -> Result<Vec<(String, &'v RawValue)>, PriceError> {
        let pairs: Members = serde_json::from_str(value.get())
            .map_err(|_| self.invalid(field, value.get(), "an object of prices"))?;
        for (at, (name, _)) in pairs.0.iter().enumerate() {
            if pairs.0[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(self.twice(name));
            }
        }
        Ok(pairs.0)
    }

    fn tokens(&self, field: &str, value: &RawValue) -> Result<u64, PriceError> {
        let text = unquoted(value.get());
        text.parse().map_err(|_| self.invalid(field, &text, "a whole number of tokens"))
    }

    fn pico(&self, field: &str, value: &RawValue, most: (i64, &'static str)) -> Result<i64, PriceError> {
        let text = unquoted(value.get());
        let unfit = |wanted: &str| self.unfit(field, &text, wanted);
        Err(match decimal(&text, 12) {
            Ok(pico) if pico <= most.0 => return Ok(pico),
            Ok(_) | Err(BadDecimal::Overflow) => {
                let wanted = format!("at most {} usd; prices are per token, not per million", most.1);
                PriceError { code: "price_too_high", message: unfit(&wanted) }
            }
            Err(BadDecimal::Negative) => {
                PriceError { code: "price_negative", message: unfit("zero or more") }
            }
            Err(BadDecimal::Syntax) => PriceError {
                code: "price_not_a_number",
                message: unfit("a decimal number, for example 1.5e-7"),
            },
        })
    }

    fn unknown(&self, field: &str) -> PriceError {
        let (model, start, nearest) = (self.model, start_of(field), nearest(field));
        let message = format!("price of {model:?}: unknown field {start:?} (nearest known: {nearest:?})");
        PriceError { code: "price_field_unknown", message }
    }

    fn missing(&self, field: &str) -> PriceError {
        let model = self.model;
        let message =
            format!("price of {model:?}: no {field} (wanted it beside the others; 0 where it is free)");
        PriceError { code: "price_field_missing", message }
    }

    fn twice(&self, what: &str) -> PriceError {
        PriceError {
            code: "price_given_twice",
            message: format!("price of {:?}: given twice: {what}", self.model),
        }
    }

    fn invalid(&self, field: &str, text: &str, wanted: &str) -> PriceError {
        PriceError { code: "price_field_invalid", message: self.unfit(field, text, wanted) }
    }

    fn unfit(&self, field: &str, text: &str, wanted: &str) -> String {
        format!("price of {:?}: {field} is {} (wanted {wanted})", self.model, start_of(text))
    }
}

/// Splits a field name: `input_cost_per_token_above_200k_tokens_priority` → its column, the tokens above which
/// it begins, its tier.
pub(super) fn split(field: &str) -> Option<(Column, u64, ServiceTier)> {
    let (name, tier) = TIERS
        .iter()
        .find_map(|(suffix, tier)| Some((field.strip_suffix(suffix)?, *tier)))
        .unwrap_or((field, ServiceTier::Standard));
    COLUMNS.iter().find_map(|(column, of)| match name.strip_prefix(column)? {
        "" => Some((*of, 0, tier)),
        size => {
            let thousands = size.strip_prefix("_above_")?.strip_suffix("k_tokens")?;
            let digits = thousands.bytes().all(|b| b.is_ascii_digit());
            let thousands: u64 = thousands.parse().ok().filter(|k| digits && *k > 0)?;
            Some((*of, thousands.checked_mul(1000)?, tier))
        }
    })
}

/// Sets a column to the higher of two fields, such as the cache lifetimes of one and of twelve hours.
fn set_higher(column: &mut Option<i64>, pico: i64) {
    *column = Some(column.map_or(pico, |other| other.max(pico)));
}

/// Returns the known field with the fewest edits to `field`.
fn nearest(field: &str) -> String {
    let sizes = ["", "_above_128k_tokens", "_above_200k_tokens", "_above_272k_tokens"];
    let tiers = || [""].into_iter().chain(TIERS.iter().map(|(suffix, _)| *suffix));
    let prices = COLUMNS.iter().flat_map(|(column, _)| {
        sizes.into_iter().flat_map(move |size| tiers().map(move |tier| format!("{column}{size}{tier}")))
    });
    let all = OTHERS.iter().map(|s| (*s).to_owned()).chain(prices);
    // The result goes into an error text, so the start of a hostile name is enough.
    let field = start_of(field);
    all.min_by_key(|known| strsim::levenshtein(&field, known)).unwrap_or_default()
}

/// Returns a JSON string's text, or any other value's JSON.
fn unquoted(json: &str) -> String {
    serde_json::from_str(json).unwrap_or_else(|_| json.to_owned())
}

#[cfg(test)]
mod tests {
    use ServiceTier::*;

    use super::{super::*, *};

    fn table(text: &str) -> PriceTable {
        PriceTable::with_overrides(text).expect(text)
    }

    #[test]
    fn an_override_replaces_the_prices_whole_and_keeps_the_caps() {
        let table =
            table(r#"{"gpt-4o-mini": {"input_cost_per_token": "2e-7", "output_cost_per_token": 7e-7}}"#);
        let found = table.lookup("openai/gpt-4o-mini").unwrap();
        assert_eq!((found.model.as_str(), found.source), ("gpt-4o-mini", Source::Overrides));
        let rates = found.price.rates(Priority, 1);
        assert_eq!((rates.input.0, rates.output.0, rates.cache_read.0), (200_000, 700_000, 200_000));
        assert_eq!(found.price.max_output_tokens, Some(16_384));
        assert_eq!(table.lookup("gpt-5").unwrap().source, Source::Builtin);
    }

    #[test]
    fn every_documented_field_reaches_its_column() {
        let table = table(
            r#"{"m": {
                "litellm_provider": "anthropic", "mode": "chat", "supports_vision": true, "source": "x",
                "max_input_tokens": 1000, "max_tokens": 7, "max_output_tokens": "500",
                "input_cost_per_token": 3e-6, "output_cost_per_token": 15e-6,
                "output_cost_per_reasoning_token": 16e-6,
                "cache_read_input_token_cost": 3e-7,
                "cache_creation_input_token_cost": 4e-6,
                "cache_creation_input_token_cost_above_1hr": 7e-6,
                "input_cost_per_token_above_200k_tokens": 6e-6,
                "cache_creation_input_token_cost_above_1hr_above_200k_tokens": 13e-6,
                "input_cost_per_token_above_200k_tokens_priority": 9e-6,
                "output_cost_per_token_flex": 8e-6,
                "input_cost_per_audio_token": 6e-6,
                "search_context_cost_per_query": {"search_context_size_low": 0.01, "search_context_size_high": 0.02}
            }}"#,
        );
        let price = table.lookup("m").unwrap().price;
        let plain = price.rates(Standard, 200_000);
        assert_eq!((plain.input.0, plain.output.0, plain.reasoning.0), (3_000_000, 15_000_000, 16_000_000));
        assert_eq!(
            (plain.cache_read.0, plain.cache_write_5m.0, plain.cache_write_1h.0),
            (300_000, 4_000_000, 7_000_000)
        );
        let long = price.rates(Standard, 200_001);
        assert_eq!(
            (long.input.0, long.cache_write_5m.0, long.cache_write_1h.0),
            (6_000_000, 7_500_000, 13_000_000)
        );
        assert_eq!(price.rates(Priority, 200_001).input.0, 9_000_000);
        assert_eq!(price.rates(Flex, 1).output.0, 8_000_000);
        assert_eq!((price.max_input_tokens, price.max_output_tokens), (Some(1000), Some(500)));
        assert_eq!(price.web_search_pico, 20_000_000_000);
        assert!(!price.caches_unasked);
    }

    #[test]
    fn ranges_are_rows_above_their_lower_end() {
        let table = table(
            r#"{"q": {"tiered_pricing": [
                {"range": [0, 32000.0], "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6},
                {"range": [32000.0, 128000], "input_cost_per_token": 3e-6, "output_cost_per_token": 4e-6}]}}"#,
        );
        let price = table.lookup("q").unwrap().price;
        assert_eq!(price.rates(Standard, 32_000).input.0, 1_000_000);
        assert_eq!(price.rates(Standard, 32_001).input.0, 3_000_000);
        assert_eq!(price.rates(Standard, 1_000_000).output.0, 4_000_000);
    }

    fn check_refused(text: &str, code: &str, said: &str) {
        let error = PriceTable::with_overrides(text).expect_err(text);
        assert_eq!((error.code(), error.to_string().as_str()), (code, said), "{text}");
    }

    #[test]
    fn a_price_file_with_a_mistake_is_refused_by_name() {
        check_refused(
            r#"{"m": {"input_cost_per_tokn": 1e-6}}"#,
            "price_field_unknown",
            r#"price of "m": unknown field "input_cost_per_tokn" (nearest known: "input_cost_per_token")"#,
        );
        check_refused(
            r#"{"m": {"cache_read_input_token_cost_above_200_tokens": 1e-6}}"#,
            "price_field_unknown",
            r#"price of "m": unknown field "cache_read_input_token_cost_above_200_tokens" (nearest known: "cache_read_input_token_cost_above_200k_tokens")"#,
        );
        check_refused(
            r#"{"m": {"input_cost_per_token": -1e-6}}"#,
            "price_negative",
            r#"price of "m": input_cost_per_token is -1e-6 (wanted zero or more)"#,
        );
        check_refused(
            r#"{"m": {"input_cost_per_token": 0.15}}"#,
            "price_too_high",
            r#"price of "m": input_cost_per_token is 0.15 (wanted at most 0.01 usd; prices are per token, not per million)"#,
        );
        check_refused(
            r#"{"m": {"input_cost_per_token": "free"}}"#,
            "price_not_a_number",
            r#"price of "m": input_cost_per_token is free (wanted a decimal number, for example 1.5e-7)"#,
        );
        check_refused(
            r#"{"m": {"input_cost_per_token": 0}}"#,
            "price_field_missing",
            r#"price of "m": no output_cost_per_token (wanted it beside the others; 0 where it is free)"#,
        );
        check_refused(
            r#"{"m": {"input_cost_per_token": 0, "input_cost_per_token": 1e-6}}"#,
            "price_given_twice",
            r#"price of "m": given twice: input_cost_per_token"#,
        );
        check_refused(
            r#"{"m": {"max_output_tokens": 1.5}}"#,
            "price_field_invalid",
            r#"price of "m": max_output_tokens is 1.5 (wanted a whole number of tokens)"#,
        );
        check_refused(
            r#"{"m": {"tiered_pricing": [{"input_cost_per_token": 1e-6}]}}"#,
            "price_field_invalid",
            r#"price of "m": tiered_pricing is {"input_cost_per_token": 1e-6} (wanted a "range": [above, up to] in tokens)"#,
        );
        check_refused(
            r#"{"m": 3}"#,
            "price_field_invalid",
            r#"price of "m": the entry is 3 (wanted an object of prices)"#,
        );
        let entry = r#"{"input_cost_per_token": 0, "output_cost_per_token": 0}"#;
        check_refused(
            &format!(r#"{{"m": {entry}, "m": {entry}}}"#),
            "price_given_twice",
            r#"price of "m": given twice: the model"#,
        );
        for broken in ["", "[]", "{", "{\"m\": {}} x"] {
            assert_eq!(PriceTable::with_overrides(broken).expect_err(broken).code(), "price_file_unreadable");
        }
    }

    #[test]
    fn the_hash_tells_tables_apart() {
        let (none, some) = (table("{}"), table("{ }"));
        let hashes =
            [PriceTable::builtin().hash().to_owned(), none.hash().to_owned(), some.hash().to_owned()];
        assert!(hashes.iter().all(|h| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit())));
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2]);
        assert_eq!(table("{}").hash(), hashes[1]);
    }
}

#[cfg(test)]
mod decimal_tests {
    use super::*;

    #[test]
    fn decimals_are_read_exactly() {
        for (text, pico) in [
            ("0", 0),
            ("0.0", 0),
            ("0e400", 0),
            ("1.5e-07", 150_000),
            ("0.00000015", 150_000),
            ("1.5E-7", 150_000),
            ("15e-8", 150_000),
            ("2e-6", 2_000_000),
            ("1", 1_000_000_000_000),
            ("1e+2", 100_000_000_000_000),
            // Floats' noise, both ways.
            ("1.0000000000000001e-07", 100_000),
            ("9.999999999999999e-08", 100_000),
            // A true fraction of a pico-dollar is never free.
            ("1.41953125e-07", 141_954),
            ("1e-13", 1),
            ("1e-500", 0),
            ("0.00000015000000000000000000000000000000000000001", 150_000),
        ] {
            assert_eq!(decimal(text, 12), Ok(pico), "{text}");
        }
        for bad in ["", ".", "e5", "1e", "0x1", "1,5", "1 ", "+1", "nan", "1e99999999999", "true", "null"] {
            assert_eq!(decimal(bad, 12), Err(BadDecimal::Syntax), "{bad}");
        }
        assert_eq!(decimal("-1e-7", 12), Err(BadDecimal::Negative));
        assert_eq!(decimal("1e300", 12), Err(BadDecimal::Overflow));
        assert_eq!(decimal("9999999999", 12), Err(BadDecimal::Overflow));
        assert_eq!(decimal(&"9".repeat(500), 12), Err(BadDecimal::Overflow));
    }
}
