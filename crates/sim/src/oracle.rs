//! Oracle: checks the invariants of ARCHITECTURE.md from outside, on stored data, on what the provider saw and
//! billed, and on what agents received. It shares no code with the decisions it judges.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use outlast_core::{
    call::Visible,
    engine::{Admission, Admit},
    envelope::{Amounts, Owner, Per},
    run::{InDoubt, Status},
    words::EnvelopeNo,
};

use crate::prelude::*;

pub mod work;

type Key = (RunNo, Seq);

/// State of the oracle, and the first violation found.
#[derive(Default)]
pub struct Oracle {
    /// Results and state as the workers saw them.
    pub work: work::Work,
    /// Tool calls, as workers and their server saw them.
    pub tools: work::Tools,
    found: Violation,
    states: BTreeMap<Key, State>,
    /// Deliveries whose mark was lost with its process, so that they may be repeated once.
    unmarked: HashSet<Key>,
    /// Answers that each attempt received at a first try.
    received: HashMap<(RunNo, AttemptNo), HashSet<u64>>,
    /// Entry whose answer each connection is receiving, and at which process. A client that left or has the whole answer
    /// receives nothing.
    receiving: BTreeMap<u64, (RunNo, AttemptNo, Seq, usize)>,
    /// Entries of connections that no longer receive an answer, whose process, which took it as that instance, has not told
    /// the store yet.
    untold: BTreeMap<u64, (Key, InstanceNo, usize)>,
    /// Connections whose client left. One that is admitted all the same has taken its entry until the store is told.
    left: HashSet<u64>,
    /// Instances of processes that have died. What they were sending stays taken until that is found out.
    dead: HashSet<InstanceNo>,
    /// Entries of which a loss of power took what the store had been told of who receives them.
    undone: HashSet<Key>,
    /// Amounts billed beyond what calls had reserved, with the envelopes that they are charged to. Those of calls whose
    /// run was removed stay.
    beyond: BTreeMap<Key, (Vec<EnvelopeNo>, Amounts)>,
    /// Tables before each run was removed. What was on its way then is judged by them.
    removed: BTreeMap<RunNo, Arc<Tables>>,
    /// Number of commits when the tables were last checked.
    checked: i64,
    /// Monotonic time of the last change that waiters may wait for, in milliseconds.
    moved_ms: u64,
    /// Time at which a call of each run last found no turn at its upstream. Such a call asks again once a second, and
    /// other calls of its run wait behind it.
    held_up_ms: HashMap<RunNo, u64>,
}

impl Oracle {
    pub fn violation(&self) -> Option<String> {
        [&self.found, &self.work.found, &self.tools.found].into_iter().find_map(Violation::first)
    }

    fn find(&self, what: String) {
        self.found.find(what);
    }

    pub fn mark_lost(&mut self, run: RunNo, seq: Seq) {
        self.unmarked.insert((run, seq));
    }

    /// Notes that the client of `connection` is receiving the answer of an entry.
    pub fn receives(&mut self, connection: u64, run: RunNo, attempt: AttemptNo, seq: Seq, process: usize) {
        self.receiving.insert(connection, (run, attempt, seq, process));
    }

    /// Notes that the client of `connection` left.
    pub fn leaves(&mut self, connection: u64) {
        self.gives_back(connection);
        self.left.insert(connection);
    }

    /// Notes that `connection` no longer receives the answer that its process took as `instance`, and that the store is
    /// about to be told.
    pub fn gives_back_from(&mut self, connection: u64, key: Key, (instance, process): (InstanceNo, usize)) {
        self.receiving.remove(&connection);
        self.untold.insert(connection, (key, instance, process));
    }

    /// Notes that the store knows that `connection` no longer receives its answer.
    pub fn is_given_back(&mut self, connection: u64) {
        self.untold.remove(&connection);
    }

    /// Notes that the process of an instance has died.
    pub fn died(&mut self, instance: InstanceNo) {
        self.dead.insert(instance);
    }

    /// Notes a change that may let a waiter go on.
    pub fn moved(&mut self, now_ms: u64) {
        self.moved_ms = now_ms;
    }

    /// Notes that the client of `connection` no longer receives its answer: it left, has the whole answer, or asks
    /// anew.
    pub fn gives_back(&mut self, connection: u64) {
        self.receiving.remove(&connection);
    }

