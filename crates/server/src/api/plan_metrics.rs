//! Prometheus metrics of logins' plans: how far each window is used, and when it turns.

use outlast_core::{
    call::plan::{Plan, Window},
    words::id::Micros,
};

use crate::proxy::metrics::{family, labels, line};

/// Most characters of an account's name that are shown.
const NAME: usize = 8;

/// A gauge of a window: name, help text, value; `None` if the window has none.
type Gauge = (&'static str, &'static str, fn(&Window) -> Option<f64>);

const GAUGES: [Gauge; 3] = [
    (
        "outlast_plan_used_ratio",
        "Used share of a plan's window, as its provider told it last: 1 is all.",
        |w| Some(w.used.0 as f64 / 1_000_000.0),
    ),
    ("outlast_plan_turns_seconds", "Time at which a plan's window turns, since the Unix epoch.", |w| {
        w.resets_at.map(seconds)
    }),
    (
        "outlast_plan_used_up_seconds",
        "Time at which it is used up at the pace so far, if before it turns.",
        |w| w.used_up_at(outlast_core::envelope::ceiling::Share::WHOLE).map(seconds),
    ),
];

/// Returns the metrics as text: a line for each gauge, login and window that has not reset since it was reported.
pub fn text(all: &[(String, Plan)], now: Micros) -> String {
    let mut out = String::new();
    for (name, help, value) in GAUGES {
        family(&mut out, name, "gauge", help);
        for (login, plan) in all {
            for window in plan.windows.iter().filter(|w| !w.is_over(now)) {
                let Some(value) = value(window) else { continue };
                let of = labels(&[("login", &short(login)), ("window", &window.length.to_string())]);
                line(&mut out, name, &of, value);
            }
        }
    }
    out
}

/// Returns a login with the beginning of its account's name: `anthropic:account-`.
fn short(login: &str) -> String {
    let (provider, account) = login.split_once(':').unwrap_or((login, ""));
    let account = account.strip_prefix("key:").unwrap_or(account);
    format!("{provider}:{}", account.chars().take(NAME).collect::<String>())
}

fn seconds(at: Micros) -> f64 {
    at.0 as f64 / 1_000_000.0
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        call::plan::{Heard, WindowUse},
        envelope::ceiling::{Length, Share},
    };

    use super::*;

    #[test]
    fn a_window_is_told_until_it_has_turned() {
        let hour = 3_600_000_000;
        let told = WindowUse { window: Length(300), used: Share(400_000), resets_at: Some(Micros(4 * hour)) };
        let mut plan = Plan::default();
        plan.told(None, &Heard { windows: vec![told], is_answer: true }, Micros(0));
        let all = [("anthropic:account-of-ann".to_owned(), plan)];
        let text = text(&all, Micros(hour));
        for wanted in [
            "outlast_plan_used_ratio{login=\"anthropic:account-\",window=\"5h\"} 0.4\n",
            "outlast_plan_turns_seconds{login=\"anthropic:account-\",window=\"5h\"} 14400\n",
            // An hour for 40 %: the rest in an hour and a half.
            "outlast_plan_used_up_seconds{login=\"anthropic:account-\",window=\"5h\"} 5400\n",
        ] {
            assert!(text.contains(wanted), "{wanted} in\n{text}");
        }
        assert!(!super::text(&all, Micros(4 * hour)).contains("window="));
    }
}
