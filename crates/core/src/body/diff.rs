//! Choice of the base a body is stored against, and the part left to store.

use super::{Base, BodyRecord, MAX_DEPTH};
use crate::{journal::payload::Payload, words::digest::Digest};

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
    let Some((base, common)) = choose(body, bases) else {
        return BodyRecord::whole(body);
    };
    let middle = Payload::encode(&body[common.prefix..body.len() - common.suffix]);
    BodyRecord {
        base: Some(base.seq),
        base_len: base.body.len() as u64,
        depth: base.depth + 1,
        chain_len: base.chain_len + middle.len,
        prefix: common.prefix as u64,
        suffix: common.suffix as u64,
        len: body.len() as u64,
        sha256: Digest::of(body).0,
        middle,
    }
}

/// Bytes that a body and a base share, without overlap in either.
#[derive(Clone, Copy)]
struct Common {
    prefix: usize,
    suffix: usize,
}

impl Common {
    fn len(self) -> usize {
        self.prefix + self.suffix
    }
}

/// Chooses the best base. Tries the newest first: it is nearly always the best, and a good first one makes the
/// others quick to reject. Among equals the shortest chain wins, so that requests made from one template hang
/// side by side and not one below the other.
fn choose<'a>(body: &[u8], bases: &'a [Base]) -> Option<(&'a Base, Common)> {
    let mut best: Option<(&Base, Common)> = None;
    for base in bases.iter().rev().filter(|base| base.depth < MAX_DEPTH) {
        let at_least = match best {
            Some((chosen, common)) => common.len() + usize::from(base.depth >= chosen.depth),
            None => MIN_SHARED.max(body.len() / 8),
        };
        let Some(common) = common(body, &base.body, at_least) else { continue };
        let chain_len = base.chain_len.saturating_add((body.len() - common.len()) as u64);
        if chain_len <= (body.len() as u64).saturating_mul(4) + CHAIN_SLACK {
            best = Some((base, common));
        }
    }
    best
}

/// Returns the shared bytes of two bodies, if there are at least `at_least`.
fn common(body: &[u8], base: &[u8], at_least: usize) -> Option<Common> {
    let shorter = body.len().min(base.len());
    if shorter < at_least {
        return None;
    }
    let suffix = common_suffix(body, base);
    // The prefix would have to reach `needed`: a look at the bytes just before it spares most comparisons.
    let needed = at_least.saturating_sub(suffix);
    let glance = needed.saturating_sub(64)..needed;
    if body[glance.clone()] != base[glance] {
        return None;
    }
    let prefix = common_prefix(body, base);
    let common = Common { prefix, suffix: suffix.min(shorter - prefix) };
    (common.len() >= at_least).then_some(common)
}

/// Returns the number of bytes that both bodies have in common at the start. Compares block by block, each with a
/// `memcmp`, and then the first differing block byte by byte.
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let shorter = a.len().min(b.len());
    let mut same = 0;
    for block in [4096, 64, 1] {
        while same + block <= shorter && a[same..same + block] == b[same..same + block] {
            same += block;
        }
    }
    same
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let shorter = a.len().min(b.len());
    let (a, b) = (&a[a.len() - shorter..], &b[b.len() - shorter..]);
    let mut left = shorter;
    for block in [4096, 64, 1] {
        while block <= left && a[left - block..left] == b[left - block..left] {
            left -= block;
        }
    }
    shorter - left
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::words::id::Seq;

    fn base(seq: i64, depth: u32, body: &[u8]) -> Base {
        Base { seq: Seq(seq), depth, chain_len: body.len() as u64, body: Bytes::copy_from_slice(body) }
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
        check(Base { chain_len: limit, ..base(1, 9, &a) }, true);
        check(Base { chain_len: limit + 1, ..base(1, 9, &a) }, false);
    }

    /// The result expected of `common`, found byte by byte.
    fn slow_common(body: &[u8], base: &[u8]) -> (usize, usize) {
        let prefix = body.iter().zip(base).take_while(|(a, b)| a == b).count();
        let suffix = body[prefix..].iter().rev().zip(base[prefix..].iter().rev());
        (prefix, suffix.take_while(|(a, b)| a == b).count())
    }

    proptest! {
        #[test]
        fn blocks_find_what_bytes_find(
            head in prop::collection::vec(0..2u8, 0..10_000),
            tail in prop::collection::vec(0..2u8, 0..200),
            (a, b) in (prop::collection::vec(0..2u8, 0..9), prop::collection::vec(0..2u8, 0..9)),
            at_least in 0..12_000usize,
        ) {
            let body = [&head[..], &a, &tail].concat();
            let base = [&head[..], &b, &tail].concat();
            let (prefix, suffix) = slow_common(&body, &base);
            let found = common(&body, &base, at_least).map(|common| (common.prefix, common.suffix));
            prop_assert_eq!(found, (prefix + suffix >= at_least).then_some((prefix, suffix)));
        }
    }
}
