//! Lookup of a price by the model name in a request.

use std::sync::Arc;

use super::{Price, PriceTable, table};

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
        let dateless = names(model).filter_map(without_date);
        names(model).chain(dateless).find_map(|name| self.exactly(name))
    }

    /// Returns the price under exactly this name.
    pub fn exactly(&self, name: &str) -> Option<Found> {
        let (price, source) = match self.overrides.get(name) {
            Some(price) => (price.clone(), Source::Overrides),
            None => (Arc::new(table::builtin_price(name)?), Source::Builtin),
        };
        Some(Found { price, model: name.to_owned(), source })
    }
}

/// Returns the name and its shorter forms without provider prefixes: `a/b/c`, `b/c`, `c`.
fn names(model: &str) -> impl Iterator<Item = &str> {
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

#[cfg(test)]
mod tests {
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
