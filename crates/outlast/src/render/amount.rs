//! Amounts of an envelope's units, for people.

use outlast_core::{
    envelope::{Amounts, Unit},
    store::RunView,
};
pub use outlast_view::money::usd;
use outlast_view::with_children;

use super::time;

/// Formats a value in the unit's base (nano-USD, milliseconds, counts) without the unit's name: exact dollars,
/// durations, whole numbers.
pub fn amount(unit: Unit, value: i64) -> String {
    match unit {
        Unit::CostNanoUsd => usd(value),
        Unit::WallMs | Unit::ActiveMs => time::span(value),
        _ => value.to_string(),
    }
}

/// Formats a count with its noun in the right number: `1 call`, `2 calls`, `2 entries`.
pub fn some(count: i64, one: &str) -> String {
    match (count, one.strip_suffix("ry")) {
        (1, _) => format!("1 {one}"),
        (_, Some(stem)) => format!("{count} {stem}ries"),
        _ => format!("{count} {one}{}", if one.ends_with('s') { "es" } else { "s" }),
    }
}

/// Formats what a run's own calls cost, and where its children or forks cost something, the sum with them:
/// `0.42 usd (0.61 with children)`.
pub fn cost(view: &RunView) -> String {
    format!("{} usd{}", usd(view.run.own.cost_nano_usd), beside(with_children(view)))
}

/// Formats a cost with children, in nano-USD, as it stands behind the cost without them; empty if there is none.
pub fn beside(with_children: Option<i64>) -> String {
    with_children.map_or_else(String::new, |all| format!(" ({} with children)", usd(all)))
}

/// Tells calls that failed and cost nothing, as it stands behind the number of paid ones; empty if there are none.
pub fn unpaid(calls: i64) -> String {
    match calls {
        0 => String::new(),
        calls => format!("; {} failed and cost nothing", some(calls, "call")),
    }
}

/// Formats cost and tokens, `0.03 usd, 40 tokens`; an amount of zero is left out.
pub fn bill(amounts: Amounts) -> String {
    let cost = (amounts.cost() > 0).then(|| format!("{} usd", usd(amounts.cost())));
    let tokens = (amounts.tokens() > 0).then(|| some(amounts.tokens(), "token"));
    cost.into_iter().chain(tokens).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_is_many() {
        assert_eq!(
            [some(1, "process"), some(2, "process"), some(0, "run")],
            ["1 process", "2 processes", "0 runs"]
        );
    }
}
