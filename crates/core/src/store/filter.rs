//! Which rows a read is about.

use crate::{
    journal::{Entry, Kind, State, job},
    state::At,
    words::id::{RunNo, Seq},
};

/// Which approvals to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApprovalFilter {
    pub run: Option<RunNo>,
    /// Only those whose entry is open: pending ones, and such as expired with nobody asking again.
    pub open: bool,
    pub limit: usize,
}

/// A part of a run's journal, in order: behind `after` and up to `upto`, at most `limit` rows.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub after: Seq,
    /// Rows are as they were when this was the last place: what replaced one later is left out.
    pub upto: Seq,
    pub limit: usize,
    /// Each row comes with its value, where that is short.
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

/// The newest entry of a kind and key in a run.
#[derive(Clone, Copy, Debug)]
pub struct Sought<'a> {
    pub kind: Kind,
    pub key: &'a str,
    /// `None`: in any scope.
    pub scope: Option<&'a str>,
    /// Only entries that are `done`.
    pub done: bool,
    /// Only entries up to this place.
    pub upto: Seq,
}

impl<'a> Sought<'a> {
    /// The newest that is done, in any scope.
    pub fn done(kind: Kind, key: &'a str) -> Sought<'a> {
        Sought { kind, key, scope: None, done: true, upto: Seq(i64::MAX) }
    }

    /// The newest entry of an item.
    pub fn item(key: &'a str) -> Sought<'a> {
        Sought { kind: Kind::Item, key, scope: Some(job::SCOPE), done: false, upto: Seq(i64::MAX) }
    }

    pub fn is(&self, e: &Entry) -> bool {
        e.kind == self.kind
            && e.key.as_deref() == Some(self.key)
            && self.scope.is_none_or(|scope| *e.scope == *scope)
            && (e.state == State::Done || !self.done)
            && e.seq <= self.upto
    }
}

/// Which version of a key of the state to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Version(i64),
    /// The one that was the newest then.
    At(At),
}

impl From<At> for Which {
    fn from(at: At) -> Which {
        Which::At(at)
    }
}
