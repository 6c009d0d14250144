//! Connections to upstreams: how they are made, and whether an answer has come over one.

use std::{
    io::{IoSlice, Result},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use http::{Extensions, Uri, uri::Scheme};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use tokio::net::TcpStream;
use tower_service::Service;

use crate::wire::network::{Ways, bare};

/// Connector to upstreams, either direct or through the proxy that stands before this machine. That proxy is for
/// `https://` only.
#[derive(Clone)]
pub struct Dial {
    pub tcp: HttpConnector,
    pub ways: Ways,
}

impl Service<Uri> for Dial {
    type Response = Line;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Line, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<std::result::Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = bare(uri.host().unwrap_or_default()).to_owned();
        let is_plain = uri.scheme() == Some(&Scheme::HTTP);
        if is_plain || self.ways.are_straight(&host) {
            let connecting = self.tcp.call(uri);
            return Box::pin(async move { Ok(Line { io: connecting.await?, used: Used::default() }) });
        }
        let ways = self.ways.clone();
        let port = uri.port_u16().unwrap_or(443);
        Box::pin(async move {
            let stream =
                ways.dial(&host, port).await.map_err(|e| format!("tcp connect through a proxy: {e}"))?;
            Ok(Line { io: TokioIo::new(stream), used: Used::default() })
        })
    }
}

/// Mark of a connection: whether an answer has come over it.
#[derive(Clone, Debug, Default)]
pub struct Used(Arc<AtomicBool>);

impl Used {
    /// Returns the mark of a connection that [`Dial`] made.
    pub fn of(connected: &Connected) -> Used {
        let mut extras = Extensions::new();
        connected.get_extras(&mut extras);
        extras.remove().unwrap_or_default()
    }

    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Connection to an upstream, with its mark.
pub struct Line {
    io: TokioIo<TcpStream>,
    used: Used,
}

impl Connection for Line {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.used.clone())
    }
}

impl Read for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl Write for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}
