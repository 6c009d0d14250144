//! Rows that the writer keeps in memory: those that a group has decided but not yet written, and a cache.
//!
//! A pending row is written once, as its last operation left it.
//!
//! A step's opening and its result are usually in one group: its entry is then inserted closed, and its run's row is
//! written once. Only rows that most operations write wait here, and only until a query has to find them.
//!
//! The cache has the rows that nearly every operation of a run loads. It is valid only until another connection commits,
//! which `PRAGMA data_version`, read inside each write transaction, reveals. A rolled-back group clears the cache.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::take,
    sync::Arc,
};

use outlast_core::{
    engine::{
        Loaded,
        loaded::{Key, NewPayload, Newest},
    },
    envelope::{Budget, Envelope},
    journal::{Entry, Kind},
    run::{Attempt, Instance, Lease, Run},
    words::{AttemptNo, EnvelopeNo, InstanceNo, Map, Row, RunNo, Seq, Slot, Touch},
};
use rusqlite::{Connection, Result};

use super::{apply, payloads};

/// Entries are boxed: a tree's node has room for eleven, moves them when one comes between, and most groups have one.
#[derive(Default)]
pub struct Pending {
    /// Runs whose rows are in the cache as they are to be written.
    runs: BTreeSet<RunNo>,
    entries: BTreeMap<(RunNo, Seq), Box<Row<Entry>>>,
    payloads: Vec<NewPayload>,
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.entries.is_empty() && self.payloads.is_empty()
    }

    pub fn clear(&mut self) {
        *self = Pending::default();
    }

    /// Returns whether finding `key` needs a query that has to see the pending rows.
    pub fn is_in_the_way_of(&self, key: &Key<'_>) -> bool {
        match key {
            Key::Instance(_) | Key::Run(_) | Key::Envelope(_) | Key::Entry(..) => false,
            Key::Newest(of) if of.kind != Kind::Item && of.upto.is_none() => false,
            Key::Attempt(..) | Key::OpenAttempts(_) | Key::Lease(..) => false,
            Key::Position | Key::Namespace(_) | Key::State(_) => false,
            _ => !self.is_empty(),
        }
    }

    /// Returns whether all changes of `l` can wait for the group's end. `before` has the rows as loaded.
    ///
    /// Changes in a fork cannot, since changed entries of its parent are inserted behind newer ones. Nor can columns
    /// that an index finds or another statement writes: a run's status or budgets.
    pub fn takes(&self, l: &Loaded, before: &Cache) -> bool {
        fn read<T>(rows: &[Row<T>]) -> bool {
            rows.iter().all(|r| r.touch == Touch::Read)
        }
        // Destructured by name, so that a new field cannot be overlooked here.
        let Loaded {
            op: _,
            numbers: _,
            instances,
            runs,
            specs,
            known_specs: _,
            envelopes,
            budgets,
            attempts,
            leases,
            entries: _,
            payloads: _,
            state,
            forgotten,
            events,
            posted,
            deliveries: _,
            new_delivery,
            declared: _,
        } = l;
        let waits = |row: &Row<Run>| {
            let run = &row.value;
            let stays = |old: &Run| old.status == run.status && old.budgets == run.budgets;
            let is_update = row.touch == Touch::Update && before.runs.get(&run.no).is_some_and(stays);
            run.origins.is_empty() && (row.touch == Touch::Read || is_update)
        };
        runs.iter().all(waits)
            && read(instances)
            && read(envelopes)
            && read(budgets)
            && read(attempts)
            && read(leases)
            && specs.is_empty()
            && forgotten.is_empty()
            && events.is_empty()
            && posted.is_empty()
            && new_delivery.is_none()
            && !state.is_touched()
    }

    /// Takes the changes of `l`. Changed runs wait in the cache, the other changes here.
    pub fn add(&mut self, l: &mut Loaded, cache: &mut Cache) {
        self.runs.extend(l.runs.iter().filter(|row| row.touch != Touch::Read).map(|row| row.value.no));
        let changed = take(&mut l.entries).into_iter().filter(|row| row.touch != Touch::Read);
        for row in changed {
            let at = (row.value.run, row.value.seq);
            match self.entries.get_mut(&at) {
                // A row not yet inserted keeps its `Insert` touch and gets the newer value.
                Some(waiting) => waiting.value = row.value,
                None => drop(self.entries.insert(at, Box::new(row))),
            }
        }
        self.payloads.append(&mut l.payloads);
        cache.remember(l);
    }

    pub fn entry(&self, run: RunNo, seq: Seq) -> Option<&Entry> {
        self.entries.get(&(run, seq)).map(|row| &row.value)
    }

    /// Returns the newest matching entry that is not yet inserted; `None` if there is none. Outside of forks, entries
    /// are only appended.
    pub fn newest(&self, newest: &Newest<'_>) -> Option<&Entry> {
        let inserted = self.of(newest.run).rev().filter(|row| row.touch == Touch::Insert);
        inserted.map(|row| &row.value).find(|e| newest.is(e))
    }

    fn of(&self, run: RunNo) -> impl DoubleEndedIterator<Item = &Row<Entry>> {
        self.entries.range((run, Seq(i64::MIN))..=(run, Seq(i64::MAX))).map(|(_, row)| &**row)
    }

    /// Writes all pending rows and clears them.
    pub fn write(&mut self, conn: &Connection, cache: &Cache) -> Result<()> {
        let Pending { runs, entries, payloads } = take(self);
        let (short, long): (Vec<_>, Vec<_>) = payloads.iter().partition(|p| payloads::is_short_value(p));
        let mut short: BTreeMap<_, _> = short.into_iter().map(|p| ((p.run, p.seq), p)).collect();
        let mut owners = BTreeMap::new();
        for (at, row) in &entries {
            if row.touch == Touch::Insert {
                apply::insert_entry(conn, &row.value, short.remove(at).map(|p| &p.payload))?;
                owners.insert(*at, conn.last_insert_rowid());
            } else {
                apply::update(conn, &row.value)?;
            }
        }
        for p in long.into_iter().chain(short.into_values()) {
            match owners.get(&(p.run, p.seq)) {
                Some(owner) => payloads::put_of(conn, *owner, p)?,
                None => payloads::put(conn, p)?,
            }
        }
        runs.iter().try_for_each(|no| {
            let run = cache.runs.get(no).ok_or(rusqlite::Error::QueryReturnedNoRows)?;
            apply::update(conn, run)
        })
    }
}

