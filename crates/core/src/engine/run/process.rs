//! Processes: registers one, notes that it lives, and sweeps what a dead one left.

use crate::{
    engine::{Heir, approval, call::settle, prelude::*},
    run::{Awaited, Identity},
};

/// Creates the process's instance and returns its number. Synced: a claim must not outlive its instance's row.
#[derive(Clone, Debug)]
pub struct Register {
    pub identity: Identity,
}

impl Register {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Numbers]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<InstanceNo, Error> {
        let no = l.numbers()?.instance;
        l.instances.push(Row::insert(Instance {
            no,
            identity: self.identity.clone(),
            life: Life::Live,
            heartbeat: 0,
            registered_at: now,
            last_seen: now,
            op_counter: 0,
        }));
        Ok(no)
    }
}

/// Time for which an attempt was open since the last renewal, in milliseconds of the driver's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    pub run: RunNo,
    pub attempt: AttemptNo,
    pub ms: i64,
}

/// Measure of an open attempt's active time, by its driver's monotonic clock in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct ActiveTime {
    posted_ms: u64,
}

impl ActiveTime {
    pub fn begin(now_ms: u64) -> ActiveTime {
        ActiveTime { posted_ms: now_ms }
    }

    /// Returns the active time that is not yet posted, in milliseconds, and counts it as posted.
    pub fn take(&mut self, now_ms: u64) -> i64 {
        let ms = now_ms.saturating_sub(self.posted_ms);
        self.posted_ms = self.posted_ms.max(now_ms);
        i64::try_from(ms).unwrap_or(0)
    }

    /// Counts `ms` as not posted after all, so that a later renewal posts them.
    pub fn give_back(&mut self, ms: i64) {
        self.posted_ms = self.posted_ms.saturating_sub(u64::try_from(ms).unwrap_or(0));
    }
}

/// Renews the instance's heartbeat and posts the active time of the attempts it drives.
///
/// A compare-and-set: the row has to hold a heartbeat that this process wrote. A run whose time limit is reached is
/// halted here, so that an agent that makes no calls stops too; one that was halted by a clock that went back since
/// goes on. A clock that was set gives no run its time again, and takes none from it: the times that its wall time
/// counts from move with the clock.
/// Errors: `InstanceDead` when the instance was declared dead meanwhile, or when another process renews under its
/// number: of two clones of one machine's memory, the later one has to register anew.
#[derive(Clone, Debug)]
pub struct Renew {
    pub instance: InstanceNo,
    /// Heartbeats that this process wrote last. A crash of the store may have lost the newest ones.
    pub own: Vec<i64>,
    /// Heartbeat to write: random, and the same again while it is not known whether it was written.
    pub next: i64,
    /// Least and greatest time that can have passed since the newest of `own` was decided, in milliseconds of
    /// CLOCK_BOOTTIME: since its answer, and since it was first submitted. `None` if they are not known.
    pub since_own_ms: Option<(u64, u64)>,
    pub active: Vec<Active>,
}

/// Difference between the store's clock and that of a process from which on the store's clock was set, in microseconds.
/// A renewal may be decided long after it was submitted.
const SET_US: i64 = 60_000_000;

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
        if instance.heartbeat != self.next && !self.own.contains(&instance.heartbeat) {
            return Err(Error::InstanceDead);
        }
        let is_newest = self.own.last() == Some(&instance.heartbeat);
        instance.heartbeat = self.next;
        let clock = ClockSet {
            before: instance.last_seen,
            by_us: self.set_by_us(is_newest, instance.last_seen, now),
        };
        instance.last_seen = now;
        self.active.iter().map(|a| pulse(l, a, clock, now)).collect()
    }

    /// Returns by how much the store's clock was set since `last_seen`; negative if it was set back.
    fn set_by_us(&self, is_newest: bool, last_seen: Micros, now: Micros) -> i64 {
        let passed = now.0.saturating_sub(last_seen.0);
        let us = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1000);
        let by_own_clock = self.since_own_ms.filter(|_| is_newest);
        // Through an outage of the store, both lie far apart: whatever passed between them is no step of the clock.
        let set_by = by_own_clock.map(|(least, most)| {
            passed.saturating_sub(us(most)).max(0) + passed.saturating_sub(us(least)).min(0)
        });
        set_by.filter(|us| us.abs() >= SET_US).unwrap_or(passed.min(0))
    }
}

