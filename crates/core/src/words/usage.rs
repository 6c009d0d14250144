//! What a provider says a call used, in one shape for every dialect.

use serde::{Deserialize, Serialize};

/// Tokens of one call, each counted in exactly one input column and one output column.
///
/// Dialects disagree on what contains what (OpenAI's `cached_tokens` are part of `prompt_tokens`,
/// Anthropic's `cache_read_input_tokens` are not part of `input_tokens`): a dialect's file subtracts,
/// so that here the input is always `input + cache_read + cache_write_5m + cache_write_1h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Input tokens at the plain price: neither read from nor written to a cache.
    pub input: u64,
    pub cache_read: u64,
    pub cache_write_5m: u64,
    pub cache_write_1h: u64,
    /// All output tokens, reasoning included.
    pub output: u64,
    /// The part of `output` that is reasoning, where the provider tells.
    pub reasoning: u64,
    /// Server-side web searches, billed per request.
    pub web_searches: u64,
}

impl Usage {
    /// All input tokens, cached or not.
    pub fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write_5m)
            .saturating_add(self.cache_write_1h)
    }

    /// Input plus output: what counts against a `tokens` limit.
    pub fn total(&self) -> u64 {
        self.input_total().saturating_add(self.output)
    }
}

/// The tier a provider billed, as its answer names it; it selects the price column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceTier {
    #[default]
    Standard,
    Flex,
    Priority,
    Batch,
}