    /// Returns the entries that clients of the attempt are receiving, and at which process each.
    pub fn receiving(&self, run: RunNo, attempt: AttemptNo) -> Vec<(Seq, usize)> {
        let own = self.receiving.values().filter(|r| (r.0, r.1) == (run, attempt));
        own.map(|r| (r.2, r.3)).collect()
    }

    /// Checks invariant 9: once a process waits for no commit and no answer, each entry that it has open in the store is
    /// that of a call it still works on; `carried` tells of which ones it does.
    pub fn carries(&self, disk: &MemoryStore, instance: InstanceNo, carried: impl Fn(Key) -> bool) {
        disk.inspect(|t, _| {
            let own = |e: &&Entry| is_call(e) && e.instance == Some(instance) && e.state == State::Open;
            if let Some(e) = t.entries.values().filter(own).find(|e| !carried((e.run, e.seq))) {
                self.find(format!("9: entry {} of run {} is open, and nobody carries it", e.seq, e.run));
            }
        });
    }

    /// Reports that a group that was rolled back left something behind.
    pub fn torn(&self, process: usize) {
        self.find(format!("process {process}: a group was rolled back, and a part of it is there"));
    }

    /// Reports that a process that lives was declared dead.
    pub fn dead_alive(&self, process: usize, instance: InstanceNo) {
        self.find(format!(
            "6: process {process} lives as instance {instance}, and was declared dead by an outage"
        ));
    }

    /// Reports that the upstream was asked more often within a minute than its rate allows.
    pub fn asked_too_fast(&self, key: Key, rate: Rate) {
        self.find(format!("entry {key:?} left, and its upstream takes {rate}"));
    }

    /// Checks a call that an outage holds while another call probes its upstream, of which nothing was heard for
    /// `silent_ms`. No pause is longer than 20 s, and the probe's place is lent for seconds.
    pub fn waits_for_probe(&self, key: Key, silent_ms: u64) {
        let is_held_up = silent_ms > 30_000;
        self.found.find_if(
            is_held_up.then(|| format!("entry {key:?} waits for a probe that hangs, {silent_ms} ms")),
        );
    }

    /// Notes, before a loss of power, the delivery marks that are committed but not synced: they will be lost.
    pub fn power_lost(&mut self, disk: &MemoryStore) {
        self.undone.extend(unsynced(disk, |e| e.taken));
        self.unmarked.extend(unsynced(disk, |e| e.delivered_to));
    }

    /// Notes the runs that a group removed. `trail`: the tables as its operations left them, one after the other.
    pub fn removals(&mut self, trail: &[Arc<Tables>]) {
        for pair in trail.windows(2) {
            let gone = pair[0].runs.keys().filter(|run| !pair[1].runs.contains_key(run));
            self.removed.extend(gone.map(|run| (*run, pair[0].clone())));
        }
    }

    /// Checks invariants 1 (intent before effect) and 8 (fail closed) of a request that the upstream received.
    pub fn sent(&mut self, disk: &MemoryStore, asked: &UpstreamRequest) {
        disk.inspect(|_, synced| {
            let synced = self.with_run(synced, asked.run);
            let Some(e) = synced.entries.get(&(asked.run, asked.seq)) else {
                return self.find(format!("1: {:?} left without an entry on disk", asked.seq));
            };
            // A process that slept between its commit and its send was swept meanwhile: the entry is charged as
            // unknown, which covers the call.
            let swept = e.state == State::Unknown
                || is_refunded(synced, e)
                || e.call.as_ref().is_some_and(|c| c.correction.is_some());
            if e.state != State::Open && !swept {
                self.find(format!("1: entry {} left, and it is {}", asked.seq, e.state.name()));
            }
            if e.call.as_ref().is_some_and(|c| c.resting) {
                self.find(format!("1: entry {} left, and on disk it rests between two tries", asked.seq));
            }
            let needs = asked.bound.cost_at(asked.cap).0;
            if e.state == State::Open && e.held.cost() < needs {
                self.find(format!("1: entry {} left with {} held, {needs} needed", asked.seq, e.held.cost()));
            }
            let limited = |no| synced.envelopes[no].limits[Unit::CostNanoUsd].is_some();
            let charges = synced.runs[&asked.run].charges.iter().chain(e.windows());
            if !asked.priced && charges.into_iter().any(limited) {
                self.find(format!("8: entry {} left without a price, under a limit in usd", asked.seq));
            }
        });
    }

