//! Payloads: bytes as they are stored, compressed where that pays, and never read back altered.
//!
//! Layout of a payload in one BLOB, integers little-endian:
//!
//! | at | bytes | what                                        |
//! |----|-------|---------------------------------------------|
//! | 0  | 1     | version, 1                                  |
//! | 1  | 1     | codec: 0 raw, 1 zstd, 2 reserved for AEAD   |
//! | 2  | 4     | key id, 0 when not encrypted                |
//! | 6  | 8     | length of the decoded bytes                 |
//! | 14 | 32    | SHA-256 of the decoded bytes                |
//! | 46 | rest  | the stored bytes                            |

use std::{cell::RefCell, fmt};

use bytes::{Buf, BufMut, Bytes};
use zstd::bulk::{Compressor, Decompressor};

use serde::{Deserialize, Serialize};

use crate::words::{Blob, Digest};

/// Greatest length of a payload in bytes: 1 GiB decoded. Neither database stores a much longer value.
pub const MAX_LEN: u64 = 1 << 30;

/// Length of a part in stored bytes: 1 MiB. Longer payloads are stored in parts, so that one commit never carries
/// them whole.
pub const PART_LEN: usize = 1 << 20;

/// Length in bytes of the header that [`Payload::to_bytes`] writes before the stored bytes.
pub const HEADER_LEN: usize = 46;

const VERSION: u8 = 1;
const ZSTD_LEVEL: i32 = 1;
/// Shorter bytes are not compressed: a frame's own header would cost as much as it saves.
const COMPRESSIBLE_LEN: usize = 128;

/// Codec of the stored bytes. The numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    Raw = 0,
    /// One zstd frame that states its content size; no dictionary.
    Zstd = 1,
    /// Reserved for encryption at rest: nothing writes it yet, and reading it is an error.
    Aead = 2,
}

impl Codec {
    pub fn from_u8(codec: u8) -> Result<Codec, PayloadError> {
        match codec {
            0 => Ok(Codec::Raw),
            1 => Ok(Codec::Zstd),
            2 => Ok(Codec::Aead),
            codec => Err(PayloadError::UnknownCodec { codec }),
        }
    }
}

/// Stored bytes with the codec, length and hash needed to check them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Blob", try_from = "Blob")]
pub struct Payload {
    pub codec: Codec,
    /// Id of the key that encrypted the payload; 0 for none.
    pub key_id: u32,
    /// Length of the decoded payload in bytes.
    pub len: u64,
    /// SHA-256 of the decoded bytes.
    pub sha256: [u8; 32],
    /// Number of this part of a long payload; 0 for the first, or for a payload in one piece.
    pub part: u32,
    /// Stored bytes of this part.
    pub bytes: Bytes,
}

/// Reason why stored bytes cannot be decoded. Each means corruption, or data of a newer Outlast.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    #[error("payload is encrypted (codec 2, AEAD) with key {key_id}: this version cannot decrypt")]
    Encrypted { key_id: u32 },
    #[error("payload has unknown codec {codec}, wanted 0 (raw) or 1 (zstd): written by a newer outlast?")]
    UnknownCodec { codec: u8 },
    #[error("payload has version {had}, wanted {VERSION}: written by a newer outlast?")]
    UnknownVersion { had: u8 },
    #[error("payload of codec {codec:?} is not encrypted, but names key {key_id}")]
    UnexpectedKey { codec: Codec, key_id: u32 },
    #[error("payload is cut short: wanted a header of {HEADER_LEN} bytes, had {had}")]
    Truncated { had: usize },
    #[error("payload says it is {len} bytes long, more than the most there can be, {MAX_LEN}")]
    TooLong { len: u64 },
    #[error("payload is corrupt: wanted {wanted} bytes, had {had}")]
    WrongLength { wanted: u64, had: u64 },
    #[error("payload is corrupt: wanted sha-256 {wanted}, had {had}")]
    WrongHash { wanted: Digest, had: Digest },
    #[error("payload is corrupt: wanted a zstd frame of {wanted} bytes, had {reason}")]
    BadFrame { wanted: u64, reason: String },
}

impl PayloadError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Encrypted { .. } => "payload_encrypted",
            Self::UnknownCodec { .. } | Self::UnknownVersion { .. } => "payload_version_unknown",
            _ => "payload_corrupt",
        }
    }
}

thread_local! {
    // Setting up a context costs several times as much as compressing a chat answer.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = RefCell::new(Compressor::new(ZSTD_LEVEL).ok());
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = RefCell::new(Decompressor::new().ok());
}

