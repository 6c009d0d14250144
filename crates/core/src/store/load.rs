//! Loading: fetches the rows that an operation needs, and the rows they lead to, for every store.
//!
//! Keys are fetched in rounds, and a store answers a round in one batch. The rows found lead to the keys of the next
//! round (a run to its envelopes, a lease to its holder, a retry to the call it repeats), until nothing is missing.
//! A remote store keeps `Edges`, with which a usual operation takes one round.

use std::{collections::BTreeSet, mem::take, sync::Arc};

use crate::{
    engine::{
        Loaded, Need,
        loaded::{Declared, Key, Newest},
    },
    envelope::{Budget, Envelope},
    journal::{Entry, Kind, State, job},
    run::{Attempt, Lease, Origin, Run},
    store::Error,
    words::{BudgetNo, EnvelopeNo, InstanceNo, Map, Micros, Row, RunNo, Seq},
};

/// The part of a database that loading uses.
pub trait Fetch {
    /// Adds to `into` the rows that `keys` name, in one batch. A missing row is no error. `load` asks for each key once
    /// per operation.
    fn fetch(&mut self, keys: &[Key<'_>], into: &mut Loaded) -> Result<(), Error>;

    /// Returns the store's cache of which rows lead to which; `None` where a round costs nothing.
    fn edges(&mut self) -> Option<&mut Edges> {
        None
    }
}

/// Loads the rows that `needs` name and the rows they lead to, ordered by key.
///
/// Called inside the transaction that writes. `now` is the store's clock and decides which windows of named budgets
/// are open. Errors: `Corrupt` when an envelope that a run or a call is charged to is missing.
pub fn load(fetch: &mut impl Fetch, needs: &[Need], now: Micros) -> Result<Box<Loaded>, Error> {
    load_as(fetch, needs, now, false)
}

/// Works as `load`, for a strict store: lookups beyond the declared needs are noted in `Loaded::undeclared`.
pub fn load_strictly(fetch: &mut impl Fetch, needs: &[Need], now: Micros) -> Result<Box<Loaded>, Error> {
    load_as(fetch, needs, now, true)
}

fn load_as(fetch: &mut impl Fetch, needs: &[Need], now: Micros, strict: bool) -> Result<Box<Loaded>, Error> {
    let mut rounds = Rounds { needs, now, keys: Vec::with_capacity(12), ..Rounds::default() };
    needs.iter().for_each(|need| rounds.begin(need));
    if let Some(edges) = fetch.edges() {
        rounds.foresee(edges);
    }
    rounds.run(fetch)?;
    share(fetch, &mut rounds)?;
    if let Some(edges) = fetch.edges() {
        edges.learn(&rounds.l, now);
    }
    rounds.finish(strict)
}

/// Prefetches the rows that the operations of a group load, for a remote store: first the rows of every
/// operation's first round, then those that these rows lead to, and so on, one batch for each round.
///
/// The rows stay in the store's cache. Each operation still loads its own rows, and is answered from there.
pub struct Together<'a> {
    all: Vec<Rounds<'a>>,
}

impl<'a> Together<'a> {
    /// Begins the rounds of the operations with these needs. `edges` names envelopes that are fetched early.
    pub fn of(group: &'a [Vec<Need>], edges: &Edges) -> Together<'a> {
        let begin = |needs: &'a Vec<Need>| {
            let mut rounds = Rounds { needs, ..Rounds::default() };
            needs.iter().for_each(|need| rounds.begin(need));
            rounds.foresee(edges);
            rounds
        };
        Together { all: group.iter().map(begin).collect() }
    }

    /// Returns the keys of the next round. A key that several operations need comes once for each of them.
    pub fn keys(&self) -> Vec<Key<'a>> {
        self.all.iter().flat_map(|rounds| rounds.keys[rounds.fetched..].iter().copied()).collect()
    }

    /// Reads the rows of this round from `known`, and notes the keys that they lead to for the next round.
    pub fn go_on(&mut self, known: &mut impl Fetch, now: Micros) -> Result<(), Error> {
        self.all.iter_mut().try_for_each(|rounds| {
            rounds.now = now;
            rounds.round(known)
        })
    }
}

/// Number of keys up to which they are searched one after the other. Nearly all operations have fewer.
const FEW: usize = 24;