    /// Checks invariant 2 (durable before visible) of the part of an answer that a client is shown.
    pub fn shown(
        &mut self,
        disk: &MemoryStore,
        provider: &Provider,
        run: RunNo,
        seq: Seq,
        visible: Visible,
        frames: Option<&[Frame]>,
    ) {
        let ends = |frame: &Frame| matches!(frame, Frame::Stop | Frame::Terminal | Frame::Error);
        let shows_end = match (visible, frames) {
            (Visible::Nothing, _) => false,
            (Visible::Frames(n), Some(frames)) => frames.iter().take(n).any(ends),
            (Visible::Frames(_), None) | (Visible::Whole, _) => true,
        };
        if !shows_end {
            return;
        }
        let stored = |synced: &Tables| match synced.entries.get(&(run, seq)) {
            Some(e) if e.state == State::Failed => {}
            Some(e) if e.state == State::Done => {
                let stored = synced.payloads.get(&(run, seq, Role::Answer, 0)).and_then(|p| p.decode().ok());
                let bought = provider.served.get(&(run, seq)).map(|s| s.answer.to_string());
                if stored.as_deref() != bought.as_deref().map(str::as_bytes) {
                    self.find(format!("2: the end of entry {seq} was shown without its answer on disk"));
                }
            }
            e => {
                let state = e.map_or("missing", |e| e.state.name());
                self.find(format!("2: the end of entry {seq} was shown while it is {state} on disk"));
            }
        };
        disk.inspect(|_, synced| stored(self.with_run(synced, run)));
    }

    /// Checks that an answer received whole belongs to the agent's own request.
    pub fn received(&mut self, provider: &Provider, request: &Request, attempt: AttemptNo, answer: u64) {
        let Some((key, served)) = provider.served.iter().find(|(_, s)| s.answer == answer) else {
            return self.find(format!("an answer {answer} that was never made"));
        };
        let asked = &served.asked;
        if (asked.run, asked.digest, &*asked.scope) != (request.run, request.digest(), &*request.scope) {
            return self.find(format!(
                "4: run {} got the answer of {key:?} in scope {:?} for a request in scope {:?}",
                request.run, asked.scope, request.scope
            ));
        }
        // A marked retry may be given an earlier try's answer; a first try may not.
        let attempts = self.received.entry((request.run, attempt)).or_default();
        let first = attempts.insert(answer);
        if !first && request.retry == 0 && request.key.is_none() && !self.unmarked.contains(key) {
            self.find(format!("two requests of attempt {attempt} got one answer, of entry {key:?}"));
        }
    }

    /// Notes that until now calls of the run waited behind another call, which free room in a budget would not have let
    /// go: it had no turn at its upstream (a rate limit, an outage), or it needed more than was free, and then left.
    pub fn held_up(&mut self, now_ms: u64, run: RunNo) {
        self.held_up_ms.insert(run, now_ms);
    }

    /// Checks that a waiter was served at the end of its wait only if nothing could have woken it earlier.
    pub fn overslept(&mut self, now_ms: u64, run: RunNo, seq: Seq) {
        let was_behind = self.held_up_ms.get(&run).is_some_and(|ms| now_ms - ms < 1_500);
        if now_ms - self.moved_ms > 1_000 && !was_behind {
            self.find(format!(
                "the waiter that got entry {seq} of run {run} was not woken when it could be served"
            ));
        }
    }

