//! `outlast state …`: what agents know.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use outlast_core::state::Retention;

use super::values;
use crate::render::time::When;

/// Inspect and manage the agents' versioned state, current or at an earlier time
///
/// A value is addressed by namespace, agent and key. Each write or delete makes a new version of the key; a commit is a
/// numbered set of changes that were made together.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StateArgs {
    #[command(subcommand)]
    pub command: StateCommand,
}

const EXAMPLES: &str = "\
Examples:
  outlast state get agent-1 plan --at 2026-11-20T08:00:00Z
  outlast state diff agent-1 12 15          what changed from commit 12 to commit 15
  outlast state replay agent-1 --follow
  outlast state namespaces                  all namespaces with at least one key
  outlast state agents --namespace run:nightly
  outlast state keys agent-1 --namespace run:nightly
  outlast state keep 10                     the last 10 versions of each key
  outlast state dump > state.jsonl";

#[derive(Subcommand, Clone, Debug)]
pub enum StateCommand {
    Get(GetArgs),
    Keys(KeysArgs),
    Agents(AgentsArgs),
    /// List the namespaces, with their newest commits
    Namespaces,
    History(HistoryArgs),
    Diff(DiffArgs),
    Replay(ReplayArgs),
    Keep(KeepArgs),
    Dump(DumpArgs),
    Restore(RestoreArgs),
}

/// Where keys are.
#[derive(Args, Clone, Debug)]
pub struct PlaceArgs {
    /// The namespace; a run's own is run:ID
    #[arg(long, short, value_name = "NAME", default_value = "default")]
    pub namespace: String,
}

/// A version or a commit, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Number(i64),
    Time(When),
}

fn mark(text: &str) -> Result<Mark, values::BadValue> {
    match text.parse::<i64>() {
        Ok(n) if n >= 0 => Ok(Mark::Number(n)),
        _ => values::when(text).map(Mark::Time),
    }
}

/// Print a key's value
#[derive(Args, Clone, Debug)]
pub struct GetArgs {
    /// The agent
    pub agent: String,
    /// The key
    pub key: String,
    /// Version of the key, or a time: 3, 2026-11-20T08:00:00Z, 7d
    #[arg(long, value_name = "VERSION|TIME", value_parser = mark)]
    pub at: Option<Mark>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// List an agent's keys
#[derive(Args, Clone, Debug)]
pub struct KeysArgs {
    /// The agent
    pub agent: String,
    /// Only keys that start with it
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// A commit of the namespace, or a time
    #[arg(long, value_name = "COMMIT|TIME", value_parser = mark)]
    pub at: Option<Mark>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// List the agents of a namespace
#[derive(Args, Clone, Debug)]
pub struct AgentsArgs {
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Print all versions of a key, oldest first
#[derive(Args, Clone, Debug)]
pub struct HistoryArgs {
    /// The agent
    pub agent: String,
    /// The key
    pub key: String,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Show which keys an agent added, deleted and changed between two moments
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast state diff agent-1 12 15\n  outlast state diff agent-1 1h       the last hour\n  outlast state diff agent-1 0 12     what it knew at commit 12"
)]
pub struct DiffArgs {
    /// The agent
    pub agent: String,
    /// From this commit or time on: 12, 2026-11-20T08:00:00Z, 1h
    #[arg(value_name = "FROM", value_parser = mark)]
    pub from: Mark,
    /// Up to this commit or time; else up to now
    #[arg(value_name = "TO", value_parser = mark)]
    pub to: Option<Mark>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Print all changes of an agent's keys, commit by commit
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The agent
    pub agent: String,
    /// The first commit, or a time
    #[arg(long, value_name = "COMMIT|TIME", value_parser = mark)]
    pub from: Option<Mark>,
    /// The last commit, or a time
    #[arg(long, value_name = "COMMIT|TIME", value_parser = mark)]
    pub to: Option<Mark>,
    /// Go on with what is committed from now on, until Ctrl-C; with --json a line of JSON each
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Set how many versions of each key are kept, and remove older ones
///
/// A key's newest version is never removed. Reads of what is gone say so. What is written later removes what is too
/// much of its key. Without a number it tells what is kept.
#[derive(Args, Clone, Debug)]
pub struct KeepArgs {
    /// Number of versions to keep, from 1; or all
    #[arg(value_name = "N|all", value_parser = versions)]
    pub versions: Option<Retention>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

fn versions(text: &str) -> Result<Retention, String> {
    match text.parse::<i64>() {
        _ if text == "all" => Ok(Retention::All),
        Ok(n) if n >= 1 => Ok(Retention::Last(n)),
        _ => Err(format!("not a number of versions: {text:?} (wanted a number from 1, or all)")),
    }
}

/// Write all of the state with its history as lines of JSON, one for each commit
#[derive(Args, Clone, Debug)]
pub struct DumpArgs {
    /// Only this namespace; can be repeated
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Vec<String>,
}

/// Write the commits of a dump into this store, in their order
///
/// Commits that an interrupted restore has made are not made again. Versions and commits are as they were where
/// the namespace is new; times are those of the restore. Namespaces of runs are left out: only their runs write there.
#[derive(Args, Clone, Debug)]
pub struct RestoreArgs {
    /// The dump; without it standard input
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}
