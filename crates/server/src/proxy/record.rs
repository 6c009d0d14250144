//! Format of a stored answer: head, frame lengths, raw bytes.
//!
//! Layout, version 1: `1 · status u16 · headers u16 × (name len u16, name, value len u16, value) ·
//! frames u32 × (length u32) · body`, all little-endian. The payload around it carries the hash.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use outlast_core::{
    journal::Role,
    reads::entries::{damaged, kept},
    store::{Error, Store},
    words::{RunNo, Seq},
};

use super::log::Frames;

/// Complete answer, as the journal stores it and clients get it again.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Whether the body is a stream of several frames.
    pub streamed: bool,
}

/// Error of a stored answer that this version cannot read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a stored answer cannot be read: {what}")]
pub struct BadRecord {
    pub what: &'static str,
}

const VERSION: u8 = 1;

/// Returns the record of an answer. Frames that were kept from the client are left out.
pub fn to_bytes(status: StatusCode, headers: &HeaderMap, frames: &Frames) -> Vec<u8> {
    let (body, count) = (frames.bytes(), frames.lengths().count());
    let mut out = Vec::with_capacity(body.len() + 512 + 4 * count);
    out.push(VERSION);
    out.extend(status.as_u16().to_le_bytes());
    // The proxy bounds heads at 64 KiB, so counts and lengths fit.
    out.extend((headers.len() as u16).to_le_bytes());
    for (name, value) in headers {
        for part in [name.as_str().as_bytes(), value.as_bytes()] {
            out.extend((part.len() as u16).to_le_bytes());
            out.extend(part);
        }
    }
    out.extend((count as u32).to_le_bytes());
    frames.lengths().for_each(|len| out.extend(len.to_le_bytes()));
    out.extend_from_slice(body);
    out
}

impl Answer {
    /// Reads the stored answer of call `seq`; `None` where none is kept. Errors: `Corrupt` for a damaged one; those of
    /// the store.
    pub fn of(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Option<Answer>, Error> {
        let bytes = kept(store, run, seq, Role::Answer)?;
        bytes.map(Answer::from_bytes).transpose().map_err(|e| damaged(seq, Role::Answer, &e))
    }

    pub fn from_bytes(bytes: Bytes) -> Result<Answer, BadRecord> {
        let mut rest = Reader(bytes);
        if rest.take(1)?[0] != VERSION {
            return Err(BadRecord { what: "it has a newer version" });
        }
        let status = StatusCode::from_u16(rest.u16()?).map_err(|_| BadRecord { what: "its status" })?;
        let mut headers = HeaderMap::new();
        for _ in 0..rest.u16()? {
            let n = rest.u16()?;
            let name = rest.take(usize::from(n))?;
            let n = rest.u16()?;
            let value = rest.take(usize::from(n))?;
            let bad = |_| BadRecord { what: "a header" };
            let name = HeaderName::from_bytes(&name).map_err(|_| BadRecord { what: "a header" })?;
            headers.append(name, HeaderValue::from_maybe_shared(value).map_err(bad)?);
        }
        let count = rest.u32()? as usize;
        let lengths = rest.take(count.saturating_mul(4))?;
        let len: u64 = lengths.chunks_exact(4).map(|c| u64::from(u32_of(c))).sum();
        let body = rest.take(usize::try_from(len).unwrap_or(usize::MAX))?;
        if !rest.0.is_empty() {
            return Err(BadRecord { what: "bytes after its end" });
        }
        Ok(Answer { status, headers, body, streamed: count > 1 })
    }
}

fn u32_of(c: &[u8]) -> u32 {
    c.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b))
}

struct Reader(Bytes);

impl Reader {
    fn take(&mut self, n: usize) -> Result<Bytes, BadRecord> {
        if n > self.0.len() {
            return Err(BadRecord { what: "it is cut short" });
        }
        Ok(self.0.split_to(n))
    }

    fn u16(&mut self) -> Result<u16, BadRecord> {
        Ok(u32_of(&self.take(2)?) as u16)
    }

    fn u32(&mut self) -> Result<u32, BadRecord> {
        Ok(u32_of(&self.take(4)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(frames: &[&str]) -> Vec<u8> {
        let mut headers = HeaderMap::new();
        headers.append("content-type", HeaderValue::from_static("text/event-stream"));
        headers.append("x-twice", HeaderValue::from_static("1"));
        headers.append("x-twice", HeaderValue::from_static("2"));
        let mut all = Frames::default();
        frames.iter().for_each(|frame| all.push(frame.as_bytes()));
        to_bytes(StatusCode::OK, &headers, &all)
    }

    #[test]
    fn an_answer_comes_back_without_the_frames_that_are_for_nobody() {
        for (frames, streamed) in [(&["data: a\n\n", "", "data: b\n\n"][..], true), (&["{}", ""], false)] {
            let answer = Answer::from_bytes(record(frames).into()).unwrap();
            assert_eq!((answer.status, answer.streamed), (StatusCode::OK, streamed));
            assert_eq!(answer.headers.get_all("x-twice").iter().collect::<Vec<_>>(), ["1", "2"]);
            assert_eq!(answer.body, frames.concat());
        }
    }

    #[test]
    fn a_cut_or_longer_record_is_refused() {
        let whole = record(&["data: a\n\n", "data: b\n\n"]);
        for n in 0..whole.len() {
            assert!(Answer::from_bytes(Bytes::copy_from_slice(&whole[..n])).is_err(), "{n}");
        }
        let mut longer = whole;
        longer.push(0);
        assert!(Answer::from_bytes(longer.into()).is_err());
    }
}
