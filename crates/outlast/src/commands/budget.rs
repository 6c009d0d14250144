//! `outlast budget RUN`: shows a run's limits and what is left of them, and changes them.

use outlast_core::{
    engine,
    envelope::{Owner, Refusal, Whose},
};
use outlast_view::{BudgetLine, lines};

use super::prelude::*;
use crate::cli::BudgetArgs;

pub fn budget(args: &BudgetArgs, Desk { store, by, context, page, .. }: Desk) -> Result {
    if args.run.is_none() && args.changes() {
        let hint = "name it: `outlast budget RUN …`; `outlast ls` lists the runs";
        return Err(CliError::usage("the run whose limits change has to be named", Some(hint)));
    }
    let verb = if args.changes() { Verb::Limit } else { Verb::Look };
    let before = find::run_or_last(store, args.run.as_deref(), context.around.directory(), verb)?;
    let Some(raise) = args.change(before.run.no)? else {
        return print(store, &before, None, page);
    };
    // No limit of a run matters that never goes on.
    if before.run.status == Status::Cancelled {
        let (id, status) = (called(&before), before.run.status.name());
        return Err(store::Error::Engine(engine::Error::RunEnded { id, status }).into());
    }
    let limits = &before.envelope.limits;
    let has_none = |unit: &Unit| raise.add[*unit].is_some() && limits[*unit].is_none();
    if let Some(unit) = Unit::ALL.into_iter().find(has_none) {
        return Err(no_limit(store, &before, unit, raise.add[unit].unwrap_or_default())?.into());
    }
    store.ask(InName::of(by, raise), Durability::Synced).wait()?;
    let after = store.run(before.run.no)?.unwrap_or_else(|| before.clone());
    print(store, &after, Some(before.run.status), page)
}

/// Returns the error of an addition to a limit that the run does not have.
fn no_limit(store: &dyn Store, view: &RunView, unit: Unit, add: i64) -> Result<CommandError> {
    let parent = view.run.parent.filter(|_| unit.propagates()).map(|no| store.run(no)).transpose()?.flatten();
    let limited = parent.filter(|parent| parent.envelope.limits[unit].is_some());
    let above = limited.map(|parent| {
        format!("outlast budget {} {} {}", called(&parent), unit.raise_flag(), amount(unit, add))
    });
    Ok(CommandError::NoLimit { run: called(view), unit, above })
}

fn print(store: &dyn Store, view: &RunView, before: Option<Status>, page: &mut Page) -> Result {
    let (run, now) = (&view.run, store.now()?);
    if page.look.json {
        return Ok(
            page.json(&with(ChangedRun::new(view, before, now), json!({ "budget": lines(view, now) })))?
        );
    }
    let look = page.look;
    let status = look.paint(look::of_status(run.status), run.status.name());
    let was =
        before.filter(|b| *b != run.status).map_or_else(String::new, |b| format!(", it was {}", b.name()));
    page.line(&format!("{}  {status}{was}", look.paint(Paint::Strong, &called(view))))?;
    page.text(&text(view, now, look))?;
    left_above(store, view)?.iter().try_for_each(|told| page.line(&format!("  {told}")))?;
    if before.is_some() {
        let word = (run.status != Status::Completed).then(|| called(view));
        // No call is refused for want of a restart.
        for line in lines(view, now).into_iter().filter(|line| line.unit != Unit::Restarts) {
            let told = used_up(&line, now, None, word.as_deref());
            told.iter().try_for_each(|told| page.line(&format!("  {told}")))?;
        }
    }
    if before.is_some() || run.status == Status::Halted {
        page.text(&commands(&next(view, &called(view))))?;
    }
    Ok(())
}

/// Tells what is left of the limits of the runs above, to which the run's calls are charged as well.
fn left_above(store: &dyn Store, view: &RunView) -> Result<Vec<String>> {
    let mut told = Vec::new();
    for no in view.run.charges.iter().skip(1).filter(|_| !view.run.status.is_ended()) {
        let Some(e) = store.envelope(*no)? else { continue };
        let Owner::Run(above) = e.owner else { continue };
        let Some(above) = store.run(above)? else { continue };
        for unit in Unit::ALL.into_iter().filter(|unit| unit.propagates()) {
            let (Some(limit), Some(left)) = (e.limits[unit], e.free(unit)) else { continue };
            let of = format!("{} of {}", amount(unit, left.max(0)), amount(unit, limit));
            told.push(format!("its calls are charged to {}, too: {of} {} left", called(&above), unit.word()));
        }
    }
    Ok(told)
}

