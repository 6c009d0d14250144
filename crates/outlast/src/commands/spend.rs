//! `outlast spend`: sums up what calls cost by run, upstream, model, day (UTC) or tag.

use std::collections::BTreeSet;

use outlast_core::{
    reads::{
        entries,
        spend::{self, Group, Grouping, Spend, Sum},
    },
    store::Store,
    words::id::{Micros, RunId, RunNo},
};
use serde_json::{Map, Value, json};

use super::{
    plan::Shown,
    resume_tax::{self, Tax},
};
use crate::{
    cli::SpendArgs,
    program::error::CliError,
    render::{
        amount::{put_money, usd},
        look::{Page, Paint},
        table::{Cell, Side, Table},
        time,
    },
};

pub fn spend(store: &dyn Store, args: &SpendArgs, page: &mut Page) -> Result<(), CliError> {
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
    let Spend { groups: sums, total } = spend::spend(store, &args.by, since, until)?;
    let plans = Shown::all(store, now)?;
    let taxes = if args.resume_tax { taxes(store, since, until)? } else { Vec::new() };
    if page.look.json {
        let mut document = document(args, since, until, &sums, &total);
        if args.resume_tax {
            let each = taxes.iter().map(|(run, tax)| {
                let mut object = Map::from_iter([("run".to_owned(), Value::from(run.as_str()))]);
                object.insert("restarts".into(), tax.restarts.into());
                resume_tax::put(tax, &mut object);
                Value::Object(object)
            });
            document["resume_tax"] = each.collect();
        }
        document["plans"] = plans.iter().map(Shown::object).collect();
        return Ok(page.json(&document)?);
    }
    match sums.is_empty() {
        true => page.line("no calls")?,
        false => print(args, &sums, &total, page)?,
    }
    for (run, tax) in &taxes {
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
fn taxes(store: &dyn Store, since: Micros, until: Micros) -> Result<Vec<(RunId, Tax)>, CliError> {
    let runs: BTreeSet<RunNo> = store.ledger(since, until)?.iter().map(|line| line.run).collect();
    let mut found = Vec::new();
    for no in runs {
        let attempts = store.attempts(no)?;
        let Some(view) = store.run(no)?.filter(|_| attempts.len() > 1) else { continue };
        let mut all = resume_tax::resumptions(store, &view, &attempts, &entries::all(store, no)?)?;
        let is_within = |attempt| {
            let began = attempts.iter().find(|a| a.no == attempt).map(|a| a.started_at);
            began.is_some_and(|at| (since..until).contains(&at))
        };
        all.retain(|one| is_within(one.attempt));
        let tax = Tax::of(&all);
        found.extend((tax.tokens > 0).then(|| (view.run.id.clone(), tax)));
    }
    found.sort_by_key(|(_, tax)| std::cmp::Reverse((tax.cost_nano_usd, tax.tokens)));
    Ok(found)
}

fn print(args: &SpendArgs, sums: &[(Group, Sum)], total: &Sum, page: &mut Page) -> Result<(), CliError> {
    // The table borrows its headers: the names are kept beside it.
    let names: Vec<String> = args.by.iter().map(Grouping::name).collect();
    let mut columns: Vec<(&str, Side)> = names.iter().map(|n| (n.as_str(), Side::Left)).collect();
    columns.extend([
        ("calls", Side::Right),
        ("tokens", Side::Right),
        ("usd", Side::Right),
        ("in doubt", Side::Right),
    ]);
    let unbacked = total.unbacked_nano_usd > 0;
    columns.extend(unbacked.then_some(("unbacked", Side::Right)));
    let mut table = Table::new(&columns);
    let numbers = |s: &Sum, paint: Paint| {
        let unless_zero = |nano| if nano == 0 { String::new() } else { usd(nano) };
        let mut told = vec![s.calls.to_string(), s.tokens.to_string(), usd(s.spent_nano_usd)];
        told.push(unless_zero(s.doubt_nano_usd));
        told.extend(unbacked.then(|| unless_zero(s.unbacked_nano_usd)));
        told.into_iter().map(move |t| Cell::painted(t, paint))
    };
    for (group, sum) in sums {
        let mut row: Vec<Cell> =
            group.iter().map(|v| v.as_deref().map_or_else(|| "(none)".into(), Cell::whole)).collect();
        row.extend(numbers(sum, Paint::Plain));
        table.row(row);
    }
    let mut row: Vec<Cell> = vec![Cell::default(); args.by.len()];
    if let Some(first) = row.first_mut() {
        *first = Cell::painted("total", Paint::Strong);
    }
    row.extend(numbers(total, Paint::Strong));
    table.row(row);
    let look = page.look;
    Ok(page.text(&table.render(look, 0))?)
}

fn document(args: &SpendArgs, since: Micros, until: Micros, sums: &[(Group, Sum)], total: &Sum) -> Value {
    let fill = |o: &mut Map<String, Value>, s: &Sum| {
        o.insert("calls".into(), s.calls.into());
        o.insert("tokens".into(), s.tokens.into());
        put_money(o, "spent", Some(s.spent_nano_usd));
        put_money(o, "in_doubt", Some(s.doubt_nano_usd));
        put_money(o, "unbacked", Some(s.unbacked_nano_usd));
    };
    let names: Vec<String> = args.by.iter().map(Grouping::name).collect();
    let lines: Vec<Value> = sums
        .iter()
        .map(|(group, sum)| {
            let mut o: Map<String, Value> =
                names.iter().cloned().zip(group.iter().map(|v| Value::from(v.clone()))).collect();
            fill(&mut o, sum);
            Value::Object(o)
        })
        .collect();
    let mut all = Map::new();
    fill(&mut all, total);
    json!({
        "since": args.since.map(|_| time::rfc3339(since)),
        "until": time::rfc3339(until),
        "by": names,
        "lines": lines,
        "total": all,
    })
}
