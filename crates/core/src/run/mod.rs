//! A run: one agent's task, with everything that belongs to the task rather than to a process.

pub mod attempt;
pub mod awaited;
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

pub use self::{
    attempt::{Attempt, Exit},
    awaited::Awaited,
    instance::{Identity, Instance, Lease, Life},
    looping::{Looping, Turns, Verdict},
    masks::Masks,
    origin::{NOBODYS, Origin},
    status::Status,
    token::{Claims, TokenKey},
};
use crate::{
    envelope::{Ceilings, Limits, Refusal, Unit},
    journal::{Entry, Job, Kind},
    named,
    run::rules::Rules,
    state::Conflicts,
    words::{AttemptNo, BudgetNo, Digest, EnvelopeNo, Fence, Micros, OutSince, Outage, RunId, RunNo, Seq},
};

named! {
    /// Policy for the charge of a call whose outcome is unknown.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum InDoubt {
        /// The call is charged at its reservation until its retry settles, then at the retry's cost.
        #[default]
        AsRetry "as_retry",
        /// The call is charged at its reservation for ever.
        Keep "keep",
        /// The call is not charged: the user bears the provider's bill.
        Refund "refund",
    }

    /// Rule by which calls are admitted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Admission {
        /// A limit is never passed: each call reserves its bound.
        #[default]
        Strict "strict",
        /// Calls are admitted while the spent amount is below the limit; each concurrent call may exceed the limit by its
        /// own cost.
        Observe "observe",
    }

    /// Policy for a new call while recorded answers of ended attempts are still untaken.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OnDivergence {
        #[default]
        Live "live",
        Halt "halt",
    }

    /// Policy for keeping the bodies of calls.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Record {
        #[default]
        All "all",
        /// Answers are kept, and prompts stay off the disk.
        Answers "answers",
        /// Only digests are kept: nothing can be replayed after a restart.
        Digests "digests",
    }

    /// Policy for a model without a known price, under a limit in usd.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Unpriced {
        #[default]
        Deny "deny",
        Free "free",
        /// A model costs twice the dearest known one of its family. One without a known family is refused.
        Dearest "dearest",
    }

    /// Policy for an agent that waits busily: whose calls bring it nothing new, one after the other.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum NoProgress {
        /// People are told of the waiting, and no call is touched.
        #[default]
        Warn "warn",
        /// The agent's next call is held until something that it may wait for has moved, or for a part of the time that it
        /// has waited.
        Hold "hold",
        /// The run is halted after many such calls.
        Halt "halt",
    }
}

/// Rules a run keeps for its whole life. The agent cannot set them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    pub in_doubt: InDoubt,
    pub admission: Admission,
    pub on_divergence: OnDivergence,
    pub record: Record,
    pub unpriced: Unpriced,
    /// Whether `wall_ms` stands still while an approval is pending.
    pub pause_wall: bool,
    pub no_progress: NoProgress,
}

/// Command of a run, as `outlast resume` needs it to start the command again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Command {
    pub argv: Vec<String>,
    pub directory: String,
    /// Id of the commit that was checked out in the directory when the run was made; `None` if none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    pub umask: u32,
    /// Values of PATH, HOME and the variables named with `--env`.
    pub env: BTreeMap<String, String>,
    /// Names of the environment variables that the command was begun with. Their values are nowhere in the store,
    /// except those in `env`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<String>,
    /// Absolute path of a file of variables that each start reads; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_file: Option<String>,
    /// Whether stdin was not a terminal, and is kept as the run's payload.
    pub stdin_kept: bool,
    /// Absolute path of the file to which the task's context is copied; `None`: in the run's own directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_file: Option<String>,
    /// Agent adapter that the user named; `None`: the one that fits the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Settings of `--loop`, under which the command is run again and again and each clean exit is an iteration; `None`
    /// without a loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looping: Option<Looping>,
    /// Whether the supervisor stops the agent at the provider's usage limit, instead of letting it wait by itself.
    pub stop_at_limit: bool,
    #[serde(skip_serializing_if = "Supervision::is_usual")]
    pub supervision: Supervision,
}

impl Command {
    /// Returns the key by which typing the same command in the same directory finds its run again. `parent`: the run above
    /// it, so that unfinished children of another run do not match.
    pub fn key(&self, parent: Option<RunNo>) -> String {
        let mut text = self.directory.clone();
        if let Some(parent) = parent {
            text.push_str(&format!("\0\0{parent}"));
        }
        if self.looping.is_some() {
            text.push_str("\0--loop");
        }
        for word in &self.argv {
            text.push('\0');
            text.push_str(word);
        }
        Digest::of(text.as_bytes()).to_string()[..32].to_owned()
    }
}

