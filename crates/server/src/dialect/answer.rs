//! Answers: the facts of a whole one, and a stream read frame by frame.

use std::{borrow::Cow, ops::Range};

use bytes::Bytes;
pub use outlast_core::call::exchange::Frame as FrameKind;
use outlast_core::words::{NanoUsd, ServiceTier, Usage};
use serde_json::Value;

use super::{
    CostField,
    json_array::{ArrayFramer, element},
    lenient::parse_json,
    sse::{Event, Framer},
};

/// Facts read from an answer. `None`: the answer does not have the fact, because upstreams differ and a stream can end
/// anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Complete usage, by which the call can be billed. `None` in a stream while later frames may still add
    /// to it.
    pub usage: Option<Usage>,
    /// Newest usage reported, complete or not. The output count is a lower bound until the end.
    pub usage_so_far: Option<Usage>,
    /// Cost that the upstream itself reported last for the call; `None` if it reported none.
    pub cost: Option<NanoUsd>,
    /// Service tier that was billed; `None` if the answer names none.
    pub tier: Option<ServiceTier>,
    /// Model that answered, as the upstream names it; `None` if it names none.
    pub model: Option<String>,
    /// Id that the upstream gave the answer; `None` if it gave none.
    pub id: Option<String>,
    /// Stop or finish reason, as the upstream names it; of several choices the first one reported.
    pub finish: Option<String>,
    pub error: Option<UpstreamError>,
    /// Ids of the answer and its parts, by which later requests can refer to them, if the upstream stores answers.
    pub kept: Vec<String>,
}

/// Error as the upstream reported it, in a body or in the middle of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamError {
    /// Value of `error.type`, such as `rate_limit_error`; `None` if the error has none.
    pub kind: Option<String>,
    /// Value of `error.code`, such as `insufficient_quota`; `None` if the error has none.
    pub code: Option<String>,
    pub message: String,
}

/// Event of a stream, with the bytes that go to the client; those of a swallowed one do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub bytes: Bytes,
    /// `None` for an event that the end of the stream cut off. It must not be sent before an error frame of the proxy: a
    /// client would read the two as one.
    pub kind: Option<FrameKind>,
}

/// Event that has data, for the reader of its dialect.
pub(super) struct StreamEvent<'a> {
    /// Name of the event; empty if it has none.
    pub name: &'a str,
    pub bytes: &'a [u8],
    /// Data of the event; null where it cannot be read. It has come all the same.
    pub data: Value,
    /// Range of the bytes that the reader has cut out before the event goes to the client; `None`: nothing is.
    pub cut: Option<Range<usize>>,
}

/// Reader of the events of one dialect's stream.
pub(super) trait EventReader: Send + std::fmt::Debug {
    /// Reads an event, and records its facts in `outcome`.
    fn read(&mut self, event: &mut StreamEvent<'_>, outcome: &mut Outcome) -> FrameKind;

    /// Takes the clean end of a body without a terminal event. Returns whether the answer is whole all the same; only
    /// then its usage in `outcome` is complete, if one was told.
    fn ends(&mut self, _outcome: &mut Outcome) -> bool {
        false
    }
}

/// Splits a stream into frames.
#[derive(Debug)]
enum Cutter {
    Events(Framer),
    /// For a stream that is one JSON array.
    Elements(ArrayFramer),
}

/// Reader of a streamed answer, which takes the bytes as they arrive.
#[derive(Debug)]
pub struct AnswerStream {
    framer: Cutter,
    reader: Box<dyn EventReader>,
    cost_field: Option<CostField>,
    outcome: Outcome,
    stop_seen: bool,
    terminal_seen: bool,
}

impl AnswerStream {
    pub(super) fn new(reader: impl EventReader + 'static) -> Self {
        Self {
            framer: Cutter::Events(Framer::default()),
            reader: Box::new(reader),
            cost_field: None,
            outcome: Outcome::default(),
            stop_seen: false,
            terminal_seen: false,
        }
    }

