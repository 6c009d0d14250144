//! Lives of a run: until when its attempts showed signs of life, the processes that drove them, and what took an attempt
//! together with its process.

use std::collections::BTreeMap;

use crate::{
    journal::State,
    named,
    run::{Attempt, Identity, Instance, Run},
    store::{self, RunView, Store},
    words::{InstanceNo, Micros, Seq},
};

/// Most entries that are read for the last sign of life of an attempt, the newest ones.
const SIGNS: usize = 64;

/// Returns a run's attempts as people are told of them: one that was lost with its driver ends at its last sign of life.
///
/// That is its last heartbeat, or a later time at which an entry of its own was opened or closed. The work is bounded for
/// each lost attempt, however long the journal is.
pub fn attempts(store: &dyn Store, run: &Run) -> Result<Vec<Attempt>, store::Error> {
    let mut attempts = store.attempts(run.no)?;
    for at in 0..attempts.len() {
        let mut later = attempts[at + 1..].iter().filter(|later| later.slot == attempts[at].slot);
        let next = later.next().map(|later| later.started_at);
        attempts[at].ended_at = end(store, run, &attempts[at], next)?;
    }
    Ok(attempts)
}

/// Returns the end of an attempt; of a lost one, its last sign of life. `None` while it is open. `next`: time at which the next
/// attempt began.
pub fn end(
    store: &dyn Store,
    run: &Run,
    attempt: &Attempt,
    next: Option<Micros>,
) -> Result<Option<Micros>, store::Error> {
    let is_lost = attempt.exit.as_ref().is_some_and(|exit| exit.lost);
    let Some(heartbeat) = attempt.ended_at.filter(|_| is_lost) else { return Ok(attempt.ended_at) };
    let behind = first_since(store, run, next)?;
    let from = Seq((behind.0 - 1).saturating_sub_unsigned(SIGNS as u64).max(0));
    let near = store.entries(run.no, from, SIGNS)?;
    let own = near.iter().filter(|e| e.seq < behind && e.attempt == attempt.no);
    Ok(Some(own.fold(heartbeat, |sign, e| {
        // What was corrected, and what closed after the next attempt had begun, others closed.
        let itself = e.call.as_ref().is_none_or(|call| call.correction.is_none());
        let closed = e.closed_at.filter(|at| {
            itself && matches!(e.state, State::Done | State::Failed) && next.is_none_or(|next| *at < next)
        });
        sign.max(e.opened_at).max(closed.unwrap_or(heartbeat))
    })))
}

/// Returns the number of the first entry that was opened at or after `since`; that of the next entry if there is none.
fn first_since(store: &dyn Store, run: &Run, since: Option<Micros>) -> Result<Seq, store::Error> {
    let Some(since) = since else { return Ok(run.next_seq) };
    let (mut low, mut high) = (0, run.next_seq.0 - 1);
    // Entries up to `low` were opened before `since`, and those above `high` were not.
    while low < high {
        let middle = low + (high - low) / 2;
        match store.entries(run.no, Seq(middle), 1)?.first().filter(|e| e.opened_at < since) {
            Some(e) => low = e.seq.0,
            None => high = middle,
        }
    }
    Ok(Seq(low + 1))
}

named! {
    /// Machine or process with which an attempt was lost whose end nobody saw.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Loss {
        /// The machine was started anew.
        Machine "its machine was rebooted",
        Supervisor "lost with its supervisor",
        /// A loop script's shell.
        Shell "its shell was killed",
        /// A program with the engine inside.
        Program "its process was killed",
    }
}

/// Processes that drove a run's attempts, those that are over too.
#[derive(Clone, Debug, Default)]
pub struct Drivers {
    instances: BTreeMap<InstanceNo, Instance>,
    /// Process that looks.
    here: Option<Identity>,
}

impl Drivers {
    /// Reads who drove `attempts`. `here`: process that looks; it tells of its machine's reboot before the run goes on.
    pub fn read(
        store: &dyn Store,
        attempts: &[Attempt],
        here: Option<Identity>,
    ) -> Result<Drivers, store::Error> {
        let mut instances = BTreeMap::new();
        for no in attempts.iter().filter_map(|a| a.instance) {
            if !instances.contains_key(&no)
                && let Some(instance) = store.instance(no)?
            {
                instances.insert(no, instance);
            }
        }
        Ok(Drivers { instances, here })
    }

