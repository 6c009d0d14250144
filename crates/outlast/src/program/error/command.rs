//! Errors of commands that look at runs, the state or this machine's service.

use std::{io, path::PathBuf};

use outlast_core::{envelope::Unit, run::Status};

use crate::program::exit_code::{REFUSED, UNAVAILABLE};

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("run {run} is {}, and no supervisor listens on this machine{}", .status.name(), unless_gone(.why))]
    NotAttachable { run: String, status: Status, why: io::Error },
    #[error("run {run} has no log: it has no attempt yet")]
    NoAttempt { run: String },
    #[error("run {run} has no entry {entry}: {}", if *.last > 0 { format!("its last is {last}") } else { "it has none yet".into() })]
    NoEntry { run: String, entry: i64, last: i64 },
    #[error("run {run} is {}: it has not ended, and what it did would be done and paid again", .status.name())]
    NotEnded { run: String, status: Status },
    #[error("run {run} stays: it has ended, and a call of it, or of a run below it, is in flight")]
    CallInFlight { run: String },
    #[error("run {run} stays: the newest run of a store cannot be removed before another has begun")]
    NewestStays { run: String },
    #[error("run {run} stays: a run above it, or below it, can go on")]
    RunStays { run: String },
    #[error("run {run} has no log of attempt {attempt}: {kept}")]
    NoLog {
        run: String,
        attempt: i64,
        kept: String,
        /// Newest attempt of which a log is kept; `None` if none is.
        newest: Option<i64>,
    },
    #[error("`outlast {verb}` is a person's here, and this is a process of a run: {how}")]
    NotAPersons { verb: &'static str, how: String },
    #[error("no price is known for {model:?}: under a limit in usd its calls are refused")]
    PriceUnknown { model: String },
    #[error("run {run} has no limit of {} to add to", .unit.word())]
    NoLimit {
        run: String,
        unit: Unit,
        /// Command that raises the budget above it which its calls are charged to; `None` if there is none.
        above: Option<String>,
    },
    #[error("{key:?} is not set in the context of {run}")]
    NotInContext { run: String, key: String },
    #[error("key {key:?} of agent {agent:?} is not there in namespace {namespace:?}{why}")]
    NoSuchKey { namespace: String, agent: String, key: String, why: String },
    #[error("there is no commit {asked} yet: the newest of namespace {namespace:?} is {newest}")]
    NoSuchCommit { namespace: String, asked: i64, newest: i64 },
    #[error("there is no {}", .unit.display())]
    NotInstalled { unit: PathBuf },
    #[error("neither HOME nor XDG_CONFIG_HOME is set: there is no place for the unit")]
    NoHome,
    #[error("the address of {place} holds a password, which no unit is to hold")]
    SecretInUnit { place: String },
    #[error("{word:?} cannot stand in a unit: it is no plain line of text")]
    BadUnit { word: String },
    #[error("systemctl --user {verb}: {why}")]
    Systemctl { verb: String, why: String },
}

impl CommandError {
    /// Returns the stable code, by which programs tell errors apart, and the exit code.
    pub fn fact(&self) -> (&'static str, u8) {
        match self {
            CommandError::NotAttachable { .. } => ("not_attachable", REFUSED),
            CommandError::NoAttempt { .. } | CommandError::NoLog { .. } => ("no_logs", REFUSED),
            CommandError::NoEntry { .. } => ("unknown_entry", REFUSED),
            CommandError::NotEnded { .. } => ("run_not_ended", REFUSED),
            CommandError::CallInFlight { .. } => ("call_in_flight", REFUSED),
            CommandError::NewestStays { .. } | CommandError::RunStays { .. } => ("run_stays", REFUSED),
            CommandError::NotAPersons { .. } => ("not_a_persons", REFUSED),
            CommandError::PriceUnknown { .. } => ("price_unknown", REFUSED),
            CommandError::NoLimit { .. } => ("bad_limit", REFUSED),
            CommandError::NotInContext { .. } | CommandError::NoSuchKey { .. } => ("no_such_key", REFUSED),
            CommandError::NoSuchCommit { .. } => ("no_such_commit", REFUSED),
            CommandError::NotInstalled { .. } => ("not_installed", UNAVAILABLE),
            CommandError::NoHome => ("no_home", UNAVAILABLE),
            CommandError::SecretInUnit { .. } => ("secret_in_unit", UNAVAILABLE),
            CommandError::BadUnit { .. } => ("bad_unit", UNAVAILABLE),
            CommandError::Systemctl { .. } => ("no_systemd", UNAVAILABLE),
        }
    }

    /// Returns the hint that is printed below the error: what to do about it; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            CommandError::NotAttachable { run, status, .. } if status.is_ended() => {
                return Some(format!("`outlast logs {run}` shows what it printed"));
            }
            CommandError::NotAttachable { run, .. } => {
                return Some(format!(
                    "`outlast resume {run}` goes on with it, `outlast logs {run}` shows what it printed"
                ));
            }
            CommandError::NoLog { run, newest: Some(newest), .. } => {
                return Some(format!(
                    "`outlast logs {run} --attempt {newest}` prints the newest that is kept"
                ));
            }
            CommandError::NoAttempt { .. } | CommandError::NoLog { .. } => {
                "logs are kept beside the store by `outlast run` without --no-logs"
            }
            CommandError::NotEnded { run, .. } => {
                return Some(format!("`outlast cancel {run}` ends it for good"));
            }
            CommandError::CallInFlight { .. } => {
                "try again when the provider has answered it; its cost and its reservation are settled then"
            }
            CommandError::NewestStays { .. } => {
                "`outlast run -- true` begins another one; then type it again"
            }
            CommandError::RunStays { .. } => "type it again when those runs have ended",
            CommandError::NoEntry { run, .. } => {
                return Some(format!("`outlast journal {run}` lists its entries"));
            }
            CommandError::NotAPersons { .. } => {
                "type it in a shell of your own; a run stops and cancels only runs that it began"
            }
            CommandError::PriceUnknown { .. } => {
                "take newer prices with `outlast prices update FILE --accept`, give it one with --prices FILE, or have it charged at twice the dearest of its family with --unpriced dearest: see docs/guides/prices.md"
            }
            CommandError::NoLimit { unit, above, .. } => {
                let own = format!("--set-{} sets one", unit.word());
                return Some(match above {
                    Some(raise) => {
                        format!("it spends of the budget of the run above it: `{raise}`; {own} of its own")
                    }
                    None => own,
                });
            }
            CommandError::NotInContext { .. } => "`outlast ctx get` lists what is",
            CommandError::NoSuchKey { .. } => {
                "`outlast state keys AGENT` lists keys, `outlast state history AGENT KEY` its past"
            }
            CommandError::NoSuchCommit { .. } => "`outlast state replay AGENT` tells an agent's commits",
            CommandError::NoHome => "set HOME",
            CommandError::SecretInUnit { .. } => {
                "put the password into ~/.pgpass, and leave it out of the address"
            }
            CommandError::Systemctl { .. } => {
                "`outlast service install --print` prints the unit; or have `outlast resume --all --stay` started \
                 by other means, such as cron's @reboot"
            }
            CommandError::NotInstalled { .. } | CommandError::BadUnit { .. } => return None,
        };
        Some(hint.into())
    }
}

/// Returns the reason in brackets; empty for a socket that nobody listens at, which the message says already.
fn unless_gone(why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => String::new(),
        _ => format!(" ({why})"),
    }
}
