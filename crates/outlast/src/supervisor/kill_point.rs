//! `--kill-at`: kills the agent at a chosen point, so that users can test their own recovery.

use outlast_core::words::id::Seq;
use outlast_server::door::Seen;

use crate::cli::values::KillAt;

/// Point at which the agent is killed, once.
#[derive(Clone, Copy, Debug)]
pub struct KillPoint {
    pub at: KillAt,
    /// Number of new calls that the agent has made so far.
    pub calls: u64,
    armed: Option<Seq>,
}

impl KillPoint {
    pub fn new(at: KillAt) -> KillPoint {
        KillPoint { at, calls: 0, armed: None }
    }

    /// Returns whether the agent is to be killed at the event `seen` of the proxy.
    pub fn is_now(&mut self, seen: &Seen) -> bool {
        match seen {
            Seen::Opened { seq } => {
                self.calls += 1;
                if self.calls == self.at.call {
                    self.armed = Some(*seq);
                    return !self.at.mid;
                }
                false
            }
            Seen::Streaming { seq } => self.at.mid && self.armed == Some(*seq),
            _ => false,
        }
    }
}
