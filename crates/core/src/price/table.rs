//! The price table: built in and overridden, looked up by a model's name, and the dearest of a family.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{
    Price, PriceError, overrides,
    rows::{Listing, Row},
    scaled,
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
    /// Errors: a [`PriceError`] names any field or value that is not understood. Only the fields of `NOT_READ` are ignored.
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
            uplift_percent: self.uplift_percent,
            ..Listing::of(name)
        };
        for (label, row) in self.rows {
            let (tier, above) = label.split_once('>').unwrap_or((&label, "0"));
            *listing.row(ServiceTier::parse(tier)?, above.parse().ok()?) = row;
        }
        Some(listing)
    }
}

/// Price of a model, and the name by which it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub price: Arc<Price>,
    /// Name of the model in the table: the name in the request, or that name without its provider prefix or date.
    pub model: String,
    pub source: Source,
}

/// Table in which a price stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The table compiled in.
    Builtin,
    /// The user's price file.
    Overrides,
}

/// Greatest length of a name that is looked up, in bytes. The longest in the table has about 100; a hostile one
/// has megabytes.
const MAX_NAME_BYTES: usize = 256;

impl PriceTable {
    /// Returns the price of `model`, as a request names it. `None` means an unknown price, never a free one.
    ///
    /// Tried in turn: the name itself; without its provider prefixes (`openrouter/openai/gpt-4o` →
    /// `openai/gpt-4o` → `gpt-4o`); each of these without a date at its end (`-2025-08-07`, `-20250807`). For
    /// each, the overrides come before the table compiled in.
    pub fn lookup(&self, model: &str) -> Option<Found> {
        if model.len() > MAX_NAME_BYTES {
            return None;
        }
        let dateless = spellings(model).filter_map(without_date);
        spellings(model).chain(dateless).find_map(|name| self.exactly(name))
    }

    /// Returns the price under exactly this name.
    pub fn exactly(&self, name: &str) -> Option<Found> {
        let (price, source) = match self.overrides.get(name) {
            Some(price) => (price.clone(), Source::Overrides),
            None => (Arc::new(builtin_price(name)?), Source::Builtin),
        };
        Some(Found { price, model: name.to_owned(), source })
    }
}

/// Returns the name and its shorter forms without provider prefixes: `a/b/c`, `b/c`, `c`.
fn spellings(model: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(model), |name| name.split_once('/').map(|(_, rest)| rest))
}

/// Returns `name` without `-2025-08-07` or `-20250807` at its end; `None` if it has no date.
fn without_date(name: &str) -> Option<&str> {
    let dashed = || {
        let (rest, day) = name.rsplit_once('-')?;
        let (rest, month) = rest.rsplit_once('-')?;
        let (rest, year) = rest.rsplit_once('-')?;
        is_date(year, month, day).then_some(rest)
    };
    let plain = || {
        let (rest, date) = name.rsplit_once('-')?;
        (date.len() == 8 && is_date(date.get(..4)?, date.get(4..6)?, date.get(6..)?)).then_some(rest)
    };
    dashed().or_else(plain).filter(|rest| !rest.is_empty())
}

fn is_date(year: &str, month: &str, day: &str) -> bool {
    let within = |text: &str, digits: usize, low: u32, high: u32| {
        text.len() == digits
            && text.bytes().all(|b| b.is_ascii_digit())
            && text.parse().is_ok_and(|n: u32| (low..=high).contains(&n))
    };
    within(year, 4, 2000, 2099) && within(month, 2, 1, 12) && within(day, 2, 1, 31)
}

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
        let builtin = names().filter(of_family).filter_map(|name| {
            let price = Arc::new(builtin_price(name)?);
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
    names().any(|name| family(name).is_some_and(|own| Some(own) == family(model)))
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
        let price = self.map(|rates| rates.zip(rates, |price, _| scaled(price, MARGIN, 1)));
        Price {
            web_search_pico: self.web_search_pico.saturating_mul(MARGIN),
            request_pico: self.request_pico.saturating_mul(MARGIN),
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

#[cfg(test)]
mod lookup_tests {
    use super::*;

    fn check(asked: &str, want: Option<&str>) {
        let found = PriceTable::builtin().lookup(asked);
        assert_eq!(found.as_ref().map(|f| f.model.as_str()), want, "{asked}");
    }

    #[test]
    fn a_name_resolves_exactly_then_without_prefix_then_without_date() {
        for exact in
            ["gpt-4o-mini", "gpt-4o-mini-2024-07-18", "claude-sonnet-4-5", "claude-sonnet-4-5-20250929"]
        {
            check(exact, Some(exact));
        }
        check("gemini/gemini-2.5-pro", Some("gemini/gemini-2.5-pro"));
        check("models/gemini-2.5-pro", Some("gemini-2.5-pro"));
        check("openai/gpt-4o-mini", Some("gpt-4o-mini"));
        check("a/b/claude-sonnet-4-5", Some("claude-sonnet-4-5"));
        check("gpt-4o-mini-2031-01-31", Some("gpt-4o-mini"));
        check("claude-sonnet-4-5-20310131", Some("claude-sonnet-4-5"));
        check("openai/gpt-4o-mini-2031-01-31", Some("gpt-4o-mini"));
    }

    #[test]
    fn what_only_looks_like_a_known_model_has_no_price() {
        for unknown in [
            "",
            "/",
            "-2025-08-07",
            "gpt-4o-min",
            "gpt-4o-minii",
            "GPT-4O-MINI",
            "gpt-4o-mini-2031-13-01",
            "gpt-4o-mini-20310132",
            "gpt-4o-mini-1",
            "gpt-4o-mini\n",
            "no-such-model",
            "é-20250101",
            &"a/".repeat(200),
        ] {
            check(unknown, None);
        }
    }
}

#[cfg(test)]
mod family_tests {
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
            let all = names().filter(|name| family(name) == family(model));
            // One that has a price a request alone has none by the token.
            for (name, price) in all.filter_map(|name| Some((name, builtin_price(name)?))) {
                assert!(2 * sum(&price) <= dearest, "{model} {name}");
            }
        }
        assert!(!has_family("house-model"));
    }
}
