//! The next step for a run, in a few words and as commands to type.

use outlast_core::{
    envelope::{Unit, Whose},
    journal::job::Counts,
    reads::runs::resume_commands,
    run::Status,
    store::RunView,
    words::{Cause, Micros},
};
use outlast_view::{Run, shape};
use serde::Serialize;

use super::{did::Did, time};
use outlast_process::{exit, start_error};

/// Next step that is suggested to a person for a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Next {
    /// Step in a few words, for a table's cell.
    #[serde(skip)]
    pub brief: String,
    /// Step as a full sentence.
    pub text: String,
    /// Commands to type for the step, in order.
    pub commands: Vec<String>,
}

shape! {
    /// Run as a row of a list, with the next step for it.
    pub RunWithNext(view: &RunView, next: Next, now: Micros) {
        #[serde(flatten)] run: Run = Run::new(view, now);
        next: Next = next;
    }
}

shape! {
    /// Run after an act of a person on it. `status_before` is null if nothing was done.
    pub ChangedRun(view: &RunView, before: Option<Status>, now: Micros) {
        #[serde(flatten)] run: RunWithNext = RunWithNext::new(view, next(view, view.run.id.as_str()), now);
        status_before: Option<&'static str> = before.map(Status::name);
    }
}

/// Returns whether a command's run has ended without a call.
pub fn has_no_call(view: &RunView) -> bool {
    let run = &view.run;
    let ended = matches!(run.status, Status::Completed | Status::Failed);
    ended && view.spec.command.is_some() && view.envelope.spent[Unit::Calls] == 0 && run.replayed == 0
}

/// Returns whether a run has ended without a call although one was to be expected and would have cost money: its calls went
/// elsewhere, unrecorded and unlimited.
pub fn is_unmetered(view: &RunView) -> bool {
    has_no_call(view) && is_expected_to_call(view)
}

/// Programs that are agents, and programs that run scripts, in which an agent's calls may be. A name may go on with a version.
const CALLERS: [&str; 27] = [
    "aider", "bash", "bun", "bunx", "claude", "codex", "copilot", "deno", "fish", "gemini", "java", "ksh",
    "node", "npm", "npx", "opencode", "perl", "php", "pnpm", "python", "qwen", "ruby", "sh", "tsx", "uv",
    "uvx", "zsh",
];

/// Programs before the command that they run.
const BEFORE: [&str; 6] = ["env", "exec", "nice", "nohup", "setsid", "stdbuf"];

/// Directories of the system's own programs.
const SYSTEM: [&str; 4] = ["/bin", "/sbin", "/usr/bin", "/usr/sbin"];

/// Returns whether a run's command may be an agent, and its budget limits money. `true`, `sleep` and the like call no model.
pub fn is_expected_to_call(view: &RunView) -> bool {
    let Some(command) =
        view.spec.command.as_ref().filter(|_| view.envelope.limits[Unit::CostNanoUsd].is_some())
    else {
        return false;
    };
    let stem = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let is_before =
        |word: &&String| BEFORE.contains(&stem(word).as_str()) || word.starts_with('-') || word.contains('=');
    let Some(program) = command.argv.iter().find(|word| !is_before(word)) else { return false };
    let directory = program.rsplit_once('/').map(|(directory, _)| directory);
    let name = stem(program);
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    CALLERS.contains(&name) || directory.is_some_and(|directory| !SYSTEM.contains(&directory))
}

/// Returns the next step for the run, as [`next`] does; for one that called no model, with what its entries say it did.
/// `are_all`: whether these are all of its entries.
pub fn next_with(view: &RunView, did: &Did, are_all: bool, word: &str) -> Next {
    if view.run.status != Status::Completed || !has_no_call(view) {
        return next(view, word);
    }
    match (&did.refused, did.words()) {
        (Some(why), _) => told("every call refused", format!("it is done, but each call was refused: {why}")),
        _ if did.has_called => told("no call answered", "it is done; no call of it was answered"),
        (None, Some(did)) => {
            let did = if are_all { did } else { format!("at least {did}") };
            let text = format!("it is done; no model's call of it came through the proxy ({did} recorded)");
            told(format!("{did}; no model's call"), text)
        }
        (None, None) => next(view, word),
    }
}

