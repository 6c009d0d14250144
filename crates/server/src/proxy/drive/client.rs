//! The client's side: what it gets of the answer, and the errors that are ours to say.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use outlast_core::call::{Broken, Refused, Visible, connection::Event};
use tokio::sync::mpsc;

use super::{Drive, Source};
use crate::{
    compat::riskkernel::Stamped,
    dialect::{error_element, error_frame},
    proxy::host::Seen,
    wire::{
        body::{AnswerBody, Driver, Piece},
        refuse::Refusal,
    },
};

/// Frames between the driver and a slow client.
const FRAMES_AHEAD: usize = 64;

impl Drive {
    /// Forwards what became visible.
    pub(super) async fn send(&mut self, visible: Visible) -> Option<Event> {
        let (frames, head, whole) = match &self.source {
            Source::Nothing => return None,
            Source::Live(live, _) => {
                let log = live.log();
                let upto = match visible {
                    Visible::Nothing => return None,
                    Visible::Frames(n) => n.min(log.frames.len()),
                    Visible::Whole => log.frames.len(),
                };
                let frames: Vec<Bytes> = log.frames.get(self.sent..upto).unwrap_or_default().to_vec();
                self.sent = upto;
                let whole = visible == Visible::Whole && !log.streamed;
                (frames, (log.status, log.headers.clone()), whole)
            }
            Source::Stored(answer) => {
                let whole = answer.frames.len() <= 1;
                (answer.frames.clone(), (answer.status, answer.headers.clone()), whole)
            }
        };
        if let Some(to) = self.head.take() {
            let driver = Driver { id: self.id, wire: self.wire.clone() };
            let (body, out) = if whole {
                (AnswerBody::whole(concat(frames), driver), None)
            } else {
                let (tx, rx) = mpsc::channel(FRAMES_AHEAD);
                (AnswerBody::frames(rx, driver), Some((tx, frames)))
            };
            let response = self.response(head.0, head.1, body, whole);
            if to.send(response).is_err() {
                return Some(Event::ClientGone);
            }
            if let (Source::Live(live, _), false) = (&self.source, whole) {
                self.host.saw(Seen::Streaming { seq: live.seq });
            }
            let (tx, frames) = out?;
            self.out = Some(tx);
            return self.forward(frames).await;
        }
        self.forward(frames).await
    }

    async fn forward(&mut self, frames: Vec<Bytes>) -> Option<Event> {
        let out = self.out.as_ref()?;
        for frame in frames.into_iter().filter(|f| !f.is_empty()) {
            if out.send(Piece::Frame(frame)).await.is_err() {
                return Some(Event::ClientGone);
            }
        }
        None
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
            Source::Live(live, _) if !self.replayed => Some(live.seq),
            _ => None,
        };
        response.extensions_mut().insert(Stamped { run: self.call.seat.run, paid, whole });
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(self.call.seat.id.as_str()) {
            headers.insert("x-outlast-run", id);
        }
        if self.replayed {
            headers.insert("x-outlast-replayed", HeaderValue::from_static("true"));
        }
        response
    }

    pub(super) fn refuse(&mut self, refused: &Refused) {
        let run = self.call.seat.id.to_string();
        let refusal = match (refused, &self.call.request.unpriced, &self.later) {
            (Refused::Budget(why), Some(what), _) if why.code == "price_unknown" => {
                Refusal::Unpriced { what: what.to_string(), refusal: Box::new(why.clone()), run }
            }
            (Refused::AdmissionTimeout(_), _, Some((_, later))) => Refusal::UpstreamRate {
                upstream: self.call.upstream_name().to_string(),
                waited_s: self.host.config.admit_wait.as_secs_f64().to_string(),
                why: later.why.to_string(),
                retry_after_s: u32::try_from(later.after.as_secs() + 1).ok(),
            },
            _ => Refusal::of(refused.clone(), &run),
        };
        self.host.metrics.refused(refusal.code());
        self.host.saw(Seen::Refused {
            code: refusal.code().into(),
            message: refusal.to_string(),
            hint: refusal.hint(),
        });
        let mut response = refusal.response(self.call.to.shape());
        if let Ok(id) = HeaderValue::from_str(self.call.seat.id.as_str()) {
            response.headers_mut().insert("x-outlast-run", id);
        }
        if let Some(head) = self.head.take() {
            // A client that left does not need it.
            let _ = head.send(response);
        }
    }

    pub(super) async fn break_off(&mut self, why: Broken) {
        if let Some(out) = self.out.take() {
            let (shape, text) = (self.call.to.shape(), why.to_string());
            let frame = match self.call.request.array_stream {
                true => error_element(shape, why.code(), &text, self.sent == 0),
                false => error_frame(shape, why.code(), &text),
            };
            // The body breaks off behind it, because its sender is gone.
            let _ = out.send(Piece::Frame(frame)).await;
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
