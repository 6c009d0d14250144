//! A run: one agent's task, and what belongs to it rather than to a process.

pub mod attempt;
pub mod instance;
pub mod looping;
pub mod masks;
pub mod origin;
pub mod rules;
pub mod snapshot;
pub mod status;
pub mod token;

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    engine::state::transaction::Conflicts,
    envelope::{Refusal, unit::Limits},
    journal::{approval::Awaited, job::Job},
    run::{
        looping::{Looping, Turns},
        masks::Masks,
        origin::Origin,
        rules::Rules,
        status::Status,
    },
    words::id::{AttemptNo, BudgetNo, EnvelopeNo, Fence, Micros, RunId, RunNo, Seq},
};

/// What becomes of a call whose outcome is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InDoubt {
    /// Charged at its reservation until its retry settles, then at the retry's cost.
    #[default]
    AsRetry,
    /// Charged at its reservation for ever.
    Keep,
    /// Not charged: the user bears what the provider bills.
    Refund,
}

/// How calls are admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// A limit is never passed: each call reserves its bound.
    #[default]
    Strict,
    /// While spent is below the limit; one call's excess per concurrent call is accepted.
    Observe,
}

/// What a new call does while recorded answers of ended attempts are still untaken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDivergence {
    #[default]
    Live,
    Halt,
}

/// What of a call's bodies is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    #[default]
    All,
    /// Prompts stay off the disk.
    Answers,
    /// Only digests: nothing can be replayed after a restart.
    Digests,
}

/// A model without a known price, under a limit in usd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unpriced {
    #[default]
    Deny,
    Free,
}

/// The rules a run keeps for its whole life. They are not the agent's to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    pub in_doubt: InDoubt,
    pub admission: Admission,
    pub on_divergence: OnDivergence,
    pub record: Record,
    pub unpriced: Unpriced,
    /// `wall_ms` stands still while an approval is pending.
    pub pause_wall: bool,
}

/// What `outlast resume` needs to start the command again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Command {
    pub argv: Vec<String>,
    pub directory: String,
    pub umask: u32,
    /// PATH, HOME and the variables named with `--env`.
    pub env: BTreeMap<String, String>,
    /// Whether stdin was not a terminal, and is kept as the run's payload.
    pub stdin_kept: bool,
    /// Where the task's context is mirrored, absolute, if not in the run's own directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_file: Option<String>,
    /// The adapter that was asked for; without one, the command's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Set where it is run again and again: each clean exit is an iteration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looping: Option<Looping>,
    /// At a usage limit the agent is stopped, and does not wait by itself.
    pub stop_at_limit: bool,
    #[serde(skip_serializing_if = "Supervision::is_usual")]
    pub supervision: Supervision,
}

/// How the processes of a command are held, at each of its starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Supervision {
    /// What it prints is not kept: it gets the supervisor's own output.
    pub no_logs: bool,
    pub pty: Pty,
    /// How long what the agent leaves behind may go on after its end. 0: it is ended at once.
    pub orphans_wait_ms: i64,
    /// Names of programs that are left alone, with all below them.
    pub keep: Vec<String>,
    /// The memory of all its processes together, or, by `memory_by_rlimit`, the address space of each.
    pub memory_bytes: Option<u64>,
    pub memory_by_rlimit: bool,
    /// Of one processor: 150 is one and a half.
    pub cpu_percent: Option<u32>,
}

impl Supervision {
    pub fn is_usual(&self) -> bool {
        *self == Supervision::default()
    }
}

/// When a command gets a terminal of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pty {
    /// When it is started from one.
    #[default]
    Auto,
    Always,
    Never,
}

