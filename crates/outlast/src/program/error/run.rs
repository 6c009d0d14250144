//! Errors of a run that cannot be started, resumed or driven on.

use std::io;

use outlast_core::{envelope::Refusal, run::Status};
use outlast_process::{cgroup, start_error};

use super::FilesError;
use crate::program::exit_code::{FAILED, HALTED, REFUSED, UNAVAILABLE, USAGE};

error_rows! {
    #[derive(Debug, thiserror::Error)]
    pub enum RunError {
        #[error("this command has {count} unfinished runs here: {}", .first.join(", "))]
        SeveralRuns {
            count: usize,
            /// First few of the `count` runs, each as its id and status.
            first: Vec<String>,
        } => ("several_runs", REFUSED), format!(
            "go on with one by its id, as `outlast resume {}`, or begin another with `outlast run --new -- CMD`",
            first.first().and_then(|run| run.split(' ').next()).unwrap_or("RUN")
        );
        #[error("run {run} is {}: there is nothing to {verb}", .status.name())]
        Ended {
            run: String,
            status: Status,
            /// Verb that was typed: `resume`, `stop` or `cancel`.
            verb: &'static str,
        } => ("run_ended", REFUSED), match *verb {
            "resume" => "start it anew with `outlast run --new -- CMD`".into(),
            _ => format!("`outlast show {run}` tells how it ended"),
        };
        #[error("no run of {directory} can go on by itself: the newest, {run}, is {}", .status.name())]
        NothingToResume { directory: String, run: String, status: Status } => ("nothing_to_resume", REFUSED), match status {
            Status::Failed => format!("`outlast show {run}` says why it failed, and what is next"),
            _ => "name one; `outlast ls` lists them".into(),
        };
        #[error("run {run} is halted{}", why(.halt.as_deref()))]
        Halted { run: String, halt: Option<Box<Refusal>> } => ("run_halted", HALTED), match halt {
            Some(halt) => halt.hint(run),
            None => format!("see `outlast show {run}`"),
        };
        #[error("run {run} is a loop script's: its own shell drives it")]
        LoopScript { run: String } => ("no_command", REFUSED), "start the script again: it goes on with its task";
        #[error("run {run} has no command: its own program made it, or requests to a server")]
        NoCommand { run: String } => ("no_command", REFUSED),
            "start its program again, or send requests with its X-Outlast-Run header: it goes on with them";
        #[error("run {run} was begun with {}, and {} not there; nothing was started", .names.join(" and "), are(.names))]
        KeysMissing { run: String, names: Vec<String> } => ("key_missing", UNAVAILABLE), format!(
            "export {}, or put {} into ~/.config/outlast/env (mode 0600)",
            names.join(" "),
            if names.len() == 1 { "it" } else { "them" }
        );
        #[error("run {run} was begun under a login of {login}, whose calls are not billed: now a key is here, and it has no limit in usd")]
        LoginGone { run: String, login: String } => ("login_gone", REFUSED),
            format!("give it one with `outlast budget {run} --set-usd 5`, or unset the key and log in");
        #[error("OUTLAST_URL does not name the proxy of run {run}: {url:?}")]
        NoParentProxy { run: String, url: String } => ("no_parent_proxy", REFUSED),
            "start the command with the environment that its run gave it";
        #[error("the address that is kept with the run for its state is none: {0}")]
        KeptAddress(std::net::AddrParseError as e) => ("bad_grpc_address", REFUSED), "give one with --grpc";
        #[error("the run has no attempt")]
        NoAttempt => ("internal", UNAVAILABLE);
        #[error(transparent)]
        NotStarted(#[from] start_error::Error as e) => (e.code(), exit_of_start(e)), "correct the command and type it again";
        #[error("the limits of memory and processor time cannot be kept: {0}")]
        NoCgroup(cgroup::Error as e) => ("no_cgroup", UNAVAILABLE),
            "start it as `systemd-run --user --scope -p Delegate=yes outlast run …`, or \
             limit each process's address space with --memory-by rlimit";
        #[error("the agent cannot be confined: {why}")]
        NotConfined { why: String } => ("not_confined", UNAVAILABLE),
            "give the store a directory of its own; without root, user namespaces have to be \
             allowed (see docs/guides/guards.md); as root, name another user: --confine=USER";
        #[error("the agent's network cannot be confined: {why}")]
        NetNotConfined { why: String } => ("net_not_confined", UNAVAILABLE),
            "user namespaces have to be allowed (`unshare -Urn true` shows it); --intercept alone needs none";
        #[error("there is no directory {directory}, in which run {run} is to work")]
        NoPlace { run: String, directory: String } => ("no_directory", UNAVAILABLE),
            format!("when it is back: `outlast resume {run}`; where it has moved: `outlast resume {run} --cd DIR`");
        #[error("the directory in which you are is gone")]
        HereIsGone => ("no_directory", UNAVAILABLE), "`cd` to one that is there, and type it again";
        #[error("{option} gives the work to a background server, outside of this run")]
        WorkLeaves { option: String } => ("work_leaves_the_run", USAGE),
            format!("leave {option} out; `outlast run --detach -- CMD` works in the background, and is this run's");
        #[error("the run cannot be intercepted: {why}")]
        NotIntercepted { why: String } => ("not_intercepted", UNAVAILABLE),
            "leave --intercept out: programs that obey a base URL are metered without it";
        #[error("the supervisor failed: {0}")]
        Supervisor(#[from] io::Error as e) => ("supervisor", UNAVAILABLE);
        #[error("{count} processes of {whose} cannot be ended{}", if *.before { "; nothing was started" } else { "" })]
        Strays {
            count: usize,
            whose: &'static str,
            /// Whether the processes are an earlier attempt's, so that nothing was started.
            before: bool,
        } => ("strays", UNAVAILABLE);
        #[error("--until {command:?}: {why}")]
        UntilNotRun { command: String, why: String, run: String, iteration: i64 } => ("until_failed", FAILED),
            format!("when it can be run, `outlast resume {run}` judges iteration {iteration} again");
        #[error("this run has begun {count} agents with these words in this directory")]
        TooManyAgents { count: u32 } => ("too_many_agents", REFUSED), "begin a new run";
        #[error(transparent)]
        Files(#[from] FilesError as e) => e.fact(), e.hint();
    }
}

/// Returns the exit code of a command that was not started, as a shell gives it.
fn exit_of_start(e: &start_error::Error) -> u8 {
    e.exit_code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

fn why(halt: Option<&Refusal>) -> String {
    halt.map_or_else(String::new, |halt| format!(" ({}): {}", halt.code, halt.message()))
}

fn are(names: &[String]) -> &'static str {
    if names.len() == 1 { "it is" } else { "they are" }
}
