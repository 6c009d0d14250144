//! Probes and metrics of the server: `/livez`, `/readyz`, `/metrics`, whose figures are those of this server and of the
//! store: named budgets, logins' plans, runs.

use http::{Response, StatusCode};
use outlast_core::{
    call::plan::{Plan, Window, short_login},
    envelope::{BudgetView, Envelope, Share, Unit, budget::UNITS},
    events::delivery::Delivery,
    journal::Entry,
    reads::plans,
    run::Status,
    store::{ApprovalFilter, Error, RunFilter, Store},
    words::{Micros, Seq},
};

use super::request::{Answered, ApiRequest};
use crate::{
    proxy::{
        host::Host,
        metrics::{dollars, family, labels, line, single},
    },
    wire::body::{AnswerBody, response},
};

/// Answers that the process runs.
pub(super) async fn livez(_: ApiRequest) -> Answered {
    Ok(text(StatusCode::OK, "ok\n"))
}

/// Answers whether the server takes calls.
pub(super) async fn readyz(asked: ApiRequest) -> Answered {
    Ok(match unready(&asked.host) {
        None => text(StatusCode::OK, ready(&asked.host)),
        Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
    })
}

/// Returns the reason why the server takes no calls now; `None` when it takes calls.
fn unready(host: &Host) -> Option<&'static str> {
    if host.is_draining() {
        Some("draining: it is about to end\n")
    } else if host.registry.is_stuck() {
        Some("an answer could not be recorded yet\n")
    } else if host.store.check().is_err() {
        Some("the store vanished: it was removed, moved or replaced\n")
    } else if !host.node.is_writing() {
        Some("the store cannot be written\n")
    } else {
        None
    }
}

/// Returns the body of the answer of a server that takes calls. It also reports commits that the database was
/// found to have lost.
fn ready(host: &Host) -> String {
    let loss = host.store.losses().newest;
    format!("ready\n{}", loss.map_or_else(String::new, |loss| format!("{loss}\n")))
}

/// Answers with the counters of this server and of its store, for Prometheus.
pub(super) async fn metrics(asked: ApiRequest) -> Answered {
    let host = &asked.host;
    let (clients, in_flight) = host.registry.len();
    let mut text = host.metrics.text();
    // When the store cannot be read, the counters in memory are still shown; `/readyz` reports the store.
    if let (Ok(budgets), Ok(now)) = (host.store.budgets(), host.store.now()) {
        text.push_str(&budget_gauges(&budgets, now));
        let plans = plans::list(&*host.store).unwrap_or_default();
        text.push_str(&plan_gauges(&plans, now));
        text.push_str(&run_gauges(&*host.store, now).unwrap_or_default());
    }
    for (name, help, value) in [
        ("outlast_calls_in_flight", "Calls on their way upstream.", in_flight),
        ("outlast_clients", "Metered requests that have a client now.", clients),
        ("outlast_draining", "1 while the server ends.", usize::from(host.is_draining())),
    ] {
        single(&mut text, name, "gauge", help, value);
    }
    let help = "Commits of this server that its database had acknowledged and lost.";
    single(&mut text, "outlast_lost_commits_total", "counter", help, host.store.losses().commits);
    Ok(response(200, "text/plain; version=0.0.4; charset=utf-8", text))
}

fn text(status: StatusCode, text: impl Into<bytes::Bytes>) -> Response<AnswerBody> {
    response(status.as_u16(), "text/plain; charset=utf-8", text)
}

/// A gauge of a budget: name, help text, value.
type BudgetGauge = (&'static str, &'static str, fn(&Envelope, Unit) -> i64);

const BUDGET_GAUGES: [BudgetGauge; 4] = [
    ("outlast_budget_limit", "Limit of a named budget in its period of now.", |e, u| {
        e.limits[u].unwrap_or_default()
    }),
    ("outlast_budget_spent", "Spent of a named budget in its period of now.", |e, u| e.spent[u]),
    ("outlast_budget_reserved", "Held by calls in flight or in doubt.", |e, u| e.reserved[u]),
    ("outlast_budget_in_doubt", "The part of what is reserved whose outcome is unknown.", |e, u| e.doubt[u]),
];

