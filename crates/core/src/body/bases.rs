//! Bases: the last few bodies of a run, kept in memory, against which the next one may be stored.

use bytes::Bytes;

use super::{
    BodyRecord,
    outline::{Outlined, Text},
};
use crate::words::Seq;

/// Largest number of bases kept for one run. Several, because agents of one run take turns.
pub const MAX_BASES: usize = 8;

/// Body of an earlier request, from which later bodies are stored as differences, with its place in its own chain of
/// bases.
#[derive(Clone, Debug)]
pub struct Base {
    pub seq: Seq,
    pub chain: Chain,
    pub(super) text: Text,
}

/// Place of a record in its chain of bases: see [`BodyRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    pub depth: u32,
    pub len: u64,
}

impl From<&BodyRecord> for Chain {
    fn from(record: &BodyRecord) -> Chain {
        Chain { depth: record.depth, len: record.chain_len }
    }
}

impl Base {
    /// Makes a base of `body`, which must be what the record at `chain`, stored with entry `seq`, restores to.
    pub fn new(seq: Seq, chain: impl Into<Chain>, body: Bytes) -> Base {
        Base { seq, chain: chain.into(), text: Text::of(body) }
    }

    /// Returns the number of bytes that `body` shares with the base at its start, and at its end. An outline may find
    /// fewer than there are.
    pub(super) fn common(&self, body: &Outlined<'_>, at_least: usize) -> Option<(usize, usize)> {
        self.text.common(body, at_least)
    }
}

/// Last bodies of one run, at most [`MAX_BASES`].
///
/// Push a body only after its record is committed: a later record stored as its difference must find it in the store.
#[derive(Clone, Debug, Default)]
pub struct BodyBases {
    /// Bases, oldest first.
    bases: Vec<Base>,
}

impl BodyBases {
    pub fn new() -> BodyBases {
        BodyBases::default()
    }

    /// Makes `base` the newest, and drops the oldest if there are too many.
    ///
    /// A body whose entry is already here (it was replayed) only becomes the newest again.
    pub fn push(&mut self, base: Base) {
        self.bases.retain(|known| known.seq != base.seq);
        self.bases.push(base);
        if self.bases.len() > MAX_BASES {
            self.bases.remove(0);
        }
    }

    pub fn get(&self, seq: Seq) -> Option<&Base> {
        self.bases.iter().find(|base| base.seq == seq)
    }

    /// Returns the bases, oldest first, as [`super::diff()`] takes them.
    pub fn as_slice(&self) -> &[Base] {
        &self.bases
    }

    pub fn is_empty(&self) -> bool {
        self.bases.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(seq: i64) -> Base {
        let body = vec![seq as u8; 10];
        Base::new(Seq(seq), &BodyRecord::whole(&body), body.into())
    }

    fn check(pushed: impl IntoIterator<Item = i64>, kept: &[i64]) {
        let mut bases = BodyBases::new();
        pushed.into_iter().for_each(|seq| bases.push(base(seq)));
        let seqs: Vec<i64> = bases.as_slice().iter().map(|base| base.seq.0).collect();
        assert_eq!(seqs, kept);
    }

    #[test]
    fn the_last_eight_bodies_are_kept() {
        check([], &[]);
        check(1..=10, &[3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_replayed_body_is_the_newest_again() {
        check([1, 2, 3, 1], &[2, 3, 1]);
    }

    #[test]
    fn a_base_is_found_by_its_entry() {
        let mut bases = BodyBases::new();
        assert!(bases.is_empty() && bases.get(Seq(1)).is_none());
        bases.push(base(1));
        assert_eq!(bases.get(Seq(1)).unwrap().text.len(), 10);
        assert!(bases.get(Seq(2)).is_none());
    }
}
