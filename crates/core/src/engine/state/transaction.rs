//! Open transactions: held in a process, without I/O, until they commit, abort or expire.
//!
//! The store has nothing of an open transaction. Its reads see its own writes, then the position at which it began;
//! its commit is one [`Put`] that carries its id. The end of the process aborts it. If the answer of a commit was
//! lost, [`crate::store::Store::transaction_outcome`] returns its outcome by id.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

pub use crate::state::Conflicts;
use crate::{
    engine::{Change, Put},
    state::{Name, Position, Value, outcome},
    words::Micros,
};

/// Timeout, in milliseconds, of a transaction whose client names none.
pub const DEFAULT_TIMEOUT_MS: u64 = 30_000;

/// Number of expired transactions that are remembered, so that their clients can be told.
const REMEMBERED: usize = 1024;

/// Bytes counted for a name and its bookkeeping, in addition to the value.
const OVERHEAD: usize = 200;

/// Limits on open transactions, so that abandoned ones cannot fill the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub open: usize,
    /// Largest number of changes of one transaction.
    pub changes: usize,
    /// Largest size of one transaction, in stored bytes.
    pub bytes: usize,
    /// Largest size of all open transactions together, in stored bytes.
    pub total_bytes: usize,
    /// Longest timeout in milliseconds. A client's longer timeout is shortened to this.
    pub timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            open: 10_000,
            changes: 100_000,
            bytes: 256 << 20,
            total_bytes: 1 << 30,
            timeout_ms: 24 * 3600 * 1000,
        }
    }
}

/// Reasons why a transaction cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The transaction was never begun in this process, or has ended.
    #[error("transaction not found: {id}")]
    NotFound { id: String },
    /// No outcome of the transaction is stored, and the transaction began more than `days` ago: its outcome
    /// may have been forgotten.
    #[error("transaction not found: {id}; it is older than {days} days, and its outcome is unknown")]
    Forgotten { id: String, days: i64 },
    #[error("transaction expired: {id} (after {timeout_ms} ms); nothing of it was written")]
    Expired { id: String, timeout_ms: u64 },
    #[error("transaction {id} is open already")]
    Exists { id: String },
    #[error("{open} transactions are open, and at most {limit} may be")]
    TooManyOpen { open: usize, limit: usize },
    #[error("transaction {id} has {limit} changes already, the most there can be")]
    TooManyChanges { id: String, limit: usize },
    #[error("transaction {id} would hold {wanted} bytes, and at most {limit} may be held")]
    TooLarge { id: String, wanted: usize, limit: usize },
    #[error("open transactions would hold {wanted} bytes in all, and at most {limit} may be held")]
    Full { wanted: usize, limit: usize },
}

crate::error_facts! {
    Error {
        Error::NotFound { .. } => "transaction_not_found" NotFound,
        Error::Forgotten { .. } => "transaction_forgotten" NotFound,
        Error::Expired { .. } => "transaction_expired" NotFound,
        Error::Exists { .. } => "transaction_exists" Exists,
        Error::TooManyOpen { .. } | Error::Full { .. } => "too_many_transactions" TooMany,
        Error::TooManyChanges { .. } | Error::TooLarge { .. } => "transaction_too_large" TooLarge,
    }
}

/// Value of a key as an open transaction sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The transaction's own last write (`None`: deleted), and the number of its changes of this key.
    Own { value: Option<Value>, changes: i64 },
    /// No own write: the key is to be read from the store at this position.
    Snapshot(Position),
}

/// Open transactions of a process. Times are `monotonic_ms` of the process's clock.
#[derive(Debug, Default)]
pub struct Transactions {
    limits: Limits,
    open: HashMap<Arc<str>, Open>,
    /// Times of expiry in monotonic milliseconds, each with the transaction's id.
    deadlines: BTreeSet<(u64, Arc<str>)>,
    bytes: usize,
    expired: VecDeque<(Arc<str>, u64)>,
    /// Transactions committed without a change, of which no store knows anything.
    empty: VecDeque<Arc<str>>,
}

