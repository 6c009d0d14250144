//! Server-sent events: cutting a byte stream into events, and reading one event.

use std::{borrow::Cow, ops::Range};

use bytes::{Bytes, BytesMut};

/// Framer that cuts a stream into events, however it is chunked. Lines end with LF, CRLF or CR.
///
/// An event's bytes reach to the end of the blank line behind it, and include blank lines in front of it. The events
/// and the rest, concatenated, are therefore the stream.
#[derive(Debug, Default)]
pub struct Framer {
    /// Start of an event that is not complete yet.
    held: BytesMut,
    /// Whether the line that is not ended yet has text.
    line_has_text: bool,
    /// Whether the event has a line with text.
    has_line: bool,
    /// Whether the last byte was a CR: an LF that follows belongs to the same line end.
    after_cr: bool,
    /// Whether this stream has used CRLF, so that a CR is always followed by an LF.
    crlf: bool,
    /// Whether the held bytes are a complete event except for the LF of its last line end.
    ended: bool,
}

impl Framer {
    /// Takes the next chunk and returns the events that it completes, as slices of the chunk where possible.
    pub fn push(&mut self, chunk: Bytes) -> Vec<Bytes> {
        let mut events = Vec::new();
        if chunk.is_empty() {
            return events;
        }
        let (mut start, mut at) = (0, 0);
        if std::mem::take(&mut self.after_cr) && chunk[0] == b'\n' {
            self.crlf = true;
            at = 1;
        }
        if std::mem::take(&mut self.ended) {
            events.push(self.complete(chunk.slice(..at)));
            start = at;
        }
        while at < chunk.len() {
            let Some(line) = memchr::memchr2(b'\n', b'\r', &chunk[at..]) else {
                self.line_has_text = true;
                break;
            };
            let blank = !std::mem::take(&mut self.line_has_text) && line == 0;
            let ends_with_cr = chunk[at + line] == b'\r';
            at += line + 1;
            if ends_with_cr && chunk.get(at) == Some(&b'\n') {
                self.crlf = true;
                at += 1;
            } else {
                self.after_cr = ends_with_cr && at == chunk.len();
            }
            if !blank {
                self.has_line = true;
            } else if std::mem::take(&mut self.has_line) {
                // An LF left to the next event would be lost, or come twice, where one of the two is
                // swallowed.
                if self.after_cr && self.crlf {
                    self.ended = true;
                } else {
                    events.push(self.complete(chunk.slice(start..at)));
                    start = at;
                }
            }
        }
        self.held.extend_from_slice(&chunk[start..]);
        events
    }

    /// Returns the number of bytes of the event that is not complete yet.
    pub fn pending(&self) -> usize {
        self.held.len()
    }

    /// Returns the bytes that were left when the stream ended, and whether they are a complete event except
    /// for the LF of the last CRLF.
    pub fn finish(&mut self) -> (Bytes, bool) {
        let left = std::mem::take(self);
        (left.held.freeze(), left.ended)
    }

    fn complete(&mut self, end: Bytes) -> Bytes {
        if self.held.is_empty() {
            return end;
        }
        self.held.extend_from_slice(&end);
        self.held.split().freeze()
    }
}

/// Fields of one server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event<'a> {
    /// Value of the `event` field; empty if there is none.
    pub name: &'a [u8],
    /// Value of the last `id` field; `None` if there was none.
    pub id: Option<&'a [u8]>,
    /// The last `retry` field; empty when there was none.
    pub retry: &'a [u8],
    /// The `data` lines joined by LF; `None` when there were none (a comment, a lone `event`).
    pub data: Option<Cow<'a, [u8]>>,
    /// Byte range of `data` in the event's bytes; `None` if it is not one line.
    pub data_at: Option<Range<usize>>,
}

impl<'a> Event<'a> {
    /// Reads an event's fields from its bytes. Unknown fields and comments are skipped, as the standard requires.
    pub fn read(bytes: &'a [u8]) -> Self {
        let mut event = Self::default();
        for line in lines(bytes) {
            let text = &bytes[line.clone()];
            let colon = memchr::memchr(b':', text).unwrap_or(text.len());
            let mut from = (line.start + colon + 1).min(line.end);
            if bytes[from..line.end].first() == Some(&b' ') {
                from += 1;
            }
            match &text[..colon] {
                b"event" => event.name = &bytes[from..line.end],
                b"id" => event.id = Some(&bytes[from..line.end]),
                b"retry" => event.retry = &bytes[from..line.end],
                b"data" => event.add_data(bytes, from..line.end),
                _ => {}
            }
        }
        event
    }

    /// Returns the pause before a stream that broke off is resumed, in milliseconds, if the event tells it.
    pub fn retry(&self) -> Option<u64> {
        let is_number = !self.retry.is_empty() && self.retry.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(self.retry).ok().filter(|_| is_number)?.parse().ok()
    }

    fn add_data(&mut self, bytes: &'a [u8], at: Range<usize>) {
        match &mut self.data {
            None => {
                self.data = Some(Cow::Borrowed(&bytes[at.clone()]));
                self.data_at = Some(at);
            }
            Some(data) => {
                let data = data.to_mut();
                data.push(b'\n');
                data.extend_from_slice(&bytes[at]);
                self.data_at = None;
            }
        }
    }
}

