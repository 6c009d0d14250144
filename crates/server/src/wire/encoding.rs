//! Content encodings: decodes request bodies, and answers that come compressed although the proxy asked for
//! identity.

use std::io::{Read as _, Write as _};

use bytes::Bytes;

/// Error of a body that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEncoding {
    #[error("content-encoding {name:?} is not understood (wanted identity, gzip, deflate, br or zstd)")]
    Unknown { name: String },
    #[error("the body is not the {name} it says it is: {why}")]
    Broken { name: &'static str, why: String },
    #[error("the decoded body is larger than {limit} bytes")]
    TooLarge { limit: usize },
}

impl BadEncoding {
    /// Returns the HTTP status and the stable code.
    pub fn fact(&self) -> (u16, &'static str) {
        match self {
            BadEncoding::Unknown { .. } => (415, "unknown_encoding"),
            BadEncoding::Broken { .. } => (400, "broken_encoding"),
            BadEncoding::TooLarge { .. } => (413, "body_too_large"),
        }
    }
}

/// Decodes a whole request body. Errors: `body_too_large` above `limit` decoded bytes; an unknown encoding.
pub fn decode(body: &Bytes, encoding: Option<&str>, limit: usize) -> Result<Bytes, BadEncoding> {
    let Some(coding) = Coding::parse(encoding)? else { return Ok(body.clone()) };
    let broken = |why| coding.broken(&why);
    let mut reader: Box<dyn std::io::Read + '_> = match coding.within(&body[..]) {
        Coding::Gzip => Box::new(flate2::read::MultiGzDecoder::new(&body[..])),
        Coding::Zlib => Box::new(flate2::read::ZlibDecoder::new(&body[..])),
        Coding::Bare => Box::new(flate2::read::DeflateDecoder::new(&body[..])),
        Coding::Brotli => Box::new(brotli_decompressor::Decompressor::new(&body[..], BUFFER)),
        Coding::Zstd => Box::new(zstd::stream::read::Decoder::new(&body[..]).map_err(broken)?),
    };
    let mut out = Vec::new();
    // One byte more than allowed tells a bomb from a large body.
    reader.by_ref().take(limit as u64 + 1).read_to_end(&mut out).map_err(broken)?;
    if out.len() > limit { Err(BadEncoding::TooLarge { limit }) } else { Ok(out.into()) }
}

/// Decoder of an answer, which takes the bytes as they arrive.
pub struct Decoder {
    declared: Option<Coding>,
    limit: usize,
    inflate: Option<Inflate>,
}

impl Decoder {
    /// Returns the decoder of an answer of at most `limit` decoded bytes. Errors: `unknown_encoding`.
    pub fn of(encoding: Option<&str>, limit: usize) -> Result<Decoder, BadEncoding> {
        Ok(Decoder { declared: Coding::parse(encoding)?, limit, inflate: None })
    }

    /// Decodes `chunk`, and returns the bytes that are complete so far.
    pub fn push(&mut self, chunk: Bytes) -> Result<Bytes, BadEncoding> {
        if chunk.is_empty() {
            return Ok(chunk);
        }
        let (declared, limit) = (self.declared, self.limit);
        match self.inflate.get_or_insert_with(|| Inflate::new(declared, chunk[0], limit)) {
            Inflate::Plain => Ok(chunk),
            Inflate::Coded(coding, writer) => {
                let written = writer.write_all(&chunk).and_then(|()| writer.flush());
                let decoded = writer.decoded();
                match written {
                    _ if decoded.is_full => Err(BadEncoding::TooLarge { limit }),
                    Err(why) => Err(coding.broken(&why)),
                    Ok(()) => Ok(std::mem::take(&mut decoded.bytes).into()),
                }
            }
        }
    }
}

/// Way in which the bytes of an answer become text, known once the first byte has come.
enum Inflate {
    Plain,
    Coded(Coding, Box<dyn Decompress>),
}