/// Returns the metrics of named budgets, in their current windows: a line for each gauge, budget and unit that the budget
/// limits (`usd`, `tokens`, `calls`). The time it takes does not depend on the number of runs.
fn budget_gauges(budgets: &[BudgetView], now: Micros) -> String {
    let mut out = String::new();
    for (name, help, value) in BUDGET_GAUGES {
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

/// A gauge of a window: name, help text, value; `None` if the window has none.
type WindowGauge = (&'static str, &'static str, fn(&Window) -> Option<f64>);

const WINDOW_GAUGES: [WindowGauge; 3] = [
    (
        "outlast_plan_used_ratio",
        "Used share of a plan's window, as its provider told it last: 1 is all.",
        |w| Some(w.used.0 as f64 / 1_000_000.0),
    ),
    ("outlast_plan_turns_seconds", "Time at which a plan's window turns, since the Unix epoch.", |w| {
        w.resets_at.map(epoch_seconds)
    }),
    (
        "outlast_plan_used_up_seconds",
        "Time at which it is used up at the pace so far, if before it turns.",
        |w| w.used_up_at(Share::WHOLE).map(epoch_seconds),
    ),
];

/// Returns the metrics of logins' plans, how far each window is used and when it turns: a line for each gauge, login and
/// window that has not reset since it was reported.
fn plan_gauges(all: &[(String, Plan)], now: Micros) -> String {
    let mut out = String::new();
    for (name, help, value) in WINDOW_GAUGES {
        family(&mut out, name, "gauge", help);
        for (login, plan) in all {
            for window in plan.windows.iter().filter(|w| !w.is_over(now)) {
                let Some(value) = value(window) else { continue };
                let (provider, account) = short_login(login);
                let login = format!("{provider}:{account}");
                let of = labels(&[("login", &login), ("window", &window.length.to_string())]);
                line(&mut out, name, &of, value);
            }
        }
    }
    out
}

fn epoch_seconds(at: Micros) -> f64 {
    at.0 as f64 / 1_000_000.0
}

/// Most running runs, and most open approvals, that the metrics read, newest first.
const MOST: usize = 500;

/// Returns the metrics to be woken by, as of now: runs by status, what waits for a person, runs without progress, alerts
/// that were not delivered. `docs/alerts.yml` has the rules. Errors: the store's.
///
/// The counts read an index of all runs; everything else reads at most [`MOST`] rows.
fn run_gauges(store: &dyn Store, now: Micros) -> Result<String, Error> {
    let mut out = String::new();
    let runs = store.statuses()?;
    family(&mut out, "outlast_runs", "gauge", "Runs by status.");
    for status in Status::ALL {
        let n = runs.iter().find(|(of, _)| *of == status).map_or(0, |(_, n)| *n);
        line(&mut out, "outlast_runs", &labels(&[("status", status.name())]), n);
    }
    let help = "Time for which the oldest pending approval waits for a person; 0 without one.";
    single(&mut out, "outlast_oldest_approval_seconds", "gauge", help, oldest_approval(store, now)?);
    let help =
        "Time since the newest entry of the running run that has been silent for longest; 0 without one.";
    single(&mut out, "outlast_silence_seconds", "gauge", help, longest_silence(store, now)?);
    let endpoints = store.deliveries()?;
    for (name, help, count) in [
        ("outlast_alerts_waiting", "Alerts that failed and are sent again, by endpoint.", |d| {
            d.waiting.len()
        }),
        ("outlast_alerts_given_up", "Alerts that were given up, by endpoint.", |d| {
            d.dead.len() + usize::try_from(d.dropped).unwrap_or_default()
        }),
    ] as [(_, _, fn(&Delivery) -> usize); 2]
    {
        family(&mut out, name, "gauge", help);
        for endpoint in &endpoints {
            line(&mut out, name, &labels(&[("endpoint", &endpoint.name)]), count(endpoint));
        }
    }
    Ok(out)
}

fn oldest_approval(store: &dyn Store, now: Micros) -> Result<i64, Error> {
    let open = store.approvals(&ApprovalFilter { run: None, open: true, limit: MOST })?;
    let is_pending = |e: &&Entry| e.approval.as_ref().is_some_and(|a| a.blocked || a.expires_at > now);
    Ok(open.iter().filter(is_pending).map(|e| seconds_since(e.opened_at, now)).max().unwrap_or(0))
}

fn longest_silence(store: &dyn Store, now: Micros) -> Result<i64, Error> {
    let running = RunFilter { status: Some(Status::Running), limit: MOST, ..RunFilter::default() };
    let mut longest = 0;
    for view in store.runs(&running)? {
        let run = &view.run;
        let newest = store.entry(run.no, Seq(run.next_seq.0 - 1))?;
        let moved = newest.map(|e| e.closed_at.unwrap_or(e.opened_at).max(e.opened_at));
        longest = longest.max(seconds_since(moved.max(run.began_at).unwrap_or(run.created_at), now));
    }
    Ok(longest)
}

fn seconds_since(since: Micros, now: Micros) -> i64 {
    (now.0 - since.0).max(0) / 1_000_000
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        call::plan::{Heard, WindowUse},
        envelope::{
            Amounts, Budget, Length, Limits, Per,
            budget::{Name, Past, Terms, Window as BudgetWindow},
        },
        words::{BudgetNo, EnvelopeNo},
    };

    use super::*;

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
            window: Some(BudgetWindow { since: Micros(0), envelope: EnvelopeNo(1) }),
            past: Past::default(),
            removed: false,
            applied: true,
            acts: Vec::new(),
        };
        let mut envelope = budget.opening(EnvelopeNo(1), Micros(0));
        envelope.spent += Amounts::of(1_500_000_001, 7).with(Unit::Calls, 3);
        let views = [BudgetView { budget, envelope: Some(envelope) }];
        let told = budget_gauges(&views, Micros(DAY - 1));
        for wanted in [
            "# TYPE outlast_budget_spent gauge\n",
            "outlast_budget_limit{budget=\"team-search\",per=\"day\",unit=\"usd\"} 50.000000000\n",
            "outlast_budget_spent{budget=\"team-search\",per=\"day\",unit=\"usd\"} 1.500000001\n",
            "outlast_budget_spent{budget=\"team-search\",per=\"day\",unit=\"calls\"} 3\n",
        ] {
            assert!(told.contains(wanted), "{wanted} in\n{told}");
        }
        assert!(!told.contains("tokens"), "{told}");
        let tomorrow = budget_gauges(&views, Micros(DAY));
        assert!(
            tomorrow.contains("outlast_budget_spent{budget=\"team-search\",per=\"day\",unit=\"calls\"} 0\n")
        );
    }

    #[test]
    fn a_window_is_told_until_it_has_turned() {
        let hour = 3_600_000_000;
        let told = WindowUse { window: Length(300), used: Share(400_000), resets_at: Some(Micros(4 * hour)) };
        let mut plan = Plan::default();
        plan.told(None, &Heard { windows: vec![told], is_answer: true }, Micros(0));
        let all = [("anthropic:account-of-ann".to_owned(), plan)];
        let text = plan_gauges(&all, Micros(hour));
        for wanted in [
            "outlast_plan_used_ratio{login=\"anthropic:account-\",window=\"5h\"} 0.4\n",
            "outlast_plan_turns_seconds{login=\"anthropic:account-\",window=\"5h\"} 14400\n",
            // An hour for 40 %: the rest in an hour and a half.
            "outlast_plan_used_up_seconds{login=\"anthropic:account-\",window=\"5h\"} 5400\n",
        ] {
            assert!(text.contains(wanted), "{wanted} in\n{text}");
        }
        assert!(!plan_gauges(&all, Micros(4 * hour)).contains("window="));
    }
}