    /// Checks an admission's answer. `trail`: the tables as the operations of its group left them, one after the other.
    /// `asked`: the process, and the entries that its attempt was receiving when it asked.
    pub fn decided(
        &mut self,
        trail: &[Arc<Tables>],
        now: Micros,
        op: &Op,
        (process, asked): (usize, &[(Seq, usize)]),
        result: &Result<Outcome, Error>,
    ) {
        let (Op::Admit(admit), Ok(Outcome::Admitted(admission))) = (op, result) else { return };
        // Of its own connections a process knows when it asks; of those of others, the store does when it decides.
        let (run, attempt) = (admit.actor.run, admit.actor.attempt);
        let here = asked.iter().filter(|(_, at)| *at == process);
        let now_elsewhere = self.receiving(run, attempt).into_iter().filter(|(_, at)| *at != process);
        let elsewhere: Vec<Seq> = now_elsewhere.map(|(seq, _)| seq).collect();
        let here: Vec<Seq> = here.map(|(seq, _)| *seq).collect();
        let receiving = &Receiving { here, elsewhere };
        match admission {
            Admission::Go { opening: Opening { seq, .. }, .. } => {
                let key = (admit.actor.run, *seq);
                match trail.iter().find(|t| t.entries.contains_key(&key)) {
                    Some(t) => self.new_call(t, now, admit, receiving, *seq),
                    None => self.find(format!("entry {key:?} was acknowledged, and no group wrote it")),
                }
            }
            Admission::Replay { seq } | Admission::Join { seq, .. } => {
                let wrong = trail.iter().map(|t| old_call(t, admit, receiving, *seq));
                let wrong = wrong.min().unwrap_or_else(|| Some("a group without a transaction".to_owned()));
                let key = (run, *seq);
                let is_widowed = trail.first().is_some_and(|t| self.is_widowed(t, &key));
                let is_late = receiving.elsewhere.contains(seq) && (wrong.is_none() || is_widowed);
                let is_gone =
                    |no| trail.first().is_some_and(|t| is_judged(t, no)) || self.undone.contains(&key);
                let mut untold = self.untold.values().filter(|(of, _, at)| *of == key && *at != process);
                match is_late || untold.any(|(_, instance, _)| is_gone(*instance)) {
                    // Two connections have one answer: the other process may hear late that its own is gone, or was taken
                    // for dead, also before its mark is written.
                    true => drop(self.unmarked.insert(key)),
                    false => self.found.find_if(wrong),
                }
            }
            Admission::Wait { .. } | Admission::Refused(_) => {}
        }
        if let Admission::Go { opening: Opening { seq, .. }, .. }
        | Admission::Replay { seq }
        | Admission::Join { seq, .. } = admission
        {
            match self.left.contains(&admit.connection) {
                true => self.gives_back_from(admit.connection, (run, *seq), (admit.actor.instance, process)),
                false => self.receives(admit.connection, run, attempt, *seq, process),
            }
        }
    }

    /// Returns the synced tables or, if the run was removed from them, those before that.
    fn with_run<'a>(&'a self, synced: &'a Tables, run: RunNo) -> &'a Tables {
        let removed = self.removed.get(&run).filter(|_| !synced.runs.contains_key(&run));
        removed.map_or(synced, |before| &**before)
    }

    /// Returns whether the taker of an entry was declared dead by another process, or the store has lost it with its power.
    fn is_widowed(&self, t: &Tables, key: &Key) -> bool {
        let taker = t.entries.get(key).and_then(|e| e.taken);
        taker.is_some_and(|taker| is_judged(t, taker.instance)) || self.undone.contains(key)
    }

    /// Returns whether the store holds an entry for taken, and nobody receives its answer: the store was not told yet. The
    /// instance that asks, `own`, knows that of its own connections.
    fn is_held(&self, t: &Tables, key: &Key, own: InstanceNo) -> bool {
        let is_elsewhere = |instance| instance != own && lives(t, instance);
        let taker = t.entries.get(key).and_then(|e| e.taken).filter(|taker| is_elsewhere(taker.instance));
        let untold = taker.is_some_and(|taker| self.untold.contains_key(&taker.connection));
        let is_dead = taker.is_some_and(|taker| self.dead.contains(&taker.instance));
        untold || is_dead || taker.is_some() && self.undone.contains(key)
    }

