//! Declare dead: declares an instance dead and sweeps what it left open.

use crate::{
    engine::{
        Error,
        call::retry,
        loaded::{Loaded, Need},
        rule::{doubt, within},
    },
    journal::{Entry, Kind, State},
    run::{
        attempt::{Attempt, Exit},
        instance::{Lease, Life},
        status::{self, Event, Status},
    },
    words::id::{InstanceNo, Micros, RunId, RunNo, Seq},
};

/// Declares `instance` dead if its heartbeat is still the one that was seen.
///
/// Open calls of the instance become `unknown`; a call that rests between two tries is closed as those tries ended.
/// The attempts it drove end at its last heartbeat, and runs left without an open attempt are `interrupted`. An attempt
/// that an HTTP header began has no instance and stays open. Synced. Idempotent. Errors: `HeartbeatMoved` when the
/// instance lives.
#[derive(Clone, Debug)]
pub struct DeclareDead {
    pub instance: InstanceNo,
    pub heartbeat_seen: i64,
    /// Whether the instance itself reports that it leaves.
    pub left: bool,
}

impl DeclareDead {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Instance(self.instance), Need::OwnedBy(self.instance)]
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

        let mut swept = Swept::default();
        let open: Vec<(RunNo, Seq)> = l
            .all::<Entry>()
            .filter(|e| e.instance == Some(self.instance) && e.state == State::Open && e.kind == Kind::Call)
            .map(|e| (e.run, e.seq))
            .collect();
        let (resting, sent): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|&(run, seq)| retry::is_resting(l, run, seq));
        for (run, seq) in resting {
            retry::give_up(l, run, seq, now)?;
        }
        let charged = within::Charged::of(l);
        for (run, seq) in sent {
            doubt::make_unknown(l, run, seq, now)?;
            swept.unknown_calls += 1;
        }
        charged.post(l);
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
            // A run that sleeps or waits for its provider goes on so for the process that takes it up, unless a person
            // stopped it.
            let rests = run.status == Status::Sleeping || run.awaited_outage().is_some();
            let goes_on = matches!(run.status, Status::Running | Status::Waiting | Status::Sleeping);
            if goes_on
                && (!rests || run.stop_requested)
                && let Some(next) = status::next(run.status, Event::Interrupt)
            {
                let run = l.run_mut(no)?;
                run.status = next;
                // A refusal or wake time that the run waited for is decided anew.
                run.halt = None;
                run.wake_at = None;
                swept.interrupted.push(run.id.clone());
            }
        }
        Ok(swept)
    }

    /// Counts no attempt as a death that was lost while its provider answered no call.
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
