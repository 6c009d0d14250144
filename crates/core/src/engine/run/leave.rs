//! Move: fences runs that leave their store in a bundle, or takes them back.

use crate::{engine::prelude::*, envelope::Moved};

/// Halts a run and all runs below it, because they go on in another store; or takes them back. Returns whether it did:
/// false if a newer run, which may be below one of them, has begun since `seen`.
///
/// A run that is completed or cancelled spends nothing more, and stays as it is; a completed job takes more items, so it
/// is halted too. Synced. Idempotent. Errors: `RunHeld` while a process works on one of them; `NotWhole` while a call of
/// theirs is in flight, or a run has not stopped. Nothing is changed then.
#[derive(Clone, Debug)]
pub struct Move {
    pub runs: Vec<RunNo>,
    /// Newest run of the store that the caller has read.
    pub seen: RunNo,
    /// Bundle in which they leave; `None` takes them back.
    pub to: Option<Moved>,
}

impl Move {
    pub fn needs(&self) -> Vec<Need> {
        let of = |no: &RunNo| [Need::Run(*no), Need::OpenAttempts(*no), Need::Lease(*no, Slot::DRIVER)];
        self.runs.iter().flat_map(of).chain([Need::Numbers]).collect()
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<bool, Error> {
        if l.numbers()?.run.0 != self.seen.0 + 1 {
            return Ok(false);
        }
        for no in &self.runs {
            match &self.to {
                Some(moved) => fence(l, *no, moved, now)?,
                None if l.run(*no)?.is_moved() => arrive(l.run_mut(*no)?, now)?,
                None => {}
            }
        }
        Ok(true)
    }
}

fn fence(l: &mut Loaded, no: RunNo, moved: &Moved, now: Micros) -> Result<(), Error> {
    let run = l.run(no)?;
    if let Some(holder) = guard::driver(l, run, Slot::DRIVER) {
        return Err(guard::held(run, holder));
    }
    if l.has_open_attempt(no) || l.envelope(run.envelope())?.has_calls_in_flight() {
        return Err(Error::NotWhole { id: run.id.to_string(), why: "it has not stopped".into() });
    }
    let run = l.run_mut(no)?;
    if run.job.is_some() && run.status == Status::Completed {
        guard::shift(run, Event::Reopen, now)?;
    }
    if !matches!(run.status, Status::Completed | Status::Cancelled) {
        if status::next(run.status, Event::Move).is_none() {
            return Err(Error::NotWhole { id: run.id.to_string(), why: "it has not stopped".into() });
        }
        let halt = run.halt.take().filter(|_| run.status == Status::Halted);
        let halt = halt.and_then(|halt| match halt.moved {
            Some(moved) => moved.halt,
            None => Some(Box::new(halt)),
        });
        let error = run.error.clone();
        guard::shift(run, Event::Move, now)?;
        run.error = error;
        run.halt = Some(Refusal::moved(Moved { halt, ..moved.clone() }, now));
    }
    Ok(())
}

/// Makes of a run that has left what it was before: halted for the same reason, or interrupted. A run that had failed is
/// interrupted with the error that it failed with.
pub(super) fn arrive(run: &mut Run, now: Micros) -> Result<(), Error> {
    let error = run.error.clone();
    match run.halt.take().and_then(|halt| halt.moved?.halt) {
        Some(halt) => run.halt = Some(*halt),
        None => drop(guard::shift(run, Event::Raise { open: false }, now)?),
    }
    run.error = error;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{
            Halt, Raise, Start,
            run::end_attempt::{EndAttempt, Then},
            tests::bench::{Bench, usd},
        },
        envelope::{Limits, PerUnit},
        run::{Exit, Policy},
        store::{Ask as _, Durability, Store as _},
        words::RunId,
    };

