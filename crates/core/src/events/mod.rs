//! Events: what happened to runs, attempts, approvals and budgets, as whoever is told of it reads it.
//!
//! Events are rows, written in the commit of what they tell. They are derived from the rows of each decision, before and
//! after it (see `derive`), so that no verb has to know of them. Ordinary calls and steps make no event.

pub mod delivery;
mod derive;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use derive::Before;

use crate::{
    named,
    words::{Micros, RunNo, Seq},
};

named! {
    /// Kind of an event. It is stored under its name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Kind {
        /// A run was created.
        RunCreated "run_created",
        /// A run was removed with its journal.
        RunRemoved "run_removed",
        /// A run's status changed: `from`, `to`, and why.
        Status "status",
        /// An attempt began.
        AttemptBegan "attempt_began",
        /// An attempt ended: `died` tells whether by a death.
        AttemptEnded "attempt_ended",
        /// A restarted agent asked something new while recorded answers were untaken.
        Diverged "diverged",
        /// A person is asked for an approval.
        ApprovalAsked "approval_asked",
        /// An approval was decided, or blocked by the run's policy.
        ApprovalDecided "approval_decided",
        /// A budget crossed 50, 80 or 100 percent of a limit.
        Budget "budget",
        /// More was billed for a call than it held.
        Overrun "overrun",
        /// The outcome of a call or step became unknown.
        Doubt "doubt",
        /// A run waits for its provider, or the cause of the outage that it waits through is another one now.
        OutageBegan "outage_began",
        /// The provider that a run waited for answers again.
        OutageEnded "outage_ended",
    }
}

/// Position of an event in the order in which a store returns events. No event is ever committed before one that was seen.
///
/// Numbers are in the order of commits. The transaction, which comes first, is the same for all events; only those that a
/// PostgreSQL store had before format 5 have smaller ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mark {
    pub transaction: i64,
    pub no: i64,
}

/// Event that a decision adds. The store gives it its mark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub mark: Mark,
    pub at: Micros,
    /// Run that the event is about; `None` for an event of a named budget.
    pub run: Option<RunNo>,
    pub seq: Option<Seq>,
    pub kind: Kind,
    /// JSON object of the facts. Holds no prompt and no answer.
    pub about: Value,
}

/// Query for a page of events, in the order of their marks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct EventQuery {
    pub run: Option<RunNo>,
    pub after: Mark,
    pub limit: usize,
}
