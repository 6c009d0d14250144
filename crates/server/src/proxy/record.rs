//! Format of a stored answer: head, frame lengths, raw bytes.
//!
//! Layout, version 1: `1 · status u16 · headers u16 × (name len u16, name, value len u16, value) ·
//! frames u32 × (length u32) · body`, all little-endian. The payload around it carries the hash.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// Complete answer, as clients get it and the journal stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Frames of a stream, in order and without those that were kept from the client; one frame for JSON.
    pub frames: Vec<Bytes>,
}

/// Error of a stored answer that this version cannot read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a stored answer cannot be read: {what}")]
pub struct BadRecord {
    pub what: &'static str,
}

const VERSION: u8 = 1;

impl Answer {
    pub fn to_bytes(&self) -> Vec<u8> {
        let body: usize = self.frames.iter().map(Bytes::len).sum();
        let mut out = Vec::with_capacity(body + 512 + 4 * self.frames.len());
        out.push(VERSION);
        out.extend(self.status.as_u16().to_le_bytes());
        // The proxy bounds heads at 64 KiB, so counts and lengths fit.
        out.extend((self.headers.len() as u16).to_le_bytes());
        for (name, value) in &self.headers {
            for part in [name.as_str().as_bytes(), value.as_bytes()] {
                out.extend((part.len() as u16).to_le_bytes());
                out.extend(part);
            }
        }
        out.extend((self.frames.len() as u32).to_le_bytes());
        for frame in &self.frames {
            out.extend((frame.len() as u32).to_le_bytes());
        }
        for frame in &self.frames {
            out.extend(&frame[..]);
        }
        out
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
        let lengths: Vec<usize> =
            rest.take(count.saturating_mul(4))?.chunks_exact(4).map(|c| u32_of(c) as usize).collect();
        let frames = lengths.into_iter().map(|n| rest.take(n)).collect::<Result<_, _>>()?;
        if !rest.0.is_empty() {
            return Err(BadRecord { what: "bytes after its end" });
        }
        Ok(Answer { status, headers, frames })
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

    fn answer() -> Answer {
        let mut headers = HeaderMap::new();
        headers.append("content-type", HeaderValue::from_static("text/event-stream"));
        headers.append("x-twice", HeaderValue::from_static("1"));
        headers.append("x-twice", HeaderValue::from_static("2"));
        let frames =
            vec![Bytes::from_static(b"data: a\n\n"), Bytes::new(), Bytes::from_static(b"data: b\n\n")];
        Answer { status: StatusCode::OK, headers, frames }
    }

    #[test]
    fn an_answer_comes_back_frame_by_frame() {
        let a = answer();
        assert_eq!(Answer::from_bytes(a.to_bytes().into()), Ok(a));
    }

    #[test]
    fn a_cut_or_longer_record_is_refused() {
        let whole = answer().to_bytes();
        for n in 0..whole.len() {
            assert!(Answer::from_bytes(Bytes::copy_from_slice(&whole[..n])).is_err(), "{n}");
        }
        let mut longer = whole;
        longer.push(0);
        assert!(Answer::from_bytes(longer.into()).is_err());
    }
}
