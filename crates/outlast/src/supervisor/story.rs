//! Messages of the supervisor about a run: a death, the next attempt, the end.

use outlast_core::{
    envelope::unit::Unit,
    run::{Command, attempt::Attempt},
    store::{RunView, Store},
    words::money::NanoUsd,
};

use crate::{
    program::{error::CliError, say::say},
    render::amount::some,
};
use outlast_process::exit::Exit;

/// Reports that an attempt died and another one follows.
pub fn died(attempt: i64, exit: Exit, wait: std::time::Duration, view: &RunView) {
    let replayed = match view.run.answers {
        0 => String::new(),
        n => format!("; {} will be replayed, not paid", some(n, "answer")),
    };
    let wait = if wait.as_millis() < 20 { String::new() } else { format!(" in {:.1} s", wait.as_secs_f64()) };
    say(&format!("attempt {attempt} died ({exit}); starting attempt {}{wait}{replayed}", attempt + 1));
}

/// Prints the one line at a run's end.
pub fn end(view: &RunView, attempts: &[Attempt]) {
    let spent = &view.envelope.spent;
    let mut parts = vec![
        format!("{} · {}", view.run.id, view.run.status.name()),
        match view.spec.login {
            Some(_) => format!(
                "{} at a list price of {} usd, not billed",
                some(spent[Unit::Calls], "call"),
                NanoUsd(spent.cost())
            ),
            None => format!("{} paid {} usd", some(spent[Unit::Calls], "call"), NanoUsd(spent.cost())),
        },
    ];
    if view.run.replayed > 0 {
        parts.push(format!(
            "{} replayed ({} usd saved)",
            some(view.run.replayed, "answer"),
            NanoUsd(view.run.saved_nano_usd)
        ));
    }
    let doubt = view.envelope.doubt.cost();
    if doubt > 0 {
        parts.push(format!("{} usd in doubt", NanoUsd(doubt)));
    }
    if attempts.len() > 1 {
        parts.push(some(attempts.len() as i64, "attempt"));
    }
    say(&parts.join(" · "));
}

/// Reports that the command asked the proxy for nothing, and why that may be.
pub fn nothing_metered(command: &Command) {
    let program = command.argv.first().map_or("", String::as_str);
    say(&format!("NOTHING METERED: {program} asked the proxy for nothing: no call was recorded or limited"));
    say(
        "hint: a base URL written into the program (base_url=, baseURL:) passes the proxy by: remove it, or read it \
         from OPENAI_BASE_URL or ANTHROPIC_BASE_URL",
    );
}

/// Reports which budget the run waits for, and what makes room there.
pub fn waits(view: &RunView) {
    let Some(refusal) = &view.run.halt else { return };
    say(&format!("waiting for room ({}): {}", refusal.code, refusal.message()));
    say(&format!("hint: {}", refusal.hint(view.run.id.as_str())));
}

/// Reports why the run is halted, and what lets it go on.
pub fn halted(view: &RunView) {
    let Some(halt) = &view.run.halt else { return };
    say(&format!("halted ({}): {}", halt.code, halt.message()));
    say(&format!("hint: {}", halt.hint(view.run.id.as_str())));
}

/// Returns the run as it stands now.
pub fn view(store: &dyn Store, view: &RunView) -> Result<RunView, CliError> {
    Ok(store.run(view.run.no)?.unwrap_or_else(|| view.clone()))
}