#[derive(Default)]
struct Rounds<'a> {
    needs: &'a [Need],
    now: Micros,
    /// Boxed: it is large, and goes from hand to hand for each operation.
    l: Box<Loaded>,
    /// Keys of all rounds, in order.
    keys: Vec<Key<'a>>,
    /// Number of `keys` whose rows are loaded.
    fetched: usize,
    /// All keys, from `FEW` keys on; empty while there are fewer.
    index: BTreeSet<Key<'a>>,
    /// Envelopes that a loaded run or call is charged to.
    charged: Vec<EnvelopeNo>,
    /// Number of entries already searched for windows that they are charged to.
    looked_through: usize,
}

impl<'a> Rounds<'a> {
    /// Asks for the first keys of a need.
    fn begin(&mut self, need: &'a Need) {
        match need {
            Need::Numbers => self.ask(Key::Numbers),
            Need::Instance(no) => self.ask(Key::Instance(*no)),
            Need::RunById(id) => self.ask(Key::RunById(id)),
            Need::OfCommand(key) => self.ask(Key::OfCommand(key)),
            Need::Run(no) => self.ask(Key::Run(*no)),
            Need::Budgets => self.ask(Key::Budgets),
            Need::Budget(no) => self.ask(Key::Budget(*no)),
            Need::Windows(None) => self.ask(Key::Budgets),
            Need::Windows(Some(_)) => {}
            Need::Attempt(run, no) => self.ask(Key::Attempt(*run, *no)),
            Need::Spec(run) => self.ask(Key::Spec(*run)),
            Need::Delivery(name) => self.ask(Key::Delivery(name)),
            Need::OpenAttempts(run) => self.ask(Key::OpenAttempts(*run)),
            Need::Labelled(run, label) => self.ask(Key::Labelled(*run, label)),
            Need::Lease(run, slot) => self.ask(Key::Lease(*run, *slot)),
            Need::Leases(run) => self.ask(Key::Leases(*run)),
            Need::Entry(run, seq) => self.ask(Key::Entry(*run, *seq)),
            Need::Item(..) | Need::Keyed(..) => {
                if let Some(newest) = newest(need) {
                    self.ask(Key::Newest(newest));
                }
            }
            Need::Matching(run, key) => self.ask(Key::Matching(*run, *key)),
            Need::OwnedBy(instance) => {
                self.ask(Key::OpenCalls(*instance));
                self.ask(Key::LeasesOf(*instance));
            }
            Need::State(name) => {
                self.ask(Key::Position);
                self.ask(Key::Namespace(&name.namespace));
                self.ask(Key::State(name));
            }
            Need::Transaction(id) => self.ask(Key::Transaction(id)),
            Need::Namespace(name) => self.ask(Key::Namespace(name)),
            Need::Compactable { namespace, before, after, limit } => {
                let (before, after, limit) = (*before, *after, *limit);
                self.ask(Key::Compactable { namespace, before, after, limit });
            }
        }
    }

    fn ask(&mut self, key: Key<'a>) {
        if self.is_new(key) {
            self.keys.push(key);
        }
    }

    /// Notes a key whose rows came with another key's, so that it is not fetched. Returns whether it is new.
    fn came_along(&mut self, key: Key<'a>) -> bool {
        let is_new = self.is_new(key);
        if is_new {
            self.keys.insert(self.fetched, key);
            self.fetched += 1;
        }
        is_new
    }

    /// Returns whether the key was not asked for yet. One that is new is to be added to `keys`.
    fn is_new(&mut self, key: Key<'a>) -> bool {
        if self.keys.len() < FEW {
            return !self.keys.contains(&key);
        }
        if self.index.is_empty() {
            self.index.extend(&self.keys);
        }
        self.index.insert(key)
    }

    /// Asks early for the envelopes, and the named budgets, that cached edges name for the runs in this round.
    fn foresee(&mut self, edges: &Edges) {
        for i in 0..self.keys.len() {
            if let Key::Run(no) = self.keys[i]
                && let Some(edge) = edges.run(no)
            {
                edge.charges.iter().for_each(|no| self.ask(Key::Envelope(*no)));
            }
        }
        for need in self.needs {
            let (Need::Windows(Some(run)) | Need::Entry(run, _)) = need else { continue };
            let Some(edge) = edges.run(*run) else { continue };
            if matches!(need, Need::Windows(_)) {
                edge.budgets.iter().for_each(|no| self.ask(Key::Budget(*no)));
            }
            edges.windows(&edge.budgets).for_each(|no| self.ask(Key::Envelope(no)));
        }
    }

