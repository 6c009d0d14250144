//! The call machine: what happens to an LLM request, as pure state machines.
//!
//! An [`Exchange`] is the upstream's side of one entry that this process opened, a [`Connection`]
//! one client's request. Both take events and return actions. The [`Desk`] holds the machines of a
//! process and the registries that they share; its host (the proxy, the simulator) reports what
//! happens and does what needs the world. A process's standing on its store, its heartbeat and its
//! verdicts on others, is its [`Membership`]. Nothing here waits, sends or looks at a clock.
//!
//! What the two rules of visibility come to, in one place:
//! of a JSON answer a client sees nothing, its status included, until it is settled; of a stream
//! it sees all before the first frame that says it stops, and the rest once it is settled.

pub mod connection;
pub mod desk;
pub mod exchange;
pub mod marks;
pub mod membership;
pub mod patience;
pub mod rate;
pub mod rates;
pub mod refused;
pub mod taken;
pub mod unrecorded;
pub mod waiters;

pub use connection::Connection;
pub use desk::Desk;
pub use exchange::Exchange;
pub use membership::Membership;
pub use patience::{Patience, Told};
pub use refused::{Broken, Refused};
pub use taken::Taken;
pub use waiters::Waiters;

/// A client's connection, as its process numbers them. Never used again in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// How much of an answer clients may see. Only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Visible {
    /// Not even the status.
    #[default]
    Nothing,
    /// The head and the first so many frames, counted as the host fed them: swallowed ones too.
    Frames(usize),
    /// The head and everything.
    Whole,
}
