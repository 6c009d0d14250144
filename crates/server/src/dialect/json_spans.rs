//! A strict JSON scanner that reports positions and lengths of values, and builds no tree.
//!
//! The proxy changes bodies at byte positions, weighs 125 kB of text per call, and must refuse duplicate keys:
//! it cannot know which of two `max_tokens` the upstream believes.

use std::{borrow::Cow, ops::Range};

use super::{
    json_text::{Part, Text, not_json, scan_string},
    request::{BadRequest, Result},
};

/// Largest nesting depth of a body, beyond which it is refused.
pub const MAX_DEPTH: usize = 128;

/// Cursor over one JSON text. Each method reads one value at the cursor and moves behind it.
pub struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// Keys of the objects that are open, innermost last; `None` when duplicates do not matter.
    keys: Option<Vec<Cow<'a, str>>>,
}

/// Position and lengths of a value that was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub span: Range<usize>,
    /// Number of bytes of the value as compact JSON, with its strings as the client escaped them.
    pub raw: u64,
    /// Number of bytes of the value as compact JSON with strings decoded, as a model reads prose.
    pub decoded: u64,
}

/// Kind of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

impl Kind {
    /// Returns the kind's name in messages, such as `a string` in "wanted a number, had a string".
    pub fn name(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::String => "a string",
            Self::Number => "a number",
            Self::Bool => "a boolean",
            Self::Null => "null",
        }
    }
}

impl<'a> Scanner<'a> {
    /// Makes a scanner for `body`, which must be UTF-8. Duplicate keys are errors.
    pub fn new(body: &'a [u8]) -> Result<Self> {
        let text = std::str::from_utf8(body).map_err(|e| BadRequest::NotUtf8 { at: e.valid_up_to() })?;
        Ok(Self { text, at: 0, depth: 0, keys: Some(Vec::new()) })
    }

    /// Makes a scanner for the body of an upstream's answer, in which duplicate keys and the numbers `NaN`
    /// and `Infinity` are accepted.
    pub fn lenient(body: &'a [u8]) -> Result<Self> {
        Ok(Self { keys: None, ..Self::new(body)? })
    }

    /// Returns the byte position of the next value.
    pub fn position(&mut self) -> usize {
        self.whitespace();
        self.at
    }

    /// Returns the byte position just after the last value read.
    pub fn here(&self) -> usize {
        self.at
    }

