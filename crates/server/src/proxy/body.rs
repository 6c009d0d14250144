//! The answer's body as hyper takes it: it tells its connection whether it went out whole.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use super::drive::Signal;

/// The answer broke off: hyper closes the connection without a clean end.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub struct BrokeOff;

/// An answer's body.
pub struct AnswerBody {
    kind: Kind,
    /// Told `Delivered` or `Gone` when hyper lets go of the body.
    inbox: Option<mpsc::UnboundedSender<Signal>>,
    ended: bool,
}

enum Kind {
    Whole(Option<Bytes>),
    Frames(mpsc::Receiver<Result<Bytes, BrokeOff>>),
}

impl AnswerBody {
    /// A body of ours, that nobody waits for.
    pub fn plain(bytes: impl Into<Bytes>) -> AnswerBody {
        AnswerBody { kind: Kind::Whole(Some(bytes.into())), inbox: None, ended: false }
    }

    pub fn whole(bytes: Bytes, inbox: mpsc::UnboundedSender<Signal>) -> AnswerBody {
        // An empty body is never polled.
        let ended = bytes.is_empty();
        AnswerBody { kind: Kind::Whole(Some(bytes)), inbox: Some(inbox), ended }
    }

    pub fn frames(
        frames: mpsc::Receiver<Result<Bytes, BrokeOff>>,
        inbox: mpsc::UnboundedSender<Signal>,
    ) -> AnswerBody {
        AnswerBody { kind: Kind::Frames(frames), inbox: Some(inbox), ended: false }
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
        let next = match &mut this.kind {
            Kind::Whole(bytes) => {
                this.ended = true;
                bytes.take().filter(|b| !b.is_empty()).map(Ok)
            }
            Kind::Frames(frames) => match frames.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    this.ended = true;
                    None
                }
                Poll::Ready(some) => some,
            },
        };
        Poll::Ready(next.map(|r| r.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Kind::Frames(_) => self.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Kind::Frames(_) => SizeHint::default(),
        }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        if let Some(inbox) = &self.inbox {
            let signal = if self.ended { Signal::Delivered } else { Signal::Gone };
            // The connection's driver may be over already.
            let _ = inbox.send(signal);
        }
    }
}
