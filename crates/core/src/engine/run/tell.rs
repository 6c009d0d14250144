//! Tell: a person's order to a run: stop, cancel, complete, wake or resume.

use crate::engine::{prelude::*, run::claim::end_open};

/// Order that a person gives to a run. Those without a text are given on its machine only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// Ends the agent, and leaves the run to be resumed.
    Stop,
    Cancel {
        reason: Option<String>,
    },
    #[serde(skip)]
    Complete,
    /// Completes a running run whose callers name it in an HTTP header, if no entry was opened since its next entry was
    /// to be `upto`. Any other run stays as it is.
    #[serde(skip)]
    Idle {
        upto: Seq,
    },
    /// Wakes a sleeping run now, or one whose process died while it slept. Any other run stays as it is.
    Wake,
    /// Lets the run continue: takes back a stop, and accepts a divergence that halted the run. `diverged` is
    /// the attempt that diverged; answers that it left untaken are no longer waited for.
    #[serde(skip)]
    Resume {
        diverged: Option<AttemptNo>,
    },
}

/// Gives an order to a run. A live supervisor learns of it at its next heartbeat, or between two attempts at the
/// first heartbeat of the next one. A run without a supervisor changes at once. Synced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tell {
    pub run: RunNo,
    pub word: Word,
}

impl Tell {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Run(self.run), Need::OpenAttempts(self.run), Need::Leases(self.run)];
        if let Word::Resume { diverged: Some(attempt) } = self.word {
            needs.push(Need::Attempt(self.run, attempt));
        }
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Status, Error> {
        let event = match self.word {
            Word::Stop => Event::Interrupt,
            Word::Cancel { .. } => Event::Cancel,
            Word::Complete => Event::Complete,
            Word::Idle { upto } if !is_idle(l, l.run(self.run)?, upto) => {
                return Ok(l.run(self.run)?.status);
            }
            Word::Idle { .. } => Event::Complete,
            Word::Wake => return self.wake(l, now),
            Word::Resume { diverged } => return self.resume(l, diverged, now),
        };
        let driven = is_driven(l, l.run(self.run)?);
        let run = l.run_mut(self.run)?;
        if self.word == Word::Stop && !run.status.is_ended() {
            run.stop_requested = true;
            if driven {
                return Ok(run.status);
            }
        }
        let after = guard::shift(run, event, now)?;
        if let (Word::Cancel { reason: Some(reason) }, Status::Cancelled) = (&self.word, after) {
            run.error = Some(reason.clone());
        }
        // A driver ends its own attempts after it has ended the agent.
        end_open(l, self.run, now, |a| a.instance.is_none(), |_| Exit::default());
        Ok(after)
    }

    /// Wakes the run: a supervisor starts its next attempt; a run without one is interrupted until it is resumed.
    fn wake(&self, l: &mut Loaded, now: Micros) -> Result<Status, Error> {
        let run = l.run(self.run)?;
        if run.wake_at.is_none() {
            return Ok(run.status);
        }
        let driven = guard::driver(l, run, Slot::DRIVER).is_some();
        guard::shift(l.run_mut(self.run)?, if driven { Event::Wake } else { Event::Interrupt }, now)
    }

    /// Takes a stop, a divergence or a lack of progress back. Starts no attempt: the next driver does. A limit that halted the run stays.
    fn resume(&self, l: &mut Loaded, diverged: Option<AttemptNo>, now: Micros) -> Result<Status, Error> {
        let open = l.has_open_attempt(self.run);
        let run = l.run_mut(self.run)?;
        if run.status == Status::Interrupted {
            run.stop_requested = false;
        }
        if run.status != Status::Halted || run.halt.as_ref().is_none_or(|h| !h.is_accepted_by_resuming()) {
            return Ok(run.status);
        }
        let untaken = match diverged.and_then(|no| l.attempt_mut(self.run, no)) {
            Some(attempt) => std::mem::take(&mut attempt.untaken),
            None => 0,
        };
        let run = l.run_mut(self.run)?;
        // Later attempts repeat the calls of this one, and would otherwise diverge each time.
        run.answers = (run.answers - untaken).max(0);
        guard::shift(run, Event::Raise { open }, now)
    }
}

/// Returns whether a running run has open attempts of header callers only, and no entry since `upto`.
fn is_idle(l: &Loaded, run: &Run, upto: Seq) -> bool {
    let mut open = l.all::<Attempt>().filter(|a| a.run == run.no && a.is_open());
    run.status == Status::Running
        && run.next_seq == upto
        && !is_driven(l, run)
        && l.has_open_attempt(run.no)
        && open.all(|a| a.instance.is_none())
}

