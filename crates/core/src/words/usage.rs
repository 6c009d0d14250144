//! Token usage of a call as its provider reports it, in one shape for every dialect.

use serde::{Deserialize, Serialize};

use crate::named;

/// Tokens of one call, each counted in exactly one input column and one output column.
///
/// Dialects disagree on which count contains which: OpenAI's `cached_tokens` are part of `prompt_tokens`,
/// Anthropic's `cache_read_input_tokens` are not part of `input_tokens`. Each dialect's file subtracts, so that
/// here the input is always `input + cache_read + cache_write_5m + cache_write_1h`.
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
    /// Part of `output` that is reasoning; 0 if the provider does not report it.
    pub reasoning: u64,
    /// Server-side web searches, billed per request.
    pub web_searches: u64,
}

impl Usage {
    /// Returns all input tokens, cached or not.
    pub fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write_5m)
            .saturating_add(self.cache_write_1h)
    }

    /// Returns input plus output: the number that counts against a `tokens` limit.
    pub fn total(&self) -> u64 {
        self.input_total().saturating_add(self.output)
    }
}

named! {
    /// Service tier billed by the provider, as its answer names it. Selects the price column.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ServiceTier {
        #[default]
        Standard "standard",
        Flex "flex",
        Priority "priority",
        Batch "batch",
    }
}
