//! Errors of commands that look at runs, the state or this machine's service.

use std::{io, path::PathBuf};

use outlast_core::{envelope::Unit, run::Status};

use crate::program::exit_code::{REFUSED, UNAVAILABLE};

const NO_LOGS: &str = "logs are kept beside the store by `outlast run` without --no-logs";

error_rows! {
    #[derive(Debug, thiserror::Error)]
    pub enum CommandError {
        #[error("run {run} is {}, and no supervisor listens on this machine{}", .status.name(), unless_gone(.why))]
        NotAttachable {
            run: String,
            status: Status,
            /// Whether `outlast run` began it. A program's own run has no log, and only its program goes on with it.
            has_command: bool,
            why: io::Error,
        } => ("not_attachable", REFUSED), match (has_command, status.is_ended()) {
            (false, _) => format!("`outlast show {run}` tells of it"),
            (true, true) => format!("`outlast logs {run}` shows what it printed"),
            (true, false) => format!("`outlast resume {run}` goes on with it, `outlast logs {run}` shows what it printed"),
        };
        #[error("run {run} has no log: it has no attempt yet")]
        NoAttempt { run: String } => ("no_logs", REFUSED), NO_LOGS;
        #[error("run {run} has no log of attempt {attempt}: {kept}")]
        NoLog {
            run: String,
            attempt: i64,
            kept: String,
            /// Newest attempt of which a log is kept; `None` if none is.
            newest: Option<i64>,
        } => ("no_logs", REFUSED), match newest {
            Some(newest) => format!("`outlast logs {run} --attempt {newest}` prints the newest that is kept"),
            None => NO_LOGS.into(),
        };
        #[error("run {run} has no entry {entry}: {}", if *.last > 0 { format!("its last is {last}") } else { "it has none yet".into() })]
        NoEntry { run: String, entry: i64, last: i64 } => ("unknown_entry", REFUSED),
            format!("`outlast journal {run}` lists its entries");
        #[error("run {run} is {}: it has not ended, and what it did would be done and paid again", .status.name())]
        NotEnded { run: String, status: Status } => ("run_not_ended", REFUSED),
            format!("`outlast cancel {run}` ends it for good");
        #[error("run {run} stays: it has ended, and a call of it, or of a run below it, is in flight")]
        CallInFlight { run: String } => ("call_in_flight", REFUSED),
            "try again when the provider has answered it; its cost and its reservation are settled then";
        #[error("run {run} stays: the newest run of a store cannot be removed before another has begun")]
        NewestStays { run: String } => ("run_stays", REFUSED),
            "`outlast run -- true` begins another one; then type it again";
        #[error("run {run} stays: a run above it, or below it, can go on")]
        RunStays { run: String } => ("run_stays", REFUSED), "type it again when those runs have ended";
        #[error("`outlast {verb}` is a person's here, and this is a process of a run: {how}")]
        NotAPersons { verb: String, how: String } => ("not_a_persons", REFUSED),
            "type it in a shell of your own; a run stops and cancels only runs that it began";
        #[error("no price is known for {model:?}: under a limit in usd its calls are refused")]
        PriceUnknown { model: String } => ("price_unknown", REFUSED),
            "take newer prices with `outlast prices update FILE --accept`, give it one with --prices FILE, or have it charged at twice the dearest of its family with --unpriced dearest: see docs/guides/prices.md";
        #[error("run {run} has no limit of {} to add to", .unit.word())]
        NoLimit {
            run: String,
            unit: Unit,
            /// Command that raises the budget above it which its calls are charged to; `None` if there is none.
            above: Option<String>,
        } => ("bad_limit", REFUSED), match (above, unit.word()) {
            (Some(raise), unit) => format!(
                "it spends of the budget of the run above it: `{raise}`; --set-{unit} sets one of its own"
            ),
            (None, unit) => format!("--set-{unit} sets one"),
        };
        #[error("{key:?} is not set in the context of {run}")]
        NotInContext { run: String, key: String } => ("no_such_key", REFUSED), "`outlast ctx get` lists what is";
        #[error("key {key:?} of agent {agent:?} is not there in namespace {namespace:?}{why}")]
        NoSuchKey { namespace: String, agent: String, key: String, why: String } => ("no_such_key", REFUSED),
            "`outlast state keys AGENT` lists keys, `outlast state history AGENT KEY` its past";
        #[error("there is no commit {asked} yet: the newest of namespace {namespace:?} is {newest}")]
        NoSuchCommit { namespace: String, asked: i64, newest: i64 } => ("no_such_commit", REFUSED),
            "`outlast state replay AGENT` tells an agent's commits";
        #[error("there is no {}", .unit.display())]
        NotInstalled { unit: PathBuf } => ("not_installed", UNAVAILABLE);
        #[error("neither HOME nor XDG_CONFIG_HOME is set: there is no place for the unit")]
        NoHome => ("no_home", UNAVAILABLE), "set HOME";
        #[error("the address of {place} holds a password, which no unit is to hold")]
        SecretInUnit { place: String } => ("secret_in_unit", UNAVAILABLE),
            "put the password into ~/.pgpass, and leave it out of the address";
        #[error("{word:?} cannot stand in a unit: it is no plain line of text")]
        BadUnit { word: String } => ("bad_unit", UNAVAILABLE);
        #[error("systemctl --user {verb}: {why}")]
        Systemctl { verb: String, why: String } => ("no_systemd", UNAVAILABLE),
            "`outlast service install --print` prints the unit; or have `outlast resume --all --stay` started \
             by other means, such as cron's @reboot";
    }
}

/// Returns the reason in brackets; empty for a socket that nobody listens at, which the message says already.
fn unless_gone(why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => String::new(),
        _ => format!(" ({why})"),
    }
}
