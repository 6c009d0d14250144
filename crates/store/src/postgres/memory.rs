//! Rows of the runs that this process drives, as its own last commits left them: a group that needs no others decides
//! on them, without reading, and its transaction checks that they are still so.
//!
//! Each remembered row has its version, the transaction that wrote it (`xmin`). A group that decided on remembered rows
//! is one round trip: BEGIN, its locks, the check of all versions, its writes and COMMIT. A row of another version, a
//! row that came or went, or a clock that was set makes the check fail, and with it the transaction; the group is then
//! done as others are. So nothing is committed on a memory that is stale, whoever changed the rows: another server, a
//! sweep, a person.
//!
//! An opening that is answered ahead of its commit has no such check, so it is answered from memory only while the
//! memory is young: no older than an opening that waits for its commit.
//!
//! Memory ends with its session. A server that lost commits may give the same version to another row, and it ends the
//! sessions that it had.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    mem::take,
};

use outlast_core::{
    engine::{Need, loaded::Newest},
    journal::{Kind, State},
    words::{AttemptNo, Seq, Slot},
};
use rustix::time::{ClockId, clock_gettime};

use super::{
    known::Held,
    statement::{Ask as _, params},
};
use crate::{postgres::prelude::*, rows::Cursor};

/// Age in milliseconds from which on a row is read again: the longest time for which an opening that was answered
/// ahead waits for its commit.
pub const YOUNG_MS: u64 = 100;

/// Largest number of rows, and of keys of entries, that are remembered.
const MOST_ROWS: usize = 8192;
const MOST_KEYS: usize = 2_000_000;

/// Largest number of entries of a run, begun by another process, whose keys are learnt.
const MOST_LEARNT: i64 = 100_000;

/// Version of a row that is not there.
pub const ABSENT: i64 = 0;

/// Number of a transaction, the version of the rows that it writes.
pub const NUMBER: &str = "(txid_current() & 4294967295)";

/// Number of a run's first entry.
const FIRST: Seq = Seq(1);

/// Place of a row: its table and its key. The second number is 0 where the first is the whole key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(pub Table, pub i64, pub i64);

/// Versions of the rows that a group decides on, or [`ABSENT`].
pub type Basis = BTreeMap<Place, i64>;

/// Row that is remembered, of one of the tables.
pub trait Remembered: Hold {
    fn place(id: Self::Id) -> Place;
}

/// The tables whose rows are remembered, each told once: name and key's columns, and a row's id as numbers and back.
macro_rules! remembered {
    ($($Table:ident, $table:literal $columns:expr, $rows:ident: $Row:ty,
        $id:pat => ($a:expr, $b:expr), ($x:pat, $y:pat) => $back:expr;)+) => {
        /// Table whose rows are remembered.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Table {
            $($Table,)+
        }

        impl Table {
            /// Returns the names of the table and of its key's columns.
            fn names(self) -> (&'static str, &'static [&'static str]) {
                match self {
                    $(Table::$Table => ($table, &$columns),)+
                }
            }
        }

        $(impl Remembered for $Row {
            fn place($id: Self::Id) -> Place {
                Place(Table::$Table, $a, $b)
            }
        })+

        /// Copies the row at a place, if it is there.
        fn copy(from: &Known, to: &mut Known, place: Place) {
            match place {
                $(Place(Table::$Table, $x, $y) => {
                    let id = $back;
                    to.$rows.extend(from.$rows.get(&id).map(|row| (id, row.clone())));
                })+
            }
        }

        /// Removes the row at a place.
        fn remove(rows: &mut Known, place: Place) {
            match place {
                $(Place(Table::$Table, $x, $y) => drop(rows.$rows.remove(&$back)),)+
            }
        }
    };
}

remembered! {
    Instances, "instances" ["no"], instances: Instance, no => (no.0, 0), (a, _) => InstanceNo(a);
    Runs, "runs" ["no"], runs: Run, no => (no.0, 0), (a, _) => RunNo(a);
    Envelopes, "envelopes" ["no"], envelopes: Envelope, no => (no.0, 0), (a, _) => EnvelopeNo(a);
    Attempts, "attempts" ["run_no", "no"], attempts: Attempt,
        (run, no) => (run.0, no.0), (a, b) => (RunNo(a), AttemptNo(b));
    Leases, "leases" ["run_no", "slot"], leases: Lease,
        (run, slot) => (run.0, slot.0), (a, b) => (RunNo(a), Slot(b));
    Entries, "entries" ["run_no", "seq"], entries: Entry,
        (run, seq) => (run.0, seq.0), (a, b) => (RunNo(a), Seq(b));
}