/// Returns the next step for the run, judged by the run's own rows alone. `word` is what its commands call the run.
pub fn next(view: &RunView, word: &str) -> Next {
    let (run, id) = (&view.run, word);
    // A run of header callers, or of a program with the engine inside, has no command that Outlast could start again.
    let supervised = view.spec.command.is_some();
    let resume = || if supervised { vec![format!("outlast resume {id}")] } else { Vec::new() };
    let is_loop = view.spec.is_shell_loop();
    let again = match supervised {
        true => format!("`outlast resume {id}`"),
        false => "start its program again".to_owned(),
    };
    let left = run.job.as_ref().and_then(|job| unfinished(&job.counts, run.status));
    let go_on = |brief: &str, text: &str| match supervised {
        true => told(brief, text).with(resume()),
        false if is_loop => told("start its loop", "start the loop's script again: it goes on with it"),
        false if run.job.is_some() => {
            let (brief, text) = left.unwrap_or(GO_ON);
            told(brief, text).with(retry(view, word))
        }
        // Only a process that drives a run takes a fence: callers that come by HTTP alone have none.
        false if run.fence.0 > 0 => told("start its program", "start its program again: it goes on with it"),
        false => told(
            "its next request",
            "it goes on when its own program is started again, or with its next request",
        ),
    };
    let is_futile = supervised && run.error.as_deref().is_some_and(exit::is_futile);
    match run.status {
        Status::Running if run.stop_requested && run.job.is_some() => {
            told("stopping", "its script was asked to stop it")
        }
        Status::Running if run.stop_requested => told("stopping", "its supervisor was asked to stop it"),
        Status::Running => told("", "it is running; nothing is to be done"),
        Status::Interrupted if run.stop_requested && !is_loop && run.job.is_none() => {
            // Applies to runs without a command, too: their callers are refused until the run is resumed.
            told("resume", "a person stopped it; resume it by name").with([format!("outlast resume {id}")])
        }
        Status::Interrupted if run.began_at.is_none() => go_on("resume", "it has not begun yet"),
        Status::Interrupted => match (run.wake_at, run.awaited_outage()) {
            (Some(at), _) => {
                let text = format!("nobody drives it: resumed, it sleeps on until {}", time::moment(at));
                go_on("resume", &text)
            }
            (None, Some((outage, _))) => {
                go_on("resume", &format!("nobody drives it: {}", outage.hint(false, &again)))
            }
            (None, None) => go_on("resume", "nobody drives it: resume it"),
        },
        Status::Waiting if run.approvals.as_ref().is_some_and(|a| !a.is_empty()) => {
            told("decide", "it waits for a person's decision, and goes on by itself")
                .with([format!("outlast approvals {id}")])
        }
        Status::Waiting => awaits_provider(view, resume(), &again).unwrap_or_else(|| waiting(view, word)),
        Status::Sleeping => asleep(view, word),
        Status::Halted => halted(view, word),
        Status::Completed if left.is_some() => go_on("", ""),
        Status::Completed if is_unmetered(view) => {
            told("NOTHING METERED", "it is done; no call of it came through the proxy")
        }
        Status::Completed => told("", "nothing: it is done"),
        Status::Failed if run.error.as_deref().is_some_and(start_error::is_wrong_command) => {
            told(CORRECT, "its command cannot be started: correct it and type it again")
        }
        // Resumed, the same command would end the same way.
        Status::Failed if is_futile && run.own.calls == 0 && run.replayed == 0 => {
            told(CORRECT, "read what it printed, correct its command and type it again")
                .with([format!("outlast logs {id}")])
        }
        // A resumption starts the same command.
        Status::Failed if supervised && run.error.as_deref().is_some_and(exit::ended_twice) => told(
            "see logs",
            "read what it printed: if its command is wrong, type another as a new run (`outlast run …`); else mend the cause \
             and resume it",
        )
        .with([format!("outlast logs {id}")])
        .with(resume()),
        Status::Failed => go_on("resume", "mend why it failed, then resume it"),
        Status::Cancelled => told("", "nothing: it was cancelled"),
    }
}

const CORRECT: &str = "correct its command";

const START: &str = "start its script";

/// Next step for a job with items that have not ended, in few words and as a sentence.
const GO_ON: (&str, &str) = (START, "start its script again: it goes on with it");

/// Returns the next step for a job, in few words and as a sentence; `None` if each of its items has a result.
fn unfinished(counts: &Counts, status: Status) -> Option<(&'static str, &'static str)> {
    // Of an input without a length nobody knows how many items are left, until the job is completed.
    let is_open = counts.wanted() > counts.ended() || counts.expected == 0 && status != Status::Completed;
    match (counts.failed, counts.dead, is_open) {
        (0, 0, false) => None,
        (_, _, true) => Some(GO_ON),
        (0, _, _) => {
            Some(("retry --failed", "its items ended, some dead: reset those, then start its script again"))
        }
        (_, 0, _) => {
            Some((START, "its items ended, some failed: start its script again, and those run again"))
        }
        (_, _, _) => Some((
            START,
            "its items ended, some failed, some dead: start its script again, and those that failed run again",
        )),
    }
}

/// Returns the command that resets the dead items of a job; empty if it has none. Failed ones run again by themselves.
fn retry(view: &RunView, word: &str) -> Vec<String> {
    let dead = view.run.job.as_ref().map_or(0, |job| job.counts.dead);
    (dead > 0).then(|| format!("outlast retry {word} --failed")).into_iter().collect()
}

