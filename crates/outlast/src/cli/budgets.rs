//! `outlast budgets`: what runs of a tag may spend together.

use clap::{ArgGroup, Args, Subcommand, builder::PossibleValuesParser, builder::TypedValueParser as _};
use outlast_core::envelope::{
    budget::{Name, Per, Terms},
    unit::Limits,
};

use super::{change::AddSharedArgs, values};

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
    #[arg(value_name = "NAME")]
    pub name: Name,
    /// When it begins anew: hour, day, month (UTC), or none
    #[arg(long, value_name = "PERIOD", default_value = "none", value_parser = period(), hide_possible_values = true, hide_default_value = true)]
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
    #[arg(value_name = "NAME")]
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
    #[arg(value_name = "NAME")]
    pub name: Name,
}

impl SetArgs {
    pub fn terms(&self) -> Terms {
        let limits = values::shared_limits(self.limits.usd, self.limits.tokens, self.limits.calls);
        Terms { limits, per: self.per, tag: self.tag.clone() }
    }
}

impl RaiseArgs {
    pub fn limits(&self) -> Limits {
        values::limits(self.add.limits())
    }
}

fn period() -> impl clap::builder::TypedValueParser<Value = Per> {
    let words = PossibleValuesParser::new(Per::ALL.map(Per::name));
    words.map(|word| Per::parse(&word).unwrap_or(Per::None))
}
