//! A run that waits before its next attempt: until its provider's usage limit is over, for room in a budget above its
//! own, or for its provider. One supervisor waits, as a live instance: it registers again when it was declared dead.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use outlast_core::{
    engine::{self, Halt, Hold, Verb},
    journal::ApprovalId,
    reads::{
        approvals::{self, View},
        budgets::hopeless,
    },
    run::{Run, Status},
    store::{self, Ask as _, Durability, Store},
    words::{InstanceNo, Micros, Outage, RunNo, Seq, clock::random},
};
use outlast_server::{door::Proxy, node::HEARTBEAT};
use tokio::{sync::watch, time::Instant};

use super::{
    Driver,
    attempt::{self, EndedBy},
};
use crate::{
    program::{error::CliError, say::say},
    render::{look::clean_line, short::called, time},
    supervisor::{beat::Word, has_room, story},
};

/// Longest time between two checks of the wall clock, which counts while the machine is suspended. A stop or
/// a wake is noticed within this time too.
const LOOK: Duration = Duration::from_secs(1);

/// Interval at which the supervisor checks for room and for a stop.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(500);

/// Interval at which the lease is renewed while waiting: another process may have declared this one dead.
const HOLD: Duration = Duration::from_secs(30);

impl Driver {
    /// Waits until the run's time to wake, if it has one, without starting an attempt. Returns the exit code if the run has
    /// ended or was stopped; `None` if the run may go on.
    ///
    /// Errors: `RunHeld`: another process waits, and will wake the run.
    pub(super) async fn sleep_on(&mut self) -> Result<Option<u8>, CliError> {
        if story::view(self.store.as_ref(), &self.view)?.run.wake_at.is_none() {
            return Ok(None);
        }
        let (Some(until), _) = self.hold().await? else { return Ok(None) };
        if nap(until, self.store.now()?).is_some() {
            let id = called(&self.view);
            let wait = time::span(until.ms_since(self.store.now()?));
            let view = story::view(self.store.as_ref(), &self.view)?;
            let why = view.run.halt.map_or_else(|| "usage limit".to_owned(), |halt| halt.message());
            say(&format!(
                "{why}: {id} sleeps until {} (for {wait}); `outlast wake {id}` starts it now",
                time::moment(until)
            ));
        }
        let mut held = Instant::now();
        loop {
            let view = story::view(self.store.as_ref(), &self.view)?;
            match view.run.status {
                Status::Sleeping if view.run.stop_requested => return self.interrupted(true).await.map(Some),
                Status::Sleeping => {}
                // This process was taken for dead.
                Status::Interrupted if view.run.wake_at.is_some() => drop(self.hold().await?),
                Status::Running => {
                    say("woken");
                    return Ok(None);
                }
                Status::Interrupted if view.run.stop_requested => {
                    return self.finish(Status::Interrupted).map(Some);
                }
                Status::Interrupted | Status::Waiting | Status::Failed => return Ok(None),
                status @ (Status::Halted | Status::Completed | Status::Cancelled) => {
                    return self.finish(status).map(Some);
                }
            }
            let Some(nap) = nap(view.run.wake_at.unwrap_or(until), self.store.now()?) else { break };
            if let Some(code) = self.wait_and_hold(nap, &mut held).await? {
                return Ok(Some(code));
            }
        }
        // Jitter, so that runs that wait for one account's limit do not all return at once. The backoff grows
        // while a limit that should be over is not.
        let jitter = self.jitter();
        self.pause(jitter).await
    }