/// Settings under which a command's processes are supervised, at each of its starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Supervision {
    /// Whether output is not kept but goes to the supervisor's own output.
    pub no_logs: bool,
    pub pty: Pty,
    /// Time that processes left behind may go on after the agent's end, in milliseconds; 0 ends them at once.
    pub orphans_wait_ms: i64,
    /// Names of programs that are left running when the agent's processes are ended, together with their descendants.
    pub keep: Vec<String>,
    /// Memory limit, in bytes, of all processes together or, with `memory_by_rlimit`, of each process's address space.
    pub memory_bytes: Option<u64>,
    pub memory_by_rlimit: bool,
    /// Processor limit in percent of one processor: 150 is one and a half.
    pub cpu_percent: Option<u32>,
    /// Confinement that keeps the agent from the store's directory; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confine: Option<Confine>,
    /// Whether the agent is set up to send the same tools and system text when it is resumed, so that the provider's
    /// cache still holds them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub warm_resume: bool,
    /// Whether the agent's own MCP servers are left as they are, unrecorded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mcp_off: bool,
    /// Program with its arguments that is told when the run halts or fails. No shell reads it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on_halt: Vec<String>,
    /// Whether its programs reach every host through its proxy, which opens the connections to providers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub intercept: bool,
    /// Hosts that the agent may reach besides those of its providers, if the run's proxy is its only way to a
    /// network; `None` if the network is not confined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net: Option<Vec<String>>,
    /// Files that are kept with the run; `None`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<KeptFiles>,
}

/// Directory of which snapshots are taken as the run goes on, and which of its files they hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptFiles {
    /// Absolute path; `None`: the directory that the run works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Whether files that `.gitignore` names are kept too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignored: bool,
    /// Patterns of files that are not kept, in the syntax of `.gitignore`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Most bytes that the files of all runs of a store may take; `None`: the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// Confinement of a run's agents: the store and the providers' keys are hidden from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confine {
    /// The agent runs as the same user in a user namespace of its own.
    Namespace,
    /// The agent runs as another user of the machine, by name.
    User(String),
}

impl Supervision {
    pub fn is_usual(&self) -> bool {
        *self == Supervision::default()
    }
}

named! {
    /// Policy for giving a command a terminal of its own.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Pty {
        /// Only if the command is started from a terminal.
        #[default]
        Auto "auto",
        Always "always",
        Never "never",
    }
}

/// Settings a run was created with: read by people and by the supervisor, not by calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    pub name: Option<String>,
    pub tags: BTreeMap<String, String>,
    pub command: Option<Command>,
    /// Base URLs that were set when the run began: `openai` → `https://…`.
    pub upstreams: BTreeMap<String, String>,
    /// Names of the provider keys' variables that were set when the run began. A resumption needs them again.
    /// Their values are nowhere in the store.
    pub keys: Vec<String>,
    /// Subscription whose login pays for the calls, which have a list price but are not billed; `None` if there is
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Ceilings on the plan of the calls' login. Child runs are under them too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Ceilings>,
    /// Limits first asked for, kept if a later request for other limits is to be noticed, else `None`. A person may
    /// have raised the run's own limits since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Prices the run began with, kept for all its life. `None` in runs that have no command.
    pub prices: Option<Prices>,
    /// Masks applied when the run's requests are compared, kept for all its life. `None`: everything counts or,
    /// in a child run, the parent's masks apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masks: Option<Masks>,
    /// Name of the batch job that the run is; `None` if it is no job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Service of the run's state over gRPC, beside its proxy; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<Grpc>,
    /// Tool rules of the run's policy, as they were when the run was created; `None` if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Rules>,
    /// Directory in which a program with the engine inside began the run, which has no command; `None`: that of the command,
    /// or none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Files that a program keeps with its run, which need not have a command; `None`: none, or those of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<KeptFiles>,
}

/// Service of a run's state over gRPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grpc {
    /// Listening address as it was typed, `address:port`.
    pub address: String,
    /// Rule by which a commit fails if transactions overlap.
    #[serde(default)]
    pub conflicts: Conflicts,
}

impl Spec {
    /// Tag by which a loop script's own run is known.
    pub const SHELL_LOOP: (&str, &str) = ("loop", "shell");

