//! One life of the agent in a slot of its run.

use serde::{Deserialize, Serialize};

use crate::words::id::{AttemptNo, Fence, InstanceNo, Micros, RunNo, Seq, Slot};

/// How an agent's process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Killed for its memory, where the kernel told.
    pub oom: bool,
    /// It died together with whatever drove it: nobody saw an exit status.
    pub lost: bool,
    /// It was asked to end, or its run was halted: that is no death, however it ended.
    pub stopped: bool,
    /// It ended at the provider's usage limit: the run sleeps until that is over, and it is no death.
    pub at_limit: bool,
    /// It ended while its calls waited for a budget above its run's own: no other begins before there is room, and
    /// it is no death.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub for_room: bool,
}

/// One attempt. Header attempts (labelled or implicit) have no instance and no fence: a server's
/// death does not end them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub run: RunNo,
    pub no: AttemptNo,
    pub slot: Slot,
    pub label: Option<String>,
    pub instance: Option<InstanceNo>,
    pub fence: Option<Fence>,
    /// The iteration of the run's loop: a deliberate fresh turn, whose scope replays nothing older.
    pub iteration: i64,
    pub started_at: Micros,
    /// At the last heartbeat, if it died with its driver.
    pub ended_at: Option<Micros>,
    pub exit: Option<Exit>,
    /// Milliseconds it was open, suspends not counted, as posted so far.
    pub active_ms: i64,
    /// Answers of ended attempts that this one has not taken yet.
    pub untaken: i64,
    /// The first new call made while `untaken` was not zero.
    pub diverged: Option<Seq>,
    /// How many were untaken then, and what they had cost.
    pub diverged_untaken: i64,
    /// The run's count of closed entries when this attempt began: progress, for the crash-loop rule.
    pub closed_before: i64,
}

impl Attempt {
    pub fn is_open(&self) -> bool {
        self.ended_at.is_none()
    }

    /// Whether it ended by a death rather than by a clean exit or a stop: what counts as a restart's cause.
    pub fn died(&self) -> bool {
        self.exit.as_ref().is_some_and(|e| {
            !e.stopped
                && !e.at_limit
                && !e.for_room
                && (e.lost || e.oom || e.signal.is_some() || e.code.is_some_and(|c| c != 0))
        })
    }
}
