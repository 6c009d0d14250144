//! Watching an agent, and typing to it, from a process other than its supervisor.
//!
//! The supervisor has a [`stage::Stage`]: the agent's output goes to every client on it, and keys come back.
//! Clients are `outlast attach RUN`, through a socket in the run's own directory, and the `outlast run` that a
//! person typed on a terminal. The supervisor of the latter runs behind it in a session of its own, so that the
//! run outlives the terminal.

pub mod client;
pub mod frame;
pub mod screen;
pub mod stage;
