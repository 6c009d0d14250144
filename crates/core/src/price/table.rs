//! Price table: the one compiled in, and a user's overrides on top.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{
    Price, PriceError, overrides,
    rows::{Listing, Row},
};
use crate::words::ServiceTier;

/// One model a line, sorted by the bytes of its name. A lookup searches the lines and parses one, so that the
/// table costs nothing at start.
const BUILTIN: &str = include_str!("../../data/prices.json");
/// SHA-256 of the table, written beside it when it is made: hashing it at start would cost more than all
/// lookups.
const BUILTIN_SHA256: &str = include_str!("../../data/prices.sha256");
const FIRST_LINE_ENDS: &str = "\"models\":{\n";

/// Prices by model name.
#[derive(Debug, Clone)]
pub struct PriceTable {
    pub(super) overrides: BTreeMap<String, Arc<Price>>,
    hash: String,
}

impl PriceTable {
    /// Returns the table compiled in.
    pub fn builtin() -> PriceTable {
        PriceTable { overrides: BTreeMap::new(), hash: BUILTIN_SHA256.trim_end().to_owned() }
    }

    /// Returns the table compiled in, under the entries of a user's price file.
    ///
    /// `text` is a JSON object of models with LiteLLM's field names, in USD per token, as numbers or strings:
    /// `{"my-model": {"input_cost_per_token": 1.5e-7, "output_cost_per_token": "0.0000006"}}`. Prices are read
    /// exactly; a fraction of a pico-dollar is rounded up. An entry replaces the built-in prices of its model
    /// whole; only `max_input_tokens` and `max_output_tokens` are kept where it names none. Prices it leaves
    /// out are filled as in the built-in table (see `rows.rs`).
    ///
    /// Errors: a [`PriceError`] names any field or value that is not understood. Only fields without prices are
    /// ignored.
    pub fn with_overrides(text: &str) -> Result<PriceTable, PriceError> {
        let builtin = PriceTable::builtin();
        let hash = Sha256::new().chain_update(&builtin.hash).chain_update("\n").chain_update(text).finalize();
        let mut table = PriceTable { hash: hash.iter().map(|b| format!("{b:02x}")).collect(), ..builtin };
        for (model, mut price) in overrides::parse(text)? {
            if let Some(known) = builtin_price(&model) {
                price.max_input_tokens = price.max_input_tokens.or(known.max_input_tokens);
                price.max_output_tokens = price.max_output_tokens.or(known.max_output_tokens);
            }
            table.overrides.insert(model, Arc::new(price));
        }
        Ok(table)
    }

    /// Returns the names of the models in the user's price file.
    pub fn own_names(&self) -> impl Iterator<Item = &str> {
        self.overrides.keys().map(String::as_str)
    }

    /// Returns the SHA-256 in hex over the table and the overrides' text. Each settlement stores it, because
    /// prices change after the fact.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

/// Returns the price compiled in under exactly this name; `None` if there is none.
pub(super) fn builtin_price(name: &str) -> Option<Price> {
    let entry: Entry = serde_json::from_str(find_line(models(), name)?).ok()?;
    entry.listing(name)?.price()
}

/// Returns the names of all models that are compiled in.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    models().lines().filter_map(|line| line.split('"').nth(1))
}

/// Returns the lines of the models, without the header's and the closing one.
fn models() -> &'static str {
    let (_, models) = BUILTIN.split_once(FIRST_LINE_ENDS).unwrap_or_default();
    models.trim_end_matches("\n}}\n")
}

