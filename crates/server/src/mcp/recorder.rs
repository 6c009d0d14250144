//! Recorders of tool calls as `front` sees them: who knows the settings and the ledger starts them.

use std::sync::Arc;

use outlast_core::words::{AttemptNo, RunNo, Slot};
use tokio::sync::mpsc;

pub use crate::wire::socket::Mark;

/// Line that a recorder sends to its client.
pub struct OutgoingLine {
    pub line: Vec<u8>,
    /// Deed that is due once the client has the line. Dropped if the client goes first.
    pub mark: Option<Mark>,
}

/// Attempt in whose name tool calls are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub run: RunNo,
    pub attempt: AttemptNo,
    pub slot: Slot,
    pub scope: Arc<str>,
}

/// Recorders of the MCP servers that this process offers, by server name.
pub trait Recorders: Send + Sync {
    /// Returns whether requests to this server may come without a session; `None` if no server has this name.
    fn stands_alone(&self, name: &str) -> Option<bool>;

    /// Starts a recorder for the server `name`. The client's lines go to the sender that is returned, and
    /// dropping that sender ends the recorder. The recorder sends its own lines to `told`, and drops `told`
    /// when it ends.
    fn start(
        &self,
        name: &str,
        caller: Caller,
        told: mpsc::UnboundedSender<OutgoingLine>,
    ) -> Option<mpsc::UnboundedSender<Vec<u8>>>;
}