/// Tells that nothing is left of a limit, and what raises it; `None` if something is. `whose`: named budget; `None`: the
/// budget of the run that commands call `run`. Without `run` it is over: there is no call to make room for.
pub fn used_up(line: &BudgetLine, now: Micros, whose: Option<Whose>, run: Option<&str>) -> Option<String> {
    let limit = line.limit.filter(|limit| line.spent > 0 && line.spent >= *limit)?;
    let (spent, limit) = (amount(line.unit, line.spent), amount(line.unit, limit));
    let told = format!("at its limit now: {spent} of {limit} {} spent", line.unit.word());
    let Some(run) = run else { return Some(told) };
    // What the next call needs is not known: no more is promised than that something is left.
    let free = line.left.unwrap_or_default();
    let raise = Refusal { unit: Some(line.unit), needs: 1, free, whose, ..Refusal::plain("", now) };
    Some(format!("{told}; {}", raise.hint_then(run, "calls pass that fit into what is left")))
}

/// Formats the suggested commands, one indented line each; empty if there are none.
pub fn commands(next: &Next) -> String {
    next.commands.iter().map(|c| format!("  → {c}\n")).collect()
}

/// Formats the budget: a table of the limited units, and one line for the other units that were used.
pub fn text(view: &RunView, now: Micros, look: Look) -> String {
    let mut table = Table::new(["", ">limit", ">spent", ">in doubt", ">in flight", ">left"]);
    let (limited, free): (Vec<BudgetLine>, Vec<BudgetLine>) =
        lines(view, now).into_iter().partition(|l| l.limit.is_some());
    let held = |unit: Unit, value: i64| if value == 0 { Cell::default() } else { amount(unit, value).into() };
    for l in &limited {
        let left = l.left.unwrap_or_default();
        let shown = if matches!(l.unit, Unit::WallMs | Unit::ActiveMs) { left.max(0) } else { left };
        table.row(vec![
            l.unit.word().into(),
            l.limit.map(|v| amount(l.unit, v)).unwrap_or_default().into(),
            amount(l.unit, l.spent).into(),
            held(l.unit, l.in_doubt),
            held(l.unit, l.reserved - l.in_doubt),
            // A time limit that has passed shows 0 left: it is no overrun.
            Cell::painted(amount(l.unit, shown), if left <= 0 { Paint::Care } else { Paint::Plain }),
        ]);
    }
    let mut out = if limited.is_empty() { String::new() } else { table.render(look, 2) };
    let used: Vec<String> = free
        .iter()
        .filter(|l| l.spent > 0)
        .map(|l| match l.unit {
            Unit::CostNanoUsd => l.unit.show(l.spent),
            unit => format!("{} {}", unit.word(), amount(unit, l.spent)),
        })
        .collect();
    if !used.is_empty() {
        // Runs above it and named budgets may limit it all the same.
        let is_alone = view.run.charges.len() == 1 && view.run.budgets.is_empty();
        let own = if is_alone { "" } else { " of its own" };
        let told = format!("without a limit{own}: {}", used.join(", "));
        out.push_str(&format!("  {}\n", look.paint(Paint::Faint, &told)));
    }
    if with_children(view).is_some() {
        out.push_str(&format!("  usd, tokens and calls are with children: it has spent {}\n", cost(view)));
    }
    if view.run.own.unpaid_calls > 0 {
        out.push_str(&format!("  {} of its calls failed and cost nothing\n", view.run.own.unpaid_calls));
    }
    out
}

/// Formats what is left of the limits other than usd, in one line; `None` if the run has no such limit.
pub fn left(view: &RunView, now: Micros) -> Option<String> {
    let word = |l: BudgetLine| {
        let (limit, left) = (l.limit?, l.left?.max(0));
        let of = format!("{} of {}", amount(l.unit, left), amount(l.unit, limit));
        Some(match l.unit {
            Unit::WallMs => format!("{of} of wall time"),
            Unit::ActiveMs => format!("{of} of active time"),
            unit => format!("{of} {}", unit.word()),
        })
    };
    let limited = lines(view, now).into_iter().filter(|l| l.unit != Unit::CostNanoUsd);
    let words: Vec<String> = limited.filter_map(word).collect();
    (!words.is_empty()).then(|| format!("left      {}", words.join(", ")))
}
