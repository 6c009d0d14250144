//! Messages of a server in a body of server-sent events, and the place from which the stream can be resumed.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::dialect::sse::{Event, Framer};

/// Longest event that is accepted, in bytes.
pub const LONGEST: usize = 256 << 20;

/// Pause before a stream is resumed, unless the server names another one.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest pause that a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Position in a stream from which it is resumed.
#[derive(Clone, Debug)]
pub struct ResumePoint {
    /// Id of the last event that had one; `None` before.
    pub last: Option<String>,
    pub pause: Duration,
}

impl Default for ResumePoint {
    fn default() -> ResumePoint {
        ResumePoint { last: None, pause: PAUSE }
    }
}

/// Calls `each` with each message of the body until that ends or breaks off. A message is one line: line ends within it
/// become spaces, which JSON has outside of texts only. Returns how many events came.
pub async fn read(mut body: Incoming, place: &mut ResumePoint, mut each: impl FnMut(Vec<u8>)) -> usize {
    let mut framer = Framer::default();
    let (mut events, mut held) = (0, 0);
    let mut take = |bytes: &Bytes, place: &mut ResumePoint| {
        let event = Event::read(bytes);
        if let Some(id) = event.id.and_then(|id| std::str::from_utf8(id).ok()) {
            place.last = Some(id.to_owned()).filter(|id| !id.is_empty());
        }
        if let Some(ms) = event.retry() {
            place.pause = Duration::from_millis(ms).min(LONGEST_PAUSE);
        }
        if let Some(data) = event.data.filter(|data| !data.is_empty()) {
            each(one_line(data.into_owned()));
        }
    };
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(chunk) = frame.into_data() else { continue };
        held += chunk.len();
        for event in framer.push(chunk) {
            (events, held) = (events + 1, 0);
            take(&event, place);
        }
        if held > LONGEST {
            return events;
        }
    }
    // An event that was cut off is none.
    if let (event, true) = framer.finish() {
        take(&event, place);
        events += 1;
    }
    events
}

/// Returns a JSON text in one line.
pub fn one_line(mut json: Vec<u8>) -> Vec<u8> {
    for b in &mut json {
        if matches!(b, b'\n' | b'\r') {
            *b = b' ';
        }
    }
    json
}