    /// Checks a new call for invariants 4 (paid once) and 6 (one driver).
    fn new_call(&mut self, t: &Tables, now: Micros, admit: &Admit, receiving: &Receiving, seq: Seq) {
        let run = admit.actor.run;
        let same: Vec<&Entry> = t.entries_of(run).filter(|e| e.seq != seq && is_same(e, admit)).collect();
        let own = admit.actor.instance;
        let serves = |e: &&&Entry| is_free(t, e, admit, receiving) && !self.is_held(t, &(run, e.seq), own);
        if let Some(e) = same.iter().find(serves) {
            self.find(format!("4: entry {seq} was bought, and entry {} would have served", e.seq));
        }
        // A retry after an error may be a new call; a retry after a lost answer is given that answer again.
        let stands_for_an_error = admit.answered_with_error || same.iter().any(|e| is_error(e, admit));
        let lost = same.iter().find(|e| was_lost(e, admit, receiving));
        if let Some(e) = lost.filter(|_| admit.retry_count > 0 && !stands_for_an_error) {
            self.find(format!("4: entry {seq} was bought, and its client had only lost entry {}", e.seq));
        }
        let Some(attempt) = t.attempts.get(&(run, admit.actor.attempt)) else {
            return self.find(format!("6: entry {seq} of an attempt that is not there"));
        };
        let newer = t.attempts.values().any(|a| a.run == run && a.slot == attempt.slot && a.no > attempt.no);
        if !attempt.is_open() || newer {
            self.find(format!("6: attempt {} is over and opened entry {seq}", attempt.no));
        }
        if let Some(entry) = t.entries.get(&(run, seq)) {
            self.windows(t, entry, now);
        }
        if let Some(fence) = attempt.fence {
            let lease = t.leases.get(&(run, attempt.slot));
            if !lease.is_some_and(|x| x.fence == fence && lives(t, x.instance)) {
                self.find(format!("6: entry {seq} was opened without the lease"));
            }
        }
    }

    /// Checks that a call is charged to the hour in which it is admitted.
    fn windows(&self, t: &Tables, e: &Entry, now: Micros) {
        let this_hour = Per::Hour.period(now).name;
        let hour = |no: &EnvelopeNo| match &t.envelopes[no].owner {
            Owner::Window { period, .. } => Some(period.clone()),
            Owner::Run(_) => None,
        };
        if let Some(charged) = e.windows().iter().filter_map(hour).find(|hour| *hour != this_hour) {
            self.find(format!("entry {} was admitted in {this_hour}, and is charged to {charged}", e.seq));
        }
    }

    /// Checks invariants 3, 5 and 9, and the sums of the envelopes, on the tables of the disk.
    pub fn check_tables(&mut self, disk: &MemoryStore, provider: &Provider) {
        let commits = disk.snapshot().1;
        if std::mem::replace(&mut self.checked, commits) == commits {
            return;
        }
        let states = disk.inspect(|t, synced| {
            self.limits(t);
            self.found.find_if(t.inconsistency());
            self.entries(t, provider);
            self.owners(t);
            self.work.check(synced, &self.states, t);
            t.entries.iter().map(|(k, e)| (*k, e.state)).collect()
        });
        self.states = states;
    }

    /// Checks invariant 3: spent and reserved amounts exceed no limit, except by amounts that were billed beyond what
    /// calls had reserved. In an envelope that several runs share, these amounts add up.
    fn limits(&mut self, t: &Tables) {
        self.beyond.retain(|(run, _), _| !t.runs.contains_key(run));
        for e in t.entries.values().filter(|e| is_call(e)) {
            let beyond = beyond(e);
            if e.call.as_ref().is_some_and(|c| c.overrun() != c.overrun().least(&beyond)) {
                self.find(format!("3: entry {} of run {} tells an overrun beyond {beyond:?}", e.seq, e.run));
            }
            if !beyond.is_zero() {
                self.beyond.insert((e.run, e.seq), (t.charges(e).collect(), beyond));
            }
        }
        let mut over: BTreeMap<EnvelopeNo, Amounts> = BTreeMap::new();
        for (charges, beyond) in self.beyond.values() {
            charges.iter().for_each(|envelope| *over.entry(*envelope).or_default() += *beyond);
        }
        for envelope in t.envelopes.values() {
            let over = over.get(&envelope.no).copied().unwrap_or_default();
            for unit in [Unit::CostNanoUsd, Unit::Tokens, Unit::Calls] {
                let (used, over) = (envelope.spent[unit] + envelope.reserved[unit], over[unit]);
                if envelope.limits[unit].is_some_and(|limit| used > limit + over) {
                    let (no, unit) = (envelope.no, unit.name());
                    self.find(format!(
                        "3: envelope {no} has {used} of its limit in {unit}, allowed {over} over"
                    ));
                }
            }
        }
    }