/// Returns the place of the only row that `key` names; `None` for a key of several rows, or of rows that are not
/// remembered.
fn place_of(key: &Key<'_>) -> Option<Place> {
    Some(match *key {
        Key::Instance(no) => Instance::place(no),
        Key::Run(no) => Run::place(no),
        Key::Envelope(no) => Envelope::place(no),
        Key::Attempt(run, no) => Attempt::place((run, no)),
        Key::Lease(run, slot) => Lease::place((run, slot)),
        Key::Entry(run, seq) => Entry::place((run, seq)),
        _ => return None,
    })
}

/// Returns whether operations with these needs are steps or items, of which a process has many, one after the other.
pub fn is_worth_remembering(group: &[Vec<Need>]) -> bool {
    let mut needs = group.iter().flatten();
    let is_of_a_step = |need: &Need| {
        matches!(
            need,
            Need::Instance(_)
                | Need::Run(_)
                | Need::Attempt(..)
                | Need::Lease(..)
                | Need::Entry(..)
                | Need::Keyed(..)
                | Need::Item(..)
        )
    };
    needs.clone().any(|need| matches!(need, Need::Keyed(..) | Need::Item(..))) && needs.all(is_of_a_step)
}

/// Rows that are remembered in a session.
#[derive(Default)]
pub struct Memory {
    rows: Known,
    seen: BTreeMap<Place, Seen>,
    /// Keys of all entries of runs that this process began, or goes on with.
    keys: HashMap<RunNo, Keys>,
    /// Runs whose keys were read, and the number of the next entry then. They are read again once there are twice as many,
    /// also where others write to the run again and again.
    learnt: HashMap<RunNo, Seq>,
    /// Number of all keys.
    keys_in_all: usize,
    hasher: RandomState,
    /// The database's clock, and this machine's at the same moment, in microseconds since its boot.
    clock: Option<(Micros, i64)>,
}

/// Newest sight of a row.
#[derive(Clone, Copy)]
struct Seen {
    version: i64,
    /// Boot time of the commit that found or wrote this version.
    at_ms: u64,
}

/// Keys of a run's entries, as hashes: what is not among them is no entry's key.
struct Keys {
    /// Number of the run's next entry, as this process left it. Somebody else's entry has raised it.
    next: Seq,
    hashes: HashSet<u64>,
}

impl Memory {
    /// Notes the database's clock.
    pub fn tells_time(&mut self, now: Micros) {
        self.clock = Some((now, boot_us()));
    }

    /// Returns the database's time, as far as this machine's clock tells; `None` before the first transaction.
    pub fn now(&self) -> Option<Micros> {
        self.clock.map(|(then, at_us)| Micros(then.0 + (boot_us() - at_us)))
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        *self = Memory { clock: self.clock, learnt: take(&mut self.learnt), ..Memory::default() };
    }

    /// Returns a run whose keys are worth learning: the transaction writes it, as one before did, and others began it.
    pub fn wants_keys(&self, known: &Known) -> Option<RunNo> {
        let is_resumed = |run: &Run| {
            run.origins.is_empty()
                && run.next_seq.0 <= MOST_LEARNT
                && self.rows.runs.contains_key(&run.no)
                && !self.keys.contains_key(&run.no)
                && self.learnt.get(&run.no).is_none_or(|next| run.next_seq.0 > 2 * next.0)
        };
        let mut written = known.runs.values().filter(|row| row.touch == Touch::Update);
        written.find(|row| is_resumed(&row.value)).map(|row| row.value.no)
    }

    /// Takes over the keys of a run, as a transaction read them before it wrote.
    pub fn learn(&mut self, Learnt { run, next, keys }: Learnt) {
        let hashes = keys.iter().map(|(kind, scope, key)| self.hash(*kind, scope, key));
        let hashes = HashSet::from_iter(hashes);
        self.learnt.insert(run, next);
        self.keys_in_all += hashes.len();
        self.keys.insert(run, Keys { next, hashes });
    }