impl Inflate {
    fn new(declared: Option<Coding>, first: u8, limit: usize) -> Inflate {
        let Some(coding) = Coding::seen(declared, first) else { return Inflate::Plain };
        let to = Decoded { bytes: Vec::new(), left: limit, is_full: false };
        let writer: Box<dyn Decompress> = match coding {
            Coding::Gzip => Box::new(flate2::write::MultiGzDecoder::new(to)),
            Coding::Zlib => Box::new(flate2::write::ZlibDecoder::new(to)),
            Coding::Bare => Box::new(flate2::write::DeflateDecoder::new(to)),
            Coding::Brotli => Box::new(brotli_decompressor::DecompressorWriter::new(to, BUFFER)),
            Coding::Zstd => match zstd::stream::write::Decoder::new(to) {
                Ok(decoder) => Box::new(decoder),
                // Out of memory: the text then is not readable, and the call fails.
                Err(_) => return Inflate::Plain,
            },
        };
        Inflate::Coded(coding, writer)
    }
}

/// Writer that decompresses into [`Decoded`].
trait Decompress: std::io::Write + Send {
    fn decoded(&mut self) -> &mut Decoded;
}

macro_rules! decompress {
    ($($Writer:ty),+ $(,)?) => {
        $(impl Decompress for $Writer {
            fn decoded(&mut self) -> &mut Decoded {
                self.get_mut()
            }
        })+
    };
}

decompress! {
    flate2::write::MultiGzDecoder<Decoded>,
    flate2::write::ZlibDecoder<Decoded>,
    flate2::write::DeflateDecoder<Decoded>,
    brotli_decompressor::DecompressorWriter<Decoded>,
    zstd::stream::write::Decoder<'static, Decoded>,
}

/// Decoded bytes that were not taken yet. A few encoded bytes can stand for any number of them.
struct Decoded {
    bytes: Vec<u8>,
    /// Number of bytes that may still come.
    left: usize,
    is_full: bool,
}

impl std::io::Write for Decoded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let Some(left) = self.left.checked_sub(bytes.len()) else {
            self.is_full = true;
            return Err(std::io::Error::other("too large"));
        };
        self.left = left;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Size of a decompressor's own buffer, in bytes.
const BUFFER: usize = 4096;

/// Content encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Gzip,
    /// Deflate in a frame of zlib's, as the standard wants it.
    Zlib,
    /// Deflate without a frame, as some servers send it.
    Bare,
    Brotli,
    Zstd,
}

impl Coding {
    /// Parses the value of `Content-Encoding`; `None` for a body that is not encoded.
    fn parse(header: Option<&str>) -> Result<Option<Coding>, BadEncoding> {
        let name = header.unwrap_or_default().trim();
        Ok(Some(match name.to_ascii_lowercase().as_str() {
            "" | "identity" => return Ok(None),
            "gzip" | "x-gzip" => Coding::Gzip,
            "deflate" => Coding::Zlib,
            "br" => Coding::Brotli,
            "zstd" => Coding::Zstd,
            _ => return Err(BadEncoding::Unknown { name: name.chars().take(40).collect() }),
        }))
    }

    /// Returns the coding of an answer that begins with `first` and is declared as `declared`; `None`: it is not encoded.
    ///
    /// Gateways declare an encoding that they have removed, and leave one undeclared that is still there. JSON and events
    /// begin with the first byte of neither gzip nor zstd.
    fn seen(declared: Option<Coding>, first: u8) -> Option<Coding> {
        match (declared, first) {
            (Some(deflate @ (Coding::Zlib | Coding::Bare)), first) => Some(deflate.within(&[first])),
            (Some(Coding::Brotli), _) => declared,
            (None | Some(Coding::Gzip | Coding::Zstd), 0x1f) => Some(Coding::Gzip),
            (None | Some(Coding::Gzip | Coding::Zstd), 0x28) => Some(Coding::Zstd),
            (None | Some(Coding::Gzip | Coding::Zstd), _) => None,
        }
    }

    /// Returns the coding, with the frame that a `body` in deflate has.
    fn within(self, body: &[u8]) -> Coding {
        match self {
            Coding::Zlib if body.first().is_some_and(|first| first & 0x0f != 8) => Coding::Bare,
            coding => coding,
        }
    }

