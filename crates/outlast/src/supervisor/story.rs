//! Messages of the supervisor about a run: a death, the next attempt, the end.

use std::io::Write as _;

use outlast_core::{
    envelope::Whose,
    reads::budgets::told_with_above,
    run::attempt::{self, Attempt},
    store::{RunView, Store},
    words::RunNo,
};
use outlast_view as view;
use serde_json::json;

use crate::{
    program::resume_tax::{self, Tax},
    program::{
        error::CliError,
        say::{line, say},
    },
    render::{
        amount::{beside, some, usd},
        next::next,
        short::called,
    },
};
use outlast_process::exit::Exit;

/// Prints that an attempt died and that another one follows after `wait`.
pub fn died(attempt: i64, exit: Exit, wait: std::time::Duration, view: &RunView) {
    let replayed = match view.run.answers {
        0 => String::new(),
        n => format!("; {} will be replayed, not paid", some(n, "answer")),
    };
    let wait = if wait.as_millis() < 20 { String::new() } else { format!(" in {:.1} s", wait.as_secs_f64()) };
    say(&format!("attempt {attempt} died ({exit}); starting attempt {}{wait}{replayed}", attempt + 1));
}

/// Prints the summary line at a run's end.
pub fn end(view: &RunView, attempts: &[Attempt]) {
    say(&summary(view, attempts));
}

/// Sums up a run in a line. Calls that failed and cost nothing are told apart from what was paid, and where calls are in
/// doubt, none is said to be paid.
fn summary(view: &RunView, attempts: &[Attempt]) -> String {
    let own = view.run.own;
    let paid = some(own.paid_calls(), "call");
    let is_in_doubt = own.doubt_nano_usd > 0;
    let is_free = own.cost_nano_usd == 0 && own.paid_calls() > 0 && !is_in_doubt;
    let (cost, below) = (usd(own.cost_nano_usd), beside(view::with_children(view)));
    let mut parts = vec![
        format!("{} · {}", called(view), view.run.status.name()),
        match view.spec.login {
            Some(_) if is_free => format!("{paid} without a known list price, not billed"),
            Some(_) => format!("{paid} at a list price of {cost} usd{below}, not billed"),
            None if is_free => format!("{paid}, free or without a known price"),
            None if is_in_doubt => format!("{paid} for {cost} usd{below}"),
            None => format!("{paid} paid {cost} usd{below}"),
        },
    ];
    if own.unpaid_calls > 0 {
        parts.push(format!("{} failed", some(own.unpaid_calls, "call")));
    }
    if view.run.replayed > 0 {
        // What a fork shares has no cost of its own that it saved.
        let saved = match view.run.saved_nano_usd {
            0 => String::new(),
            saved => format!(" ({} usd saved)", usd(saved)),
        };
        parts.push(format!("{} replayed{saved}", some(view.run.replayed, "answer")));
    }
    if is_in_doubt {
        parts.push(format!("{} usd in doubt", usd(own.doubt_nano_usd)));
    }
    if own.estimated_calls > 0 {
        parts.push(format!("{} estimated", some(own.estimated_calls, "call")));
    }
    let unread = attempt::unread(attempts);
    if unread > 0 {
        parts.push(format!("{} passed unread", some(unread, "request")));
    }
    if attempts.len() > 1 {
        parts.push(some(attempts.len() as i64, "attempt"));
    }
    parts.join(" · ")
}

/// Reports that the command asked the proxy for nothing, and why that may be. `tools`: number of its recorded tool calls.
pub fn nothing_metered(view: &RunView, tools: usize) {
    let Some(command) = &view.spec.command else { return };
    let program = command.argv.first().map_or("", String::as_str);
    say(&match tools {
        0 => {
            format!("NOTHING METERED: {program} asked the proxy for nothing: no call was recorded or limited")
        }
        tools => format!(
            "NOTHING METERED: {program} asked the proxy for no model's answer, and none was limited ({} recorded)",
            some(tools as i64, "tool call")
        ),
    });
    // A child run has the keys of the run around it.
    let has_key = !view.spec.keys.is_empty() || view.run.parent.is_some();
    let is_azures = command.variables.iter().any(|name| name == "AZURE_OPENAI_ENDPOINT");
    say(match (has_key, command.supervision.intercept) {
        _ if is_azures => {
            "hint: AZURE_OPENAI_ENDPOINT leads past the proxy: name the resource in [upstreams.azure], and give the program \
             $OUTLAST_URL/u/azure in its place (docs/guides/upstreams.md)"
        }
        (false, _) => {
            "hint: no provider's key is in the environment (OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY), and most \
             programs make no call without one"
        }
        (true, true) => "hint: a program that obeys neither HTTPS_PROXY nor a base URL passes the proxy by",
        (true, false) => {
            "hint: a base URL written into the program (base_url=, baseURL:) passes the proxy by: remove it, read it from \
             OPENAI_BASE_URL or ANTHROPIC_BASE_URL, or have it metered with `outlast run --new --intercept -- CMD`"
        }
    });
}