#[derive(Debug)]
struct Open {
    deadline: u64,
    timeout_ms: u64,
    snapshot: Position,
    changes: Vec<Change>,
    /// For each key the index of its last change, and the number of its changes.
    own: HashMap<Arc<Name>, (usize, i64)>,
    bytes: usize,
}

impl Transactions {
    pub fn new(limits: Limits) -> Transactions {
        Transactions { limits, ..Transactions::default() }
    }

    /// Opens a transaction that reads at `snapshot`. Without `timeout_ms`, [`DEFAULT_TIMEOUT_MS`] holds. The caller
    /// chooses the id and never uses it twice.
    pub fn begin(
        &mut self,
        id: &str,
        timeout_ms: Option<u64>,
        snapshot: Position,
        now_ms: u64,
    ) -> Result<(), Error> {
        self.expire(now_ms);
        if self.open.contains_key(id) {
            return Err(Error::Exists { id: id.into() });
        }
        let (open, limit) = (self.open.len(), self.limits.open);
        if open >= limit {
            return Err(Error::TooManyOpen { open, limit });
        }
        let timeout_ms = timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS).min(self.limits.timeout_ms);
        let deadline = now_ms.saturating_add(timeout_ms);
        let id: Arc<str> = id.into();
        self.deadlines.insert((deadline, id.clone()));
        let (changes, own) = (Vec::new(), HashMap::new());
        self.open.insert(id, Open { deadline, timeout_ms, snapshot, changes, own, bytes: 0 });
        Ok(())
    }

    /// Adds a write or a delete. A refused change is not added, and the transaction goes on.
    pub fn change(&mut self, id: &str, change: Change, now_ms: u64) -> Result<(), Error> {
        self.expire(now_ms);
        let (limits, held) = (self.limits, self.bytes);
        let t = self.get(id, now_ms)?;
        if t.changes.len() >= limits.changes {
            return Err(Error::TooManyChanges { id: id.into(), limit: limits.changes });
        }
        let more = size(&change);
        if t.bytes + more > limits.bytes {
            return Err(Error::TooLarge { id: id.into(), wanted: t.bytes + more, limit: limits.bytes });
        }
        if held + more > limits.total_bytes {
            return Err(Error::Full { wanted: held + more, limit: limits.total_bytes });
        }
        let of_key = t.own.entry(change.name.clone()).or_default();
        *of_key = (t.changes.len(), of_key.1 + 1);
        t.changes.push(change);
        t.bytes += more;
        self.bytes += more;
        Ok(())
    }

    /// Returns the transaction's view of a key.
    pub fn see(&mut self, id: &str, name: &Name, now_ms: u64) -> Result<Seen, Error> {
        let t = self.get(id, now_ms)?;
        Ok(match t.own.get(name) {
            Some((last, changes)) => Seen::Own { value: t.changes[*last].value.clone(), changes: *changes },
            None => Seen::Snapshot(t.snapshot),
        })
    }

    /// Returns the position at which the transaction reads keys that it has not written.
    pub fn snapshot(&mut self, id: &str, now_ms: u64) -> Result<Position, Error> {
        self.get(id, now_ms).map(|t| t.snapshot)
    }

    /// Ends the transaction and returns the `Put` that commits it, for the caller to submit. The `Put` carries the
    /// transaction's id, so that its outcome can be read when the answer is lost. The commit of an empty transaction
    /// may be asked for again.
    pub fn commit(&mut self, id: &str, conflicts: Conflicts, now_ms: u64) -> Result<Put, Error> {
        if !self.open.contains_key(id) && self.was_empty(id) {
            return Ok(Put { actor: None, changes: Vec::new(), transaction: Some(id.into()) });
        }
        self.get(id, now_ms)?;
        let Some((id, t)) = self.take(id) else { return Err(Error::NotFound { id: id.into() }) };
        let mut changes = t.changes;
        if changes.is_empty() {
            self.empty.push_back(id.clone());
            self.empty.drain(..self.empty.len().saturating_sub(REMEMBERED));
        }
        if conflicts == Conflicts::FirstCommitter {
            changes.iter_mut().for_each(|c| c.unchanged_since = Some(t.snapshot));
        }
        Ok(Put { actor: None, changes, transaction: Some(id) })
    }

    /// Returns whether the transaction was committed without a change. Only the newest such transactions are
    /// remembered.
    pub fn was_empty(&self, id: &str) -> bool {
        self.empty.iter().rev().any(|e| **e == *id)
    }

    /// Ends the transaction. Returns false when there was none, which is no error.
    pub fn abort(&mut self, id: &str) -> bool {
        self.take(id).is_some()
    }

    /// Ends expired transactions and returns how many there were. Every method here does so too; a timer does it in a
    /// process where nothing else happens.
    pub fn expire(&mut self, now_ms: u64) -> usize {
        let mut ended = 0;
        while let Some((deadline, id)) = self.deadlines.first().cloned() {
            if deadline > now_ms {
                break;
            }
            if let Some((id, t)) = self.take(&id) {
                self.expired.push_back((id, t.timeout_ms));
                ended += 1;
            }
        }
        let forget = self.expired.len().saturating_sub(REMEMBERED);
        self.expired.drain(..forget);
        ended
    }

    /// Returns the number of open transactions and the bytes they hold.
    pub fn held(&self) -> (usize, usize) {
        (self.open.len(), self.bytes)
    }

    fn get(&mut self, id: &str, now_ms: u64) -> Result<&mut Open, Error> {
        self.expire(now_ms);
        if !self.open.contains_key(id) {
            let expired = self.expired.iter().rev().find(|(e, _)| **e == *id);
            return Err(match expired {
                Some(&(_, timeout_ms)) => Error::Expired { id: id.into(), timeout_ms },
                None => Error::NotFound { id: id.into() },
            });
        }
        self.open.get_mut(id).ok_or_else(|| Error::NotFound { id: id.into() })
    }

    fn take(&mut self, id: &str) -> Option<(Arc<str>, Open)> {
        let (id, t) = self.open.remove_entry(id)?;
        self.deadlines.remove(&(t.deadline, id.clone()));
        self.bytes -= t.bytes;
        Some((id, t))
    }
}

