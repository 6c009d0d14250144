//! Restoring of a body from its record and the records below it.

use super::{BodyError, BodyRecord};
use crate::words::{Digest, Seq};

/// Restores a body whose base's body is at hand; `base` is ignored if the record is stored whole.
///
/// Errors: `BaseMissing` if a base is needed and none given; the others mean that the stored bytes, or the
/// base, were altered. Never returns a body whose SHA-256 differs from the recorded one.
pub fn restore(record: &BodyRecord, base: Option<&[u8]>) -> Result<Vec<u8>, BodyError> {
    let mut restoring = Restoring::new(record)?;
    if let (Some(_), Some(base)) = (restoring.wants(), base) {
        restoring.give_body(base)?;
    }
    restoring.finish()
}

/// Restores a body from a chain of records, read one at a time by the caller. While it
/// [`wants`](Restoring::wants) an entry, [`give`](Restoring::give) it that entry's record (or its body, where
/// that is at hand), then [`finish`](Restoring::finish).
///
/// Ends after at most [`super::MAX_DEPTH`] records: the depth of each must be one less than that of the one
/// before. Holds the body once, and at most one more piece per record given.
#[derive(Debug)]
pub struct Restoring {
    body: Vec<u8>,
    sha256: [u8; 32],
    /// Pieces of the body still missing; in order, disjoint, none empty.
    pieces: Vec<Piece>,
    /// Body that the missing pieces are copied from: this body was stored as a difference from it. Not read once no
    /// piece is missing.
    below: Option<Below>,
}

/// One missing piece: `body[at..at + len]` is `[from..from + len]` of the body below.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: usize,
    from: usize,
    len: usize,
}

/// Properties of the next record below, as stated by the record above it.
#[derive(Clone, Copy, Debug)]
struct Below {
    seq: Seq,
    len: u64,
    depth: u32,
    chain_len: u64,
}

impl Restoring {
    pub fn new(newest: &BodyRecord) -> Result<Restoring, BodyError> {
        newest.check()?;
        let len = newest.len as usize;
        let mut restoring = Restoring {
            body: vec![0; len],
            sha256: newest.sha256,
            pieces: vec![Piece { at: 0, from: 0, len }],
            below: None,
        };
        restoring.place(newest)?;
        Ok(restoring)
    }

    /// Returns the entry whose record, or body, is needed next; `None` if the body is complete.
    pub fn wants(&self) -> Option<Seq> {
        self.below.filter(|_| !self.pieces.is_empty()).map(|below| below.seq)
    }

    /// Takes the record of the entry that [`Restoring::wants`] returned.
    pub fn give(&mut self, record: &BodyRecord) -> Result<(), BodyError> {
        let below = self.wanted()?;
        record.check()?;
        for (what, wanted, had) in [
            ("length", below.len, record.len),
            ("depth", below.depth.into(), record.depth.into()),
            ("chain length", below.chain_len, record.chain_len),
        ] {
            if wanted != had {
                return Err(BodyError::WrongBase { base: below.seq, what, wanted, had });
            }
        }
        self.place(record)
    }

    /// Takes the whole body of the entry that [`Restoring::wants`] returned, if the caller has that body. No
    /// further record is then needed.
    pub fn give_body(&mut self, body: &[u8]) -> Result<(), BodyError> {
        let below = self.wanted()?;
        let (wanted, had) = (below.len, body.len() as u64);
        if wanted != had {
            return Err(BodyError::WrongBase { base: below.seq, what: "length", wanted, had });
        }
        for piece in self.pieces.drain(..) {
            let found = &body[piece.from..piece.from + piece.len];
            self.body[piece.at..piece.at + piece.len].copy_from_slice(found);
        }
        Ok(())
    }

    /// Returns the restored body.
    ///
    /// Errors: `BaseMissing` while a record is still wanted; `WrongHash`.
    pub fn finish(self) -> Result<Vec<u8>, BodyError> {
        if let Some(base) = self.wants() {
            return Err(BodyError::BaseMissing { base });
        }
        let (wanted, had) = (Digest(self.sha256), Digest::of(&self.body));
        if wanted != had {
            return Err(BodyError::WrongHash { wanted, had });
        }
        Ok(self.body)
    }

    fn wanted(&self) -> Result<Below, BodyError> {
        self.below.filter(|_| !self.pieces.is_empty()).ok_or(BodyError::NotWanted)
    }

    /// Copies the bytes in `record`'s middle, and turns the rest into pieces of its base.
    ///
    /// `record` must have been checked, so that all its lengths fit memory and each other. With no base, prefix
    /// and suffix are empty and no piece is left.
    fn place(&mut self, record: &BodyRecord) -> Result<(), BodyError> {
        let middle = record.middle.decode()?;
        let start = record.prefix as usize;
        let end = start + middle.len();
        let suffix_in_base = (record.base_len - record.suffix) as usize;
        let mut pieces = Vec::with_capacity(self.pieces.len() + 1);
        for piece in self.pieces.drain(..) {
            let (before, rest) = piece.split(start);
            let (within, after) = rest.split(end);
            pieces.push(before);
            if within.len > 0 {
                let found = &middle[within.from - start..][..within.len];
                self.body[within.at..within.at + within.len].copy_from_slice(found);
            }
            pieces.push(Piece { from: after.from - end + suffix_in_base, ..after });
        }
        pieces.retain(|piece| piece.len > 0);
        self.pieces = pieces;
        self.below = record.base.map(|seq| Below {
            seq,
            len: record.base_len,
            depth: record.depth - 1,
            chain_len: record.chain_len - record.middle.len,
        });
        Ok(())
    }
}

impl Piece {
    /// Splits the piece at `place` of the body below: the part before it, and the part from there on.
    fn split(self, place: usize) -> (Piece, Piece) {
        let before = place.saturating_sub(self.from).min(self.len);
        (
            Piece { len: before, ..self },
            Piece { at: self.at + before, from: (self.from + before).max(place), len: self.len - before },
        )
    }
}
