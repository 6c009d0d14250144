//! Give back: takes note that a connection ended before it had its answer whole.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::taking,
    },
    words::id::{AttemptNo, InstanceNo, Micros, RunNo, Seq},
};

/// Notes that a connection no longer receives the answer of an entry, so that a request at another process may have it.
///
/// Idempotent: changes nothing once another connection has the answer. Where it is lost, the answer stays taken for other
/// processes until this one ends.
#[derive(Clone, Debug)]
pub struct GiveBack {
    pub run: RunNo,
    pub seq: Seq,
    pub attempt: AttemptNo,
    /// Instance under which the answer was taken.
    pub instance: InstanceNo,
    pub connection: u64,
}

impl GiveBack {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::Attempt(self.run, self.attempt), Need::Entry(self.run, self.seq)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        taking::give_back(l, self.run, self.seq, |t| {
            (t.attempt, t.instance, t.connection) == (self.attempt, self.instance, self.connection)
        });
        Ok(())
    }
}
