//! `outlast budgets`: lists, sets, raises and removes named budgets, with what is left and which runs wait for room.

use clap::ArgGroup;
use outlast_core::{
    engine::{RaiseBudget, RemoveBudget, SetBudget, Source},
    envelope::{
        Per, Whose,
        budget::{Name, Terms},
    },
};
use outlast_view::NamedBudget;

use super::{budget, prelude::*};
use crate::cli::change::AddSharedArgs;

/// Show the named budgets, or change them
///
/// A named budget limits what all runs with a tag may spend together, per hour, day or month (UTC), or in total. A run
/// whose named budget is used up waits: a raise, or the next period, lets it go on. Named budgets can also be defined
/// in outlast.toml.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BudgetsArgs {
    #[command(subcommand)]
    pub verb: Option<BudgetsVerb>,
}

const EXAMPLES: &str = "\
Examples:
  outlast budgets set team-search --set-usd 50 --per day --tag team=search
  outlast budgets                                 what is left of each, and which runs wait
  outlast budgets raise team-search --add-usd 10  room for today
  outlast budgets remove team-search";

#[derive(Subcommand, Clone, Debug)]
pub enum BudgetsVerb {
    Set(SetArgs),
    Raise(RaiseArgs),
    Remove(RemoveArgs),
}

/// Create a named budget, or change its limits
///
/// New limits replace all of the old ones; the spend of the current period stays. Another --per begins a period without
/// spend. Another --tag replaces the budget by one without spend. Runs that exist already are charged from their next
/// call on. A run whose budget is used up waits for the next period, or for a raise.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  outlast budgets set team-search --set-usd 50 --per day --tag team=search"
)]
pub struct SetArgs {
    /// Name of the budget
    pub name: Name,
    /// When it begins anew: hour, day, month (UTC), or none
    #[arg(long, value_name = "PERIOD", default_value = "none", value_parser = values::words(Per::ALL, Per::name), hide_possible_values = true, hide_default_value = true)]
    pub per: Per,
    /// Tag of the runs whose calls count, with those of their children; without it, every run's calls count
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::tag)]
    pub tag: Option<(String, String)>,
    #[command(flatten)]
    pub limits: LimitArgs,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits, at least one")]
#[group(required = true, multiple = true)]
pub struct LimitArgs {
    /// Dollars
    #[arg(long = "set-usd", alias = "usd", value_name = "AMOUNT", value_parser = values::usd)]
    pub usd: Option<i64>,
    /// Tokens
    #[arg(long = "set-tokens", alias = "tokens", value_name = "N", value_parser = values::count)]
    pub tokens: Option<i64>,
    /// LLM calls
    #[arg(long = "set-calls", alias = "calls", value_name = "N", value_parser = values::count)]
    pub calls: Option<i64>,
}

/// Raise a named budget's limits, for the current period only
///
/// Runs that wait for it go on. The next period begins with its own limits again.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  outlast budgets raise team-search --add-usd 10",
    group = ArgGroup::new("add").required(true).multiple(true).args(["add_usd", "add_tokens", "add_calls"])
)]
pub struct RaiseArgs {
    /// Name of the budget
    pub name: Name,
    #[command(flatten)]
    pub add: AddSharedArgs,
}

/// Remove a named budget
///
/// Runs that wait for it go on. A budget that is also defined in outlast.toml comes back only when its definition
/// there is changed.
#[derive(Args, Clone, Debug)]
pub struct RemoveArgs {
    /// Name of the budget
    pub name: Name,
}

impl BudgetsArgs {
    /// Whether a budget is set, which may come before the first run of a store.
    pub fn is_set(&self) -> bool {
        matches!(self.verb, Some(BudgetsVerb::Set(_)))
    }
}

impl SetArgs {
    pub fn terms(&self) -> Terms {
        let limits = values::shared_limits(self.limits.usd, self.limits.tokens, self.limits.calls);
        Terms { limits, per: self.per, tag: self.tag.clone() }
    }
}

pub fn budgets(args: &BudgetsArgs, Desk { store, by, page, .. }: Desk) -> Result {
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
            Some((&set.name, format!("is set{was}{runs}")))
        }
        Some(BudgetsVerb::Raise(raise)) => {
            let verb = RaiseBudget { name: raise.name.clone(), add: raise.add.limits() };
            store.ask(InName::of(by, verb), Durability::Synced).wait()?;
            Some((&raise.name, "is raised".to_owned()))
        }
        Some(BudgetsVerb::Remove(remove)) => {
            let verb = RemoveBudget { name: remove.name.clone() };
            store.ask(InName::of(by, verb), Durability::Synced).wait()?;
            Some((&remove.name, "is removed".to_owned()))
        }
    };
    let budgets = NamedBudget::all(store)?;
    if page.look.json {
        return Ok(page.json(&json!({ "budgets": budgets }))?);
    }
    if let Some((name, told)) = &told {
        page.line(&format!("budget {name} {told}"))?;
    }
    if budgets.is_empty() {
        return Ok(page.line("no named budgets")?);
    }
    let is_changed =
        |budget: &&NamedBudget| told.as_ref().is_some_and(|(name, _)| budget.name == name.as_str());
    for budget in budgets.iter().filter(is_changed) {
        for line in &budget.units {
            let whose = Whose::Named {
                name: budget.name.clone(),
                period: budget.period.clone(),
                until: budget.until.map(|at| at.0),
            };
            let told = budget::used_up(line, store.now()?, Some(whose), Some(""));
            told.iter().try_for_each(|told| page.line(&format!("budget {} is {told}", budget.name)))?;
        }
    }
    print(store, &budgets, page)
}

fn print(store: &dyn Store, budgets: &[NamedBudget], page: &mut Page) -> Result {
    let mut table =
        Table::new(["budget", "of", "period", "", ">limit", ">spent", ">reserved", ">left", ">waiting"]);
    for budget in budgets {
        for (i, line) in budget.units.iter().enumerate() {
            let (unit, left) = (line.unit, line.left.unwrap_or_default());
            let mut row = match i {
                0 => vec![
                    Cell::whole(&budget.name),
                    Cell::whole(budget.tag.as_deref().unwrap_or("(all)")),
                    if budget.period.is_empty() { "(ever)".into() } else { Cell::whole(&budget.period) },
                ],
                _ => vec![Cell::default(); 3],
            };
            let held = |n: i64| if n == 0 { Cell::default() } else { amount(unit, n).into() };
            row.extend([
                unit.word().into(),
                amount(unit, line.limit.unwrap_or_default()).into(),
                amount(unit, line.spent).into(),
                held(line.reserved),
                Cell::painted(amount(unit, left), if left <= 0 { Paint::Care } else { Paint::Plain }),
                match budget.waiting.len() {
                    n if n > 0 && i == 0 => Cell::painted(n.to_string(), Paint::Care),
                    _ => Cell::default(),
                },
            ]);
            table.row(row);
        }
    }
    page.text(&table.render(page.look, 0))?;
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
