//! Filters and pages: the rows that a read selects.

use serde::{Deserialize, Serialize};

use crate::{
    journal::{Entry, Kind, State, job},
    state::At,
    words::{RunNo, Seq},
};

/// Filter for the approvals to read.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ApprovalFilter {
    pub run: Option<RunNo>,
    /// Restricts to open entries: pending approvals, and expired ones that nobody has requested again.
    pub open: bool,
    pub limit: usize,
}

/// Page of a run's journal, in order: entries after `after` and up to `upto`, at most `limit` rows.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Page {
    pub after: Seq,
    /// Last entry of the page. Rows are read as of this entry: a later replacement is left out.
    pub upto: Seq,
    pub limit: usize,
    /// Whether each row comes with its value, if the value is short.
    pub values: bool,
}

impl Page {
    pub fn new(after: Seq, limit: usize) -> Page {
        Page { after, upto: Seq(i64::MAX), limit, values: false }
    }

    pub fn with_values(self) -> Page {
        Page { values: true, ..self }
    }
}

/// Query for the newest entry of a kind and key in a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sought {
    pub kind: Kind,
    pub key: String,
    /// Scope of the entry; `None` matches any scope.
    pub scope: Option<String>,
    /// Restricts to entries that are `done`.
    pub done: bool,
    /// Restricts to entries up to this one.
    pub upto: Seq,
}

impl Sought {
    /// Builds a query for the newest entry that is done, in any scope.
    pub fn done(kind: Kind, key: &str) -> Sought {
        Sought { kind, key: key.to_owned(), scope: None, done: true, upto: Seq(i64::MAX) }
    }

    /// Builds a query for the newest entry of an item.
    pub fn item(key: &str) -> Sought {
        let (key, scope) = (key.to_owned(), Some(job::SCOPE.to_owned()));
        Sought { kind: Kind::Item, key, scope, done: false, upto: Seq(i64::MAX) }
    }

    pub fn is(&self, e: &Entry) -> bool {
        e.kind == self.kind
            && e.key.as_ref() == Some(&self.key)
            && self.scope.as_ref().is_none_or(|scope| *e.scope == **scope)
            && (e.state == State::Done || !self.done)
            && e.seq <= self.upto
    }
}

/// Last name of the page before the one that is read; `None`: the first page.
pub type After = Option<String>;

/// Selects the version of a state key to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Which {
    Version(i64),
    /// The version that was the newest at that point.
    At(At),
}

impl From<At> for Which {
    fn from(at: At) -> Which {
        Which::At(at)
    }
}