    /// Waits until `wait` is over, or a signal has come. Returns the exit code if a person or the machine ends the run by
    /// the signal; `None` otherwise.
    pub(super) async fn wait_for_signals(&self, wait: Duration) -> Result<Option<u8>, CliError> {
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(None),
            signals = self.signals.next() => match attempt::asked(&signals?) {
                Some(by) => self.interrupted(by == EndedBy::Person).await.map(Some),
                None => Ok(None),
            },
        }
    }

    /// Waits as [`Driver::wait_for_signals`] does, and renews the lease that was renewed at `held`, if it is time.
    async fn wait_and_hold(&self, wait: Duration, held: &mut Instant) -> Result<Option<u8>, CliError> {
        let ended = self.wait_for_signals(wait).await?;
        if ended.is_none() && (held.elapsed() >= HOLD || self.beat.word().borrow().dead) {
            *held = Instant::now();
            self.hold().await?;
        }
        Ok(ended)
    }

    /// Takes or renews the run's lease. Returns the time until which the run sleeps (`None` if it does not sleep) and
    /// the instance that has the lease.
    pub(super) async fn hold(&self) -> Result<(Option<Micros>, InstanceNo), CliError> {
        let run = self.view.run.no;
        self.ask_alive(|instance| Hold { run, instance }).await
    }

    /// Waits while the run has the status `waiting`, without starting an attempt. Returns the exit code if the run has
    /// ended or was stopped; `None` if the run may go on.
    ///
    /// A raised budget, the budget's next window or settled calls of other runs make room. Errors: `RunHeld`: another
    /// process drives the run.
    pub(super) async fn wait_for_room(&mut self) -> Result<Option<u8>, CliError> {
        // If the run has already ended, the claim refuses it.
        if story::view(self.store.as_ref(), &self.view)?.run.status != Status::Waiting {
            return Ok(None);
        }
        let (mut said, mut held) = (false, Instant::now());
        loop {
            let view = story::view(self.store.as_ref(), &self.view)?;
            match view.run.status {
                Status::Waiting if view.run.stop_requested => return self.interrupted(true).await.map(Some),
                Status::Waiting => {}
                Status::Running | Status::Interrupted | Status::Sleeping | Status::Failed => return Ok(None),
                status @ (Status::Halted | Status::Completed | Status::Cancelled) => {
                    return self.finish(status).map(Some);
                }
            }
            if self.has_room(&view.run)? {
                break;
            }
            if self.halts_without_hope(&view.run).await? {
                return self.finish(Status::Halted).map(Some);
            }
            if !said {
                story::waits(self.store.as_ref(), &view)?;
                said = true;
                self.hold().await?;
            }
            if let Some(code) = self.wait_and_hold(LOOK_FOR_ROOM, &mut held).await? {
                return Ok(Some(code));
            }
        }
        if said {
            say("there is room again");
        }
        // Jitter, so that runs that wait for one budget do not all return at once. The backoff grows while an
        // agent cannot use the room there is.
        let jitter = self.jitter();
        let run = story::view(self.store.as_ref(), &self.view)?.run;
        match run.awaited_outage() {
            Some((outage, _)) => self.wait_for_probe(outage, jitter).await,
            None => self.pause(jitter).await,
        }
    }

    /// Waits before the next attempt at a provider that answers no call. The attempt's first call is the probe.
    async fn wait_for_probe(&mut self, outage: &Outage, jitter: Duration) -> Result<Option<u8>, CliError> {
        self.hold().await?;
        let pause = jitter.min(self.outage_rules.pause);
        say(&format!("{outage}; the agent is started again in {:.1} s", pause.as_secs_f64()));
        self.pause(pause).await
    }

    /// Waits for a backoff after the agent ended because other runs' calls in flight left no room for its own. That
    /// room returns by itself. Does nothing for a run with the status `waiting`, which [`Driver::wait_for_room`]
    /// handles. Returns the exit code if the run was stopped meanwhile; `None` otherwise.
    pub(super) async fn stand_back(&mut self) -> Result<Option<u8>, CliError> {
        if story::view(self.store.as_ref(), &self.view)?.run.status == Status::Waiting {
            return Ok(None);
        }
        let jitter = self.jitter();
        say(&format!(
            "no room for its calls while others' are in flight; it begins again in {:.1} s",
            jitter.as_secs_f64()
        ));
        self.pause(jitter).await
    }

    /// Returns whether the call that was refused would fit into the budgets now.
    fn has_room(&self, run: &Run) -> Result<bool, CliError> {
        run.halt.as_ref().map_or(Ok(true), |refusal| has_room(self.store.as_ref(), refusal))
    }

    /// Halts a run that waits for room which only a person gives. Returns whether it did.
    pub(super) async fn halts_without_hope(&self, run: &Run) -> Result<bool, CliError> {
        let Some(refusal) = hopeless(self.store.as_ref(), run)? else { return Ok(false) };
        self.store.ask(Halt { run: run.no, refusal }, Durability::Synced).await?;
        Ok(true)
    }

    /// As [`Driver::halts_without_hope`], of the run as it is in the store.
    pub(super) async fn halts_if_hopeless(&self) -> Result<bool, CliError> {
        let view = story::view(self.store.as_ref(), &self.view)?;
        self.halts_without_hope(&view.run).await
    }

    /// Returns the pause before the next attempt, so that runs that wait for one thing do not all return at once.
    pub(super) fn jitter(&mut self) -> Duration {
        self.backoff.after(self.lived, u64::from_le_bytes(random(self.context.entropy.as_ref())))
    }

    /// Submits an operation as this process's instance, which is registered again if it was declared dead. Returns the
    /// answer and the instance in whose name it was submitted.
    ///
    /// Errors: `RunHeld` if another process drives the run. A holder that cannot be seen from here (a container killed
    /// a moment ago) may be dead, so this waits once until that is decided.
    pub(super) async fn ask_alive<V: Verb>(
        &self,
        verb: impl Fn(InstanceNo) -> V,
    ) -> Result<(V::Answer, InstanceNo), CliError> {
        let mut waited = false;
        loop {
            let instance = self.node.instance();
            match self.store.ask(verb(instance), Durability::Synced).await {
                Ok(answer) => return Ok((answer, instance)),
                Err(store::Error::Engine(engine::Error::InstanceDead)) => {
                    let registered = self.node.register_anew(instance).await;
                    registered.or_else(comes_back)?;
                }
                Err(store::Error::Engine(engine::Error::RunHeld { .. })) if !waited => {
                    waited = self.await_verdicts().await?;
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits until each process that may be dead has renewed its heartbeat or was declared dead. Returns
    /// false if the store went away meanwhile.
    async fn await_verdicts(&self) -> Result<bool, CliError> {
        let node = self.node.clone();
        let judged = tokio::task::spawn_blocking(move || node.await_verdicts()).await;
        let judged = judged.map_err(std::io::Error::other)?;
        let is_done = judged.is_ok();
        judged.or_else(comes_back)?;
        Ok(is_done)
    }
}

/// Returns how long to sleep before the next look at the clock; `None` when it is time.
fn nap(until: Micros, now: Micros) -> Option<Duration> {
    let left = u64::try_from(until.0.saturating_sub(now.0)).ok().filter(|left| *left > 0)?;
    Some(Duration::from_micros(left).min(LOOK))
}

/// Turns the error of a store that is away into success, because the next operation waits for the store. Any other
/// error is returned.
fn comes_back(e: store::Error) -> Result<(), store::Error> {
    if e.is_away() { Ok(()) } else { Err(e) }
}

// --- Watching of a run that waits: approvals that the agent asks for are printed, each once, to whoever watches; and
// `outlast wake` of a run that waits for its provider has the provider asked at once. That order is an act in the run's
// journal, and whoever holds the run's calls looks for it while the run waits.

/// Name of the act that `outlast wake` records.
const WAKE: &str = "wake";

/// Longest excerpt of a question, in characters.
const EXCERPT: usize = 160;

/// Prints each pending approval once, and has the proxy probe at once whenever a person wakes the run, as long as the run
/// waits while its agent lives. Ends with the heartbeat.
pub async fn heed(store: Arc<dyn Store>, run: RunNo, mut word: watch::Receiver<Word>, proxy: Proxy) {
    let mut said: BTreeSet<ApprovalId> = BTreeSet::new();
    // Number of the run's next entry when it was looked at last; `None` while it does not wait.
    let mut seen: Option<Seq> = None;
    loop {
        let waits = word.borrow_and_update().pulse.as_ref().is_some_and(|p| p.status == Status::Waiting);
        let since = seen.take();
        if waits {
            let store = store.clone();
            let looks = move || (approvals::pending(&*store, Some(run)), look(&*store, run, since));
            // A failed read is tried again at the next beat. The heartbeat itself reports a failing store.
            let (asked, woken) =
                tokio::task::spawn_blocking(looks).await.unwrap_or((Ok(Vec::new()), Ok(None)));
            let asked = asked.unwrap_or_default();
            for view in asked.iter().rev().filter(|v| !said.contains(&v.id)) {
                say(&question(view));
            }
            said.extend(asked.iter().map(|v| v.id));
            let (next, is_woken) = woken.ok().flatten().map_or((since, false), |(next, is)| (Some(next), is));
            seen = next;
            if is_woken {
                proxy.probe();
            }
        }
        // A second question does not change the heartbeat's answer, so the wait also has a timeout.
        tokio::select! {
            changed = word.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(HEARTBEAT), if waits => {}
        }
    }
}

/// Returns the number of the run's next entry, and whether it was woken since that was `since`.
fn look(store: &dyn Store, no: RunNo, since: Option<Seq>) -> Result<Option<(Seq, bool)>, store::Error> {
    let Some(view) = store.run(no)? else { return Ok(None) };
    let next = view.run.next_seq;
    Ok(Some((next, is_woken(store, &view.run, since.unwrap_or(next))?)))
}

/// Returns whether a person has woken the run since the number of its next entry was `since`.
pub fn is_woken(store: &dyn Store, run: &Run, since: Seq) -> Result<bool, store::Error> {
    let Some(count) = usize::try_from(run.next_seq.0 - since.0).ok().filter(|count| *count > 0) else {
        return Ok(false);
    };
    let new = store.entries(run.no, Seq(since.0 - 1), count)?;
    Ok(new.iter().any(|entry| entry.act().is_some_and(|(name, _)| name == WAKE)))
}

/// Returns an approval that is asked for, in words.
fn question(view: &View) -> String {
    let asked = format!("{} {}", view.detail.tool, String::from_utf8_lossy(&view.arguments));
    let (asked, id) = (clean_line(&asked, EXCERPT), view.id);
    format!("the agent asks for {asked}: `outlast approve {id}`, or with --deny")
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        engine::{InName, Start, Tell, Word as Order},
        memory::MemoryStore,
        store::{Ask as _, Durability},
        words::{ManualClock, Micros, RunId},
    };

    use super::*;

    #[test]
    fn the_clock_is_looked_at_every_second_and_never_too_early() {
        let check = |until: i64, now: i64, wanted: Option<Duration>| {
            assert_eq!(nap(Micros(until), Micros(now)), wanted, "{until} {now}");
        };
        check(10, 10, None);
        check(10, 11, None);
        check(11, 10, Some(Duration::from_micros(1)));
        check(5_000_000, 0, Some(LOOK));
        check(i64::MAX, -1, Some(LOOK));
        // Clock set back: it sleeps on. Clock moved forward, as by a suspend: it wakes.
        check(5_000_000, 4_999_000, Some(Duration::from_millis(1)));
    }

    #[test]
    fn a_wake_is_heard_once() {
        let store = MemoryStore::new(Arc::new(ManualClock::new(Micros(1))));
        let run = store.run_verb(Start::new(RunId::new("r").unwrap()), Durability::Synced).unwrap().run;
        let mut seen = None;
        let mut looks = || {
            let (next, is_woken) = look(&store, run, seen).unwrap().unwrap();
            seen = Some(next);
            is_woken
        };
        let order =
            |word| store.run_verb(InName::of("cli:ann", Tell { run, word }), Durability::Synced).unwrap();
        order(Order::Wake);
        assert!(!looks(), "that was before it waited");
        order(Order::Wake);
        assert!(looks() && !looks());
        order(Order::Stop);
        assert!(!looks());
    }
}
