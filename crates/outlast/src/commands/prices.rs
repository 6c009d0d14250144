//! `outlast prices MODEL`: shows what a model would be charged, and where the figures are from.

use outlast_core::{
    price::{Found, Price, PriceTable, Rates, Source, cost},
    words::usage::ServiceTier,
};
use outlast_view::{
    money::{Charged, PerRequest, WebSearch},
    shape,
};
use serde_json::{Map, Value};

use crate::{
    cli::PricesArgs,
    program::error::{CliError, CommandError, InputError},
    render::{
        amount::usd,
        look::Page,
        table::{Cell, Side, Table},
    },
    settings::{prices, surroundings::Surroundings, upstreams},
};

/// Prints a model's prices. Reads no store.
///
/// Errors: `price_unknown` for a model that a limit in usd would refuse; an upstream that is not configured; a price
/// file that cannot be read or parsed.
pub fn prices(args: &PricesArgs, around: &Surroundings, page: &mut Page) -> Result<(), CliError> {
    let model = args.model.as_deref().unwrap_or_default();
    let table = prices::of_file(args.prices.as_deref(), around)?;
    let (table, found) = match &args.upstream {
        None => {
            let found = table.lookup(model);
            (table, found)
        }
        Some(name) => {
            let all = upstreams::load(around)?;
            let named = all.iter().find(|u| *u.named.name == **name).ok_or_else(|| unknown_upstream(name))?;
            let own = named.named.prices.as_ref().map_or(table, |(own, _)| own.clone());
            let found = named.named.price(&own, model);
            (own, found)
        }
    };
    let found = found.ok_or_else(|| unknown_price(model))?;
    let tier = args.tier;
    let charged = args.usage().map(|usage| (usage, cost(&found.price, &usage, tier).0));
    if page.look.json {
        return Ok(page.json(&ShownPrice::new(args, &table, &found, charged.map(|(_, nano)| nano)))?);
    }
    let price = &found.price;
    page.text(&format!("{}, usd per million tokens\n\n", found.model))?;
    let columns = [
        ("tier", Side::Left),
        ("input over", Side::Right),
        ("input", Side::Right),
        ("cached", Side::Right),
        ("cache write", Side::Right),
        ("1 h write", Side::Right),
        ("output", Side::Right),
        ("reasoning", Side::Right),
    ];
    let mut shown = Table::new(&columns);
    for (tier, name, above, rates) in rows(price) {
        let above = if above == 0 { String::new() } else { above.to_string() };
        let mut row: Vec<Cell> = vec![Cell::new(name), Cell::new(above)];
        row.extend(figures(&rates).map(|(_, pico)| Cell::new(usd(pico.saturating_mul(1000)))));
        debug_assert!(tier != ServiceTier::Standard || name == "standard");
        shown.row(row);
    }
    let look = page.look;
    page.text(&shown.render(look, 0))?;
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
pub(super) fn rows(price: &Price) -> Vec<(ServiceTier, &'static str, u64, Rates)> {
    let of = |tier| price.rows(tier).map(|(above, rates)| (above, *rates)).collect::<Vec<_>>();
    let standard = of(ServiceTier::Standard);
    let all = ServiceTier::ALL.into_iter();
    let own = all.filter(|tier| *tier == ServiceTier::Standard || of(*tier) != standard);
    own.flat_map(|tier| of(tier).into_iter().map(move |(above, rates)| (tier, tier.name(), above, rates)))
        .collect()
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

fn row((_, name, above, rates): (ServiceTier, &str, u64, Rates)) -> Value {
    let mut row = Map::new();
    row.insert("tier".into(), name.into());
    row.insert("input_over_tokens".into(), above.into());
    for (figure, pico) in figures(&rates) {
        row.insert(format!("{figure}_pico_usd_per_token"), pico.into());
    }
    Value::Object(row)
}

fn unknown_price(model: &str) -> CliError {
    CommandError::PriceUnknown { model: model.to_owned() }.into()
}

fn unknown_upstream(name: &str) -> CliError {
    InputError::UnknownUpstream { name: name.to_owned() }.into()
}
