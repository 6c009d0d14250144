//! Errors of a run that cannot be started, resumed or driven on.

use std::io;

use outlast_core::{envelope::Refusal, run::Status};

use super::FilesError;
use crate::program::exit_code::{FAILED, HALTED, REFUSED, UNAVAILABLE, USAGE};
use outlast_process::{cgroup, start_error};

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("this command has {count} unfinished runs here: {}", .first.join(", "))]
    SeveralRuns {
        count: usize,
        /// First few of the `count` runs, each as its id and status.
        first: Vec<String>,
    },
    #[error("run {run} is {}: there is nothing to {verb}", .status.name())]
    Ended {
        run: String,
        status: Status,
        /// Verb that was typed: `resume`, `stop` or `cancel`.
        verb: &'static str,
    },
    #[error("no run of {directory} can go on by itself: the newest, {run}, is {}", .status.name())]
    NothingToResume { directory: String, run: String, status: Status },
    #[error("run {run} is halted{}", why(.halt.as_deref()))]
    Halted { run: String, halt: Option<Box<Refusal>> },
    #[error("run {run} is a loop script's: its own shell drives it")]
    LoopScript { run: String },
    #[error("run {run} has no command: its own program made it, or requests to a server")]
    NoCommand { run: String },
    #[error("run {run} was begun with {}, and {} not there; nothing was started", .names.join(" and "), are(.names))]
    KeysMissing { run: String, names: Vec<String> },
    #[error(
        "run {run} was begun under a login of {login}, whose calls are not billed: now a key is here, and it has no limit in usd"
    )]
    LoginGone { run: String, login: String },
    #[error("OUTLAST_URL does not name the proxy of run {run}: {url:?}")]
    NoParentProxy { run: String, url: String },
    #[error("the address that is kept with the run for its state is none: {0}")]
    KeptAddress(std::net::AddrParseError),
    #[error("the run has no attempt")]
    NoAttempt,
    #[error(transparent)]
    NotStarted(#[from] start_error::Error),
    #[error("the limits of memory and processor time cannot be kept: {0}")]
    NoCgroup(cgroup::Error),
    #[error("the agent cannot be confined: {why}")]
    NotConfined { why: String },
    #[error("the agent's network cannot be confined: {why}")]
    NetNotConfined { why: String },
    #[error("there is no directory {directory}, in which run {run} is to work")]
    NoPlace { run: String, directory: String },
    #[error("the directory in which you are is gone")]
    HereIsGone,
    #[error("{option} gives the work to a background server, outside of this run")]
    WorkLeaves { option: String },
    #[error("the run cannot be intercepted: {why}")]
    NotIntercepted { why: String },
    #[error("the supervisor failed: {0}")]
    Supervisor(#[from] io::Error),
    #[error("{count} processes of {whose} cannot be ended{}", if *.before { "; nothing was started" } else { "" })]
    Strays {
        count: usize,
        whose: &'static str,
        /// Whether the processes are an earlier attempt's, so that nothing was started.
        before: bool,
    },
    #[error("--until {command:?}: {why}")]
    UntilNotRun { command: String, why: String, run: String, iteration: i64 },
    #[error("this run has begun {count} agents with these words in this directory")]
    TooManyAgents { count: u32 },
    #[error(transparent)]
    Files(#[from] FilesError),
}

impl RunError {
    /// Returns the stable code, by which programs tell errors apart, and the exit code.
    pub fn fact(&self) -> (&'static str, u8) {
        match self {
            RunError::SeveralRuns { .. } => ("several_runs", REFUSED),
            RunError::Ended { .. } => ("run_ended", REFUSED),
            RunError::NothingToResume { .. } => ("nothing_to_resume", REFUSED),
            RunError::Halted { .. } => ("run_halted", HALTED),
            RunError::LoopScript { .. } | RunError::NoCommand { .. } => ("no_command", REFUSED),
            RunError::KeysMissing { .. } => ("key_missing", UNAVAILABLE),
            RunError::LoginGone { .. } => ("login_gone", REFUSED),
            RunError::NoParentProxy { .. } => ("no_parent_proxy", REFUSED),
            RunError::KeptAddress(_) => ("bad_grpc_address", REFUSED),
            RunError::NoAttempt => ("internal", UNAVAILABLE),
            RunError::NotStarted(e) => (e.code(), exit_of_start(e)),
            RunError::NoCgroup(_) => ("no_cgroup", UNAVAILABLE),
            RunError::NotConfined { .. } => ("not_confined", UNAVAILABLE),
            RunError::NetNotConfined { .. } => ("net_not_confined", UNAVAILABLE),
            RunError::NoPlace { .. } | RunError::HereIsGone => ("no_directory", UNAVAILABLE),
            RunError::WorkLeaves { .. } => ("work_leaves_the_run", USAGE),
            RunError::NotIntercepted { .. } => ("not_intercepted", UNAVAILABLE),
            RunError::Supervisor(_) => ("supervisor", UNAVAILABLE),
            RunError::Strays { .. } => ("strays", UNAVAILABLE),
            RunError::UntilNotRun { .. } => ("until_failed", FAILED),
            RunError::TooManyAgents { .. } => ("too_many_agents", REFUSED),
            RunError::Files(e) => e.fact(),
        }
    }

    /// Returns the hint that is printed below the error: what to do about it; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            RunError::SeveralRuns { first, .. } => {
                let newest = first.first().and_then(|run| run.split(' ').next()).unwrap_or("RUN");
                format!("go on with one by its id, as `outlast resume {newest}`, or begin another with `outlast run --new -- CMD`")
            }
            RunError::Ended { verb: "resume", .. } => "start it anew with `outlast run --new -- CMD`".into(),
            RunError::Ended { run, .. } => format!("`outlast show {run}` tells how it ended"),
            RunError::NothingToResume { run, status: Status::Failed, .. } => {
                format!("`outlast show {run}` says why it failed, and what is next")
            }
            RunError::NothingToResume { .. } => "name one; `outlast ls` lists them".into(),
            RunError::Halted { run, halt: Some(halt) } => halt.hint(run),
            RunError::Halted { run, halt: None } => format!("see `outlast show {run}`"),
            RunError::LoopScript { .. } => "start the script again: it goes on with its task".into(),
            RunError::NoCommand { .. } => {
                "start its program again, or send requests with its X-Outlast-Run header: it goes on with them"
                    .into()
            }
            RunError::KeysMissing { names, .. } => format!(
                "export {}, or put {} into ~/.config/outlast/env (mode 0600)",
                names.join(" "),
                if names.len() == 1 { "it" } else { "them" }
            ),
            RunError::LoginGone { run, .. } => format!(
                "give it one with `outlast budget {run} --set-usd 5`, or unset the key and log in"
            ),
            RunError::NoParentProxy { .. } => {
                "start the command with the environment that its run gave it".into()
            }
            RunError::KeptAddress(_) => "give one with --grpc".into(),
            RunError::NotStarted(_) => "correct the command and type it again".into(),
            RunError::NotConfined { .. } => "give the store a directory of its own; without root, user namespaces have to be \
                 allowed (see docs/guides/guards.md); as root, name another user: --confine=USER"
                .into(),
            RunError::NoPlace { run, .. } => format!(
                "when it is back: `outlast resume {run}`; where it has moved: `outlast resume {run} --cd DIR`"
            ),
            RunError::HereIsGone => "`cd` to one that is there, and type it again".into(),
            RunError::WorkLeaves { option, .. } => {
                format!("leave {option} out; `outlast run --detach -- CMD` works in the background, and is this run's")
            }
            RunError::NetNotConfined { .. } => {
                "user namespaces have to be allowed (`unshare -Urn true` shows it); --intercept alone needs none".into()
            }
            RunError::NotIntercepted { .. } => {
                "leave --intercept out: programs that obey a base URL are metered without it".into()
            }
            RunError::NoCgroup(_) => "start it as `systemd-run --user --scope -p Delegate=yes outlast run …`, or \
                                      limit each process's address space with --memory-by rlimit"
                .into(),
            RunError::UntilNotRun { run, iteration, .. } => {
                format!("when it can be run, `outlast resume {run}` judges iteration {iteration} again")
            }
            RunError::TooManyAgents { .. } => "begin a new run".into(),
            RunError::Files(e) => return e.hint(),
            RunError::NoAttempt | RunError::Supervisor(_) | RunError::Strays { .. } => return None,
        })
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