    /// Fetches round after round until nothing is missing.
    fn run(&mut self, fetch: &mut impl Fetch) -> Result<(), Error> {
        while self.fetched < self.keys.len() {
            self.round(fetch)?;
        }
        Ok(())
    }

    /// Fetches the keys of one round, and asks for those of the next.
    fn round(&mut self, fetch: &mut impl Fetch) -> Result<(), Error> {
        let round = self.fetched..self.keys.len();
        self.fetched = round.end;
        fetch.fetch(&self.keys[round.clone()], &mut self.l)?;
        round.for_each(|i| self.follow(self.keys[i]));
        self.follow_budgets();
        self.follow_windows();
        Ok(())
    }

    /// Asks for the keys that the rows of a key lead to.
    fn follow(&mut self, key: Key<'a>) {
        match key {
            Key::Run(no) => self.follow_run(no),
            Key::RunById(id) => self.l.run_by_id(id).map(|run| run.no).into_iter().for_each(|no| {
                self.came_along(Key::Run(no));
                self.follow_run(no);
            }),
            Key::Lease(run, slot) => {
                let holder = self.l.find::<Lease>((run, slot)).map(|lease| lease.instance);
                holder.into_iter().for_each(|no| self.ask(Key::Instance(no)));
            }
            Key::Leases(run) => {
                let leases = self.l.leases.iter().map(|row| row.value).filter(|lease| lease.run == run);
                let holders: Vec<InstanceNo> = leases.map(|lease| lease.instance).collect();
                holders.into_iter().for_each(|no| self.ask(Key::Instance(no)));
            }
            Key::LeasesOf(instance) => {
                let leases = self.l.leases.iter().map(|row| row.value);
                let held: Vec<RunNo> =
                    leases.filter(|lease| lease.instance == instance).map(|lease| lease.run).collect();
                held.into_iter().for_each(|run| self.whole(run));
            }
            Key::OpenCalls(instance) => {
                let calls = self.l.all::<Entry>();
                let ours = calls.filter(|e| e.instance == Some(instance) && is_open_call(e));
                let found: Vec<(RunNo, Seq)> = ours.map(|e| (e.run, e.seq)).collect();
                for (run, seq) in found {
                    self.came_along(Key::Entry(run, seq));
                    self.follow_entry(run, seq);
                    self.whole(run);
                }
            }
            Key::Entry(run, seq) => self.follow_entry(run, seq),
            // Tool calls are loaded with the instances that make them; calls with those that receive their answers, and
            // other recorded answers, for their attempt.
            Key::Matching(run, key) => {
                let found = self.l.all::<Entry>().filter(|e| (e.run, e.match_key) == (run, Some(key)));
                let makers = found.clone().filter(|e| e.kind == Kind::Tool && e.state != State::Void);
                let makers = makers.filter_map(|e| e.instance);
                let is_open = |no| self.l.find::<Attempt>((run, no)).is_some_and(Attempt::is_open);
                let takers = found.filter_map(|e| e.taken).filter(|t| is_open(t.attempt)).map(|t| t.instance);
                let attempts = self.l.all::<Attempt>().filter(|a| a.run == run);
                let receivers = attempts.flat_map(|a| &a.receiving).map(|(instance, _)| *instance);
                let all: Vec<InstanceNo> = makers.chain(takers).chain(receivers).collect();
                all.into_iter().for_each(|no| self.ask(Key::Instance(no)));
            }
            // An item is loaded with the instance that works on it.
            Key::Newest(newest) if newest.kind == Kind::Item && newest.upto.is_none() => {
                let holder = self.l.all::<Entry>().find(|e| newest.is(e)).and_then(|e| e.instance);
                holder.into_iter().for_each(|no| self.ask(Key::Instance(no)));
            }
            _ => {}
        }
    }

    /// Asks for the run's own envelope and every ancestor's.
    fn follow_run(&mut self, no: RunNo) {
        let charges = self.l.find::<Run>(no).map(|run| run.charges.clone());
        charges.iter().flat_map(|charges| charges.iter()).for_each(|no| self.charge(*no));
    }

    fn charge(&mut self, no: EnvelopeNo) {
        self.charged.push(no);
        self.ask(Key::Envelope(no));
    }

