//! Attempts: one life of the agent in a slot of its run.

use serde::{Deserialize, Serialize};

use crate::words::{AttemptNo, Fence, InstanceNo, Micros, Outage, RunNo, Seq, Slot, is_default};

/// End of an agent's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Whether the kernel reported that it killed the process because memory ran out.
    pub oom: bool,
    /// Whether the agent died together with its driver, so that nobody saw an exit status.
    pub lost: bool,
    /// Whether the agent was asked to end, or its run was halted. The end then never counts as a death.
    pub stopped: bool,
    /// Whether the agent ended at the provider's usage limit. The run then sleeps; this is no death.
    pub at_limit: bool,
    /// Whether the agent ended while its calls waited for a budget above its run's own. This is no death, and
    /// no other attempt begins before there is room.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub for_room: bool,
    /// Outage of the provider during which the agent ended; `None` if there was none. An agent that ended by itself then
    /// died no death; one that was lost with its driver did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
    /// Whether an HTTP caller with another label began the next attempt in this one's place. Nobody saw whether or how
    /// the agent ended: this is no death.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub relieved: bool,
    /// Number of requests of the attempt that passed unread on opened hosts.
    #[serde(skip_serializing_if = "is_default")]
    pub unread: i64,
    /// Code and message with which the proxy itself refused the attempt's last call; `None` if it let that call through,
    /// none came, or the agent did without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Reason for which a program left its run unfinished, in its own words; `None` if it told none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Returns the number of requests that passed unread on opened hosts, over the ended ones of `attempts`.
pub fn unread(attempts: &[Attempt]) -> i64 {
    attempts.iter().filter_map(|attempt| attempt.exit.as_ref()).map(|exit| exit.unread).sum()
}

/// One attempt of a run. An attempt that an HTTP header began (labelled or implicit) has no instance and no fence: a
/// server's death does not end it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub run: RunNo,
    pub no: AttemptNo,
    pub slot: Slot,
    pub label: Option<String>,
    pub instance: Option<InstanceNo>,
    pub fence: Option<Fence>,
    /// Iteration of the run's loop: a deliberate fresh turn, whose scope replays nothing older.
    pub iteration: i64,
    pub started_at: Micros,
    /// Time of the end; time of the last heartbeat if the attempt died with its driver; `None` while it is open.
    pub ended_at: Option<Micros>,
    pub exit: Option<Exit>,
    /// Milliseconds the attempt was open, suspends not counted, as posted so far.
    pub active_ms: i64,
    /// Number of recorded answers of ended attempts that this attempt has not taken yet.
    pub untaken: i64,
    /// Number of these answers that connections of each process are receiving now. Those of a dead process count as untaken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receiving: Vec<(InstanceNo, i64)>,
    /// First new call that the attempt made while `untaken` was not zero; `None` if it made none.
    pub diverged: Option<Seq>,
    /// Number of recorded answers that the attempt had not taken when it made the call in [`Attempt::diverged`].
    pub diverged_untaken: i64,
    /// Run's count of closed entries when this attempt began: progress, for the crash-loop rule.
    pub closed_before: i64,
}

impl Attempt {
    pub fn is_open(&self) -> bool {
        self.ended_at.is_none()
    }

    /// Adds `by` to the number of recorded answers that connections of a process are receiving.
    pub fn receives(&mut self, instance: InstanceNo, by: i64) {
        match self.receiving.iter_mut().find(|(no, _)| *no == instance) {
            Some((_, count)) => *count += by,
            None => self.receiving.push((instance, by)),
        }
        self.receiving.retain(|(_, count)| *count > 0);
    }

    /// Returns whether the attempt ended by a death, rather than by a clean exit or a stop. One that was lost with its
    /// driver is a death whatever its provider did. A command that was not found (127), or that cannot be executed (126), never lived.
    pub fn died(&self) -> bool {
        self.exit.as_ref().is_some_and(|e| {
            !e.stopped
                && !e.at_limit
                && !e.for_room
                && (e.lost
                    || e.outage.is_none()
                        && (e.oom
                            || e.signal.is_some()
                            || e.code.is_some_and(|c| !matches!(c, 0 | 126 | 127))))
        })
    }

    /// Returns whether the attempt's end counts as a restart of the next one: a death does, unless its provider answered no
    /// call then.
    pub fn costs_restart(&self) -> bool {
        self.died() && self.exit.as_ref().is_some_and(|e| e.outage.is_none())
    }
}
