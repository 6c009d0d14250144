//! Newer prices: the entries of LiteLLM's price file that differ from the table compiled in.
//!
//! Entries are read by the rules of `scripts/vendor-prices.py`, which made that table: one whose price would be too low
//! is left out.

use serde_json::value::RawValue;

use super::{
    Price, PriceError,
    overrides::{Entry, members, split},
    rows::Listing,
    table::builtin_price,
};
use crate::words::ServiceTier;

/// Kinds of models that are billed by the token.
const MODES: [&str; 4] = ["chat", "responses", "completion", "embedding"];

/// Fields of what is billed beside or instead of tokens, in ways that a usage report does not tell apart.
const UNPRICEABLE: [&str; 5] = [
    "output_cost_per_audio_token",
    "output_cost_per_image_token",
    "output_cost_per_video_token",
    "citation_cost_per_token",
    "input_cost_per_request",
];

/// Fields that are read besides those of [`split`].
const ALSO_READ: [&str; 6] = [
    "max_input_tokens",
    "max_output_tokens",
    "search_context_cost_per_query",
    "tiered_pricing",
    "provider_specific_entry",
    "regional_endpoint_uplift_multiplier",
];
const UPLIFT: &str = "regional_processing_uplift_multiplier_";

/// Highest price of a token that is plausible, in pico-USD: what is listed above 1,000 USD per million was meant per
/// thousand tokens.
const HIGHEST_PICO: i64 = 1_000_000_000;

/// Newer prices of a price file.
#[derive(Debug)]
pub struct Update {
    /// Price file with the entries that differ from the table compiled in, one model a line.
    pub text: String,
    /// Number of entries without a price per token, or with one that is not to be believed.
    pub left_out: usize,
}

impl Update {
    /// Reads the whole price file of LiteLLM, or one of a person's. Errors: a text that is no price file.
    pub fn read(text: &str) -> Result<Update, PriceError> {
        let entries = members(text)?;
        let (mut lines, mut left_out) = (Vec::new(), 0);
        for (model, entry) in entries.0 {
            let Some((fields, price)) = plain_entry(&model, entry) else {
                left_out += 1;
                continue;
            };
            if builtin_price(&model) != Some(price) {
                lines.push(format!("{}: {fields}", quoted(&model)));
            }
        }
        let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
        // The same model twice, for one.
        super::overrides::parse(&text)?;
        Ok(Update { text, left_out })
    }
}