/// Finds the JSON after `"name":` in sorted lines of `"name":{…},`.
fn find_line<'a>(lines: &'a str, name: &str) -> Option<&'a str> {
    let (mut low, mut high) = (0, lines.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let bytes = lines.as_bytes();
        let start = bytes[low..middle].iter().rposition(|b| *b == b'\n').map_or(low, |at| low + at + 1);
        let end = bytes[middle..].iter().position(|b| *b == b'\n').map_or(lines.len(), |at| middle + at);
        // The script that makes the table refuses names with a quote or a backslash in them.
        let (key, entry) = lines[start..end].strip_prefix('"')?.split_once("\":")?;
        match key.cmp(name) {
            std::cmp::Ordering::Less => low = end + 1,
            std::cmp::Ordering::Greater => high = start,
            std::cmp::Ordering::Equal => return Some(entry.trim_end_matches(',')),
        }
    }
    None
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    max_input_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    web_search: Option<i64>,
    media_input: Option<i64>,
    #[serde(default)]
    uplift_percent: BTreeMap<String, u32>,
    rows: BTreeMap<String, Row>,
}

impl Entry {
    fn listing(self, name: &str) -> Option<Listing> {
        let mut listing = Listing {
            max_input_tokens: self.max_input_tokens,
            max_output_tokens: self.max_output_tokens,
            web_search: self.web_search,
            media_input: self.media_input,
            uplift_percent: self.uplift_percent,
            ..Listing::of(name)
        };
        for (label, row) in self.rows {
            let (tier, above) = label.split_once('>').unwrap_or((&label, "0"));
            let tier = match tier {
                "standard" => ServiceTier::Standard,
                "flex" => ServiceTier::Flex,
                "priority" => ServiceTier::Priority,
                "batch" => ServiceTier::Batch,
                _ => return None,
            };
            *listing.row(tier, above.parse().ok()?) = row;
        }
        Some(listing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_found_and_read() {
        let names: Vec<_> = names().collect();
        assert!(names.len() > 3000, "{} models", names.len());
        let unread = names.iter().filter(|name| builtin_price(name).is_none());
        // These search the web unasked, at a fee that the table does not list.
        let unlisted = [
            "aihubmix/gemini-3-flash-preview-search",
            "gemini/deep-research-max-preview-04-2026",
            "gemini/deep-research-preview-04-2026",
            "gemini/deep-research-pro-preview-12-2025",
            "kyma/sonar",
            "kyma/sonar-pro",
            "perplexity/perplexity/sonar",
            "vercel_ai_gateway/perplexity/sonar",
            "vercel_ai_gateway/perplexity/sonar-pro",
            "vercel_ai_gateway/perplexity/sonar-reasoning",
            "vercel_ai_gateway/perplexity/sonar-reasoning-pro",
        ];
        assert_eq!(unread.copied().collect::<Vec<_>>(), unlisted);
    }

    #[test]
    fn the_table_is_sorted_and_whole_json() {
        let names: Vec<_> = models().lines().map(|l| l.split('"').nth(1).unwrap()).collect();
        assert!(names.is_sorted_by(|a, b| a < b));
        let whole: serde_json::Value = serde_json::from_str(BUILTIN).unwrap();
        assert_eq!(whole["models"].as_object().unwrap().len(), names.len());
        assert!(whole["header"]["licence"].as_str().unwrap().starts_with("MIT. Copyright"));
    }

    #[test]
    fn the_committed_hash_is_the_tables() {
        let hash: String = Sha256::digest(BUILTIN).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(PriceTable::builtin().hash(), hash);
    }

    #[test]
    fn the_highest_listed_search_is_what_an_unlisted_one_costs() {
        let highest = models().lines().map(|l| l.split('"').nth(1).unwrap());
        let highest = highest.filter_map(|name| builtin_price(name).map(|p| p.web_search_pico)).max();
        assert_eq!(highest, Some(super::super::WEB_SEARCH_UNLISTED_PICO));
    }

    #[test]
    fn names_beside_a_line_are_not_found() {
        let lines = "\"b\":1,\n\"d\":2,\n\"dd\":3";
        for (name, want) in
            [("a", None), ("b", Some("1")), ("c", None), ("d", Some("2")), ("dd", Some("3")), ("e", None)]
        {
            assert_eq!(find_line(lines, name), want, "{name}");
        }
        assert_eq!(find_line("", "a"), None);
    }
}
