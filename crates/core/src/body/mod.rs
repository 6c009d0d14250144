//! Request bodies, each stored against an earlier one of its run.
//!
//! A conversation sends all its earlier messages with every turn. So a body is stored as its difference from a
//! *base*: the length of their common prefix, that of their common suffix, and the middle. A conversation that
//! grows by a message costs a message.
//!
//! # Why chains may be long
//!
//! A base is itself stored against a base, so a body of turn 200 hangs on 200 records. Storing it
//! whole every so often would keep chains short and cost too much: whole bodies at turns 64, 128
//! and 192 are twice the conversation again, and even whole bodies that grow geometrically or a
//! skip list of bases (each level stores every byte once more) come to more than 1.5 × its unique
//! bytes. So chains are long, up to [`MAX_DEPTH`], and restoring is made cheap instead:
//!
//! - [`Restoring`] walks from the newest record to older ones and takes from each middle only the
//!   bytes that survived into the wanted body: each byte is copied once, and no body in between is built.
//! - Each record carries [`BodyRecord::chain_len`], how many bytes its whole chain holds. A body is
//!   stored whole once its chain would hold more than 4 × its length and 64 KiB. A conversation
//!   that grows never gets there (its chain holds each of its bytes once); one that was compacted
//!   leaves its long past behind at once.
//!
//! So restoring reads at most `MAX_DEPTH` records below its own and 4 × the body (and 64 KiB): 4096
//! records in memory take some 20 ms. What a run stores stays close to the bytes that were new in it.
//!
//! # One BLOB
//!
//! Integers little-endian; the middle's own layout is in [`crate::journal::payload`]:
//!
//! | at | bytes | what                                                    |
//! |----|-------|---------------------------------------------------------|
//! | 0  | 1     | version, 1                                              |
//! | 1  | 1     | 1 when there is a base, else 0                          |
//! | 2  | 8     | the base's seq, 0 when there is none                    |
//! | 10 | 8     | the base's length                                       |
//! | 18 | 4     | depth                                                   |
//! | 22 | 8     | chain length                                            |
//! | 30 | 8     | prefix                                                  |
//! | 38 | 8     | suffix                                                  |
//! | 46 | 8     | length of the body                                      |
//! | 54 | 32    | SHA-256 of the body                                     |
//! | 86 | 8     | the first 8 bytes of the SHA-256 of 0..86               |
//! | 94 | rest  | the middle, a payload                                   |

mod bases;
mod outline;
mod restore;

use bytes::{Buf, BufMut, Bytes};

pub use crate::reads::entries::request_body as stored;
pub use bases::{Base, BodyBases, Chain, MAX_BASES, diff};
pub use restore::{Restoring, restore};

use crate::{
    journal::{Payload, PayloadError, payload::MAX_LEN},
    words::{Digest, Seq},
};

/// Longest chain of bases, in records. Far more turns than any model's context holds.
pub const MAX_DEPTH: u32 = 4096;

const VERSION: u8 = 1;
const CHECKED: usize = 86;
const CHECK: usize = 8;
/// Length in bytes of the header that [`BodyRecord::to_bytes`] writes before the middle.
pub const HEADER_LEN: usize = CHECKED + CHECK;

/// One request body as it is stored.
///
/// `len = prefix + middle.len + suffix`, in bytes, and the prefix and the suffix do not overlap in
/// the base. [`diff()`] makes such records; a record that breaks this is refused wherever it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyRecord {
    /// Entry of the same run whose body is the base; `None` if this body is stored whole.
    pub base: Option<Seq>,
    /// Length of the base's body in bytes; 0 if there is no base.
    pub base_len: u64,
    /// Number of bases below this record, each stored against the next: 0 if the body is stored whole.
    pub depth: u32,
    /// Decoded bytes of all middles that restoring may read: this record's, and those of the bases below it.
    pub chain_len: u64,
    /// Number of bytes that the body and its base share at their start.
    pub prefix: u64,
    /// Number of further bytes that the body and its base share at their end.
    pub suffix: u64,
    /// Length of the body in bytes.
    pub len: u64,
    /// SHA-256 of the body.
    pub sha256: [u8; 32],
    /// Bytes of the body between the shared prefix and the shared suffix.
    pub middle: Payload,
}