/// Returns the fields of an entry that a person's price file may have too, with their price; `None` for an entry that is
/// left out.
fn plain_entry(model: &str, entry: &RawValue) -> Option<(String, Price)> {
    let reader = Entry { model };
    let mut fields = reader.object("the entry", entry).ok()?;
    let mode = fields.iter().find(|(name, _)| name == "mode");
    let mode = mode.and_then(|(_, value)| serde_json::from_str::<String>(value.get()).ok());
    let is_embedding = mode.as_deref() == Some("embedding");
    let is_billed_otherwise = fields.iter().any(|(name, _)| UNPRICEABLE.contains(&name.as_str()));
    if is_billed_otherwise || mode.is_some_and(|mode| !MODES.contains(&mode.as_str())) {
        return None;
    }
    fields.retain(|(name, value)| {
        let is_read = split(name).is_some() || ALSO_READ.contains(&name.as_str()) || name.starts_with(UPLIFT);
        is_read && value.get() != "null"
    });
    let nothing: &RawValue = serde_json::from_str("0").ok()?;
    if is_embedding && !fields.iter().any(|(name, _)| name == "output_cost_per_token") {
        fields.push(("output_cost_per_token".into(), nothing));
    }
    let mut listing = Listing::of(model);
    for (name, value) in &fields {
        reader.take(&mut listing, name, value).ok()?;
    }
    // Some entries list a read price, or zero, where a write price belongs; no provider writes below input.
    fields.retain(|(name, _)| {
        let Some((column, above, tier)) = split(name).filter(|_| name.starts_with("cache_creation")) else {
            return true;
        };
        let usual = listing.row(ServiceTier::Standard, 0).input;
        let row = listing.row(tier, above);
        let write = *column(row);
        write >= row.input.or(usual)
    });
    let text = fields.iter().map(|(name, value)| format!("{}:{}", quoted(name), value.get()));
    let text = format!("{{{}}}", text.collect::<Vec<_>>().join(","));
    let price = reader.price(serde_json::from_str(&text).ok()?).ok()?;
    let rates = price.rates(ServiceTier::Standard, 0);
    // Hosted models are listed at zero before their price is known.
    let is_free = rates.input.0 == 0 || rates.output.0 == 0 && !is_embedding;
    let is_implausible = ServiceTier::ALL
        .into_iter()
        .flat_map(|tier| price.rows(tier))
        .any(|(_, rates)| rates.input.0.max(rates.output.0) > HIGHEST_PICO);
    (!is_free && !is_implausible).then_some((text, price))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::{super::PriceTable, *};

    #[test]
    fn only_what_is_new_or_differs_and_can_be_priced_by_the_token_is_taken() {
        let text = r#"{
            "sample_spec": {"mode": "one of: chat, embedding", "max_tokens": "LEGACY", "input_cost_per_token": 0.0},
            "gpt-4o-mini": {"mode": "chat", "input_cost_per_token": 1.5e-07, "output_cost_per_token": 6e-07,
                "cache_read_input_token_cost": 7.5e-08, "input_cost_per_token_batches": 7.5e-08,
                "output_cost_per_token_batches": 3e-07, "input_cost_per_token_priority": 2.5e-07,
                "cache_read_input_token_cost_priority": 1.25e-07, "output_cost_per_token_priority": 1e-06,
                "max_input_tokens": 128000, "max_output_tokens": 16384, "max_tokens": 16384,
                "search_context_cost_per_query": {"search_context_size_high": 0.025, "search_context_size_low": 0.025,
                    "search_context_size_medium": 0.025}, "supports_vision": true, "unheard_of": {"a": 1}},
            "gpt-next": {"mode": "responses", "input_cost_per_token": 2e-06, "output_cost_per_token": 1e-05,
                "cache_creation_input_token_cost": 1e-07, "input_cost_per_character": 1e-9,
                "regional_processing_uplift_multiplier_eu": 1.1},
            "embed-next": {"mode": "embedding", "input_cost_per_token": 1e-07},
            "free-yet": {"mode": "chat", "input_cost_per_token": 0, "output_cost_per_token": 0},
            "per-thousand": {"mode": "chat", "input_cost_per_token": 0.002, "output_cost_per_token": 0.002},
            "voice": {"mode": "chat", "input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6,
                "output_cost_per_audio_token": 1e-4},
            "picture": {"mode": "image_generation", "input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}
        }"#;
        let update = Update::read(text).unwrap();
        let table = PriceTable::with_overrides(&update.text).unwrap();
        assert_eq!(
            (table.own_names().collect::<Vec<_>>(), update.left_out),
            (vec!["embed-next", "gpt-next"], 5)
        );
        let next = table.lookup("gpt-next").unwrap().price;
        let rates = next.rates(ServiceTier::Standard, 0);
        assert_eq!((rates.input.0, rates.cache_write_5m.0), (2_000_000, 2_000_000), "no write below input");
        let eu = next.with_uplift("eu");
        assert_eq!(eu.rates(ServiceTier::Standard, 0).output.0, 11_000_000);
        assert!(table.lookup("embed-next").is_some() && table.lookup("free-yet").is_none());
    }

    #[test]
    fn a_text_that_is_no_price_file_is_refused() {
        for text in [
            "",
            "[]",
            "<html>",
            r#"{"a": {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6},
            "a": {"input_cost_per_token": 2e-6, "output_cost_per_token": 1e-6}}"#,
        ] {
            assert!(Update::read(text).is_err(), "{text}");
        }
    }
}