impl Payload {
    /// Compresses `decoded` with zstd when that saves at least an eighth, and hashes it.
    ///
    /// Runs on the caller's thread, never the store writer's: about 30 µs for a chat answer and 5 ms per MiB.
    /// Panics over [`MAX_LEN`]: the limits on bodies and values lie far below, and storing bytes that can never
    /// be read again would be worse.
    pub fn encode(decoded: &[u8]) -> Payload {
        let len = decoded.len() as u64;
        assert!(len <= MAX_LEN, "payload of {len} bytes, wanted at most {MAX_LEN}");
        let (codec, bytes) = match compress(decoded) {
            Some(frame) => (Codec::Zstd, Bytes::from(frame)),
            None => (Codec::Raw, Bytes::copy_from_slice(decoded)),
        };
        Payload { codec, key_id: 0, len, sha256: Digest::of(decoded).0, part: 0, bytes }
    }

    /// Decodes to exactly the bytes that were encoded, or returns an error: length and SHA-256 are checked.
    ///
    /// Raw bytes are shared, not copied. Whatever the stored bytes claim, at most `len` ≤ [`MAX_LEN`] bytes are
    /// allocated, and only if the zstd frame states the same length.
    pub fn decode(&self) -> Result<Bytes, PayloadError> {
        if self.len > MAX_LEN {
            return Err(PayloadError::TooLong { len: self.len });
        }
        if self.key_id != 0 && self.codec != Codec::Aead {
            return Err(PayloadError::UnexpectedKey { codec: self.codec, key_id: self.key_id });
        }
        let decoded = match self.codec {
            Codec::Raw => self.bytes.clone(),
            Codec::Zstd => Bytes::from(decompress(&self.bytes, self.len)?),
            Codec::Aead => return Err(PayloadError::Encrypted { key_id: self.key_id }),
        };
        let had = decoded.len() as u64;
        if had != self.len {
            return Err(PayloadError::WrongLength { wanted: self.len, had });
        }
        let (wanted, had) = (Digest(self.sha256), Digest::of(&decoded));
        if had != wanted {
            return Err(PayloadError::WrongHash { wanted, had });
        }
        Ok(decoded)
    }

    /// Splits the payload into parts of [`PART_LEN`] stored bytes, in order. A payload no longer than one part
    /// is returned as it is. The bytes are shared, not copied.
    pub fn into_parts(self) -> Vec<Payload> {
        if self.bytes.len() <= PART_LEN {
            return vec![self];
        }
        let parts = (0..self.bytes.len()).step_by(PART_LEN).enumerate();
        parts
            .map(|(part, start)| Payload {
                part: part as u32,
                bytes: self.bytes.slice(start..self.bytes.len().min(start + PART_LEN)),
                ..self
            })
            .collect()
    }

    /// Joins the parts made by [`Payload::into_parts`], in order of `part`. `None` if there are no parts.
    ///
    /// Uses only the parts that belong to the first one: behind them may lie those of a longer payload whose
    /// writer died before it closed the entry. [`Payload::decode`] tells whether the result is whole.
    pub fn join(parts: Vec<Payload>) -> Option<Payload> {
        let mut parts = parts.into_iter();
        let first = parts.next()?;
        let mut rest = parts.take_while(|p| p.sha256 == first.sha256).peekable();
        if rest.peek().is_none() {
            return Some(first);
        }
        let mut bytes = first.bytes.to_vec();
        rest.for_each(|p| bytes.extend_from_slice(&p.bytes));
        Some(Payload { part: 0, bytes: bytes.into(), ..first })
    }

    /// Writes the payload as one BLOB.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN + self.bytes.len());
        self.write_to(&mut out);
        out
    }

    /// Appends the bytes that [`Payload::to_bytes`] returns.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.put_u8(VERSION);
        out.put_u8(self.codec as u8);
        out.put_u32_le(self.key_id);
        out.put_u64_le(self.len);
        out.put_slice(&self.sha256);
        out.put_slice(&self.bytes);
    }

    /// Parses a BLOB that [`Payload::to_bytes`] wrote. The stored bytes stay shared with the BLOB; [`Payload::decode`]
    /// checks them.
    pub fn from_bytes(mut blob: Bytes) -> Result<Payload, PayloadError> {
        if blob.len() < HEADER_LEN {
            return Err(PayloadError::Truncated { had: blob.len() });
        }
        let version = blob.get_u8();
        if version != VERSION {
            return Err(PayloadError::UnknownVersion { had: version });
        }
        let codec = Codec::from_u8(blob.get_u8())?;
        let key_id = blob.get_u32_le();
        let len = blob.get_u64_le();
        let mut sha256 = [0; 32];
        blob.copy_to_slice(&mut sha256);
        Ok(Payload { codec, key_id, len, sha256, part: 0, bytes: blob })
    }
}

impl From<Payload> for Blob {
    fn from(payload: Payload) -> Blob {
        Blob(payload.to_bytes().into())
    }
}

