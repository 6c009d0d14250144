//! Limits of a run: what `outlast budget` sets, adds to and removes, and what `outlast resume` adds to.

use clap::Args;
use outlast_core::{
    envelope::{Limits, PerUnit, Unit},
    words::RunNo,
};

use super::values;
use crate::program::error::{CliError, Result};

/// Show a run's budget, or change its limits
///
/// If you raise the limit that halted a run, its status becomes interrupted, and outlast resume goes on with it. Calls that
/// wait for budget go on by themselves.
#[derive(Args, Clone, Debug, Default)]
#[command(after_help = BUDGET_EXAMPLES)]
pub struct BudgetArgs {
    /// The run: its id, its name, or the start of its id; without a change, the last run of this directory
    pub run: Option<String>,
    #[command(flatten)]
    pub add: AddArgs,
    #[command(flatten)]
    pub set: SetArgs,
    /// usd, tokens, calls, loops, wall, active, restarts; can be repeated
    #[arg(long = "no-limit", alias = "lift", help_heading = "Remove a limit", value_name = "UNIT", value_delimiter = ',', value_parser = values::unit(), hide_possible_values = true)]
    pub lift: Vec<Unit>,
}

const BUDGET_EXAMPLES: &str = "\
Examples:
  outlast budget nightly
  outlast budget nightly --add-usd 1
  outlast budget nightly --set-wall 4h --no-limit loops";

/// Amounts that are added to the limits that a run and a named budget both have.
#[derive(Args, Clone, Debug, Default)]
pub struct AddSharedArgs {
    /// Dollars
    #[arg(long, value_name = "AMOUNT", value_parser = values::more(values::usd))]
    pub add_usd: Option<i64>,
    /// Tokens
    #[arg(long, value_name = "N", value_parser = values::more(values::count))]
    pub add_tokens: Option<i64>,
    /// LLM calls
    #[arg(long, value_name = "N", value_parser = values::more(values::count))]
    pub add_calls: Option<i64>,
}

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Add to a limit")]
pub struct AddArgs {
    #[command(flatten)]
    pub shared: AddSharedArgs,
    /// Turns of the agent's loop
    #[arg(long, value_name = "N", value_parser = values::more(values::count))]
    pub add_loops: Option<i64>,
    /// Time since the run began
    #[arg(long, value_name = "TIME", value_parser = values::more(values::ms))]
    pub add_wall: Option<i64>,
    /// Time during which the agent is running
    #[arg(long, value_name = "TIME", value_parser = values::more(values::ms))]
    pub add_active: Option<i64>,
    /// Restarts after the agent died
    #[arg(long, value_name = "N", value_parser = values::more(values::count))]
    pub add_restarts: Option<i64>,
}

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Set a limit")]
pub struct SetArgs {
    /// Dollars
    #[arg(long, value_name = "AMOUNT", value_parser = values::usd)]
    pub set_usd: Option<i64>,
    /// Tokens
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub set_tokens: Option<i64>,
    /// LLM calls
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub set_calls: Option<i64>,
    /// Turns of the agent's loop
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub set_loops: Option<i64>,
    /// Time since the run began
    #[arg(long, value_name = "TIME", value_parser = values::ms)]
    pub set_wall: Option<i64>,
    /// Time during which the agent is running
    #[arg(long, value_name = "TIME", value_parser = values::ms)]
    pub set_active: Option<i64>,
    /// Restarts after the agent died
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub set_restarts: Option<i64>,
}

impl AddSharedArgs {
    pub fn limits(&self) -> Limits {
        values::shared_limits(self.add_usd, self.add_tokens, self.add_calls)
    }
}

impl AddArgs {
    fn limits(&self) -> Limits {
        let AddArgs { shared: AddSharedArgs { add_usd, add_tokens, add_calls }, .. } = *self;
        let AddArgs { add_loops, add_wall, add_active, add_restarts, .. } = *self;
        PerUnit([add_usd, add_tokens, add_calls, add_loops, add_wall, add_active, add_restarts])
    }
}

impl SetArgs {
    fn limits(&self) -> Limits {
        let SetArgs { set_usd, set_tokens, set_calls, set_loops, set_wall, set_active, set_restarts } = *self;
        PerUnit([set_usd, set_tokens, set_calls, set_loops, set_wall, set_active, set_restarts])
    }
}

impl BudgetArgs {
    /// Returns whether the command changes a limit, rather than only shows the budget. True also for a change that is
    /// refused.
    pub fn changes(&self) -> bool {
        !matches!(self.change(RunNo(0)), Ok(None))
    }

    /// Returns the change of limits that was typed; `None` if the budget is only shown. Errors: a unit that is changed
    /// in two ways.
    pub fn change(&self, run: RunNo) -> Result<Option<outlast_core::engine::run::limits::Raise>> {
        let (add, set, mut lift) = (self.add.limits(), self.set.limits(), PerUnit::<bool>::default());
        for unit in &self.lift {
            lift[*unit] = true;
        }
        let mut any = false;
        for unit in Unit::ALL {
            let ways = [add[unit].is_some(), set[unit].is_some(), lift[unit]];
            any |= ways.contains(&true);
            if ways.iter().filter(|w| **w).count() > 1 {
                let word = unit.word();
                return Err(CliError::usage(
                    format!("the limit of {word} cannot be changed in two ways at once"),
                    Some(&format!("give one of --add-{word}, --set-{word} and --no-limit {word}")),
                ));
            }
        }
        Ok(any.then_some(outlast_core::engine::run::limits::Raise { run, add, set, lift }))
    }
}