/// Returns whether a live process hears the order: the run's driver, or a worker of a job in its own slot.
fn is_driven(l: &Loaded, run: &Run) -> bool {
    let open = l.all::<Attempt>().filter(|a| a.run == run.no && a.is_open());
    let mut slots = open.filter(|_| run.job.is_some()).map(|a| a.slot).chain([Slot::DRIVER]);
    slots.any(|slot| guard::driver(l, run, slot).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{
            Actor, Admission, Claim, Claimed, Close, Delivered, EndAttempt, Enter, GiveBack, Received,
            Receiver, Start,
            run::end_attempt::Then,
            tests::bench::{Bench, Request, bill},
        },
        envelope::Limits,
        run::{OnDivergence, Policy, Spec},
        store::{Ask as _, Durability, Store as _},
        words::RunId,
    };

    fn tell(b: &Bench, run: RunNo, word: Word) -> Result<Status, crate::store::Error> {
        b.store.ask(Tell { run, word }, Durability::Synced).wait()
    }

    // Bug: a run without a supervisor that a person had stopped went on with its agent's next request.
    // Consequence: `outlast stop` stopped nothing but one call.
    // Cause: a request without a label opened a new implicit attempt, whoever had ended the last one.
    #[test]
    fn a_stopped_run_of_header_callers_stays_so_until_somebody_wants_it_to_go_on() {
        for resumed_by in ["resume", "a new label"] {
            let b = Bench::new();
            let instance = b.register();
            let run = b.start("r", Limits::default(), None, Policy::default());
            let enter = |label: Option<&str>| {
                let label = label.map(str::to_owned);
                b.store.ask(Enter { run, label, instance }, Durability::Synced).wait().map_err(|e| e.code())
            };
            enter(None).unwrap();
            assert_eq!(tell(&b, run, Word::Stop).unwrap(), Status::Interrupted);
            for _ in 0..2 {
                assert_eq!(enter(None).unwrap_err(), "not_running");
            }
            match resumed_by {
                "resume" => drop(tell(&b, run, Word::Resume { diverged: None }).unwrap()),
                label => drop(enter(Some(label)).unwrap()),
            }
            enter(None).unwrap();
        }
    }

    #[test]
    fn a_divergence_that_is_accepted_halts_nobody_again() {
        let b = Bench::new();
        let instance = b.register();
        let policy = Policy { on_divergence: OnDivergence::Halt, ..Policy::default() };
        let run = b.start("r", Limits::default(), None, policy);
        let restart = |a: Actor| {
            let (attempt, exit) = (a.attempt, Exit::default());
            let end = EndAttempt { run, attempt, instance, exit, active_ms: 0, then: Then::Restart };
            // A halted run stays halted, and has no next attempt yet.
            b.store.ask(end, Durability::Synced).wait().unwrap();
        };
        let buys = |a: Actor, prompt: u8| {
            let seq = b.go(a, Request::of(prompt, 10));
            b.settle(a, seq, Close::Done(bill(5))).unwrap();
            b.delivered(run, seq, a.attempt);
        };
        let takes = |a: Actor, prompt: u8| match b.admit(a, Request::of(prompt, 10), &[]).unwrap() {
            Admission::Replay { seq } => {
                let (attempt, receiver) = (a.attempt, Receiver::Connection(0));
                let mark = Delivered { run, seq, attempt, receiver, count: 0, replayed: true };
                b.store.ask(mark, Durability::Lazy).wait().unwrap();
            }
            other => panic!("{other:?}"),
        };
        let halts = |a: Actor, prompt: u8| matches!(b.admit(a, Request::of(prompt, 10), &[]), Ok(Admission::Refused(r)) if r.code == "diverged");
        let first = b.claim(run, instance).unwrap().unwrap();
        (0..3).for_each(|prompt| buys(first, prompt));
        restart(first);
        let second = b.claim(run, instance).unwrap().unwrap();
        takes(second, 0);
        assert!(halts(second, 9));
        restart(second);
        let accept = || Word::Resume { diverged: Some(second.attempt) };
        assert_eq!(tell(&b, run, accept()).unwrap(), Status::Interrupted);
        assert_eq!(tell(&b, run, accept()).unwrap(), Status::Interrupted, "twice is once");
        let third = b.claim(run, instance).unwrap().unwrap();
        assert!(halts(third, 9), "what it took before is still to be taken again");
        restart(third);
        tell(&b, run, Word::Resume { diverged: None }).unwrap();
        let fourth = b.claim(run, instance).unwrap().unwrap();
        takes(fourth, 0);
        buys(fourth, 9);
        restart(fourth);
        let fifth = b.claim(run, instance).unwrap().unwrap();
        takes(fifth, 0);
        takes(fifth, 9);
        buys(fifth, 10);
    }

    #[test]
    fn an_answer_that_is_on_its_way_to_an_agent_is_no_untaken_one() {
        // Bug: an agent that had its recorded answer whole and asked on at once was halted for a divergence, about
        // once in three under load. Consequence: a person accepted it again and again. Cause: the answer counts as
        // taken when its mark is decided, which the server says a moment after the last byte was sent.
        let b = Bench::new();
        let instance = b.register();
        let policy = Policy { on_divergence: OnDivergence::Halt, ..Policy::default() };
        let run = b.start("r", Limits::default(), None, policy);
        let first = b.claim(run, instance).unwrap().unwrap();
        let seq = b.go(first, Request::of(0, 10));
        b.settle(first, seq, Close::Done(bill(5))).unwrap();
        let exit = Exit::default();
        let end =
            EndAttempt { run, attempt: first.attempt, instance, exit, active_ms: 0, then: Then::Restart };
        b.store.ask(end, Durability::Synced).wait().unwrap();
        let second = b.claim(run, instance).unwrap().unwrap();
        assert!(
            matches!(b.admit(second, Request::of(0, 10), &[]), Ok(Admission::Replay { seq: s }) if s == seq)
        );
        let asks = |prompt: u8| b.admit(second, Request::of(prompt, 10), &[]).unwrap();
        assert!(matches!(asks(9), Admission::Go { .. }));
        // Given back by a connection that broke, it is untaken.
        let give_back = GiveBack(Received { run, seq, attempt: second.attempt, connection: 0 });
        b.store.ask(give_back, Durability::Committed).wait().unwrap();
        assert!(matches!(asks(8), Admission::Refused(r) if r.code == "diverged"));
    }

    // Bug: a shell loop that `outlast stop` or `cancel` ended was told as a death by SIGTERM. Consequence: `show` and the digest
    // counted deaths that were none. Cause: each driver said by itself whether an end was asked for.
    #[test]
    fn an_end_that_a_person_asked_for_is_no_death() {
        for word in [Some(Word::Stop), Some(Word::Cancel { reason: None }), None] {
            let b = Bench::new();
            let instance = b.register();
            let run = b.start("r", Limits::default(), None, Policy::default());
            let attempt = b.claim(run, instance).unwrap().unwrap().attempt;
            let is_asked = word.is_some();
            if let Some(word) = word {
                tell(&b, run, word).unwrap();
            }
            let exit = Exit { signal: Some(15), ..Exit::default() };
            let then = Then::Interrupt { by_person: false };
            let end = EndAttempt { run, attempt, instance, exit, active_ms: 0, then };
            b.store.ask(end, Durability::Synced).wait().unwrap();
            assert_eq!(b.store.attempts(run).unwrap()[0].died(), !is_asked, "{is_asked}");
        }
    }

    // Bug: `outlast stop JOB` stopped nothing: the batch went on to its end.
    // Cause: workers have slots of their own, and only the driver's slot was looked at. The job was interrupted at
    // once, its workers lost their leases, and took it up again as those do that were thought dead.
    #[test]
    fn a_jobs_workers_hear_that_it_is_to_stop() {
        let b = Bench::new();
        let instance = b.register();
        let start = Start {
            spec: Spec { job: Some("job".into()), ..Spec::default() },
            ..Start::new(RunId::new("job").unwrap())
        };
        let run = b.store.ask(start, Durability::Synced).wait().unwrap().run;
        assert_eq!(tell(&b, run, Word::Stop).unwrap(), Status::Interrupted, "nobody works on it");
        let claim = Claim { run, slot: Slot::ANY, instance, label: None, fresh: false, restart: false };
        let Claimed::Attempt { attempt, .. } = b.store.ask(claim, Durability::Synced).wait().unwrap() else {
            panic!("refused")
        };
        assert_eq!(tell(&b, run, Word::Stop).unwrap(), Status::Running);
        assert!(b.store.run(run).unwrap().unwrap().run.stop_requested);
        let (exit, then) = (Exit::default(), Then::Interrupt { by_person: true });
        let end = EndAttempt { run, attempt, instance, exit, active_ms: 0, then };
        assert_eq!(b.store.ask(end, Durability::Synced).wait().unwrap(), Status::Interrupted);
    }

    #[test]
    fn a_limit_that_halted_a_run_is_not_lifted_by_a_word() {
        let b = Bench::new();
        let instance = b.register();
        let run = b.start("r", crate::engine::tests::bench::usd(5), None, Policy::default());
        let actor = b.claim(run, instance).unwrap().unwrap();
        assert!(matches!(b.admit(actor, Request::of(0, 10), &[]), Ok(Admission::Refused(_))));
        assert_eq!(tell(&b, run, Word::Resume { diverged: Some(actor.attempt) }).unwrap(), Status::Halted);
    }
}