    /// Returns the kind of the next value without moving the cursor.
    pub fn kind(&mut self) -> Result<Kind> {
        self.whitespace();
        match self.byte() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-') if self.keys.is_none() && self.rest().starts_with(b"-I") => Ok(Kind::Null),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't' | b'f') => Ok(Kind::Bool),
            Some(b'n') => Ok(Kind::Null),
            Some(b'N' | b'I') if self.keys.is_none() => Ok(Kind::Null),
            _ => Err(self.wanted("a value")),
        }
    }

    /// Reads an object: `member` is called with each key and must read exactly its value.
    ///
    /// Keys are in canonical encoding: as decoded, but with quotes, backslashes and control characters escaped. Returns
    /// the number of bytes of the object's compact form without the values.
    pub fn object(&mut self, mut member: impl FnMut(&mut Self, &str) -> Result<()>) -> Result<u64> {
        let base = self.keys.as_ref().map_or(0, Vec::len);
        let mut weight = 1;
        self.enter(b'{')?;
        let mut first = true;
        while self.more(b'}', &mut first)? {
            let key = self.key()?.canonical();
            weight += key.len() as u64 + 4;
            if let Some(keys) = &mut self.keys {
                keys.push(key.clone());
            }
            member(self, &key)?;
        }
        if let Some(keys) = &mut self.keys {
            refuse_duplicates(&mut keys[base..])?;
            keys.truncate(base);
        }
        Ok(weight.max(2))
    }

    /// Reads an array: `element` is called with each index (from 0) and must read exactly that element.
    ///
    /// Returns the number of bytes of the array's brackets and commas.
    pub fn array(&mut self, mut element: impl FnMut(&mut Self, usize) -> Result<()>) -> Result<u64> {
        self.enter(b'[')?;
        let mut first = true;
        let mut count = 0;
        while self.more(b']', &mut first)? {
            element(self, count)?;
            count += 1;
        }
        Ok((count as u64 + 1).max(2))
    }

    /// Skips an object's members. `seen` gets each key and the member's byte range, from its key to its value's end.
    pub fn members(&mut self, mut seen: impl FnMut(&str, Range<usize>)) -> Result<()> {
        self.enter(b'{')?;
        let mut first = true;
        while self.more(b'}', &mut first)? {
            let key = self.key()?;
            let value = self.skip()?;
            seen(&key.canonical(), key.span().start..value.span.end);
        }
        Ok(())
    }

    /// Skips any value, checking it on the way, and returns its position and lengths.
    pub fn skip(&mut self) -> Result<Skipped> {
        let start = self.position();
        let (mut raw, mut decoded) = (0, 0);
        let mut add = |json: &mut Self| {
            let value = json.skip()?;
            raw += value.raw;
            decoded += value.decoded;
            Ok(())
        };
        let frame = match self.kind()? {
            Kind::Object => self.object(|json, _| add(json))?,
            Kind::Array => self.array(|json, _| add(json))?,
            Kind::String => {
                let text = self.string()?;
                raw = text.raw_len() as u64;
                decoded = text.decoded_len as u64;
                2
            }
            Kind::Number => self.number()?.len() as u64,
            Kind::Bool | Kind::Null => self.literal()?.len() as u64,
        };
        Ok(Skipped { span: start..self.at, raw: raw + frame, decoded: decoded + frame })
    }

    /// Reads a string.
    pub fn string(&mut self) -> Result<Text<'a>> {
        let (_, start) = self.open_string()?;
        let (mut decoded_len, mut escaped) = (0, false);
        let end = scan_string(self.text, start, |part| match part {
            Part::Plain(run) => decoded_len += run.len(),
            Part::Escaped(c) => (decoded_len, escaped) = (decoded_len + c.len_utf8(), true),
            Part::LoneSurrogate(_) => (decoded_len, escaped) = (decoded_len + 3, true),
        })?;
        self.close_string(end);
        Ok(Text::new(self.text, start..end, escaped, decoded_len))
    }

    /// Reads a number and returns its text.
    pub fn number(&mut self) -> Result<&'a str> {
        self.whitespace();
        let start = self.at;
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        match self.byte() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(&self.text[start..self.at])
    }

    /// Reads `true`, `false` or `null` and returns its text. In an answer also the numbers that Python writes and JSON
    /// does not have.
    pub fn literal(&mut self) -> Result<&'static str> {
        self.whitespace();
        let words = ["null", "true", "false", "NaN", "Infinity", "-Infinity"];
        let known = if self.keys.is_none() { &words[..] } else { &words[..3] };
        let rest = self.rest();
        match known.iter().copied().find(|word| rest.starts_with(word.as_bytes())) {
            Some(word) => {
                self.at += word.len();
                Ok(word)
            }
            None => Err(self.wanted("a value")),
        }
    }

    /// Checks that nothing but whitespace follows.
    pub fn end(&mut self) -> Result<()> {
        self.whitespace();
        if self.at == self.text.len() { Ok(()) } else { Err(self.wanted("the end of the body")) }
    }

    /// Moves the cursor into an object or array, whose opening bracket is `open`.
    pub(super) fn enter(&mut self, open: u8) -> Result<()> {
        self.whitespace();
        if self.byte() != Some(open) {
            return Err(self.wanted(if open == b'{' { "an object" } else { "an array" }));
        }
        if self.depth == MAX_DEPTH {
            return Err(BadRequest::TooDeep { limit: MAX_DEPTH });
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// Moves the cursor to the next member or element and returns true; at the end, moves it after the
    /// closing bracket and returns false. `first` is true before the first member.
    pub(super) fn more(&mut self, close: u8, first: &mut bool) -> Result<bool> {
        self.whitespace();
        if self.byte() == Some(close) {
            self.at += 1;
            self.depth -= 1;
            return Ok(false);
        }
        if !std::mem::take(first) {
            if self.byte() != Some(b',') {
                return Err(self.wanted(if close == b'}' { "a comma or }" } else { "a comma or ]" }));
            }
            self.at += 1;
        }
        Ok(true)
    }

    /// Reads a key and the colon behind it.
    pub(super) fn key(&mut self) -> Result<Text<'a>> {
        self.whitespace();
        if self.byte() != Some(b'"') {
            return Err(self.wanted("a key in quotes"));
        }
        let key = self.string()?;
        self.whitespace();
        if self.byte() != Some(b':') {
            return Err(self.wanted("a colon"));
        }
        self.at += 1;
        Ok(key)
    }

    /// Returns the whole text and the byte position of a string's content, for a caller that scans the content itself.
    pub(super) fn open_string(&mut self) -> Result<(&'a str, usize)> {
        self.whitespace();
        if self.byte() == Some(b'"') { Ok((self.text, self.at + 1)) } else { Err(self.wanted("a string")) }
    }

    /// Moves the cursor behind a string's closing quote, which is at `end`.
    pub(super) fn close_string(&mut self, end: usize) {
        self.at = end + 1;
    }

    fn digits(&mut self) -> Result<()> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.byte() {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(self.wanted("a digit")) }
    }

    fn whitespace(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.byte() {
            self.at += 1;
        }
    }

    fn byte(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn wanted(&self, wanted: &'static str) -> BadRequest {
        not_json(self.text, self.at, wanted)
    }
}

