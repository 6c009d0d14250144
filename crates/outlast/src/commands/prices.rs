//! `outlast prices MODEL`: shows what a model would be charged, and where the figures are from. `outlast prices update FILE|URL`:
//! newer prices, which are shown before a person takes them.

use outlast_core::{
    price::{Found, Price, PriceTable, Rates, Source, Update, cost},
    words::{ServiceTier, Usage},
};
use outlast_server::remote::download;
use outlast_view::money::{Charged, PerRequest, WebSearch};

use super::prelude::*;
use crate::{
    program::server,
    settings::{prices, upstreams},
};

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
fn rows(price: &Price) -> Vec<(ServiceTier, u64, Rates)> {
    let of = |tier| price.rows(tier).map(|(above, rates)| (above, *rates)).collect::<Vec<_>>();
    let standard = of(ServiceTier::Standard);
    let all = ServiceTier::ALL.into_iter();
    let own = all.filter(|tier| *tier == ServiceTier::Standard || of(*tier) != standard);
    own.flat_map(|tier| of(tier).into_iter().map(move |(above, rates)| (tier, above, rates))).collect()
}

/// Returns the named rates in pico-USD per token.
fn figures(rates: &Rates) -> [(&'static str, i64); 6] {
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

/// Model whose price differs from what counts now; `None`: no price under its name.
struct Change<'a> {
    model: &'a str,
    before: Option<Price>,
    after: Option<Price>,
}

impl Change<'_> {
    /// Returns in what the prices differ beside input and output, as texts; nothing for a model that has one price only.
    fn besides(&self) -> Vec<String> {
        let (Some(before), Some(after)) = (&self.before, &self.after) else { return Vec::new() };
        let (was, is) = (terms(before), terms(after));
        let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
        let text =
            |terms: &BTreeMap<String, String>, name| terms.get(name).map_or("-", String::as_str).to_owned();
        let all = names.into_iter().map(|name| (name, text(&was, name), text(&is, name)));
        let differing =
            all.filter(|(_, was, is)| was != is).map(|(name, was, is)| format!("{name} {was} → {is}"));
        let mut differing: Vec<String> = differing.collect();
        if differing.is_empty() && (input(before), output(before)) == (input(after), output(after)) {
            differing.push("what other input costs, or where".into());
        }
        let more = differing.len().saturating_sub(MOST_SHOWN);
        differing.truncate(MOST_SHOWN);
        differing.extend((more > 0).then(|| format!("{more} more")));
        differing
    }
}

/// Most differences that are named for a model.
const MOST_SHOWN: usize = 4;

/// Returns the terms of a price beside input and output, by their names: prices in usd per million tokens.
fn terms(price: &Price) -> BTreeMap<String, String> {
    let mut terms = BTreeMap::new();
    for (tier, above, rates) in rows(price) {
        let is_usual = tier == ServiceTier::Standard && above == 0;
        let whose = match (is_usual, above) {
            (true, _) => String::new(),
            (false, 0) => format!("{} ", tier.name()),
            (false, above) => format!("{} over {above} ", tier.name()),
        };
        for (figure, pico) in figures(&rates) {
            if !(is_usual && ["input", "output"].contains(&figure)) {
                terms.insert(format!("{whose}{figure}"), usd(pico.saturating_mul(1000)));
            }
        }
    }
    terms.insert("web search".into(), usd(price.web_search_pico / 1000));
    terms.insert("request".into(), usd(price.request_pico / 1000));
    let most = [("longest input", price.max_input_tokens), ("longest output", price.max_output_tokens)];
    terms.extend(most.into_iter().filter_map(|(name, most)| Some((name.to_owned(), most?.to_string()))));
    terms
}