/// Step of the store's clock between two renewals of a process.
#[derive(Clone, Copy)]
struct ClockSet {
    /// Time of the renewal before.
    before: Micros,
    by_us: i64,
}

fn pulse(l: &mut Loaded, a: &Active, clock: ClockSet, now: Micros) -> Result<Pulse, Error> {
    post_active(l, a, now)?;
    let run = l.run(a.run)?;
    // A clock that had halted the run before it went back was ahead, and is right now. What began since the renewal
    // before may have begun by the new time.
    let follows = match clock.by_us {
        0 => false,
        by if by < 0 => run.status != Status::Halted,
        _ => run.began_at.is_some_and(|at| at <= clock.before),
    };
    // Once for each run, as other slots may be driven by other processes.
    if follows && l.attempt(a.run, a.attempt).is_some_and(|x| x.is_open() && x.slot == Slot::DRIVER) {
        l.run_mut(a.run)?.move_times(clock.by_us);
    }
    let open = l.attempt(a.run, a.attempt).is_some_and(|attempt| attempt.is_open());
    guard::unhalt(l, a.run, open, now)?;
    if let Some(refusal) = guard::time_over(l, a.run, 0, now)? {
        guard::halt(l, a.run, refusal)?;
    }
    let expired = |waits: &Awaited| !waits.is_empty() && waits.pending(now) == 0;
    if l.run(a.run)?.approvals.as_deref().is_some_and(expired) {
        // The approvals have expired, so no decision will wake the run.
        if let Some(waits) = &mut l.run_mut(a.run)?.approvals {
            waits.let_go(now);
        }
        approval::go_on(l, a.run, now)?;
    }
    let run = l.run(a.run)?;
    Ok(Pulse { run: run.no, status: run.status, stop_requested: run.stop_requested, halt: run.halt.clone() })
}