    /// Returns the reader set up for a stream that is one JSON array.
    pub(super) fn of_an_array(self) -> Self {
        Self { framer: Cutter::Elements(ArrayFramer::default()), ..self }
    }

    /// Returns the reader set up to record also the cost that events report in `field`.
    pub fn noting_cost(self, field: Option<&CostField>) -> Self {
        Self { cost_field: field.cloned(), ..self }
    }

    /// Takes the next bytes and returns the frames that they complete.
    pub fn push(&mut self, bytes: Bytes) -> Vec<Frame> {
        let frames = match &mut self.framer {
            Cutter::Events(framer) => framer.push(bytes),
            Cutter::Elements(framer) => framer.push(bytes),
        };
        frames.into_iter().map(|bytes| self.frame(bytes)).collect()
    }

    /// Takes the clean end of the body. Returns the remaining bytes as a frame; `None` if there are none and the end
    /// means nothing.
    ///
    /// A body that ends where its answer is whole needs no terminal event, and a last event no blank line behind it.
    /// Otherwise a rest has no kind, or `Data` if it is blank lines only. An event that was cut says nothing, and may have
    /// told another usage.
    pub fn finish(&mut self) -> Option<Frame> {
        let (mut frame, is_closed) = match &mut self.framer {
            Cutter::Events(framer) => {
                let (rest, is_closed) = framer.finish();
                (self.last_event(rest, is_closed), is_closed)
            }
            Cutter::Elements(framer) => {
                let (bytes, closed) = framer.finish();
                (Frame { bytes, kind: Some(FrameKind::Data) }, closed)
            }
        };
        let may_end = is_closed || matches!(self.framer, Cutter::Events(_));
        let is_open = !self.terminal_seen && self.outcome.error.is_none();
        let usage = self.outcome.usage;
        if may_end && is_open && self.reader.ends(&mut self.outcome) {
            self.terminal_seen = true;
            if frame.kind.is_none() {
                self.outcome.usage = usage;
            }
            if matches!(frame.kind, Some(FrameKind::Swallowed) | None) {
                frame.bytes.clear();
            }
            frame.kind = Some(FrameKind::Terminal);
            return Some(frame);
        }
        let is_blank = frame.bytes.iter().all(|b| matches!(b, b'\n' | b'\r'));
        if !is_closed && !is_blank && !matches!(frame.kind, Some(FrameKind::Terminal | FrameKind::Swallowed))
        {
            frame.kind = None;
        }
        (!frame.bytes.is_empty()).then_some(frame)
    }

    /// Reads the bytes behind the last blank line.
    fn last_event(&mut self, rest: Bytes, is_closed: bool) -> Frame {
        if rest.iter().all(|b| matches!(b, b'\n' | b'\r')) {
            return Frame { bytes: rest, kind: Some(FrameKind::Data) };
        }
        if !is_closed && !is_readable(&rest) {
            return Frame { bytes: rest, kind: None };
        }
        self.frame(rest)
    }

