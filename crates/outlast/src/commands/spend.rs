//! `outlast spend`: sums up what calls cost by run, upstream, model, day (UTC) or tag.

use outlast_core::reads::spend::{self, Grouping, Sum};

use super::{plan::Shown, prelude::*};
use crate::{
    program::resume_tax::{self, Tax},
    render::short::{called_now, short_id},
};

/// Sum up what calls cost
///
/// Days are UTC. A call of unknown outcome stays charged at its reservation: see IN DOUBT.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast spend --by day,model --since 7d\n  outlast spend --by tag.team --since 2026-11-01 --until 2026-12-01"
)]
pub struct SpendArgs {
    /// By what: run, model, upstream, day, tag.KEY, or several with commas
    #[arg(long, value_name = "KEYS", value_delimiter = ',', default_value = "day", value_parser = values::grouping)]
    pub by: Vec<Grouping>,
    /// Calls from this day or moment on, or of the last TIME: 2026-11-20, 2026-11-20T08:00:00Z, 7d
    #[arg(long, value_name = "WHEN", value_parser = values::when)]
    pub since: Option<When>,
    /// Calls before this day or moment
    #[arg(long, value_name = "WHEN", value_parser = values::when)]
    pub until: Option<When>,
    /// Also what restarted agents bought again although their provider's cache had it, by run; reads their requests, which takes a while
    #[arg(long)]
    pub resume_tax: bool,
}

pub fn spend(args: &SpendArgs, Desk { store, page, .. }: Desk) -> Result {
    let now = store.now()?;
    let since = args.since.map_or(Micros(0), |w| w.resolve(now));
    // The ledger's end is exclusive: one microsecond more includes a call of this very moment.
    let until = args.until.map_or(Micros(now.0.saturating_add(1)), |w| w.resolve(now));
    if since >= until {
        return Err(CliError::usage(
            format!("no time lies between {} and {}", time::utc(since), time::utc(until)),
            Some("give a --since that is before --until"),
        ));
    }
    let told = spend::spend(store, &args.by, since, until)?;
    let plans = Shown::all(store, now)?;
    let taxes = if args.resume_tax { taxes(store, since, until)? } else { Vec::new() };
    if page.look.json {
        let each = taxes.iter().map(|(view, tax)| with(json!({ "run": view.run.id }), json!(tax)));
        let mut shown = json!(view::Spend::new(&told, &args.by, args.since.map(|_| since), until));
        if args.resume_tax {
            shown["resume_tax"] = json!(each.collect::<Vec<_>>());
        }
        shown["plans"] = json!(plans.iter().map(Shown::view).collect::<Vec<_>>());
        return Ok(page.json(&shown)?);
    }
    if told.groups.is_empty() {
        page.line("no calls")?
    } else {
        print(args, &told, page)?
    }
    for (view, tax) in &taxes {
        let run = called_now(store, view)?;
        page.line(&format!("{run}: {}", resume_tax::line(tax).unwrap_or_default()))?;
    }
    if args.resume_tax && taxes.is_empty() {
        page.line("no restarted agent has bought anything again that a cache had")?;
    }
    for plan in &plans {
        let lines = plan.lines();
        if !lines.is_empty() {
            page.line(&format!("plan of {}; its calls have a list price, and are not billed", plan.login()))?;
        }
        lines.iter().try_for_each(|line| page.line(&format!("  {line}")))?;
    }
    Ok(())
}

/// Returns what restarted agents bought again, for each run with calls in this time, the dearest first.
fn taxes(store: &dyn Store, since: Micros, until: Micros) -> Result<Vec<(RunView, Tax)>> {
    let runs: BTreeSet<RunNo> = store.ledger(since, until)?.iter().map(|line| line.run).collect();
    let mut found = Vec::new();
    for no in runs {
        let Some(view) = store.run(no)? else { continue };
        let tax = resume_tax::tax_within(store, &view, &(since..until))?;
        found.extend((tax.tokens > 0).then_some((view, tax)));
    }
    found.sort_by_key(|(_, tax)| std::cmp::Reverse((tax.cost_nano_usd, tax.tokens)));
    Ok(found)
}

fn print(args: &SpendArgs, told: &spend::Spend, page: &mut Page) -> Result {
    let total = &told.total;
    // The table borrows its headers: the names are kept beside it.
    let names: Vec<String> = args.by.iter().map(Grouping::name).collect();
    let mut columns: Vec<&str> = names.iter().map(String::as_str).collect();
    columns.extend([
        ">calls",
        ">failed",
        ">tokens",
        if total.listed_nano_usd > 0 { ">billed, usd" } else { ">usd" },
        ">list price",
        ">in doubt",
    ]);
    let unbacked = total.unbacked_nano_usd > 0;
    columns.extend(unbacked.then_some(">unbacked"));
    let mut table = Table::new(&columns);
    let numbers = |s: &Sum, paint: Paint| {
        let unless_zero = |nano| if nano == 0 { String::new() } else { usd(nano) };
        let billed = usd(s.spent_nano_usd - s.listed_nano_usd);
        let failed = if s.unpaid_calls > 0 { s.unpaid_calls.to_string() } else { String::new() };
        let mut told = vec![(s.calls - s.unpaid_calls).to_string(), failed, s.tokens.to_string(), billed];
        told.push(unless_zero(s.listed_nano_usd));
        told.push(unless_zero(s.doubt_nano_usd));
        told.extend(unbacked.then(|| unless_zero(s.unbacked_nano_usd)));
        told.into_iter().map(move |t| Cell::painted(t, paint))
    };
    // A run is told by its name, with enough of its id to tell it from others of that name.
    let named = |key: &str| match told.names.get(key) {
        Some(name) => format!("{name} ({})", short_id(key)),
        None => key.to_owned(),
    };
    for (group, sum) in &told.groups {
        let mut row: Vec<Cell> = group
            .iter()
            .map(|v| v.as_deref().map_or_else(|| "(none)".into(), |key| Cell::whole(named(key))))
            .collect();
        row.extend(numbers(sum, Paint::Plain));
        table.row(row);
    }
    let mut row: Vec<Cell> = vec![Cell::default(); args.by.len()];
    if let Some(first) = row.first_mut() {
        *first = Cell::painted("total", Paint::Strong);
    }
    row.extend(numbers(total, Paint::Strong));
    table.row(row);
    page.text(&table.render(page.look, 0))?;
    if total.unpriced_calls > 0 {
        let count = some(total.unpriced_calls, "call");
        page.line(&format!("{count}: what has no known price is in no sum"))?;
    }
    Ok(())
}
