//! The call machine: what happens to an LLM request, as pure state machines.
//!
//! An [`Exchange`] is the upstream's side of one entry that this process opened, a [`Connection`]
//! one client's request. Both take events and return actions; the host (the proxy, the simulator)
//! carries them out in the order given, keeps the bytes, and holds one lock around the machines
//! and the two registries, [`Taken`] and [`Waiters`]. An event that an action causes for another
//! machine (`Turn`, `MayRetry`) is fed after the list of actions is through. Nothing here waits,
//! sends or looks at a clock.
//!
//! A store that answered an admission with `CommitUnknown` may hold an open entry that no machine
//! knows. Before its handle is used again the host registers anew and declares its old instance
//! left (`DeclareDead { left: true }`): what that one had open becomes `unknown`, and what its
//! exchanges still bring is settled under the old instance, as the truth.
//!
//! What the two rules of visibility come to, in one place:
//! of a JSON answer a client sees nothing, its status included, until it is settled; of a stream
//! it sees all before the first frame that says it stops, and the rest once it is settled.

pub mod connection;
pub mod exchange;
pub mod patience;
pub mod rate;
pub mod refused;
pub mod taken;
pub mod waiters;

pub use connection::Connection;
pub use exchange::Exchange;
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