impl TryFrom<Blob> for Payload {
    type Error = PayloadError;
    fn try_from(blob: Blob) -> Result<Payload, PayloadError> {
        Payload::from_bytes(blob.0)
    }
}

/// Shows sizes only, because the payload may be a person's prompt.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload")
            .field("codec", &self.codec)
            .field("key_id", &self.key_id)
            .field("len", &self.len)
            .field("sha256", &Digest(self.sha256))
            .field("stored_len", &self.bytes.len())
            .finish()
    }
}

pub(crate) fn compress(decoded: &[u8]) -> Option<Vec<u8>> {
    if decoded.len() < COMPRESSIBLE_LEN {
        return None;
    }
    // Compression fails only if memory is short. Storing the bytes raw is always right.
    let frame = COMPRESSOR.with_borrow_mut(|c| c.as_mut()?.compress(decoded).ok())?;
    (frame.len() <= decoded.len() - decoded.len() / 8).then_some(frame)
}

pub(crate) fn decompress(frame: &[u8], len: u64) -> Result<Vec<u8>, PayloadError> {
    let bad = |reason: String| PayloadError::BadFrame { wanted: len, reason };
    match zstd::zstd_safe::get_frame_content_size(frame) {
        Ok(Some(stated)) if stated == len => {}
        Ok(Some(stated)) => return Err(bad(format!("one of {stated}"))),
        Ok(None) => return Err(bad("one that states no length".to_owned())),
        Err(_) => return Err(bad("something else".to_owned())),
    }
    let capacity = usize::try_from(len).map_err(|_| PayloadError::TooLong { len })?;
    DECOMPRESSOR.with_borrow_mut(|d| match d {
        Some(d) => d.decompress(frame, capacity).map_err(|error| bad(error.to_string())),
        None => Err(bad("no memory for zstd".into())),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::words::{Entropy, SeededEntropy};

    fn noise(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        SeededEntropy::new(len as u64).fill(&mut bytes);
        bytes
    }

    /// `noise` in its first `eighths` eighths, zeros in the rest.
    fn partly_noise(len: usize, eighths: usize) -> Vec<u8> {
        let mut bytes = noise(len * eighths / 8);
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn compression_is_kept_when_it_saves_an_eighth() {
        let check = |decoded: &[u8], codec: Codec| {
            let payload = Payload::encode(decoded);
            assert_eq!((payload.codec, payload.key_id), (codec, 0), "{} bytes", decoded.len());
            assert_eq!(payload.decode().unwrap(), decoded);
            assert!(payload.bytes.len() <= decoded.len());
        };
        check(b"", Codec::Raw);
        check(&[b'a'; 127], Codec::Raw);
        check(&[b'a'; 128], Codec::Zstd);
        check(&noise(10_000), Codec::Raw);
        check(&partly_noise(10_000, 6), Codec::Zstd);
        check(&partly_noise(10_000, 7), Codec::Raw);
        check(&vec![7; 3 << 20], Codec::Zstd);
    }

    #[test]
    fn each_kind_of_corruption_is_named() {
        let raw = Payload::encode(b"hello");
        let zstd = Payload::encode(&[b'a'; 1000]);
        let check = |payload: Payload, wanted: &str| {
            let error = payload.decode().unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        };
        check(
            Payload { codec: Codec::Aead, key_id: 3, ..raw.clone() },
            "encrypted (codec 2, AEAD) with key 3",
        );
        check(Payload { key_id: 1, ..raw.clone() }, "names key 1");
        check(Payload { len: 6, ..raw.clone() }, "wanted 6 bytes, had 5");
        check(Payload { bytes: "hell".into(), ..raw.clone() }, "wanted 5 bytes, had 4");
        check(Payload { bytes: "hallo".into(), ..raw.clone() }, "wanted sha-256 2cf24dba");
        check(Payload { len: MAX_LEN + 1, ..raw.clone() }, "1073741825 bytes long, more than");
        check(
            Payload { codec: Codec::Zstd, ..raw.clone() },
            "wanted a zstd frame of 5 bytes, had something else",
        );
        check(Payload { len: 999, ..zstd.clone() }, "wanted a zstd frame of 999 bytes, had one of 1000");
        check(Payload { codec: Codec::Raw, ..zstd.clone() }, "wanted 1000 bytes, had");
        check(
            Payload { bytes: zstd.bytes.slice(..zstd.bytes.len() - 1), ..zstd.clone() },
            "zstd frame of 1000",
        );
        check(Payload { sha256: [0; 32], ..zstd }, "wanted sha-256 0000");
    }

    // A small row that claims a gigabyte must not cost one; nor must a frame that hides its size.
    #[test]
    fn a_decompression_bomb_is_refused_before_it_is_unpacked() {
        let bomb = Payload::encode(&vec![0; 64 << 20]);
        assert!(bomb.bytes.len() < 16 << 10);
        for len in [0, 1, MAX_LEN] {
            let error = Payload { len, ..bomb.clone() }.decode().unwrap_err();
            assert!(matches!(error, PayloadError::BadFrame { wanted, .. } if wanted == len), "{error}");
        }
        let sizeless = zstd::encode_all([0u8; 1000].as_slice(), 1).unwrap();
        let payload = Payload { len: 1000, bytes: sizeless.into(), ..bomb };
        let error = payload.decode().unwrap_err().to_string();
        assert!(error.contains("states no length"), "{error}");
    }

    #[test]
    fn a_second_frame_behind_the_first_is_refused() {
        let one = Payload::encode(&[b'a'; 1000]);
        let two = Payload { bytes: [&one.bytes[..], &one.bytes[..]].concat().into(), ..one };
        assert!(matches!(two.decode(), Err(PayloadError::BadFrame { .. })));
    }

    #[test]
    fn blobs_of_other_versions_and_codecs_are_refused_by_name() {
        let good = Payload::encode(b"hello").to_bytes();
        let with = |at: usize, value: u8| {
            let mut blob = good.clone();
            blob[at] = value;
            Payload::from_bytes(blob.into())
        };
        assert_eq!(with(0, 2), Err(PayloadError::UnknownVersion { had: 2 }));
        assert_eq!(with(1, 3), Err(PayloadError::UnknownCodec { codec: 3 }));
        assert_eq!(with(1, 2).unwrap().decode(), Err(PayloadError::Encrypted { key_id: 0 }));
        let short = Payload::from_bytes(good[..45].to_vec().into());
        assert_eq!(short, Err(PayloadError::Truncated { had: 45 }));
    }

    #[test]
    fn parts_are_whole_mebibytes_and_join_to_the_payload() {
        for (len, parts) in [(0, 1), (1, 1), (PART_LEN, 1), (PART_LEN + 1, 2), (3 * PART_LEN, 3)] {
            let payload = Payload::encode(&noise(len));
            let split = payload.clone().into_parts();
            assert_eq!(split.len(), parts, "{len}");
            assert!(split.iter().rev().skip(1).all(|part| part.bytes.len() == PART_LEN));
            assert!(split.iter().enumerate().all(|(i, part)| part.part == i as u32));
            assert_eq!(Payload::join(split), Some(payload));
        }
    }

    #[test]
    fn parts_of_another_payload_behind_the_last_are_left_out() {
        let mut stored = Payload::encode(&noise(PART_LEN * 3)).into_parts();
        for len in [10, PART_LEN, PART_LEN + 10] {
            let payload = Payload::encode(&noise(len));
            for part in payload.clone().into_parts() {
                let place = part.part as usize;
                stored[place] = part;
            }
            assert_eq!(Payload::join(stored.clone()), Some(payload), "{len}");
        }
        assert_eq!(Payload::join(Vec::new()), None);
    }

    #[test]
    fn debug_shows_no_content() {
        let shown = format!("{:?}", Payload::encode(b"my secret prompt"));
        assert!(shown.contains("stored_len: 16") && !shown.contains("prompt"), "{shown}");
    }

    fn any_decoded() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..600),
            prop::collection::vec(0..4u8, 0..600),
            (0..3000usize, 0..9usize).prop_map(|(len, eighths)| partly_noise(len, eighths)),
        ]
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(decoded in any_decoded()) {
            let payload = Payload::encode(&decoded);
            prop_assert_eq!(payload.len, decoded.len() as u64);
            let read = Payload::from_bytes(payload.to_bytes().into()).unwrap();
            prop_assert_eq!(&read, &payload);
            prop_assert_eq!(read.decode().unwrap(), decoded);
        }

        // A zstd frame has a few bits that mean nothing: flipping one of those changes nothing. All
        // others are found, and so is every bit of the header.
        #[test]
        fn a_flipped_bit_is_found_or_changes_nothing(decoded in any_decoded(), at: prop::sample::Index) {
            let mut blob = Payload::encode(&decoded).to_bytes();
            let bit = at.index(blob.len() * 8);
            blob[bit / 8] ^= 1 << (bit % 8);
            if let Ok(read) = Payload::from_bytes(blob.into()).and_then(|payload| payload.decode()) {
                prop_assert!(bit / 8 >= HEADER_LEN);
                prop_assert_eq!(read, decoded);
            }
        }

        #[test]
        fn any_blob_is_read_or_refused(blob in prop::collection::vec(any::<u8>(), 0..200), codec in 0..3u8) {
            let mut blob = blob;
            if let [version, at, ..] = &mut blob[..] {
                (*version, *at) = (VERSION, codec);
            }
            let _ = Payload::from_bytes(blob.into()).and_then(|payload| payload.decode());
        }
    }
}
