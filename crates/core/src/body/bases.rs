//! Bases: the last few bodies of a run, kept in memory, against which the next one may be stored.

use bytes::Bytes;

use super::BodyRecord;
use crate::words::id::Seq;

/// Largest number of bases kept for one run. Several, because agents of one run take turns.
pub const MAX_BASES: usize = 8;
/// Largest size of the kept bodies together: 16 MiB.
pub const MAX_BASES_LEN: usize = 16 << 20;

/// Body of an earlier request, from which later bodies are stored as differences, with its depth in its own chain of
/// bases.
#[derive(Clone, Debug)]
pub struct Base {
    pub seq: Seq,
    pub depth: u32,
    pub chain_len: u64,
    pub body: Bytes,
}

impl Base {
    /// Makes a base of `body`, which must be what `record`, stored with entry `seq`, restores to.
    pub fn new(seq: Seq, record: &BodyRecord, body: Bytes) -> Base {
        Base { seq, depth: record.depth, chain_len: record.chain_len, body }
    }
}

/// Last bodies of one run, at most [`MAX_BASES`] and [`MAX_BASES_LEN`] bytes in all.
///
/// Push a body only after its record is committed: a later record stored as its difference must find it in the store.
#[derive(Clone, Debug, Default)]
pub struct BodyBases {
    /// Bases, oldest first.
    bases: Vec<Base>,
    len: usize,
}

impl BodyBases {
    pub fn new() -> BodyBases {
        BodyBases::default()
    }

    /// Makes `base` the newest, and drops the oldest until all fit again.
    ///
    /// A body whose entry is already here (it was replayed) only becomes the newest again. A body over
    /// [`MAX_BASES_LEN`] is not kept and drives none out.
    pub fn push(&mut self, base: Base) {
        if base.body.len() > MAX_BASES_LEN {
            return;
        }
        if let Some(at) = self.bases.iter().position(|known| known.seq == base.seq) {
            self.remove(at);
        }
        self.len += base.body.len();
        self.bases.push(base);
        while self.bases.len() > MAX_BASES || self.len > MAX_BASES_LEN {
            self.remove(0);
        }
    }

    fn remove(&mut self, at: usize) {
        self.len -= self.bases.remove(at).body.len();
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

    fn base(seq: i64, len: usize) -> Base {
        let body = vec![seq as u8; len];
        Base::new(Seq(seq), &BodyRecord::whole(&body), body.into())
    }

    fn check(pushed: &[(i64, usize)], kept: &[i64]) {
        let mut bases = BodyBases::new();
        for (seq, len) in pushed {
            bases.push(base(*seq, *len));
            assert!(bases.len <= MAX_BASES_LEN);
            assert_eq!(bases.len, bases.as_slice().iter().map(|base| base.body.len()).sum::<usize>());
        }
        let seqs: Vec<i64> = bases.as_slice().iter().map(|base| base.seq.0).collect();
        assert_eq!(seqs, kept);
    }

    #[test]
    fn the_last_eight_bodies_are_kept() {
        check(&[], &[]);
        let ten: Vec<(i64, usize)> = (1..=10).map(|seq| (seq, 10)).collect();
        check(&ten, &[3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_replayed_body_is_the_newest_again() {
        check(&[(1, 10), (2, 10), (3, 10), (1, 10)], &[2, 3, 1]);
    }

    #[test]
    fn bodies_share_sixteen_mebibytes() {
        const SIX: usize = 6 << 20;
        check(&[(1, SIX), (2, 10), (3, SIX), (4, SIX)], &[2, 3, 4]);
        check(&[(1, SIX), (2, MAX_BASES_LEN)], &[2]);
        check(&[(1, SIX), (2, MAX_BASES_LEN + 1)], &[1]);
    }

    #[test]
    fn a_base_is_found_by_its_entry() {
        let mut bases = BodyBases::new();
        assert!(bases.is_empty() && bases.get(Seq(1)).is_none());
        bases.push(base(1, 3));
        assert_eq!(bases.get(Seq(1)).unwrap().body, vec![1; 3]);
        assert!(bases.get(Seq(2)).is_none());
    }
}
