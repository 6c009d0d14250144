//! Retry: records the state of a call between two tries, and before the next try leaves.

use crate::{
    engine::{
        Error,
        call::settle::{Bill, Close, Settle},
        loaded::{Loaded, Need},
        rule::{closing, guard},
    },
    journal::{Kind, Opening},
    words::id::{Micros, RunNo, Seq},
};

/// Records the failed tries of an open call, and whether the next try is about to be sent.
///
/// The call keeps its reservation. `resting`: the call is between two tries, and nothing of it is being sent;
/// `Committed` is enough, because a crash that loses the record makes the call `unknown`, which is safe. Not
/// `resting`: the next try is about to be sent, which `Synced` records first.
/// Returns whether the next try may be sent: not in a run that has ended, is halted or was stopped, and not
/// after a time limit.
/// Errors: `AlreadyTaken` when another opening has the entry; `AlreadySettled` when a sweep has closed the
/// entry.
#[derive(Clone, Debug)]
pub struct Retry {
    pub opening: Opening,
    /// All tries so far, oldest first: the upstream's status, or `None` where it was not reached.
    pub tries: Vec<Option<u16>>,
    pub resting: bool,
}

impl Retry {
    pub fn needs(&self) -> Vec<Need> {
        closing::needs(&self.opening)
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<bool, Error> {
        let Opening { run: no, seq, .. } = self.opening;
        closing::open_entry(l, &self.opening, |kind| kind == Kind::Call)?;
        let run = l.run(no)?;
        let is_open = guard::open_run(run).is_ok_and(|halt| halt.is_none());
        let may_leave = is_open && !run.stop_requested && guard::time_over(l, no, 0, now)?.is_none();
        let call = l.entry_mut(no, seq).and_then(|e| e.call.as_mut()).ok_or(Error::NotLoaded("the call"))?;
        call.tries.clone_from(&self.tries);
        call.resting = self.resting || !may_leave;
        Ok(may_leave)
    }
}

/// Returns the outcome with which a call closes if all of its tries failed.
///
/// A refused call counts as one call without cost; a call that never reached the upstream is `void`.
pub fn close(tries: &[Option<u16>]) -> Close {
    if tries.iter().any(Option::is_some) { Close::Failed(Bill::Nothing) } else { Close::Void }
}

/// Returns whether the call rests between two tries, so that nothing of it is being sent.
pub fn is_resting(l: &Loaded, run: RunNo, seq: Seq) -> bool {
    l.entry(run, seq).and_then(|e| e.call.as_ref()).is_some_and(|c| c.resting)
}

/// Closes a call whose process died between two tries. All its tries have failed, so nothing of it is in doubt.
pub fn give_up(l: &mut Loaded, run: RunNo, seq: Seq, now: Micros) -> Result<(), Error> {
    let entry = l.entry(run, seq).ok_or(Error::NotLoaded("the entry"))?;
    let tries = entry.call.as_ref().map_or_else(Vec::new, |c| c.tries.clone());
    let settle = Settle {
        opening: Opening::of(entry).unwrap_or_default(),
        attempt: entry.attempt,
        close: close(&tries),
        active_ms: 0,
        http_status: tries.last().copied().flatten(),
        upstream_request_id: None,
        error: Some("its process ended between two tries".into()),
        answer: None,
    };
    settle.decide(l, now).map(drop)
}
