//! Bodies of answers: whole, in frames, and in the ways a broken provider sends them.

use std::{
    io::{self, Write},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
    vec,
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, header};
use hyper::body::{Frame, SizeHint};
use tokio::time::Sleep;

/// Body of an answer.
pub(super) enum Body {
    Whole(Option<Bytes>),
    Frames(Frames),
}

/// Frames that are sent one by one, and the body's state after the last.
pub(super) struct Frames {
    left: vec::IntoIter<Bytes>,
    /// Time between one frame and the next.
    gap: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    end: End,
}

/// State of a body in frames after its last frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    #[default]
    Clean,
    /// The connection breaks after all frames are sent.
    Cut,
    /// All frames of a `Cut` body are flushed: the connection breaks now.
    Flushed,
    /// The connection stays open without a further byte until the client leaves.
    Hang,
    /// The last `frames` frames are delayed by `after_ms` milliseconds.
    Late { frames: u8, after_ms: u32 },
}

/// Error of a body that ended early, as its request had asked.
#[derive(Debug, thiserror::Error)]
#[error("the answer was cut short, as its request had asked for")]
pub(super) struct CutShort;

impl Body {
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()))
    }

    pub fn frames(frames: Vec<Bytes>, gap: Duration, end: End) -> Self {
        Self::Frames(Frames { left: frames.into_iter(), gap, waiting: None, end })
    }

    /// Compresses the body. Each frame is flushed, so that a client can decode it as soon as it arrives.
    pub fn gzip(self) -> io::Result<Self> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        match self {
            Self::Whole(bytes) => {
                encoder.write_all(&bytes.unwrap_or_default())?;
                Ok(Self::whole(encoder.finish()?))
            }
            Self::Frames(Frames { left, gap, mut end, .. }) => {
                let mut frames = Vec::with_capacity(left.len() + 1);
                for frame in left {
                    encoder.write_all(&frame)?;
                    encoder.flush()?;
                    frames.push(Bytes::from(std::mem::take(encoder.get_mut())));
                }
                // A body that breaks off has no trailer either.
                if matches!(end, End::Clean | End::Late { .. }) {
                    frames.push(Bytes::from(encoder.finish()?));
                }
                if let End::Late { frames, .. } = &mut end {
                    *frames += 1;
                }
                Ok(Self::frames(frames, gap, end))
            }
        }
    }
}

/// Returns whether a request's `Accept-Encoding` allows gzip.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = weight.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = CutShort;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutShort>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Frames(frames) => frames.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Frames(_) => SizeHint::default(),
        }
    }
}

impl Frames {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutShort>>> {
        if let Some(sleep) = &mut self.waiting {
            std::task::ready!(sleep.as_mut().poll(cx));
            self.waiting = None;
        }
        if let End::Late { frames, after_ms } = self.end
            && self.left.len() <= usize::from(frames)
        {
            let after = Duration::from_millis(after_ms.into());
            self.end = End::Clean;
            self.waiting = Some(Box::pin(tokio::time::sleep(after)));
            return self.poll(cx);
        }
        if let Some(frame) = self.left.next() {
            if !self.gap.is_zero() {
                self.waiting = Some(Box::pin(tokio::time::sleep(self.gap)));
            }
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        match self.end {
            End::Clean | End::Late { .. } => Poll::Ready(None),
            End::Cut => {
                // hyper drops what it has buffered when a body fails; a pending body makes it flush first.
                self.end = End::Flushed;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            End::Flushed => Poll::Ready(Some(Err(CutShort))),
            // hyper watches the connection and drops this body when the client leaves.
            End::Hang => Poll::Pending,
        }
    }
}