fn refuse_duplicates(keys: &mut [Cow<'_, str>]) -> Result<()> {
    // Objects are nearly always small; a large one is sorted, so that a hostile body costs n log n.
    let twice = if keys.len() <= 16 {
        (1..keys.len()).find(|&i| keys[..i].contains(&keys[i]))
    } else {
        keys.sort_unstable();
        (1..keys.len()).find(|&i| keys[i - 1] == keys[i])
    };
    twice.map_or(Ok(()), |i| Err(duplicate(&keys[i])))
}

pub(super) fn duplicate(key: &str) -> BadRequest {
    BadRequest::DuplicateKey { key: key.chars().take(100).collect() }
}

/// Typed reads of a named field. A value of another type is a `WrongType` error that names the field.
impl<'a> Scanner<'a> {
    /// Reads a string, and decodes it. Errors name `field`.
    pub fn text(&mut self, field: &str) -> Result<String> {
        self.expect(field, Kind::String)?;
        Ok(self.string()?.decode().into_owned())
    }

    /// Reads a string; `None` for null. Errors name `field`.
    pub fn string_or_null(&mut self, field: &str) -> Result<Option<Text<'a>>> {
        match self.kind()? {
            Kind::Null => self.literal().map(|_| None),
            Kind::String => self.string().map(Some),
            other => Err(wrong_type(field, "a string", other.name())),
        }
    }

    /// Reads a whole number of at least 0; `None` for null. Errors name `field`.
    pub fn u64_or_null(&mut self, field: &str) -> Result<Option<u64>> {
        match self.kind()? {
            Kind::Null => self.literal().map(|_| None),
            Kind::Number => {
                let number = self.number()?;
                let value = number.parse().map_err(|_| wrong_type(field, "a whole number from 0", number))?;
                Ok(Some(value))
            }
            other => Err(wrong_type(field, "a whole number from 0", other.name())),
        }
    }

    /// Reads a boolean; null counts as false. Errors name `field`.
    pub fn bool_or_null(&mut self, field: &str) -> Result<bool> {
        match self.kind()? {
            Kind::Bool | Kind::Null => Ok(self.literal()? == "true"),
            other => Err(wrong_type(field, "a boolean", other.name())),
        }
    }

    /// Reads the members of an object; null has none. Errors name `field`.
    pub fn object_or_null(
        &mut self,
        field: &str,
        member: impl FnMut(&mut Self, &str) -> Result<()>,
    ) -> Result<()> {
        if self.kind()? == Kind::Null {
            return self.literal().map(drop);
        }
        self.expect(field, Kind::Object)?;
        self.object(member).map(drop)
    }

    /// Reads the elements of an array; null has none. Returns the bytes of its brackets and commas. Errors name `field`.
    pub fn array_or_null(
        &mut self,
        field: &str,
        element: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<u64> {
        if self.kind()? == Kind::Null {
            return self.literal().map(|_| 0);
        }
        self.expect(field, Kind::Array)?;
        self.array(element)
    }

    /// Reads the elements of an array, and skips any other value. Returns the bytes of brackets and commas.
    pub fn array_or_skip(&mut self, element: impl FnMut(&mut Self, usize) -> Result<()>) -> Result<u64> {
        match self.kind()? {
            Kind::Array => self.array(element),
            _ => self.skip().map(|_| 0),
        }
    }

    /// Returns the text member `name` of an object; `None` without one, and for any other value. Skips all else.
    pub fn text_member(&mut self, name: &str) -> Result<Option<Cow<'a, str>>> {
        let mut text = None;
        if self.kind()? != Kind::Object {
            return self.skip().map(|_| None);
        }
        self.object(|json, key| match json.kind()? {
            Kind::String if key == name => json.string().map(|value| text = Some(value.decode())),
            _ => json.skip().map(drop),
        })?;
        Ok(text)
    }

    /// Reads a string, and adds its length with its quotes to `bytes`.
    pub fn counted_string(&mut self, bytes: &mut u64) -> Result<String> {
        let text = self.string()?.decode().into_owned();
        *bytes += text.len() as u64 + 2;
        Ok(text)
    }

    /// Checks that the next value is of `kind`. Errors name `field`.
    pub fn expect(&mut self, field: &str, kind: Kind) -> Result<()> {
        let had = self.kind()?;
        if had == kind { Ok(()) } else { Err(wrong_type(field, kind.name(), had.name())) }
    }
}

