//! Claim: begins an attempt of a run, in one of the ways in which a process comes to drive one.

use crate::engine::prelude::*;

/// Takes the slot's lease with a higher fence, ends the previous attempt and opens the next one.
///
/// Synced. Errors: `RunHeld` while another live instance drives the slot; `LabelEnded` for a label that an earlier
/// attempt of the run had; `RunHalted`, `RunEnded`. A new attempt after a death counts against `restarts`.
#[derive(Clone, Debug)]
pub struct Claim {
    pub run: RunNo,
    /// Slot to claim; `Slot::ANY` for the lowest free worker slot, since several processes may work on one job.
    pub slot: Slot,
    pub instance: InstanceNo,
    pub label: Option<String>,
    /// Whether to begin a new iteration deliberately: a new scope, in which no earlier answer is replayed.
    pub fresh: bool,
    /// Whether the previous attempt died, so that this one counts as a restart.
    pub restart: bool,
}

impl Claim {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![
            Need::Instance(self.instance),
            Need::Run(self.run),
            if self.slot == Slot::ANY { Need::Leases(self.run) } else { Need::Lease(self.run, self.slot) },
            Need::OpenAttempts(self.run),
        ];
        needs.extend(self.label.clone().map(|label| Need::Labelled(self.run, label)));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Claimed, Error> {
        guard::live(l, self.instance)?;
        self.reopen_job(l, now)?;
        let slot = if self.slot == Slot::ANY { self.free_slot(l)? } else { self.slot };
        let run = l.run(self.run)?;
        if let Some(holder) = guard::driver(l, run, slot).filter(|i| i.no != self.instance) {
            return Err(guard::held(run, holder));
        }
        if let Some(label) = self.label.as_deref().filter(|label| guard::labelled(l, run, label).is_some()) {
            return Err(Error::LabelEnded { id: run.id.to_string(), label: label.to_owned() });
        }
        guard::unhalt(l, self.run, l.has_open_attempt(self.run), now)?;
        let run = l.run(self.run)?;
        if status::next(run.status, Event::Begin).is_none() {
            guard::shift(&mut run.clone(), Event::Begin, now)?;
        }
        if let Some(refusal) = self.refusal(l, now)? {
            return guard::halt(l, self.run, refusal).map(Claimed::Refused);
        }
        let own = l.run(self.run)?.envelope();
        if self.restart {
            l.envelope_mut(own)?.spent[Unit::Restarts] += 1;
        }
        // Header callers are shut out of the driver's slot from here on, and nobody else would ever end their attempt.
        let ends = |a: &Attempt| a.slot == slot || slot == Slot::DRIVER && a.slot == Slot::IMPLICIT;
        end_open(l, self.run, now, ends, replaced);
        let run = l.run_mut(self.run)?;
        if self.fresh {
            run.iteration += 1;
            run.answers = 0;
        }
        let fence = lend(l, self.run, slot, self.instance)?;
        let driver = Some((self.instance, fence));
        let no = open_attempt(l, self.run, slot, self.label.clone(), driver, now)?;
        let run = l.run(self.run)?;
        Ok(Claimed::Attempt { slot, attempt: no, fence, iteration: run.iteration, answers: run.answers })
    }

    /// Reopens a completed batch job, which takes more items, and one that was halted for an unknown price, which its
    /// program may have been given. Does nothing to any other run.
    fn reopen_job(&self, l: &mut Loaded, now: Micros) -> Result<(), Error> {
        let run = l.run(self.run)?;
        let is_unpriced = run.halt.as_ref().is_some_and(|halt| halt.code == "price_unknown");
        let event = match run.status {
            Status::Completed => Event::Reopen,
            Status::Halted if is_unpriced => Event::Raise { open: l.has_open_attempt(self.run) },
            _ => return Ok(()),
        };
        if run.job.is_some() {
            guard::shift(l.run_mut(self.run)?, event, now)?;
        }
        Ok(())
    }

