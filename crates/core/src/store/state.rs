//! What can be read of the state. One trait, implemented by every store.

use crate::{
    state::{At, Committed, Item, Listed, Namespace, Position, ResumePoint},
    store::{Error, Store},
    words::id::Micros,
};

/// A page of an agent's live keys, in the order of their UTF-8 bytes.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    pub namespace: String,
    pub agent: String,
    /// Only keys that start with it.
    pub prefix: String,
    /// Only keys behind it: the page after the last one seen.
    pub after: Option<String>,
    /// Pages of one scan agree with each other when all are read at one position.
    pub at: At,
    pub limit: usize,
}

/// One end of a range of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Commit(i64),
    Time(Micros),
}

/// A page of what one agent's keys went through, in the order in which it was committed.
#[derive(Clone, Debug, Default)]
pub struct EventRange {
    pub namespace: String,
    pub agent: String,
    /// The first commit, itself included.
    pub from: Option<Moment>,
    /// The last commit, itself included.
    pub to: Option<Moment>,
    /// Only events behind it: the page after the last one seen. To follow is to ask on.
    pub after: Position,
    pub limit: usize,
}

/// Events in order. Those of one commit follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// Compaction has removed versions of this agent from this page's part of the order.
    pub compacted: bool,
}

/// One version of a key, with the transaction that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub item: Item,
    /// The id the transaction was committed under, if it had one.
    pub transaction: Option<String>,
}

/// Versions of a key, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub items: Vec<Item>,
    /// The oldest version that is kept: compaction has removed those below. 1 when none was removed;
    /// 0 when the key was never written.
    pub oldest: i64,
}

/// Reads of what is committed; each sees one moment. A value that cannot be read is `Corrupt`.
///
/// A read of what compaction has removed is `Compacted`, and never a wrong answer.
pub trait Reads {
    /// The newest version of a key: of a deleted one its tombstone, of an unknown one `None`.
    fn state(&self, namespace: &str, agent: &str, key: &str) -> Result<Option<Item>, Error>;
    /// One version of a key; `None` when it was not made yet.
    fn state_version(
        &self,
        namespace: &str,
        agent: &str,
        key: &str,
        version: i64,
    ) -> Result<Option<Item>, Error>;
    /// The version of a key that was the newest then.
    fn state_at(&self, namespace: &str, agent: &str, key: &str, at: At) -> Result<Option<Item>, Error>;
    /// Versions of a key above `after`, oldest first, at most `limit`.
    fn state_history(
        &self,
        namespace: &str,
        agent: &str,
        key: &str,
        after: i64,
        limit: usize,
    ) -> Result<History, Error>;
    /// Live keys, without reading values.
    fn state_keys(&self, scan: &Scan) -> Result<Vec<Listed>, Error>;
    /// Live keys with their values.
    fn state_scan(&self, scan: &Scan) -> Result<Vec<Item>, Error>;
    /// What an agent's keys went through.
    fn state_events(&self, range: &EventRange) -> Result<EventPage, Error>;
    /// Where a loop over `prefix0`, `prefix1`, … goes on. Does not depend on how many there are, except
    /// behind a prefix that ends in a digit.
    fn resume_point(&self, namespace: &str, agent: &str, prefix: &str) -> Result<ResumePoint, Error>;
    /// The newest position of the store: what a transaction that begins now reads at.
    fn state_position(&self) -> Result<Position, Error>;
    fn namespace(&self, name: &str) -> Result<Option<Namespace>, Error>;
    /// Namespaces in the order of their UTF-8 bytes, behind `after`.
    fn namespaces(&self, after: Option<&str>, limit: usize) -> Result<Vec<Namespace>, Error>;
    /// Agents of a namespace in the order of their UTF-8 bytes, behind `after`.
    fn agents(&self, namespace: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error>;
    /// What the transaction with this id came to; `None` when it was not committed, or longer ago than ids are
    /// kept: see [`super::outcome::unknown`].
    fn transaction_outcome(&self, id: &str) -> Result<Option<Committed>, Error>;
}

/// A store around another one, whose state it shows as it is.
pub trait Wraps {
    fn wrapped(&self) -> &dyn Store;
}

impl<T: Wraps> Reads for T {
    fn state(&self, namespace: &str, agent: &str, key: &str) -> Result<Option<Item>, Error> {
        self.wrapped().state(namespace, agent, key)
    }
    fn state_version(&self, ns: &str, agent: &str, key: &str, version: i64) -> Result<Option<Item>, Error> {
        self.wrapped().state_version(ns, agent, key, version)
    }
    fn state_at(&self, ns: &str, agent: &str, key: &str, at: At) -> Result<Option<Item>, Error> {
        self.wrapped().state_at(ns, agent, key, at)
    }
    fn state_history(
        &self,
        ns: &str,
        agent: &str,
        key: &str,
        after: i64,
        limit: usize,
    ) -> Result<History, Error> {
        self.wrapped().state_history(ns, agent, key, after, limit)
    }
    fn state_keys(&self, scan: &Scan) -> Result<Vec<Listed>, Error> {
        self.wrapped().state_keys(scan)
    }
    fn state_scan(&self, scan: &Scan) -> Result<Vec<Item>, Error> {
        self.wrapped().state_scan(scan)
    }
    fn state_events(&self, range: &EventRange) -> Result<EventPage, Error> {
        self.wrapped().state_events(range)
    }
    fn resume_point(&self, ns: &str, agent: &str, prefix: &str) -> Result<ResumePoint, Error> {
        self.wrapped().resume_point(ns, agent, prefix)
    }
    fn state_position(&self) -> Result<Position, Error> {
        self.wrapped().state_position()
    }
    fn namespace(&self, name: &str) -> Result<Option<Namespace>, Error> {
        self.wrapped().namespace(name)
    }
    fn namespaces(&self, after: Option<&str>, limit: usize) -> Result<Vec<Namespace>, Error> {
        self.wrapped().namespaces(after, limit)
    }
    fn agents(&self, ns: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        self.wrapped().agents(ns, after, limit)
    }
    fn transaction_outcome(&self, id: &str) -> Result<Option<Committed>, Error> {
        self.wrapped().transaction_outcome(id)
    }
}
