//! Cost of a call, from its usage.

use super::Price;
use crate::words::{NanoUsd, ServiceTier, Usage, money::nano_from_pico};

/// Returns the list price of `usage` at the tier the answer names.
///
/// All input tokens, cached or not, decide the long-context row. Columns are summed in pico-USD and rounded
/// up once.
pub fn cost(price: &Price, usage: &Usage, tier: ServiceTier) -> NanoUsd {
    let rates = price.rates(tier, usage.input_total());
    // A report of more reasoning than output contradicts itself: output is what is billed.
    let reasoning = usage.reasoning.min(usage.output);
    let pico = [
        rates.input.times(usage.input),
        rates.cache_read.times(usage.cache_read),
        rates.cache_write_5m.times(usage.cache_write_5m),
        rates.cache_write_1h.times(usage.cache_write_1h),
        rates.output.times(usage.output - reasoning),
        rates.reasoning.times(reasoning),
        i128::from(price.web_search_pico) * i128::from(usage.web_searches),
        i128::from(price.request_pico),
    ];
    nano_from_pico(pico.into_iter().fold(0, i128::saturating_add))
}

/// Returns the least that `usage` can cost at `price`: all input read from a cache, in the cheapest tier, and without searches.
pub fn least_cost(price: &Price, usage: &Usage) -> NanoUsd {
    let cached = Usage {
        cache_read: usage.input_total(),
        output: usage.output,
        reasoning: usage.reasoning,
        ..Usage::default()
    };
    ServiceTier::ALL.iter().map(|tier| cost(price, &cached, *tier)).min().unwrap_or(NanoUsd::ZERO)
}

#[cfg(test)]
mod tests {
    use ServiceTier::*;

    use super::{super::PriceTable, *};

    fn check(model: &str, tier: ServiceTier, usage: Usage, nano: i64) {
        let found = PriceTable::builtin().lookup(model).expect(model);
        assert_eq!(cost(&found.price, &usage, tier), NanoUsd(nano), "{model} {tier:?} {usage:?}");
    }

    #[test]
    fn costs_are_those_computed_by_hand() {
        let none = Usage::default();
        check("gpt-4o-mini", Standard, none, 0);
        // A search for each request, at 0.025 usd: 100 × 2.50 + 100 × 10 usd per million beside it.
        check("gpt-4o-search-preview", Standard, none, 25_000_000);
        let small = Usage { input: 100, output: 100, ..none };
        check("gpt-4o-search-preview-2027-01-01", Standard, small, 25_000_000 + 1_250_000);
        // 1,000 × 0.15 + 500 × 0.60 usd per million = 0.00045 usd.
        check("gpt-4o-mini", Standard, Usage { input: 1000, output: 500, ..none }, 450_000);
        // Half of the input cached: 500 × 0.15 + 500 × 0.075 + 500 × 0.60.
        check("gpt-4o-mini", Standard, Usage { input: 500, cache_read: 500, output: 500, ..none }, 412_500);
        check("gpt-4o-mini", Priority, Usage { input: 1000, output: 500, ..none }, 750_000);
        check("gpt-4o-mini", Batch, Usage { input: 1000, output: 500, ..none }, 225_000);
        // One token at 0.15 usd per million is 150 nano-usd; one cached, 75.
        check("gpt-4o-mini", Standard, Usage { cache_read: 1, ..none }, 75);
        // 0.02 usd per million: 20 nano-usd a token.
        check("text-embedding-3-small", Standard, Usage { input: 1000, ..none }, 20_000);
        // Sonnet 4.5: input 3, output 15, read 0.30, write 3.75 (5 minutes) and 6 (1 hour).
        let cached = Usage {
            input: 10,
            cache_read: 1000,
            cache_write_5m: 200,
            cache_write_1h: 100,
            output: 50,
            ..none
        };
        check("claude-sonnet-4-5", Standard, cached, 30_000 + 300_000 + 750_000 + 600_000 + 750_000);
        check("claude-sonnet-4-5", Standard, Usage { web_searches: 2, ..none }, 20_000_000);
        // Gemini 2.5 Pro turns from 1.25 / 10 to 2.50 / 15 for the whole request above 200,000 tokens.
        check(
            "gemini-2.5-pro",
            Standard,
            Usage { input: 200_000, output: 100, ..none },
            250_000_000 + 1_000_000,
        );
        check(
            "gemini-2.5-pro",
            Standard,
            Usage { input: 200_001, output: 100, ..none },
            500_002_500 + 1_500_000,
        );
        // Cached tokens count towards the threshold: 100,000 × 2.50 + 100,001 × 0.25.
        let long = Usage { input: 100_000, cache_read: 100_001, ..none };
        check("gemini-2.5-pro", Standard, long, 250_000_000 + 25_000_250);
        // Qwen's ranges: above 32,000 input tokens 2.40 / 12, above 128,000 3 / 15.
        check(
            "dashscope/qwen3-max",
            Standard,
            Usage { input: 32_000, output: 10, ..none },
            38_400_000 + 60_000,
        );
        check(
            "dashscope/qwen3-max",
            Standard,
            Usage { input: 32_001, output: 10, ..none },
            76_802_400 + 120_000,
        );
        check(
            "dashscope/qwen3-max",
            Standard,
            Usage { input: 300_000, output: 10, ..none },
            900_000_000 + 150_000,
        );
        // Reasoning at its own price: 40 × 0.20 + 60 × 0.50 usd per million.
        check("dashscope/qwen-turbo", Standard, Usage { output: 100, reasoning: 60, ..none }, 8_000 + 30_000);
    }

    #[test]
    fn a_report_beyond_all_reason_saturates() {
        let all = u64::MAX;
        let usage = Usage {
            input: all,
            cache_read: all,
            cache_write_5m: all,
            cache_write_1h: all,
            output: all,
            reasoning: all,
            web_searches: all,
        };
        check("gpt-4o-mini", Standard, usage, i64::MAX);
    }
}
