//! A connection below hyper: a client's sees when hyper's buffer is flushed.
//!
//! hyper drops a body when its last byte is buffered, and drops the buffer when a body fails. So only the socket
//! knows whether an answer was delivered, and whether its error frame went out.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use outlast_core::call::{ConnectionId, connection::Event};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::registry::Registry;

/// State that a connection's socket and the bodies sent over it share.
#[derive(Clone, Default)]
pub struct Wire(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    closed: bool,
    /// Client of the request that is being answered; `None` if there is none. HTTP/1 answers one request at a
    /// time.
    answering: Option<Client>,
    /// Number of flushes that left nothing in hyper's buffer.
    flushes: u64,
    /// Clients whose answer is in hyper's buffer: delivered with the next flush, gone when the connection closes first.
    answered: Vec<Client>,
    /// Marks of frames that are in hyper's buffer: made with the next flush, dropped when the connection closes first.
    marks: Vec<Mark>,
    /// Waker of a body that waits for a flush before it fails; `None` if there is none.
    waker: Option<Waker>,
}

/// Action to be taken once the client has received the bytes that it is attached to.
pub type Mark = Box<dyn FnOnce() + Send>;

impl Wire {
    /// Records the client of a request that arrived on this connection, so that the client is reported as
    /// gone if the socket breaks.
    pub fn answering(&self, client: Client) {
        self.0.lock().answering = Some(client);
    }

    /// Records that the whole body for the request `id` is in hyper's buffer.
    pub fn answered(&self, id: ConnectionId) {
        let mut waiting = self.0.lock();
        let client = waiting.answering.take_if(|client| client.id == id);
        waiting.answered.extend(client);
    }

    /// Records that the body for the request `id` was dropped before its end, and reports the client as gone.
    pub fn left(&self, id: ConnectionId) {
        let client = self.0.lock().answering.take_if(|client| client.id == id);
        if let Some(client) = client {
            client.leaves();
        }
    }

    /// Records that the bytes of a mark are in hyper's buffer: `mark` is called after the next flush.
    pub fn marks(&self, mark: Mark) {
        let mut waiting = self.0.lock();
        if !waiting.closed {
            waiting.marks.push(mark);
        }
    }

    /// Returns the number of flushes so far that left nothing in hyper's buffer.
    pub fn flushes(&self) -> u64 {
        self.0.lock().flushes
    }

    /// Returns `Ready` after more than `since` flushes, or when the connection is closed; until then `Pending`.
    pub fn poll_flushed(&self, since: u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.0.lock();
        if waiting.flushes > since || waiting.closed {
            return Poll::Ready(());
        }
        waiting.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Watch for Wire {
    /// Reports the clients with answers in hyper's buffer as delivered.
    fn flushed(&self) {
        let (answered, marks, waker) = {
            let mut waiting = self.0.lock();
            waiting.flushes += 1;
            let answered = std::mem::take(&mut waiting.answered);
            (answered, std::mem::take(&mut waiting.marks), waiting.waker.take())
        };
        marks.into_iter().for_each(|mark| mark());
        answered.into_iter().for_each(Client::has_it);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn closed(&self) {
        let (answered, answering) = {
            let mut waiting = self.0.lock();
            waiting.closed = true;
            waiting.marks.clear();
            (std::mem::take(&mut waiting.answered), waiting.answering.take())
        };
        answered.into_iter().chain(answering).for_each(Client::leaves);
    }
}

/// Client of a request on this connection, as the desk knows it.
pub struct Client {
    pub registry: Arc<Registry>,
    pub id: ConnectionId,
}

impl Client {
    fn has_it(self) {
        self.registry.client(self.id, Event::Delivered);
    }

    fn leaves(self) {
        self.registry.client(self.id, Event::ClientGone);
    }
}

/// Watcher of a [`Socket`].
pub trait Watch: Unpin {
    /// Called when hyper's whole buffer went to the kernel.
    fn flushed(&self) {}

    fn closed(&self) {}
}

/// A stream, of TCP or TLS, that reports its flushes and its end to a watcher.
pub struct Socket<S, W: Watch = Wire> {
    pub stream: S,
    pub watch: W,
}

impl<S, W: Watch> Socket<S, W> {
    pub fn new(stream: S, watch: W) -> Socket<S, W> {
        Socket { stream, watch }
    }
}

impl<S, W: Watch> Drop for Socket<S, W> {
    fn drop(&mut self) {
        self.watch.closed();
    }
}

impl<S: AsyncRead + Unpin, W: Watch> AsyncRead for Socket<S, W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin, W: Watch> AsyncWrite for Socket<S, W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes the stream. hyper calls this only when it has written all that it had buffered.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = flushed {
            self.watch.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
