//! Choice of the base a body is stored against, and the part left to store.

use super::{Base, BodyRecord, MAX_DEPTH, outline::Outlined};
use crate::{journal::Payload, words::Digest};

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
        let Some((prefix, suffix)) = base.common(&outlined, at_least) else { continue };
        let chain_len = base.chain.len.saturating_add((body.len() - prefix - suffix) as u64);
        if chain_len <= (body.len() as u64).saturating_mul(4) + CHAIN_SLACK {
            best = Some((base, prefix, suffix));
        }
    }
    best
}

#[cfg(test)]
mod tests {
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
