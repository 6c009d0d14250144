//! Content encodings: decodes request bodies, and answers that come compressed although the proxy asked for
//! identity.

use std::io::{Read as _, Write as _};

use bytes::Bytes;

/// Error of a body that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEncoding {
    #[error("content-encoding {name:?} is not understood (wanted identity, gzip or zstd)")]
    Unknown { name: String },
    #[error("the body is not the {name} it says it is: {why}")]
    Broken { name: &'static str, why: String },
    #[error("the decoded body is larger than {limit} bytes")]
    TooLarge { limit: usize },
}

impl BadEncoding {
    pub fn status(&self) -> u16 {
        match self {
            BadEncoding::Unknown { .. } => 415,
            BadEncoding::Broken { .. } => 400,
            BadEncoding::TooLarge { .. } => 413,
        }
    }

    /// Returns the error's stable code, the same in HTTP, gRPC and Python.
    pub fn code(&self) -> &'static str {
        match self {
            BadEncoding::Unknown { .. } => "unknown_encoding",
            BadEncoding::Broken { .. } => "broken_encoding",
            BadEncoding::TooLarge { .. } => "body_too_large",
        }
    }
}

/// Decodes a whole request body. Errors: `body_too_large` above `limit` decoded bytes; an unknown encoding.
pub fn decode(body: &Bytes, encoding: Option<&str>, limit: usize) -> Result<Bytes, BadEncoding> {
    let read = |name: &'static str, reader: &mut dyn std::io::Read| {
        let mut out = Vec::new();
        // One byte more than allowed tells a bomb from a large body.
        reader
            .take(limit as u64 + 1)
            .read_to_end(&mut out)
            .map_err(|e| BadEncoding::Broken { name, why: e.to_string() })?;
        if out.len() > limit { Err(BadEncoding::TooLarge { limit }) } else { Ok(Bytes::from(out)) }
    };
    match encoding.map(str::trim) {
        None | Some("" | "identity") => Ok(body.clone()),
        Some("gzip" | "x-gzip") => read("gzip", &mut flate2::read::MultiGzDecoder::new(&body[..])),
        Some("zstd") => {
            let mut decoder = zstd::stream::read::Decoder::new(&body[..])
                .map_err(|e| BadEncoding::Broken { name: "zstd", why: e.to_string() })?;
            read("zstd", &mut decoder)
        }
        Some(other) => Err(BadEncoding::Unknown { name: other.chars().take(40).collect() }),
    }
}

/// Decoder of an answer, which takes the bytes as they arrive.
pub enum Decoder {
    Plain,
    Gzip(Box<flate2::write::MultiGzDecoder<Vec<u8>>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Vec<u8>>>),
}

impl Decoder {
    /// Returns the decoder of an encoding; `None` for an unknown one: the answer is then passed on undecoded.
    pub fn of(encoding: Option<&str>) -> Option<Decoder> {
        Some(match encoding.map(str::trim) {
            None | Some("" | "identity") => Decoder::Plain,
            Some("gzip" | "x-gzip") => {
                Decoder::Gzip(Box::new(flate2::write::MultiGzDecoder::new(Vec::new())))
            }
            Some("zstd") => Decoder::Zstd(Box::new(zstd::stream::write::Decoder::new(Vec::new()).ok()?)),
            Some(_) => return None,
        })
    }

    pub fn decodes(&self) -> bool {
        !matches!(self, Decoder::Plain)
    }

    /// Decodes `chunk`, and returns the bytes that are complete so far.
    pub fn push(&mut self, chunk: Bytes) -> std::io::Result<Bytes> {
        match self {
            Decoder::Plain => Ok(chunk),
            Decoder::Gzip(d) => {
                d.write_all(&chunk)?;
                d.flush()?;
                Ok(std::mem::take(d.get_mut()).into())
            }
            Decoder::Zstd(d) => {
                d.write_all(&chunk)?;
                d.flush()?;
                Ok(std::mem::take(d.get_mut()).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gzip(text: &[u8]) -> Bytes {
        let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        e.write_all(text).unwrap();
        e.finish().unwrap().into()
    }

    #[test]
    fn bodies_in_gzip_and_zstd_are_decoded() {
        let text = b"{\"model\":\"m\"}".repeat(50);
        let zstd = Bytes::from(zstd::encode_all(&text[..], 1).unwrap());
        for (body, encoding) in [(gzip(&text), "gzip"), (zstd, "zstd"), (text.clone().into(), "identity")] {
            assert_eq!(decode(&body, Some(encoding), 1 << 20).unwrap(), text, "{encoding}");
            let mut d = Decoder::of(Some(encoding)).unwrap();
            let mut out = Vec::new();
            for chunk in body.chunks(7) {
                out.extend(d.push(Bytes::copy_from_slice(chunk)).unwrap());
            }
            assert_eq!(out, text, "{encoding}");
        }
    }

    #[test]
    fn a_bomb_and_a_lie_are_refused() {
        let bomb = gzip(&vec![0; 1 << 20]);
        assert_eq!(decode(&bomb, Some("gzip"), 1 << 10), Err(BadEncoding::TooLarge { limit: 1 << 10 }));
        assert!(matches!(
            decode(&Bytes::from_static(b"{}"), Some("gzip"), 99),
            Err(BadEncoding::Broken { .. })
        ));
        assert!(matches!(decode(&Bytes::new(), Some("br"), 99), Err(BadEncoding::Unknown { .. })));
    }
}