/// Prints which budget the run waits for, and what makes room in it.
pub fn waits(store: &dyn Store, view: &RunView) -> Result<(), CliError> {
    let Some(refusal) = view.run.halt.clone() else { return Ok(()) };
    let refusal = told_with_above(store, refusal)?;
    say(&format!("waiting for room ({}): {}", refusal.code, refusal.message()));
    let hint = match refusal.whose {
        Some(Whose::Parent(_)) => refusal.hint_then(&called(view), "it goes on by itself"),
        _ => refusal.hint(&called(view)),
    };
    say(&format!("hint: {hint}"));
    Ok(())
}

/// Prints why the run is halted, and what lets it go on.
pub fn halted(view: &RunView) {
    let Some(halt) = &view.run.halt else { return };
    say(&format!("halted ({}): {}", halt.code, halt.message()));
    say(&format!("hint: {}", halt.hint(&called(view))));
}

/// Returns the run as it is in the store now; `view` itself if the run is no longer there.
pub fn view(store: &dyn Store, view: &RunView) -> Result<RunView, CliError> {
    Ok(store.run(view.run.no)?.unwrap_or_else(|| view.clone()))
}

/// Prints a run's end as one line of JSON on standard output, after all that its agent printed. `is_behind`: the line
/// goes through the stage to the front process, and with it to the terminal.
pub fn end_as_json(store: &dyn Store, run: RunNo, exit_code: u8, is_behind: bool) -> Result<(), CliError> {
    let Some(view) = store.run(run)? else { return Ok(()) };
    let attempts = store.attempts(run)?;
    let found = resume_tax::resumptions(store, &view, &attempts)?;
    let end = json!({
        "exit_code": exit_code,
        "resume_tax": Tax::of(&found),
        // Requests that passed unread on opened hosts.
        "unread_requests": attempt::unread(&attempts),
        "next": next(&view, view.run.id.as_str()),
    });
    let told = view::with(view::Run::new(&view, store.now()?), end);
    if is_behind {
        line(&told.to_string());
    } else {
        // A reader that had enough is no failure of the run.
        let _ = writeln!(std::io::stdout(), "{told}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outlast_core::{
        engine::Start,
        envelope::Amounts,
        memory::MemoryStore,
        run::Own,
        store::{Ask as _, Durability, Store as _},
        words::{ManualClock, Micros, RunId},
    };

    use super::*;

    #[test]
    fn calls_in_doubt_are_not_said_to_be_paid_and_estimates_are_told() {
        let store = MemoryStore::new(Arc::new(ManualClock::new(Micros(0))));
        let run = store.run_verb(Start::new(RunId::new("r").unwrap()), Durability::Synced).unwrap().run;
        let mut view = store.run(run).unwrap().unwrap();
        let mut told = |own: Own| {
            (view.run.own, view.envelope.spent) = (own, Amounts::of(own.cost_nano_usd, 0));
            summary(&view, &[])
        };
        let paid = Own { cost_nano_usd: 20_000_000, calls: 2, ..Own::default() };
        assert_eq!(told(paid), "r · interrupted · 2 calls paid 0.02 usd");
        assert_eq!(
            told(Own { calls: 3, doubt_nano_usd: 10_000_000, estimated_calls: 1, ..paid }),
            "r · interrupted · 3 calls for 0.02 usd · 0.01 usd in doubt · 1 call estimated"
        );
        assert_eq!(
            told(Own { calls: 1, doubt_nano_usd: 10_000_000, ..Own::default() }),
            "r · interrupted · 1 call for 0.00 usd · 0.01 usd in doubt",
            "it may be paid yet"
        );
    }
}
