//! Renew: one heartbeat for all that a process drives.

use crate::{
    engine::{
        Error,
        approval::request_approval,
        loaded::{Loaded, Need},
        rule::guard,
    },
    envelope::{Refusal, unit::Unit},
    run::{awaited::Awaited, status::Status},
    words::id::{AttemptNo, InstanceNo, Micros, RunNo, Slot},
};

/// Time for which an attempt was open since the last renewal, by the driver's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    pub run: RunNo,
    pub attempt: AttemptNo,
    pub ms: i64,
}

/// Renews the instance's heartbeat and posts the active time of the attempts it drives.
///
/// A run whose time limit is reached is halted here, so that an agent that makes no calls stops too. A clock that was set
/// back since the last heartbeat gives no run its time again.
/// Errors: `InstanceDead` when the instance was declared dead meanwhile.
#[derive(Clone, Debug)]
pub struct Renew {
    pub instance: InstanceNo,
    pub active: Vec<Active>,
}

impl Renew {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Instance(self.instance)];
        for a in &self.active {
            needs.push(Need::Run(a.run));
            needs.push(Need::Attempt(a.run, a.attempt));
        }
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Vec<Pulse>, Error> {
        guard::live(l, self.instance)?;
        let instance = l.instance_mut(self.instance).ok_or(Error::InstanceDead)?;
        let set_back_us = instance.last_seen.0.saturating_sub(now.0);
        instance.heartbeat += 1;
        instance.last_seen = now;
        self.active.iter().map(|a| pulse(l, a, set_back_us, now)).collect()
    }
}

fn pulse(l: &mut Loaded, a: &Active, set_back_us: i64, now: Micros) -> Result<Pulse, Error> {
    post_active(l, a)?;
    // Once for each run: other slots may be driven by other processes.
    if set_back_us > 0 && l.attempt(a.run, a.attempt).is_some_and(|x| x.is_open() && x.slot == Slot::DRIVER) {
        l.run_mut(a.run)?.set_back(set_back_us);
    }
    if let Some(refusal) = guard::time_over(l, a.run, 0, now)? {
        guard::halt(l, a.run, refusal)?;
    }
    let expired = |waits: &Awaited| !waits.is_empty() && waits.pending(now) == 0;
    if l.run(a.run)?.approvals.as_deref().is_some_and(expired) {
        // The approvals have expired, so no decision will wake the run.
        if let Some(waits) = &mut l.run_mut(a.run)?.approvals {
            waits.let_go(now);
        }
        request_approval::go_on(l, a.run, now)?;
    }
    let run = l.run(a.run)?;
    Ok(Pulse { run: run.no, status: run.status, stop_requested: run.stop_requested, halt: run.halt.clone() })
}

/// Adds the active time to the attempt and to its run's envelope.
pub fn post_active(l: &mut Loaded, a: &Active) -> Result<(), Error> {
    if a.ms <= 0 {
        return Ok(());
    }
    let Some(attempt) = l.attempt_mut(a.run, a.attempt).filter(|x| x.is_open()) else { return Ok(()) };
    attempt.active_ms += a.ms;
    let own = l.run(a.run)?.envelope();
    l.envelope_mut(own)?.spent[Unit::ActiveMs] += a.ms;
    Ok(())
}

/// State of one driven run, as a renewal reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulse {
    pub run: RunNo,
    pub status: Status,
    pub stop_requested: bool,
    pub halt: Option<Refusal>,
}
