//! Streams of one client of a recorder: which of its open responses a line goes to.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{
    message::{self, INTERNAL, Message},
    recorder::{Caller, OutgoingLine},
};
use crate::wire::body::Piece;

/// Most lines that are kept for a client that has no stream open. Beyond it the oldest are dropped.
const MOST_KEPT: usize = 1000;

/// Time after which an unused session is over.
const IDLE: Duration = Duration::from_secs(30 * 60);

/// Session that a client has opened. Dropping it ends its recorder.
pub struct Session {
    pub name: String,
    pub caller: Caller,
    lines: mpsc::UnboundedSender<Vec<u8>>,
    streams: Arc<Mutex<Streams>>,
}

/// Sender of the pieces of a response's body.
pub type Stream = mpsc::UnboundedSender<Piece>;

/// Form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Events,
    /// One JSON document that holds only the answer to the request.
    Json,
}

struct PendingRequest {
    id: String,
    /// Token by which notices of progress name this request, as raw JSON; `None` if the client asked for
    /// none.
    progress: Option<String>,
    form: Form,
    to: Stream,
}

struct Streams {
    /// Requests of the client that have no answer yet, the oldest first.
    asked: Vec<PendingRequest>,
    /// Stream that the client opened for messages which answer no request; `None` before.
    listening: Option<Stream>,
    kept: VecDeque<OutgoingLine>,
    used: Instant,
    ended: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Facts<'a> {
    #[serde(borrow)]
    progress_token: Option<&'a RawValue>,
    #[serde(borrow)]
    request_id: Option<&'a RawValue>,
}

impl Session {
    /// Begins a session with a recorder, which receives the client's lines from `lines` and sends its own to
    /// `told`.
    pub fn begin(
        name: String,
        caller: Caller,
        lines: mpsc::UnboundedSender<Vec<u8>>,
        mut told: mpsc::UnboundedReceiver<OutgoingLine>,
    ) -> Session {
        let streams = Arc::new(Mutex::new(Streams {
            asked: Vec::new(),
            listening: None,
            kept: VecDeque::new(),
            used: Instant::now(),
            ended: false,
        }));
        let giving = streams.clone();
        tokio::spawn(async move {
            while let Some(told) = told.recv().await {
                lock(&giving).give(told);
            }
            lock(&giving).end();
        });
        Session { name, caller, lines, streams }
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        lock(&self.streams)
    }

    /// Sends a message that has no answer to the recorder.
    pub fn tell(&self, message: &Message<'_>, line: Vec<u8>) {
        let mut streams = self.streams();
        streams.used = Instant::now();
        if message.method.as_deref() == Some("notifications/cancelled") {
            let named = facts(message).request_id.map(RawValue::get);
            // A cancelled request has no answer, so its response ends here.
            streams.asked.retain(|asked| {
                let is_named = named == Some(&asked.id);
                if is_named {
                    let _ = asked.to.send(Piece::End);
                }
                !is_named
            });
        }
        let _ = self.lines.send(line);
    }

    /// Sends a request, whose answer and notices go to `to`. False: a request of this id is under way.
    pub fn ask(&self, id: &str, message: &Message<'_>, line: Vec<u8>, form: Form, to: Stream) -> bool {
        #[derive(Default, Deserialize)]
        struct Params<'a> {
            #[serde(borrow, default, rename = "_meta")]
            meta: Facts<'a>,
        }
        let mut streams = self.streams();
        streams.used = Instant::now();
        streams.asked.retain(|asked| !asked.to.is_closed());
        if streams.asked.iter().any(|asked| asked.id == id) {
            return false;
        }
        let params = message.params.and_then(|p| serde_json::from_str::<Params<'_>>(p.get()).ok());
        let progress = params.and_then(|p| p.meta.progress_token).map(|token| token.get().to_owned());
        streams.asked.push(PendingRequest { id: id.to_owned(), progress, form, to });
        match streams.ended {
            true => streams.end(),
            false => drop(self.lines.send(line)),
        }
        true
    }

