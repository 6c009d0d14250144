//! Retry: records the state of a call between two tries, and before the next try leaves.

use crate::{
    engine::{
        Error,
        call::settle::{Bill, Close, Settle},
        loaded::{Loaded, Need},
        rule::guard,
    },
    journal::{Kind, State},
    words::id::{InstanceNo, Micros, RunNo, Seq},
};

/// Notes the failed tries of an open call, and whether the next try is about to leave.
///
/// The reservation stays held. `resting`: nothing is on its way; `Committed` is enough, because without the note a
/// death makes the call `unknown`. Not `resting`: the next try is about to leave; `Synced`: intent before effect.
/// Answers whether it may leave: not in a run that has ended, is halted or was stopped, and not after a time limit.
/// Authorised by the entry's own instance. Errors: `AlreadyTaken`, `AlreadySettled` (the entry was swept).
#[derive(Clone, Debug)]
pub struct Retry {
    pub run: RunNo,
    pub seq: Seq,
    pub instance: InstanceNo,
    /// All tries so far, oldest first: the upstream's status, or `None` where it was not reached.
    pub tries: Vec<Option<u16>>,
    pub resting: bool,
}

impl Retry {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::Entry(self.run, self.seq)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<bool, Error> {
        let run = l.run(self.run)?;
        let stopped = run.stop_requested;
        let id = run.id.to_string();
        let closed = guard::open_run(run).is_ok_and(|halt| halt.is_none());
        let may_leave = closed && !stopped && guard::time_over(l, self.run, 0, now)?.is_none();
        let unknown = Error::UnknownEntry { id, seq: self.seq.0 };
        let entry = l.entry(self.run, self.seq).filter(|e| e.kind == Kind::Call).ok_or(unknown.clone())?;
        if entry.instance != Some(self.instance) {
            return Err(Error::AlreadyTaken { seq: self.seq.0 });
        }
        if entry.state != State::Open {
            return Err(Error::AlreadySettled { seq: self.seq.0, state: entry.state.name() });
        }
        let call = l.entry_mut(self.run, self.seq).and_then(|e| e.call.as_mut()).ok_or(unknown)?;
        call.tries.clone_from(&self.tries);
        call.resting = self.resting || !may_leave;
        Ok(may_leave)
    }
}

/// Returns how a call closes whose tries all failed.
///
/// A refused call counts as one call without cost; a call that never reached the upstream is `void`.
pub fn close(tries: &[Option<u16>]) -> Close {
    if tries.iter().any(Option::is_some) { Close::Failed(Bill::Nothing) } else { Close::Void }
}

/// Returns whether the call rests between two tries, with nothing on its way.
pub fn is_resting(l: &Loaded, run: RunNo, seq: Seq) -> bool {
    l.entry(run, seq).and_then(|e| e.call.as_ref()).is_some_and(|c| c.resting)
}

/// Closes a call whose process died between two tries. Nothing of it is in doubt.
pub fn give_up(l: &mut Loaded, run: RunNo, seq: Seq, now: Micros) -> Result<(), Error> {
    let entry = l.entry(run, seq).ok_or(Error::NotLoaded("the entry"))?;
    let tries = entry.call.as_ref().map_or_else(Vec::new, |c| c.tries.clone());
    let settle = Settle {
        run,
        seq,
        attempt: entry.attempt,
        instance: entry.instance.unwrap_or_default(),
        close: close(&tries),
        active_ms: 0,
        http_status: tries.last().copied().flatten(),
        upstream_request_id: None,
        error: Some("its process ended between two tries".into()),
        answer: None,
    };
    settle.decide(l, now).map(drop)
}
