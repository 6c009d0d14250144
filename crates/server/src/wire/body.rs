//! Body of an answer for hyper. Reports to its connection whether the answer went out whole.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use hyper::body::{Body, Frame, SizeHint};
use outlast_core::call::ConnectionId;
use tokio::sync::mpsc;

use super::socket::{Mark, Wire};

/// Error of a body that broke off. hyper then closes the connection without a clean end.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub struct BrokeOff;

/// Body of a response.
pub struct AnswerBody {
    kind: Kind,
    to: Option<Driver>,
    ended: bool,
}

/// A piece of a body.
pub enum Piece {
    Frame(Bytes),
    /// A frame, and the action that is due once the frame was flushed to the client.
    Marked(Bytes, Mark),
    /// The clean end of the body. A body whose sender is dropped without this piece has broken off.
    End,
}

/// Driver of the request that waits for what becomes of a body: `Delivered` once all is flushed, else `ClientGone`.
pub struct Driver {
    pub id: ConnectionId,
    pub wire: Wire,
}

enum Kind {
    Whole(Option<Bytes>),
    Frames(mpsc::Receiver<Piece>),
    /// Frames, some with an action that is due once they are flushed.
    Marked(mpsc::UnboundedReceiver<Piece>, Wire),
    /// The body fails once the frames before are flushed: at the first flush after this many.
    Breaking(u64),
}

impl AnswerBody {
    /// Creates a whole body. Nobody is told when it was delivered.
    pub fn plain(bytes: impl Into<Bytes>) -> AnswerBody {
        AnswerBody { kind: Kind::Whole(Some(bytes.into())), to: None, ended: false }
    }

    /// Creates a body that is sent in pieces. Nobody is told when they were delivered.
    pub fn stream(frames: mpsc::Receiver<Piece>) -> AnswerBody {
        AnswerBody { kind: Kind::Frames(frames), to: None, ended: false }
    }

    /// Creates a body that is sent in pieces, some with an action that is due once they are flushed.
    pub fn marked(frames: mpsc::UnboundedReceiver<Piece>, wire: Wire) -> AnswerBody {
        AnswerBody { kind: Kind::Marked(frames, wire), to: None, ended: false }
    }

    pub fn whole(bytes: Bytes, to: Driver) -> AnswerBody {
        // An empty body is never polled.
        let ended = bytes.is_empty();
        AnswerBody { kind: Kind::Whole(Some(bytes)), to: Some(to), ended }
    }

    pub fn frames(frames: mpsc::Receiver<Piece>, to: Driver) -> AnswerBody {
        AnswerBody { kind: Kind::Frames(frames), to: Some(to), ended: false }
    }
}

/// Media type of JSON.
pub const JSON: &str = "application/json";

/// Returns a response with a whole body of this media type. A status that is none becomes 500.
pub fn response(status: u16, kind: &'static str, body: impl Into<Bytes>) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::plain(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Returns a [`response`] that no cache may keep.
pub fn unkept(status: u16, kind: &'static str, body: impl Into<Bytes>) -> Response<AnswerBody> {
    let mut response = response(status, kind, body);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        let this = &mut *self;
        loop {
            match (&mut this.kind, &this.to) {
                (Kind::Whole(bytes), _) => {
                    this.ended = true;
                    return Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b))));
                }
                (Kind::Frames(frames), to) => match std::task::ready!(frames.poll_recv(cx)) {
                    Some(Piece::Frame(frame) | Piece::Marked(frame, _)) => {
                        return Poll::Ready(Some(Ok(Frame::data(frame))));
                    }
                    Some(Piece::End) => {
                        this.ended = true;
                        return Poll::Ready(None);
                    }
                    None => {
                        this.kind = Kind::Breaking(to.as_ref().map_or(0, |to| to.wire.flushes()));
                    }
                },
                (Kind::Marked(frames, wire), _) => match std::task::ready!(frames.poll_recv(cx)) {
                    Some(Piece::Marked(frame, mark)) => {
                        wire.marks(mark);
                        return Poll::Ready(Some(Ok(Frame::data(frame))));
                    }
                    Some(Piece::Frame(frame)) => return Poll::Ready(Some(Ok(Frame::data(frame)))),
                    Some(Piece::End) | None => {
                        this.ended = true;
                        return Poll::Ready(None);
                    }
                },
                (Kind::Breaking(since), Some(to)) => {
                    std::task::ready!(to.wire.poll_flushed(*since, cx));
                    return Poll::Ready(Some(Err(BrokeOff)));
                }
                (Kind::Breaking(_), None) => return Poll::Ready(Some(Err(BrokeOff))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Kind::Frames(_) | Kind::Marked(..) => self.ended,
            Kind::Breaking(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Kind::Frames(_) | Kind::Marked(..) | Kind::Breaking(_) => SizeHint::default(),
        }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        match &self.to {
            Some(Driver { id, wire }) if self.ended => wire.answered(*id),
            Some(Driver { id, wire }) => wire.left(*id),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::wire::socket::Watch as _;

    fn body() -> (mpsc::Sender<Piece>, Wire, AnswerBody) {
        let ((tx, rx), wire) = (mpsc::channel(4), Wire::default());
        let driver = Driver { id: ConnectionId(1), wire: wire.clone() };
        (tx, wire, AnswerBody::frames(rx, driver))
    }

    #[tokio::test]
    async fn a_body_ends_cleanly_only_when_it_is_told_so() {
        let (tx, _wire, body) = body();
        tx.send(Piece::Frame(Bytes::from_static(b"a"))).await.ok();
        tx.send(Piece::End).await.ok();
        assert_eq!(body.collect().await.unwrap().to_bytes(), "a");
    }

    // Bug: a stream whose driver was dropped ended cleanly in the middle.
    // Consequence: when the server was stopped or had a defect, agents took half an answer for a whole one.
    // Cause: a dropped sender counted as the end of the body.
    #[tokio::test]
    async fn a_body_whose_driver_just_goes_breaks_off_once_it_is_flushed() {
        let (tx, wire, mut body) = body();
        tx.send(Piece::Frame(Bytes::from_static(b"a"))).await.ok();
        drop(tx);
        assert!(body.frame().await.unwrap().is_ok());
        let (broke, flushed) = tokio::join!(body.frame(), async { wire.flushed() });
        assert!(matches!(broke, Some(Err(BrokeOff))), "{flushed:?}");
    }
}