/// Returns the lines of an event, without their ends. A leading byte order mark is not part of the first.
fn lines(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    std::iter::from_fn(move || {
        let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
        let len = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = at..at + len;
        at += len + if rest[len..].starts_with(b"\r\n") { 2 } else { 1 };
        Some(line)
    })
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Cuts `stream` at `cuts` (taken modulo its length).
    pub fn chunks(stream: &[u8], cuts: &[usize]) -> Vec<Bytes> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| Bytes::copy_from_slice(&stream[pair[0]..pair[1]])).collect()
    }

    fn check(stream: &str, events: &[&str], rest: &str) {
        let mut framer = Framer::default();
        let had = framer.push(Bytes::copy_from_slice(stream.as_bytes()));
        assert_eq!(had, events, "{stream:?}");
        assert_eq!(framer.finish().0, rest, "{stream:?}");
    }

    #[test]
    fn events_end_with_their_blank_line() {
        check("data: a\n\ndata: b\n\n", &["data: a\n\n", "data: b\n\n"], "");
        check("data: a\r\n\r\ndata: b\r\n\r\n", &["data: a\r\n\r\n", "data: b\r\n\r\n"], "");
        check("data: a\r\rdata: b\r\r", &["data: a\r\r", "data: b\r\r"], "");
        check("data: a\r\n\rdata: b\n\r\n", &["data: a\r\n\r", "data: b\n\r\n"], "");
        check(": hi\n\n\n\ndata: a\n\n\n", &[": hi\n\n", "\n\ndata: a\n\n"], "\n");
        check("event: x\ndata: a\ndata: b\n\ndata: c", &["event: x\ndata: a\ndata: b\n\n"], "data: c");
    }

    #[test]
    fn an_event_within_a_chunk_is_a_slice_of_it() {
        let chunk = Bytes::from_static(b"data: a\n\ndata: b\n\n");
        let events = Framer::default().push(chunk.clone());
        assert_eq!(events[1].as_ptr(), chunk[9..].as_ptr());
    }

    fn check_chunks(chunks: &[&'static str], events: &[&[&str]], rest: (&str, bool)) {
        let mut framer = Framer::default();
        for (chunk, wanted) in chunks.iter().zip(events) {
            assert_eq!(framer.push(Bytes::from_static(chunk.as_bytes())), *wanted, "{chunk:?} of {chunks:?}");
        }
        assert_eq!(framer.finish(), (Bytes::copy_from_slice(rest.0.as_bytes()), rest.1), "{chunks:?}");
    }

    #[test]
    fn an_event_cut_anywhere_keeps_its_own_line_ends() {
        check_chunks(&["da", "ta: a\n", "\n"], &[&[], &[], &["data: a\n\n"]], ("", false));
        // Where lines end with CRLF, a CR waits for its LF; where they end with CR, it does not.
        check_chunks(&["data: a\r\n\r", "", "\nd"], &[&[], &[], &["data: a\r\n\r\n"]], ("d", false));
        check_chunks(&["data: a\r", "\n\r", "\n"], &[&[], &[], &["data: a\r\n\r\n"]], ("", false));
        check_chunks(&["data: a\r\n\r"], &[&[]], ("data: a\r\n\r", true));
        check_chunks(&["data: a\r\n\r", "data: b"], &[&[], &["data: a\r\n\r"]], ("data: b", false));
        check_chunks(&["data: a\r\r", "data: b"], &[&["data: a\r\r"], &[]], ("data: b", false));
    }

    #[test]
    fn fields_are_read_as_the_standard_says() {
        for (bytes, name, data) in [
            ("data: a\n\n", "", Some("a")),
            ("data:a\n\n", "", Some("a")),
            ("data:  a\n\n", "", Some(" a")),
            ("data\n\n", "", Some("")),
            ("\nevent: ping\r\ndata: {\r\ndata: }\r\n\r\n", "ping", Some("{\n}")),
            ("id: 7\rretry: 1\r: note\rdata: x\r\r", "", Some("x")),
            (": keep-alive\n\n", "", None),
            ("\u{feff}data: a\n\n", "", Some("a")),
            ("dataset: a\n\n", "", None),
            ("", "", None),
        ] {
            let event = Event::read(bytes.as_bytes());
            assert_eq!(event.name, name.as_bytes(), "{bytes:?}");
            assert_eq!(event.data.as_deref(), data.map(str::as_bytes), "{bytes:?}");
            if let Some(at) = event.data_at {
                assert_eq!(Some(&bytes.as_bytes()[at]), event.data.as_deref(), "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_place_in_a_stream_is_read() {
        let event = Event::read(b"id: 7\nretry: 250\ndata:\n\n");
        assert_eq!((event.id, event.retry()), (Some(&b"7"[..]), Some(250)));
        for none in ["retry: soon", "retry:", "retry: -1", "retry: 99999999999999999999999", ""] {
            assert_eq!(Event::read(none.as_bytes()).retry(), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_chunking_does_not_matter(
            stream in "([a-c: \n\r]|data: x|\r\n|\n\n){0,30}",
            cuts in prop::collection::vec(any::<usize>(), 0..8),
        ) {
            let read = |chunks: Vec<Bytes>| {
                let mut framer = Framer::default();
                let mut events: Vec<Bytes> = chunks.into_iter().flat_map(|c| framer.push(c)).collect();
                events.push(framer.finish().0);
                events
            };
            let whole = read(chunks(stream.as_bytes(), &[]));
            let cut = read(chunks(stream.as_bytes(), &cuts));
            prop_assert_eq!(cut.concat(), stream.as_bytes());
            prop_assert_eq!(whole.concat(), stream.as_bytes());
            // Bytes may differ by an LF that moved behind its CR; what the events say may not.
            let says = |events: &[Bytes]| -> Vec<String> {
                events.iter().map(|e| format!("{:?}", Event::read(e).data)).filter(|d| d != "None").collect()
            };
            prop_assert_eq!(says(&cut), says(&whole));
        }
    }
}
