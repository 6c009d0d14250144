//! JSON strings: scanning one, decoding it, and its canonical encoding.

use std::{borrow::Cow, ops::Range};

use super::request::{BadRequest, Result};

/// String value of a JSON text, by its position and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text<'a> {
    text: &'a str,
    /// Byte positions of the content, quotes not included.
    inner: Range<usize>,
    escaped: bool,
    /// Number of UTF-8 bytes of the content once its escapes are decoded.
    pub decoded_len: usize,
}

/// A piece of a string, as `scan_string` reports it.
pub enum Part<'a> {
    /// Characters that are not escaped.
    Plain(&'a str),
    Escaped(char),
    /// Half of a surrogate pair, escaped alone. Python writes one when it cuts a text inside a pair. It is kept.
    LoneSurrogate(u16),
}

impl<'a> Text<'a> {
    /// Makes a string value. `inner` is the byte range of the content in `text`, which the caller has scanned before.
    pub(super) fn new(text: &'a str, inner: Range<usize>, escaped: bool, decoded_len: usize) -> Self {
        Self { text, inner, escaped, decoded_len }
    }

    /// Returns the content with its escapes decoded. Lone surrogates are replaced by U+FFFD.
    pub fn decode(&self) -> Cow<'a, str> {
        if !self.escaped {
            return Cow::Borrowed(&self.text[self.inner.clone()]);
        }
        let mut out = String::with_capacity(self.decoded_len);
        self.parts(|part| match part {
            Part::Plain(run) => out.push_str(run),
            Part::Escaped(c) => out.push(c),
            Part::LoneSurrogate(_) => out.push(char::REPLACEMENT_CHARACTER),
        });
        Cow::Owned(out)
    }

    /// Returns the content in canonical encoding: equal texts have equal bytes, however they were escaped.
    pub fn canonical(&self) -> Cow<'a, str> {
        if !self.escaped {
            return Cow::Borrowed(&self.text[self.inner.clone()]);
        }
        let mut out = String::with_capacity(self.inner.len());
        self.parts(|part| push_canonical(part, &mut out));
        Cow::Owned(out)
    }

    /// Returns the length in bytes of the content with its escapes.
    pub fn raw_len(&self) -> usize {
        self.inner.len()
    }

    /// Returns the byte range of the string, its quotes included.
    pub fn span(&self) -> Range<usize> {
        self.inner.start - 1..self.inner.end + 1
    }

    fn parts(&self, part: impl FnMut(Part<'a>)) {
        // It was scanned before, so the second scan cannot fail.
        let again = scan_string(self.text, self.inner.start, part);
        debug_assert_eq!(again, Ok(self.inner.end));
    }
}

/// Appends a piece of a string to `out` in canonical encoding.
///
/// `"`, `\` and control characters are escaped in their shortest form, lone surrogates as in `\ud83d` in lower case;
/// all other characters stay as they are.
pub fn push_canonical(part: Part<'_>, out: &mut String) {
    let short = match part {
        Part::Plain(run) => return out.push_str(run),
        Part::LoneSurrogate(unit) => return out.push_str(&format!("\\u{unit:04x}")),
        Part::Escaped('"') => "\\\"",
        Part::Escaped('\\') => "\\\\",
        Part::Escaped('\n') => "\\n",
        Part::Escaped('\r') => "\\r",
        Part::Escaped('\t') => "\\t",
        Part::Escaped('\u{8}') => "\\b",
        Part::Escaped('\u{c}') => "\\f",
        Part::Escaped(c) if c < ' ' => return out.push_str(&format!("\\u{:04x}", c as u32)),
        Part::Escaped(c) => return out.push(c),
    };
    out.push_str(short);
}

/// Scans a string's content from byte `at`, just behind its opening quote, and passes its pieces to `part`. Returns the
/// byte position of the closing quote.
pub fn scan_string<'a>(text: &'a str, mut at: usize, mut part: impl FnMut(Part<'a>)) -> Result<usize> {
    let bytes = text.as_bytes();
    loop {
        let run = plain_run(&bytes[at..]);
        if run > 0 {
            part(Part::Plain(&text[at..at + run]));
            at += run;
        }
        match bytes.get(at) {
            Some(b'"') => return Ok(at),
            Some(b'\\') => {
                let (escaped, next) = escape(text, at)?;
                part(escaped);
                at = next;
            }
            _ => return Err(not_json(text, at, "the rest of a string")),
        }
    }
}