    /// Checks invariant 5: nothing in doubt is free, and an entry closes once.
    fn entries(&self, t: &Tables, provider: &Provider) {
        for (key, e) in &t.entries {
            let before = self.states.get(key).copied().unwrap_or(State::Open);
            let unknown_once =
                before == State::Unknown && matches!(e.state, State::Done | State::Failed | State::Void);
            if before != e.state && before != State::Open && !unknown_once {
                self.find(format!("entry {key:?} went from {} to {}", before.name(), e.state.name()));
            }
            if matches!(e.state, State::Done | State::Failed | State::Void) && !e.held.is_zero() {
                self.find(format!("entry {key:?} is closed and holds {:?}", e.held));
            }
            let Some(served) = provider.served.get(key) else { continue };
            if e.state == State::Void {
                self.find(format!("5: entry {key:?} is void, and the provider saw it"));
            }
            let owed = served.billed - shown(t, e) - served.beyond;
            let (cost, tokens) = (owed.cost(), owed.tokens());
            if cost.max(tokens) > 0 {
                self.find(format!(
                    "5: the provider billed {cost} and {tokens} tokens more for {key:?} ({}) than is shown",
                    e.state.name()
                ));
            }
        }
    }

    /// Checks invariant 9: entries that a dead instance had open are swept with the instance.
    fn owners(&self, t: &Tables) {
        let live = |i| lives(t, i);
        for (key, e) in &t.entries {
            if is_call(e) && e.state == State::Open && !e.instance.is_some_and(live) {
                self.find(format!("9: entry {key:?} is open, and its instance is dead"));
            }
        }
        for a in t.attempts.values() {
            if a.is_open() && a.instance.is_some_and(|i| !live(i)) {
                self.find(format!("9: attempt {} of run {} is open, and its instance is dead", a.no, a.run));
            }
        }
        for run in t.runs.values() {
            let open = t.attempts.values().any(|a| a.run == run.no && a.is_open());
            let held = t.leases.values().any(|x| x.run == run.no && live(x.instance));
            let goes_on = matches!(run.status, Status::Running | Status::Waiting | Status::Sleeping);
            if goes_on && !open && !held {
                self.find(format!("9: run {} is {}, and nobody drives it", run.no, run.status.name()));
            }
        }
    }

    /// Returns what is still open when all agents and workers have finished; `None` if nothing is.
    pub fn at_rest(&self, disk: &MemoryStore) -> Option<String> {
        disk.inspect(|t, _| {
            let open = t.entries.values().find(|e| is_call(e) && e.state == State::Open)?;
            Some(format!("9: entry {} of run {} stayed open", open.seq, open.run))
        })
    }
}

/// First violation that a part of the oracle has found.
#[derive(Default)]
pub struct Violation(RefCell<Option<String>>);

impl Violation {
    pub fn find_if(&self, what: Option<String>) {
        what.into_iter().for_each(|what| self.find(what));
    }

    pub fn find(&self, what: String) {
        self.0.borrow_mut().get_or_insert(what);
    }

    fn first(&self) -> Option<String> {
        self.0.borrow().clone()
    }
}

/// Entries whose answers an attempt is receiving.
struct Receiving {
    /// At the process that decides about a request.
    here: Vec<Seq>,
    elsewhere: Vec<Seq>,
}

impl Receiving {
    fn has(&self, seq: Seq) -> bool {
        self.here.contains(&seq) || self.elsewhere.contains(&seq)
    }
}

/// Returns the committed entries of which a fact is not synced.
fn unsynced<F: PartialEq>(disk: &MemoryStore, fact: impl Fn(&Entry) -> Option<F>) -> Vec<Key> {
    disk.inspect(|committed, synced| {
        let differs = |(key, e): &(&Key, &Entry)| fact(e) != synced.entries.get(key).and_then(&fact);
        committed.entries.iter().filter(differs).map(|(key, _)| *key).collect()
    })
}

/// Returns whether another process has declared the instance dead. Its own process, which may live, is not asked.
fn is_judged(t: &Tables, instance: InstanceNo) -> bool {
    t.instances.get(&instance).is_some_and(|i| i.life == Life::Dead)
}