/// Shows in what newer prices differ from those that count now, and keeps them with `--accept`.
///
/// Errors: `bad_prices` for a source that cannot be read, or is no price file, or is too large to be kept with a run.
pub fn update(args: &UpdateArgs, context: &Context, page: &mut Page) -> Result {
    let around = &context.around;
    let bad = |why: String| prices::Error::Unread { path: args.source.clone(), why };
    let text = match args.source.contains("://") {
        true => download(&args.source, &server::network(around)?).map_err(bad)?,
        false => fs::read_to_string(around.directory().join(&args.source)).map_err(|e| bad(e.to_string()))?,
    };
    let update = Update::read(&text).map_err(|e| bad(e.to_string()))?;
    let newer = PriceTable::with_overrides(&update.text).map_err(|e| bad(e.to_string()))?;
    let now = prices::of_file(None, around)?;
    let changes = changes(&now, &newer);
    let kept = match args.accept {
        true => {
            let path = prices::own_path(around).ok_or(CommandError::NoHome)?;
            prices::keep_own(&update.text, &args.source, &path)?;
            Some(path)
        }
        false => None,
    };
    if page.look.json {
        let kept = kept.map(|path| path.display().to_string());
        let all: Vec<Value> = changes.iter().map(object).collect();
        return Ok(page.json(&json!({ "changes": all, "left_out": update.left_out, "kept": kept }))?);
    }
    let columns = ["model", ">input", ">output", "besides"];
    let mut shown = Table::new(columns);
    for change in &changes {
        let figure = |of: fn(&Price) -> i64| {
            let text = |price: &Option<Price>| {
                price.as_ref().map_or("-".into(), |p| usd(of(p).saturating_mul(1000)))
            };
            let (before, after) = (text(&change.before), text(&change.after));
            Cell::new(if before == after { after } else { format!("{before} → {after}") })
        };
        let besides = change.besides().join(", ");
        shown.row(vec![Cell::new(change.model), figure(input), figure(output), Cell::new(besides)]);
    }
    match changes.is_empty() {
        true => page.text("no price differs from those that count now\n")?,
        false => page.text(&format!("usd per million tokens\n\n{}", shown.render(page.look, 0)))?,
    }
    page.text(&format!("{} entries without a price per token are left out\n", update.left_out))?;
    page.text(&match kept {
        Some(path) => {
            format!("kept in {}, for new runs and for those that wait for a price\n", path.display())
        }
        None => format!("nothing is kept yet: `outlast prices update {} --accept`\n", args.source),
    })?;
    Ok(())
}

/// Returns the models whose price differs, by name.
fn changes<'t>(now: &'t PriceTable, newer: &'t PriceTable) -> Vec<Change<'t>> {
    let names: BTreeSet<&str> = now.own_names().chain(newer.own_names()).collect();
    let exactly =
        |table: &PriceTable, name: &str| table.exactly(name).map(|found| Price::clone(&found.price));
    let all = names.into_iter().map(|model| Change {
        model,
        before: exactly(now, model),
        after: exactly(newer, model),
    });
    all.filter(|change| change.before != change.after).collect()
}

fn object(change: &Change<'_>) -> Value {
    let both = |price: &Option<Price>| {
        price.as_ref().map(|price| {
            json!({ "input_pico_usd_per_token": input(price), "output_pico_usd_per_token": output(price) })
        })
    };
    let (before, after) = (both(&change.before), both(&change.after));
    json!({ "model": change.model, "before": before, "after": after, "besides": change.besides() })
}

fn input(price: &Price) -> i64 {
    price.rates(ServiceTier::Standard, 0).input.0
}

fn output(price: &Price) -> i64 {
    price.rates(ServiceTier::Standard, 0).output.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_beside_input_and_output_is_named() {
        let table = |more: &str| {
            let fields = format!(r#""input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6{more}"#);
            PriceTable::with_overrides(&format!(r#"{{"m": {{{fields}}}}}"#)).unwrap()
        };
        let besides = |before: &str, after: &str| {
            let (before, after) = (table(before), table(after));
            changes(&before, &after).iter().map(|change| change.besides().join(", ")).collect::<Vec<_>>()
        };
        let cached = r#", "cache_read_input_token_cost": 5e-7"#;
        assert_eq!(besides(cached, cached), Vec::<String>::new());
        let cheaper = r#", "cache_read_input_token_cost": 1e-7"#;
        assert_eq!(besides(cached, cheaper), ["cache_read 0.50 → 0.10"]);
        let longer = r#", "cache_read_input_token_cost": 5e-7, "max_input_tokens": 9"#;
        assert_eq!(besides(cached, longer), ["longest input - → 9"]);
    }
}
