//! A client's connection below hyper: it knows when what hyper had buffered is flushed.
//!
//! hyper lets go of a body when its last byte is buffered, and drops what is buffered when a body
//! fails. So "delivered" and "ended by an error frame" are both known only here.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::mpsc,
};

use super::drive::Signal;

/// What the bodies of a connection share with its socket.
#[derive(Clone, Default)]
pub struct Wire(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    closed: bool,
    /// Flushes so far that left nothing in hyper's buffer.
    flushes: u64,
    /// Of bodies that are over: `Delivered` with the next flush, `Gone` without one.
    delivered: Vec<mpsc::UnboundedSender<Signal>>,
    /// Of a body that fails once it is flushed.
    waker: Option<Waker>,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A body ended: its driver is told once it is flushed.
    pub fn ended(&self, inbox: mpsc::UnboundedSender<Signal>) {
        let mut waiting = self.lock();
        if waiting.closed {
            tell(inbox, Signal::Gone);
        } else {
            waiting.delivered.push(inbox);
        }
    }

    /// The flushes so far.
    pub fn flushes(&self) -> u64 {
        self.lock().flushes
    }

    /// Ready once something was flushed after `since`.
    pub fn poll_flushed(&self, since: u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.lock();
        if waiting.flushes > since || waiting.closed {
            return Poll::Ready(());
        }
        waiting.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Everything is with the kernel.
    fn flushed(&self) {
        let mut waiting = self.lock();
        waiting.flushes += 1;
        waiting.delivered.drain(..).for_each(|inbox| tell(inbox, Signal::Delivered));
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }

    fn closed(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.delivered.drain(..).for_each(|inbox| tell(inbox, Signal::Gone));
    }
}

fn tell(inbox: mpsc::UnboundedSender<Signal>, signal: Signal) {
    // The connection's driver may be over already.
    let _ = inbox.send(signal);
}

/// The socket that tells its wire.
pub struct Socket {
    stream: TcpStream,
    wire: Wire,
}

impl Socket {
    pub fn new(stream: TcpStream, wire: Wire) -> Socket {
        Socket { stream, wire }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.wire.closed();
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
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

    /// hyper calls this when it has written all it had buffered, and only then.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = flushed {
            self.wire.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
