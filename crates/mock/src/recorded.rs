//! A provider whose answers somebody else has: a recording, played back while its client is killed.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::{
    body::{Frame, Incoming},
    client,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet, spawn_blocking},
};

use super::{provider::collect, request::decode};

/// Answers of a recorded provider. Its calls may block for as long as an answer is to be held back.
pub trait Tape: Send + Sync + 'static {
    /// Returns the answer to a request that has come whole.
    fn answer(&self, request: &Asked) -> Said;
    /// Is called when half of an answer has left, before the rest does.
    fn half_sent(&self, call: u32);
}

/// Request, with its body decoded.
#[derive(Debug)]
pub struct Asked {
    pub is_post: bool,
    pub uri: Uri,
    /// Headers that say what is asked, and not by whom.
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Beginnings of the names of such headers.
const SAY_WHAT: [&str; 3] = ["content-type", "anthropic-", "openai-beta"];

/// Answer to a request.
#[derive(Debug)]
pub struct Said {
    /// Number by which `half_sent` names the call; `None`: it is no call, and is sent in one piece.
    pub call: Option<u32>,
    pub status: u16,
    pub media_type: &'static str,
    pub body: Bytes,
}

/// Serves the tape until this future is dropped, with all its connections. Errors: the listener's.
pub async fn serve(listener: TcpListener, tape: Arc<dyn Tape>) -> io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                let _ = stream.set_nodelay(true);
                let tape = tape.clone();
                let service = service_fn(move |request| respond(request, tape.clone()));
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        }
    }
}

async fn respond(
    request: hyper::Request<Incoming>,
    tape: Arc<dyn Tape>,
) -> Result<Response<Halves>, io::Error> {
    let (head, body) = request.into_parts();
    let body = collect(body).await.and_then(|body| decode(&head.headers, body)).map_err(io::Error::other)?;
    let says_what = |name: &HeaderName| SAY_WHAT.iter().any(|begin| name.as_str().starts_with(begin));
    let headers = head.headers.iter().filter(|(name, _)| says_what(name));
    let headers = headers.map(|(name, value)| (name.clone(), value.clone())).collect();
    let asked = Asked { is_post: head.method == http::Method::POST, uri: head.uri, headers, body };
    let teller = tape.clone();
    let said = spawn_blocking(move || teller.answer(&asked)).await?;
    let mut response = Response::new(Halves::of(said.body, said.call.map(|call| (call, tape))));
    *response.status_mut() = StatusCode::from_u16(said.status).unwrap_or_default();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(said.media_type));
    Ok(response)
}

/// Asks a server the same, with more headers. Returns the status and the whole body.
pub async fn pass_on(
    asked: &Asked,
    to: SocketAddr,
    more: impl IntoIterator<Item = (&'static str, String)>,
) -> io::Result<(u16, Bytes)> {
    let stream = TokioIo::new(TcpStream::connect(to).await?);
    let (mut sender, connection) = client::conn::http1::handshake(stream).await.map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let mut request = Request::new(Full::new(asked.body.clone()));
    (*request.method_mut(), *request.uri_mut()) = (http::Method::POST, asked.uri.clone());
    *request.headers_mut() = asked.headers.clone();
    for (name, value) in more.into_iter().chain([("host", to.to_string())]) {
        let value = HeaderValue::try_from(value).map_err(io::Error::other)?;
        request.headers_mut().insert(HeaderName::from_static(name), value);
    }
    let response = sender.send_request(request).await.map_err(io::Error::other)?;
    let status = response.status().as_u16();
    let body = collect(response.into_body()).await.map_err(io::Error::other)?;
    connection.abort();
    Ok((status, body))
}

/// Body that is sent in two halves, with a word to the tape in between.
struct Halves {
    first: Option<Bytes>,
    rest: Option<Bytes>,
    between: Between,
}

/// Point between the halves.
enum Between {
    /// The first half is on its way: hyper sends what it has when a body has nothing ready.
    Sending(u32, Arc<dyn Tape>),
    Telling(JoinHandle<()>),
    Over,
}

impl Halves {
    /// Divides a stream between two of its events, and any other body in its middle.
    fn of(mut body: Bytes, call: Option<(u32, Arc<dyn Tape>)>) -> Halves {
        let Some((call, tape)) = call else {
            return Halves { first: Some(body), rest: None, between: Between::Over };
        };
        let middle = body.len() / 2;
        let event = memchr::memmem::find(&body[middle..], b"\n\n").map(|at| middle + at + 2);
        let rest = body.split_off(event.filter(|at| *at < body.len()).unwrap_or(middle));
        Halves { first: Some(body), rest: Some(rest), between: Between::Sending(call, tape) }
    }
}

impl hyper::body::Body for Halves {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        match std::mem::replace(&mut self.between, Between::Over) {
            Between::Sending(call, tape) => {
                self.between = Between::Telling(spawn_blocking(move || tape.half_sent(call)));
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Between::Telling(mut told) => match Pin::new(&mut told).poll(cx) {
                Poll::Pending => {
                    self.between = Between::Telling(told);
                    Poll::Pending
                }
                Poll::Ready(_) => Poll::Ready(self.rest.take().map(|rest| Ok(Frame::data(rest)))),
            },
            Between::Over => Poll::Ready(None),
        }
    }
}