    /// Opens the stream for messages that answer no request. A stream that was open for them ends.
    pub fn listen(&self, to: Stream) {
        let mut streams = self.streams();
        streams.used = Instant::now();
        let before = streams.listening.replace(to);
        before.map(|before| before.send(Piece::End));
        for told in std::mem::take(&mut streams.kept) {
            streams.give(told);
        }
    }

    /// Returns whether the session is over: the recorder has ended, or nobody has used the session for a
    /// while.
    pub fn is_over(&self) -> bool {
        let streams = self.streams();
        let open = |stream: &Stream| !stream.is_closed();
        let is_used = streams.listening.as_ref().is_some_and(open)
            || streams.asked.iter().any(|asked| open(&asked.to))
            || streams.used.elapsed() < IDLE;
        streams.ended || !is_used
    }
}

impl Streams {
    /// Sends a line of the recorder to the response that it belongs to, or keeps it until a stream is open.
    fn give(&mut self, told: OutgoingLine) {
        let Ok(message) = message::read(&told.line) else { return };
        if let (None, Some(id)) = (&message.method, message.id) {
            let Some(at) = self.asked.iter().position(|asked| asked.id == id.get()) else { return };
            let asked = self.asked.remove(at);
            // If the client has hung up, the answer reached nobody.
            let _ = asked.to.send(piece(asked.form, told));
            let _ = asked.to.send(Piece::End);
            return;
        }
        let progress = facts(&message).progress_token.map(RawValue::get);
        let is_of_none = message
            .method
            .as_deref()
            .is_some_and(|m| m.ends_with("/list_changed") || m == "notifications/resources/updated");
        let is_open = |asked: &&PendingRequest| asked.form == Form::Events && !asked.to.is_closed();
        let of_its_own = self
            .asked
            .iter()
            .filter(is_open)
            .find(|asked| progress.is_some() && asked.progress.as_deref() == progress);
        let newest = self.asked.iter().rev().find(is_open).map(|asked| &asked.to);
        let listening = self.listening.as_ref().filter(|to| !to.is_closed());
        // Which request a line belongs to is not said: until 2025-11-25 a client hears it from any.
        let to = match of_its_own {
            Some(asked) => Some(&asked.to),
            None if is_of_none => listening.or(newest),
            None => newest.or(listening),
        };
        match to {
            Some(to) => drop(to.send(piece(Form::Events, told))),
            None => {
                self.kept.push_back(told);
                if self.kept.len() > MOST_KEPT {
                    self.kept.pop_front();
                }
            }
        }
    }

    /// Ends all streams after the recorder has ended. Each request without an answer gets an error.
    fn end(&mut self) {
        self.ended = true;
        for asked in std::mem::take(&mut self.asked) {
            let error = message::error(INTERNAL, "the server does not stay up, and was given up");
            let line = message::answer(&asked.id, &error);
            let _ = asked.to.send(piece(asked.form, OutgoingLine { line, mark: None }));
            let _ = asked.to.send(Piece::End);
        }
        self.listening.take().map(|to| to.send(Piece::End));
    }
}

fn facts<'a>(message: &Message<'a>) -> Facts<'a> {
    message.params.and_then(|p| serde_json::from_str(p.get()).ok()).unwrap_or_default()
}

fn piece(form: Form, told: OutgoingLine) -> Piece {
    let frame = match form {
        Form::Json => told.line,
        Form::Events => [b"event: message\ndata: ".as_slice(), &told.line, b"\n\n"].concat(),
    };
    match told.mark {
        Some(mark) => Piece::Marked(Bytes::from(frame), mark),
        None => Piece::Frame(Bytes::from(frame)),
    }
}

