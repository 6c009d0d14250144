//! `outlast prices MODEL`: shows what a model would be charged, and where the figures are from.

use outlast_core::{
    price::{Found, Price, PriceTable, Rates, Source, cost},
    words::{ServiceTier, Usage},
};
use outlast_view::money::{Charged, PerRequest, WebSearch};

use super::prelude::*;
use crate::settings::{prices, upstreams};

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
    Update(super::price_update::UpdateArgs),
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

/// Prints a model's prices. Reads no store.
///
/// Errors: `price_unknown` for a model that a limit in usd would refuse; an upstream that is not configured; a price
/// file that cannot be read or parsed.
pub fn prices(args: &PricesArgs, look: Look, around: &Surroundings) -> Result<u8> {
    super::on_stdout(look, |page| print(args, around, page))
}

fn print(args: &PricesArgs, around: &Surroundings, page: &mut Page) -> Result {
    let model = args.model.as_deref().unwrap_or_default();
    let table = prices::of_file(args.prices.as_deref(), around)?;
    let (table, found) = match &args.upstream {
        None => {
            let found = table.lookup(model);
            (table, found)
        }
        Some(name) => {
            let all = upstreams::load(around)?;
            let named = all
                .iter()
                .find(|u| *u.named.name == **name)
                .ok_or_else(|| InputError::UnknownUpstream { name: name.clone() })?;
            let own = named.named.prices.as_ref().map_or(table, |(own, _)| own.clone());
            let found = named.named.price(&own, model);
            (own, found)
        }
    };
    let found = found.ok_or_else(|| CommandError::PriceUnknown { model: model.to_owned() })?;
    let tier = args.tier;
    let charged = args.usage().map(|usage| (usage, cost(&found.price, &usage, tier).0));
    if page.look.json {
        return Ok(page.json(&ShownPrice::new(args, &table, &found, charged.map(|(_, nano)| nano)))?);
    }
    let price = &found.price;
    page.text(&format!("{}, usd per million tokens\n\n", found.model))?;
    let columns =
        ["tier", ">input over", ">input", ">cached", ">cache write", ">1 h write", ">output", ">reasoning"];
    let mut shown = Table::new(columns);
    for (tier, above, rates) in rows(price) {
        let above = if above == 0 { String::new() } else { above.to_string() };
        let mut row: Vec<Cell> = vec![tier.name().into(), above.into()];
        row.extend(figures(&rates).map(|(_, pico)| Cell::new(usd(pico.saturating_mul(1000)))));
        shown.row(row);
    }
    page.text(&shown.render(page.look, 0))?;
    page.text(&format!("\na web search: {} usd\n", usd(price.web_search_pico / 1000)))?;
    if price.request_pico > 0 {
        page.text(&format!("each request: {} usd\n", usd(price.request_pico / 1000)))?;
    }
    let most = |tokens: Option<u64>| tokens.map_or_else(|| "unknown".into(), |n| n.to_string());
    page.text(&format!(
        "at most {} tokens in, {} out\n",
        most(price.max_input_tokens),
        most(price.max_output_tokens)
    ))?;
    page.text(&format!("from: {}, as {:?}; hash {}\n", source(&found), found.model, table.hash()))?;
    if let Some((usage, nano)) = charged {
        let text = format!("{} tokens in, {} out: {} usd\n", usage.input_total(), usage.output, usd(nano));
        page.text(&text)?;
    }
    Ok(())
}

/// Returns the rows of each tier that has prices of its own, by ascending input size.
pub(super) fn rows(price: &Price) -> Vec<(ServiceTier, u64, Rates)> {
    let of = |tier| price.rows(tier).map(|(above, rates)| (above, *rates)).collect::<Vec<_>>();
    let standard = of(ServiceTier::Standard);
    let all = ServiceTier::ALL.into_iter();
    let own = all.filter(|tier| *tier == ServiceTier::Standard || of(*tier) != standard);
    own.flat_map(|tier| of(tier).into_iter().map(move |(above, rates)| (tier, above, rates))).collect()
}

/// Returns the named rates in pico-USD per token.
pub(super) fn figures(rates: &Rates) -> [(&'static str, i64); 6] {
    [
        ("input", rates.input.0),
        ("cache_read", rates.cache_read.0),
        ("cache_write_5m", rates.cache_write_5m.0),
        ("cache_write_1h", rates.cache_write_1h.0),
        ("output", rates.output.0),
        ("reasoning", rates.reasoning.0),
    ]
}

fn source(found: &Found) -> &'static str {
    match found.source {
        Source::Builtin => "the built-in table (LiteLLM's price file)",
        Source::Overrides => "your price file",
    }
}

shape! {
    /// Price of a model, as `outlast prices --json` prints it.
    ShownPrice(args: &PricesArgs, table: &PriceTable, found: &Found, charged: Option<i64>; let price = &found.price) {
        asked: String = args.model.clone().unwrap_or_default();
        model: String = found.model.clone();
        source: &'static str = match found.source {
            Source::Builtin => "builtin",
            Source::Overrides => "file",
        };
        price_hash: String = table.hash().to_owned();
        rows: Vec<Value> = rows(price).into_iter().map(row).collect();
        max_input_tokens: Option<u64> = price.max_input_tokens;
        max_output_tokens: Option<u64> = price.max_output_tokens;
        #[serde(flatten)] web_search: WebSearch = WebSearch::new(price.web_search_pico / 1000);
        #[serde(flatten)] request: PerRequest = PerRequest::new(price.request_pico / 1000);
        #[serde(flatten)] charged: Charged = Charged::new(charged);
    }
}

fn row((tier, above, rates): (ServiceTier, u64, Rates)) -> Value {
    let mut row = Map::new();
    row.insert("tier".into(), tier.name().into());
    row.insert("input_over_tokens".into(), above.into());
    for (figure, pico) in figures(&rates) {
        row.insert(format!("{figure}_pico_usd_per_token"), pico.into());
    }
    Value::Object(row)
}
