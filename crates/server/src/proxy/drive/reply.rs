//! The answer on its way to the client of one request.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use outlast_core::call::{Broken, ConnectionId, Visible};
use tokio::sync::{mpsc, oneshot};

use crate::{
    dialect::{error_element, error_frame},
    proxy::{
        call::Call,
        config::{Seen, Watch},
        log::Live,
        record::Answer,
        seat::Seat,
        stamp::Stamped,
    },
    wire::{
        body::{AnswerBody, Driver, Piece},
        socket::Wire,
    },
};

/// Largest part of an answer that is passed on at once, in bytes.
const PIECE: usize = 16 << 10;

/// Number of pieces buffered between the driver and a slow client.
const PIECES_AHEAD: usize = 16;

/// Error of sending an answer whose client has left.
pub struct Left;

/// Source of the answer's bytes.
pub enum Source {
    Nothing,
    Live(Arc<Live>),
    Stored(Answer),
}

impl Source {
    /// Returns the visible bytes of the answer from byte `from` on, at most `most` of them.
    fn part(&self, visible: Visible, from: usize, most: usize) -> Bytes {
        match self {
            Source::Nothing => Bytes::new(),
            Source::Live(live) => {
                let log = live.log.lock();
                let part = log.visible_from(visible, from);
                Bytes::copy_from_slice(&part[..most.min(part.len())])
            }
            Source::Stored(answer) => {
                let from = from.min(answer.body.len());
                answer.body.slice(from..from.saturating_add(most).min(answer.body.len()))
            }
        }
    }
}

/// Answer on its way to the client of one request.
pub struct Reply {
    pub source: Source,
    /// Whether the answer was paid for by another request, which came earlier or is still in flight.
    pub replayed: bool,
    id: ConnectionId,
    wire: Wire,
    watch: Watch,
    seat: Seat,
    head: Option<oneshot::Sender<Response<AnswerBody>>>,
    out: Option<mpsc::Sender<Piece>>,
    /// Number of bytes of the answer's stream that were sent.
    sent: usize,
}

impl Reply {
    pub fn new(
        id: ConnectionId,
        wire: Wire,
        head: oneshot::Sender<Response<AnswerBody>>,
        watch: Watch,
        seat: Seat,
    ) -> Reply {
        let head = Some(head);
        Reply { source: Source::Nothing, replayed: false, id, wire, watch, seat, head, out: None, sent: 0 }
    }

    /// Sends the client the part of the answer that is now `visible`, after the response's head.
    pub async fn send(&mut self, visible: Visible) -> Result<(), Left> {
        if self.head.is_some() {
            let (status, headers, streamed) = match &self.source {
                Source::Live(live) if visible != Visible::Nothing => {
                    let log = live.log.lock();
                    (log.status, log.headers.clone(), log.streamed)
                }
                Source::Stored(answer) => (answer.status, answer.headers.clone(), answer.streamed),
                Source::Live(_) | Source::Nothing => return Ok(()),
            };
            self.begin(visible, status, headers, streamed)?;
        }
        let Some(out) = &self.out else { return Ok(()) };
        loop {
            let piece = self.source.part(visible, self.sent, PIECE);
            if piece.is_empty() {
                return Ok(());
            }
            self.sent += piece.len();
            out.send(Piece::Frame(piece)).await.map_err(|_| Left)?;
        }
    }

    /// Sends the response: its head, and the whole body unless that is `streamed`.
    fn begin(
        &mut self,
        visible: Visible,
        status: StatusCode,
        headers: HeaderMap,
        streamed: bool,
    ) -> Result<(), Left> {
        let Some(to) = self.head.take() else { return Ok(()) };
        let driver = Driver { id: self.id, wire: self.wire.clone() };
        if !streamed {
            let body = AnswerBody::whole(self.source.part(visible, 0, usize::MAX), driver);
            return to.send(self.response(status, headers, body, true)).map_err(|_| Left);
        }
        let (out, pieces) = mpsc::channel(PIECES_AHEAD);
        let body = AnswerBody::frames(pieces, driver);
        to.send(self.response(status, headers, body, false)).map_err(|_| Left)?;
        if let Source::Live(live) = &self.source {
            self.watch.saw(Seen::Streaming { seq: live.seq() });
        }
        self.out = Some(out);
        Ok(())
    }

    /// Ends the response's body cleanly.
    pub async fn finish(&mut self) {
        if let Some(out) = self.out.take() {
            // A client that left is reported by its body already.
            let _ = out.send(Piece::End).await;
        }
    }

    /// Breaks off an answer that has begun: an error frame, then an unclean end of the body.
    pub async fn break_off(&mut self, why: Broken, call: &Call) {
        if let Some(out) = self.out.take() {
            let (shape, text) = (call.to.shape(), why.to_string());
            let frame = match call.request.array_stream {
                true => error_element(shape, why.code(), &text, self.sent == 0),
                false => error_frame(shape, why.code(), &text),
            };
            // The body breaks off after this frame, because its sender is dropped here.
            let _ = out.send(Piece::Frame(frame)).await;
        }
    }

    /// Sends an error of Outlast as the response. Does nothing if a head was sent already.
    pub fn refuse(&mut self, mut response: Response<AnswerBody>) {
        self.name_run(response.headers_mut());
        if let Some(head) = self.head.take() {
            // A client that left needs no response.
            let _ = head.send(response);
        }
    }

    fn response(
        &self,
        status: StatusCode,
        headers: HeaderMap,
        body: AnswerBody,
        whole: bool,
    ) -> Response<AnswerBody> {
        let mut response = Response::new(body);
        let paid = match &self.source {
            Source::Live(live) if !self.replayed => Some(live.seq()),
            _ => None,
        };
        response.extensions_mut().insert(Stamped { run: self.seat.run, paid, whole });
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        self.name_run(response.headers_mut());
        if self.replayed {
            response.headers_mut().insert("x-outlast-replayed", HeaderValue::from_static("true"));
        }
        response
    }

    fn name_run(&self, headers: &mut HeaderMap) {
        if let Ok(id) = HeaderValue::from_str(self.seat.id.as_str()) {
            headers.insert("x-outlast-run", id);
        }
    }
}
