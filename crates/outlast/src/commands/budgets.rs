//! `outlast budgets`: lists, sets, raises and removes named budgets, with what is left and which runs wait for room.

use outlast_core::{
    engine::{
        act::InName,
        budget::{RaiseBudget, RemoveBudget, SetBudget, Source},
    },
    reads,
    store::{Ask as _, Durability, Store},
};
use outlast_view::NamedBudget;
use serde_json::json;

use crate::{
    cli::{BudgetsArgs, BudgetsVerb},
    program::{error::CliError, find},
    render::{
        amount::{amount, some, unit_word},
        look::{Page, Paint},
        short::called,
        table::{Cell, Side, Table},
    },
};

pub fn budgets(store: &dyn Store, by: &str, args: &BudgetsArgs, page: &mut Page) -> Result<(), CliError> {
    let told = match &args.verb {
        None => None,
        Some(BudgetsVerb::Set(set)) => {
            let verb = SetBudget { name: set.name.clone(), terms: set.terms(), source: Source::Command };
            let (told, runs) = reads::budgets::set(store, verb, Some(by))?;
            let was = if told.changed { "" } else { "; it was so before" };
            let runs = match runs {
                0 => String::new(),
                1 => "; 1 run that was there is charged to it, too".into(),
                n => format!("; {} that were there are charged to it, too", some(n as i64, "run")),
            };
            Some(format!("budget {} is set{was}{runs}", set.name))
        }
        Some(BudgetsVerb::Raise(raise)) => {
            let verb = RaiseBudget { name: raise.name.clone(), add: raise.limits() };
            store.ask(InName::of(by, verb), Durability::Synced).wait()?;
            Some(format!("budget {} is raised", raise.name))
        }
        Some(BudgetsVerb::Remove(remove)) => {
            let verb = RemoveBudget { name: remove.name.clone() };
            store.ask(InName::of(by, verb), Durability::Synced).wait()?;
            Some(format!("budget {} is removed", remove.name))
        }
    };
    let budgets = NamedBudget::all(store)?;
    if page.look.json {
        return Ok(page.json(&json!({ "budgets": budgets }))?);
    }
    if let Some(told) = told {
        page.line(&told)?;
    }
    if budgets.is_empty() {
        return Ok(page.line("no named budgets")?);
    }
    print(store, &budgets, page)
}

fn print(store: &dyn Store, budgets: &[NamedBudget], page: &mut Page) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("budget", Side::Left),
        ("of", Side::Left),
        ("period", Side::Left),
        ("", Side::Left),
        ("limit", Side::Right),
        ("spent", Side::Right),
        ("reserved", Side::Right),
        ("left", Side::Right),
        ("waiting", Side::Right),
    ]);
    for budget in budgets {
        for (i, line) in budget.units.iter().enumerate() {
            let (unit, left) = (line.unit, line.left.unwrap_or_default());
            let mut row = match i {
                0 => vec![
                    Cell::whole(&budget.name),
                    Cell::whole(budget.tag.as_deref().unwrap_or("(all)")),
                    if budget.period.is_empty() { "(ever)".into() } else { Cell::whole(&budget.period) },
                ],
                _ => vec![Cell::default(), Cell::default(), Cell::default()],
            };
            let held = |n: i64| if n == 0 { Cell::default() } else { amount(unit, n).into() };
            row.extend([
                unit_word(unit).into(),
                amount(unit, line.limit.unwrap_or_default()).into(),
                amount(unit, line.spent).into(),
                held(line.reserved),
                Cell::painted(amount(unit, left), if left <= 0 { Paint::Care } else { Paint::Plain }),
                match budget.waiting.len() {
                    0 => Cell::default(),
                    _ if i > 0 => Cell::default(),
                    n => Cell::painted(n.to_string(), Paint::Care),
                },
            ]);
            table.row(row);
        }
    }
    let look = page.look;
    page.text(&table.render(look, 0))?;
    for budget in budgets.iter().filter(|b| !b.waiting.is_empty()) {
        let shown: Vec<String> = budget
            .waiting
            .iter()
            .take(5)
            .map(|id| find::run(store, id.as_str()).map(|view| called(&view)))
            .collect::<Result<_, _>>()?;
        let more = match budget.waiting.len() {
            n if n > shown.len() => format!(" and {} more", n - shown.len()),
            _ => String::new(),
        };
        page.line(&format!("waiting for {}: {}{more}", budget.name, shown.join(", ")))?;
    }
    Ok(())
}