    /// Adds the rows that `keys` name to `known`, and their versions to `basis`. Returns false if one is not remembered, or
    /// was seen more than [`YOUNG_MS`] before `boot_ms`.
    pub fn recall(&self, keys: &[Key<'_>], boot_ms: u64, known: &mut Known, basis: &mut Basis) -> bool {
        known.unknown(keys).iter().all(|key| {
            let is_absent = match key {
                Key::Newest(newest) => self.lacks(newest),
                Key::Entry(run, seq) => self.next_entry(*run).is_some_and(|next| *seq >= next),
                _ => false,
            };
            if is_absent {
                return true;
            }
            let Some(place) = place_of(key) else { return false };
            let Some(seen) = self.seen.get(&place) else { return false };
            basis.insert(place, seen.version);
            copy(&self.rows, known, place);
            boot_ms.saturating_sub(seen.at_ms) <= YOUNG_MS
        })
    }

    /// Returns the number of the run's next entry. The run's row is checked with the others of its group.
    fn next_entry(&self, run: RunNo) -> Option<Seq> {
        self.rows.runs.get(&run).map(|row| row.value.next_seq)
    }

    /// Returns whether no entry of the run has this key.
    fn lacks(&self, newest: &Newest<'_>) -> bool {
        let next = self.next_entry(newest.run);
        let keys = self.keys.get(&newest.run).filter(|keys| Some(keys.next) == next);
        keys.is_some_and(|keys| !keys.hashes.contains(&self.hash(newest.kind, newest.scope, newest.key)))
    }

    fn hash(&self, kind: Kind, scope: &str, key: &str) -> u64 {
        self.hasher.hash_one((kind.code(), scope, key))
    }

    /// Takes over the rows of a transaction that was committed at `boot_ms`.
    ///
    /// `written` is the version of what it wrote, `basis` has the versions of what it only read: rows that are in neither
    /// stay as they are remembered. `count` is what it wrote into its process's row beside; a row
    /// that it did not read is another one from here on.
    pub fn keep(
        &mut self,
        mut known: Known,
        (written, basis): (i64, &Basis),
        count: Option<(InstanceNo, i64)>,
        boot_ms: u64,
    ) {
        if self.seen.len() > MOST_ROWS || self.keys_in_all > MOST_KEYS {
            self.clear();
        }
        self.keep_keys(&known);
        if let Some((no, counter)) = count
            && let Some(row) = known.instances.get_mut(&no)
        {
            row.touched().op_counter = counter;
        } else if let Some((no, _)) = count {
            self.forget(Instance::place(no));
        }
        let seen = |version| Seen { version, at_ms: boot_ms };
        for (place, _) in basis.iter().filter(|(_, version)| **version == ABSENT) {
            self.forget(*place);
            self.seen.insert(*place, seen(ABSENT));
        }
        let version = |place: &Place, touch| match touch {
            Touch::Read => basis.get(place).copied().map(seen),
            Touch::Insert | Touch::Update => Some(seen(written)),
        };
        self.keep_rows(known.instances, version);
        self.keep_rows(known.runs, version);
        self.keep_rows(known.envelopes, version);
        self.keep_rows(known.attempts, version);
        self.keep_rows(known.leases, version);
        // An entry that is closed is seldom asked for again.
        let closed = known.entries.iter().filter(|(_, row)| row.value.state != State::Open);
        let closed: Vec<Place> = closed.map(|(id, _)| Entry::place(*id)).collect();
        self.keep_rows(known.entries, version);
        closed.into_iter().for_each(|place| self.forget(place));
    }

    fn forget(&mut self, place: Place) {
        self.seen.remove(&place);
        remove(&mut self.rows, place);
    }

    fn keep_rows<T: Remembered>(&mut self, rows: Held<T>, version: impl Fn(&Place, Touch) -> Option<Seen>) {
        for (id, row) in rows {
            let place = T::place(id);
            if let Some(seen) = version(&place, row.touch) {
                T::held_mut(&mut self.rows).insert(id, Row::read(row.value));
                self.seen.insert(place, seen);
            }
        }
    }

    /// Notes the keys of the entries that a transaction wrote, of runs whose keys are all known.
    fn keep_keys(&mut self, known: &Known) {
        for (run, row) in known.runs.iter().filter(|(_, row)| row.touch != Touch::Read) {
            if row.touch == Touch::Insert && row.value.origins.is_empty() {
                self.keys.insert(*run, Keys { next: FIRST, hashes: HashSet::new() });
            }
            let Some(mut keys) = self.keys.remove(run) else { continue };
            let entries = known.entries.range((*run, keys.next)..(*run, row.value.next_seq));
            let ours = entries.filter(|(_, row)| row.touch == Touch::Insert).map(|(_, row)| &row.value);
            let before = keys.hashes.len();
            let mut count = 0;
            for entry in ours {
                count += 1;
                let key = entry.key.as_deref();
                keys.hashes.extend(key.map(|key| self.hash(entry.kind, &entry.scope, key)));
            }
            // Of the numbers between the two, one that is not ours is somebody else's entry.
            let is_whole = keys.next.0 + count == row.value.next_seq.0;
            keys.next = row.value.next_seq;
            match is_whole {
                true => {
                    self.keys_in_all += keys.hashes.len() - before;
                    self.keys.insert(*run, keys);
                }
                false => self.keys_in_all -= before,
            }
        }
    }
}

/// Returns this machine's time in microseconds since its boot, with the time that it was suspended.
fn boot_us() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

impl Table {
    pub fn has_two_keys(self) -> bool {
        self.names().1.len() == 2
    }