    #[test]
    fn a_run_that_was_moved_does_nothing_here_until_it_is_taken_back() {
        let b = Bench::new();
        let instance = b.register();
        let run = b.start("r", usd(100), None, Policy::default());
        let child = b.start("child", Limits::default(), Some(run), Policy::default());
        let to = |sha256: Option<&str>| {
            Some(Moved { sha256: sha256.map(str::to_owned), ..Moved::begun("/b".into(), None) })
        };
        let go = |seen: RunNo, to: Option<Moved>| {
            b.store.ask(Move { runs: vec![run, child], seen, to }, Durability::Synced).wait()
        };
        let actor = b.claim(run, instance).unwrap().unwrap();
        assert_eq!(go(child, to(None)).unwrap_err().code(), "run_held");
        let (attempt, exit, then) = (actor.attempt, Exit::default(), Then::Interrupt { by_person: true });
        let end = EndAttempt { run, attempt, instance, exit, active_ms: 0, then };
        b.store.ask(end, Durability::Synced).wait().unwrap();
        assert!(!go(run, to(None)).unwrap(), "a run began that nobody has read");
        assert!(go(child, to(None)).unwrap());
        assert!(go(child, to(Some("d1"))).unwrap());
        let view = b.store.run(child).unwrap().unwrap();
        assert!(view.run.is_moved() && view.run.over_since().is_some());
        assert_eq!(view.run.why().unwrap(), "it goes on where /b is imported (sha-256 d1)");
        assert_eq!(b.claim(run, instance).unwrap_err().code(), "run_halted");
        let raise = Raise { run, add: usd(1), set: Limits::default(), lift: PerUnit::default() };
        assert_eq!(b.store.ask(raise, Durability::Synced).wait().unwrap(), Status::Halted);
        let below = Start { parent: Some(run), ..Start::new(RunId::new("below").unwrap()) };
        assert_eq!(b.store.ask(below, Durability::Synced).wait().unwrap_err().code(), "run_halted");
        assert!(go(child, None).unwrap());
        b.claim(run, instance).unwrap().unwrap();
    }

    // Bug: a run that had failed was interrupted without a word in the store that its bundle was imported in.
    #[test]
    fn an_error_outlives_a_move() {
        let b = Bench::new();
        let (instance, run) = (b.register(), b.start("r", usd(100), None, Policy::default()));
        let attempt = b.claim(run, instance).unwrap().unwrap().attempt;
        let then = Then::Fail("it does not start".into());
        let end = EndAttempt { run, attempt, instance, exit: Exit::default(), active_ms: 0, then };
        b.store.ask(end, Durability::Synced).wait().unwrap();
        for to in [Some(Moved::begun("/b".into(), None)), None] {
            assert!(b.store.ask(Move { runs: vec![run], seen: run, to }, Durability::Synced).wait().unwrap());
        }
        let back = b.store.run(run).unwrap().unwrap().run;
        assert_eq!(back.status, Status::Interrupted);
        assert_eq!(back.why().as_deref(), Some("it does not start"));
        b.claim(run, instance).unwrap().unwrap();
        assert_eq!(b.store.run(run).unwrap().unwrap().run.why(), None, "it goes on");
    }

    #[test]
    fn a_halt_outlives_a_move() {
        let b = Bench::new();
        let run = b.start("r", usd(100), None, Policy::default());
        let refusal = Refusal::plain("calls", Micros(7));
        let halt = Halt { run, refusal: refusal.clone() };
        b.store.ask(halt, Durability::Synced).wait().unwrap();
        let to = |sha256: Option<&str>| Moved {
            sha256: sha256.map(str::to_owned),
            ..Moved::begun("/b".into(), None)
        };
        for to in [Some(to(None)), Some(to(Some("d1"))), None] {
            let is_moved = to.is_some();
            assert!(b.store.ask(Move { runs: vec![run], seen: run, to }, Durability::Synced).wait().unwrap());
            assert_eq!(b.store.run(run).unwrap().unwrap().run.is_moved(), is_moved);
        }
        let back = b.store.run(run).unwrap().unwrap().run;
        assert_eq!((back.status, back.halt), (Status::Halted, Some(refusal)));
    }
}