    /// Returns the lowest worker slot without an open attempt that no other live process drives.
    fn free_slot(&self, l: &Loaded) -> Result<Slot, Error> {
        let run = l.run(self.run)?;
        let taken = |slot: Slot| {
            l.attempts.iter().any(|a| a.value.run == self.run && a.value.slot == slot && a.value.is_open())
                || guard::driver(l, run, slot).is_some_and(|i| i.no != self.instance)
        };
        (1..i64::MAX).map(Slot).find(|slot| !taken(*slot)).ok_or(Error::NotLoaded("a free slot"))
    }

    fn refusal(&self, l: &Loaded, now: Micros) -> Result<Option<Refusal>, Error> {
        let own = l.envelope(l.run(self.run)?.envelope())?;
        if self.restart
            && let Some(free) = own.free(Unit::Restarts).filter(|free| *free < 1)
        {
            return Ok(Some(Refusal::of(Unit::Restarts, 1, own, free, now)));
        }
        guard::time_over(l, self.run, 0, now)
    }
}

/// Opens the run's next attempt and sets the run running.
pub fn open_attempt(
    l: &mut Loaded,
    run: RunNo,
    slot: Slot,
    label: Option<String>,
    driver: Option<(InstanceNo, Fence)>,
    now: Micros,
) -> Result<AttemptNo, Error> {
    let run = l.run_mut(run)?;
    if matches!(run.status, Status::Interrupted | Status::Failed) {
        // The run is taken up again. A driver that continues has not seen a stop requested since its last heartbeat.
        run.stop_requested = false;
    }
    if run.status != Status::Running {
        // A provider that answers no call is waited for until a call is answered.
        let event = if run.awaited_outage().is_some() { Event::Wait } else { Event::Begin };
        guard::shift(run, event, now)?;
    }
    run.began_at.get_or_insert(now);
    let no = run.next_attempt;
    run.next_attempt = AttemptNo(no.0 + 1);
    let attempt = Attempt {
        run: run.no,
        no,
        slot,
        label,
        instance: driver.map(|d| d.0),
        fence: driver.map(|d| d.1),
        iteration: run.iteration,
        started_at: now,
        untaken: run.answers,
        closed_before: run.closed,
        ..Attempt::default()
    };
    l.attempts.push(Row::insert(attempt));
    Ok(no)
}

/// Ends the open attempts of a run that `ends` names, each with its exit.
pub fn end_open(
    l: &mut Loaded,
    run: RunNo,
    now: Micros,
    ends: impl Fn(&Attempt) -> bool,
    exit: impl Fn(&Attempt) -> Exit,
) {
    let its = |a: &Attempt| a.run == run && a.is_open() && ends(a);
    for row in l.attempts.iter_mut().filter(|row| its(&row.value)) {
        let attempt = row.touched();
        attempt.ended_at = Some(now);
        attempt.exit = Some(exit(attempt));
    }
}

/// Returns the exit of an attempt that a new one ends. Nobody drives a header attempt, so nobody can have died with it.
fn replaced(a: &Attempt) -> Exit {
    let driven = a.instance.is_some();
    Exit { lost: driven, relieved: !driven, ..Exit::default() }
}

/// Gives a slot of the run to an instance, under the run's next fence.
pub fn lend(l: &mut Loaded, run: RunNo, slot: Slot, instance: InstanceNo) -> Result<Fence, Error> {
    let row = l.run_mut(run)?;
    row.fence = Fence(row.fence.0 + 1);
    let fence = row.fence;
    l.put_lease(Lease { run, slot, instance, fence });
    Ok(fence)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    Attempt {
        /// The slot asked for, or the free slot that was found.
        slot: Slot,
        attempt: AttemptNo,
        fence: Fence,
        iteration: i64,
        answers: i64,
    },
    /// `restarts` is used up, or the run's time is over: the run is halted.
    Refused(Refusal),
}

/// Lets the actor's process open steps, loops and checkpoints in an attempt that another process drives.
///
/// One live process at a time: it holds the run's adopter lease under the attempt's own fence, and loses it with
/// that attempt or with its life. The supervisor still renews and ends the attempt.
/// Synced. Idempotent. Errors: `LeaseLost`; `RunHeld` while another live process has adopted the attempt.
#[derive(Clone, Debug)]
pub struct Adopt {
    pub actor: Actor,
}

