//! An upstream that sends exactly the bytes a test wrote down: for what no provider should do.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Behaviour after the bytes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Close,
    /// Nothing, for as long as the other side stays.
    Hang,
    /// The same bytes again and again, for as long as the other side stays.
    Repeat(&'static str),
}

/// The upstream; it ends with its handle.
pub struct Scripted {
    pub base: String,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scripted {
    /// Answers every request with what `answer` makes of its text.
    pub async fn start(answer: impl Fn(&str) -> (String, Then) + Send + Sync + 'static) -> Scripted {
        Self::start_bytes(move |request| {
            let (text, then) = answer(request);
            (text.into_bytes(), then)
        })
        .await
    }

    pub async fn start_bytes(answer: impl Fn(&str) -> (Vec<u8>, Then) + Send + Sync + 'static) -> Scripted {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), answer)
    }

    pub fn on(
        listener: TcpListener,
        answer: impl Fn(&str) -> (Vec<u8>, Then) + Send + Sync + 'static,
    ) -> Scripted {
        let base = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (theirs, answer) = (requests.clone(), Arc::new(answer));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (requests, answer) = (theirs.clone(), answer.clone());
                tokio::spawn(async move { converse(stream, &requests, &*answer).await });
            }
        });
        Scripted { base, requests, task }
    }

    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn converse(
    mut stream: TcpStream,
    requests: &Mutex<Vec<String>>,
    answer: &(dyn Fn(&str) -> (Vec<u8>, Then) + Send + Sync),
) {
    let Some(request) = read_request(&mut stream).await else { return };
    requests.lock().unwrap().push(request.clone());
    let (bytes, then) = answer(&request);
    if stream.write_all(&bytes).await.is_err() {
        return;
    }
    match then {
        Then::Close => {}
        // Ends when the other side does.
        Then::Hang => drop(stream.read(&mut [0; 64]).await),
        Then::Repeat(text) => {
            while stream.write_all(text.as_bytes()).await.is_ok() {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        }
    }
}

/// One request with its body, by its content length.
pub async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut all = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let n = stream.read(&mut buffer).await.ok().filter(|n| *n > 0)?;
        all.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&all).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .filter_map(|l| l.split_once(':'))
            .find(|(n, _)| n.eq_ignore_ascii_case("content-length"))
            .map_or(0, |(_, v)| v.trim().parse().unwrap());
        if body.len() >= length {
            return Some(text);
        }
    }
}

/// A JSON answer.
pub fn json(status: u16, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// A stream's head and first part, chunked.
pub fn stream(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n"
    )
}