    /// Asks for the run and its open attempts.
    fn whole(&mut self, run: RunNo) {
        self.ask(Key::Run(run));
        self.ask(Key::OpenAttempts(run));
    }

    /// Asks for the lost calls that the entry retries, and the items and steps around it and them. A step with
    /// answers that its attempt has not taken is loaded with that attempt.
    fn follow_entry(&mut self, run: RunNo, seq: Seq) {
        let mut links = vec![seq];
        while let Some(seq) = links.pop() {
            let Some(e) = self.l.find::<Entry>((run, seq)) else { continue };
            let untaken = e.step.as_ref().is_some_and(|d| d.untaken > 0).then_some(e.attempt);
            let linked = e.linked();
            untaken.into_iter().for_each(|attempt| self.ask(Key::Attempt(run, attempt)));
            for seq in linked {
                // An entry that another need has loaded is followed, but not fetched again.
                match self.l.find::<Entry>((run, seq)).is_some() {
                    true if self.came_along(Key::Entry(run, seq)) => links.push(seq),
                    true => {}
                    false => self.ask(Key::Entry(run, seq)),
                }
            }
        }
    }

    /// Asks for the named budgets of each `Windows` need with the envelopes of their newest windows, and for the
    /// next free number where a budget has no current window.
    fn follow_budgets(&mut self) {
        let mut wanted = false;
        for need in self.needs {
            let Need::Windows(whose) = need else { continue };
            wanted = true;
            let run = whose.and_then(|run| self.l.find::<Run>(run));
            let budgets = run.map(|run| run.budgets.clone());
            budgets.iter().flat_map(|b| b.iter()).for_each(|no| self.ask(Key::Budget(*no)));
        }
        if !wanted || self.l.budgets.is_empty() {
            return;
        }
        let budgets = || self.l.all::<Budget>();
        let windows: Vec<EnvelopeNo> =
            budgets().flat_map(|b| [b.window, b.current(self.now)]).flatten().map(|w| w.envelope).collect();
        let closed = budgets().any(|b| b.current(self.now).is_none());
        windows.into_iter().for_each(|no| self.charge(no));
        if closed {
            self.ask(Key::Numbers);
        }
    }

    /// Asks for the windows that a call was admitted under, if the call may still be charged.
    fn follow_windows(&mut self) {
        let entries = self.l.entries.iter().skip(take(&mut self.looked_through)).map(|row| &row.value);
        let charged = entries.filter(|e| matches!(e.state, State::Open | State::Unknown));
        let windows: Vec<EnvelopeNo> = charged.flat_map(|e| e.windows()).copied().collect();
        self.looked_through = self.l.entries.len();
        windows.into_iter().for_each(|no| self.charge(no));
    }

    fn finish(mut self, strict: bool) -> Result<Box<Loaded>, Error> {
        if let Some(no) = self.charged.iter().find(|no| self.l.find::<Envelope>(**no).is_none()) {
            return Err(Error::Corrupt { what: format!("envelope {no} is missing") });
        }
        self.l.sort();
        if strict {
            let named = self.keys.iter().copied().filter_map(Key::numbered).collect();
            self.l.declared = Some(Box::new(Declared::of(named)));
        }
        Ok(self.l)
    }
}

fn is_open_call(e: &Entry) -> bool {
    e.state == State::Open && e.kind == Kind::Call
}

/// Returns the key for a need of the newest entry of a kind, scope and key; `None` for other needs.
fn newest(need: &Need) -> Option<Newest<'_>> {
    let (run, kind, scope, key) = match need {
        Need::Item(run, key) => (*run, Kind::Item, job::SCOPE, key.as_str()),
        Need::Keyed(run, kind, scope, key) => (*run, *kind, scope.as_str(), key.as_str()),
        _ => return None,
    };
    Some(Newest { run, kind, scope, key, upto: None })
}