pub(super) fn wrong_type(field: &str, wanted: &'static str, had: impl Into<String>) -> BadRequest {
    BadRequest::WrongType { field: field.into(), wanted, had: had.into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(body: &str) -> Result<Skipped> {
        let mut json = Scanner::new(body.as_bytes())?;
        let value = json.skip()?;
        json.end().map(|()| value)
    }

    #[test]
    fn values_are_weighed_as_compact_json_raw_and_decoded() {
        for (body, raw, decoded) in [
            ("{}", 2, 2),
            (" [ ] ", 2, 2),
            (r#"{ "a" : 1 }"#, 7, 7),
            (r#"{"a":[1, true,null]}"#, 19, 19),
            (r#""line\nnext""#, 12, 11),
            (r#""\u4e2d""#, 8, 5),
            (r#""\ud83d\ude00""#, 14, 6),
            (r#""\ud83d""#, 8, 5),
            ("-0.5E+10", 8, 8),
        ] {
            let value = check(body).unwrap();
            assert_eq!((value.raw, value.decoded), (raw, decoded), "{body}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused_with_its_place() {
        for (body, at) in [
            ("", 0),
            ("{", 1),
            ("{\"a\" 1}", 5),
            ("{\"a\":1,}", 7),
            ("[1,]", 3),
            ("[1 2]", 3),
            ("01", 1),
            ("1.", 2),
            ("-", 1),
            ("1e", 2),
            ("nul", 0),
            ("NaN", 0),
            ("\"a", 2),
            ("\"a\nb\"", 2),
            ("\"\\x\"", 2),
            ("\"\\u12g4\"", 3),
            ("{} {}", 3),
            ("{a:1}", 1),
        ] {
            match check(body) {
                Err(BadRequest::NotJson { at: had, .. }) => assert_eq!(had, at, "{body}"),
                other => panic!("{body}: {other:?}"),
            }
        }
        assert_eq!(Scanner::new(b"\"\xff\"").err(), Some(BadRequest::NotUtf8 { at: 1 }));
    }

    #[test]
    fn a_duplicate_key_is_found_at_any_depth_and_however_it_is_escaped() {
        let many: String = (0..40).map(|i| format!("\"k{i}\":0,")).collect();
        for (body, key) in [
            (r#"{"a":1,"a":2}"#.to_owned(), "a"),
            (r#"{"a":1,"\u0061":2}"#.to_owned(), "a"),
            (r#"[{"x":{"b":1,"c":2,"b":3}}]"#.to_owned(), "b"),
            (format!("{{{many}\"k7\":1}}"), "k7"),
        ] {
            assert_eq!(check(&body), Err(BadRequest::DuplicateKey { key: key.into() }), "{body}");
        }
        for body in
            [r#"{"a":{"a":{"a":1}},"b":{"a":1}}"#, r#"{"\ud800":1,"\ud801":2}"#, r#"{"\\n":1,"\n":2}"#]
        {
            check(body).unwrap();
        }
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        check(&nested(MAX_DEPTH)).unwrap();
        assert_eq!(check(&nested(MAX_DEPTH + 1)), Err(BadRequest::TooDeep { limit: MAX_DEPTH }));
    }

    proptest! {
        #[test]
        fn it_accepts_what_serde_json_accepts(body in r#"[\[\]{}",:0-9.eE\-+truefalsn \\a]{0,12}"#) {
            let accepted = check(&body).is_ok();
            let duplicates = matches!(check(&body), Err(BadRequest::DuplicateKey { .. }));
            let by_serde = serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok();
            prop_assert!(accepted == by_serde || duplicates, "{:?} {:?}", body, check(&body));
        }
    }
}