fn asleep(view: &RunView, word: &str) -> Next {
    let until = view.run.wake_at.map(time::moment).unwrap_or_default();
    let why = if view.run.halt.is_some() { "a plan's ceiling" } else { "a usage limit" };
    let text = format!("it sleeps until {until} ({why}), and its supervisor starts it then");
    let brief = view.run.wake_at.map(time::clock).unwrap_or_default();
    told(format!("until {brief}"), text).with([format!("outlast wake {word}")])
}

/// Returns the next step for a run that waits for its provider; `None` for any other run. `resume` is for a
/// person who has mended the cause, and `again` says it in words.
fn awaits_provider(view: &RunView, resume: Vec<String>, again: &str) -> Option<Next> {
    let (outage, _) = view.run.awaited_outage()?;
    let upstream = &outage.upstream;
    let (brief, commands) = match outage.cause {
        Cause::KeyRefused(_) => (format!("a key for {upstream}"), resume),
        Cause::Untrusted => (format!("trust in {upstream}'s certificate"), resume),
        Cause::QuotaEnded(_) => (format!("credit at {upstream}"), resume),
        Cause::NoConnection | Cause::NoName | Cause::NoTls | Cause::Lost | Cause::Failing(_) => {
            (upstream.clone(), Vec::new())
        }
    };
    Some(told(brief, outage.hint(true, again)).with(commands))
}

/// Returns the next step for a run that waits for room: which budget it waits for, and how to raise it. The
/// run continues by itself when there is room.
fn waiting(view: &RunView, word: &str) -> Next {
    let above = told("room above it", "it waits for room in a budget above its own, and goes on by itself");
    let Some(refusal) = &view.run.halt else { return above };
    let next = match (&refusal.whose, &refusal.above) {
        (Some(Whose::Named { name, until, .. }), _) => {
            let or = until.map_or_else(String::new, |at| format!(", at {} at the latest", time::moment(at)));
            let text = format!("it waits for room in the budget {name}, and goes on by itself{or}");
            told(format!("room in {name}"), text)
        }
        (_, Some(above)) => told(
            "room above it",
            format!("it waits for room in the budget of {above}, the run above it, and goes on by itself"),
        ),
        (_, None) => return above,
    };
    next.with(command_in(&refusal.hint(word)))
}

/// Returns the command that a hint names, between its first two backquotes.
fn command_in(hint: &str) -> Option<String> {
    hint.split('`').nth(1).map(str::to_owned)
}

fn halted(view: &RunView, id: &str) -> Next {
    let supervised = view.spec.command.is_some();
    let then = if supervised { ", resume" } else { "" };
    let resume = resume_commands(view, id);
    let Some(halt) = &view.run.halt else {
        return told("raise its budget", "give it room in its budget").with(resume);
    };
    match halt.unit {
        Some(unit) => {
            let commands = if resume.is_empty() { Vec::from_iter(command_in(&halt.hint(id))) } else { resume };
            match &halt.above {
                Some(above) => {
                    let text = format!("give {above}, the run above it, room, then resume it");
                    told("room above it, resume", text).with(commands).with([format!("outlast resume {id}")])
                }
                None => told(format!("raise {}{then}", unit.word()), "give it room, then it can go on")
                    .with(commands),
            }
        }
        None if halt.code == "diverged" => told(
            "see journal",
            "look at what it asked differently: to resume it accepts that, and pays for it; a new run starts afresh",
        )
        .with([format!("outlast journal {id}")])
        .with(resume),
        None if halt.waited.is_some() => {
            told("see journal", "look at what it waits for; resumed, it goes on with a new count")
                .with([format!("outlast journal {id}")])
                .with(resume)
        }
        None if halt.moved.is_some() => told("it moved", halt.hint(id)),
        None if halt.code == "price_unknown" && !supervised => told(
            "give a price",
            "give its model a price in a file that OUTLAST_PRICES names (docs/guides/prices.md), or remove its limit in usd; \
             then start its program again",
        )
        .with([format!("outlast budget {id} --no-limit usd")]),
        None if halt.code == "price_unknown" => {
            let brief = if halt.is_fee { "let it be free" } else { "give a price" };
            let (words, commands): (Vec<_>, Vec<_>) = halt.ways_out(id).into_iter().unzip();
            told(brief, format!("{}: {}", halt.message(), words.join(", or "))).with(commands)
        }
        None => told("see show", halt.hint(id)),
    }
}

fn told(brief: impl Into<String>, text: impl Into<String>) -> Next {
    Next { brief: brief.into(), text: text.into(), commands: Vec::new() }
}

impl Next {
    /// Returns the step with these commands behind those it has.
    fn with(mut self, commands: impl IntoIterator<Item = String>) -> Next {
        self.commands.extend(commands);
        self
    }
}
