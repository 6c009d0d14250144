//! The answer's body as hyper takes it: it tells its connection whether it went out whole.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use super::{drive::Signal, wire::Wire};

/// The answer broke off: hyper closes the connection without a clean end.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub struct BrokeOff;

/// An answer's body.
pub struct AnswerBody {
    kind: Kind,
    to: Option<Driver>,
    ended: bool,
}

/// Who waits for the body's fate: it is told `Delivered` once all is flushed, or `Gone`.
pub struct Driver {
    pub inbox: mpsc::UnboundedSender<Signal>,
    pub wire: Wire,
}

enum Kind {
    Whole(Option<Bytes>),
    Frames(mpsc::Receiver<Result<Bytes, BrokeOff>>),
    /// It fails, once what came before is flushed: a flush after this many.
    Breaking(u64),
}

impl AnswerBody {
    /// A body of ours, that nobody waits for.
    pub fn plain(bytes: impl Into<Bytes>) -> AnswerBody {
        AnswerBody { kind: Kind::Whole(Some(bytes.into())), to: None, ended: false }
    }

    pub fn whole(bytes: Bytes, to: Driver) -> AnswerBody {
        // An empty body is never polled.
        let ended = bytes.is_empty();
        AnswerBody { kind: Kind::Whole(Some(bytes)), to: Some(to), ended }
    }

    pub fn frames(frames: mpsc::Receiver<Result<Bytes, BrokeOff>>, to: Driver) -> AnswerBody {
        AnswerBody { kind: Kind::Frames(frames), to: Some(to), ended: false }
    }
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
                    None => {
                        this.ended = true;
                        return Poll::Ready(None);
                    }
                    Some(Ok(frame)) => return Poll::Ready(Some(Ok(Frame::data(frame)))),
                    Some(Err(BrokeOff)) => {
                        this.kind = Kind::Breaking(to.as_ref().map_or(0, |to| to.wire.flushes()));
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
            Kind::Frames(_) => self.ended,
            Kind::Breaking(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Kind::Frames(_) | Kind::Breaking(_) => SizeHint::default(),
        }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        let Some(Driver { inbox, wire }) = self.to.take() else { return };
        if self.ended {
            wire.ended(inbox);
        } else {
            // The connection's driver may be over already.
            let _ = inbox.send(Signal::Gone);
        }
    }
}
