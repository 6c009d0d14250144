//! Streams of one client of a recorder: which of its open responses a line goes to.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use super::{
    era::Era,
    message::{self, INTERNAL, Message, Named},
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

/// HTTP status and form of a response.
pub type Head = (u16, Form);

/// Request of a client, as its response is concerned.
pub struct Asked {
    /// Id of the request, as raw JSON.
    pub id: String,
    pub era: Era,
    /// Form that the client takes, until `head` is decided.
    pub form: Form,
    pub to: Stream,
    /// Receiver of the response's head, which the first line decides: an answer without a notice before it is a document
    /// with a status of its own. `None` where the response has begun.
    pub head: Option<oneshot::Sender<Head>>,
}

struct PendingRequest {
    asked: Asked,
    /// Token by which notices of progress name this request, as raw JSON; `None` if the client asked for
    /// none.
    progress: Option<String>,
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
                giving.lock().give(told);
            }
            giving.lock().end();
        });
        Session { name, caller, lines, streams }
    }

    /// Sends a message that has no answer to the recorder.
    pub fn tell(&self, message: &Message<'_>, line: Vec<u8>) {
        let mut streams = self.streams.lock();
        streams.used = Instant::now();
        if message.method.as_deref() == Some("notifications/cancelled") {
            let named = Named::read(message.params).request_id.map(RawValue::get);
            let of = |pending: &PendingRequest| Some(pending.asked.id.as_str()) == named;
            if let Some(at) = streams.asked.iter().position(of) {
                let asked = streams.asked.remove(at).asked;
                match asked.era.cancelled(&asked.id) {
                    Some(line) => asked.end(OutgoingLine { line, mark: None }),
                    None => drop(asked.to.send(Piece::End)),
                }
            }
        }
        let _ = self.lines.send(line);
    }

    /// Sends a request to the recorder. False: a request of this id is under way.
    pub fn ask(&self, asked: Asked, message: &Message<'_>, line: Vec<u8>) -> bool {
        #[derive(Default, Deserialize)]
        struct Params<'a> {
            #[serde(borrow, default, rename = "_meta")]
            meta: Named<'a>,
        }
        let mut streams = self.streams.lock();
        streams.used = Instant::now();
        streams.asked.retain(|pending| !pending.asked.to.is_closed());
        if streams.asked.iter().any(|pending| pending.asked.id == asked.id) {
            return false;
        }
        let params = message.params.and_then(|p| serde_json::from_str::<Params<'_>>(p.get()).ok());
        let progress = params.and_then(|p| p.meta.progress_token).map(|token| token.get().to_owned());
        streams.asked.push(PendingRequest { asked, progress });
        match streams.ended {
            true => streams.end(),
            false => drop(self.lines.send(line)),
        }
        true
    }

    /// Sends a comment to each open stream, so that nobody between takes it for dead.
    pub fn keep_open(&self) {
        for pending in
            self.streams.lock().asked.iter_mut().filter(|pending| pending.asked.form == Form::Events)
        {
            pending.asked.send(Piece::Frame(Bytes::from_static(b":\n\n")));
        }
    }

    /// Cancels the requests that have no answer: their client hung up.
    pub fn hung_up(&self) {
        for pending in self.streams.lock().asked.drain(..) {
            let _ = self.lines.send(message::cancelled(&pending.asked.id, "the client hung up"));
        }
    }

    /// Opens the stream for messages that answer no request. A stream that was open for them ends.
    pub fn listen(&self, to: Stream) {
        let mut streams = self.streams.lock();
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
        let streams = self.streams.lock();
        let open = |stream: &Stream| !stream.is_closed();
        let is_used = streams.listening.as_ref().is_some_and(open)
            || streams.asked.iter().any(|pending| open(&pending.asked.to))
            || streams.used.elapsed() < IDLE;
        streams.ended || !is_used
    }
}

