//! Watching an agent, and typing to it, from another process than its supervisor.
//!
//! The supervisor has a [`stage::Stage`]: what the agent prints goes to every client on it, keys come back.
//! Clients are `outlast attach RUN`, through a socket in the run's own directory, and the `outlast run` that a
//! person typed on a terminal, whose supervisor runs behind it in a session of its own: so that the terminal
//! can go and the run stay.

pub mod client;
pub mod frame;
pub mod keys;
pub mod listen;
pub mod screen;
pub mod stage;