    /// Returns the number of bytes of the event that is not complete yet.
    pub fn pending(&self) -> usize {
        match &self.framer {
            Cutter::Events(framer) => framer.pending(),
            Cutter::Elements(framer) => framer.pending(),
        }
    }

    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    fn frame(&mut self, bytes: Bytes) -> Frame {
        let event = match &self.framer {
            Cutter::Events(_) => Event::read(&bytes),
            Cutter::Elements(_) => {
                Event { data: Some(Cow::Borrowed(&bytes[element(&bytes)])), ..Event::default() }
            }
        };
        let Some(data) = event.data.as_deref() else { return Frame { bytes, kind: Some(FrameKind::Ping) } };
        let name = std::str::from_utf8(event.name).unwrap_or_default();
        let mut told =
            StreamEvent { name, bytes: data, data: parse_json(data).unwrap_or_default(), cut: None };
        let kind = match self.reader.read(&mut told, &mut self.outcome) {
            FrameKind::Stop if std::mem::replace(&mut self.stop_seen, true) => FrameKind::Data,
            kind => kind,
        };
        if let Some(field) = &self.cost_field {
            // Several events may tell a cost, each of all that was spent so far.
            self.outcome.cost = self.outcome.cost.max(field.read(&told.data));
        }
        self.terminal_seen |= kind == FrameKind::Terminal;
        // Data over several lines is left as it is: no known server writes it, and no client breaks on it.
        let bytes = match (told.cut, event.data_at) {
            (Some(cut), Some(data)) => {
                [&bytes[..data.start + cut.start], &bytes[data.start + cut.end..]].concat().into()
            }
            _ => bytes,
        };
        Frame { bytes, kind: Some(kind) }
    }
}

/// Names of members that say what a part of an answer is, and hold nothing of it.
const LABELS: [&str; 4] = ["role", "type", "object", "id"];

/// Returns whether a part of an answer holds anything: a text that is not empty, other than its labels.
pub(super) fn carries(part: &Value) -> bool {
    match part {
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(parts) => parts.iter().any(carries),
        Value::Object(members) => {
            members.iter().any(|(name, part)| !LABELS.contains(&name.as_str()) && carries(part))
        }
    }
}

/// Returns whether an event without a blank line behind it is all there, so that a client can read it.
fn is_readable(bytes: &[u8]) -> bool {
    let data = Event::read(bytes).data;
    data.is_none_or(|data| data.starts_with(b"[DONE]") || parse_json(&data).is_some())
}

/// Returns the indices of the choices that tell in the member `reason` why they are at their end.
pub(super) fn finished<'a>(choices: &'a Value, reason: &'a str) -> impl Iterator<Item = u64> + 'a {
    let choices = choices.as_array().into_iter().flatten();
    choices.filter(move |choice| text(&choice[reason]).is_some()).map(|c| c["index"].as_u64().unwrap_or(0))
}

/// Returns the usage after an event that told `now`. Counts only grow: a report of fewer tokens than before leaves some out.
pub(super) fn grown(before: Option<Usage>, now: Option<Usage>) -> Option<Usage> {
    match (before, now) {
        (Some(before), Some(now)) if now.total() < before.total() => Some(before),
        (before, now) => now.or(before),
    }
}

/// Reads the value of an answer's `error` member, an object or any other value; `None` for null and false.
pub(super) fn upstream_error(error: &Value) -> Option<UpstreamError> {
    match error {
        Value::Null | Value::Bool(false) => None,
        Value::String(message) => Some(UpstreamError { message: message.clone(), ..Default::default() }),
        Value::Object(_) => Some(UpstreamError {
            kind: text(&error["type"]),
            code: text(&error["code"]),
            message: text(&error["message"]).unwrap_or_else(|| error.to_string()),
        }),
        other => Some(UpstreamError { message: other.to_string(), ..Default::default() }),
    }
}

/// Returns a string unchanged, and a number (the codes of some servers) as text; `None` for anything else.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{Request, openai_chat::DIALECT};

    impl AnswerStream {
        /// Returns the complete usage; `None` while later frames may still add to it.
        pub fn usage(&self) -> Option<Usage> {
            self.outcome.usage
        }

        pub fn terminal_seen(&self) -> bool {
            self.terminal_seen
        }

        /// Returns whether the terminal event was seen and no error came. Only then the answer may be replayed.
        pub fn is_complete(&self) -> bool {
            self.terminal_seen && self.outcome.error.is_none()
        }
    }

    #[test]
    fn an_event_that_the_end_cuts_off_has_no_kind() {
        let mut answer = (DIALECT.read_stream)(&Request { choices: 1, ..Request::default() });
        assert_eq!(answer.push("data: {\"choi".into()), []);
        assert_eq!(answer.finish().map(|frame| frame.kind), Some(None));
    }
}