fn size(change: &Change) -> usize {
    let Name { namespace, agent, key } = &*change.name;
    let value = change.value.as_ref().map_or(0, |v| v.stored().len());
    OVERHEAD + namespace.len() + agent.len() + key.len() + value
}

/// Returns the error for a transaction of which nothing is recorded.
///
/// Outlast's own ids tell their age: a transaction older than outcomes are kept may have been committed.
pub fn unknown(id: &str, now: Micros) -> Error {
    match made_at(id) {
        Some(at) if outcome::is_old(at, now) => Error::Forgotten { id: id.into(), days: outcome::KEPT_DAYS },
        _ => Error::NotFound { id: id.into() },
    }
}

/// Returns the time at which Outlast made an id: `txn_` and a UUID version 7, which begins with milliseconds.
fn made_at(id: &str) -> Option<Micros> {
    let uuid = id.strip_prefix("txn_").filter(|uuid| uuid.len() == 36 && uuid.as_bytes()[14] == b'7')?;
    let (high, rest) = uuid.split_at_checked(8)?;
    let low = rest.strip_prefix('-')?.get(..4)?;
    let ms = i64::from_str_radix(&format!("{high}{low}"), 16).ok()?;
    ms.checked_mul(1000).map(Micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::id::uuid_v7;

    fn name(key: &str) -> Arc<Name> {
        Name::new("ns", "agent", key)
    }

    fn set(key: &str, value: &str) -> Change {
        Change::set(name(key), value.as_bytes())
    }

    fn begun(limits: Limits, ids: &[&str]) -> Transactions {
        let mut t = Transactions::new(limits);
        ids.iter().for_each(|id| t.begin(id, Some(100), Position(7), 0).unwrap());
        t
    }

    fn seen(t: &mut Transactions, id: &str, key: &str) -> (Option<String>, i64) {
        match t.see(id, &name(key), 0).unwrap() {
            Seen::Own { value, changes } => {
                let text = value.map(|v| String::from_utf8(v.decoded().unwrap().to_vec()).unwrap());
                (text, changes)
            }
            Seen::Snapshot(at) => (Some(format!("at {}", at.0)), 0),
        }
    }

    #[test]
    fn a_transaction_reads_its_own_writes_and_else_what_stood_when_it_began() {
        let mut t = begun(Limits::default(), &["t", "other"]);
        assert_eq!(seen(&mut t, "t", "k"), (Some("at 7".into()), 0));
        t.change("t", set("k", "one"), 0).unwrap();
        t.change("t", set("k", "two"), 0).unwrap();
        assert_eq!(seen(&mut t, "t", "k"), (Some("two".into()), 2));
        t.change("t", Change::delete(name("k")), 0).unwrap();
        assert_eq!(seen(&mut t, "t", "k"), (None, 3));
        assert_eq!(seen(&mut t, "other", "k"), (Some("at 7".into()), 0));
    }

    #[test]
    fn a_commit_is_one_put_of_all_changes_in_order_under_the_transactions_id() {
        for (conflicts, since) in
            [(Conflicts::Expected, None), (Conflicts::FirstCommitter, Some(Position(7)))]
        {
            let mut t = begun(Limits::default(), &["t"]);
            t.change("t", set("b", "1"), 0).unwrap();
            t.change("t", set("a", "2").expecting(3), 0).unwrap();
            let put = t.commit("t", conflicts, 0).unwrap();
            let keys: Vec<&str> = put.changes.iter().map(|c| c.name.key.as_str()).collect();
            assert_eq!((keys, put.transaction.as_deref()), (vec!["b", "a"], Some("t")));
            assert_eq!(put.changes[1].expected, Some(3));
            assert!(put.changes.iter().all(|c| c.unchanged_since == since));
            assert_eq!(t.held(), (0, 0));
        }
    }

    #[test]
    fn an_ended_or_unknown_transaction_is_not_found_and_aborting_it_is_no_error() {
        let mut t = begun(Limits::default(), &["committed", "aborted"]);
        t.change("committed", set("k", "v"), 0).unwrap();
        t.commit("committed", Conflicts::Expected, 0).unwrap();
        assert!(t.abort("aborted") && !t.abort("aborted") && !t.abort("never"));
        for id in ["committed", "aborted", "never"] {
            let error = t.change(id, set("k", "v"), 0).unwrap_err();
            assert_eq!(
                (error.code(), error.to_string().contains("not found")),
                ("transaction_not_found", true)
            );
            assert_eq!(t.commit(id, Conflicts::Expected, 0).unwrap_err(), error);
        }
    }

    #[test]
    fn a_timeout_frees_what_was_held_and_says_so() {
        let mut t = begun(Limits::default(), &["t", "u"]);
        t.begin("long", Some(101), Position(0), 0).unwrap();
        t.change("t", set("k", &"v".repeat(5000)), 99).unwrap();
        assert_eq!(t.deadlines.first().map(|d| d.0), Some(100));
        assert_eq!((t.expire(99), t.held().0), (0, 3));
        assert_eq!((t.expire(100), t.held()), (2, (1, 0)));
        let error = t.commit("t", Conflicts::Expected, 100).unwrap_err();
        assert_eq!((error.code(), error.to_string().contains("expired")), ("transaction_expired", true));
        t.change("long", set("k", "v"), 100).unwrap();
        assert_eq!(t.change("long", set("k", "v"), 101).unwrap_err().code(), "transaction_expired");
        assert_eq!((t.held(), t.deadlines.len()), ((0, 0), 0));
    }

    /// Bug: a commit whose answer was lost said "not found" when it was asked again. Cause: of a transaction without a
    /// change nothing is recorded.
    #[test]
    fn the_commit_of_an_empty_transaction_is_answered_again() {
        let mut t = begun(Limits::default(), &["empty", "full"]);
        t.change("full", set("k", "v"), 0).unwrap();
        t.commit("full", Conflicts::Expected, 0).unwrap();
        assert_eq!(t.commit("full", Conflicts::Expected, 0).unwrap_err().code(), "transaction_not_found");
        for _ in 0..2 {
            let put = t.commit("empty", Conflicts::Expected, 0).unwrap();
            assert_eq!((put.changes.len(), put.transaction.as_deref()), (0, Some("empty")));
        }
        assert!(t.was_empty("empty") && !t.was_empty("full"));
    }

    #[test]
    fn a_client_without_a_timeout_gets_thirty_seconds_and_nobody_more_than_the_limit() {
        let mut t = Transactions::new(Limits { timeout_ms: 50_000, ..Limits::default() });
        t.begin("default", None, Position(0), 1).unwrap();
        t.begin("forever", Some(u64::MAX), Position(0), 1).unwrap();
        assert_eq!((t.expire(30_000), t.expire(30_001), t.expire(50_001)), (0, 1, 1));
    }

    #[test]
    fn abandoned_transactions_cannot_fill_the_memory() {
        let limits = Limits { open: 2, changes: 2, bytes: 1200, total_bytes: 1500, ..Limits::default() };
        let mut t = begun(limits, &["a", "b"]);
        let code = |r: Result<(), Error>| r.unwrap_err().code();
        assert_eq!(code(t.begin("c", None, Position(0), 0)), "too_many_transactions");
        assert_eq!(code(t.begin("a", None, Position(0), 0)), "transaction_exists");
        // Too short to be compressed, so that its size is known.
        let big = |key: &str| set(key, &"v".repeat(100));
        t.change("a", big("x"), 0).unwrap();
        t.change("a", big("x"), 0).unwrap();
        assert_eq!(code(t.change("a", big("x"), 0)), "transaction_too_large");
        t.change("b", big("x"), 0).unwrap();
        let long = set(&"k".repeat(1000), "v");
        assert_eq!(code(t.change("b", long, 0)), "transaction_too_large");
        let held = t.held();
        let rest = limits.total_bytes - held.1;
        assert_eq!(code(t.change("b", set(&"k".repeat(rest), "v"), 0)), "too_many_transactions");
        assert_eq!(t.held(), held);
        t.begin("c", None, Position(0), 100).unwrap();
        assert_eq!(t.held(), (1, 0));
    }

    #[test]
    fn an_id_of_ours_that_is_older_than_outcomes_are_kept_is_told_apart() {
        let made = Micros(1_800_000_000_000_000);
        let ours = format!("txn_{}", uuid_v7(made, [7; 10]));
        let check = |id: &str, after_us: i64, want: &str| {
            assert_eq!(unknown(id, Micros(made.0 + after_us)).code(), want, "{id} {after_us}");
        };
        check(&ours, 0, "transaction_not_found");
        check(&ours, outcome::KEPT_US, "transaction_not_found");
        check(&ours, outcome::KEPT_US + 1000, "transaction_forgotten");
        check("mine", i64::MAX / 4, "transaction_not_found");
        check("txn_é9999999-9999-7999-8999-99999999999", i64::MAX / 4, "transaction_not_found");
        let text = unknown(&ours, Micros(made.0 + 2 * outcome::KEPT_US)).to_string();
        assert!(text.contains("not found") && text.contains("older than 7 days"), "{text}");
    }
}