impl Asked {
    /// Sends a piece that is no answer. A response that has not begun becomes a stream of events.
    fn send(&mut self, piece: Piece) {
        let head = self.head.take();
        head.map(|head| head.send((200, Form::Events)));
        let _ = self.to.send(piece);
    }

    /// Sends the answer, and ends the response. If the client has hung up, the answer reached nobody.
    fn end(mut self, answer: OutgoingLine) {
        if let Some(head) = self.head.take() {
            self.form = Form::Json;
            let _ = head.send((self.era.status(&answer.line), Form::Json));
        }
        let _ = self.to.send(piece(self.form, answer));
        let _ = self.to.send(Piece::End);
    }
}

impl Streams {
    /// Sends a line of the recorder to the response that it belongs to, or keeps it until a stream is open.
    fn give(&mut self, told: OutgoingLine) {
        let Ok(message) = message::read(&told.line) else { return };
        if let (None, Some(id)) = (&message.method, message.id) {
            let of = |pending: &PendingRequest| pending.asked.id == id.get();
            let Some(at) = self.asked.iter().position(of) else { return };
            return self.asked.remove(at).asked.end(told);
        }
        let progress = Named::read(message.params).progress_token.map(RawValue::get);
        let is_of_none = message
            .method
            .as_deref()
            .is_some_and(|m| m.ends_with("/list_changed") || m == "notifications/resources/updated");
        let is_open =
            |pending: &PendingRequest| pending.asked.form == Form::Events && !pending.asked.to.is_closed();
        let is_its = |pending: &PendingRequest| progress.is_some() && pending.progress.as_deref() == progress;
        let of_its_own = self.asked.iter().position(|pending| is_open(pending) && is_its(pending));
        // Which request a line belongs to is not said: until 2025-11-25 a client hears it from any.
        let at = of_its_own.or_else(|| self.asked.iter().rposition(is_open));
        let listening = self.listening.as_ref().filter(|to| !to.is_closed());
        match (at, listening) {
            (at, Some(to)) if at.is_none() || is_of_none && of_its_own.is_none() => {
                drop(to.send(piece(Form::Events, told)));
            }
            (Some(at), _) => self.asked[at].asked.send(piece(Form::Events, told)),
            (None, _) => {
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
        for PendingRequest { asked, .. } in std::mem::take(&mut self.asked) {
            let error = message::error(INTERNAL, "the server does not stay up, and was given up");
            let line = message::answer(&asked.id, &error);
            asked.end(OutgoingLine { line, mark: None });
        }
        self.listening.take().map(|to| to.send(Piece::End));
    }
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

#[cfg(test)]
mod tests {
    use outlast_core::words::{AttemptNo, RunNo, Slot};

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
            let (asked, pieces) = asked(line, None);
            let message = message::read(line.as_bytes()).unwrap();
            assert!(self.session.ask(asked, &message, line.as_bytes().to_vec()), "{line}");
            pieces
        }

        /// Makes a request that stands alone. Returns its head and its pieces.
        fn asks_alone(&self, line: &str) -> (oneshot::Receiver<Head>, mpsc::UnboundedReceiver<Piece>) {
            let (decided, head) = oneshot::channel();
            let (asked, pieces) = asked(line, Some(decided));
            let message = message::read(line.as_bytes()).unwrap();
            assert!(self.session.ask(asked, &message, line.as_bytes().to_vec()), "{line}");
            (head, pieces)
        }

        fn listens(&self) -> mpsc::UnboundedReceiver<Piece> {
            let (to, pieces) = mpsc::unbounded_channel();
            self.session.listen(to);
            pieces
        }

        fn gives(&self, line: &str) {
            self.session.streams.lock().give(OutgoingLine { line: line.as_bytes().to_vec(), mark: None });
        }
    }

    fn asked(line: &str, head: Option<oneshot::Sender<Head>>) -> (Asked, mpsc::UnboundedReceiver<Piece>) {
        let (to, pieces) = mpsc::unbounded_channel();
        let id = message::read(line.as_bytes()).unwrap().id.unwrap().get().to_owned();
        let era = if head.is_some() { Era::Alone } else { Era::Session };
        (Asked { id, era, form: Form::Events, to, head }, pieces)
    }

    /// Pieces that have come, each as its line; the end is an empty one.
    fn came(pieces: &mut mpsc::UnboundedReceiver<Piece>) -> Vec<String> {
        std::iter::from_fn(|| pieces.try_recv().ok())
            .map(|piece| match piece {
                Piece::Frame(frame) | Piece::Marked(frame, _) => {
                    let text = String::from_utf8(frame.to_vec()).unwrap();
                    text.trim_start_matches("event: message\ndata: ").trim_end().to_owned()
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
    async fn a_cancelled_request_of_a_session_is_answered_as_cancelled_and_its_recorder_hears_of_it() {
        let mut stage = Stage::new();
        let mut one = stage.asks(ONE);
        let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#;
        stage.session.tell(&message::read(cancel.as_bytes()).unwrap(), cancel.as_bytes().to_vec());
        stage.gives(r#"{"id":1,"result":{}}"#);
        let [answer, end] = &came(&mut one)[..] else { panic!("wanted an answer and the end") };
        assert!(answer.contains("-32800") && end.is_empty(), "{answer}");
        assert_eq!(stage.lines.recv().await.unwrap(), ONE.as_bytes());
        assert_eq!(stage.lines.recv().await.unwrap(), cancel.as_bytes());
    }

    #[tokio::test]
    async fn an_id_is_used_once_at_a_time_and_nobody_waits_for_an_ended_recorder() {
        let stage = Stage::new();
        let mut one = stage.asks(ONE);
        let message = message::read(ONE.as_bytes()).unwrap();
        assert!(!stage.session.ask(asked(ONE, None).0, &message, ONE.into()));
        stage.session.streams.lock().end();
        assert!(came(&mut one)[0].contains("was given up"));
        assert!(came(&mut stage.asks(TWO))[0].contains("was given up"));
        assert!(stage.session.is_over());
    }

    /// Bug: a response began before its answer was known. Consequence: errors whose status the protocol names came as
    /// 200. Cause: the head of a stream was sent at once, in both eras.
    #[tokio::test]
    async fn the_first_line_decides_the_head_of_a_request_that_stands_alone() {
        let stage = Stage::new();
        let (head, mut pieces) = stage.asks_alone(ONE);
        let error = r#"{"id":1,"error":{"code":-32601,"message":"no"}}"#;
        stage.gives(error);
        assert_eq!(head.await.unwrap(), (404, Form::Json));
        assert_eq!(came(&mut pieces), [error, ""]);
        let (head, mut pieces) = stage.asks_alone(TWO);
        let notice = r#"{"method":"notifications/subscriptions/acknowledged"}"#;
        stage.gives(notice);
        stage.session.keep_open();
        assert_eq!(head.await.unwrap(), (200, Form::Events));
        assert_eq!(came(&mut pieces), [notice, ":"]);
    }

    /// Bug: who hung up was not told of. Consequence: a server went on with what was cancelled. Cause: from 2026-07-28
    /// on to hang up is to cancel, and the recorder only lost its client.
    #[tokio::test]
    async fn who_hangs_up_cancels_what_has_no_answer() {
        let mut stage = Stage::new();
        let (_head, _pieces) = stage.asks_alone(ONE);
        let _two = stage.asks_alone(TWO);
        stage.gives(r#"{"id":2,"result":{}}"#);
        stage.session.hung_up();
        let lines: Vec<String> = std::iter::from_fn(|| stage.lines.try_recv().ok())
            .map(|line| String::from_utf8(line).unwrap())
            .collect();
        let [one, two, cancel] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!([one, two], [ONE, TWO]);
        assert!(cancel.contains("notifications/cancelled") && cancel.contains("\"requestId\":1"), "{cancel}");
    }
}