fn lives(t: &Tables, instance: InstanceNo) -> bool {
    t.instances.get(&instance).is_some_and(|i| i.life == Life::Live)
}

/// Returns whether the entry is a call. Steps, items and approvals outlive their process open.
fn is_call(e: &Entry) -> bool {
    e.kind == Kind::Call
}

/// Returns whether the entry is the same request, judged by its content and scope and not by its match key.
fn is_same(e: &Entry, admit: &Admit) -> bool {
    e.scope == admit.scope && e.call.as_ref().is_some_and(|c| c.digest == Some(admit.digest))
}

/// Returns whether the entry is a lost call of a run that does not charge those: the user bears the provider's bill.
fn is_refunded(t: &Tables, e: &Entry) -> bool {
    t.runs[&e.run].policy.in_doubt == InDoubt::Refund && matches!(e.state, State::Failed | State::Unknown)
}

/// Returns what is wrong with an entry that serves a request, judged by the tables at one moment.
fn old_call(t: &Tables, admit: &Admit, receiving: &Receiving, seq: Seq) -> Option<String> {
    let Some(e) = t.entries.get(&(admit.actor.run, seq)) else {
        return Some(format!("entry {seq} serves and is not there"));
    };
    if !is_same(e, admit) {
        return Some(format!("4: entry {seq} serves a request that is not its own"));
    }
    let serves = is_free(t, e, admit, receiving) || is_marked(admit) && !receiving.here.contains(&seq);
    (!serves).then(|| format!("entry {seq} serves and is not free"))
}

/// Returns the cost and tokens that the journal shows of a call: what was charged, or may be, whether the budget had room
/// for it or not. A call in doubt shows its own reservation, even if the hold went to its retry or the user bears the
/// doubt.
fn shown(t: &Tables, e: &Entry) -> Amounts {
    let Some(call) = &e.call else { return Amounts::default() };
    let charged = e.spent + e.held;
    let unbacked = call.correction.as_ref().map(|c| Amounts::of(c.unbacked_nano_usd, c.unbacked_tokens));
    match e.state == State::Unknown || is_refunded(t, e) {
        true => charged.most(&call.reserved),
        false => charged + unbacked.unwrap_or_default(),
    }
}

/// Returns the cost and tokens by which a settled call may be over its limits: what its bill is above its reservation or,
/// if it came late, all of it. Other calls may have had what it held.
fn beyond(e: &Entry) -> Amounts {
    let Some(call) = &e.call else { return Amounts::default() };
    let billed = Amounts::of(e.spent.cost(), e.spent.tokens());
    match &call.correction {
        Some(late) if late.posted == e.spent => billed,
        Some(_) => Amounts::default(),
        None => (billed - call.reserved).most(&Amounts::default()),
    }
}

fn is_marked(admit: &Admit) -> bool {
    admit.retry_count > 0 || admit.idempotency_key.is_some()
}

/// Returns whether the entry's answer can serve the request: no client of the attempt has the answer, or is receiving
/// it.
fn is_free(t: &Tables, e: &Entry, admit: &Admit, receiving: &Receiving) -> bool {
    let serves = e.state == State::Open || e.state == State::Done && e.replayable;
    let own = e.attempt == admit.actor.attempt;
    let ended = t.attempts.get(&(e.run, e.attempt)).is_some_and(|a| a.ended_at.is_some());
    serves && (own || ended) && e.delivered_to != Some(admit.actor.attempt) && !receiving.has(e.seq)
}

/// Returns whether the attempt got the entry's answer at an earlier try, and no client receives it now.
fn was_lost(e: &Entry, admit: &Admit, receiving: &Receiving) -> bool {
    let delivered = e.delivered_to == Some(admit.actor.attempt) && e.delivered_count < admit.retry_count;
    delivered && e.state == State::Done && e.replayable && !receiving.has(e.seq)
}

/// Returns whether the entry is a call of the attempt that failed, is void or unknown.
fn is_error(e: &Entry, admit: &Admit) -> bool {
    let failed = matches!(e.state, State::Failed | State::Void | State::Unknown);
    failed && e.attempt == admit.actor.attempt
}
