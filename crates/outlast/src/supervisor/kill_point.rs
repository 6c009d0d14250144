//! `--kill-at`: people test their own recovery with it.

use outlast_core::words::id::Seq;
use outlast_server::door::Seen;

use crate::cli::values::KillAt;

/// Where the agent is to be killed once.
#[derive(Clone, Copy, Debug)]
pub struct KillPoint {
    pub at: KillAt,
    /// New calls so far.
    pub calls: u64,
    armed: Option<Seq>,
}

impl KillPoint {
    pub fn new(at: KillAt) -> KillPoint {
        KillPoint { at, calls: 0, armed: None }
    }

    /// Whether this is the moment.
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
