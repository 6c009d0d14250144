//! Bases that request bodies are stored against, and the choice among them.

use bytes::Bytes;

use super::{
    BodyRecord, MAX_DEPTH,
    outline::{Outlined, Text},
};
use crate::{
    journal::Payload,
    words::{Digest, Seq},
};

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

/// Least number of bytes a base must save, or an eighth of the body if that is more: a base costs a read for
/// ever.
const MIN_SHARED: usize = 128;
/// Number of bytes a chain may hold beyond four times its body: lets small bodies share a base, too.
const CHAIN_SLACK: u64 = 64 << 10;

/// Encodes `body` as a difference from the base (of `bases`, oldest first) that shares the most bytes at its start and
/// end. Encodes it whole if no base saves enough or the chain would get too long.
///
/// Costs one memory comparison with each base that could still win: 8 bases of 500 KB take well under a
/// millisecond. Panics if `body` is larger than 1 GiB, like [`Payload::encode`].
pub fn diff(body: &[u8], bases: &[Base]) -> BodyRecord {
    let Some((base, prefix, suffix)) = choose(body, bases) else {
        return BodyRecord::whole(body);
    };
    let middle = Payload::encode(&body[prefix..body.len() - suffix]);
    BodyRecord {
        base: Some(base.seq),
        base_len: base.text.len() as u64,
        depth: base.chain.depth + 1,
        chain_len: base.chain.len + middle.len,
        prefix: prefix as u64,
        suffix: suffix as u64,
        len: body.len() as u64,
        sha256: Digest::of(body).0,
        middle,
    }
}

/// Chooses the best base, with the numbers of bytes shared at the start and at the end. Tries the newest first: it is
/// nearly always the best, and a good first one makes the others quick to reject. Among equals the shortest chain wins,
/// so that requests made from one template hang side by side and not one below the other.
fn choose<'a>(body: &[u8], bases: &'a [Base]) -> Option<(&'a Base, usize, usize)> {
    let outlined = Outlined::new(body);
    let mut best: Option<(&Base, usize, usize)> = None;
    for base in bases.iter().rev().filter(|base| base.chain.depth < MAX_DEPTH) {
        let at_least = match best {
            Some((chosen, prefix, suffix)) => {
                prefix + suffix + usize::from(base.chain.depth >= chosen.chain.depth)
            }
            None => MIN_SHARED.max(body.len() / 8),
        };
        let Some((prefix, suffix)) = base.text.common(&outlined, at_least) else { continue };
        let chain_len = base.chain.len.saturating_add((body.len() - prefix - suffix) as u64);
        if chain_len <= (body.len() as u64).saturating_mul(4) + CHAIN_SLACK {
            best = Some((base, prefix, suffix));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(seq: i64) -> Base {
        let body = vec![seq as u8; 10];
        Base::new(Seq(seq), &BodyRecord::whole(&body), body.into())
    }

    fn check(pushed: impl IntoIterator<Item = i64>, kept: &[i64]) {
        let mut bases = BodyBases::default();
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
        let mut bases = BodyBases::default();
        assert!(bases.is_empty() && bases.get(Seq(1)).is_none());
        bases.push(base(1));
        assert_eq!(bases.get(Seq(1)).unwrap().text.len(), 10);
        assert!(bases.get(Seq(2)).is_none());
    }
}

#[cfg(test)]
mod diff_tests {
    use bytes::Bytes;

    use super::*;
    use crate::{body::Chain, words::Seq};

    fn base(seq: i64, depth: u32, body: &[u8]) -> Base {
        Base::new(Seq(seq), Chain { depth, len: body.len() as u64 }, Bytes::copy_from_slice(body))
    }

    /// 400 bytes of which no two seeds share any.
    fn text(seed: u8) -> Vec<u8> {
        (0..400).map(|i| seed.wrapping_add((i % 7) as u8)).collect()
    }

    #[test]
    fn the_base_with_most_in_common_is_chosen() {
        let (a, b, c) = (text(0), text(50), text(100));
        let check = |body: &[u8], bases: &[Base], chosen: Option<i64>, middle: usize| {
            let record = diff(body, bases);
            assert_eq!(record.base.map(|seq| seq.0), chosen);
            assert_eq!(record.middle.len, middle as u64);
        };
        let cat = |parts: &[&[u8]]| parts.concat();
        check(&a, &[], None, 400);
        check(&a, &[base(1, 0, &b)], None, 400);
        check(&a, &[base(1, 0, &a)], Some(1), 0);
        // A message more, before the same tail.
        check(&cat(&[&a, &b, b"]}"]), &[base(1, 0, &cat(&[&a, b"]}"])), base(2, 0, &c)], Some(1), 400);
        // An older base may have more in common, at either end.
        check(&cat(&[&a, &b]), &[base(1, 0, &cat(&[&a, &b])), base(2, 0, &a)], Some(1), 0);
        check(&cat(&[&a, &b]), &[base(1, 0, &cat(&[&c, &b])), base(2, 0, &a[..300])], Some(1), 400);
        // Bytes shared by both a prefix and a suffix are counted once.
        check(&[b'x'; 500], &[base(1, 0, &[b'x'; 400])], Some(1), 100);
        check(&[b'x'; 400], &[base(1, 0, &[b'x'; 500])], Some(1), 0);
    }

    #[test]
    fn of_equal_bases_the_newest_with_the_shortest_chain_is_chosen() {
        let a = text(0);
        let bases = [base(1, 3, &a), base(2, 1, &a), base(3, 1, &a), base(4, 2, &a)];
        let record = diff(&a, &bases);
        assert_eq!((record.base, record.depth), (Some(Seq(3)), 2));
    }

    #[test]
    fn too_little_in_common_is_stored_whole() {
        let check = |len: usize, shared: usize, used: bool| {
            let mut other = vec![b'x'; len];
            other[shared..].fill(b'y');
            let record = diff(&vec![b'x'; len], &[base(1, 0, &other)]);
            assert_eq!(record.base.is_some(), used, "{shared} of {len}");
        };
        check(500, 127, false);
        check(500, 128, true);
        check(8000, 999, false);
        check(8000, 1000, true);
    }

    #[test]
    fn a_chain_that_is_too_deep_or_too_long_ends() {
        let a = text(0);
        let check = |base: Base, used: bool| assert_eq!(diff(&a, &[base]).base.is_some(), used);
        let limit = 4 * a.len() as u64 + CHAIN_SLACK;
        check(base(1, MAX_DEPTH - 1, &a), true);
        check(base(1, MAX_DEPTH, &a), false);
        check(Base { chain: Chain { depth: 9, len: limit }, ..base(1, 9, &a) }, true);
        check(Base { chain: Chain { depth: 9, len: limit + 1 }, ..base(1, 9, &a) }, false);
    }
}
