//! Replay as server-sent events: one event per commit. The id of an event is the position after which to continue.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;
use outlast_core::{state::Position, store::state::Moment};
use tokio::{sync::mpsc, time::Instant};

use super::{ask, show};
use crate::{
    api::request::{ApiRequest, of_type},
    state::{Commits, Error, StateDesk},
    wire::body::{AnswerBody, Piece},
};

/// Number of pieces buffered for the client.
const AHEAD: usize = 4;

/// Interval between two looks for new commits while a client follows.
const LOOK: Duration = Duration::from_millis(100);

/// Silence after which a comment is sent, so that intermediaries keep the connection.
const QUIET: Duration = Duration::from_secs(15);

pub async fn replay(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let (mut range, follow) = (ask::range(&asked.query)?, asked.query.flag("follow")?);
    if range.to.is_none() && !follow {
        // The replay ends at the newest commit of now: later ones are not waited for.
        let namespace = range.namespace.clone();
        let head = asked.read(move |s| s.namespace(&namespace)).await?;
        range.to = Some(Moment::Commit(head.map_or(0, |n| n.commit)));
    }
    range.after = resumed(&asked)?.map_or(range.after, Position);
    let (sender, pieces) = mpsc::channel(AHEAD);
    tokio::spawn(feed(asked.api.desk.clone(), Commits::new(range), follow, sender));
    Ok(of_type(Bytes::new(), "text/event-stream").map(|_| AnswerBody::stream(pieces)))
}

/// Returns the position in `Last-Event-ID`, which a client that lost its connection sends.
fn resumed(asked: &ApiRequest) -> Result<Option<i64>, Error> {
    let Some(said) = asked.headers.get("last-event-id") else { return Ok(None) };
    let position = said.to_str().ok().and_then(|s| s.parse().ok());
    position.map(Some).ok_or_else(|| Error::BadRequest("Last-Event-ID is none that was given here".into()))
}

/// Sends pages until the last one; with `follow`, until the client leaves.
async fn feed(desk: Arc<StateDesk>, mut commits: Commits, follow: bool, to: mpsc::Sender<Piece>) {
    let (mut said, mut told) = (Instant::now(), false);
    let mut ear = follow.then(|| desk.ear());
    loop {
        let read = desk
            .read(move |store| {
                let page = commits.page(store)?;
                let mut runs = show::Runs::default();
                let mut text = String::new();
                for commit in &page {
                    let (id, data) = runs.positioned(store, commit)?;
                    // Values that were read as JSON can be written as JSON.
                    let data = serde_json::to_string(&data).unwrap_or_default();
                    text.push_str(&format!("id: {id}\nevent: commit\ndata: {data}\n\n"));
                }
                Ok((commits, page.is_empty(), text))
            })
            .await;
        let (again, is_end, mut text) = match read {
            Ok(read) => read,
            Err(e) => {
                let data = serde_json::json!({ "code": e.code(), "message": e.to_string() });
                let _ = to.send(frame(format!("event: error\ndata: {data}\n\n"))).await;
                let _ = to.send(Piece::End).await;
                return;
            }
        };
        commits = again;
        if commits.compacted() && !told {
            told = true;
            text.insert_str(0, "event: compacted\ndata: {}\n\n");
        }
        if text.is_empty() && follow && said.elapsed() >= QUIET {
            text.push_str(":\n\n");
        }
        if !text.is_empty() {
            said = Instant::now();
            if to.send(frame(text)).await.is_err() {
                return;
            }
        }
        let Some(ear) = ear.as_mut().filter(|_| is_end) else {
            if is_end {
                let _ = to.send(Piece::End).await;
                return;
            }
            continue;
        };
        tokio::select! {
            () = to.closed() => return,
            _ = ear.pause(LOOK) => {}
        }
    }
}

fn frame(text: String) -> Piece {
    Piece::Frame(Bytes::from(text))
}
