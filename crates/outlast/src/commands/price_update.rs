//! `outlast prices update FILE|URL`: newer prices, which are shown before a person takes them.

use std::{collections::BTreeSet, fs};

use outlast_core::{
    price::{Price, PriceTable, Update},
    words::usage::ServiceTier,
};
use outlast_server::remote::download;
use serde_json::{Value, json};

use crate::{
    cli::prices::UpdateArgs,
    program::error::{CliError, InputError},
    render::{
        amount::usd,
        look::Page,
        table::{Cell, Side, Table},
    },
    serve::proxy_setup,
    settings::{prices, surroundings::Surroundings},
};

/// Model whose price differs from what counts now; `None`: no price under its name.
struct Change<'a> {
    model: &'a str,
    before: Option<Price>,
    after: Option<Price>,
}

/// Shows in what newer prices differ from those that count now, and keeps them with `--accept`.
///
/// Errors: `bad_prices` for a source that cannot be read, or is no price file, or is too large to be kept with a run.
pub fn update(args: &UpdateArgs, around: &Surroundings, page: &mut Page) -> Result<(), CliError> {
    let bad = |why: String| InputError::Prices { path: args.source.clone(), why };
    let text = match args.source.contains("://") {
        true => download(&args.source, &proxy_setup::network(around)?).map_err(bad)?,
        false => fs::read_to_string(around.directory().join(&args.source)).map_err(|e| bad(e.to_string()))?,
    };
    let update = Update::read(&text).map_err(|e| bad(e.to_string()))?;
    let newer = PriceTable::with_overrides(&update.text).map_err(|e| bad(e.to_string()))?;
    let now = prices::of_file(None, around)?;
    let changes = changes(&now, &newer);
    let kept = match args.accept {
        true => Some(prices::keep_own(&update.text, &args.source, around)?),
        false => None,
    };
    if page.look.json {
        let kept = kept.map(|path| path.display().to_string());
        let all: Vec<Value> = changes.iter().map(object).collect();
        return Ok(page.json(&json!({ "changes": all, "left_out": update.left_out, "kept": kept }))?);
    }
    let columns = [("model", Side::Left), ("input", Side::Right), ("output", Side::Right)];
    let mut shown = Table::new(&columns);
    for change in &changes {
        let figure = |of: fn(&Price) -> i64| {
            let text = |price: &Option<Price>| {
                price.as_ref().map_or("-".into(), |p| usd(of(p).saturating_mul(1000)))
            };
            let (before, after) = (text(&change.before), text(&change.after));
            Cell::new(if before == after { after } else { format!("{before} → {after}") })
        };
        shown.row(vec![Cell::new(change.model), figure(input), figure(output)]);
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
    let figures = |price: &Option<Price>| {
        price.as_ref().map(|price| {
            json!({ "input_pico_usd_per_token": input(price), "output_pico_usd_per_token": output(price) })
        })
    };
    json!({ "model": change.model, "before": figures(&change.before), "after": figures(&change.after) })
}

fn input(price: &Price) -> i64 {
    price.rates(ServiceTier::Standard, 0).input.0
}

fn output(price: &Price) -> i64 {
    price.rates(ServiceTier::Standard, 0).output.0
}
