//! Replay over gRPC: commits are read and translated on a blocking thread, and streamed in batches.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    vec,
};

use futures_util::Stream;
use outlast_core::store::{Store, state::Event};
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::{Response, Status, metadata::MetadataValue};

use super::{
    MAX_REPLY, Operation, ReplayEvent,
    service::{from_json, number},
    status,
};
use crate::state::{Commits, Error};

/// Number of batches buffered for the client.
const AHEAD: usize = 4;

/// Bytes reserved for a message's own fields and its framing.
const MESSAGE_OVERHEAD: usize = 1024;

type Batch = Result<Vec<ReplayEvent>, Status>;

/// Stream of the events of a replay. When the client leaves, the stream and the thread that feeds it end.
pub struct Events {
    batches: mpsc::Receiver<Batch>,
    batch: vec::IntoIter<ReplayEvent>,
}

/// Starts a replay of `commits`, and returns the reply that streams it.
///
/// The first page is read before the reply begins, so that its header can say whether compaction has removed part of
/// the range (`outlast-compacted: true`).
pub async fn start(store: Arc<dyn Store>, mut commits: Commits) -> Result<Response<Events>, Error> {
    let (sender, mut batches) = mpsc::channel::<Batch>(AHEAD);
    let (compacted, said) = tokio::sync::oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let mut compacted = Some(compacted);
        loop {
            let page = commits.page(&*store).map_err(Error::from);
            if let Some(compacted) = compacted.take() {
                let _ = compacted.send(commits.compacted());
            }
            if matches!(&page, Ok(page) if page.is_empty()) {
                return;
            }
            let batch = page.and_then(translated).map_err(status);
            let failed = batch.is_err();
            let gone = sender.blocking_send(batch).is_err();
            if failed || gone {
                return;
            }
        }
    });
    let compacted = said.await.unwrap_or(false);
    let batch = match batches.recv().await {
        Some(Ok(first)) => first,
        Some(Err(status)) => {
            let (sender, failing) = mpsc::channel(1);
            let _ = sender.try_send(Err(status));
            batches = failing;
            Vec::new()
        }
        None => Vec::new(),
    };
    let mut response = Response::new(Events { batches, batch: batch.into_iter() });
    if compacted {
        response.metadata_mut().insert("outlast-compacted", MetadataValue::from_static("true"));
    }
    Ok(response)
}

fn translated(commits: Vec<Vec<Event>>) -> Result<Vec<ReplayEvent>, Error> {
    let mut out = Vec::with_capacity(commits.len());
    for commit in commits {
        translate(commit, &mut out)?;
    }
    Ok(out)
}

/// Translates a commit into one message, or into several with the same number and id when one would be too long.
fn translate(commit: Vec<Event>, out: &mut Vec<ReplayEvent>) -> Result<(), Error> {
    let limit = MAX_REPLY - MESSAGE_OVERHEAD;
    let mut length = usize::MAX;
    for Event { item, transaction } in commit {
        let value = item.value.as_deref().map(|v| from_json(v, &item.key)).transpose()?;
        let operation = Operation { key: item.key, value, version: number(item.version) };
        let more = operation.encoded_len() + 8;
        if more > limit {
            let instead = "GET /v1/state/replay has no such limit, nor has `outlast state replay`".into();
            return Err(Error::ReplyTooLarge { had: more, limit, instead });
        }
        if length.saturating_add(more) > limit {
            let commit_ts = number(item.commit);
            let txn_id = transaction.unwrap_or_default();
            out.push(ReplayEvent { txn_id, commit_ts, operations: Vec::new() });
            length = 0;
        }
        length += more;
        if let Some(event) = out.last_mut() {
            event.operations.push(operation);
        }
    }
    Ok(())
}

impl Stream for Events {
    type Item = Result<ReplayEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.batch.next() {
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(self.batches.poll_recv(cx)) {
                Some(Ok(batch)) => self.batch = batch.into_iter(),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            }
        }
    }
}
