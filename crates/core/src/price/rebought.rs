//! Input that a call bought again although the call before it had left it in the provider's prompt cache.

use super::{Price, cost};
use crate::words::{NanoUsd, ServiceTier, Usage};

/// Shortest prompt prefix that OpenAI caches, and the step by which longer prefixes are cached, in tokens.
const AUTOMATIC_FROM: u64 = 1024;
const AUTOMATIC_STEP: u64 = 128;

/// Time, in milliseconds, after which an unread cache entry expires: OpenAI's (`AUTOMATIC_MS`), and Anthropic's with a
/// mark of five minutes (`SHORT_MS`) or one hour (`LONG_MS`).
const AUTOMATIC_MS: i64 = 10 * 60_000;
const SHORT_MS: i64 = 5 * 60_000;
const LONG_MS: i64 = 60 * 60_000;

/// Kind of a provider's prompt cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// The client marks the parts of the prompt that are cached. `hour`: it asked for a lifetime of one hour.
    Marked { hour: bool },
    /// The provider caches by itself.
    Automatic,
}

impl Caching {
    /// Returns the time, in milliseconds, after which an entry of the provider's cache expires if it is not read.
    pub fn lives_ms(self) -> i64 {
        match self {
            Caching::Automatic => AUTOMATIC_MS,
            Caching::Marked { hour: false } => SHORT_MS,
            Caching::Marked { hour: true } => LONG_MS,
        }
    }

    /// Returns the number of a call's input tokens that the provider's cache held once the call was answered.
    pub fn covered(self, usage: &Usage) -> u64 {
        match self {
            Caching::Marked { .. } => {
                usage.cache_read.saturating_add(usage.cache_write_5m).saturating_add(usage.cache_write_1h)
            }
            Caching::Automatic if usage.input_total() < AUTOMATIC_FROM => 0,
            Caching::Automatic => usage.input_total() / AUTOMATIC_STEP * AUTOMATIC_STEP,
        }
    }
}

/// Returns the number of input tokens that the call of usage `after` did not read from the cache, although the cache
/// held `covered` tokens of its conversation.
pub fn tokens(covered: u64, after: &Usage) -> u64 {
    covered.min(after.input_total()).saturating_sub(after.cache_read)
}

/// Returns what `tokens` of a call cost beyond the price of reading them from the cache.
pub fn extra(price: &Price, usage: &Usage, tier: ServiceTier, tokens: u64) -> NanoUsd {
    let mut read = *usage;
    let mut left = tokens;
    // The dearest column first: a prefix that misses is what is written anew.
    for column in [&mut read.cache_write_1h, &mut read.cache_write_5m, &mut read.input] {
        let moved = left.min(*column);
        (*column, left) = (*column - moved, left - moved);
        read.cache_read += moved;
    }
    NanoUsd((cost(price, usage, tier).0 - cost(price, &read, tier).0).max(0))
}

#[cfg(test)]
mod tests {
    use super::{super::PriceTable, *};

    #[test]
    fn what_the_cache_had_and_the_call_did_not_read_is_bought_again() {
        let usage = |input, cache_read, cache_write_5m| Usage {
            input,
            cache_read,
            cache_write_5m,
            ..Usage::default()
        };
        let marked = Caching::Marked { hour: false };
        let covered = marked.covered(&usage(50, 90_000, 10_000));
        assert_eq!(covered, 100_000);
        for (after, wanted) in [
            (usage(10, 100_000, 500), 0),
            (usage(10, 4_000, 96_500), 96_000),
            (usage(100_500, 0, 0), 100_000),
            // The conversation was made shorter: no more than what was sent.
            (usage(10, 0, 20_000), 20_010),
        ] {
            assert_eq!(tokens(covered, &after), wanted, "{after:?}");
        }
        assert_eq!(Caching::Automatic.covered(&usage(1023, 0, 0)), 0);
        assert_eq!(Caching::Automatic.covered(&usage(1000, 300, 0)), 1280);
    }

    #[test]
    fn its_price_is_that_of_writing_less_that_of_reading() {
        let price = PriceTable::builtin().lookup("claude-sonnet-4-5").unwrap().price;
        let usage = Usage { input: 100, cache_write_5m: 1000, ..Usage::default() };
        // 1,000 at 3.75 − 0.30 and 50 at 3 − 0.30 usd per million.
        let extra = extra(&price, &usage, ServiceTier::Standard, 1050);
        assert_eq!(extra, NanoUsd(3_450_000 + 135_000));
    }
}
