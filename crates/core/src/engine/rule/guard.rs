//! Guards: whether an actor may open an entry now, and whether the run's state and time limit allow it.

use crate::{engine::prelude::*, run::Claims};

/// Checks that the instance is live. Errors: `InstanceDead`.
pub fn live(l: &Loaded, instance: InstanceNo) -> Result<(), Error> {
    match l.instance(instance) {
        Some(i) if i.life == Life::Live => Ok(()),
        _ => Err(Error::InstanceDead),
    }
}

/// Returns whether `instance` is a live process; false for `None`.
pub fn lives(l: &Loaded, instance: Option<InstanceNo>) -> bool {
    instance.is_some_and(|no| live(l, no).is_ok())
}

/// Returns the rows that `drives` needs.
pub fn needs(actor: &Actor, slot: Slot, more: impl IntoIterator<Item = Need>) -> Vec<Need> {
    let own = [
        Need::Instance(actor.instance),
        Need::Run(actor.run),
        Need::Attempt(actor.run, actor.attempt),
        Need::Lease(actor.run, slot),
        Need::Lease(actor.run, Slot::ADOPTER),
    ];
    own.into_iter().chain(more).collect()
}

/// Checks that a token's attempt is open and drives its slot.
///
/// Used for the agent's own processes, which are no instances of the store: the token stands for the
/// attempt, and the fence shuts out tokens of attempts that are over. The caller has checked the token's
/// signature. Needs the run, the attempt and the slot's lease.
pub fn bears(l: &Loaded, claims: &Claims) -> Result<(), Error> {
    let run = l.run(claims.run)?;
    let lost = || Error::LeaseLost { id: run.id.to_string(), attempt: claims.attempt.0 };
    let attempt = l.attempt(claims.run, claims.attempt).filter(|a| a.is_open()).ok_or_else(lost)?;
    let holds = |fence| l.lease(claims.run, claims.slot).is_some_and(|lease| lease.fence == fence);
    let is_named = attempt.slot == claims.slot && attempt.fence == claims.fence;
    if is_named && claims.fence.is_none_or(holds) { Ok(()) } else { Err(lost()) }
}

/// Checks that the actor may do the attempt's own work: the attempt drives its slot, and is the actor's or adopted by it.
///
/// An attempt's number can be given out a second time when a database comes back without its last commits. The
/// process that had it before is another instance.
pub fn drives(l: &Loaded, actor: &Actor) -> Result<(), Error> {
    let attempt = is_driven(l, actor)?;
    let adopts = |fence| {
        let lease = l.lease(actor.run, Slot::ADOPTER);
        lease.is_some_and(|lease| lease.instance == actor.instance && lease.fence == fence)
    };
    let is_own = attempt.instance.is_none_or(|no| no == actor.instance);
    if is_own || attempt.fence.is_some_and(adopts) { Ok(()) } else { Err(lost(l, actor)) }
}

/// Returns the actor's attempt, if the attempt still drives its slot. This check guards the opening of entries.
///
/// The actor's instance need not be the attempt's own driver: for requests with a run token it is the proxy's instance,
/// and a proxy also serves the children of its run. A new attempt takes the slot's lease with a higher fence, so an
/// open attempt is the slot's newest. The fence in the lease is checked all the same.
pub fn is_driven<'a>(l: &'a Loaded, actor: &Actor) -> Result<&'a Attempt, Error> {
    live(l, actor.instance)?;
    let run = l.run(actor.run)?;
    let lost = || lost(l, actor);
    let attempt = l.attempt(actor.run, actor.attempt).ok_or_else(lost)?;
    if !attempt.is_open() {
        return Err(match &attempt.label {
            Some(label) => Error::LabelEnded { id: run.id.to_string(), label: label.clone() },
            None => lost(),
        });
    }
    if let Some(fence) = attempt.fence {
        let lease = l.lease(actor.run, attempt.slot).ok_or_else(lost)?;
        if lease.fence != fence {
            return Err(lost());
        }
    }
    Ok(attempt)
}

fn lost(l: &Loaded, actor: &Actor) -> Error {
    let id = l.run(actor.run).map_or_else(|_| format!("#{}", actor.run), |run| run.id.to_string());
    Error::LeaseLost { id, attempt: actor.attempt.0 }
}

/// Returns the live process that drives `slot`, with an open attempt there or between two attempts; `None` if none
/// does.
///
/// A lease lives as long as its instance, but keeps others from a run only while that run goes on. Another process can
/// take up a run at rest, since the fence keeps the old one out. A run with an open header attempt has been taken up by
/// header callers. Needs the lease and the open attempts.
pub fn driver<'a>(l: &'a Loaded, run: &Run, slot: Slot) -> Option<&'a Instance> {
    let lease = l.lease(run.no, slot)?;
    let holder = l.instance(lease.instance).filter(|i| i.life == Life::Live)?;
    let mut open = l.all::<Attempt>().filter(|a| a.run == run.no && a.is_open());
    let driven = open.clone().any(|a| a.slot == slot && a.instance.is_some());
    let goes_on = matches!(run.status, Status::Running | Status::Waiting | Status::Sleeping);
    let between = goes_on && open.all(|a| a.slot != slot && a.instance.is_some());
    (driven || between).then_some(holder)
}

