//! Prometheus metrics of named budgets, in their current windows.

use outlast_core::{
    envelope::{
        Envelope,
        budget::{BudgetView, UNITS},
        unit::Unit,
    },
    words::id::Micros,
};

use crate::proxy::metrics::{dollars, family, labels, line};

/// A gauge of a budget: name, help text, value.
type Gauge = (&'static str, &'static str, fn(&Envelope, Unit) -> i64);

const GAUGES: [Gauge; 4] = [
    ("outlast_budget_limit", "Limit of a named budget in its period of now.", |e, u| {
        e.limits[u].unwrap_or_default()
    }),
    ("outlast_budget_spent", "Spent of a named budget in its period of now.", |e, u| e.spent[u]),
    ("outlast_budget_reserved", "Held by calls in flight or in doubt.", |e, u| e.reserved[u]),
    ("outlast_budget_in_doubt", "The part of what is reserved whose outcome is unknown.", |e, u| e.doubt[u]),
];

/// Returns the metrics as text: a line for each gauge, budget and unit that the budget limits (`usd`, `tokens`,
/// `calls`). The time it takes does not depend on the number of runs.
pub fn text(budgets: &[BudgetView], now: Micros) -> String {
    let mut out = String::new();
    for (name, help, value) in GAUGES {
        family(&mut out, name, "gauge", help);
        for view in budgets {
            let e = view.envelope_at(now);
            for unit in UNITS.into_iter().filter(|u| e.limits[*u].is_some()) {
                let budget = &view.budget;
                let of = labels(&[
                    ("budget", budget.name.as_str()),
                    ("per", budget.terms.per.name()),
                    ("unit", word(unit)),
                ]);
                match unit {
                    Unit::CostNanoUsd => line(&mut out, name, &of, dollars(value(&e, unit).into())),
                    _ => line(&mut out, name, &of, value(&e, unit)),
                }
            }
        }
    }
    out
}

fn word(unit: Unit) -> &'static str {
    match unit {
        Unit::CostNanoUsd => "usd",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_core::{
        envelope::{
            budget::{Budget, Name, Past, Per, Terms, Window},
            unit::{Amounts, Limits},
        },
        words::id::{BudgetNo, EnvelopeNo},
    };

    #[test]
    fn a_budget_is_told_in_the_units_it_limits_and_for_the_window_of_now() {
        const DAY: i64 = 86_400_000_000;
        let mut limits = Limits::default();
        (limits[Unit::CostNanoUsd], limits[Unit::Calls]) = (Some(50_000_000_000), Some(9));
        let budget = Budget {
            no: BudgetNo(1),
            name: Name::new("team-search").unwrap(),
            terms: Terms { limits, per: Per::Day, tag: None },
            configured: None,
            window: Some(Window { since: Micros(0), envelope: EnvelopeNo(1) }),
            past: Past::default(),
            removed: false,
            applied: true,
            acts: Vec::new(),
        };
        let mut envelope = budget.opening(EnvelopeNo(1), Micros(0));
        envelope.post(&Amounts::of(1_500_000_001, 7).with(Unit::Calls, 3));
        let views = [BudgetView { budget, envelope: Some(envelope) }];
        let told = text(&views, Micros(DAY - 1));
        for wanted in [
            "# TYPE outlast_budget_spent gauge\n",
            "outlast_budget_limit{budget=\"team-search\",per=\"day\",unit=\"usd\"} 50.000000000\n",
            "outlast_budget_spent{budget=\"team-search\",per=\"day\",unit=\"usd\"} 1.500000001\n",
            "outlast_budget_spent{budget=\"team-search\",per=\"day\",unit=\"calls\"} 3\n",
        ] {
            assert!(told.contains(wanted), "{wanted} in\n{told}");
        }
        assert!(!told.contains("tokens"), "{told}");
        let tomorrow = text(&views, Micros(DAY));
        assert!(
            tomorrow.contains("outlast_budget_spent{budget=\"team-search\",per=\"day\",unit=\"calls\"} 0\n")
        );
    }
}
