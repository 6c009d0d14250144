//! Errors of the engine. An operation that fails with one wrote nothing.

use crate::{state::Owner, words::InstanceNo};

/// Errors of the engine. A refusal by a limit is not an error but a recorded outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unknown run: {id}")]
    UnknownRun { id: String },
    #[error("run {id} exists already")]
    RunExists { id: String },
    #[error("run {id} cannot be carried to another store: {why}")]
    NotWhole { id: String, why: String },
    #[error("another run of this command has begun meanwhile, number {newest}")]
    NewerRun { newest: i64 },
    #[error("run {id} is held by {holder}")]
    RunHeld { id: String, holder: String, instance: InstanceNo },
    #[error("run {id} is {status}: nothing more can be opened in it")]
    RunEnded { id: String, status: &'static str },
    #[error("run {id} is halted: {why}")]
    RunHalted { id: String, why: String },
    #[error("run {id} is not running (it is {status}); it has to be resumed first")]
    NotRunning { id: String, status: &'static str },
    #[error("the lease of run {id} is lost: this is attempt {attempt}, and it is over")]
    LeaseLost { id: String, attempt: i64 },
    #[error("attempt label {label:?} of run {id} has ended; a new attempt needs a new label")]
    LabelEnded { id: String, label: String },
    #[error("this process was declared dead; it has to register anew")]
    InstanceDead,
    #[error("the heartbeat moved from {seen} to {now}: the instance lives")]
    HeartbeatMoved { seen: i64, now: i64 },
    #[error("no entry {seq} in run {id}")]
    UnknownEntry { id: String, seq: i64 },
    #[error("entry {seq} is settled already: {state}")]
    AlreadySettled { seq: i64, state: &'static str },
    #[error("entry {seq} was taken over by another process")]
    AlreadyTaken { seq: i64 },
    #[error("entry {seq} is not open in this attempt: nothing can be done within it")]
    NotWithin { seq: i64 },
    #[error("step {seq} was begun without retries: it has one try")]
    NoRetries { seq: i64 },
    #[error("no step {key:?} in run {id}")]
    UnknownStep { id: String, key: String },
    #[error(
        "step {key:?} of run {id} is not in doubt: it is not declared at_most_once, and runs again by itself"
    )]
    NotInDoubt { id: String, key: String },
    #[error("step {key:?} of run {id} is running")]
    StepRunning { id: String, key: String },
    #[error("tool call {seq} of run {id} is being made")]
    ToolRunning { id: String, seq: i64 },
    #[error(
        "tool call {seq} of run {id} is not in doubt: it was never sent, and is sent when it is asked for again"
    )]
    ToolNotInDoubt { id: String, seq: i64 },
    #[error("no item {key:?} in job {id}")]
    UnknownItem { id: String, key: String },
    #[error("item {key:?} of job {id} is running")]
    ItemRunning { id: String, key: String },
    #[error("run {id} is no batch job")]
    NotAJob { id: String },
    #[error("run {id} has no snapshot {name:?}")]
    UnknownSnapshot { id: String, name: String },
    #[error("run {id} has no attempt {attempt}")]
    UnknownAttempt { id: String, attempt: i64 },
    #[error("a snapshot's name is 1 to 64 of A-Z a-z 0-9 . _ -, had {name:?}")]
    BadSnapshot { name: String },
    #[error(
        "expected version {expected} of key {key:?} of agent {agent:?} in namespace {namespace:?}, and it is {actual}"
    )]
    Conflict { namespace: String, agent: String, key: String, expected: i64, actual: i64 },
    #[error(
        "key {key:?} of agent {agent:?} in namespace {namespace:?} has changed since the transaction began: \
             commit {commit} made it version {actual}"
    )]
    Changed { namespace: String, agent: String, key: String, actual: i64, commit: i64 },
    #[error("namespace {namespace:?} is written by {} only", Owner::of(.namespace).name())]
    ReadOnlyNamespace { namespace: String },
    #[error("what was asked of key {key:?} is gone: versions below {oldest} were removed by compaction")]
    Compacted { key: String, oldest: i64 },
    #[error("at least 1 version has to be kept, and it says {had}")]
    BadKeep { had: i64 },
    #[error("no budget {name}")]
    UnknownBudget { name: String },
    #[error("no approval {id}")]
    UnknownApproval { id: String },
    #[error("approval {id} is for other arguments: they have the digest {wanted}, and these have {had}")]
    OtherArguments { id: String, wanted: String, had: String },
    #[error("approval {id} is {status} already")]
    AlreadyDecided { id: String, status: &'static str },
    #[error("approval {id} has expired: nobody decided in time, and that is a no")]
    ApprovalExpired { id: String },
    #[error("run {id} has {most} approvals pending, and takes no more")]
    TooManyApprovals { id: String, most: usize },
    #[error("bad approval: {0}")]
    BadApproval(String),
    #[error("bad limit: {0}")]
    BadLimit(String),
    #[error("the operation did not name a need: {0}")]
    NotLoaded(&'static str),
    #[error("the decision of {op} panicked")]
    Panicked { op: &'static str },
}

crate::error_facts! {
    Error {
        Error::UnknownRun { .. } => "unknown_run" NotFound,
        Error::RunExists { .. } => "run_exists" Exists,
        Error::NotWhole { .. } => "run_not_whole" Conflict,
        Error::NewerRun { .. } => "newer_run" Conflict,
        Error::RunHeld { .. } => "run_held" Forbidden,
        Error::RunEnded { .. } => "run_ended" Forbidden,
        Error::RunHalted { .. } => "run_halted" Forbidden,
        Error::NotRunning { .. } => "not_running" Forbidden,
        Error::LeaseLost { .. } => "lease_lost" Forbidden,
        Error::LabelEnded { .. } => "label_ended" Forbidden,
        Error::InstanceDead => "instance_dead" Unavailable,
        Error::HeartbeatMoved { .. } => "heartbeat_moved" Conflict,
        Error::UnknownEntry { .. } => "unknown_entry" NotFound,
        Error::AlreadySettled { .. } => "already_settled" Conflict,
        Error::AlreadyTaken { .. } => "already_taken" Conflict,
        Error::NotWithin { .. } => "not_within" Forbidden,
        Error::NoRetries { .. } => "no_retries" Conflict,
        Error::UnknownStep { .. } => "unknown_step" NotFound,
        Error::NotInDoubt { .. } => "not_in_doubt" Conflict,
        Error::StepRunning { .. } => "step_running" Conflict,
        Error::ToolRunning { .. } => "tool_running" Conflict,
        Error::ToolNotInDoubt { .. } => "not_in_doubt" Conflict,
        Error::UnknownItem { .. } => "unknown_item" NotFound,
        Error::ItemRunning { .. } => "item_running" Conflict,
        Error::NotAJob { .. } => "not_a_job" Conflict,
        Error::UnknownSnapshot { .. } | Error::UnknownAttempt { .. } => "unknown_snapshot" NotFound,
        Error::BadSnapshot { .. } => "bad_snapshot" Invalid,
        Error::Conflict { .. } | Error::Changed { .. } => "conflict" Conflict,
        Error::ReadOnlyNamespace { .. } => "read_only_namespace" Forbidden,
        Error::Compacted { .. } => "compacted" Gone,
        Error::BadKeep { .. } => "bad_keep" Invalid,
        Error::UnknownBudget { .. } => "unknown_budget" NotFound,
        Error::UnknownApproval { .. } => "unknown_approval" NotFound,
        Error::OtherArguments { .. } => "other_arguments" Conflict,
        Error::AlreadyDecided { .. } => "already_decided" Conflict,
        Error::ApprovalExpired { .. } => "approval_expired" Conflict,
        Error::TooManyApprovals { .. } => "too_many_approvals" TooMany,
        Error::BadApproval(_) => "bad_approval" Invalid,
        Error::BadLimit(_) => "bad_limit" Invalid,
        Error::NotLoaded(_) | Error::Panicked { .. } => "internal" Internal,
    }
}

impl Error {
    /// Returns the hint for a caller over HTTP or gRPC, which may be the agent: no hint names a person's command.
    /// `None` if there is no such hint.
    pub fn callers_hint(&self) -> Option<String> {
        match self {
            Error::RunHalted { .. }
            | Error::RunEnded { .. }
            | Error::NotRunning { .. }
            | Error::ItemRunning { .. }
            | Error::StepRunning { .. }
            | Error::ToolRunning { .. }
            | Error::UnknownStep { .. }
            | Error::UnknownSnapshot { .. } => None,
            _ => self.hint(),
        }
    }

    /// Returns the id of the run that the error is about; `None` if the error names none.
    pub fn run_id_mut(&mut self) -> Option<&mut String> {
        match self {
            Error::UnknownRun { id }
            | Error::NotWhole { id, .. }
            | Error::RunHeld { id, .. }
            | Error::RunEnded { id, .. }
            | Error::RunHalted { id, .. }
            | Error::NotRunning { id, .. }
            | Error::LeaseLost { id, .. }
            | Error::LabelEnded { id, .. }
            | Error::UnknownEntry { id, .. }
            | Error::UnknownStep { id, .. }
            | Error::NotInDoubt { id, .. }
            | Error::StepRunning { id, .. }
            | Error::ToolRunning { id, .. }
            | Error::ToolNotInDoubt { id, .. }
            | Error::UnknownItem { id, .. }
            | Error::ItemRunning { id, .. }
            | Error::NotAJob { id }
            | Error::UnknownSnapshot { id, .. }
            | Error::UnknownAttempt { id, .. }
            | Error::TooManyApprovals { id, .. } => Some(id),
            // The id itself is what is taken, whatever name the run has.
            Error::RunExists { .. }
            | Error::NewerRun { .. }
            | Error::InstanceDead
            | Error::HeartbeatMoved { .. }
            | Error::AlreadySettled { .. }
            | Error::AlreadyTaken { .. }
            | Error::NotWithin { .. }
            | Error::NoRetries { .. }
            | Error::BadSnapshot { .. }
            | Error::Conflict { .. }
            | Error::Changed { .. }
            | Error::ReadOnlyNamespace { .. }
            | Error::Compacted { .. }
            | Error::BadKeep { .. }
            | Error::UnknownBudget { .. }
            | Error::UnknownApproval { .. }
            | Error::OtherArguments { .. }
            | Error::AlreadyDecided { .. }
            | Error::ApprovalExpired { .. }
            | Error::BadApproval(_)
            | Error::BadLimit(_)
            | Error::NotLoaded(_)
            | Error::Panicked { .. } => None,
        }
    }

    /// Returns a hint for a person about what to do; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::UnknownRun { .. } => "list runs with `outlast ls`".into(),
            Error::UnknownBudget { .. } => "list budgets with `outlast budgets`".into(),
            Error::RunExists { id } => {
                format!("`outlast show {id}` tells of it; a fork is given another id with --id")
            }
            Error::UnknownItem { id, .. } => {
                format!("`outlast inspect {id}` and `outlast export {id}` show what there is")
            }
            Error::ItemRunning { id, .. } => format!("wait for it, or end it with `outlast stop {id}`"),
            Error::UnknownSnapshot { id, .. } => {
                format!(
                    "name a point with `outlast snapshot {id} NAME`; an attempt's number or a time will do, too"
                )
            }
            Error::UnknownAttempt { id, .. } => {
                format!("`outlast show {id}` lists its attempts; an entry's number is given with --at")
            }
            Error::UnknownEntry { id, .. } => format!("`outlast journal {id}` lists its entries"),
            Error::NotAJob { id } => format!(
                "`outlast jobs` lists batch jobs; `outlast export {id} --transcript` prints what was said in any run"
            ),
            Error::RunHeld { id, .. } => format!(
                "see what it does with `outlast logs {id}` or `outlast attach {id}`, or end it with `outlast stop {id}`; or \
                 begin a second one beside it: `outlast run --new --name OTHER -- CMD`"
            ),
            Error::RunEnded { .. } => "begin a new run: `outlast run --new -- CMD`".into(),
            Error::RunHalted { id, .. } => {
                format!("`outlast show {id}` says which limit; raise it with `outlast budget {id}`")
            }
            Error::NotRunning { id, .. } => format!("`outlast resume {id}`"),
            Error::UnknownStep { id, .. } => format!("`outlast resolve {id}` lists the steps in doubt"),
            Error::StepRunning { id, .. } | Error::ToolRunning { id, .. } => {
                format!("wait for it, or end it with `outlast stop {id}`")
            }
            Error::LeaseLost { .. } => "another attempt drives the run now; end this process".into(),
            Error::Conflict { .. } | Error::Changed { .. } => "read the key again and decide anew".into(),
            Error::ReadOnlyNamespace { namespace } => match Owner::of(namespace) {
                Owner::Run => "write it from within the run, or use another namespace".into(),
                Owner::Anyone | Owner::Outlast => "use another namespace".into(),
            },
            Error::UnknownApproval { .. } => "`outlast approvals --all` lists them".into(),
            Error::OtherArguments { .. } => "ask for these under a key of their own".into(),
            Error::ApprovalExpired { .. } => "let the agent ask again, under another key".into(),
            Error::TooManyApprovals { .. } => "`outlast approvals` lists what waits for a decision".into(),
            Error::NotLoaded(_) | Error::Panicked { .. } => {
                "this is a defect of Outlast; please report it".into()
            }
            _ => return None,
        })
    }
}