impl Adopt {
    pub fn needs(&self) -> Vec<Need> {
        guard::needs(&self.actor, Slot::DRIVER, [])
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        let attempt = guard::is_driven(l, &self.actor)?;
        let run = l.run(self.actor.run)?;
        let Some(fence) = Some(attempt).filter(|a| a.slot == Slot::DRIVER).and_then(|a| a.fence) else {
            // Header attempts belong to the callers that send their label.
            return Err(Error::LeaseLost { id: run.id.to_string(), attempt: self.actor.attempt.0 });
        };
        let held = l.lease(run.no, Slot::ADOPTER).filter(|lease| lease.fence == fence);
        if let Some(lease) = held.filter(|lease| lease.instance != self.actor.instance)
            && guard::live(l, lease.instance).is_ok()
            && let Some(holder) = l.instance(lease.instance)
        {
            return Err(guard::held(run, holder));
        }
        let run = run.no;
        l.put_lease(Lease { run, slot: Slot::ADOPTER, instance: self.actor.instance, fence });
        Ok(())
    }
}

/// Finds or opens the attempt that a request's HTTP header names. A new label opens a new attempt in slot 0; without a
/// label the caller gets the run's one implicit attempt.
///
/// Synced when it opens one. Errors: `LabelEnded`; `RunHeld` when a live process drives slot 0; `NotRunning` without
/// a label when a person stopped the run, because the agent that keeps asking is what was stopped. A new label, or
/// `Tell` with `Resume`, shows that somebody wants the run to go on.
#[derive(Clone, Debug)]
pub struct Enter {
    pub run: RunNo,
    pub label: Option<String>,
    pub instance: InstanceNo,
}

impl Enter {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![
            Need::Instance(self.instance),
            Need::Run(self.run),
            Need::OpenAttempts(self.run),
            Need::Lease(self.run, Slot::DRIVER),
        ];
        needs.extend(self.label.clone().map(|label| Need::Labelled(self.run, label)));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Entered, Error> {
        guard::live(l, self.instance)?;
        let run = l.run(self.run)?;
        if let Some(holder) = guard::driver(l, run, Slot::DRIVER) {
            return Err(guard::held(run, holder));
        }
        let slot = if self.label.is_some() { Slot::DRIVER } else { Slot::IMPLICIT };
        if let Some(found) = self.find(l, slot)? {
            return Ok(found);
        }
        guard::unhalt(l, self.run, l.has_open_attempt(self.run), now)?;
        let run = l.run(self.run)?;
        if self.label.is_none() && run.stop_requested && run.status == Status::Interrupted {
            return Err(Error::NotRunning { id: run.id.to_string(), status: run.status.name() });
        }
        if self.label.is_some() {
            end_open(l, self.run, now, |a| a.slot == slot, replaced);
        }
        let no = open_attempt(l, self.run, slot, self.label.clone(), None, now)?;
        Ok(Entered { attempt: no, slot, iteration: l.run(self.run)?.iteration })
    }

    fn find(&self, l: &Loaded, slot: Slot) -> Result<Option<Entered>, Error> {
        let run = l.run(self.run)?;
        let found = match &self.label {
            Some(label) => guard::labelled(l, run, label),
            None => l
                .all::<Attempt>()
                .find(|a| a.run == self.run && a.slot == slot && a.label.is_none() && a.is_open()),
        };
        let Some(a) = found else { return Ok(None) };
        match &self.label {
            // A header caller cannot continue under the label of a supervised attempt.
            Some(label) if !a.is_open() || a.instance.is_some() => {
                Err(Error::LabelEnded { id: run.id.to_string(), label: label.clone() })
            }
            _ => Ok(Some(Entered { attempt: a.no, slot, iteration: a.iteration })),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    pub attempt: AttemptNo,
    pub slot: Slot,
    pub iteration: i64,
}