    pub fn of(&self, a: &Attempt) -> Option<&Instance> {
        self.instances.get(&a.instance?)
    }

    /// Returns the time for which an attempt has lived, in milliseconds: while it goes on, until the last heartbeat of its
    /// process. Until now is not known yet, and would be taken back if the process turned out to be dead.
    pub fn up_ms(&self, a: &Attempt, now: Micros) -> i64 {
        let seen = || self.of(a).map_or(now, |driver| driver.last_seen.max(a.started_at));
        a.ended_at.unwrap_or_else(seen).ms_since(a.started_at)
    }

    /// Tells what one of the run's `attempts` was lost with; `None` for an attempt that was seen to end, or is open.
    ///
    /// The process of the next attempt, or the one that looks, shows whether their machine was started anew since.
    pub fn loss(&self, view: &RunView, attempts: &[Attempt], a: &Attempt) -> Option<Loss> {
        a.exit.as_ref().filter(|exit| exit.lost)?;
        let next = attempts.iter().find(|later| later.no > a.no && later.instance != a.instance);
        let after = next.map_or(self.here.as_ref(), |next| self.of(next).map(|driver| &driver.identity));
        let driver = self.of(a).map(|driver| &driver.identity);
        let is_new_boot = driver
            .zip(after)
            // An empty boot id is unknown, and tells of no boot.
            .filter(|(driver, after)| !driver.boot_id.is_empty() && !after.boot_id.is_empty())
            .is_some_and(|(driver, after)| after.host == driver.host && after.boot_id != driver.boot_id);
        Some(match &view.spec.command {
            _ if is_new_boot => Loss::Machine,
            Some(_) => Loss::Supervisor,
            None if view.spec.is_shell_loop() => Loss::Shell,
            None => Loss::Program,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        engine::{
            Close,
            tests::bench::{Bench, Request, bill},
        },
        envelope::Limits,
        memory::MemoryStore,
        run::Policy,
        words::ManualClock,
    };

    // Bug: `show` said 1.5 s where the page and `inspect` said 745 ms. Cause: it alone looked for signs of life after the last
    // heartbeat.
    #[test]
    fn a_lost_attempt_ends_at_its_last_sign_of_life_and_any_other_at_its_end() {
        let clock = Arc::new(ManualClock::new(Micros(0)));
        let b = Bench { store: MemoryStore::new(clock.clone()) };
        let run = b.start("r", Limits::default(), None, Policy::default());
        let ends = || -> Vec<Option<i64>> {
            let row = b.store.run(run).unwrap().unwrap().run;
            attempts(&b.store, &row).unwrap().iter().map(|a| a.ended_at.map(|at| at.0 / 1_000_000)).collect()
        };
        let first = b.claim(run, b.register()).unwrap().unwrap();
        assert_eq!(ends(), [None]);
        // Bug: an attempt was up for less time once it was dead. Cause: until then it was told to be up until now.
        let up = || {
            let now = b.store.now().unwrap();
            let row = b.store.run(run).unwrap().unwrap().run;
            let all = attempts(&b.store, &row).unwrap();
            Drivers::read(&b.store, &all, None).unwrap().up_ms(&all[0], now)
        };
        clock.advance_ms(1_000);
        assert_eq!(up(), 0, "nothing was seen of its process since");
        let seq = b.go(first, Request::of(0, 10));
        clock.advance_ms(1_000);
        b.settle(first, seq, Close::Done(bill(5))).unwrap();
        clock.advance_ms(60_000);
        b.die(first.instance);
        assert_eq!(b.store.attempts(run).unwrap()[0].ended_at, Some(Micros(0)), "its last heartbeat");
        assert_eq!(ends(), [Some(2)], "its last answer");
        assert_eq!(up(), 2_000);
        let second = b.claim(run, b.register()).unwrap().unwrap();
        clock.advance_ms(5_000);
        b.go(second, Request::of(1, 10));
        clock.advance_ms(1_000);
        b.die(second.instance);
        assert_eq!(
            ends(),
            [Some(2), Some(67)],
            "what the next attempt did is no sign of the first one's life"
        );
    }
}