/// Adds the active time to the attempt, to its run's envelope and to a job's time of work.
pub fn post_active(l: &mut Loaded, a: &Active, now: Micros) -> Result<(), Error> {
    if a.ms <= 0 {
        return Ok(());
    }
    let Some(attempt) = l.attempt_mut(a.run, a.attempt).filter(|x| x.is_open()) else { return Ok(()) };
    attempt.active_ms += a.ms;
    let own = l.run(a.run)?.envelope();
    l.envelope_mut(own)?.spent[Unit::ActiveMs] += a.ms;
    if l.run(a.run)?.job.is_some()
        && let Some(job) = &mut l.run_mut(a.run)?.job
    {
        job.counts.work(a.ms, now);
    }
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

/// Declares `instance` dead if its heartbeat is still the one that was seen.
///
/// Open calls of the instance become `unknown`; a call that rests between two tries is closed as those tries ended.
/// The attempts it drove end at its last heartbeat, and runs left without an open attempt are `interrupted`: also one that
/// slept or waited for its provider, which keeps its time to wake and what it waited for. An attempt
/// that an HTTP header began has no instance and stays open. Synced. Idempotent. Errors: `HeartbeatMoved` when the
/// instance lives.
#[derive(Clone, Debug)]
pub struct DeclareDead {
    pub instance: InstanceNo,
    pub heartbeat_seen: i64,
    /// Whether the instance itself reports that it leaves.
    pub left: bool,
    /// Instance under which its process goes on, which then receives what this one was receiving; `None` if the process
    /// ends, or another one reports its death.
    pub heir: Option<Heir>,
}

impl DeclareDead {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Instance(self.instance), Need::OwnedBy(self.instance)];
        needs.extend(self.heir.iter().flat_map(|heir| &heir.received).flat_map(|answer| answer.needs()));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Swept, Error> {
        let Some(instance) = l.instance_mut(self.instance) else { return Ok(Swept::default()) };
        if instance.life != Life::Live {
            return Ok(Swept::default());
        }
        if instance.heartbeat != self.heartbeat_seen {
            return Err(Error::HeartbeatMoved { seen: self.heartbeat_seen, now: instance.heartbeat });
        }
        instance.life = if self.left { Life::Left } else { Life::Dead };
        let last_seen = if self.left { now } else { instance.last_seen };

        self.heir.iter().for_each(|heir| taking::hand_over(l, heir));
        let mut swept = Swept::default();
        let open: Vec<(RunNo, Seq)> = l
            .all::<Entry>()
            .filter(|e| e.instance == Some(self.instance) && e.state == State::Open && e.kind == Kind::Call)
            .map(|e| (e.run, e.seq))
            .collect();
        let (resting, sent): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|&(run, seq)| settle::is_resting(l, run, seq));
        for (run, seq) in resting {
            settle::give_up(l, run, seq, now)?;
        }
        let charged = within::Charged::of(l);
        for (run, seq) in sent {
            doubt::make_unknown(l, run, seq, now)?;
            swept.unknown_calls += 1;
        }
        charged.post(l)?;
        for row in &mut l.attempts {
            if row.value.instance == Some(self.instance) && row.value.is_open() {
                let attempt = row.touched();
                // An attempt claimed after the last heartbeat ended no earlier than it began.
                attempt.ended_at = Some(last_seen.max(attempt.started_at));
                attempt.exit = Some(Exit { lost: true, ..Exit::default() });
                swept.ended_attempts += 1;
            }
        }
        self.spare(l);
        let held: Vec<RunNo> =
            l.all::<Lease>().filter(|x| x.instance == self.instance).map(|x| x.run).collect();
        for no in held {
            if l.has_open_attempt(no) {
                continue;
            }
            let run = l.run(no)?;
            // What a run slept or waited for at its provider still holds for the process that takes it up, unless a
            // person stopped it. Any other refusal is decided anew.
            let rests = run.status == Status::Sleeping || run.awaited_outage().is_some();
            let goes_on = matches!(run.status, Status::Running | Status::Waiting | Status::Sleeping);
            if goes_on && let Some(next) = status::next(run.status, Event::Interrupt) {
                let run = l.run_mut(no)?;
                run.status = next;
                if run.job.is_some() && !self.left {
                    run.error = Some("the process that worked on it died".to_owned());
                }
                if !rests || run.stop_requested {
                    (run.halt, run.wake_at) = (None, None);
                }
                swept.interrupted.push(run.id.clone());
            }
        }
        Ok(swept)
    }

    /// Names the outage in which an attempt was lost, so that the next one counts as no restart.
    fn spare(&self, l: &mut Loaded) {
        let outage = |run: RunNo| Some(l.run(run).ok()?.awaited_outage()?.0.clone());
        let own = l.all::<Attempt>().filter(|a| a.instance == Some(self.instance));
        let spared: Vec<_> = own.filter_map(|a| Some((a.run, a.no, outage(a.run)?))).collect();
        for (run, no, outage) in spared {
            if let Some(exit) = l.attempt_mut(run, no).and_then(|a| a.exit.as_mut()) {
                exit.outage = Some(outage);
            }
        }
    }
}

/// Entries, attempts and runs that a sweep changed after an instance died.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub unknown_calls: usize,
    pub ended_attempts: usize,
    pub interrupted: Vec<RunId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: a renewal that failed lost the active time that it was to post.
    /// Consequence: a run with a limit of active time went on past it by the length of every outage.
    /// Cause: the time counted as posted from when the renewal was sent.
    #[test]
    fn what_a_failed_renewal_did_not_post_the_next_one_posts() {
        let mut time = ActiveTime::begin(1_000);
        assert_eq!(time.take(2_000), 1_000);
        let lost = time.take(3_500);
        // Another renewal of the same process goes out before the failure is known.
        assert_eq!(time.take(4_000), 500);
        time.give_back(lost);
        assert_eq!((time.take(5_000), time.take(5_000)), (2_500, 0));
        assert_eq!(time.take(4_000), 0, "a clock that goes back adds nothing twice");
        assert_eq!(time.take(5_000), 0);
    }
}