    /// Returns the query for the version of the row with the key `a`, `b`, two expressions: NULL if there is none. The
    /// second is asked for only where the key has two columns.
    pub fn version(self, a: String, b: impl FnOnce() -> String) -> String {
        let (table, columns) = self.names();
        let and = columns.get(1).map_or_else(String::new, |second| format!(" AND {second} = {}", b()));
        format!("SELECT xmin::text::bigint FROM outlast.{table} WHERE {} = {a}{and}", columns[0])
    }
}

/// Arrays of the rows of one table: both numbers of their keys, and their versions.
#[derive(Default)]
pub struct Arrays(pub Vec<i64>, pub Vec<i64>, pub Vec<i64>);

pub fn by_table(basis: &Basis) -> BTreeMap<Table, Arrays> {
    let mut all: BTreeMap<Table, Arrays> = BTreeMap::new();
    for (Place(table, a, b), version) in basis {
        let arrays = all.entry(*table).or_default();
        arrays.0.push(*a);
        arrays.1.push(*b);
        arrays.2.push(*version);
    }
    all
}

/// Returns the places of all single rows that a transaction asked for and did not change.
pub fn places(known: &Known) -> Basis {
    let asked = known.asked_rows().filter_map(place_of);
    asked.map(|place| (place, ABSENT)).collect()
}

/// Keys of a run's entries, each with kind and scope, and the number of the run's next entry.
pub struct Learnt {
    run: RunNo,
    next: Seq,
    keys: Vec<(Kind, String, String)>,
}

/// Reads the keys of a run's entries within a transaction that holds its lock, before it writes. `None` if it has none, or
/// one that is not understood.
pub async fn keys_of(client: &Named, run: RunNo) -> Result<Option<Learnt>, tokio_postgres::Error> {
    let sql = "SELECT (SELECT next_seq FROM outlast.runs WHERE no = $1), kind, scope, key FROM outlast.entries \
               WHERE run_no = $1 AND key IS NOT NULL";
    let rows = client.query(sql, params![run.0]).await?;
    let key = |row: &tokio_postgres::Row| {
        let mut row = Cursor::at(row, 1);
        let kind = row.code("kind", Kind::from_code)?;
        Ok::<_, Error>((kind, row.name()?.to_owned(), row.name()?.to_owned()))
    };
    let next = rows.first().and_then(|row| row.try_get(0).ok()).map(Seq);
    let keys = rows.iter().map(key).collect::<Result<_, _>>().ok();
    Ok(next.zip(keys).map(|(next, keys)| Learnt { run, next, keys }))
}

/// Reads the versions of rows within the transaction that has read them and holds their locks.
pub async fn versions(client: &Named, places: &Basis) -> Result<Basis, tokio_postgres::Error> {
    let tables = by_table(places);
    let (mut params, mut columns): (Vec<Param<'_>>, Vec<String>) = Default::default();
    for (table, arrays) in &tables {
        let (a, b) = (params.len() + 1, params.len() + 2);
        let version = table.version("a".into(), || "b".into());
        columns.push(format!(
            "(SELECT array_agg(coalesce(({version}), {ABSENT}) ORDER BY n) \
             FROM unnest(${a}, ${b}) WITH ORDINALITY AS s (a, b, n))"
        ));
        params.extend_from_slice(params![arrays.0, arrays.1]);
    }
    let rows = client.query(&format!("SELECT {}", columns.join(", ")), &params).await?;
    let mut found = Basis::new();
    for (i, (table, arrays)) in tables.iter().enumerate() {
        let told: Vec<i64> = rows.first().and_then(|row| row.try_get(i).ok()).unwrap_or_default();
        let keys = arrays.0.iter().zip(&arrays.1).map(|(a, b)| Place(*table, *a, *b));
        found.extend(keys.zip(told));
    }
    Ok(found)
}