    fn broken(self, why: &std::io::Error) -> BadEncoding {
        let name = match self {
            Coding::Gzip => "gzip",
            Coding::Zlib | Coding::Bare => "deflate",
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
        };
        BadEncoding::Broken { name, why: why.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        e.write_all(text).unwrap();
        e.finish().unwrap()
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut e = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        e.write_all(text).unwrap();
        e.finish().unwrap()
    }

    fn bare(text: &[u8]) -> Vec<u8> {
        let mut e = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        e.write_all(text).unwrap();
        e.finish().unwrap()
    }

    /// Brotli without compression: a block of at most 65,536 bytes as they are, and an empty last block.
    fn brotli(text: &[u8]) -> Vec<u8> {
        let head = (text.len() as u32 - 1) << 4 | 1 << 20;
        [&head.to_le_bytes()[..3], text, &[3]].concat()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        zstd::encode_all(text, 1).unwrap()
    }

    /// Returns what the decoder makes of an answer that comes in pieces of `size` bytes.
    fn answer(body: &[u8], encoding: Option<&str>, size: usize) -> Result<Vec<u8>, BadEncoding> {
        let mut decoder = Decoder::of(encoding, 1 << 20)?;
        let mut out = Vec::new();
        for chunk in body.chunks(size) {
            out.extend(decoder.push(Bytes::copy_from_slice(chunk))?);
        }
        Ok(out)
    }

    /// Bug: an answer in an encoding other than gzip and zstd, or in one that its header did not name, "broke off".
    /// Consequence: whole answers were paid for, and lost. Cause: the header's word for one of two encodings was taken
    /// for the only mark of an encoding.
    #[test]
    fn an_answer_is_read_in_any_encoding_whatever_its_header_says() {
        let text = &br#"{"model":"m"} "#.repeat(50)[..];
        let two = [gzip(&text[..300]), gzip(&text[300..])].concat();
        for (body, encoding) in [
            (gzip(text), Some("gzip")),
            (gzip(text), Some(" GZIP ")),
            (gzip(text), Some("x-gzip")),
            (two, Some("gzip")),
            (zstd(text), Some("zstd")),
            (zlib(text), Some("deflate")),
            (bare(text), Some("Deflate")),
            (brotli(text), Some("br")),
            (text.to_vec(), None),
            (text.to_vec(), Some("")),
            (text.to_vec(), Some("identity")),
            // Undeclared, declared and gone, or another than declared.
            (gzip(text), None),
            (gzip(text), Some("identity")),
            (zstd(text), None),
            (text.to_vec(), Some("gzip")),
            (text.to_vec(), Some("zstd")),
            (zstd(text), Some("gzip")),
        ] {
            for size in [1, 7, body.len()] {
                let had = answer(&body, encoding, size);
                assert_eq!(had.as_deref(), Ok(text), "{encoding:?} {size}");
            }
        }
    }

    #[test]
    fn a_requests_body_is_decoded_as_its_header_says() {
        let text = &br#"{"model":"m"}"#.repeat(50)[..];
        for (body, encoding) in [
            (gzip(text), "gzip"),
            (zstd(text), "zstd"),
            (zlib(text), "deflate"),
            (bare(text), "deflate"),
            (brotli(text), "br"),
            (text.to_vec(), "identity"),
        ] {
            assert_eq!(decode(&body.into(), Some(encoding), 1 << 20).unwrap(), text, "{encoding}");
        }
    }

    #[test]
    fn a_bomb_and_a_lie_are_refused() {
        let zeros = vec![0; 2 << 20];
        let (small, all) = (1 << 10, 1 << 20);
        for (bomb, encoding) in [(gzip(&zeros), "gzip"), (zstd(&zeros), "zstd"), (zlib(&zeros), "deflate")] {
            let too_large = |limit| Err(BadEncoding::TooLarge { limit });
            assert_eq!(decode(&bomb.clone().into(), Some(encoding), small), too_large(small), "{encoding}");
            assert_eq!(
                answer(&bomb, Some(encoding), 1000),
                Err(BadEncoding::TooLarge { limit: all }),
                "{encoding}"
            );
        }
        let is_broken = |had: Result<Bytes, BadEncoding>| matches!(had, Err(BadEncoding::Broken { .. }));
        for encoding in ["gzip", "zstd", "deflate", "br"] {
            assert!(is_broken(decode(&Bytes::from_static(b"{}"), Some(encoding), 99)), "{encoding}");
        }
        assert!(is_broken(decode(&gzip(b"text")[..12].to_vec().into(), Some("gzip"), 99)));
        assert!(is_broken(answer(b"\x1f\x8bno gzip's head", None, 20).map(Bytes::from)));
        let unknown = answer(b"x", Some("compress"), 1).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "content-encoding \"compress\" is not understood (wanted identity, gzip, deflate, br or zstd)"
        );
    }
}
