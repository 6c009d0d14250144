//! `outlast budgets`: lists, sets, raises and removes named budgets, with what is left and which runs wait for room.

use std::collections::BTreeMap;

use outlast_core::{
    engine::{
        act::InName,
        budget::{
            raise_budget::RaiseBudget,
            remove_budget::RemoveBudget,
            set_budget::{SetBudget, Source},
        },
    },
    envelope::{
        Envelope,
        budget::{BudgetView, UNITS},
        unit::Unit,
    },
    reads::{self, room},
    store::{Ask as _, Durability, Store},
    words::id::{Micros, RunId},
};
use serde_json::{Map, Value, json};

use crate::{
    cli::{BudgetsArgs, BudgetsVerb},
    program::error::CliError,
    render::{
        amount::{amount, put_money, some, unit_word},
        look::{Page, Paint},
        table::{Cell, Side, Table},
        time,
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
    let (now, all, waiting) = (store.now()?, store.budgets()?, room::waiting(store)?);
    let lines: Vec<Line> = all.iter().map(|view| Line::of(view, now, &waiting)).collect();
    if page.look.json {
        let budgets: Vec<Value> = lines.iter().map(Line::object).collect();
        return Ok(page.json(&json!({ "budgets": budgets }))?);
    }
    if let Some(told) = told {
        page.line(&told)?;
    }
    if lines.is_empty() {
        return Ok(page.line("no named budgets")?);
    }
    print(&lines, page)
}

/// Named budget in its current period, as one line of the table shows it.
struct Line<'a> {
    view: &'a BudgetView,
    envelope: Envelope,
    period: outlast_core::envelope::budget::Period,
    waiting: &'a [RunId],
}

impl<'a> Line<'a> {
    fn of(view: &'a BudgetView, now: Micros, waiting: &'a BTreeMap<String, Vec<RunId>>) -> Self {
        Line {
            envelope: view.envelope_at(now),
            period: view.budget.period(now),
            waiting: waiting.get(view.budget.name.as_str()).map_or(&[], Vec::as_slice),
            view,
        }
    }

    fn tag(&self) -> Option<String> {
        self.view.budget.terms.tag.as_ref().map(|(key, value)| format!("{key}={value}"))
    }

    /// Returns the units that have a limit.
    fn limited(&self) -> impl Iterator<Item = Unit> {
        UNITS.into_iter().filter(|u| self.envelope.limits[*u].is_some())
    }

    fn object(&self) -> Value {
        let b = &self.view.budget;
        let mut o = Map::new();
        o.insert("name".into(), b.name.as_str().into());
        o.insert("per".into(), b.terms.per.name().into());
        o.insert("tag".into(), self.tag().into());
        o.insert("period".into(), self.period.name.clone().into());
        o.insert("until".into(), self.period.until.map(time::rfc3339).into());
        let units: Vec<Value> = self.limited().map(|unit| self.unit(unit)).collect();
        o.insert("units".into(), units.into());
        let acts = b.acts.iter().map(|act| {
            json!({ "at": time::rfc3339(act.at), "what": act.what, "by": act.detail.by, "about": act.detail.about })
        });
        o.insert("acts".into(), acts.collect());
        o.insert("waiting".into(), self.waiting.iter().map(RunId::as_str).collect::<Vec<_>>().into());
        Value::Object(o)
    }

    fn unit(&self, unit: Unit) -> Value {
        let e = &self.envelope;
        let mut o = Map::new();
        o.insert("unit".into(), unit.name().into());
        let values = [
            ("limit", e.limits[unit]),
            ("spent", Some(e.spent[unit])),
            ("reserved", Some(e.reserved[unit])),
            ("in_doubt", Some(e.doubt[unit])),
            ("remaining", e.free(unit)),
        ];
        for (key, value) in values {
            match unit {
                Unit::CostNanoUsd => put_money(&mut o, key, value),
                _ => drop(o.insert(key.into(), value.into())),
            }
        }
        Value::Object(o)
    }
}

fn print(lines: &[Line<'_>], page: &mut Page) -> Result<(), CliError> {
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
    for line in lines {
        for (i, unit) in line.limited().enumerate() {
            let e = &line.envelope;
            let left = e.free(unit).unwrap_or_default();
            let mut row = match i {
                0 => vec![
                    Cell::whole(line.view.budget.name.as_str()),
                    Cell::whole(line.tag().unwrap_or_else(|| "(all)".into())),
                    if line.period.name.is_empty() {
                        "(ever)".into()
                    } else {
                        Cell::whole(&line.period.name)
                    },
                ],
                _ => vec![Cell::default(), Cell::default(), Cell::default()],
            };
            let held = |n: i64| if n == 0 { Cell::default() } else { amount(unit, n).into() };
            row.extend([
                unit_word(unit).into(),
                amount(unit, e.limits[unit].unwrap_or_default()).into(),
                amount(unit, e.spent[unit]).into(),
                held(e.reserved[unit]),
                Cell::painted(amount(unit, left), if left <= 0 { Paint::Care } else { Paint::Plain }),
                match line.waiting.len() {
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
    for line in lines.iter().filter(|l| !l.waiting.is_empty()) {
        let shown: Vec<&str> = line.waiting.iter().take(5).map(RunId::as_str).collect();
        let more = match line.waiting.len() {
            n if n > shown.len() => format!(" and {} more", n - shown.len()),
            _ => String::new(),
        };
        page.line(&format!("waiting for {}: {}{more}", line.view.budget.name, shown.join(", ")))?;
    }
    Ok(())
}
