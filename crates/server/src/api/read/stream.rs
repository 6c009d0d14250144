//! Route that re-attaches to a call's answer: what was said from an offset on, then what comes, then the end.
//!
//! A reader gets the bytes that the client of the call could have received, and no other: a held-back end stays held back
//! until it is recorded. Nothing is added to them, so that a reader's offset is the number of bytes it has.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, header};
use outlast_core::{
    call::Visible,
    journal::{Kind, State},
    store,
    words::{RunNo, Seq},
};
use tokio::sync::mpsc;

use super::{entries::named, exchange::Exchange};
use crate::{
    api::request::{Answered, ApiRequest, of_type},
    proxy::{host::Host, log::Live},
    state::Error,
    wire::body::{AnswerBody, Piece},
};

/// Interval between two looks at an answer that is under way.
const LOOK: Duration = Duration::from_millis(50);

/// Interval between two looks at the entry of a call that another process makes.
const LOOK_AFAR: Duration = Duration::from_millis(500);

/// Number of pieces buffered for the client.
const AHEAD: usize = 4;

/// Answers with the bytes of a call's answer from `from` on, as they come.
///
/// Errors: `unknown_entry`; `bad_request` for an entry that is no call, and for an offset behind a recorded answer's end;
/// `not_kept`.
pub async fn stream(asked: ApiRequest) -> Answered {
    let from = asked.query.number("from")?.unwrap_or(0);
    let from = usize::try_from(from).unwrap_or(usize::MAX);
    let (view, entry) = named(&asked).await?;
    let (run, seq, state) = (entry.run, entry.seq, entry.state);
    let Some(call) = entry.call.as_ref().filter(|_| entry.kind == Kind::Call) else {
        return Err(Error::BadRequest(format!("entry {seq} is no call, and has no answer that streams")));
    };
    let content_type = if call.stream { "text/event-stream" } else { "application/octet-stream" };
    let live = asked.host.registry.live((run, seq));
    let response = |body: AnswerBody| {
        let mut response = of_type(Bytes::new(), content_type).map(|_| body);
        response.headers_mut().insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    };
    if state == State::Open || live.is_some() {
        let (to, pieces) = mpsc::channel(AHEAD);
        tokio::spawn(Follower { host: asked.host.clone(), run, seq, live, at: from, to }.follow());
        return Ok(response(AnswerBody::stream(pieces)));
    }
    let kept = asked.read(move |store| Exchange::read(store, entry)).await?.answer;
    let kept =
        kept.ok_or_else(|| Error::NotKept { run: view.run.id.to_string(), entry: seq.0, side: "answer" })?;
    if from > kept.len() {
        return Err(Error::BadRequest(format!("from is {from}, and the answer has {} bytes", kept.len())));
    }
    Ok(response(AnswerBody::plain(Bytes::from(kept).slice(from..))))
}

/// Reader of one answer that is under way.
struct Follower {
    host: Arc<Host>,
    run: RunNo,
    seq: Seq,
    /// Call in this process; `None` if another process makes it. Kept after the call is over, because its answer may
    /// not be recorded.
    live: Option<Arc<Live>>,
    /// Number of bytes of the answer that were sent to the reader so far.
    at: usize,
    to: mpsc::Sender<Piece>,
}

/// Error: the reader of the answer has left.
struct Left;

impl Follower {
    /// Sends the parts of the answer as they come, until the answer is over. If its end cannot be sent, the response
    /// body breaks off, because the sender is dropped.
    async fn follow(mut self) {
        let over = loop {
            let look = match self.host.registry.visible((self.run, self.seq)) {
                Some(visible) => {
                    if self.send_visible(visible).await.is_err() {
                        return;
                    }
                    LOOK
                }
                // A call is settled before its process forgets it.
                None => match self.state().await {
                    Ok(Some(State::Open)) => LOOK_AFAR,
                    Ok(state) => break state,
                    Err(_) => return,
                },
            };
            if self.host.is_draining() {
                return;
            }
            tokio::select! {
                () = self.to.closed() => return,
                () = tokio::time::sleep(look) => {}
            }
        };
        if self.send_rest(over == Some(State::Done)).await == Ok(true) {
            let _ = self.to.send(Piece::End).await;
        }
    }

    async fn state(&self) -> Result<Option<State>, store::Error> {
        let (store, run, seq) = (self.host.store.clone(), self.run, self.seq);
        let read = tokio::task::spawn_blocking(move || store.entry(run, seq)).await;
        Ok(read.map_err(|_| store::Error::Closed)??.map(|entry| entry.state))
    }

    async fn send_visible(&mut self, visible: Visible) -> Result<(), Left> {
        let Some(live) = self.live.clone().or_else(|| self.host.registry.live((self.run, self.seq))) else {
            return Ok(());
        };
        let new = live.log.lock().visible_from(visible, self.at).to_vec();
        self.live = Some(live);
        self.send(new).await
    }

    async fn send(&mut self, new: Vec<u8>) -> Result<(), Left> {
        if new.is_empty() {
            return Ok(());
        }
        self.at += new.len();
        self.to.send(Piece::Frame(new.into())).await.map_err(|_| Left)
    }

    /// Sends the part of a finished answer that was not sent yet. Returns false if that part is not known any more.
    async fn send_rest(&mut self, done: bool) -> Result<bool, ()> {
        let (store, run, seq) = (self.host.store.clone(), self.run, self.seq);
        let read = move || -> Result<Option<Vec<u8>>, store::Error> {
            let Some(entry) = store.entry(run, seq)? else { return Ok(None) };
            Ok(Exchange::read(&*store, entry)?.answer)
        };
        let kept = tokio::task::spawn_blocking(read).await.map_err(drop)?.map_err(drop)?;
        let rest = match (kept, &self.live) {
            (Some(kept), _) => kept.get(self.at..).map(<[u8]>::to_vec),
            // Not recorded: the run keeps digests only. One that was dropped for want of memory has no frames.
            (None, Some(live)) if done && !live.log.lock().frames.is_empty() => {
                Some(live.log.lock().visible_from(Visible::Whole, self.at).to_vec())
            }
            _ => None,
        };
        let Some(rest) = rest else { return Ok(false) };
        self.send(rest).await.map_err(drop)?;
        Ok(true)
    }
}