/// Returns the number of bytes before the first quote, backslash or control character.
fn plain_run(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES << 7;
    // Eight bytes at a time. A borrow can flag a byte wrongly only behind one that is flagged rightly,
    // and only the first is looked at.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGHS;
    let mut at = 0;
    while let Some(chunk) = bytes[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        let hits = below(word, 0x20)
            | below(word ^ (ONES * u64::from(b'"')), 1)
            | below(word ^ (ONES * u64::from(b'\\')), 1);
        if hits != 0 {
            return at + hits.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let special = |b: &u8| *b < 0x20 || *b == b'"' || *b == b'\\';
    bytes[at..].iter().position(special).map_or(bytes.len(), |i| at + i)
}

/// Reads the escape at `at` (its backslash); returns it and the position behind it.
fn escape<'a>(text: &'a str, at: usize) -> Result<(Part<'a>, usize)> {
    let simple = match text.as_bytes().get(at + 1) {
        Some(b'"') => '"',
        Some(b'\\') => '\\',
        Some(b'/') => '/',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => return unicode_escape(text, at),
        _ => return Err(not_json(text, at + 1, "an escape")),
    };
    Ok((Part::Escaped(simple), at + 2))
}

fn unicode_escape<'a>(text: &'a str, at: usize) -> Result<(Part<'a>, usize)> {
    let unit = hex4(text, at + 2)?;
    if !(0xd800..0xe000).contains(&unit) {
        let c = char::from_u32(u32::from(unit)).unwrap_or(char::REPLACEMENT_CHARACTER);
        return Ok((Part::Escaped(c), at + 6));
    }
    // A pair needs a high half and, right behind it, a low one.
    if unit < 0xdc00 && text.as_bytes()[at + 6..].starts_with(b"\\u") {
        let low = hex4(text, at + 8)?;
        if let Some(Ok(c)) = char::decode_utf16([unit, low]).next() {
            return Ok((Part::Escaped(c), at + 12));
        }
    }
    Ok((Part::LoneSurrogate(unit), at + 6))
}

fn hex4(text: &str, at: usize) -> Result<u16> {
    let digits = text.as_bytes().get(at..at + 4).filter(|d| d.iter().all(u8::is_ascii_hexdigit));
    let digits = digits.ok_or_else(|| not_json(text, at, "four hexadecimal digits"))?;
    Ok(digits.iter().fold(0, |unit, d| unit << 4 | (*d as char).to_digit(16).unwrap_or(0) as u16))
}

pub(super) fn not_json(text: &str, at: usize, wanted: &'static str) -> BadRequest {
    let at = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let had = text[at..].chars().next().map_or("the end of the body".into(), |c| format!("{c:?}"));
    BadRequest::NotJson { at, wanted, had }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::json_spans::Scanner, *};

    proptest! {
        #[test]
        fn strings_decode_as_serde_json_decodes_them(text in any::<String>(), ascii in any::<bool>()) {
            let mut body = serde_json::to_string(&text).unwrap();
            if ascii {
                body = body.encode_utf16().map(|u| match u8::try_from(u) {
                    Ok(b) if b.is_ascii() => (b as char).to_string(),
                    _ => format!("\\u{u:04X}"),
                }).collect();
            }
            let read = Scanner::new(body.as_bytes()).unwrap().string().unwrap();
            prop_assert_eq!(read.decoded_len, text.len());
            prop_assert_eq!(read.decode(), text);
            prop_assert_eq!(read.span(), 0..body.len());
        }

        #[test]
        fn a_run_ends_at_the_first_special_byte(text in "[a-zé\u{7f}\u{0}-\u{1f}\"\\\\ ]{0,30}") {
            let wanted = text.bytes().position(|b| b < 0x20 || b == b'"' || b == b'\\');
            prop_assert_eq!(plain_run(text.as_bytes()), wanted.unwrap_or(text.len()));
        }
    }

    #[test]
    fn equal_texts_have_one_canonical_encoding() {
        for (string, canonical) in [
            (r#""plain /""#, "plain /"),
            (r#""\u0041\/\u00e9""#, "A/é"),
            (r#""\u000A\u0008\u001F\u007f""#, "\\n\\b\\u001f\u{7f}"),
            (r#""\u0022\u005c""#, r#"\"\\"#),
            (r#""\uD83D\uDE00 \uDE00\uD83D""#, r"😀 \ude00\ud83d"),
            (r#""\uD83D\u0041""#, r"\ud83dA"),
        ] {
            let text = Scanner::new(string.as_bytes()).unwrap().string().unwrap();
            assert_eq!(text.canonical(), canonical, "{string}");
        }
    }
}