/// Returns the attempt with this label; `None` if there is none. A label names one attempt of its run for ever. Needs
/// `Labelled`.
pub fn labelled<'a>(l: &'a Loaded, run: &Run, label: &str) -> Option<&'a Attempt> {
    l.all::<Attempt>().find(|a| a.run == run.no && a.label.as_deref() == Some(label))
}

/// Checks that the run takes new work. Returns the refusal that halted the run, or `None` if it is not halted. Errors:
/// `NotRunning`, `RunEnded`.
pub fn open_run(run: &Run) -> Result<Option<Refusal>, Error> {
    match run.status {
        Status::Running | Status::Waiting | Status::Sleeping => Ok(None),
        Status::Halted => Ok(Some(run.halt.clone().unwrap_or_else(|| Refusal::plain("halted", Micros(0))))),
        Status::Interrupted => Err(Error::NotRunning { id: run.id.to_string(), status: run.status.name() }),
        Status::Completed | Status::Failed | Status::Cancelled => {
            Err(Error::RunEnded { id: run.id.to_string(), status: run.status.name() })
        }
    }
}

/// Checks that the run takes new work. Errors: `RunHalted`, `NotRunning`, `RunEnded`.
pub fn may_open(l: &Loaded, run: RunNo) -> Result<(), Error> {
    let run = l.run(run)?;
    match open_run(run)? {
        Some(halt) => Err(Error::RunHalted { id: run.id.to_string(), why: halt.code }),
        None => Ok(()),
    }
}

/// Returns the refusal if a time limit is reached, else `None`. `unposted_ms` is active time that is not yet added to
/// the envelope.
pub fn time_over(l: &Loaded, run: RunNo, unposted_ms: i64, now: Micros) -> Result<Option<Refusal>, Error> {
    let run = l.run(run)?;
    if run.status.is_ended() || run.status == Status::Halted {
        return Ok(None);
    }
    let envelope = l.envelope(run.envelope())?;
    let wall = run.wall_ms(now);
    let active = envelope.spent[Unit::ActiveMs].saturating_add(unposted_ms);
    for (unit, spent) in [(Unit::WallMs, wall), (Unit::ActiveMs, active)] {
        if let Some(limit) = envelope.limits[unit].filter(|limit| spent >= *limit) {
            return Ok(Some(Refusal::of(unit, 1, envelope, limit - spent, now)));
        }
    }
    Ok(None)
}

/// Lets a run go on whose wall time is not over: the clock that halted it had jumped ahead, and went back since.
///
/// `open`: whether an attempt of the run is open.
pub fn unhalt(l: &mut Loaded, run: RunNo, open: bool, now: Micros) -> Result<(), Error> {
    if has_wall_time_again(l.run(run)?, l, now)? {
        shift(l.run_mut(run)?, Event::Raise { open }, now)?;
    }
    Ok(())
}

fn has_wall_time_again(run: &Run, l: &Loaded, now: Micros) -> Result<bool, Error> {
    let by_wall = run.halt.as_ref().is_some_and(|halt| halt.unit == Some(Unit::WallMs));
    Ok(run.status == Status::Halted && by_wall && is_in_wall_time(l, run, now)?)
}

/// Returns whether the run has not used up its limit of wall time, or has none.
pub fn is_in_wall_time(l: &Loaded, run: &Run, now: Micros) -> Result<bool, Error> {
    let limit = l.envelope(run.envelope())?.limits[Unit::WallMs];
    Ok(limit.is_none_or(|limit| run.wall_ms(now) < limit))
}

/// Halts the run for `refusal`, and returns that. A run that is halted already keeps its first reason.
pub fn halt(l: &mut Loaded, run: RunNo, refusal: Refusal) -> Result<Refusal, Error> {
    let run = l.run_mut(run)?;
    if let Some(next) = status::next(run.status, Event::Halt)
        && run.status != Status::Halted
    {
        run.status = next;
        run.wake_at = None;
        run.halt = Some(refusal.clone());
    }
    Ok(refusal)
}

/// Returns the error for a slot that another process drives.
pub fn held(run: &Run, holder: &Instance) -> Error {
    let i = &holder.identity;
    let who = format!("{} (pid {} on {})", i.program, i.pid, i.host);
    Error::RunHeld { id: run.id.to_string(), holder: who, instance: holder.no }
}

/// Changes the run's status as `event` demands, and returns the new one.
pub fn shift(run: &mut Run, event: Event, now: Micros) -> Result<Status, Error> {
    let next = status::next(run.status, event).ok_or_else(|| match run.status {
        Status::Halted => Error::RunHalted {
            id: run.id.to_string(),
            why: run.halt.as_ref().map_or_else(|| "a limit".into(), |h| h.code.clone()),
        },
        status => Error::RunEnded { id: run.id.to_string(), status: status.name() },
    })?;
    run.status = next;
    run.ended_at = next.is_ended().then(|| run.ended_at.unwrap_or(now));
    if !next.is_ended() {
        run.error = None;
    }
    if !matches!(next, Status::Halted | Status::Waiting) {
        run.halt = None;
    }
    if next != Status::Sleeping {
        run.wake_at = None;
    }
    Ok(next)
}
