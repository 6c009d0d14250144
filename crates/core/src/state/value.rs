//! Values as they are stored: any bytes, compressed where that pays, never read back altered.
//!
//! | at | bytes | what                                                  |
//! |----|-------|-------------------------------------------------------|
//! | 0  | 1     | codec: 0 raw, 1 zstd                                  |
//! | 1  | 8     | the first bytes of the SHA-256 of the decoded bytes   |
//! | 9  | 8     | zstd only: length of the decoded bytes, little-endian |
//! | .. | rest  | the stored bytes                                      |
//!
//! The layout is smaller than a [`crate::journal::payload::Payload`]: a value is often a few hundred bytes.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::progress::Progress;
use crate::{
    journal::{
        PayloadError,
        payload::{Codec, MAX_LEN, compress, decompress},
    },
    words::Digest,
};

const CHECK_LEN: usize = 8;

/// Value ready to be stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    stored: Bytes,
    progress: Option<Progress>,
    len: usize,
}

impl Value {
    /// Encodes `decoded`: compresses it where that saves an eighth, and reads whether it is a step's record.
    /// Runs on the caller's thread, never the store writer's.
    ///
    /// Panics over [`MAX_LEN`]: the limits on bodies and transactions lie far below.
    pub fn encode(decoded: &[u8]) -> Value {
        let len = decoded.len();
        assert!(len as u64 <= MAX_LEN, "a value of {len} bytes, wanted at most {MAX_LEN}");
        let check = &Digest::of(decoded).0[..CHECK_LEN];
        let mut stored = BytesMut::new();
        match compress(decoded) {
            Some(frame) => {
                stored.reserve(1 + CHECK_LEN + 8 + frame.len());
                stored.put_u8(Codec::Zstd as u8);
                stored.put_slice(check);
                stored.put_u64_le(len as u64);
                stored.put_slice(&frame);
            }
            None => {
                stored.reserve(1 + CHECK_LEN + len);
                stored.put_u8(Codec::Raw as u8);
                stored.put_slice(check);
                stored.put_slice(decoded);
            }
        }
        Value { stored: stored.freeze(), progress: Progress::of(decoded), len }
    }

    /// Returns the bytes that are written to the disk.
    pub fn stored(&self) -> &Bytes {
        &self.stored
    }

    /// Returns the progress of the step that this value records; `None` if it is no step's record.
    pub fn progress(&self) -> Option<Progress> {
        self.progress
    }

    /// Returns the length of the decoded bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Decodes the stored bytes again. Errors: see [`Value::decode`].
    pub fn decoded(&self) -> Result<Bytes, PayloadError> {
        Value::decode(self.stored.clone())
    }

    /// Decodes stored bytes to exactly what was encoded, or returns an error: length and checksum are compared.
    pub fn decode(mut stored: Bytes) -> Result<Bytes, PayloadError> {
        if stored.len() < 1 + CHECK_LEN {
            return Err(PayloadError::Truncated { had: stored.len() });
        }
        let codec = Codec::from_u8(stored.get_u8())?;
        let mut check = [0; CHECK_LEN];
        stored.copy_to_slice(&mut check);
        let decoded = match codec {
            Codec::Raw => stored,
            Codec::Zstd if stored.len() < 8 => return Err(PayloadError::Truncated { had: stored.len() }),
            Codec::Zstd => match stored.get_u64_le() {
                len if len > MAX_LEN => return Err(PayloadError::TooLong { len }),
                len => Bytes::from(decompress(&stored, len)?),
            },
            Codec::Aead => return Err(PayloadError::Encrypted { key_id: 0 }),
        };
        let had = Digest::of(&decoded);
        if had.0[..CHECK_LEN] != check {
            let mut wanted = Digest([0; 32]);
            wanted.0[..CHECK_LEN].copy_from_slice(&check);
            return Err(PayloadError::WrongHash { wanted, had });
        }
        Ok(decoded)
    }
}

/// Shows sizes only, because the value may be a person's prompt.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("len", &self.len)
            .field("stored_len", &self.stored.len())
            .field("progress", &self.progress)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Vec<u8>> {
        vec![Vec::new(), b"x".to_vec(), vec![0, 255, 128], vec![b'a'; 1000], b"{\"a\":1}".repeat(10_000)]
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        for decoded in examples() {
            let value = Value::encode(&decoded);
            assert_eq!(value.decoded().unwrap(), decoded);
            assert_eq!(value.len(), decoded.len());
            assert!(value.stored().len() <= decoded.len() + 1 + CHECK_LEN);
        }
    }

    #[test]
    fn a_flipped_bit_or_a_cut_is_found() {
        let check = |stored: Vec<u8>, what: &str| {
            assert!(Value::decode(stored.into()).is_err(), "{what}");
        };
        for decoded in [b"hello".to_vec(), vec![b'a'; 1000]] {
            let good = Value::encode(&decoded).stored().to_vec();
            for cut in 0..good.len() {
                check(good[..cut].to_vec(), "cut");
            }
            for at in 0..9 {
                let mut bad = good.clone();
                bad[at] ^= 1;
                check(bad, "flipped");
            }
            let mut bad = good.clone();
            *bad.last_mut().unwrap() ^= 1;
            check(bad, "flipped at the end");
        }
    }

    // A small row that claims a gigabyte must not cost one.
    #[test]
    fn a_decompression_bomb_is_refused() {
        let mut bomb = Value::encode(&vec![0; 1 << 20]).stored().to_vec();
        bomb[9..17].copy_from_slice(&MAX_LEN.to_le_bytes());
        assert!(matches!(Value::decode(bomb.clone().into()), Err(PayloadError::BadFrame { .. })));
        bomb[9..17].copy_from_slice(&(MAX_LEN + 1).to_le_bytes());
        assert!(matches!(Value::decode(bomb.into()), Err(PayloadError::TooLong { .. })));
    }

    #[test]
    fn debug_shows_no_content() {
        let shown = format!("{:?}", Value::encode(b"my secret"));
        assert!(shown.contains("len: 9") && !shown.contains("secret"), "{shown}");
    }
}
