//! The answer on its way to the client of one request.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use outlast_core::call::{Broken, ConnectionId, Visible};
use tokio::sync::{mpsc, oneshot};

use crate::{
    compat::riskkernel::Stamped,
    dialect::{error_element, error_frame},
    proxy::{
        call::Call,
        config::{Seen, Watch},
        log::Live,
        record::Answer,
        seated::Seat,
    },
    wire::{
        body::{AnswerBody, Driver, Piece},
        socket::Wire,
    },
};

/// Number of frames buffered between the driver and a slow client.
const FRAMES_AHEAD: usize = 64;

/// Error of sending an answer whose client has left.
pub struct Left;

/// Source of the answer's bytes.
pub enum Source {
    Nothing,
    Live(Arc<Live>),
    Stored(Answer),
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
    /// Number of frames of a live answer that were sent.
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
        let (frames, status, headers, whole) = match &self.source {
            Source::Nothing => return Ok(()),
            Source::Live(live) => {
                let log = live.log();
                let upto = match visible {
                    Visible::Nothing => return Ok(()),
                    Visible::Frames(n) => n.min(log.frames.len()),
                    Visible::Whole => log.frames.len(),
                };
                let frames: Vec<Bytes> = log.frames.get(self.sent..upto).unwrap_or_default().to_vec();
                self.sent = upto;
                let whole = visible == Visible::Whole && !log.streamed;
                // Cloned only for the head: a stream has many frames.
                let headers = self.head.as_ref().map(|_| log.headers.clone());
                (frames, log.status, headers.unwrap_or_default(), whole)
            }
            Source::Stored(answer) => {
                let whole = answer.frames.len() <= 1;
                (answer.frames.clone(), answer.status, answer.headers.clone(), whole)
            }
        };
        let Some(to) = self.head.take() else { return self.forward(frames).await };
        let driver = Driver { id: self.id, wire: self.wire.clone() };
        if whole {
            let body = AnswerBody::whole(concat(frames), driver);
            return to.send(self.response(status, headers, body, true)).map_err(|_| Left);
        }
        let (out, pieces) = mpsc::channel(FRAMES_AHEAD);
        let body = AnswerBody::frames(pieces, driver);
        to.send(self.response(status, headers, body, false)).map_err(|_| Left)?;
        if let Source::Live(live) = &self.source {
            self.watch.saw(Seen::Streaming { seq: live.seq() });
        }
        self.out = Some(out);
        self.forward(frames).await
    }

    async fn forward(&mut self, frames: Vec<Bytes>) -> Result<(), Left> {
        let Some(out) = &self.out else { return Ok(()) };
        for frame in frames.into_iter().filter(|f| !f.is_empty()) {
            out.send(Piece::Frame(frame)).await.map_err(|_| Left)?;
        }
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

fn concat(mut frames: Vec<Bytes>) -> Bytes {
    if frames.len() == 1 {
        return frames.remove(0);
    }
    let mut all = BytesMut::with_capacity(frames.iter().map(Bytes::len).sum());
    frames.iter().for_each(|f| all.extend_from_slice(f));
    all.freeze()
}
