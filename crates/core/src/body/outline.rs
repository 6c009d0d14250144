//! Outline of a base's body: a small one is kept whole, of a large one what tells how much another body shares.

use std::{cell::RefCell, cmp::Ordering};

use bytes::Bytes;

use crate::words::Digest;

/// Largest body that is kept whole. A conversation with pictures has tens of megabytes, and a process many of them.
const MAX_WHOLE: usize = 2 << 20;

/// Length of the blocks in which an outline knows a body. At most so many shared bytes are stored again.
const BLOCK: usize = 16 << 10;

/// Length of the end of a body that its outline has as it is. A conversation grows there.
const TAIL: usize = 256 << 10;

/// Half of a block's SHA-256, which is enough that nobody makes two blocks with the same.
type Hash = [u8; 16];

/// Body of a base, or its outline.
#[derive(Clone, Debug)]
pub(super) enum Text {
    Whole(Bytes),
    Outline(Outline),
}

/// Outline of a body: a sixtieth of 16 MiB.
#[derive(Clone, Debug)]
pub(super) struct Outline {
    len: usize,
    /// Hash of each whole block, from the start.
    blocks: Vec<Hash>,
    tail: Bytes,
}

/// Body that is compared with bases. Its blocks are hashed once, as far as they are asked for.
pub(super) struct Outlined<'b> {
    body: &'b [u8],
    blocks: RefCell<Vec<Hash>>,
}

impl<'b> Outlined<'b> {
    pub fn new(body: &'b [u8]) -> Outlined<'b> {
        Outlined { body, blocks: RefCell::default() }
    }

    /// Returns the number of blocks that are the same from the start.
    fn same_blocks(&self, others: &[Hash]) -> usize {
        let mut blocks = self.blocks.borrow_mut();
        let same = |(at, (block, other)): (usize, (&[u8], &Hash))| {
            if blocks.len() <= at {
                blocks.push(hash(block));
            }
            blocks[at] == *other
        };
        self.body.chunks_exact(BLOCK).zip(others).enumerate().map(same).take_while(|same| *same).count()
    }
}

fn hash(block: &[u8]) -> Hash {
    let digest = Digest::of(block);
    std::array::from_fn(|i| digest.0[i])
}

impl Text {
    pub fn of(body: Bytes) -> Text {
        if body.len() <= MAX_WHOLE {
            return Text::Whole(body);
        }
        let blocks = body.chunks_exact(BLOCK).map(hash).collect();
        let tail = Bytes::copy_from_slice(&body[body.len() - TAIL..]);
        Text::Outline(Outline { len: body.len(), blocks, tail })
    }

    pub fn len(&self) -> usize {
        match self {
            Text::Whole(body) => body.len(),
            Text::Outline(outline) => outline.len,
        }
    }

    /// Returns the numbers of bytes that a body shares at its start and at its end, without overlap in either, if there
    /// are at least `at_least`. An outline may find fewer than there are.
    pub fn common(&self, outlined: &Outlined<'_>, at_least: usize) -> Option<(usize, usize)> {
        let body = outlined.body;
        let shorter = body.len().min(self.len());
        if shorter < at_least {
            return None;
        }
        let (prefix, suffix) = match self {
            Text::Whole(base) => {
                let suffix = common_suffix(body, base);
                // The prefix would have to reach `needed`: a look at the bytes just before it spares most comparisons.
                let needed = at_least.saturating_sub(suffix);
                let glance = needed.saturating_sub(64)..needed;
                if body[glance.clone()] != base[glance] {
                    return None;
                }
                (common_prefix(body, base), suffix)
            }
            Text::Outline(base) => (base.common_prefix(outlined), common_suffix(body, &base.tail)),
        };
        let suffix = suffix.min(shorter - prefix);
        (prefix + suffix >= at_least).then_some((prefix, suffix))
    }
}

impl Outline {
    fn common_prefix(&self, outlined: &Outlined<'_>) -> usize {
        let whole = outlined.same_blocks(&self.blocks) * BLOCK;
        let tail_at = self.len - self.tail.len();
        match whole.cmp(&tail_at) {
            Ordering::Less => whole,
            _ => whole + common_prefix(&outlined.body[whole..], &self.tail[whole - tail_at..]),
        }
    }
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
    use proptest::prelude::*;

    use super::*;

    /// The result expected of `common`, found byte by byte.
    fn slow_common(body: &[u8], base: &[u8]) -> (usize, usize) {
        let prefix = body.iter().zip(base).take_while(|(a, b)| a == b).count();
        let suffix = body[prefix..].iter().rev().zip(base[prefix..].iter().rev());
        (prefix, suffix.take_while(|(a, b)| a == b).count())
    }

    /// A body of pseudo-random bytes.
    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut z = seed;
        let next = |_| {
            z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (z >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    // Bug: no base was kept for a body above 16 MiB.
    // Consequence: each request of a conversation with pictures was stored whole: 437 MiB for 48 pictures of 1 MiB.
    // Cause: bases are kept in memory, and share a limit.
    #[test]
    fn a_large_body_is_known_by_a_small_outline() {
        let base = noise(3 << 20, 1);
        let text = Text::of(base.clone().into());
        let Text::Outline(outline) = &text else { panic!("kept whole") };
        assert!(outline.tail.len() + outline.blocks.len() * size_of::<Hash>() < 300_000);
        let check = |body: &[u8], prefix: usize, suffix: usize| {
            assert_eq!(text.common(&Outlined::new(body), 1 << 20), Some((prefix, suffix)));
        };
        let (len, more) = (base.len(), noise(70_000, 2));
        check(&base, len, 0);
        // It grew before a short end, as conversations do.
        check(&[&base[..len - 40], &more, &base[len - 40..]].concat(), len - 40, 40);
        // It changed in the middle: up to the block, and from the tail on.
        check(&[&base[..2_000_000], &more, &base[2_000_000..]].concat(), 2_000_000 / BLOCK * BLOCK, TAIL);
        check(&base[..len - 1_000_000], (len - 1_000_000) / BLOCK * BLOCK, 0);
        assert_eq!(text.common(&Outlined::new(&noise(3 << 20, 3)), 1 << 20), None);
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
            let found = Text::of(base.into()).common(&Outlined::new(&body), at_least);
            prop_assert_eq!(found, (prefix + suffix >= at_least).then_some((prefix, suffix)));
        }
    }
}