/// Number of cached runs above which the cache is cleared. Rare, and simpler than evicting by age.
const MOST_RUNS: usize = 2048;

#[derive(Default)]
pub struct Cache {
    pub version: i64,
    pub instances: Map<InstanceNo, Instance>,
    pub runs: Map<RunNo, Run>,
    pub envelopes: Map<EnvelopeNo, Envelope>,
    /// All named budgets of the store; `None` if they are not cached.
    pub budgets: Option<Arc<Vec<Budget>>>,
    /// Leases by run and slot; `None`: the slot has no lease.
    pub leases: Map<(RunNo, Slot), Option<Lease>>,
    /// Open attempts by run. An entry is present only if it holds all open attempts of the run.
    pub open: Map<RunNo, Arc<Vec<Attempt>>>,
}

impl Cache {
    pub fn forget(&mut self) {
        *self = Cache { version: self.version, ..Cache::default() };
    }

    /// Clears the cache if `version` shows that another connection has committed since the last check.
    pub fn check(&mut self, version: i64) {
        if self.version != version || self.runs.len() > MOST_RUNS {
            self.forget();
            self.version = version;
        }
    }

    /// Returns an open attempt of the run from the cache; `None` if it is not cached, or not open.
    pub fn open_attempt(&self, run: RunNo, no: AttemptNo) -> Option<&Attempt> {
        self.open.get(&run)?.iter().find(|a| a.no == no)
    }

    /// Takes the rows that an operation wrote out of `l`.
    pub fn remember(&mut self, l: &mut Loaded) {
        self.instances.extend(touched(&mut l.instances).map(|i| (i.no, i)));
        self.runs.extend(touched(&mut l.runs).map(|run| (run.no, run)));
        self.envelopes.extend(touched(&mut l.envelopes).map(|e| (e.no, e)));
        if l.budgets.iter().any(|r| r.touch != Touch::Read) {
            self.budgets = None;
        }
        self.leases.extend(touched(&mut l.leases).map(|lease| ((lease.run, lease.slot), Some(lease))));
        for a in touched(&mut l.attempts) {
            if let Some(open) = self.open.get_mut(&a.run) {
                let open = Arc::make_mut(open);
                open.retain(|x| x.no != a.no);
                if a.is_open() {
                    open.push(a);
                    open.sort_by_key(|x| x.no);
                }
            }
        }
    }
}

/// Takes the rows that are to be written back.
fn touched<T>(rows: &mut Vec<Row<T>>) -> impl Iterator<Item = T> {
    rows.drain(..).filter(|row| row.touch != Touch::Read).map(|row| row.value)
}