/// What was said of a run when it was created: read by people and by the supervisor, not by calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    pub name: Option<String>,
    pub tags: BTreeMap<String, String>,
    pub command: Option<Command>,
    /// The base URLs that were set when the run began: `openai` → `https://…`.
    pub upstreams: BTreeMap<String, String>,
    /// The variables of the provider keys that were there when the run began, by name: its resumption needs
    /// them again. Their values are nowhere in the store.
    pub keys: Vec<String>,
    /// The limits as they were first asked for, where asking for others later is to be noticed: a person may
    /// have raised the run's own since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The prices it began with, for all its life. Absent in runs that have no command.
    pub prices: Option<Prices>,
    /// What does not count when its requests are compared, for all its life. Absent: all counts, or, in a child run, what
    /// its parent says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masks: Option<Masks>,
    /// The name of the batch job that the run is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Where its state is served over gRPC, beside its proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<Grpc>,
    /// What its policy says of tools: it keeps what it was created with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Rules>,
}

/// A service of a run's state over gRPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grpc {
    /// `address:port`, as it was typed.
    pub address: String,
    /// What decides between transactions that overlap.
    #[serde(default)]
    pub conflicts: Conflicts,
}

impl Spec {
    /// What the run's loop was asked to be, where it is one.
    pub fn looping(&self) -> Option<&Looping> {
        self.command.as_ref()?.looping.as_ref()
    }
}

/// The price table of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prices {
    /// Of the whole table, the built-in part included.
    pub hash: String,
    /// What lies on top of the built-in part.
    pub file: Option<PriceFile>,
}

/// A user's price file, as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriceFile {
    pub path: String,
    pub text: String,
}

/// A run's row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub no: RunNo,
    pub id: RunId,
    pub status: Status,
    /// Why it is halted; or for which budget it waits.
    pub halt: Option<Refusal>,
    /// Why it failed or was cancelled.
    pub error: Option<String>,
    pub parent: Option<RunNo>,
    /// Whose journals it shares, nearest first: of a fork.
    pub origins: Arc<[Origin]>,
    /// The envelopes its calls are admitted against: its own first, then every ancestor's.
    pub charges: Arc<[EnvelopeNo]>,
    /// The named budgets that its tags, or an ancestor's, bring with them.
    pub budgets: Arc<[BudgetNo]>,
    pub policy: Policy,
    pub created_at: Micros,
    /// Of its first attempt: `wall_ms` counts from here.
    pub began_at: Option<Micros>,
    pub ended_at: Option<Micros>,
    pub next_seq: Seq,
    pub next_attempt: AttemptNo,
    pub fence: Fence,
    pub iteration: i64,
    /// It has registered loops or steps of its own: its calls are not counted as loops.
    pub explicit_loops: bool,
    /// `done` answers of the current iteration.
    pub answers: i64,
    /// Entries closed so far: progress.
    pub closed: i64,
    /// A person asked it to stop. Stays set while it is interrupted by that: `resume --all` leaves it alone.
    pub stop_requested: bool,
    /// Answers that were replayed, and what they had cost: money not paid again.
    pub replayed: i64,
    pub saved_nano_usd: i64,
    /// Names the command and directory, so that typing the command again finds the run.
    pub command_key: Option<String>,
    /// Set where the run is a batch job: its items' counts.
    pub job: Option<Box<Job>>,
    /// Set where the run is a loop: how far it is.
    pub turns: Option<Box<Turns>>,
    /// While it sleeps: until when.
    pub wake_at: Option<Micros>,
    /// Set once a person was asked for something.
    pub approvals: Option<Box<Awaited>>,
}

impl Run {
    /// The run's own envelope.
    pub fn envelope(&self) -> EnvelopeNo {
        self.charges[0]
    }

    /// How much of `wall_ms` has passed: since it began, downtime included, but for what its policy leaves out.
    pub fn wall_ms(&self, now: Micros) -> i64 {
        let since = self.began_at.map_or(0, |t| now.ms_since(t));
        let waited =
            self.approvals.as_ref().filter(|_| self.policy.pause_wall).map_or(0, |a| a.waited_ms(now));
        (since - waited).max(0)
    }

    /// Whether an approval is pending.
    pub fn awaits_a_person(&self, now: Micros) -> bool {
        self.approvals.as_ref().is_some_and(|a| a.pending(now) > 0)
    }
}
