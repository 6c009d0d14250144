//! Commands that take a run up again, as a person types them.

use crate::{price::has_family, run::Status, store::RunView};

/// Returns the commands of which each alone takes up a run that stands still; empty for a run that goes on, for one
/// that no command begins again, and where a command alone does not help.
///
/// `word` is what the commands call the run. A halt by a limit names the flag that gives the run room, so that one command does both.
pub fn commands(view: &RunView, word: &str) -> Vec<String> {
    let run = &view.run;
    // A run of header callers, or of a program with the engine inside, has no command that Outlast could start again.
    if view.spec.command.is_none() {
        return Vec::new();
    }
    let resume = format!("outlast resume {word}");
    match (run.status, &run.halt) {
        (Status::Interrupted | Status::Failed, _) | (Status::Halted, None) => vec![resume],
        (Status::Halted, Some(halt)) if halt.unit.is_some() => {
            // The hint names the command that raises the limit between its first two backquotes. A resumption takes
            // the same flag.
            let hint = halt.hint(word);
            match hint.split('`').nth(1).map(|raise| (raise, raise.split_once(" --"))) {
                Some((_, Some((_, flag)))) => vec![format!("{resume} --{flag}")],
                Some((raise, None)) => vec![raise.to_owned(), resume],
                None => vec![resume],
            }
        }
        (Status::Halted, Some(halt)) if halt.is_fee => vec![format!("{resume} --unpriced free")],
        (Status::Halted, Some(halt)) if halt.code == "price_unknown" => {
            let known = halt.model.as_deref().is_some_and(has_family);
            let flags = ["--prices FILE", "--unpriced free", "--unpriced dearest"];
            flags[..2 + usize::from(known)].iter().map(|flag| format!("{resume} {flag}")).collect()
        }
        (Status::Halted, Some(halt)) if halt.is_accepted_by_resuming() => vec![resume],
        _ => Vec::new(),
    }
}
