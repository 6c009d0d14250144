//! `prices`, `prices update`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use outlast_core::words::usage::{ServiceTier, Usage};

/// Show what would be charged for a model, and where the figures are from
///
/// Prices are in USD per million tokens. With --input or --output also what a call of that size costs.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast prices gpt-4o-mini\n  outlast prices claude-sonnet-4-5 --input 100000 --cached 90000 --output 2000\n  outlast prices gemini-2.5-pro --json",
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct PricesArgs {
    #[command(subcommand)]
    pub verb: Option<PricesVerb>,
    /// The model, as requests name it
    #[arg(value_name = "MODEL", required = true)]
    pub model: Option<String>,
    /// File of prices that add to the built-in table, or replace some of it
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// Use the prices of an upstream that your settings name
    #[arg(long, value_name = "NAME")]
    pub upstream: Option<String>,
    /// The tier that is billed: standard, flex, priority, batch
    #[arg(long, value_name = "TIER", default_value = "standard", value_parser = tier)]
    pub tier: ServiceTier,
    /// Input tokens, cached ones included
    #[arg(long, value_name = "N")]
    pub input: Option<u64>,
    /// Input tokens that are read from a cache, a part of --input
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cached: u64,
    /// Output tokens, reasoning included
    #[arg(long, value_name = "N")]
    pub output: Option<u64>,
    /// Reasoning tokens, a part of --output
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub reasoning: u64,
}

#[derive(Subcommand, Clone, Debug)]
pub enum PricesVerb {
    Update(UpdateArgs),
}

/// Take newer prices from a file of LiteLLM's format, for all new runs of yours
///
/// Shows what differs from the prices that count now, and keeps it with --accept, in prices.json beside your own
/// outlast.toml. --prices FILE adds to that. Entries whose price is not by the token are left out.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast prices update https://raw.githubusercontent.com/BerriAI/litellm/main/model_prices_and_context_window.json\n  outlast prices update prices.json --accept"
)]
pub struct UpdateArgs {
    /// File, or URL with https://
    #[arg(value_name = "FILE|URL")]
    pub source: String,
    /// Keep the prices that are shown
    #[arg(long)]
    pub accept: bool,
}

impl PricesArgs {
    /// The call that is asked about, if one is.
    pub fn usage(&self) -> Option<Usage> {
        if self.input.is_none() && self.output.is_none() {
            return None;
        }
        let (input, output) = (self.input.unwrap_or(0), self.output.unwrap_or(0));
        let cache_read = self.cached.min(input);
        Some(Usage {
            input: input - cache_read,
            cache_read,
            output,
            reasoning: self.reasoning.min(output),
            ..Usage::default()
        })
    }
}

fn tier(text: &str) -> Result<ServiceTier, String> {
    let wanted =
        || format!("no such tier (wanted one of {})", ServiceTier::ALL.map(ServiceTier::name).join(", "));
    ServiceTier::parse(text).ok_or_else(wanted)
}