    /// Returns whether the run belongs to a loop script and is driven by the script's shell.
    pub fn is_shell_loop(&self) -> bool {
        let (tag, kind) = Spec::SHELL_LOOP;
        self.command.is_none() && self.tags.get(tag).is_some_and(|own| own == kind)
    }

    /// Returns the directory in which the run was begun; `None` if none is known.
    pub fn begun_in(&self) -> Option<&str> {
        self.command.as_ref().map(|command| command.directory.as_str()).or(self.directory.as_deref())
    }

    /// Changes the run's directory `from`, and paths below it, to `to`: the run works there from now on.
    pub fn go_along(&mut self, from: &str, to: &str) {
        let (command, kept) = (&mut self.command, &mut self.files);
        let kept = kept.iter_mut().chain(command.iter_mut().filter_map(|c| c.supervision.files.as_mut()));
        let paths = self.directory.iter_mut().chain(kept.filter_map(|kept| kept.directory.as_mut()));
        for path in paths {
            go_along(path, from, to);
        }
        if let Some(command) = command {
            let input = command.looping.iter_mut().filter_map(|looping| looping.input.as_mut());
            let paths = [&mut command.directory].into_iter().chain(&mut command.env_file);
            paths.chain(&mut command.state_file).chain(input).for_each(|path| go_along(path, from, to));
        }
    }

    /// Returns the run's loop settings; `None` if the run is no loop.
    pub fn looping(&self) -> Option<&Looping> {
        self.command.as_ref()?.looping.as_ref()
    }
}

fn go_along(path: &mut String, from: &str, to: &str) {
    if let Some(rest) = path.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        *path = format!("{to}{rest}");
    }
}

/// Price table of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prices {
    /// Hash of the whole table, the built-in part included.
    pub hash: String,
    /// User's price file, which replaces prices of the built-in part; `None` if there was none.
    pub file: Option<PriceFile>,
}

/// User's price file, as it was when the run began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriceFile {
    pub path: String,
    pub text: String,
}

/// Row of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub no: RunNo,
    pub id: RunId,
    pub status: Status,
    /// Refusal that halted the run, or that names the budget or the provider that the run waits for; `None` if there is
    /// none.
    pub halt: Option<Refusal>,
    /// Reason why the run failed or was cancelled, or why its program left it; `None` if it goes on.
    pub error: Option<String>,
    pub parent: Option<RunNo>,
    /// Runs whose journals this fork shares, nearest first. Empty unless the run is a fork.
    pub origins: Arc<[Origin]>,
    /// Envelopes the run's calls are admitted against: its own first, then every ancestor's.
    pub charges: Arc<[EnvelopeNo]>,
    /// Named budgets brought in by the run's own tags or by an ancestor's.
    pub budgets: Arc<[BudgetNo]>,
    pub policy: Policy,
    pub created_at: Micros,
    /// Time at which the first attempt began, from which `wall_ms` counts; `None` before. If the clock is set,
    /// this time is moved with it.
    pub began_at: Option<Micros>,
    pub ended_at: Option<Micros>,
    pub next_seq: Seq,
    pub next_attempt: AttemptNo,
    pub fence: Fence,
    pub iteration: i64,
    /// Whether the run registers loops or steps of its own. Its calls are then not counted as loops.
    pub explicit_loops: bool,
    /// Number of `done` answers of the current iteration.
    pub answers: i64,
    /// Number of entries closed so far: progress.
    pub closed: i64,
    /// Whether a person asked the run to stop. Stays set while the run is interrupted by that stop:
    /// `outlast resume --all` then leaves the run alone.
    pub stop_requested: bool,
    /// Number of recorded answers that were replayed.
    pub replayed: i64,
    /// Cost of the replayed answers: money not paid again.
    pub saved_nano_usd: i64,
    /// Key of the command and directory, by which the same command typed again finds the run; `None` if the
    /// run is not to be found by its command.
    pub command_key: Option<String>,
    /// Name and item counts of a batch job; `None` if the run is no job.
    pub job: Option<Box<Job>>,
    /// Progress of the run's loop; `None` if the run is no loop.
    pub turns: Option<Box<Turns>>,
    /// Time at which a sleeping run wakes; `None` if it does not sleep.
    pub wake_at: Option<Micros>,
    /// Approvals that the run waits for; `None` until the first is requested.
    pub approvals: Option<Box<Awaited>>,
    #[serde(default)]
    pub own: Own,
}