/// Adds the entries that forks share with their origins. For each need that the fork itself does not answer, asks its
/// origins, the nearest first: one round per origin. Runs that are no forks cost nothing.
fn share<'a>(fetch: &mut impl Fetch, rounds: &mut Rounds<'a>) -> Result<(), Error> {
    if rounds.l.runs.iter().all(|row| row.value.origins.is_empty()) {
        return Ok(());
    }
    let origins_of = |l: &Loaded, need: &Need| {
        let fork = match need {
            Need::Entry(run, _) | Need::Item(run, _) | Need::Matching(run, _) | Need::Keyed(run, ..) => *run,
            _ => return None,
        };
        Some((fork, l.find::<Run>(fork)?.origins.clone()))
    };
    let mut open: Vec<(&'a Need, RunNo, Arc<[Origin]>)> = Vec::new();
    for need in rounds.needs {
        open.extend(origins_of(&rounds.l, need).map(|(fork, origins)| (need, fork, origins)));
    }
    for depth in 0.. {
        open.retain(|(need, fork, origins)| depth < origins.len() && !is_answered(&rounds.l, *fork, need));
        if open.is_empty() {
            return Ok(());
        }
        let mut behind = Rounds { now: rounds.now, ..Rounds::default() };
        for (need, _, origins) in &open {
            at_origin(need, &origins[depth]).into_iter().for_each(|key| behind.ask(key));
        }
        behind.run(fetch)?;
        open.retain(|(need, fork, origins)| {
            let origin = &origins[depth];
            let found = behind.l.all::<Entry>().filter(|e| e.run == origin.run);
            for e in found.clone() {
                if let Some(e) = origin.entry(*fork, e.clone())
                    && rounds.l.find::<Entry>((*fork, e.seq)).is_none()
                {
                    rounds.l.entries.push(Row::shared(e));
                }
            }
            // The newest entry of the nearest origin is the newest of all, whatever its state.
            newest(need).is_none_or(|of| !found.clone().any(|e| Newest { run: origin.run, ..of }.is(e)))
        });
    }
    Ok(())
}

/// Returns the key that a fork's need asks of one of its origins.
fn at_origin<'a>(need: &'a Need, origin: &Origin) -> Option<Key<'a>> {
    match need {
        Need::Entry(_, seq) => (*seq <= origin.seq).then_some(Key::Entry(origin.run, *seq)),
        Need::Matching(_, key) => Some(Key::Matching(origin.run, *key)),
        need => newest(need).map(|of| Key::Newest(Newest { run: origin.run, upto: Some(origin.seq), ..of })),
    }
}

/// Returns whether the fork itself or a nearer origin answers the need. A need for calls always asks every origin.
fn is_answered(l: &Loaded, fork: RunNo, need: &Need) -> bool {
    match need {
        Need::Entry(_, seq) => l.find::<Entry>((fork, *seq)).is_some(),
        need => newest(need).is_some_and(|of| l.entries.iter().any(|row| of.is(&row.value))),
    }
}

/// Cache of the edges that a process has seen.
#[derive(Default)]
pub struct Edges {
    runs: Map<RunNo, Edge>,
    /// Envelopes of the budgets' newest and current windows.
    windows: Map<BudgetNo, Vec<EnvelopeNo>>,
}

/// Rows that a run leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The run's own envelope first, then its ancestors'.
    pub charges: Arc<[EnvelopeNo]>,
    pub budgets: Arc<[BudgetNo]>,
    /// Whether the run shares entries with the runs that it was forked from.
    pub is_fork: bool,
}

/// Largest number of runs in the cache. Beyond it all edges are dropped: simpler than eviction by age, and rare.
const MOST: usize = 4096;

impl Edges {
    pub fn run(&self, no: RunNo) -> Option<&Edge> {
        self.runs.get(&no)
    }

    /// Returns the envelopes of the budgets' newest and current windows.
    pub fn windows(&self, budgets: &[BudgetNo]) -> impl Iterator<Item = EnvelopeNo> {
        budgets.iter().filter_map(|no| self.windows.get(no)).flatten().copied()
    }

    /// Remembers to which other rows the rows of an operation lead.
    pub fn learn(&mut self, l: &Loaded, now: Micros) {
        if self.runs.len() + l.runs.len() > MOST || self.windows.len() + l.budgets.len() > MOST {
            *self = Edges::default();
        }
        for Run { no, charges, budgets, origins, .. } in l.runs.iter().map(|row| &row.value) {
            let (charges, budgets) = (charges.clone(), budgets.clone());
            self.runs.insert(*no, Edge { charges, budgets, is_fork: !origins.is_empty() });
        }
        for budget in l.budgets.iter().map(|row| &row.value) {
            let windows = [budget.window, budget.current(now)].into_iter().flatten();
            self.windows.insert(budget.no, windows.map(|w| w.envelope).collect());
        }
    }
}

#[cfg(test)]
mod tests;