fn lock(streams: &Mutex<Streams>) -> MutexGuard<'_, Streams> {
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use outlast_core::words::id::{AttemptNo, RunNo, Slot};

    use super::*;

    struct Stage {
        session: Session,
        lines: mpsc::UnboundedReceiver<Vec<u8>>,
    }

    impl Stage {
        fn new() -> Stage {
            let ((to, lines), (_told, hears)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
            let caller =
                Caller { run: RunNo(1), attempt: AttemptNo(1), slot: Slot::DRIVER, scope: "i1".into() };
            // The recorder's lines are given by hand.
            let session = Session::begin("log".into(), caller, to, hears);
            std::mem::forget(_told);
            Stage { session, lines }
        }

        fn asks(&self, line: &str) -> mpsc::UnboundedReceiver<Piece> {
            let (to, pieces) = mpsc::unbounded_channel();
            let message = message::read(line.as_bytes()).unwrap();
            let id = message.id.unwrap().get();
            assert!(self.session.ask(id, &message, line.as_bytes().to_vec(), Form::Events, to), "{line}");
            pieces
        }

        fn listens(&self) -> mpsc::UnboundedReceiver<Piece> {
            let (to, pieces) = mpsc::unbounded_channel();
            self.session.listen(to);
            pieces
        }

        fn gives(&self, line: &str) {
            self.session.streams().give(OutgoingLine { line: line.as_bytes().to_vec(), mark: None });
        }
    }

    /// Pieces that have come, each as its line; the end is an empty one.
    fn came(pieces: &mut mpsc::UnboundedReceiver<Piece>) -> Vec<String> {
        std::iter::from_fn(|| pieces.try_recv().ok())
            .map(|piece| match piece {
                Piece::Frame(frame) | Piece::Marked(frame, _) => {
                    let text = String::from_utf8(frame.to_vec()).unwrap();
                    text.strip_prefix("event: message\ndata: ").unwrap().trim_end().to_owned()
                }
                Piece::End => String::new(),
            })
            .collect()
    }

    const ONE: &str = r#"{"id":1,"method":"tools/call","params":{"_meta":{"progressToken":"p"}}}"#;
    const TWO: &str = r#"{"id":2,"method":"tools/call"}"#;

    #[tokio::test]
    async fn a_line_goes_to_the_response_that_it_belongs_to() {
        let stage = Stage::new();
        let (mut one, mut two, mut other) = (stage.asks(ONE), stage.asks(TWO), stage.listens());
        let progress = r#"{"method":"notifications/progress","params":{"progressToken":"p"}}"#;
        let (log, changed) =
            (r#"{"method":"notifications/message"}"#, r#"{"method":"notifications/tools/list_changed"}"#);
        let (first, second) = (r#"{"id":1,"result":{}}"#, r#"{"id":2,"error":{}}"#);
        for line in [progress, log, changed, second, first, r#"{"id":9,"result":{}}"#] {
            stage.gives(line);
        }
        assert_eq!(came(&mut one), [progress, first, ""]);
        assert_eq!(came(&mut two), [log, second, ""]);
        assert_eq!(came(&mut other), [changed]);
    }

    #[tokio::test]
    async fn what_nobody_listens_to_is_kept() {
        let stage = Stage::new();
        let question = r#"{"id":"q","method":"elicitation/create"}"#;
        stage.gives(question);
        assert_eq!(came(&mut stage.listens()), [question]);
        assert!(came(&mut stage.listens()).is_empty());
    }

    #[tokio::test]
    async fn a_cancelled_request_ends_without_an_answer_and_its_recorder_hears_of_it() {
        let mut stage = Stage::new();
        let mut one = stage.asks(ONE);
        let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#;
        stage.session.tell(&message::read(cancel.as_bytes()).unwrap(), cancel.as_bytes().to_vec());
        stage.gives(r#"{"id":1,"result":{}}"#);
        assert_eq!(came(&mut one), [""]);
        assert_eq!(stage.lines.recv().await.unwrap(), ONE.as_bytes());
        assert_eq!(stage.lines.recv().await.unwrap(), cancel.as_bytes());
    }

    #[tokio::test]
    async fn an_id_is_used_once_at_a_time_and_nobody_waits_for_an_ended_recorder() {
        let stage = Stage::new();
        let mut one = stage.asks(ONE);
        let (to, _pieces) = mpsc::unbounded_channel();
        let message = message::read(ONE.as_bytes()).unwrap();
        assert!(!stage.session.ask("1", &message, ONE.into(), Form::Events, to));
        stage.session.streams().end();
        assert!(came(&mut one)[0].contains("was given up"));
        assert!(came(&mut stage.asks(TWO))[0].contains("was given up"));
        assert!(stage.session.is_over());
    }
}