/// Sums of a run's own calls, without those of its children and forks, which its envelope counts too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    pub cost_nano_usd: i64,
    pub tokens: i64,
    pub calls: i64,
    /// Number of `calls` that failed and cost nothing.
    pub unpaid_calls: i64,
    /// Amount that stays reserved for calls whose outcome is unknown.
    pub doubt_nano_usd: i64,
    /// Number of `calls` whose charge is an estimate: no usage came.
    #[serde(default)]
    pub estimated_calls: i64,
}

impl Own {
    /// Returns the sums of one call; those of zero for any other entry, since items and steps repeat what their calls cost.
    pub fn of(e: &Entry) -> Own {
        if e.kind != Kind::Call {
            return Own::default();
        }
        Own {
            cost_nano_usd: e.spent.cost(),
            tokens: e.spent.tokens(),
            calls: e.spent[Unit::Calls],
            unpaid_calls: i64::from(e.is_unpaid()),
            doubt_nano_usd: if e.is_lost() { e.held.cost() } else { 0 },
            estimated_calls: i64::from(e.call.as_ref().is_some_and(|call| call.estimated)),
        }
    }

    /// Returns the sums of a run's entries.
    pub fn sum(entries: &[Entry]) -> Own {
        let mut sum = Own::default();
        entries.iter().for_each(|e| sum.replace(&Own::default(), &Own::of(e)));
        sum
    }

    /// Puts `after` in the place of `before`.
    pub fn replace(&mut self, before: &Own, after: &Own) {
        self.cost_nano_usd += after.cost_nano_usd - before.cost_nano_usd;
        self.tokens += after.tokens - before.tokens;
        self.calls += after.calls - before.calls;
        self.unpaid_calls += after.unpaid_calls - before.unpaid_calls;
        self.doubt_nano_usd += after.doubt_nano_usd - before.doubt_nano_usd;
        self.estimated_calls += after.estimated_calls - before.estimated_calls;
    }

    /// Returns the number of calls that were paid or may be: those in doubt are among them.
    pub fn paid_calls(&self) -> i64 {
        self.calls - self.unpaid_calls
    }
}

impl Run {
    /// Returns the run's own envelope.
    pub fn envelope(&self) -> EnvelopeNo {
        self.charges[0]
    }

    /// Returns how much of `wall_ms` has passed since the run began, downtime included, without what the policy
    /// leaves out.
    pub fn wall_ms(&self, now: Micros) -> i64 {
        let since = self.began_at.map_or(0, |t| now.ms_since(t));
        let waited =
            self.approvals.as_ref().filter(|_| self.policy.pause_wall).map_or(0, |a| a.waited_ms(now));
        (since - waited).max(0)
    }

    /// Moves the run's times by `us` microseconds after the clock was set by as much, so that `wall_ms` stays.
    pub fn move_times(&mut self, us: i64) {
        self.began_at = self.began_at.map(|at| Micros(at.0.saturating_add(us)));
        if let Some(awaited) = &mut self.approvals {
            awaited.move_start(us);
        }
    }

    /// Returns why the run is halted, waits, failed or was left.
    pub fn why(&self) -> Option<String> {
        self.halt.as_ref().map(|halt| halt.message()).or_else(|| self.error.clone())
    }

    /// Returns whether the run has left this store in a bundle.
    pub fn is_moved(&self) -> bool {
        self.status == Status::Halted && self.halt.as_ref().is_some_and(|halt| halt.moved.is_some())
    }

    /// Returns since when nothing more can happen to the run in this store: it ended, or was moved; `None`: it can go on.
    pub fn over_since(&self) -> Option<Micros> {
        match &self.halt {
            Some(halt) if self.is_moved() => Some(halt.at),
            _ => self.ended_at.filter(|_| self.status.is_ended()),
        }
    }

    /// Returns the outage of the provider that the run waits for, or waited for when its process died, and since when;
    /// `None` if it does not wait for one.
    pub fn awaited_outage(&self) -> Option<(&Outage, OutSince)> {
        let waits = matches!(self.status, Status::Waiting | Status::Interrupted);
        let refusal = self.halt.as_ref().filter(|_| waits)?;
        let kept = refusal.outage.as_deref()?;
        let since = OutSince { began: refusal.at, cause: kept.cause_at.unwrap_or(refusal.at) };
        Some((&kept.outage, since))
    }

    /// Returns whether an approval is pending.
    pub fn awaits_a_person(&self, now: Micros) -> bool {
        self.approvals.as_ref().is_some_and(|a| a.pending(now) > 0)
    }
}
