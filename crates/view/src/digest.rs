//! Digests: what happened in a span of time, for a person who was away.

use serde::Serialize;

use crate::{
    Approval, Run, Time, Wait,
    money::{Billed, InDoubt, Listed, Rebought, WithChildren},
};

/// Digest of all runs in a span of time.
#[derive(Clone, Debug, Serialize)]
pub struct Digest {
    pub since: Time,
    pub until: Time,
    /// Machine that tells it.
    pub host: String,
    /// Address of the page; null if no setting names one.
    pub link: Option<String>,
    pub calls: i64,
    /// Number of `calls` that failed and cost nothing.
    pub unpaid_calls: i64,
    #[serde(flatten)]
    pub cost: DigestCost,
    /// Costs of removed runs on the whole days that this time touches, which is in no sum here; null if nothing.
    pub removed: Option<DigestRemoved>,
    pub outages: Vec<DigestOutage>,
    /// Approvals that wait for a person.
    pub approvals: Vec<Approval>,
    /// Runs that began, ended or changed in this time, those that wait for a person first.
    pub runs: Vec<DigestRun>,
}

/// Outage of a provider.
#[derive(Clone, Debug, Serialize)]
pub struct DigestOutage {
    pub upstream: String,
    /// Newest cause of the outage.
    pub why: String,
    /// Time since which that cause holds.
    pub why_since: Time,
    pub from: Time,
    /// Null while it lasts.
    pub to: Option<Time>,
    /// Number of runs that waited.
    pub runs: usize,
}

/// Place of a run in a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// A person is asked for something.
    Asks,
    /// The run stands still until somebody does something.
    Stands,
    GoesOn,
    Ended,
}

/// Cost of a run in the time of a digest.
#[derive(Clone, Debug, Serialize)]
pub struct DigestCost {
    #[serde(flatten)]
    pub billed: Billed,
    #[serde(flatten)]
    pub listed: Listed,
    /// Charge with its children and forks; null if they cost nothing, and in sums over all runs.
    #[serde(flatten)]
    pub with_children: WithChildren,
    pub deaths: i64,
    /// Input that restarted agents bought again.
    #[serde(flatten)]
    pub rebought: Rebought,
    /// Amount that stays reserved for calls whose outcome is unknown.
    #[serde(flatten)]
    pub in_doubt: InDoubt,
}

/// Cost of runs that are gone: only the day of a call is kept.
#[derive(Clone, Debug, Serialize)]
pub struct DigestRemoved {
    pub calls: i64,
    #[serde(flatten)]
    pub billed: Billed,
    #[serde(flatten)]
    pub listed: Listed,
}

/// Run in a digest.
#[derive(Clone, Debug, Serialize)]
pub struct DigestRun {
    #[serde(flatten)]
    pub run: Run,
    pub standing: Standing,
    /// Commands to type.
    pub commands: Vec<String>,
    pub link: Option<String>,
    /// Ends of the attempts that died in this time, in words, oldest first.
    pub how_it_died: Vec<String>,
    /// Spans in which it waited for a usage limit or a budget.
    pub waits: Vec<Wait>,
    /// Cost of the run in this time.
    pub in_this_time: DigestCost,
    /// End of its newest life, of a run that is over or stands still.
    pub still_since: Option<Time>,
    /// Last text of its model.
    pub last_words: Option<String>,
    /// Last lines that its newest attempt printed.
    pub last_output: Vec<String>,
    pub branch: Option<String>,
    /// Commits in its directory in this time while it ran, newest first.
    pub commits: Vec<String>,
    /// Files that these commits changed.
    pub files: Vec<String>,
}