/// Reason why a body cannot be restored. `BaseMissing` and `NotWanted` are the caller's mistakes; all others
/// mean corruption, or data of a newer Outlast.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("request body's middle: {0}")]
    Middle(#[from] PayloadError),
    #[error("request body is cut short: wanted a header of {HEADER_LEN} bytes, had {had}")]
    Truncated { had: usize },
    #[error("request body has version {had}, wanted {VERSION}: written by a newer outlast?")]
    UnknownVersion { had: u8 },
    #[error("request body's header is corrupt: wanted checksum {wanted:016x}, had {had:016x}")]
    WrongCheck { wanted: u64, had: u64 },
    #[error("request body's header contradicts itself: {reason}")]
    Inconsistent { reason: &'static str },
    #[error("request body is stored against that of entry {base}, which was not given")]
    BaseMissing { base: Seq },
    #[error("request body wants no base, but one was given")]
    NotWanted,
    #[error("entry {base} is not this request body's base: wanted {what} {wanted}, had {had}")]
    WrongBase { base: Seq, what: &'static str, wanted: u64, had: u64 },
    #[error("request body is corrupt: wanted sha-256 {wanted}, had {had}")]
    WrongHash { wanted: Digest, had: Digest },
}

impl BodyError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Middle(error) => error.code(),
            Self::UnknownVersion { .. } => "payload_version_unknown",
            _ => "payload_corrupt",
        }
    }
}

impl BodyRecord {
    /// Returns a record that stores `body` whole, without a base.
    pub fn whole(body: &[u8]) -> BodyRecord {
        let middle = Payload::encode(body);
        let len = middle.len;
        BodyRecord {
            base: None,
            base_len: 0,
            depth: 0,
            chain_len: len,
            prefix: 0,
            suffix: 0,
            len,
            sha256: middle.sha256,
            middle,
        }
    }

    /// Writes the record as one BLOB.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out =
            Vec::with_capacity(HEADER_LEN + crate::journal::payload::HEADER_LEN + self.middle.bytes.len());
        out.put_u8(VERSION);
        out.put_u8(u8::from(self.base.is_some()));
        out.put_i64_le(self.base.map_or(0, |seq| seq.0));
        out.put_u64_le(self.base_len);
        out.put_u32_le(self.depth);
        out.put_u64_le(self.chain_len);
        out.put_u64_le(self.prefix);
        out.put_u64_le(self.suffix);
        out.put_u64_le(self.len);
        out.put_slice(&self.sha256);
        let check = checksum(&out);
        out.put_u64_le(check);
        self.middle.write_to(&mut out);
        out
    }

    /// Parses a BLOB that [`BodyRecord::to_bytes`] wrote. The middle shares the BLOB's bytes; it is checked only when
    /// the body is restored.
    pub fn from_bytes(mut blob: Bytes) -> Result<BodyRecord, BodyError> {
        // The version first: a newer layout may be shorter.
        match blob.first() {
            Some(&VERSION) | None => {}
            Some(&had) => return Err(BodyError::UnknownVersion { had }),
        }
        if blob.len() < HEADER_LEN {
            return Err(BodyError::Truncated { had: blob.len() });
        }
        let mut header = blob.split_to(HEADER_LEN);
        let had = checksum(&header[..CHECKED]);
        let _version = header.get_u8();
        let has_base = header.get_u8() == 1;
        let base = header.get_i64_le();
        let base_len = header.get_u64_le();
        let depth = header.get_u32_le();
        let chain_len = header.get_u64_le();
        let prefix = header.get_u64_le();
        let suffix = header.get_u64_le();
        let len = header.get_u64_le();
        let mut sha256 = [0; 32];
        header.copy_to_slice(&mut sha256);
        let wanted = header.get_u64_le();
        if had != wanted {
            return Err(BodyError::WrongCheck { wanted, had });
        }
        let base = has_base.then_some(Seq(base));
        let middle = Payload::from_bytes(blob)?;
        let record = BodyRecord { base, base_len, depth, chain_len, prefix, suffix, len, sha256, middle };
        record.check()?;
        Ok(record)
    }

    /// Checks the record's own invariants, so that restoring can compute with its lengths safely.
    fn check(&self) -> Result<(), BodyError> {
        let short = |len: u64| len <= MAX_LEN;
        let rules = [
            (short(self.len) && short(self.base_len) && short(self.middle.len), "a length is over 1 GiB"),
            (self.base.is_some() == (self.depth > 0), "a base and a depth of 0, or neither"),
            (self.depth <= MAX_DEPTH, "its chain is too long"),
            (self.base.is_some() || self.base_len == 0, "no base, but a length of it"),
            (
                self.prefix.checked_add(self.suffix).is_some_and(|shared| shared <= self.base_len),
                "prefix and suffix are longer than the base",
            ),
            (
                self.prefix.saturating_add(self.suffix).saturating_add(self.middle.len) == self.len,
                "prefix, middle and suffix do not make its length",
            ),
            (
                self.chain_len >= self.middle.len && (self.depth > 0 || self.chain_len == self.len),
                "its chain is shorter than itself",
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, reason)) => Err(BodyError::Inconsistent { reason }),
            None => Ok(()),
        }
    }
}

fn checksum(header: &[u8]) -> u64 {
    let digest = Digest::of(header);
    u64::from_le_bytes(std::array::from_fn(|i| digest.0[i]))
}

#[cfg(test)]
mod tests;
