//! The call machine: pure state machines for an LLM request.
//!
//! An [`Exchange`] is the upstream's side of one entry that this process opened, a [`Connection`]
//! one client's request. Both take events and return actions. The [`Desk`] holds the machines of a
//! process and the registries that they share; its host (the proxy, the simulator) reports events and
//! carries out actions. [`Membership`] tracks a process's instance, its heartbeat and its verdicts on
//! others. Nothing here waits, sends or reads a clock.
//!
//! The two rules of visibility, in one place: a client sees nothing of a JSON answer, not even its status,
//! until it is settled; of a stream it sees everything before the first frame that says the stream stops,
//! and the rest once it is settled.

pub mod busy_waiting;
pub mod connection;
pub mod desk;
pub mod exchange;
pub mod membership;
pub mod outages;
pub mod patience;
pub mod plan;
pub mod quiet;
pub mod rate;
pub mod rates;
pub mod refused;
pub mod shares;
pub mod taken;
pub mod throttle;
pub mod unrecorded;
pub mod waiters;

pub use connection::Connection;
pub use desk::Desk;
pub use exchange::Exchange;
pub use membership::Membership;
pub use outages::Outages;
pub use patience::{FailedTry, Patience};
pub use quiet::Quiet;
pub use rate::{Levels, Rate};
pub use refused::{Broken, Refused};
pub use taken::{RequestKey, Taken};
pub use waiters::Waiters;

use crate::words::{RunNo, Seq};

/// Key of an exchange: the run and the number of its entry.
pub type Key = (RunNo, Seq);

/// Number of a client's connection in its process. Never used again in that process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Part of an answer that clients may see. Only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Visible {
    /// The client may have received nothing, not even the status line.
    #[default]
    Nothing,
    /// The head and this many frames, counted as the host fed them, swallowed frames included.
    Frames(usize),
    /// The client may have received the status line, the headers and the complete body.
    Whole,
}
